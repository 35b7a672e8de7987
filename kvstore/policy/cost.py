"""Drop or swap by cost, and how much of a cached prefix is worth loading (POLICY 2.3 and 3).

Swapping n tokens out and in is cheaper than computing them again where

    λ_gpu·(β·n + γ·n²/2)  >  O + λ_link·x·n·k/B

that is, from a length n* on (`break_even_tokens`). Prefill is learnt from the steps that engines tell of
(`prefill.py`), O and B of the links are told (SetCosts), prices come from how busy GPU and links are
(`load.py`), and what is queued ahead on a link is added. Beyond the formula: both ways have their own link;
x·n·k are the bytes that really move, so copies that went ahead and blocks that stay on the GPU for others
cost nothing. Until prefill and links are known, the length decides.
"""

import math

from msgspec import structs

from kvstore.core.ports import Departure, Figures, LinkState, Restore, Verdict
from kvstore.core.types import COPY, DISK, GPU, LOAD, READ, Link, LinkCost, StepTiming
from kvstore.policy.load import BusyShare, Price
from kvstore.policy.prefill import PrefillCost, PrefillFit
from kvstore.policy.swap import LengthThreshold, load_all

__all__ = ["CostModel", "break_even_tokens"]

# A sequence that was swapped the last time is dropped, or the other way round, only where that is cheaper
# by more than this; so is a part of a prefix loaded in the place of all of it.
HYSTERESIS = 0.05
# What overrules the costs, or stands in their place, in words.
AS_BEFORE = f"as the last time: the other way is not cheaper by {HYSTERESIS:.0%}"
NOT_IN_PARTS = f"to load less is not cheaper by {HYSTERESIS:.0%}"
NO_OTHER_WAY = "what stands behind it is on the GPU already, so there is no other way"
UNKNOWN_PREFILL = "what prefill costs is not known yet"
UNKNOWN_LINKS = "what the links take is not known yet"


def break_even_tokens(
    prefill: PrefillCost, fixed_seconds: float, seconds_per_token: float, price: float
) -> float:
    """n*: where computing n tokens at `price` costs as much as moving them, with all of `fixed_seconds`
    and `seconds_per_token` as priced. Infinite: moving never pays."""
    slope = prefill.beta_passes - seconds_per_token / price
    fixed = fixed_seconds / price
    if prefill.gamma > 0:
        # As -c1 + sqrt(c1² + 2·γ·O) over γ, without the difference of two near numbers.
        root = math.sqrt(slope * slope + 2 * prefill.gamma * fixed)
        return 2 * fixed / (slope + root) if slope > 0 else (root - slope) / prefill.gamma
    return fixed / slope if slope > 0 else math.inf


