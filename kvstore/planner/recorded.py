"""A trace out of a journal: the requests that a service of one's own has had.

A request begins with the Allocate that makes its sequence, and ends with its Free: what it has grown by is
the answer. Blocks are named by the keys that Allocate and Commit gave, and what had none is nobody's. Refused
calls count for nothing; children of forks, which no Allocate makes, are not requests here.
"""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct

from kvstore.core.calls import Attach, Detach, SetCosts, Single, Step
from kvstore.core.effects import Effects
from kvstore.core.errors import TraceInvalid
from kvstore.core.events import TethersClosed
from kvstore.core.operations import Allocate, Commit, Free, Grow, Operation
from kvstore.core.types import BlockKey, EngineId, NamespaceId, SequenceId, blocks_for_tokens
from kvstore.observe.reading import Run, find_runs
from kvstore.planner.requests import Request

__all__ = ["JournalTrace", "open_journal"]

# Of the numbers that stand for keys: so few that two keys of a million have one in a billion runs.
ID_BYTES = 7


class JournalTrace:
    """Of one run of a service."""

    def __init__(self, path: Path, run: Run) -> None:
        self._run = run
        self.name = path.name
        self.block_tokens = run.heading.config.block_tokens
        # Of the model that was served, all ranks together; known when all requests were read. 0: the journal
        # does not say, as without a tier below the GPU nobody asks what it costs to move a block.
        self.kv_bytes_per_token = 0

    def requests(self) -> Iterator[Request]:
        """In the order of their ends; those that had none come last."""
        recorder = _Recorder(self.block_tokens)
        for entry in self._run.entries():
            event = entry.event
            if not isinstance(entry.outcome, Effects):
                continue
            match event:
                case Attach():
                    recorder.namespaces[event.engine] = event.namespace
                case SetCosts():
                    self.kv_bytes_per_token = -(-event.block_bytes // self.block_tokens)
                case Step():
                    for operation in sorted(event.operations, key=_phase):
                        yield from recorder.take(event.time, event.engine, operation)
                case Single():
                    yield from recorder.take(event.time, event.engine, event.operation)
                case Detach() | TethersClosed():
                    yield from recorder.end(event.engine)
                case _:
                    pass
        for engine in list(recorder.open):
            yield from recorder.end(engine)


def open_journal(path: Path) -> JournalTrace:
    """The longest run in a folder of `serve --journal`, or one segment."""
    runs = find_runs(path)
    if not runs:
        raise TraceInvalid(
            "no run is recorded there",
            field="trace",
            value=path,
            remedy="name a folder of `kvstore serve --journal`",
        )
    return JournalTrace(path, max(runs, key=lambda run: len(run.segments)))


class _Open(Struct, eq=False):
    """A sequence that has not been freed."""

    time: float
    tenant: str
    session: str
    turn: int
    input_tokens: int
    token_count: int
    keys: list[BlockKey]


def _phase(operation: Operation) -> int:
    """Frees come before the Allocates of a step, and commits before both, wherever they stand."""
    return 0 if isinstance(operation, Commit) else 1 if isinstance(operation, Free) else 2


class _Recorder:
    """What is open, by engine and sequence."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self.namespaces: dict[EngineId, NamespaceId] = {}
        self.open: dict[EngineId, dict[SequenceId, _Open]] = {}
        # For blocks without a key.
        self._nameless = 1 << 8 * ID_BYTES

    def take(self, time: float, engine: EngineId, operation: Operation) -> Iterator[Request]:
        sequences = self.open.setdefault(engine, {})
        match operation:
            case Allocate():
                self._allocate(time, sequences, operation)
            case Grow():
                for sequence, count in zip(operation.sequences, operation.token_counts, strict=True):
                    if found := sequences.get(sequence):
                        found.token_count = max(found.token_count, count)
            case Commit():
                if found := sequences.get(operation.sequence):
                    found.keys[operation.first_block :] = operation.block_keys
            case Free():
                for sequence in operation.sequences:
                    if found := sequences.pop(sequence, None):
                        yield self._request(engine, found)
            case _:
                pass

    def end(self, engine: EngineId) -> Iterator[Request]:
        for each in self.open.pop(engine, {}).values():
            yield self._request(engine, each)

    def _allocate(self, time: float, sequences: dict[SequenceId, _Open], operation: Allocate) -> None:
        if found := sequences.get(operation.sequence):
            found.token_count = max(found.token_count, operation.token_count)
            return
        sequences[operation.sequence] = _Open(
            time=time,
            tenant=operation.tenant,
            session=operation.session,
            turn=operation.turn,
            input_tokens=operation.token_count,
            token_count=operation.token_count,
            keys=[*operation.block_keys],
        )

    def _request(self, engine: EngineId, each: _Open) -> Request:
        """The last block of the prompt may be part-filled: its key is the answer's then."""
        space = f"{self.namespaces.get(engine, 0)} {each.tenant} "
        ids = [self._id(space, key) for key in each.keys]
        full, blocks = each.input_tokens // self._size, blocks_for_tokens(each.input_tokens, self._size)
        output = each.token_count - each.input_tokens
        end = max(each.input_tokens, each.token_count - 1) // self._size
        prompt = ids[:full]
        while len(prompt) < blocks:
            self._nameless += 1
            prompt.append(self._nameless)
        return Request(
            time=each.time,
            input_tokens=each.input_tokens,
            output_tokens=output,
            block_ids=tuple(prompt),
            # Only behind a prompt whose blocks all have a key: what hangs on a nameless one is nobody's, too.
            answer_ids=tuple(ids[full:end]) if len(ids) >= full else (),
            session=f"{space}{each.session}" if each.session else "",
            turn=each.turn,
        )

    def _id(self, space: str, key: BlockKey) -> int:
        return int.from_bytes(blake2b(key, digest_size=ID_BYTES, key=space.encode()[:64]).digest(), "big")
