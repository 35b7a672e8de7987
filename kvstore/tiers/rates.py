"""What the links can do: bandwidth and fixed cost of each, as measured (POLICY 2.2).

To move n bytes takes `fixed + n / bandwidth` seconds. Both come from least squares over what was measured,
at the start (calibrating.py) and then piece by piece; old samples fade, so a link that has changed is known
soon. Errors count in proportion, so that small pieces speak for the fixed cost. Where all pieces have one
size, only the bandwidth is learnt, and the fixed cost stays what it was.

Where blocks are small, pieces are, and what those take tells what a block costs rather than what the medium
can do. So what large transfers take is kept apart: a share of a link is a share of that.
"""

import math
import threading
from collections.abc import Iterable, Mapping

import msgspec

from kvstore.core.types import Link
from kvstore.tiers.link_names import LINK_NAMES, link_name

__all__ = ["LinkRate", "LinkRates", "RatesUnreadable"]

# What remains of a sample's weight after another one: 256 of them are what is remembered.
KEPT = 1 - 1 / 256
# To fit costs as much as what a mover does about a piece, so it is done for several at a time.
FIT_EVERY = 16
# A sample counts as no further off than by this factor: a thread that was not run says nothing of the link.
SURPRISE_MAX = 2.0
# Below this (variance of sizes over the square of their mean) the fixed cost can't be told from the rest.
SPREAD_MIN = 0.05
VERSION = 1
# From so many bytes on a transfer counts as large: what it costs besides its bytes is little beside them.
LARGE_BYTES = 1 << 20


class LinkRate(msgspec.Struct, frozen=True, kw_only=True):
    """One link. Zero bandwidth: nothing known.

    `concurrent`: bytes a second of so many at once, together. `both_ways_share`: what is left of the
    bandwidth while the opposite link moves as much.
    """

    bandwidth_bytes_per_second: float = 0.0
    # The same of large transfers alone; 0: none was measured.
    large_bytes_per_second: float = 0.0
    fixed_seconds: float = 0.0
    samples: int = 0
    concurrent: dict[int, float] = {}
    both_ways_share: float = 1.0

    @property
    def is_known(self) -> bool:
        return self.bandwidth_bytes_per_second > 0

    @property
    def most_bytes_per_second(self) -> float:
        """What the link can do, whatever the size of blocks; 0 where nothing is known."""
        return self.large_bytes_per_second or self.bandwidth_bytes_per_second

    def seconds(self, size: int) -> float:
        """What so many bytes take if nothing else moves; 0 where nothing is known."""
        return self.fixed_seconds + size / self.bandwidth_bytes_per_second if self.is_known else 0.0


class RatesUnreadable(ValueError):
    """Bytes that are no rates, or of another version."""


class _Sums(msgspec.Struct, kw_only=True):
    """Weighted sums over samples: of 1, bytes, seconds, bytes squared, bytes times seconds."""

    weight: float = 0.0
    size: float = 0.0
    seconds: float = 0.0
    size_size: float = 0.0
    size_seconds: float = 0.0

    def add(self, size: float, seconds: float, weight: float, kept: float = 1.0) -> None:
        """`kept`: what remains of the samples before."""
        self.weight = self.weight * kept + weight
        self.size = self.size * kept + weight * size
        self.seconds = self.seconds * kept + weight * seconds
        self.size_size = self.size_size * kept + weight * size * size
        self.size_seconds = self.size_seconds * kept + weight * size * seconds

    def fit(self, fixed: float) -> tuple[float, float]:
        """Fixed seconds, and seconds a byte. `fixed`: what the first is taken for where it can't be told."""
        spread = self.weight * self.size_size - self.size * self.size
        if spread > SPREAD_MIN * self.size * self.size:
            slope = (self.weight * self.size_seconds - self.size * self.seconds) / spread
            fixed = (self.seconds - slope * self.size) / self.weight
            if slope > 0 and fixed >= 0:
                return fixed, slope
            fixed = 0.0
        # With the fixed cost given: at most half of what was measured, so that bytes cost something too.
        fixed = min(fixed, self.seconds / self.weight / 2)
        return fixed, (self.size_seconds - fixed * self.size) / self.size_size