class CostModel:
    """`drop_tokens_max`: as for `LengthThreshold`, as long as costs are not known."""

    def __init__(self, drop_tokens_max: int) -> None:
        self.drop_tokens_max = drop_tokens_max
        self._by_length = LengthThreshold(drop_tokens_max)
        self._prefill = PrefillFit()
        self._gpu_busy = BusyShare()
        self._gpu_price = Price()
        self._link_prices: dict[Link, Price] = {}
        self._block_bytes = 0
        self._links: dict[Link, LinkCost] = {}

    def note_timings(self, timings: tuple[StepTiming, ...], time: float) -> None:
        for timing in timings:
            self._gpu_busy.add(timing.elapsed_seconds, time)
            if timing.prefill_tokens:
                self._prefill.add(timing, time)

    def set_costs(self, block_bytes: int, links: tuple[LinkCost, ...]) -> None:
        self._block_bytes = block_bytes
        self._links = {(link.source, link.target): link for link in links}

    # --------------------------------------------------------------------- drop or swap

    def leave(self, departure: Departure) -> Verdict:
        prefill = self._prefill.cost()
        if prefill is None or COPY not in self._links or LOAD not in self._links:
            verdict = self._by_length.leave(departure)
            return structs.replace(verdict, reason=f"{verdict.reason}, {self._unknown(prefill)}")
        price = self._gpu_price.at(self._gpu_busy.at(departure.time))
        compute = prefill.seconds(departure.tokens_kept, departure.tokens)
        drop = price * compute
        out, figures_out = self._move(COPY, departure.blocks_out, departure.copy)
        back, figures_in = self._move(LOAD, departure.blocks_in, departure.load)
        swap = out + back
        keeps, reason = swap < drop, ""
        if departure.chosen_before:
            kept_before = departure.chosen_before == "swap"
            cheaper, dearer = (swap, drop) if keeps else (drop, swap)
            if keeps is not kept_before and cheaper > (1 - HYSTERESIS) * dearer:
                keeps, reason = kept_before, AS_BEFORE
        return Verdict(
            keeps=keeps,
            seconds=swap if keeps else drop,
            other_seconds=drop if keeps else swap,
            reason=reason,
            inputs=(
                ("tokens", float(departure.tokens)),
                ("tokens_kept", float(departure.tokens_kept)),
                ("block_bytes", float(self._block_bytes)),
                ("break_even_tokens", self._break_even(departure, prefill, price, swap)),
                ("compute_tokens", float(departure.tokens - departure.tokens_kept)),
                ("compute_seconds", compute),
                *_prefill_figures(prefill, price),
                *figures_out,
                *figures_in,
            ),
        )

    def _break_even(self, departure: Departure, prefill: PrefillCost, price: float, swap: float) -> float:
        """n* for a sequence of this kind. What it moves a token is what this one does on average."""
        moved = sum(
            count * self._block_seconds(link, self._link_price(link, state))
            for link, count, state in (
                (COPY, departure.blocks_out, departure.copy),
                (LOAD, departure.blocks_in, departure.load),
            )
        )
        tokens = max(1, departure.tokens - departure.tokens_kept)
        return break_even_tokens(prefill, swap - moved, moved / tokens, price)

    def hold_seconds(self, departure: Departure, pressed_share: float) -> float:
        if COPY not in self._links or LOAD not in self._links or pressed_share <= 0:
            return math.inf if pressed_share <= 0 else 0.0
        out, _ = self._move(COPY, departure.blocks_out, LinkState())
        back, _ = self._move(LOAD, departure.blocks_in, LinkState())
        return (out + back) / pressed_share

    # ------------------------------------------------------------------ partial restore

    def load(self, restore: Restore) -> Verdict | None:
        """Load [0, L), compute [L, D). Deeper tokens are dearer to compute and no dearer to load, so within
        what lies in one tier all of it or none is best: L is an end of a run."""
        prefill = self._prefill.cost()
        if prefill is None or LOAD not in self._links:
            return load_all(restore, self._unknown(prefill))
        price = self._gpu_price.at(self._gpu_busy.at(restore.time))
        # Where L may be, and for each how many blocks are loaded, and of these read from disk.
        ends, counts = [0], [(0, 0)]
        for tier, count in restore.runs:
            end, (loaded, read) = ends[-1] + count, counts[-1]
            if tier is GPU:
                # What is there is used, and so is all that stands before it.
                ends, counts = [end], [(loaded, read)]
                continue
            if tier is DISK and READ not in self._links:
                return load_all(restore, UNKNOWN_LINKS)
            ends.append(end)
            counts.append((loaded + count, read + count * (tier is DISK)))
        costs = [
            self._load_seconds(restore, loaded, read)
            + price * prefill.seconds(min(end * restore.block_tokens, restore.tokens), restore.tokens)
            for end, (loaded, read) in zip(ends, counts, strict=True)
        ]
        best, reason = min(range(len(costs)), key=costs.__getitem__), ""
        if best != len(costs) - 1 and costs[best] > (1 - HYSTERESIS) * costs[-1]:
            best, reason = len(costs) - 1, NOT_IN_PARTS
        others = [place for place in range(len(costs)) if place != best]
        other = min(others, key=costs.__getitem__, default=best)
        return Verdict(
            keeps=best == len(costs) - 1,
            blocks=ends[best],
            loads=counts[best][0],
            other_loads=counts[other][0],
            other_is_whole=other == len(costs) - 1,
            seconds=costs[best],
            other_seconds=costs[other] if others else 0.0,
            reason=reason or ("" if others else NO_OTHER_WAY),
            inputs=(
                ("tokens", float(restore.tokens)),
                ("block_bytes", float(self._block_bytes)),
                ("blocks_kept_least", float(ends[0])),
                ("blocks_found", float(ends[-1])),
                ("blocks_kept", float(ends[best])),
                *_side("", restore, ends[best], counts[best], prefill),
                *(_side("other_", restore, ends[other], counts[other], prefill) if others else ()),
                *_prefill_figures(prefill, price),
                *self._move(LOAD, counts[best][0], restore.load)[1],
                *(self._move(READ, counts[best][1], restore.read)[1] if counts[-1][1] else ()),
            ),
        )

    def _load_seconds(self, restore: Restore, loaded: int, read: int) -> float:
        """Reads from disk and loads into the GPU go on side by side: the slower of both counts."""
        load, _ = self._move(LOAD, loaded, restore.load)
        return max(load, self._move(READ, read, restore.read)[0]) if read else load

    # ---------------------------------------------------------------------------- links

    def _move(self, link: Link, blocks: int, state: LinkState) -> tuple[float, Figures]:
        """O + Q/B + λ·n·k/B of so many blocks; none cost nothing. And on what that rests."""
        cost, price = self._links[link], self._link_price(link, state)
        name = f"{link[0].name}_to_{link[1].name}".lower()
        seconds = 0.0
        if blocks:
            queued = state.blocks_ahead * self._block_seconds(link, 1.0)
            seconds = cost.fixed_seconds + queued + blocks * self._block_seconds(link, price)
        return seconds, (
            (f"{name}_blocks", float(blocks)),
            (f"{name}_blocks_ahead", float(state.blocks_ahead)),
            (f"{name}_bytes_per_second", cost.bytes_per_second),
            (f"{name}_fixed_seconds", cost.fixed_seconds),
            (f"{name}_price", price),
            (f"{name}_seconds", seconds),
        )

    def _unknown(self, prefill: PrefillCost | None) -> str:
        return UNKNOWN_PREFILL if prefill is None else UNKNOWN_LINKS

    def _block_seconds(self, link: Link, price: float) -> float:
        return price * self._block_bytes / self._links[link].bytes_per_second

    def _link_price(self, link: Link, state: LinkState) -> float:
        return self._link_prices.setdefault(link, Price()).at(state.busy_share)


def _side(name: str, restore: Restore, end: int, counts: tuple[int, int], prefill: PrefillCost) -> Figures:
    """What one way to come back loads, reads from disk for that, and computes; not priced."""
    used = min(end * restore.block_tokens, restore.tokens)
    return (
        (f"{name}blocks_loaded", float(counts[0])),
        (f"{name}blocks_read", float(counts[1])),
        (f"{name}compute_tokens", float(restore.tokens - used)),
        (f"{name}compute_seconds", prefill.seconds(used, restore.tokens)),
    )


def _prefill_figures(prefill: PrefillCost, price: float) -> Figures:
    return (
        ("alpha_seconds", prefill.alpha),
        ("beta_seconds", prefill.beta),
        ("gamma_seconds", prefill.gamma),
        ("pass_tokens", float(prefill.pass_tokens)),
        ("gpu_price", price),
    )
