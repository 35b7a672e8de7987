"""Lots of blocks: what left a tier for whose sake, what goes to disk and what does not, and how much they are
thought to be worth."""

from collections.abc import Iterator

from kvstore.cli.explain_figures import Inputs, span
from kvstore.cli.explain_whose import for_whom, whose
from kvstore.cli.texts import counted
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
    went = f"{counted(blocks, 'block')} left {tier}{_lots(decision)}"
    yield f"{went}, because {decision.reason}{for_whom(decision)}."
    yield _needed(decision, inputs)
    if lost:
        them = "it" if lost == 1 else "they"
        yield f"Of {lost:,} it was the last copy: {them} would have to be computed again."
    else:
        yield f"{'It has' if blocks == 1 else 'All of them have'} a copy in another tier."
    yield whose(decision, inputs, blocks)
    yield from _order(decision, inputs, ORDERS.get(policy, f"first by {policy}"))


def admit_lines(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    counts = (inputs.count(f"blocks_{what}") for what in ("taken", "shed", "refused", "put_off"))
    taken, shed, refused, put_off = counts
    blocks = counted(put_off or refused or shed or taken, "block")
    # It is said when they are queued: the device has its say later.
    what = "to be written to disk" if decision.chosen == "written to disk" else decision.chosen
    beside = f" ({taken:,} more {'was' if taken == 1 else 'were'} taken)" if shed and taken else ""
    yield f"{blocks} {what}{beside}{_lots(decision)}: {decision.reason}."
    yield whose(decision, inputs)
    of = ", of the first lot" if decision.lots > 1 else ""
    if put_off:
        yield (
            f"{_frames(inputs.count('frames_free'))} free there{of}. They are looked at again when "
            f"{inputs['copy_from_share']:.0%} of all frames are taken, or nobody computes."
        )
    if "chance_wanted" in inputs:
        least, most = inputs["chance_least"], inputs["chance_most"]
        chance, asked = _range(least, most), inputs["chance_wanted"]
        yield f"Chance to be read again{of}: {chance}; {asked:.2g} is asked for."
        watched, wanted = inputs["watched_seconds"], inputs["watched_seconds_wanted"]
        if watched < wanted:
            yield (
                f"But in the first {span(wanted)} all is taken that may come back at all; uses have been "
                f"watched for {span(watched)}."
            )
    if "queue_blocks_max" in inputs:
        waiting, room = counted(inputs.count("blocks_waiting"), "block"), inputs.count("queue_blocks_max")
        first = "the first lot" if decision.lots > 1 else "them"
        yield f"In the queue down, to CPU and disk, before {first}: {waiting}, of at most {room:,}."
    if failed := inputs.count("writes_failed_in_a_row"):
        yield f"{counted(failed, 'write')} to disk failed before, one after the other."


def _lots(decision: pb.Decision) -> str:
    return f", in {counted(decision.lots, 'lot')}" if decision.lots > 1 else ""


def _needed(decision: pb.Decision, inputs: Inputs) -> str:
    """Of several lots only the first one's figures are kept."""
    free, lacking = inputs.count("frames_free"), inputs.count("frames_lacking")
    # What must be left over for others goes only when they need it.
    spare = inputs.count("frames_spare")
    needed = lacking - spare
    many = decision.lots > 1
    told = (
        f"{'At the first lot' if many else 'Before that'} {_frames(free)} free there, and {needed:,} more "
        f"{'was' if needed == 1 else 'were'} needed"
    )
    if spare:
        it = "it" if spare == 1 else "they"
        told += (
            f"; {spare:,} beside had to be such as can be freed at any time, for those who stand ahead or "
            f"for reads from disk, and {it} stayed"
        )
    return f"{told}.{' What the others found is not kept.' if many else ''}"


def _frames(count: int) -> str:
    return f"{counted(count, 'frame')} {'was' if count == 1 else 'were'}"


def _order(decision: pb.Decision, inputs: Inputs, why: str) -> Iterator[str]:
    """Why these, and not others."""
    they = "It was" if inputs.count("blocks") == 1 else "They were"
    if "worth_least_reads_per_second" not in inputs:
        yield f"{they} {why}."
        return
    if decision.lots > 1:
        they = "Those of the first lot were"
    least, most = inputs["worth_least_reads_per_second"], inputs["worth_most_reads_per_second"]
    went, kept = _reads(least, most), inputs["worth_kept_reads_per_second"]
    yield f"{they} {why}: {went}. {_next(inputs, went, _reads(kept, kept), is_less=kept < least)}"


def _next(inputs: Inputs, went: str, stays: str, *, is_less: bool) -> str:
    if "worth_kept_reads_per_second" not in inputs:
        return "Of others none was looked at."
    if stays == went:
        return "The next, which stays, is worth as much."
    if not is_less:
        return f"Of the next, which stays, {stays}."
    return (
        f"The next stays, though by itself it is worth less: {stays}. But a block counts for no less than "
        "what hangs on it, and goes after that."
    )


def _reads(least: float, most: float) -> str:
    """How long a block of such a worth takes its frame for each read."""
    if most <= 0:
        return "no read is expected"
    shortest = span(1 / most)
    if least <= 0:
        return f"at most one read is expected for each {shortest} that a block stays"
    longest = span(1 / least)
    between = shortest if longest == shortest else f"{shortest} to {longest}"
    return f"one read is expected for each {between} that a block stays"


def _range(least: float, most: float) -> str:
    return f"{least:.2g}" if f"{least:.2g}" == f"{most:.2g}" else f"{least:.2g} to {most:.2g}"
