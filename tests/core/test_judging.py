"""With `judges_turns` a turn that is freed without a word goes to disk only if it is worth that, and late."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvstore.core.calls import Drain
from kvstore.core.ports import Figures
from kvstore.core.store import Store
from kvstore.core.types import Outcome, Retention, Rows, Tier
from kvstore.policy.eviction import Lru
from kvstore.policy.swap import LengthThreshold
from tests.core.caller import Caller
from tests.core.chains import retain
from tests.core.ops import end_session, free
from tests.core.world import World, keys_of, make_store, text

CHAT = text(1, 16)
# So many prompts of four blocks leave little of the CPU tier free beside what is kept for passage.
FILLERS = 10


class Heads:
    """Admits so many blocks of a turn from the head of its chain on to the disk; and of what no session has
    none to it, but all to the CPU tier."""

    def __init__(self, count: int) -> None:
        self.store: Store | None = None
        self.count = count
        self.asked: list[int] = []

    def admits(self, targets: Sequence[Tier], rows: Rows) -> list[NDArray[np.bool_]]:
        return [np.full(rows.size, target is Tier.CPU) for target in targets]

    def told(self, target: Tier, rows: Rows, *, are_turns: bool = False) -> Figures:
        return (("chance_wanted", 0.5),)

    def admits_turns(self, rows: Rows) -> NDArray[np.bool_]:
        assert self.store is not None
        self.asked += rows.tolist()
        admitted: NDArray[np.bool_] = self.store.memory.blocks.depth[rows] < self.count
        return admitted


def caller_of(count: int, *, judges: bool = True, transfer_blocks_max: int = 32) -> tuple[Caller, Heads]:
    config = make_store(
        gpu_frames=80,
        cpu_frames=64,
        disk_frames=128,
        retained_blocks_max=8,
        transfer_blocks_max=transfer_blocks_max,
    ).config
    admission = Heads(count)
    config = replace(config, judges_turns=judges)
    store = admission.store = Store(config, Lru(), LengthThreshold(8), admission)
    return Caller(World(store)), admission


def fill(caller: Caller) -> None:
    """The CPU tier, with what no session has."""
    for number in range(FILLERS):
        caller.cache(text(100 + number, 16), 100 + number)
    look(caller)


def look(caller: Caller) -> None:
    caller.world.drain()
    caller.world.tick(1.1)
    caller.world.drain()


def on_disk(caller: Caller, tokens: tuple[int, ...] = CHAT) -> int:
    known = {stored.key for stored in caller.world.shadow.disk.find()}
    return sum(key in known for key in keys_of(tokens))


def turn(caller: Caller, retention: Retention = Retention.DEFAULT) -> None:
    caller.begin(1, CHAT, session="chat")
    caller.step(free(1, retention=retention))
    look(caller)


def test_a_turn_is_written_as_far_as_it_is_worth_it_and_not_before_it_is_about_to_go() -> None:
    caller, admission = caller_of(2)
    turn(caller)
    assert (on_disk(caller), admission.asked) == (0, [])
    assert int(caller.world.store.memory.blocks.valid[Tier.CPU].sum()) == 4
    fill(caller)
    assert on_disk(caller) == 2
    # Once each, from tails to heads.
    look(caller)
    assert caller.world.store.memory.blocks.depth[admission.asked].tolist() == [3, 2, 1, 0]


def test_a_word_is_enough() -> None:
    caller, _ = caller_of(0)
    turn(caller, Retention.SESSION)
    assert on_disk(caller) == 4


def test_what_one_turn_left_undecided_a_later_one_may_say() -> None:
    caller, _ = caller_of(0)
    turn(caller)
    caller.begin(2, (*CHAT, *text(2, 8)), session="chat")
    caller.step(free(2, retention=Retention.SESSION))
    look(caller)
    assert on_disk(caller, (*CHAT, *text(2, 8))) == 6


def test_what_is_retained_is_written() -> None:
    caller, _ = caller_of(0)
    turn(caller)
    assert retain(caller, session="chat") == 4
    for number in range(FILLERS):
        caller.cache(text(100 + number, 16), 100 + number)
    # Evicted after all else, so it is looked at when all is.
    for number in range(4):
        caller.cache(text(200 + number, 16), 200 + number)
        look(caller)
    assert on_disk(caller) == 4


def test_a_session_that_ends_writes_nothing() -> None:
    caller, _ = caller_of(4)
    turn(caller)
    caller.step(end_session("chat"))
    fill(caller)
    assert on_disk(caller) == 0
    assert not caller.world.store.memory.blocks.undecided.any()


def test_a_drain_writes_all() -> None:
    caller, _ = caller_of(0)
    turn(caller)
    caller.world.handle(Drain(time=caller.world.time, on=True))
    caller.world.drain()
    assert on_disk(caller) == 4


def test_without_it_each_turn_is_written_at_once() -> None:
    caller, admission = caller_of(0, judges=False)
    turn(caller)
    assert (on_disk(caller), admission.asked) == (4, [])


def test_who_published_it_first_does_not_decide_for_the_session() -> None:
    """A lone request has computed the same text, and it was not worth a write as that."""
    caller, admission = caller_of(0)
    caller.begin(1, CHAT)
    caller.begin(2, CHAT, session="chat")
    caller.step(free(1))
    caller.step(free(2))
    look(caller)
    assert on_disk(caller) == 0
    admission.count = 4
    fill(caller)
    assert on_disk(caller) == 4


def test_what_waits_to_be_judged_is_not_lost_before_it_has_its_copy() -> None:
    """On the GPU it waits for its copy down, as what is to go to disk does: who wants room has to wait."""
    caller, _ = caller_of(4, transfer_blocks_max=4)
    caller.begin(1, text(1, 40 * 4), session="chat")
    caller.allocate(2, 36 * 4)
    # Two copies of four blocks each are under way, and the other blocks wait for theirs.
    caller.step(free(1))
    assert caller.allocate(3, 10 * 4).outcome is Outcome.LATER
    assert int(caller.world.store.memory.blocks.undecided.sum()) == 40
    caller.world.drain()
    assert caller.allocate(3, 10 * 4).outcome is Outcome.OK
    assert int(caller.world.store.memory.blocks.undecided.sum()) == 40
