"""What the state machine draws: sizes, and what engines, GPUs and links do in a turn."""

from dataclasses import dataclass
from enum import Enum, auto

from hypothesis import strategies as st

from kvstore.core.store import Store
from kvstore.sim.stores import make_store

__all__ = ["Beginning", "Doing", "Misfortune", "Sizes", "Turn", "Verb", "indices", "sizes", "works"]

indices = st.integers(0, 63)


@dataclass(frozen=True)
class Sizes:
    gpu_frames: int
    cpu_frames: int
    disk_frames: int
    transfer_blocks_max: int
    drop_tokens_max: int

    def make(self) -> Store:
        return make_store(
            gpu_frames=self.gpu_frames,
            cpu_frames=self.cpu_frames,
            disk_frames=self.disk_frames,
            transfer_blocks_max=self.transfer_blocks_max,
            drop_tokens_max=self.drop_tokens_max,
        )


sizes = st.builds(
    Sizes,
    gpu_frames=st.integers(4, 16),
    cpu_frames=st.integers(2, 12),
    disk_frames=st.integers(0, 12),
    transfer_blocks_max=st.sampled_from([1, 2, 32]),
    drop_tokens_max=st.sampled_from([0, 8]),
)


class Verb(Enum):
    GROW = auto()
    PREEMPT = auto()
    REST = auto()
    FORK = auto()
    FREE = auto()


class Misfortune(Enum):
    SILENCE = auto()
    DEATH = auto()
    DETACH = auto()
    RESTART = auto()
    FLIP = auto()


@dataclass(frozen=True)
class Beginning:
    """A prompt that has so many tokens in common with one that is known."""

    known: int
    kept: int
    more: int
    tenant: str
    session: str
    priority: int


@dataclass(frozen=True)
class Doing:
    """What is done to one sequence; `detail` chooses among the ways of doing it."""

    index: int
    verb: Verb
    commit: bool
    detail: int


@dataclass(frozen=True)
class Ending:
    """A transfer ends; `bad` names what fails: rank and place, or nothing."""

    index: int
    bad: tuple[int, int] | None


@dataclass(frozen=True)
class Turn:
    """A step of an engine, then the work of its GPU, then ends of transfers."""

    engine: int
    beginnings: list[Beginning]
    doings: list[Doing]
    resent: bool
    work: int
    told: bool
    moved: list[tuple[int, int]]
    endings: list[Ending]


beginnings = st.builds(
    Beginning,
    known=indices,
    kept=st.sampled_from([4, 8, 13, 24, 99]),
    more=st.integers(1, 12),
    tenant=st.sampled_from("ab"),
    session=st.sampled_from(["", "s", "t"]),
    priority=st.integers(0, 1),
)
doings = st.builds(
    Doing, index=indices, verb=st.sampled_from([Verb.GROW, *Verb]), commit=st.booleans(), detail=indices
)
endings = st.builds(
    Ending, index=indices, bad=st.none() | st.none() | st.tuples(st.integers(0, 2), st.integers(0, 31))
)
turns = st.builds(
    Turn,
    engine=indices,
    beginnings=st.lists(beginnings, min_size=1, max_size=2),
    doings=st.lists(doings, min_size=2, max_size=6),
    resent=st.booleans(),
    work=st.integers(0, 3),
    told=st.booleans(),
    moved=st.lists(st.tuples(indices, st.integers(0, 2)), max_size=2),
    endings=st.lists(endings, min_size=1, max_size=3),
)

# Hypothesis leaves out some of the rules for a whole run. So there is work in each of them.
works = st.lists(turns, min_size=1, max_size=5)
