"""A service's usage as one page of text, of 80 columns.

Tiers, tenants where there are several, links, hits, sequences, engines, advice.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvstore.cli.advice import Advice
from kvstore.cli.texts import ENGINE_CHARACTERS, counted, rate_words
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["COLUMNS", "show_page"]

COLUMNS = 80
# A copy takes no second by itself.
STALLED_SECONDS = 5.0
PIDS_SHOWN, BUILD_SHOWN, TENANTS_SHOWN = 1, 16, 8

TIER_ROWS: tuple[tuple[str, Callable[[pb.TierUsage], str]], ...] = (
    ("memory", lambda tier: _bytes(tier.bytes_total or tier.bytes_configured)),
    ("  kind", lambda tier: _kind(tier)),
    # Host memory that a GPU copies to and from by itself. Frames in transfer stand further down.
    ("  page-locked", lambda tier: _bytes(tier.bytes_pinned) if tier.bytes_pinned else "-"),
    # A pool is made with the first Attach.
    (
        "  taken",
        lambda tier: _share(tier.bytes_used, tier.bytes_total) if tier.bytes_total else "not yet made",
    ),
    ("  obtainable", lambda tier: _bytes(tier.bytes_obtainable) if tier.bytes_obtainable else "-"),
    ("frames total", lambda tier: f"{tier.frames_total:,}"),
    ("  free", lambda tier: f"{tier.frames_free:,}"),
    ("  cached", lambda tier: f"{tier.frames_cached:,}"),
    ("  used", lambda tier: f"{tier.frames_used:,}"),
    ("    idle", lambda tier: f"{tier.frames_idle:,}"),
    ("    limbo", lambda tier: f"{tier.frames_limbo:,}"),
    ("    quarantined", lambda tier: f"{tier.frames_quarantined:,}"),
    ("  late", lambda tier: f"{tier.frames_late:,}"),
    ("  in transfer", lambda tier: f"{tier.frames_pinned:,}"),
    ("blocks moved in", lambda tier: f"{tier.blocks_moved_in:,}"),
    ("blocks failed", lambda tier: f"{tier.blocks_failed:,}"),
    ("blocks evicted", lambda tier: f"{tier.blocks_evicted:,}"),
    # That twice the tier would have had. What was found further down was loaded, and is not among them.
    ("  computed again", lambda tier: f"{tier.ghost_hit_blocks:,}"),
    ("blocks shed", lambda tier: f"{tier.blocks_shed:,}"),
    ("pressure", lambda tier: pb.Pressure.Name(tier.pressure).removeprefix("PRESSURE_").lower()),
    ("writes", lambda tier: "failing" if tier.degraded else "ok"),
)


def show_page(usage: pb.Usage, advice: Sequence[Advice], console: Console) -> None:
    for part in _parts(usage, advice):
        # What engines call themselves is shown, never taken for markup or styled.
        console.print(part, highlight=False, markup=False)


def _parts(usage: pb.Usage, advice: Sequence[Advice]) -> Iterator[RenderableType]:
    up = time.time() - usage.start_time.ToNanoseconds() / 1e9
    yield f"kvstore {usage.build}, epoch {usage.store_epoch:016x}, up {_duration(up)}"
    yield from _health(usage)
    yield _tiers(usage)
    if usage.tenants:
        yield _tenants(usage)
    if usage.links:
        yield _links(usage)
    yield _lines(usage)
    if usage.engines:
        yield _engines(usage)
    elif not any(tier.frames_total for tier in usage.tiers):
        yield "No engine has attached yet: the pools are made with the first one."
    else:
        yield "No engine is attached."
    if advice:
        table = Table.grid(padding=(0, 1))
        for each in advice:
            table.add_row("  -", Text(each.text))
        yield "Advice"
        yield table


def _health(usage: pb.Usage) -> Iterator[RenderableType]:
    failing = [tier for tier in usage.tiers if tier.degraded]
    for tier in failing:
        yield Text(f"health: {_name(tier.tier)} degraded, takes no writes: {tier.degraded_reason}")
    for tier in usage.tiers:
        if tier.copy_stalled_seconds > STALLED_SECONDS:
            waited = _duration(tier.copy_stalled_seconds)
            yield f"health: the GPU stands still: a copy has been waited for for {waited}"
        if tier.pinning_problem:
            yield Text(f"health: {_name(tier.tier)} copies are slower: {tier.pinning_problem}")
    if usage.draining:
        yield "health: draining, takes no new work"
    elif not failing:
        yield "health: ok"


def _tiers(usage: pb.Usage) -> Table:
    """A column a tier: so it fits the narrowest terminal."""
    table = Table("Tiers", box=box.SIMPLE_HEAD)
    for tier in usage.tiers:
        table.add_column(_name(tier.tier), justify="right")
    for name, cell in TIER_ROWS:
        table.add_row(name, *map(cell, usage.tiers))
    return table


def _kind(tier: pb.TierUsage) -> str:
    """Of a pool: host, or cuda with the devices counted."""
    if tier.memory_kind == pb.MEMORY_KIND_UNSPECIFIED:
        return "-"
    name = pb.MemoryKind.Name(tier.memory_kind).removeprefix("MEMORY_KIND_").lower()
    return f"{name} ({counted(len(tier.device_uuids), 'GPU')})" if tier.device_uuids else name


def _tenants(usage: pb.Usage) -> Table:
    """What each has of each tier, and its share in brackets; who has most comes first."""
    totals = {tier.tier: tier.frames_total for tier in usage.tiers}

    def taken(tenant: pb.TenantUsage) -> float:
        return max((each.frames_taken / max(1, totals[each.tier]) for each in tenant.frames), default=0.0)

    tenants = sorted(usage.tenants, key=taken, reverse=True)
    table = Table("Tenants", box=box.SIMPLE_HEAD)
    tiers = [each.tier for each in tenants[0].frames]
    for name in (*(f"{_name(tier)} (share)" for tier in tiers), "waiting"):
        table.add_column(name, justify="right")
    for tenant in tenants[:TENANTS_SHOWN]:
        shares = []
        for each in tenant.frames:
            parts = [_share(part, totals[each.tier]) for part in (each.frames_taken, each.frames_guaranteed)]
            shares.append(f"{parts[0]} ({parts[1]})")
        called = Text(_cut(tenant.tenant or "named no more"))
        table.add_row(called, *shares, f"{tenant.sequences_waiting:,}")
    if len(tenants) > TENANTS_SHOWN:
        table.add_row(f"and {len(tenants) - TENANTS_SHOWN} more", *("" for _ in tiers), "--json")
    return table


def _links(usage: pb.Usage) -> Table:
    table = Table("Links", box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in ("blocks", "bytes", "failed", "waiting", "moving", "a transfer"):
        table.add_column(column, justify="right")
    for link in usage.links:
        table.add_row(
            f"{_name(link.source)} to {_name(link.target)}",
            f"{link.blocks_moved:,}",
            _bytes(link.bytes_moved),
            f"{link.blocks_failed:,}",
            f"{sum(lane.blocks_waiting for lane in link.lanes):,}",
            f"{link.blocks_under_way:,}",
            f"{link.seconds / link.transfers * 1e3:,.1f} ms" if link.transfers else "-",
        )
    return table


def _lines(usage: pb.Usage) -> Table:
    """What has no columns: a name, and words that wrap beside it."""
    prefix, sequences, steps = usage.prefix, usage.sequences, usage.steps
    hits = {pb.TIER_GPU: prefix.gpu_blocks, pb.TIER_CPU: prefix.cpu_blocks, pb.TIER_DISK: prefix.disk_blocks}
    where = ", ".join(f"{_name(t.tier)} {_share(hits[t.tier], prefix.blocks_queried)}" for t in usage.tiers)
    table = Table.grid(padding=(0, 2))
    table.add_row(
        "Prefix hits",
        f"{_share(sum(hits.values()), prefix.blocks_queried)} of {counted(prefix.blocks_queried, 'block')} "
        f"({where}), {counted(prefix.sequences_admitted, 'sequence')} admitted",
    )
    table.add_row(
        "Sequences",
        f"{sequences.resident:,} resident ({sequences.idle:,} idle), "
        f"{sequences.swapping_out:,} swapping out, {sequences.swapped:,} swapped, "
        f"{sequences.swapping_in:,} swapping in, "
        f"{sequences.dropped:,} dropped; {sequences.waiting:,} waiting; "
        f"{counted(usage.sessions, 'session')} kept",
    )
    table.add_row(
        "Moves",
        f"{counted(sequences.swaps_out, 'swap out')}, {sequences.swaps_in:,} in, "
        f"{counted(sequences.drops, 'drop')} "
        f"({sequences.drops_for_room:,} for want of room); {sequences.reliefs:,} by the store itself; "
        f"of loads weighed {sequences.loads_whole:,} whole, {sequences.loads_cut:,} cut",
    )
    table.add_row(
        "Steps",
        f"{steps.steps:,} of {_mean(steps.operations, steps.steps):.1f} operations, "
        f"{_mean(steps.store_seconds, steps.steps) * 1e3:.3f} ms in the store, "
        f"{_mean(steps.call_seconds, steps.steps) * 1e3:.3f} ms in the call",
    )
    if usage.links:
        table.add_row(
            "Bandwidth", _rates((link, link.rate.bandwidth_bytes_per_second) for link in usage.links)
        )
        table.add_row("Limits", _rates((link, link.limit.effective_bytes_per_second) for link in usage.links))
    return table


def _rates(rates: Iterable[tuple[pb.LinkUsage, float]]) -> str:
    told = [f"{_name(x.source)} to {_name(x.target)} {rate_words(rate)}" for x, rate in rates if rate]
    return ", ".join(told) or "none"


def _engines(usage: pb.Usage) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in ("Engines", "build", "state", "lease", "seqs", "held back", "pids"):
        table.add_column(column, no_wrap=True)
    names = [engine.engine.name.removeprefix("engines/") for engine in usage.engines]
    shown = _telling(names)
    for engine, name in zip(usage.engines, names, strict=True):
        table.add_row(
            # As `kvstore explain --engine` takes it; --json has the whole name.
            name[:shown],
            Text(_cut(engine.build)),
            pb.Engine.State.Name(engine.engine.state).lower(),
            f"{engine.engine.expire_time.ToNanoseconds() / 1e9 - time.time():.0f} s",
            str(engine.sequences),
            str(engine.frames_quarantined),
            _few(engine.peer_pids),
        )
    return table


def _telling(names: Sequence[str]) -> int:
    """How many leading characters tell these apart, eight at the least."""
    count = ENGINE_CHARACTERS
    while len({name[:count] for name in names}) < len(set(names)):
        count += 1
    return count


def _name(tier: pb.Tier.ValueType) -> str:
    return pb.Tier.Name(tier).removeprefix("TIER_")


def _cut(build: str) -> str:
    return build if len(build) <= BUILD_SHOWN else build[: BUILD_SHOWN - 1] + "…"


def _few(pids: Sequence[int]) -> str:
    """Enough to look at; --json has them all."""
    more = f" +{len(pids) - PIDS_SHOWN}" if len(pids) > PIDS_SHOWN else ""
    return " ".join(map(str, pids[:PIDS_SHOWN])) + more


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _bytes(count: float) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {int(seconds) % 60} s"
