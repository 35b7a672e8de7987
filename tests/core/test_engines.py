"""Engines come, prove that they live, and go: leases, tethers, quarantine."""

import pytest
from msgspec.structs import replace

from kvstore.core.answers import AttachAnswer
from kvstore.core.calls import Attach
from kvstore.core.errors import EngineExpired, FieldInvalid, PoolQuarantined, TooManyEngines
from kvstore.core.events import TetherOpened
from kvstore.core.types import EngineId, EngineState, NamespaceId, Outcome
from tests.core.caller import Caller
from tests.core.ops import allocate, commit, free, swap_out
from tests.core.world import World, engine_id, keys_of, make_store, text


def world_of(**sizes: int) -> World:
    return World(make_store(**sizes))


def attach(world: World, event: Attach) -> AttachAnswer:
    answer = world.handle(event).answer
    assert isinstance(answer, AttachAnswer)
    return answer


def let_lease_run_out(world: World) -> None:
    """No call for longer than the lease, the store itself always awake."""
    for _ in range(13):
        world.tick(0.9)


# --------------------------------------------------------------------------- attaching


def test_attach_is_idempotent_by_request_id() -> None:
    world = world_of()
    caller = Caller(world)
    again = attach(world, caller.attach_event())
    assert (again.engine, again.created) == (caller.id, False)
    assert len(world.store.usage().engines) == 1


def test_a_retry_of_attach_with_another_proposed_id_gets_the_first_one() -> None:
    world = world_of()
    caller = Caller(world)
    event = caller.attach_event()
    other = Attach(
        time=world.time,
        engine=EngineId("another"),
        request_id=event.request_id,
        namespace=event.namespace,
        writer=event.writer,
        build=event.build,
        lease_seconds=event.lease_seconds,
    )
    assert attach(world, other).engine == caller.id


def test_a_request_id_is_not_used_again_for_another_model() -> None:
    """It would give one model's engine the other's namespace."""
    world = world_of()
    event = Caller(world).attach_event()
    for changed in (replace(event, namespace=NamespaceId(2)), replace(event, build="another")):
        with pytest.raises(FieldInvalid, match="request_id"):
            world.handle(changed)


def test_a_lease_is_at_most_the_stores() -> None:
    world = world_of()
    event = Caller(world).attach_event()
    for asked, given in ((3.0, 3.0), (100.0, 10.0), (0.0, 10.0)):
        new = Attach(
            time=world.time,
            engine=engine_id(int(asked) + 50),
            request_id=f"lease {asked}",
            namespace=event.namespace,
            writer=event.writer,
            build="",
            lease_seconds=asked,
        )
        assert attach(world, new).lease_expire_time == pytest.approx(world.time + given)


def test_there_are_so_many_engines_and_no_more() -> None:
    world = world_of(engines_max=2)
    one = Caller(world, 1)
    Caller(world, 2)
    with pytest.raises(TooManyEngines, match="--engines-max"):
        Caller(world, 3)
    one.detach()
    Caller(world, 4)


# ------------------------------------------------------------------------------ going


def test_detach_is_idempotent_and_frees_all() -> None:
    world = world_of(cpu_frames=8)
    caller = Caller(world)
    caller.begin(1, text(1, 10))
    caller.allocate(2, 10)
    caller.swap_out(2, 10)
    for _ in range(3):
        caller.detach()
    world.drain()
    assert world.free_frames()[0] == 14
    assert Caller(world, 2).lookup(keys_of(text(1, 10))).blocks_cached == 2


def test_a_call_after_detach_is_refused() -> None:
    caller = Caller(world_of())
    caller.detach()
    with pytest.raises(EngineExpired):
        caller.step()


def test_death_gives_all_back_at_once() -> None:
    """The last tether has closed: no process is left that could write, fence or not."""
    world = world_of(gpu_frames=4)
    caller = Caller(world)
    caller.allocate(1, 16)
    caller.step(completed=0)
    assert caller.close_tethers().wake == ()
    assert world.free_frames()[0] == 4
    assert not world.store.usage().engines
    caller.close_tethers()


def test_what_a_dead_engine_had_committed_stays_cached() -> None:
    world = world_of()
    caller = Caller(world)
    caller.begin(1, text(1, 16))
    caller.step(completed=2)
    caller.close_tethers()
    successor = Caller(world, 2)
    assert successor.lookup(keys_of(text(1, 16))).blocks_cached == 4
    result = successor.allocate(1, 17, keys_of(text(1, 16)))
    successor.read(result.block_table, text(1, 16))


# ------------------------------------------------------------------------------ leases


def test_any_call_renews_the_lease() -> None:
    world = world_of()
    caller = Caller(world)
    for call in (
        caller.step,
        caller.keep_alive,
        lambda: caller.lookup(()),
        lambda: world.handle(caller.attach_event()),
    ):
        for _ in range(8):
            world.tick(0.9)
        call()
    assert world.store.usage().engines[0].state is EngineState.ATTACHED
    assert world.store.usage().engines[0].lease_expire_time == pytest.approx(world.time + 10.0)


