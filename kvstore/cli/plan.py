"""`kvstore simulate TRACE`: a machine's plan, as a page or as JSON, and a drawing of other sizes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvstore.cli.plan_drawing import check_drawing, draw
from kvstore.cli.plan_page import show_plan
from kvstore.cli.texts import counted
from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import Tier
from kvstore.planner.machine import Sizes
from kvstore.planner.plan import Outcome, Rules
from kvstore.planner.profile import H200_LLAMA_8B, load_profile
from kvstore.planner.recorded import JournalTrace, open_journal
from kvstore.planner.requests import Trace
from kvstore.planner.study import Point, Policies, Study, study, vary
from kvstore.planner.traces import open_trace
from kvstore.planner.workload import Workload, load_workload
from kvstore.policy.choices import check_disk_admission
from kvstore.server.sizes import parse_size
from kvstore.tiers.link_names import link_name

__all__ = ["plan"]

LOOPS = ("auto", "open", "closed")
# Llama-3.1-8B's in bf16, as the default profile.
KV_BYTES_PER_TOKEN = 131_072


def plan(
    *,
    trace: Path | None,
    journal: Path | None,
    sizes: dict[str, str],
    kv_bytes_per_token: int | None,
    block_tokens: int | None,
    policy: str,
    swap_policy: str,
    disk_admission: str,
    profile: Path | None,
    share: float,
    loop: str,
    hints: bool,
    sweep: Path | None,
    as_json: bool,
) -> None:
    policies = Policies(eviction=policy, swap=swap_policy, disk_admission=disk_admission)
    if loop not in LOOPS:
        raise ConfigInvalid("no such loop", field="--loop", value=loop, remedy="one of " + ", ".join(LOOPS))
    if sweep is not None:
        check_drawing(sweep)
    gpu, cpu, disk = (parse_size(text, flag=flag) for flag, text in sizes.items())
    check_disk_admission(disk_admission, policy, has_disk=disk > 0)
    speeds = load_profile(profile) if profile else H200_LLAMA_8B
    opened = _open(trace, journal, block_tokens)
    workload = load_workload(opened, share)
    kv_bytes = _kv_bytes(kv_bytes_per_token, opened)
    machine = Sizes(
        gpu_bytes=gpu,
        cpu_bytes=cpu,
        disk_bytes=disk,
        kv_bytes_per_token=kv_bytes.per_token,
        block_tokens=workload.block_tokens,
    )
    machine.store_config()
    closed = loop == "closed" or (loop == "auto" and workload.sessions_named)
    rules = Rules(closed=closed, hints=hints)
    with _progress(workload) as report:
        done = study(workload, machine, speeds, policies, rules, report)
        points = list(vary(workload, machine, speeds, policies, rules, report)) if sweep else []
    if as_json:
        typer.echo(json.dumps(_to_json(done, points, speeds.name, policies, kv_bytes)))
    else:
        show_plan(done, speeds.name, policies, kv_bytes.words, Console())
    if sweep is not None:
        for path in draw(points, f"{workload.name}, {policy}", sweep):
            typer.echo(f"drawn: {path}", err=True)


def _open(trace: Path | None, journal: Path | None, block_tokens: int | None) -> Trace:
    if trace is not None:
        return open_trace(trace, block_tokens)
    if journal is None:
        raise ConfigInvalid("no trace", field="TRACE", remedy="name one")
    opened = open_journal(journal)
    if block_tokens not in (None, opened.block_tokens):
        raise ConfigInvalid(
            f"the journal's blocks hold {counted(opened.block_tokens, 'token')}",
            field="--block-tokens",
            value=block_tokens,
            remedy="leave it out",
        )
    return opened


class KvBytes(NamedTuple):
    """Of KV a token; where that comes from, for programs and in words."""

    per_token: int
    source: str
    words: str


def _kv_bytes(asked: int | None, trace: Trace) -> KvBytes:
    """As the flag says; else as a journal has it, which may not know."""
    served = trace.kv_bytes_per_token if isinstance(trace, JournalTrace) else 0
    if asked is not None:
        beside = f"; the journal's model took {served:,}" if served not in (0, asked) else ""
        return KvBytes(asked, "flag", f"as --kv-bytes-per-token says{beside}")
    if served:
        return KvBytes(served, "journal", "as the journal has it, padding included")
    why = "as --kv-bytes-per-token is without a word"
    return KvBytes(
        KV_BYTES_PER_TOKEN,
        "default",
        f"{why}: the journal doesn't say" if isinstance(trace, JournalTrace) else why,
    )


@contextmanager
def _progress(workload: Workload) -> Iterator[Callable[[str, int], None]]:
    """A bar on standard error, of what is being played."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(workload.turns))
        yield lambda what, done: progress.update(task, description=what, completed=done)


def _to_json(
    done: Study, points: list[Point], profile: str, policies: Policies, kv_bytes: KvBytes
) -> dict[str, Any]:
    return {
        "trace": done.workload.name,
        "block_tokens": done.workload.block_tokens,
        "block_bytes": done.sizes.block_bytes,
        "kv_bytes_per_token": kv_bytes.per_token,
        "kv_bytes_per_token_from": kv_bytes.source,
        "frames": _by_tier(done.sizes.frames),
        "policy": policies.eviction,
        "swap_policy": policies.swap,
        "disk_admission": policies.disk_admission,
        "profile": profile,
        "closed": done.rules.closed,
        "hints": done.rules.hints,
        "with": _outcome(done.outcome),
        "without": _outcome(done.without),
        "twice_cpu": _outcome(done.twice_cpu) if done.twice_cpu else None,
        "best_hit_rate": done.best_hit_rate,
        "endless_hit_rate": done.endless_hit_rate,
        "sweep": [
            {
                "capacity_bytes": point.capacity_bytes,
                "frames": _by_tier(point.sizes.frames),
                "requests_refused": point.outcome.requests_refused,
                "hit_rate": point.outcome.hit_rate,
                "best_hit_rate": point.best_hit_rate,
                "first_token_seconds_p50": point.outcome.first_token_percentile(50),
            }
            for point in points
        ],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "requests": outcome.requests,
        "requests_refused": outcome.requests_refused,
        "seconds": outcome.seconds,
        "blocks_read": outcome.blocks_read,
        "blocks_found": _by_tier(outcome.blocks_found),
        "hit_rate": outcome.hit_rate,
        "tokens_read": outcome.tokens_read,
        "tokens_found": _by_tier(outcome.tokens_found),
        "token_hit_rate": outcome.token_hit_rate,
        "prefill_seconds": outcome.prefill_seconds,
        "prefill_seconds_saved": outcome.prefill_seconds_saved,
        "prefill_seconds_again": outcome.prefill_seconds_again,
        "gpu_busy_share": outcome.gpu_busy_share,
        "first_token_seconds_p50": outcome.first_token_percentile(50),
        "first_token_seconds_p95": outcome.first_token_percentile(95),
        "preemptions": asdict(outcome.preemptions),
        "loads": asdict(outcome.loads),
        "bytes_moved": {link_name(link): moved for link, moved in outcome.bytes_moved.items()},
        "disk_write_bytes_per_day": outcome.disk_write_bytes_per_day,
        "running_most": outcome.running_most,
        "waiting_most": outcome.waiting_most,
        "store_events": outcome.events,
    }


def _by_tier(counts: tuple[int, int, int]) -> dict[str, int]:
    return {tier.name.lower(): count for tier, count in zip(Tier, counts, strict=True)}
