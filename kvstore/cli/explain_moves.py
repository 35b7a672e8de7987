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
    yield (
        f"Found for it: {counted(tokens, 'token')} in blocks of {size}. What else its prompt holds is "
        "computed in any case."
    )
    if least := inputs.count("blocks_kept_least"):
        first = "block is" if least == 1 else f"{least:,} blocks are"
        where = "it" if least == 1 else "the last of them"
        yield f"The first {first} used in any case: {where} is on the GPU already."
    chosen = _way(decision.chosen, inputs, "")
    if not _is_weighed(decision):
        yield f"{chosen}. It was not weighed against computing: {decision.reason}."
        return
    yield f"{chosen}, for {seconds(decision.chosen_cost_seconds)}."
    if decision.other:
        other = _way(decision.other, inputs, "other_")
        cost = seconds(decision.other_cost_seconds)
        yield f"The best other way, {other[0].lower()}{other[1:]}, would have cost {cost}."
    if decision.reason:
        yield f"Why so: {decision.reason}."
    yield from _restore_sums(decision, inputs)


def _is_weighed(decision: pb.Decision) -> bool:
    return bool(decision.chosen_cost_seconds or decision.other_cost_seconds)


# ------------------------------------------------------------------------------- swap or drop


def _swap_sums(inputs: Inputs) -> Iterator[str]:
    if kept := inputs.count("tokens_kept"):
        stay = _verb(kept, "stays", "stay")
        yield f"{counted(kept, 'token')} of it {stay} on the GPU, where others use the same blocks."
    yield from _blocks_each_way(inputs)
    down, up = inputs.link("gpu", "cpu"), inputs.link("cpu", "gpu")
    yield f"swap: {down or 'nothing has to be copied down'}; {up or 'nothing has to come up again'}."
    compute = counted(inputs.count("compute_tokens"), "token")
    yield f"drop: compute {compute} again, {money(inputs['compute_seconds'], inputs['gpu_price'])}."
    yield from _prefill(inputs)
    least = inputs["break_even_tokens"]
    yield f"To swap pays from {_tokens(least)} on." if least < float("inf") else "To swap never pays."


def _blocks_each_way(inputs: Inputs) -> Iterator[str]:
    """Why not as many go down as come up again."""
    size = inputs.count("block_tokens")
    blocks = -(-inputs.count("tokens") // size) if size else 0
    out, back = inputs.count("gpu_to_cpu_blocks"), inputs.count("cpu_to_gpu_blocks")
    if out == back == blocks or not 0 <= out <= blocks or not 0 <= back <= blocks:
        return
    down = _verb(blocks, "it goes down", f"all {blocks:,} go down")
    up = _verb(blocks, "it comes up again", f"all {blocks:,} come up again")
    if copied := blocks - out:
        have = _verb(copied, "has", "have")
        going = f"{out:,} {_verb(out, 'goes', 'go')} down" if out else "none goes down"
        down = f"{copied:,} {have} a copy below the GPU from before, so {going}"
    if kept := blocks - back:
        coming = f"{back:,} {_verb(back, 'comes', 'come')} up again" if back else "none comes up again"
        up = f"{kept:,} {_verb(kept, 'stays', 'stay')} on the GPU for others, so {coming}"
    yield f"It has {counted(blocks, 'block')}: {down}; {up}."


def _verb(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


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
            f"It is parked for {rests}, so far or as its engine has told. Its room is worth {hold}: two "
            f"transfers, with the GPU short of room for {share(inputs['pressed_share'])} of the last minute."
        )


# ----------------------------------------------------------------------------------- coming in


def _way(words: str, inputs: Inputs, side: str) -> str:
    """What a way loads, what it finds in its place, and what it computes; as far as that was counted."""
    words = f"{words[:1].upper()}{words[1:]}"
    if f"{side}blocks_loaded" not in inputs:
        return words
    loaded, read = inputs.count(f"{side}blocks_loaded"), inputs.count(f"{side}blocks_read")
    computed = inputs.count(f"{side}compute_tokens")
    parts = [f"{counted(loaded, 'block')} loaded"]
    if read:
        parts[0] += f" ({'all' if read == loaded else f'{read:,}'} of them from disk)"
    size = inputs.count("block_tokens")
    used = -(-(inputs.count("tokens") - computed) // size) if size else 0
    if used > loaded:
        parts.append(f"{counted(used - loaded, 'block')} found on the GPU")
    parts.append(f"{counted(computed, 'token')} computed")
    return f"{words}: {', '.join(parts)}"


def _restore_sums(decision: pb.Decision, inputs: Inputs) -> Iterator[str]:
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
