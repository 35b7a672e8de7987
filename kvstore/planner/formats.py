"""The formats of traces: what stands in a line, and the request that it is. docs/planner.md describes them.

A line that is wrong is refused with its file, number, field and value; nothing is guessed.
"""

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from kvstore.core.bounds import SESSION_BYTES_MAX
from kvstore.core.errors import TraceInvalid, plural
from kvstore.core.types import blocks_for_tokens
from kvstore.planner.requests import Request

__all__ = ["MOONCAKE_BLOCK_TOKENS", "Format", "find_format"]

MOONCAKE_BLOCK_TOKENS = 512
# Between two requests of a trace: what is further away has a time in another unit than the others, or since
# another day.
SPAN_SECONDS_MAX = 100 * 366 * 86_400.0

Seconds = Annotated[float, Meta(ge=0)]
Number = Annotated[int, Meta(ge=0, le=1 << 24)]
Positive = Annotated[int, Meta(ge=1, le=1 << 24)]
Ids = tuple[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)], ...]

# Where msgspec has found something wrong: "Expected …, got … - at `$.hash_ids[3]`".
FOUND = re.compile(r"(?P<what>.*) - at `\$\.?(?P<place>.*)`$")
MISSING = re.compile(r"Object (missing required|contains unknown) field `(?P<place>.*)`")
PART = re.compile(r"[^.\[\]]+")
# Of a value that is told.
VALUE_CHARACTERS_MAX = 60


class _Line(Struct, frozen=True, gc=False):
    """What stands in a line of one of the formats."""

    def request(self) -> Request:
        raise NotImplementedError


class Mooncake(_Line, frozen=True, gc=False):
    """`timestamp` is in milliseconds."""

    timestamp: Seconds
    input_length: Positive
    output_length: Number
    hash_ids: Ids

    def request(self) -> Request:
        return Request(
            time=self.timestamp / 1000,
            input_tokens=self.input_length,
            output_tokens=self.output_length,
            block_ids=self.hash_ids,
        )


class Turn(_Line, frozen=True, gc=False):
    """Below a heading that tells the size of blocks. `ts` is in seconds."""

    sess: int | str
    turn: Number
    ts: Seconds
    input: Positive = msgspec.field(name="in")
    out: Number
    hash_ids: Ids
    kind: str = ""

    def request(self) -> Request:
        return Request(
            time=self.ts,
            input_tokens=self.input,
            output_tokens=self.out,
            block_ids=self.hash_ids,
            session=str(self.sess),
            turn=self.turn,
            kind=self.kind,
        )


class Plain(_Line, frozen=True, gc=False, forbid_unknown_fields=True):
    """kvstore's own, below its heading. Strict: a name with a slip in it is not passed over."""

    time: Seconds
    input: Positive
    output: Number
    blocks: Ids
    answer: Ids = ()
    session: str = ""
    turn: Number = 0
    kind: str = ""

    def request(self) -> Request:
        return Request(
            time=self.time,
            input_tokens=self.input,
            output_tokens=self.output,
            block_ids=self.blocks,
            answer_ids=self.answer,
            session=self.session,
            turn=self.turn,
            kind=self.kind,
        )


class TurnHeading(Struct, frozen=True, forbid_unknown_fields=True):
    block_size: Positive


class PlainHeading(Struct, frozen=True, forbid_unknown_fields=True):
    kvstore_trace: Annotated[int, Meta(ge=1, le=1)]
    block_tokens: Positive


Anything = TypeVar("Anything")


