"""`kvstore simulate`: the store in virtual time, on a recorded trace, or with everything that may go
wrong."""

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kvstore.cli.fuzz import fuzz as run_fuzz

__all__ = ["simulate"]

PLAN = "Plan: a trace on a machine"
FUZZ = "Fuzz: worlds in which everything fails"


def simulate(
    trace: Annotated[
        Path | None,
        typer.Argument(help="Trace to play: .jsonl or .jsonl.zst; docs/planner.md has the formats."),
    ] = None,
    gpu: Annotated[str, typer.Option(help="GPU tier: 40GiB.", rich_help_panel=PLAN)] = "40GiB",
    cpu: Annotated[str, typer.Option(help="CPU tier; 0 for none.", rich_help_panel=PLAN)] = "0",
    disk: Annotated[str, typer.Option(help="Disk tier; 0 for none.", rich_help_panel=PLAN)] = "0",
    kv_bytes_per_token: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of the model: 2 x layers x KV heads x head size x bytes. Without it what the journal has, "
            "or 131,072.",
            rich_help_panel=PLAN,
        ),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a block, where the trace doesn't say.", rich_help_panel=PLAN),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="What goes first: worth, lru, lfu, arc or s3-fifo.", rich_help_panel=PLAN)
    ] = "worth",
    swap_policy: Annotated[
        str,
        typer.Option(
            help="What decides between drop and swap: cost (of prefill and links), or length.",
            rich_help_panel=PLAN,
        ),
    ] = "cost",
    disk_admission: Annotated[
        str,
        typer.Option(
            help="Which turns are written to disk: all, or those worth it (with --policy worth).",
            rich_help_panel=PLAN,
        ),
    ] = "all",
    profile: Annotated[
        Path | None,
        typer.Option(
            help="What hardware and model take: TOML, JSON, or what `kvstore status --json` printed. "
            "An H200 with Llama-3.1-8B without it.",
            rich_help_panel=PLAN,
        ),
    ] = None,
    trace_from_journal: Annotated[
        Path | None,
        typer.Option(help="Folder of `serve --journal`, in the place of TRACE.", rich_help_panel=PLAN),
    ] = None,
    share: Annotated[
        float,
        typer.Option(min=0.001, max=1, help="Only so much of the conversations.", rich_help_panel=PLAN),
    ] = 1.0,
    loop: Annotated[
        str,
        typer.Option(
            help="closed: a turn comes when the one before it was answered, and read; open: at the trace's "
            "time. auto: closed where the trace names sessions.",
            rich_help_panel=PLAN,
        ),
    ] = "auto",
    hints: Annotated[
        bool, typer.Option("--hints", help="Clients tell when a conversation is over.", rich_help_panel=PLAN)
    ] = False,
    sweep: Annotated[
        Path | None,
        typer.Option(
            help="Also play it with other sizes, and draw hits by capacity: into NAME.svg and NAME.png.",
            rich_help_panel=PLAN,
        ),
    ] = None,
    fuzz: Annotated[
        bool,
        typer.Option(
            "--fuzz",
            help="Random engines, links and disks that fail; all promises checked.",
            rich_help_panel=FUZZ,
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Runs; 100, or with --minutes no end.", rich_help_panel=FUZZ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The first seed; each run takes the next.", rich_help_panel=FUZZ)
    ] = 0,
    steps: Annotated[
        int, typer.Option(min=1, help="Turns of engines, and faults, in each run.", rich_help_panel=FUZZ)
    ] = 300,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Begin no run after so long.", rich_help_panel=FUZZ)
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.", rich_help_panel=FUZZ)] = 1,
    stride: Annotated[int, typer.Option(hidden=True, min=1, help="Take only each so-manieth seed.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object a run, no bar.")] = False,
) -> None:
    """Plan before you buy: what tiers of these sizes would make of a recorded trace.

    With --fuzz: prove the store in simulated worlds. The same arguments do the same again, exactly.
    """
    if fuzz:
        if trace is not None or trace_from_journal is not None:
            _refuse("--fuzz takes no trace (leave one of them out)")
        run_fuzz(
            seeds=seeds, seed=seed, steps=steps, minutes=minutes, jobs=jobs, stride=stride, as_json=as_json
        )
    if (trace is None) == (trace_from_journal is None):
        _refuse("say what to simulate (a TRACE, --trace-from-journal FOLDER, or --fuzz)")
    # Imported here: the other commands must not load numpy.
    from kvstore.cli.plan import plan

    plan(
        trace=trace,
        journal=trace_from_journal,
        sizes={"--gpu": gpu, "--cpu": cpu, "--disk": disk},
        kv_bytes_per_token=kv_bytes_per_token,
        block_tokens=block_tokens,
        policy=policy,
        swap_policy=swap_policy,
        disk_admission=disk_admission,
        profile=profile,
        share=share,
        loop=loop,
        hints=hints,
        sweep=sweep,
        as_json=as_json,
    )


def _refuse(message: str) -> NoReturn:
    typer.echo(f"kvstore simulate: {message}", err=True)
    raise typer.Exit(2)
