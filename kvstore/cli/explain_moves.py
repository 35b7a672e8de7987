"""Sequences that left the GPU, or came in: what was done, what else could be, and both sums."""

from collections.abc import Iterator

from kvstore.cli.explain_figures import Inputs, money, seconds, share, span
from kvstore.cli.texts import counted
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["restore_lines", "swap_lines"]

LEFT = {"swap": "Swapped out", "drop": "Dropped"}
OTHERWISE = {
    "swap": "to swap it out and in again",
    "drop": "to drop it, and compute it again,",
}
# Said of a sequence that the store itself has moved.
ITSELF = ("frames_short", "idle_sequences", "rests_seconds", "hold_seconds", "pressed_share")


def swap_lines(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    done, other = LEFT.get(decision.chosen, decision.chosen), OTHERWISE.get(decision.other, decision.other)
    tokens, size = inputs.count("tokens"), inputs.count("block_tokens")
    of = f"{counted(tokens, 'token')} in blocks of {size}" if size else counted(tokens, "token")
    if not _is_weighed(decision):
        yield f"{done} ({of}). Both ways were not weighed: {decision.reason}."
        if "drop_tokens_max" in inputs:
            most = counted(inputs.count("drop_tokens_max"), "token")
            yield f"Up to {most} are dropped, what is longer is swapped out (--drop-tokens-max)."
    else:
        yield (
            f"{done} ({of}), for {seconds(decision.chosen_cost_seconds)}; {other} would have cost "
            f"{seconds(decision.other_cost_seconds)}."
        )
        if decision.reason:
            yield f"Why so: {decision.reason}."
        yield from _swap_sums(inputs)
    yield from _moved_by_itself(inputs)
    if not inputs["room_below"] and "room below" not in decision.reason:
        yield "There was no room below the GPU."


def restore_lines(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    tokens, size = inputs.count("tokens"), inputs.count("block_tokens")
    yield f"Found for it: {counted(tokens, 'token')} in blocks of {size}."
    chosen = _way(decision.chosen, inputs, "")
    if not _is_weighed(decision):
        yield f"{chosen}. It was not weighed against computing: {decision.reason}."
        return
    yield f"{chosen}, for {seconds(decision.chosen_cost_seconds)}."
    if decision.other:
        other = _way(decision.other, inputs, "other_")
        cost = seconds(decision.other_cost_seconds)
        yield f"The other way, {other[0].lower()}{other[1:]}, would have cost {cost}."
    if decision.reason:
        yield f"Why so: {decision.reason}."
    yield from _restore_sums(decision, inputs)


def _is_weighed(decision: pb.Decision) -> bool:
    return bool(decision.chosen_cost_seconds or decision.other_cost_seconds)


# ------------------------------------------------------------------------------- swap or drop


def _swap_sums(inputs: Inputs) -> Iterator[str]:
    if kept := inputs.count("tokens_kept"):
        yield f"{counted(kept, 'token')} of it stay on the GPU, where others use the same blocks."
    down, up = inputs.link("gpu", "cpu"), inputs.link("cpu", "gpu")
    yield f"swap: {down or 'nothing has to be copied down'}; {up or 'nothing has to come up again'}."
    compute = counted(inputs.count("compute_tokens"), "token")
    yield f"drop: compute {compute} again, {money(inputs['compute_seconds'], inputs['gpu_price'])}."
    yield from _prefill(inputs)
    least = inputs["break_even_tokens"]
    yield f"To swap pays from {_tokens(least)} on." if least < float("inf") else "To swap never pays."


def _tokens(count: float) -> str:
    """Of a length that is reckoned: no more than a whole number means anything."""
    return counted(max(1, round(count)), "token")


def _prefill(inputs: Inputs) -> Iterator[str]:
    alpha, beta, gamma = (inputs[f"{name}_seconds"] for name in ("alpha", "beta", "gamma"))
    most = counted(inputs.count("pass_tokens"), "token")
    yield (
        f"Prefill, as learnt: {seconds(alpha)} for a pass of up to {most}, {seconds(beta)} a token, and "
        f"{seconds(gamma)} for each pair of a token and one before it."
    )


def _moved_by_itself(inputs: Inputs) -> Iterator[str]:
    if "frames_short" not in inputs:
        return
    short, idle = inputs.count("frames_short"), inputs.count("idle_sequences")
    yield (
        f"The store made room with it: {counted(short, 'frame')} {'was' if short == 1 else 'were'} "
        f"lacking, and {counted(idle, 'sequence')} did not run."
    )
    if "rests_seconds" in inputs:
        rests, hold = span(inputs["rests_seconds"]), span(inputs["hold_seconds"])
        yield (
            f"It is parked, for {rests} so far or as told. Its room is worth {hold}: two transfers, with the "
            f"GPU short of room for {share(inputs['pressed_share'])} of the last minute."
        )


# ----------------------------------------------------------------------------------- coming in


def _way(words: str, inputs: Inputs, side: str) -> str:
    """What a way loads, and what it computes."""
    loaded, read = inputs.count(f"{side}blocks_loaded"), inputs.count(f"{side}blocks_read")
    computed = inputs.count(f"{side}compute_tokens")
    parts = [f"{counted(loaded, 'block')} loaded"]
    if read:
        parts[0] += f" ({'all' if read == loaded else f'{read:,}'} of them from disk)"
    parts.append(f"{counted(computed, 'token')} computed")
    return f"{words[:1].upper()}{words[1:]}: {', '.join(parts)}"


def _restore_sums(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
    if least := inputs.count("blocks_kept_least"):
        first = "block is" if least == 1 else f"{least:,} blocks are"
        where = "it" if least == 1 else "the last of them"
        yield f"The first {first} used in any case: {where} is on the GPU."
    inputs.count("blocks_found"), inputs.count("blocks_kept")
    price = inputs["gpu_price"]
    moves = [each for each in (inputs.link("disk", "cpu"), inputs.link("cpu", "gpu")) if each]
    compute = inputs["compute_seconds"]
    sums = (
        [f"load {'; '.join(moves)}" + (", the slower of both counts" if len(moves) > 1 else "")]
        if moves
        else []
    )
    if compute or not sums:
        sums.append(f"compute {money(compute, price)}")
    yield f"as chosen: {'; '.join(sums)}."
    if decision.other:
        other = inputs["other_compute_seconds"]
        rest = decision.other_cost_seconds - other * price
        parts = [f"load {seconds(rest)}"] if inputs["other_blocks_loaded"] and rest > 0 else []
        if other or not parts:
            parts.append(f"compute {money(other, price)}")
        yield f"otherwise: {'; '.join(parts)}."
    yield from _prefill(inputs)
