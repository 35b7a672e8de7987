"""Lots of blocks: what left a tier for whose sake, what goes to disk and what does not, and how much they are
thought to be worth."""

from collections.abc import Iterator

from kvstore.cli.explain_figures import Inputs, span
from kvstore.cli.texts import counted, shown
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["admit_lines", "evict_lines"]

# By the policy that has named them: why these.
ORDERS = {
    "Worth": "the least worth",
    "Lru": "used longest ago",
    "LfuAgeing": "used least often, lately",
    "Arc": "first by ARC's order",
    "S3Fifo": "first by S3-FIFO's order",
}


def evict_lines(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    tier, _, policy = decision.chosen.removeprefix("from ").rpartition(" by ")
    blocks, lost = inputs.count("blocks"), inputs.count("blocks_lost")
    lots = f", in {counted(decision.lots, 'lot')}" if decision.lots > 1 else ""
    yield f"{counted(blocks, 'block')} left {tier}{lots}, because {decision.reason}{_for_whom(decision)}."
    first = ", at the first lot" if decision.lots > 1 else ""
    free, lacking = inputs.count("frames_free"), inputs.count("frames_lacking")
    yield f"Free there{first}: {counted(free, 'frame')}; needed beside them: {lacking:,}."
    they, were = ("It", "was") if blocks == 1 else ("They", "were")
    if lost:
        them = "it" if lost == 1 else "they"
        yield f"Of {lost:,} it was the last copy: {them} would have to be computed again."
    else:
        yield f"{'It has' if blocks == 1 else 'All of them have'} a copy in another tier."
    yield from _whose(decision, inputs)
    why = ORDERS.get(policy, f"first by {policy}")
    if "worth_least_reads_per_second" in inputs:
        least, most = inputs["worth_least_reads_per_second"], inputs["worth_most_reads_per_second"]
        kept = inputs["worth_kept_reads_per_second"]
        yield (
            f"{they} {were} {why}: {_reads(least, most)}. The next that stays: "
            + (_reads(kept, kept) if "worth_kept_reads_per_second" in inputs else "none was looked at")
            + "."
        )
    else:
        yield f"{they} {were} {why}."


def admit_lines(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    taken, shed, refused = (inputs.count(f"blocks_{what}") for what in ("taken", "shed", "refused"))
    lots = f", in {counted(decision.lots, 'lot')}" if decision.lots > 1 else ""
    blocks = counted(refused or shed or taken, "block")
    # It is said when they are queued: the device has its say later.
    what = "to be written to disk" if decision.chosen == "written to disk" else decision.chosen
    beside = f" ({taken:,} more were taken)" if shed and taken else ""
    yield f"{blocks} {what}{beside}{lots}: {decision.reason}."
    yield from _whose(decision, inputs)
    if "chance_wanted" in inputs:
        least, most = inputs["chance_least"], inputs["chance_most"]
        yield f"Chance to be read again: {_range(least, most)}; {inputs['chance_wanted']:.2g} is asked for."
        watched, wanted = inputs["watched_seconds"], inputs["watched_seconds_wanted"]
        if watched < wanted:
            yield (
                f"But in the first {span(wanted)} all is taken that may come back at all; uses have been "
                f"watched for {span(watched)}."
            )
    if "queue_blocks_max" in inputs:
        waiting, room = counted(inputs.count("blocks_waiting"), "block"), inputs.count("queue_blocks_max")
        yield f"In the queue down, to CPU and disk, before them: {waiting}, of at most {room:,}."
    if failed := inputs.count("writes_failed_in_a_row"):
        yield f"{counted(failed, 'write')} to disk failed before, one after the other."


def _for_whom(decision: pb.Decision) -> str:
    """The sequences, by number and session."""
    named = [
        f"{each.sequence}" + (f" of session {shown(each.session)}" if each.session else "")
        for each in decision.room_for
    ]
    return f" (sequence{'s' if len(named) > 1 else ''} {', '.join(named)})" if named else ""


def _whose(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    of_sessions = inputs.count("blocks_of_sessions")
    mine = inputs.count("blocks_of_this_session")
    named = [f"{shown(each.session)} {each.blocks:,}" for each in decision.blocks_of]
    known = sum(each.blocks for each in decision.blocks_of)
    if of_sessions > known:
        named.append(f"of sessions that are not known by name {of_sessions - known:,}")
    if mine and decision.session not in {each.session for each in decision.blocks_of}:
        named.append(f"of this session {mine:,}")
    yield "Whose: " + (", ".join(named) if named else "of no session") + "."


def _reads(least: float, most: float) -> str:
    """How long a block of such a worth takes its frame for each read."""
    if most <= 0:
        return "no read is expected"
    shortest = span(1 / most)
    if least <= 0:
        return f"expected is at most one read for each {shortest} that a block stays"
    longest = span(1 / least)
    between = shortest if longest == shortest else f"{shortest} to {longest}"
    return f"expected is one read for each {between} that a block stays"


def _range(least: float, most: float) -> str:
    return f"{least:.2g}" if f"{least:.2g}" == f"{most:.2g}" else f"{least:.2g} to {most:.2g}"
