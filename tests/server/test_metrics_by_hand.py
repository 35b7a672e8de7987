"""Row 7.04: metrics of what is over in no time, or can not be had on purpose; names, and the page of all."""

import re
from pathlib import Path

from kvstore.core.effects import Effects
from kvstore.core.events import TransferEnded
from kvstore.core.store import Store
from kvstore.core.types import Tier, TransferId
from kvstore.observe.counting import Counts
from kvstore.server.encode_usage import Facts, encode_usage
from kvstore.server.layout import Layout
from kvstore.server.metrics import Exposition
from kvstore.server.metrics_list import METRICS
from kvstore.server.metrics_reading import Metric, Seen
from kvstore.tiers.disk import DiskTier
from tests.core.caller import Caller
from tests.core.word import Word, caller_with, leave, written
from tests.core.world import World, keys_of, make_store, text
from tests.observe.test_counting import count
from tests.server.metrics_watch import BY_HAND, SET, Watch
from tests.server.scraping import parse
from tools.metrics import render

LAYOUT = Layout(block_tokens=4, block_bytes=4096, ranks=2, fingerprint=b"f" * 32)


# ------------------------------------------------------------------------------- by hand


def watch_of(store: Store, counts: Counts, disk: DiskTier | None = None) -> Watch:
    facts = Facts(
        store_epoch=7,
        build="b",
        start_wall=1.0,
        bytes_configured={Tier.DISK: 8 << 20},
        layout=LAYOUT,
        disk=disk,
    )
    exposition = Exposition(lambda: Seen(encode_usage(store.usage(), counts, facts), counts))
    return Watch(lambda: parse(exposition.text().decode()))


def test_7_04_what_is_over_in_no_time_moves_too(tmp_path: Path) -> None:
    world = World(make_store(cpu_frames=8, disk_frames=8, transfer_blocks_max=1))
    counts = count(world.store)
    disk = DiskTier.open(tmp_path / "disk", 8 << 20)
    watch = watch_of(world.store, counts, disk)
    try:
        world.find(text(2, 13))
        caller = Caller(world)
        caller.allocate(1, 16)
        caller.write(caller.table(1), text(1, 16))
        caller.swap_out(1, 16)
        caller.step()
        link = 'link="gpu_to_cpu"'
        assert watch.look()[f'kvstore_link_blocks_waiting{{{link},urgency="needed"}}'] == 2
        assert watch.now[f'kvstore_link_transfers_under_way{{{link},urgency="needed"}}'] == 2
        assert watch.now[f"kvstore_link_blocks_under_way{{{link}}}"] == 2
        assert watch.now['kvstore_frames_pinned{tier="gpu"}'] == 2
        world.end(world.under_way[0], failed=[0])
        world.end(world.under_way[0])
        assert watch.look()[f"kvstore_link_blocks_failed_total{{{link}}}"] == 1
        assert watch.now[f"kvstore_link_bytes_moved_total{{{link}}}"] == 2 * 4096
        world.drain()
        _a_read_is_late(caller, watch)
        counts.write(TransferEnded(time=1.0, transfer=TransferId(99)), Effects(), 1e-6)
        disk.counts.bad_entries, disk.counts.read_errors = 1, 2
        disk.counts.write_errors, disk.counts.delete_errors, disk.counts.late_reads = 3, 4, 5
        disk._health.failed("no room")
        assert watch.look()['kvstore_degraded{tier="disk"}'] == 1
        assert [watch.now[f"kvstore_disk_{name}_total"] for name in _DISK] == [1, 2, 3, 4, 5]
        others = _copies_are_shed() | _a_tenant_waits() | _hits_are_lost() | _loads_are_weighed()
        assert watch.metrics() | others >= BY_HAND
        message = encode_usage(
            world.store.usage(), counts, Facts(store_epoch=7, build="b", start_wall=1.0, disk=disk)
        )
        assert message.tiers[2].degraded_reason == "no room"
    finally:
        disk.close()


