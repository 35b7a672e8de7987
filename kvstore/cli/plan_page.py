"""A plan as a page of 80 columns: what is found where, what it saves, and what more would buy."""

from collections.abc import Callable, Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from kvstore.cli.texts import counted
from kvstore.core.types import COPY, DISK, LOAD, READ, WRITE, Tier
from kvstore.planner.plan import Outcome
from kvstore.planner.study import Policies, Study
from kvstore.server.sizes import format_bytes

__all__ = ["show_plan"]

# Of the time with prefill: above it a queue grows at each burst.
BUSY_SHARE_MAX = 0.95


def show_plan(study: Study, profile: str, policies: Policies, kv_bytes: str, console: Console) -> None:
    """`kv_bytes`: where the bytes of a token's KV come from."""
    for part in _parts(study, profile, policies, kv_bytes):
        console.print(part, highlight=False, markup=False)


def _parts(study: Study, profile: str, policies: Policies, kv_bytes: str) -> Iterator[RenderableType]:
    workload, outcome = study.workload, study.outcome
    loop = "closed loop" if study.rules.closed else "open loop"
    yield f"{workload.name}: {outcome.requests:,} requests in {_seconds(outcome.seconds)}, {loop}"
    judged = ", writes to disk by worth" if policies.disk_admission == "worth" else ""
    yield f"eviction by {policies.eviction}, swaps by {policies.swap}{judged}"
    yield f"on {profile}"
    yield f"KV: {counted(study.sizes.kv_bytes_per_token, 'byte')} a token, {kv_bytes}"
    if outcome.requests_refused:
        yield f"{counted(outcome.requests_refused, 'request')} refused: more than the whole GPU tier"
    yield _tiers(study)
    yield _compared(study)
    yield _moved(outcome)
    yield ""
    yield from _verdicts(study)


def _tiers(study: Study) -> Table:
    outcome, sizes = study.outcome, study.sizes
    table = Table("Found in", box=box.SIMPLE_HEAD)
    for title in ("size", "blocks", "of blocks", "tokens"):
        table.add_column(title, justify="right")
    for tier, frames in zip(Tier, sizes.frames, strict=True):
        if frames:
            found = outcome.blocks_found[tier]
            table.add_row(
                tier.name,
                format_bytes(frames * sizes.block_bytes),
                f"{found:,}",
                f"{found / max(1, outcome.blocks_read):.1%}",
                f"{outcome.tokens_found[tier]:,}",
            )
    table.add_row(
        "all",
        format_bytes(sum(sizes.frames) * sizes.block_bytes),
        f"{sum(outcome.blocks_found):,}",
        f"{outcome.hit_rate:.1%}",
        f"{sum(outcome.tokens_found):,}",
    )
    table.add_row("the optimum", "", "", f"{study.best_hit_rate:.1%}", "")
    table.add_row("no end of room", "", "", f"{study.endless_hit_rate:.1%}", "")
    return table


def _compared(study: Study) -> Table:
    """The same trace on the same GPU, with and without."""
    table = Table("", box=box.SIMPLE_HEAD)
    columns = [("with", study.outcome), ("without", study.without)]
    if study.twice_cpu is not None:
        columns.append(("2 x CPU tier", study.twice_cpu))
    for title, _ in columns:
        table.add_column(title, justify="right")
    rows: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
        ("first token, p50", lambda each: _seconds(each.first_token_percentile(50))),
        ("first token, p95", lambda each: _seconds(each.first_token_percentile(95))),
        ("GPU's prefill", lambda each: _seconds(each.prefill_seconds)),
        ("  saved", lambda each: _seconds(each.prefill_seconds_saved)),
        ("  again", lambda each: _seconds(each.prefill_seconds_again)),
        ("  of the time", lambda each: f"{each.gpu_busy_share:.0%}"),
        ("blocks found", lambda each: f"{each.hit_rate:.1%}"),
        ("most that waited", lambda each: f"{each.waiting_most:,}"),
        ("preempted", lambda each: f"{each.preemptions.count:,}"),
        ("  swapped, dropped", lambda each: f"{each.preemptions.swapped:,}, {each.preemptions.dropped:,}"),
        ("loaded whole, in part", lambda each: f"{each.loads.whole:,}, {each.loads.cut:,}"),
    )
    for title, show in rows:
        table.add_row(title, *[show(outcome) for _, outcome in columns])
    return table


def _moved(outcome: Outcome) -> Table:
    table = Table("Moved", box=box.SIMPLE_HEAD)
    for title in ("GPU to CPU", "CPU to GPU", "CPU to disk", "disk to CPU", "to disk a day"):
        table.add_column(title, justify="right")
    moved = [format_bytes(outcome.bytes_moved[link]) for link in (COPY, LOAD, WRITE, READ)]
    table.add_row("", *moved, format_bytes(int(outcome.disk_write_bytes_per_day)))
    return table


def _verdicts(study: Study) -> Iterator[str]:
    outcome, without = study.outcome, study.without
    if outcome.gpu_busy_share > BUSY_SHARE_MAX:
        yield (
            "- This GPU can't keep up with this trace: what its first tokens take says how long the queue "
            "became, no more. Look at the prefill saved, or take a part: --share."
        )
    elif without.gpu_busy_share > BUSY_SHARE_MAX:
        yield "- Without kvstore this GPU could not keep up with this trace."
    twice = study.twice_cpu
    if twice is not None:
        gained = twice.hit_rate - outcome.hit_rate
        saved = _seconds(twice.prefill_seconds_saved - outcome.prefill_seconds_saved)
        yield f"- Twice the CPU tier: {gained:+.1%} of blocks found, {saved} of prefill saved beside."
    if study.endless_hit_rate and outcome.hit_rate > 0.95 * study.endless_hit_rate:
        yield "- Nearly all that can be found was found: more room buys little."
    if outcome.preemptions.dropped_for_room:
        dropped = outcome.preemptions.dropped_for_room
        yield f"- {dropped:,} preempted sequences were dropped, for there was no room below the GPU."
    if study.sizes.frames[DISK] and not outcome.bytes_moved[WRITE]:
        yield "- Nothing was written to disk: what belongs to no session isn't."


def _seconds(seconds: float) -> str:
    size = abs(seconds)
    if size < 1:
        return f"{seconds * 1000:.3g} ms"
    if size < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if size < 7200 else f"{seconds / 3600:.3g} h"
