"""What kernels of an engine do to frames, as data: run by the shadow memory when the stream comes to it."""

from dataclasses import dataclass, field

from kvstore.sim.texts import BLOCK_TOKENS, Content

__all__ = ["CopyFrame", "Inherit", "Publish", "ReadTokens", "Seen", "Space", "Work", "WriteTokens"]


class Seen(dict[int, int]):
    """The generation of each block of a sequence, as its engine last saw it."""

    # The number of the event that gave the sequence the table in which it sees them.
    granted_at = 0


@dataclass(frozen=True, slots=True)
class Space:
    """Whose blocks these are; never shared with another."""

    namespace: int = 1
    tenant: int = 1


_HERE = Space()


@dataclass(frozen=True, slots=True)
class CopyFrame:
    """Copy on write, before the step's forward pass."""

    source: int
    target: int

    def frames_read(self) -> tuple[int, ...]:
        return (self.source,)

    def frames_written(self) -> tuple[int, ...]:
        return (self.target,)


@dataclass(frozen=True, slots=True)
class ReadTokens:
    """Attention over the first `count` tokens of a text."""

    table: tuple[int, ...]
    tokens: Content
    count: int
    space: Space = _HERE
    # None: whatever generation it is.
    seen: Seen | None = None
    sequence: str = ""

    def frames_read(self) -> tuple[int, ...]:
        return self.table[: -(-self.count // BLOCK_TOKENS)]

    def frames_written(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class WriteTokens:
    """KV of the tokens [first, end) of a text, each into its block."""

    table: tuple[int, ...]
    tokens: Content
    first: int
    end: int
    space: Space = _HERE
    seen: Seen = field(default_factory=Seen)
    sequence: str = ""

    def blocks(self) -> list[Content]:
        """Those that it writes to, as they are then."""
        size = BLOCK_TOKENS
        places = range(self.first // size, -(-self.end // size))
        return [self.tokens[place * size : (place + 1) * size] for place in places]

    def frames_read(self) -> tuple[int, ...]:
        return ()

    def frames_written(self) -> tuple[int, ...]:
        return self.table[self.first // BLOCK_TOKENS : -(-self.end // BLOCK_TOKENS)]


@dataclass(frozen=True, slots=True)
class Publish:
    """Blocks [first, end) of a text count as committed: all work that wrote them has run."""

    tokens: Content
    first: int
    end: int
    space: Space
    seen: Seen
    # Whose it is: a session's, or a lone sequence's; and the engine's number.
    session: str = ""
    engine: int = 0

    def blocks(self) -> list[Content]:
        size = BLOCK_TOKENS
        return [self.tokens[place * size : (place + 1) * size] for place in range(self.first, self.end)]

    def holds(self, block: Content) -> bool:
        return block in self.blocks()

    def frames_read(self) -> tuple[int, ...]:
        return ()

    def frames_written(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Inherit:
    """What was seen of the first `end` blocks up to here holds for a child, or after a loss, too."""

    parent: Seen
    child: Seen
    end: int

    def frames_read(self) -> tuple[int, ...]:
        return ()

    def frames_written(self) -> tuple[int, ...]:
        return ()


Work = CopyFrame | ReadTokens | WriteTokens | Publish | Inherit
