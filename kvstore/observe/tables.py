"""What the journal lets one know of sequences and of what is in which place.

Only what was answered and started counts: nothing here looks into a store. So it also works from the
middle of a run on, where it learns as it goes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvstore.core.types import BlockKey, EngineId, Frame, SequenceId, Tier
from kvstore.observe.facts import NO_KEY, Content, Held, Place, Ref

__all__ = ["Line", "Tables"]


@dataclass(slots=True, eq=False)
class Line:
    """A sequence: its keys as they became known, the frames it was told, and all that it used."""

    ref: Ref
    session: str = ""
    keys: list[BlockKey] = field(default_factory=list)
    table: list[Frame] = field(default_factory=list)
    used: set[Content] = field(default_factory=set)


class Tables:
    def __init__(self) -> None:
        self.lines: dict[Ref, Line] = {}
        self.contents: dict[Place, Content] = {}
        # Granted for a block that has still to be brought there.
        self._loading: set[Place] = set()

    def is_there(self, place: Place) -> bool:
        """Whether what it was granted for has come, as far as anybody was told."""
        return place not in self._loading

    def line(self, engine: EngineId, sequence: SequenceId) -> Line:
        """Made where it isn't known yet."""
        ref = Ref(engine, sequence)
        return self.lines.setdefault(ref, Line(ref))

    def lines_of(self, engine: EngineId) -> list[Line]:
        return [line for line in self.lines.values() if line.ref.engine == engine]

    def sessions_of(self, refs: Iterable[Ref]) -> frozenset[str]:
        lines = (self.lines[ref] for ref in refs if ref in self.lines)
        return frozenset(line.session for line in lines if line.session)

    def held(self, line: Line, first: int = 0) -> tuple[Held, ...]:
        """The blocks of its table from `first` on."""
        places = [Place(Tier.GPU, frame) for frame in line.table[first:]]
        return tuple(Held(self.contents.setdefault(place, Content()), target=place) for place in places)

    def grant(
        self, line: Line, first: int, frames: Sequence[Frame], known: int, *, loading: bool
    ) -> tuple[Held, ...]:
        """Frames for its blocks from `first` on; up to `known` they hold, or are going to hold, what its
        keys name. Returns what had to go from these frames."""
        old, line.table[first:] = list(line.table), frames
        gone = []
        for index, frame in enumerate(frames, first):
            key = line.keys[index] if index < min(known, len(line.keys)) else NO_KEY
            place = Place(Tier.GPU, frame)
            before = self.contents.get(place)
            own = index < len(old) and old[index] == frame
            if before is None or not (own or (key and before.key == key)):
                if before is not None and before.key:
                    gone.append(Held(before, source=place))
                self._fill(place, key)
                if key and loading:
                    self._loading.add(place)
            self.use(line, self.contents[place])
        return tuple(gone)

    def settle(self, line: Line, frames: Sequence[Frame], known: int) -> tuple[Held, ...]:
        """It is resident in these frames: the first `known` blocks are there, behind them is room only.
        Returns what was lost, or had to go."""
        line.table[:] = frames
        gone = []
        for index, frame in enumerate(frames):
            key = line.keys[index] if index < min(known, len(line.keys)) else NO_KEY
            place = Place(Tier.GPU, frame)
            before = self.contents.get(place)
            own = before is not None and line.ref in before.sequences and not before.key
            if before is None or not (own or (key and before.key == key)):
                if before is not None and before.key:
                    gone.append(Held(before, source=place))
                self._fill(place, key)
            self._loading.discard(place)
            self.contents[place].key = key
            self.use(line, self.contents[place])
        return tuple(gone)

    def leave(self, line: Line) -> None:
        """It has no frames any more. What was not brought there yet never will be."""
        for place in {Place(Tier.GPU, frame) for frame in line.table} & self._loading:
            self._loading.discard(place)
            self.contents.pop(place, None)
        line.table.clear()

    def use(self, line: Line, content: Content) -> None:
        line.used.add(content)
        content.sequences.add(line.ref)
        if line.session:
            content.sessions.add(line.session)

    def commit(self, line: Line, first: int, keys: Sequence[BlockKey]) -> tuple[Held, ...]:
        """The blocks that have a key from now on."""
        line.keys[first : first + len(keys)] = keys
        for block, key in zip(self.held(line, first), keys, strict=False):
            if block.content.key != key and block.target is not None:
                # A copy made before it was full is not the same any more.
                self._fill(block.target, key, published=False)
                for user in [*self._users(block.content), line]:
                    self.use(user, self.contents[block.target])
        return self.held(line, first)[: len(keys)]

    def fork(self, parent: Line, children: Iterable[SequenceId]) -> list[Line]:
        forked = []
        for child in children:
            line = self.line(parent.ref.engine, child)
            line.session, line.keys, line.table = parent.session, list(parent.keys), list(parent.table)
            for block in self.held(line):
                self.use(line, block.content)
            forked.append(line)
        return forked

    def copy(self, source: Frame, target: Frame) -> tuple[Held, ...]:
        """A frame copied for a sequence that has the target in its table by now."""
        place = Place(Tier.GPU, target)
        content = self.contents.setdefault(place, Content())
        return (Held(content, source=Place(Tier.GPU, source), target=place),)

    def move(self, source: Place, target: Place, key: BlockKey) -> tuple[Held, Content | None]:
        """A transfer of one block has started. Also returns what it takes the place of."""
        self._loading.discard(target)
        before = self.contents.get(target)
        content = self.contents.get(source)
        if content is None or (key and content.key not in (NO_KEY, key)):
            content = before if before is not None and before.key == key != NO_KEY else Content()
        if key:
            content.key, content.published = key, True
        replaced = before
        same = before is not None and before.key == content.key != NO_KEY
        if before is not None and (same or target.tier is Tier.GPU):
            # The frame was granted for just this block.
            for line in list(self._users(before)):
                self.use(line, content)
            content.sessions |= before.sessions
            replaced = None
        self.contents[source] = self.contents[target] = content
        return Held(content, source, target), replaced

    def drop(self, place: Place, content: Content) -> None:
        """The content never came there."""
        if self.contents.get(place) is content:
            del self.contents[place]

    def end(self, line: Line) -> None:
        """Freed, or its engine is gone. What it used stays its session's."""
        self.leave(line)
        for content in line.used:
            content.sequences.discard(line.ref)
        self.lines.pop(line.ref, None)

    def end_session(self, session: str) -> None:
        for content in self.contents.values():
            content.sessions.discard(session)

    def _fill(self, place: Place, key: BlockKey, *, published: bool = True) -> None:
        self.contents[place] = Content(key, published=published and bool(key))
        self._loading.discard(place)

    def _users(self, content: Content) -> Iterator[Line]:
        return (self.lines[ref] for ref in content.sequences if ref in self.lines)
