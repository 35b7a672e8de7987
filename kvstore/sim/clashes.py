"""Who must not touch which frame at the same time: transfers, late reads, and work of one or two streams."""

from collections.abc import Collection, Iterable

from kvstore.core.effects import Transfer
from kvstore.core.types import Tier
from kvstore.sim.carrying import Moving
from kvstore.sim.work import Work
from kvstore.sim.wrong import Wrong

__all__ = ["check_apart", "check_in_time", "check_streams_apart"]


def check_in_time(transfer: Transfer, late: Iterable[Moving]) -> None:
    # Every transfer has one end in the CPU tier.
    used = set(transfer.source_frames if transfer.source is Tier.CPU else transfer.target_frames)
    for moving in late:
        clash = sorted(used & {moving.transfer.target_frames[place] for place in moving.late})
        if clash:
            places = tuple((Tier.CPU, frame) for frame in clash)
            raise Wrong(
                f"transfer {transfer.id} uses CPU frames {clash}, to which a late read writes", places
            )


def check_apart(transfer: Transfer, work: Work, what: str) -> None:
    if transfer.source is Tier.GPU:
        clash = set(transfer.source_frames) & set(work.frames_written())
        if clash:
            raise _clash(transfer, clash, f"{what} write what it copies")
    if transfer.target is Tier.GPU:
        clash = set(transfer.target_frames) & {*work.frames_read(), *work.frames_written()}
        if clash:
            raise _clash(transfer, clash, f"{what} use what it fills")


def check_streams_apart(work: Work, engine: int, works: Iterable[Work], other: int) -> None:
    """Streams of two engines know nothing of each other: what one writes, the other must not touch."""
    reads, writes = set(work.frames_read()), set(work.frames_written())
    for each in works:
        clash = writes & {*each.frames_read(), *each.frames_written()} | reads & set(each.frames_written())
        if clash:
            what = f"engines {other} and {engine} both use GPU frames {sorted(clash)}, and one writes"
            raise Wrong(what, tuple((Tier.GPU, frame) for frame in sorted(clash)))


def _clash(transfer: Transfer, frames: Collection[int], what: str) -> Wrong:
    places = tuple((Tier.GPU, frame) for frame in sorted(frames))
    return Wrong(f"{what}: GPU frames {sorted(frames)}, transfer {transfer.id}", places)