class Format:
    """How the lines of a file are read. `time`, `ids` and `session` are the fields of the time, of the blocks
    and of the conversation; where it has a session, the first line is a heading."""

    def __init__(
        self, name: str, lines: type[_Line], time: str, ids: str, block_tokens: int, *, session: str = ""
    ) -> None:
        self.name, self.block_tokens, self.heads = name, block_tokens, bool(session)
        self._time, self._ids, self._session = time, ids, session
        # msgspec looks at the types once, when a decoder is made.
        self._decoder = msgspec.json.Decoder(lines)

    def parse(self, path: Path, number: int, line: bytes) -> Request:
        request = _decode(path, number, line, self._decoder).request()
        blocks, tokens = len(request.block_ids), request.input_tokens
        if blocks != blocks_for_tokens(tokens, self.block_tokens):
            raise _invalid(
                path,
                number,
                self._ids,
                plural(blocks, "id"),
                f"a prompt of {plural(tokens, 'token')} takes "
                f"{plural(blocks_for_tokens(tokens, self.block_tokens), 'block')} of "
                f"{plural(self.block_tokens, 'token')}",
                "name each block once, the part-filled last one included; or say --block-tokens",
            )
        most = request.answered_blocks(self.block_tokens) - request.full_blocks(self.block_tokens)
        if len(request.answer_ids) > most:
            raise _invalid(
                path,
                number,
                "answer",
                plural(len(request.answer_ids), "id"),
                f"the answer fills {plural(most, 'block')} of {plural(self.block_tokens, 'token')}",
                "name those that are full when it ends, the one that the prompt left part-filled included",
            )
        if (size := len(request.session.encode())) > SESSION_BYTES_MAX:
            raise _invalid(
                path,
                number,
                self._session,
                _short(request.session),
                f"{size} bytes",
                f"name sessions in at most {SESSION_BYTES_MAX} bytes",
            )
        return request

    def check_span(self, path: Path, number: int, request: Request, first: float) -> None:
        """Refuses a request that is a lifetime away from the trace's first line."""
        if abs(request.time - first) > SPAN_SECONDS_MAX:
            raise _invalid(
                path,
                number,
                self._time,
                f"{request.time:g} s",
                f"more than a hundred years from the first line's {first:g} s",
                "see docs/planner.md for the unit, or cut the trace",
            )


def find_format(path: Path, number: int, line: bytes, block_tokens: int | None) -> Format:
    """By the first line of a file. `block_tokens` is what the user has named, or None."""
    fields = _decode(path, number, line, msgspec.json.Decoder(dict[str, Any]))
    if "kvstore_trace" in fields:
        size = _decode(path, number, line, msgspec.json.Decoder(PlainHeading)).block_tokens
        _check_agreed(path, number, "block_tokens", size, block_tokens)
        return Format("kvstore", Plain, "time", "blocks", size, session="session")
    if "block_size" in fields:
        size = _decode(path, number, line, msgspec.json.Decoder(TurnHeading)).block_size
        _check_agreed(path, number, "block_size", size, block_tokens)
        return Format("turns", Turn, "ts", "hash_ids", size, session="sess")
    if fields.keys() >= {"timestamp", "hash_ids"}:
        size = block_tokens or MOONCAKE_BLOCK_TOKENS
        return Format("mooncake", Mooncake, "timestamp", "hash_ids", size)
    raise _invalid(
        path,
        number,
        "fields",
        ", ".join(fields) or "none",
        "not the first line of a trace known here",
        'begin with {"kvstore_trace": 1, "block_tokens": 16} or {"block_size": 16}, or name what Mooncake '
        "does: timestamp, input_length, output_length, hash_ids",
    )


def _check_agreed(path: Path, number: int, field: str, said: int, asked: int | None) -> None:
    if asked is not None and asked != said:
        remedy = f"leave --block-tokens {asked} out"
        raise _invalid(path, number, field, said, "the trace says how many tokens its blocks hold", remedy)


def _decode(path: Path, number: int, line: bytes, decoder: "msgspec.json.Decoder[Anything]") -> Anything:
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        text = str(error)
        if missing := MISSING.search(text):
            raise _invalid(path, number, missing["place"], "", text, "see docs/planner.md") from error
        found = FOUND.match(text)
        what, place = (found["what"], found["place"]) if found else (text, "")
        # Of a line that is not asked for any field, none is named.
        field = place if place not in ("", "[...]") else "line"
        raise _invalid(path, number, field, _value_at(line, place), what, "see docs/planner.md") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        value = line[:VALUE_CHARACTERS_MAX].decode(errors="replace").rstrip()
        raise _invalid(path, number, "line", value, str(error), "write one JSON object a line") from error


def _value_at(line: bytes, place: str) -> str:
    """What stands where msgspec has found something wrong; a number that no float holds can't be read again,
    so the line is told."""
    try:
        value = msgspec.json.decode(line)
        for part in PART.findall(place):
            value = value[int(part)] if isinstance(value, list) else value[part]
        text = repr(value)
    except (msgspec.DecodeError, RecursionError):
        text = line.decode(errors="replace").rstrip()
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[:VALUE_CHARACTERS_MAX] + "…"


def _invalid(path: Path, number: int, field: str, value: object, what: str, remedy: str) -> TraceInvalid:
    return TraceInvalid(f"{path}, line {number}: {what}", field=field, value=value, remedy=remedy)