class _Learnt(msgspec.Struct, kw_only=True):
    """`rate` is of all samples but the last `unfitted` ones."""

    sums: _Sums
    rate: LinkRate
    # Of the samples that are large.
    large: _Sums = msgspec.field(default_factory=_Sums)
    unfitted: int = 0

    def add(self, size: int, seconds: float) -> None:
        _add_likely(self.sums, size, seconds, self.rate.seconds(size))
        if size >= LARGE_BYTES:
            known = self.rate.large_bytes_per_second
            _add_likely(self.large, size, seconds, size / known if known else 0.0)
        self.unfitted += 1
        # Each of a link's first: what is known by then may be far off.
        if self.unfitted >= FIT_EVERY or self.rate.samples < FIT_EVERY:
            self.fit()

    def fit(self) -> LinkRate:
        if self.unfitted:
            self.rate = _fitted(self.sums, self.large, self.rate, self.rate.samples + self.unfitted)
            self.unfitted = 0
        return self.rate


class _Kept(msgspec.Struct, kw_only=True):
    version: int
    links: dict[str, _Learnt]


class LinkRates:
    """Read and fed by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._learnt: dict[Link, _Learnt] = {}

    def rate(self, link: Link) -> LinkRate:
        with self._lock:
            learnt = self._learnt.get(link)
            return learnt.fit() if learnt is not None else LinkRate()

    def note(self, link: Link, size: int, seconds: float) -> None:
        """One piece has moved alone in its link."""
        if size <= 0 or not seconds > 0:
            return
        with self._lock:
            learnt = self._learnt.get(link)
            if learnt is None:
                learnt = self._learnt[link] = _Learnt(sums=_Sums(), rate=LinkRate())
            learnt.add(size, seconds)

    def set_measured(
        self,
        link: Link,
        samples: Iterable[tuple[int, float]],
        concurrent: Mapping[int, float],
        both_ways_share: float = 1.0,
    ) -> None:
        """What a calibration found, in the place of all that was known: bytes and seconds of each try."""
        sums, large, count = _Sums(), _Sums(), 0
        for size, seconds in samples:
            sums.add(size, seconds, 1 / seconds**2)
            if size >= LARGE_BYTES:
                large.add(size, seconds, 1 / seconds**2)
            count += 1
        if count:
            before = LinkRate(concurrent=dict(concurrent), both_ways_share=both_ways_share)
            rate = _fitted(sums, large, before, count)
            with self._lock:
                self._learnt[link] = _Learnt(sums=sums, large=large, rate=rate)

    def encode(self) -> bytes:
        """All that is known, to be kept."""
        with self._lock:
            for learnt in self._learnt.values():
                learnt.fit()
            links = {link_name(link): learnt for link, learnt in self._learnt.items()}
            return msgspec.json.encode(_Kept(version=VERSION, links=links))

    def restore(self, data: bytes) -> None:
        """What `encode` gave. Raises RatesUnreadable, nothing changed."""
        try:
            kept = msgspec.json.decode(data, type=_Kept)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RatesUnreadable(f"kept rates can't be read: {error}") from error
        if kept.version != VERSION or not kept.links.keys() <= LINK_NAMES.keys():
            raise RatesUnreadable(f"kept rates of version {kept.version}, for {', '.join(kept.links)}")
        if not all(map(_is_sound, kept.links.values())):
            raise RatesUnreadable("kept rates that no link can have")
        with self._lock:
            self._learnt.update({LINK_NAMES[name]: learnt for name, learnt in kept.links.items()})


def _add_likely(sums: _Sums, size: int, seconds: float, expected: float) -> None:
    """`expected`: what it should have taken; 0: nothing is known."""
    expected = expected or seconds
    seconds = min(max(seconds, expected / SURPRISE_MAX), expected * SURPRISE_MAX)
    sums.add(size, seconds, 1 / expected**2, KEPT)


def _fitted(sums: _Sums, large: _Sums, before: LinkRate, samples: int) -> LinkRate:
    fixed, slope = sums.fit(before.fixed_seconds)
    return LinkRate(
        bandwidth_bytes_per_second=1 / slope,
        large_bytes_per_second=1 / large.fit(fixed)[1] if large.weight else 0.0,
        fixed_seconds=fixed,
        samples=samples,
        concurrent=before.concurrent,
        both_ways_share=before.both_ways_share,
    )


def _is_sound(learnt: _Learnt) -> bool:
    rate, figures = learnt.rate, [learnt.rate.bandwidth_bytes_per_second]
    for sums in (learnt.sums, learnt.large) if learnt.large.weight else (learnt.sums,):
        figures += [sums.weight, sums.size, sums.seconds, sums.size_size, sums.size_seconds]
    if learnt.large.weight:
        figures.append(rate.large_bytes_per_second)
    return all(math.isfinite(each) and each > 0 for each in figures) and (
        math.isfinite(rate.fixed_seconds) and rate.fixed_seconds >= 0
    )