def _a_read_is_late(caller: Caller, watch: Watch) -> None:
    world = caller.world
    assert caller.allocate(6, 13, keys_of(text(2, 13))).tier_tokens == (0, 0, 12)
    world.end(world.moving(Tier.DISK, Tier.CPU)[0], late=[0])
    assert watch.look()['kvstore_frames_late{tier="cpu"}'] == 1
    world.drain()


def _copies_are_shed() -> set[str]:
    """More than the CPU tier has room for, and not wanted on disk."""
    caller = Caller(World(make_store(cpu_frames=4)))
    watch = watch_of(caller.world.store, Counts())
    caller.cache(text(3, 45))
    caller.world.drain()
    assert watch.look()['kvstore_blocks_shed_total{tier="cpu"}'] == 9
    return watch.metrics()


def _a_tenant_waits() -> set[str]:
    """The other has all of the GPU."""
    caller = Caller(World(make_store(percent_of_a=25)))
    watch = watch_of(caller.world.store, Counts())
    assert [watch.now[f'{name}{{tenant="b",tier="gpu"}}'] for name in SET] == [12]
    caller.allocate(1, 64, tenant="a")
    caller.allocate(2, 4, tenant="b")
    assert watch.look()['kvstore_tenant_frames{tenant="a",tier="gpu"}'] == 16
    assert watch.now['kvstore_tenant_sequences_waiting{tenant="b"}'] == 1
    return watch.metrics()


def _hits_are_lost() -> set[str]:
    """A text is asked for again that others have just taken the room of."""
    caller = Caller(World(make_store()))
    watch = watch_of(caller.world.store, Counts())
    caller.cache(text(1, 16))
    caller.cache(text(2, 64))
    caller.allocate(3, 17, keys_of(text(1, 16)))
    assert watch.look()['kvstore_ghost_blocks_hit_total{tier="gpu"}'] == 4
    assert watch.now['kvstore_ghost_tokens_hit_total{tier="gpu"}'] == 16
    return watch.metrics()


def _loads_are_weighed() -> set[str]:
    """Of two sequences of three blocks one comes back whole, and the other with two of them."""
    word = Word()
    caller = caller_with(word)
    watch = watch_of(caller.world.store, Counts())
    for sequence, word.loads in ((1, 3), (2, 2)):
        written(caller, sequence, 10)
        leave(caller, sequence, 10)
        caller.world.drain()
        caller.swap_in(sequence)
        caller.world.drain()
        told = watch.look()
        assert (told["kvstore_loads_whole_total"], told["kvstore_loads_cut_total"]) == (1, sequence - 1)
    return watch.metrics()


_DISK = ("bad_entries", "read_errors", "write_errors", "delete_errors", "late_reads")


def test_a_metric_that_can_not_be_read_is_left_out_and_counted() -> None:
    def fail(seen: Seen) -> list[tuple[tuple[str, ...], float]]:
        raise ZeroDivisionError

    counts = Counts()
    facts = Facts(store_epoch=7, build="b", start_wall=1.0)
    store = make_store()
    metrics = (Metric("kvstore_bad_total", "Fails.", fail), *METRICS)
    look = Exposition(lambda: Seen(encode_usage(store.usage(), counts, facts), counts), metrics)
    samples = parse(look.text().decode())
    assert "kvstore_bad_total" not in samples
    assert samples['kvstore_frames{tier="gpu"}'] == 16
    assert samples["kvstore_metrics_errors_total"] == 1


def test_names_and_labels_are_in_the_habit_of_the_field() -> None:
    for metric in METRICS:
        assert metric.name.startswith("kvstore_")
        assert metric.help.endswith(".")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert set(metric.labels) <= {
            "tier",
            "tenant",
            "link",
            "urgency",
            "state",
            "kind",
            "reason",
            "version",
            "epoch",
        }
    assert len({metric.name for metric in METRICS}) == len(METRICS)


# -------------------------------------------------------------------------------- the page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_names_all_metrics_and_none_that_there_are_not() -> None:
    text = PAGE.read_text()
    assert render(text) == text, "run `python tools/metrics.py`"
    names = {metric.name for metric in METRICS}
    names |= {f"{metric.name}_bucket" for metric in METRICS if metric.kind == "histogram"}
    assert set(re.findall(r"\bkvstore_[a-z_]+", text)) <= names
