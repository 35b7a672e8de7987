"""A machine put to the question: with kvstore and without, with twice the CPU tier, and with other sizes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import GPU
from kvstore.planner.machine import Machine, Sizes
from kvstore.planner.optimum import Use, best_hits
from kvstore.planner.plan import Outcome, Rules, play
from kvstore.planner.profile import Profile
from kvstore.planner.workload import Workload
from kvstore.policy.choices import (
    DISK_ADMISSION_DEFAULT,
    EVICTION_DEFAULT,
    EVICTION_POLICIES,
    SWAP_DEFAULT,
    SWAP_POLICIES,
    check_disk_admission,
    make_eviction,
    make_swap,
)

__all__ = ["Point", "Policies", "Study", "study", "vary"]

# Of the tier that is varied: from an eighth to eight times.
SWEEP_FACTORS = tuple(2.0**power for power in range(-3, 4))

# Told what is being played, and how many requests of it have ended.
Report = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """By name; each machine has new ones, which have learnt nothing. Refuses what there isn't."""

    eviction: str = EVICTION_DEFAULT
    swap: str = SWAP_DEFAULT
    disk_admission: str = DISK_ADMISSION_DEFAULT

    def __post_init__(self) -> None:
        for flag, name, known in (
            ("--policy", self.eviction, EVICTION_POLICIES),
            ("--swap-policy", self.swap, SWAP_POLICIES),
        ):
            if name not in known:
                remedy = "one of " + ", ".join(known)
                raise ConfigInvalid("no such policy", field=flag, value=name, remedy=remedy)
        check_disk_admission(self.disk_admission, self.eviction)

    def machine(self, sizes: Sizes, profile: Profile) -> Machine:
        eviction, swap = make_eviction(self.eviction, sizes.frames), make_swap(self.swap)
        return Machine(sizes, profile, eviction, swap, judges_turns=self.disk_admission == "worth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """`twice_cpu` is None where there is no CPU tier; `best_hit_rate` is the optimum's for all tiers
    together, and `endless_hit_rate` that of room without end."""

    workload: Workload
    sizes: Sizes
    rules: Rules
    outcome: Outcome
    without: Outcome
    twice_cpu: Outcome | None
    best_hit_rate: float
    endless_hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One machine of a sweep."""

    sizes: Sizes
    capacity_bytes: int
    outcome: Outcome
    best_hit_rate: float


def study(
    workload: Workload, sizes: Sizes, profile: Profile, policies: Policies, rules: Rules, report: Report
) -> Study:
    def run(what: str, sizes: Sizes, rules: Rules) -> Outcome:
        return play(workload, policies.machine(sizes, profile), rules, partial(report, what))

    outcome = run("with kvstore", sizes, rules)
    alone = replace(sizes, cpu_bytes=0, disk_bytes=0)
    without = run("without", alone, replace(rules, reuse=False, hints=False))
    twice = None
    if sizes.cpu_bytes:
        twice = run("with twice the CPU tier", replace(sizes, cpu_bytes=2 * sizes.cpu_bytes), rules)
    return Study(
        workload=workload,
        sizes=sizes,
        rules=rules,
        outcome=outcome,
        without=without,
        twice_cpu=twice,
        best_hit_rate=_best_hit_rate(workload, sizes, sum(sizes.frames), outcome),
        endless_hit_rate=_best_hit_rate(workload, sizes, len(workload.keys), outcome),
    )


def vary(
    workload: Workload, sizes: Sizes, profile: Profile, policies: Policies, rules: Rules, report: Report
) -> Iterator[Point]:
    """The CPU tier of other sizes; where there is none, the GPU tier. Smallest first; what holds no block is
    left out."""
    varied = "cpu_bytes" if sizes.cpu_bytes else "gpu_bytes"
    for factor in SWEEP_FACTORS:
        other = replace(sizes, **{varied: int(getattr(sizes, varied) * factor)})
        if getattr(other, varied) < other.block_bytes:
            continue
        what = f"with {factor:g} times {'the CPU' if sizes.cpu_bytes else 'the GPU'} tier"
        outcome = play(workload, policies.machine(other, profile), rules, partial(report, what))
        yield Point(
            sizes=other,
            capacity_bytes=sum(other.frames) * other.block_bytes,
            outcome=outcome,
            best_hit_rate=_best_hit_rate(workload, other, sum(other.frames), outcome),
        )


def _best_hit_rate(workload: Workload, sizes: Sizes, frames: int, outcome: Outcome) -> float:
    """With so many frames in all, of the blocks that the outcome counts as read: part-filled ones are never
    found, nor is anything by who never fits the GPU tier."""
    size, uses = workload.block_tokens, []
    for turn in workload.turns:
        if turn.blocks(size) <= sizes.frames[GPU]:
            usable = turn.usable_blocks(size)
            uses.append(Use(turn.prompt[:usable], turn.prompt[usable:] + turn.answer))
    return best_hits(uses, frames) / max(1, outcome.blocks_read)
