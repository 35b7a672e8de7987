"""Values of a config by name, each checked as it is read.

What is missing or of the wrong type is refused by its name, so that no reader of a config meets a `KeyError`
far from the field that it is about.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from engine.refused import ModelRefused

__all__ = ["Fields"]

_INCOMPLETE = "take the file as the model's publisher has it"


class Fields:
    """Values of one file by name. A value of null is a value that is missing."""

    def __init__(self, path: Path, get: Callable[[str], Any], prefix: str = "") -> None:
        """get: the value of a name, or None. prefix: what stands before each name in the file."""
        self.path = path
        self._get = get
        self._prefix = prefix

    def get(self, name: str) -> Any:
        return self._get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._get(name) if self._get(name) is not None else default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(name, "a positive integer is needed", _INCOMPLETE)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(name) if self._get(name) is not None else default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.refuse(name, "a positive number is needed", _INCOMPLETE)
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false; false if it is missing."""
        value = self._get(name)
        if not (value is None or isinstance(value, bool)):
            self.refuse(name, "true or false is needed", _INCOMPLETE)
        return bool(value)

    def refuse(self, name: str, why: str, remedy: str) -> NoReturn:
        value = self._get(name)
        what = f"{self._prefix}{name}" + (" is missing" if value is None else f" = {value!r}")
        raise ModelRefused(self.path, what, why, remedy)

    def sizes(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The sizes of a `ModelConfig`, each under the name that `names` has for it; `head_dim` from others
        where it is missing, `kv_heads` as many as heads."""
        sizes: dict[str, Any] = {
            size: self.integer(names[size])
            for size in ("hidden_size", "intermediate_size", "layers", "heads", "context_length")
        }
        hidden_size, heads = sizes["hidden_size"], sizes["heads"]
        kv_heads = sizes["kv_heads"] = self.integer(names["kv_heads"], heads)
        if heads % kv_heads:
            self.refuse(names["kv_heads"], f"the {heads} heads must be a multiple of it", _INCOMPLETE)
        if self._get(names["head_dim"]) is None and hidden_size % heads:
            self.refuse(
                names["head_dim"], f"{hidden_size} is no multiple of {heads} heads", "name it in the file"
            )
        head_dim = sizes["head_dim"] = self.integer(names["head_dim"], hidden_size // heads)
        if head_dim % 2:
            why = f"a head of {head_dim} dimensions can't be rotated by halves"
            self.refuse(names["head_dim"], why, "choose a model whose head_dim is even")
        sizes["rms_norm_eps"] = self.number(names["rms_norm_eps"])
        return sizes
