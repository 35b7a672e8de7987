"""`kvstore serve`: flags in, one configuration out, and the service run on it."""

import logging
import os
import signal
from types import FrameType
from typing import Annotated, NoReturn

import typer

from kvstore.cli.options import DEFAULT_SOCKET

__all__ = ["serve"]


def serve(
    socket: Annotated[
        str, typer.Option(help="Unix socket: a path, or unix:PATH. Its folder is made if need be.")
    ] = DEFAULT_SOCKET,
    gpu: Annotated[
        str,
        typer.Option(
            help="GPU tier: 2GiB, or a share like 25% of the GPUs' memory (no --gpu-device: of host memory)."
        ),
    ] = "10%",
    gpu_device: Annotated[
        list[str] | None,
        typer.Option(
            help="The GPU of the GPU tier: GPU-… as `nvidia-smi -L` has it, or cuda for the only one there "
            "is; repeatable, one a rank. Without it the GPU tier is host memory."
        ),
    ] = None,
    cpu: Annotated[str, typer.Option(help="CPU tier, as for --gpu; 0 for none.")] = "20%",
    disk: Annotated[str | None, typer.Option(help="Folder of the disk tier; none without it.")] = None,
    disk_bytes: Annotated[
        str | None,
        typer.Option(help="The most that the disk tier takes, what is there already included: 20GiB."),
    ] = None,
    wipe_incompatible: Annotated[
        bool,
        typer.Option(
            "--wipe-incompatible",
            help="Delete what another format or another layout has left in the folder of --disk.",
        ),
    ] = False,
    scrub: Annotated[
        str, typer.Option(help="Bytes a second at which what is on disk is looked at for damage; 0: never.")
    ] = "8MiB",
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="A tenant that may be named; repeatable, the first is default."),
    ] = None,
    tenant_share: Annotated[
        list[str] | None,
        typer.Option(
            help="The part of each tier that others don't take from a tenant, NAME=SHARE like alice=50%; "
            "repeatable. Who is not named has an equal part of the rest."
        ),
    ] = None,
    lease: Annotated[float, typer.Option(help="Seconds until a silent engine counts as dead.")] = 10.0,
    engines_max: Annotated[int, typer.Option(help="Engines attached at once.")] = 64,
    eviction_policy: Annotated[
        str, typer.Option(help="What goes first where room is short: worth, lru, lfu, arc or s3-fifo.")
    ] = "worth",
    swap_policy: Annotated[
        str,
        typer.Option(help="What decides between drop and swap: cost (of prefill and links), or length."),
    ] = "cost",
    drop_tokens_max: Annotated[
        int,
        typer.Option(
            help="Sequences up to this length are computed again rather than swapped, with --swap-policy "
            "length and as long as costs are not known."
        ),
    ] = 64,
    disk_admission: Annotated[
        str,
        typer.Option(
            help="Which finished turns of sessions are written to disk: all, at once; or those worth it, "
            "when they are about to leave the CPU tier (with --eviction-policy worth)."
        ),
    ] = "all",
    retain_bytes: Annotated[
        str, typer.Option(help="The most that each tenant may have retained: 2GiB, or a share of all tiers.")
    ] = "25%",
    high_watermark: Annotated[
        str, typer.Option(help="Share of the GPU tier's frames in use that is high pressure: 90%, or 0.9.")
    ] = "90%",
    low_watermark: Annotated[str, typer.Option(help="Share below which it is over.")] = "80%",
    cpu_high_watermark: Annotated[
        str, typer.Option(help="Share of the CPU tier with no copy below that makes writes to disk hurry.")
    ] = "75%",
    cpu_low_watermark: Annotated[str, typer.Option(help="Share below which they don't.")] = "50%",
    drain_seconds: Annotated[
        float,
        typer.Option(help="Seconds for which a stop first writes to disk what is worth keeping."),
    ] = 0.0,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="Limit of a link, LINK=RATE; repeatable. Links: gpu_to_cpu, cpu_to_gpu, cpu_to_disk, "
            "disk_to_cpu. RATE: 2GB/s, or a share of the measured bandwidth like 50%."
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(help="Folder to record all events in, for `kvstore replay`."),
    ] = None,
    journal_bytes: Annotated[str | None, typer.Option(help="The most that the journal takes: 1GiB.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Port, or 127.0.0.1:PORT, of /metrics and /healthz over HTTP, on loopback alone."),
    ] = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    # Until the service takes the signals itself: to load it lasts longer than a hasty stop waits.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop_early)
    # Imported here: the signals are caught before, and the help needs no server.
    from kvstore.server.config import parse_config
    from kvstore.server.ending import run_to_the_end
    from kvstore.server.gpus import find_gpus
    from kvstore.server.server import serve as run
    from kvstore.server.server import stop_seconds_max

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # KV is as private as the prompts it comes from: what this process makes is nobody else's.
    os.umask(0o077)
    config = parse_config(
        socket=socket,
        gpu=gpu,
        cpu=cpu,
        disk=disk,
        disk_bytes="0" if disk_bytes is None else disk_bytes,
        wipe_incompatible=wipe_incompatible,
        scrub=scrub,
        tenants=tenant or (),
        tenant_shares=tenant_share or (),
        lease=lease,
        engines_max=engines_max,
        eviction_policy=eviction_policy,
        swap_policy=swap_policy,
        drop_tokens_max=drop_tokens_max,
        disk_admission=disk_admission,
        retain_bytes=retain_bytes,
        high_watermark=high_watermark,
        low_watermark=low_watermark,
        cpu_high_watermark=cpu_high_watermark,
        cpu_low_watermark=cpu_low_watermark,
        drain_seconds=drain_seconds,
        limits=limit or (),
        journal=journal,
        journal_bytes="0" if journal_bytes is None else journal_bytes,
        metrics=metrics,
        gpu_devices=find_gpus(gpu_device or ()),
    )
    status = run_to_the_end(lambda stopping: run(config, stopping=stopping), stop_seconds_max(config))
    raise typer.Exit(status)


def _stop_early(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing has been made yet. An exception would not do: it may come up in the middle of an import,
    or of a callback that swallows it, and the signal would be lost."""
    os.write(2, f"kvstore: stopped by {signal.Signals(number).name} before it was ready\n".encode())
    os._exit(0)
