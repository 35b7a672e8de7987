"""The fields of a request's body, taken out one by one with their types and bounds checked.

Whatever is left over afterwards nobody knows. A field that is null counts as absent, as clients send it.
Tests: tests/engine/server/test_fields.py.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from engine.server.errors import ApiError, invalid

__all__ = ["Fields", "check_text"]

# Types of values as JSON calls them.
NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


class Fields:
    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        """`path`: where these fields stand in the body, for messages."""
        self._values = {name: value for name, value in values.items() if value is not None}
        self._path = path

    @classmethod
    def parse(cls, body: bytes) -> "Fields":
        try:
            value = json.loads(body, parse_constant=_refuse_constant)
        except (json.JSONDecodeError, UnicodeDecodeError, _NotJSON):
            raise invalid("The body is not valid JSON.") from None
        except RecursionError:
            raise invalid("The body's JSON is nested too deeply.") from None
        except ValueError:
            digits = sys.get_int_max_str_digits()
            raise invalid(f"The body's JSON has an integer of more than {digits} digits.") from None
        if not isinstance(value, dict):
            raise invalid("The body must be a JSON object.")
        return cls(value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def take(self, name: str, default: Any = None) -> Any:
        return self._values.pop(name, default)

    def text(self, name: str, default: str = "", *, length_max: int | None = None) -> str:
        value = self.take(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        if length_max is not None and len(value) > length_max:
            raise invalid(f"{self._path}{name} may have at most {length_max} characters.", self._path + name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, "an integer", value)
        self._check_range(name, value, least, most)
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        value = self.take(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(name, "a number", value)
        self._check_range(name, value, least, most)
        return float(value)

    def nested(self, name: str) -> "Fields":
        """Of an absent one no field is there."""
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return Fields(value, f"{self._path}{name}.")

    def end(self) -> None:
        """Refuses what nobody has taken: a client that relies on it would be misled."""
        if self._values:
            name = self._path + next(iter(self._values))[:64]
            raise invalid(f"Unrecognized request argument supplied: {name}", name, "unknown_parameter")

    def wrong(self, name: str, wanted: str, value: object) -> ApiError:
        where = self._path + name
        return invalid(f"{where} must be {wanted}, not {NAMES[type(value)]}.", where, "invalid_type")

    def _check_range(self, name: str, value: float, least: float, most: float) -> None:
        # An integer may be larger than any float; what is no number is in no range.
        if not least <= value <= most:
            where = self._path + name
            raise invalid(
                f"{where} must be from {least} to {most}, not {value!r:.32}.", where, "invalid_value"
            )


class _NotJSON(Exception):
    pass


def _refuse_constant(name: str) -> float:
    raise _NotJSON(name)


def check_text(text: str, field: str) -> None:
    """JSON can name half of a surrogate pair, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(f"{field} must be text that UTF-8 can hold.", field, "invalid_value") from None