def test_a_lease_that_runs_out_with_a_tether_ends_in_quarantine() -> None:
    world = world_of(gpu_frames=8)
    caller = Caller(world)
    caller.begin(1, text(1, 10))
    let_lease_run_out(world)
    (engine,) = world.store.usage().engines
    assert (engine.state, engine.frames_quarantined, engine.pids) == (EngineState.EXPIRED, 3, (1001,))
    assert world.store.usage().tiers[0].frames_quarantined == 3
    with pytest.raises(EngineExpired):
        caller.step()
    other = Caller(world, 2)
    result = other.allocate(1, 24)
    assert (result.outcome, result.frames_short) == (Outcome.LATER, 1)
    caller.close_tethers()
    assert other.allocate(1, 24).outcome is Outcome.OK


def test_quarantined_frames_may_be_read_but_not_given_to_anybody() -> None:
    """A live engine past its lease may still write to what is its own."""
    world = world_of(gpu_frames=8)
    caller = Caller(world)
    caller.begin(1, text(1, 10))
    table = caller.table(1)
    let_lease_run_out(world)
    other = Caller(world, 2)
    result = other.allocate(1, 9, keys_of(text(1, 8)))
    assert result.cached_tokens == 8
    assert result.block_table[:2] == table[:2]
    assert result.block_table[2] != table[2]


def test_a_lease_that_runs_out_without_a_tether_frees_at_once() -> None:
    world = world_of(gpu_frames=8)
    caller = Caller(world, tether=False)
    caller.allocate(1, 10)
    let_lease_run_out(world)
    assert world.free_frames()[0] == 8
    assert not world.store.usage().engines


def test_an_expired_engine_is_woken() -> None:
    world = world_of()
    caller = Caller(world)
    woken = [engine for _ in range(13) for engine in world.tick(0.9).wake]
    assert woken == [caller.id]


def test_work_that_waited_for_a_fence_is_quarantined_too() -> None:
    world = world_of(gpu_frames=8, cpu_frames=8)
    caller = Caller(world)
    caller.allocate(1, 8)
    caller.allocate(2, 8)
    caller.step(free(1), swap_out(2, 8), completed=1)
    let_lease_run_out(world)
    world.drain()
    assert world.free_frames()[:2] == (4, 8)
    caller.close_tethers()
    assert world.free_frames()[:2] == (8, 8)


def test_a_copy_that_runs_while_its_engine_expires_ends_well() -> None:
    world = world_of(gpu_frames=8, cpu_frames=8)
    caller = Caller(world)
    caller.allocate(2, 8)
    caller.swap_out(2, 8)
    assert world.under_way
    let_lease_run_out(world)
    world.drain()
    caller.close_tethers()
    assert world.free_frames()[:2] == (8, 8)


def test_a_commit_whose_fence_had_not_passed_is_never_seen() -> None:
    world = world_of()
    caller = Caller(world)
    caller.allocate(1, 8)
    caller.step(commit(1, keys_of(text(1, 8))), completed=0)
    let_lease_run_out(world)
    caller.close_tethers()
    assert Caller(world, 2).lookup(keys_of(text(1, 8))).blocks_cached == 0


def test_a_gap_between_ticks_extends_all_leases() -> None:
    """The store itself was stopped: nobody could have called it."""
    world = world_of()
    caller = Caller(world)
    world.tick(0.5)
    world.tick(60.0)
    (engine,) = world.store.usage().engines
    assert engine.state is EngineState.ATTACHED
    assert engine.lease_expire_time == pytest.approx(170.0)
    caller.step()
    let_lease_run_out(world)
    assert world.store.usage().engines[0].state is EngineState.EXPIRED


def test_a_pool_full_of_quarantine_lets_nobody_in_and_names_the_processes() -> None:
    world = world_of(gpu_frames=10)
    caller = Caller(world)
    caller.allocate(1, 36)
    let_lease_run_out(world)
    with pytest.raises(PoolQuarantined, match="1001"):
        Caller(world, 2)
    caller.close_tethers()
    Caller(world, 3)


def test_a_tether_of_an_engine_that_is_gone_is_refused() -> None:
    world = world_of()
    caller = Caller(world)
    caller.detach()
    with pytest.raises(EngineExpired):
        world.handle(TetherOpened(time=world.time, engine=caller.id, pid=1))


def test_case_2_10_frames_are_accounted_for_through_everything() -> None:
    """Row 2.02 as well: after the drain, free is capacity less what is cached."""
    world = world_of(gpu_frames=12, cpu_frames=12, disk_frames=12)
    for number in range(1, 15):
        caller = Caller(world, number)
        caller.cache(text(number, 16), session=f"s{number % 2}")
        caller.step(allocate(1, 12), allocate(2, 8))
        caller.step(swap_out(1, 12), completed=caller.step_number - 1)
        if number % 3 == 0:
            caller.detach()
        elif number % 3 == 1:
            caller.close_tethers()
        else:
            let_lease_run_out(world)
            caller.close_tethers()
        if number % 2:
            world.drain()
    world.drain()
    world.check_nothing_held()
