"""What is in a page of LMDB's trees: nodes, each a key, and a record or the number of a page below.

Thousands are looked at together, and nothing that stands in a page leads anywhere before it was checked.
"""

from itertools import islice
from operator import lt
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvstore.tiers.index_pages import PageFault, Pages

__all__ = ["BIG_DATA", "BRANCH", "LEAF", "SUB_TREE", "Nodes", "nodes_of"]

BRANCH, LEAF = 1, 2
# A node in a leaf whose record lies in overflow pages; and one that is a table.
BIG_DATA, SUB_TREE = 1, 2
HEAD_BYTES, NODE_BYTES, BIG_DATA_BYTES, KEY_BYTES_MAX = 16, 8, 8, 511


class Nodes(Struct, frozen=True, kw_only=True):
    """What is in some pages of one kind: columns, in step, page after page and by key in each.

    `data`: bytes of the pages. `page`: which of these pages a node is in. `at`: where in `data` it begins;
    its key stands NODE_BYTES behind that. `number`: of a branch's node the page below it; of a leaf's how
    many bytes its record has; that follows the key."""

    data: NDArray[np.uint8]
    page: Pages
    at: NDArray[np.intp]
    flags: NDArray[np.uint16]
    key_bytes: NDArray[np.intp]
    number: NDArray[np.intp]

    def keys(self, places: Pages) -> list[bytes]:
        sizes = self.key_bytes[places]
        starts = self.at[places] + NODE_BYTES
        if sizes.size and (sizes == sizes[0]).all():
            keys: list[bytes] = self._gather(starts, f"V{sizes[0]}").tolist()
            return keys
        ends = (starts + sizes).tolist()
        return [self.data[start:end].tobytes() for start, end in zip(starts.tolist(), ends, strict=True)]

    def ascend(self) -> NDArray[np.bool_]:
        """Of each node but the last whether its key is less than that of the next, as bytes."""
        size = int(self.key_bytes.max(initial=1))
        if (self.key_bytes == size).all():
            # Of one length: so it makes no difference that numpy does not see zeros at the end.
            keys = self._gather(self.at + NODE_BYTES, f"S{size}")
            return keys[:-1] < keys[1:]
        some = self.keys(np.arange(self.at.size))
        return np.fromiter(map(lt, some, islice(some, 1, None)), np.bool_, len(some) - 1)

    def record(self, place: int) -> bytes:
        """Of a leaf's node that has it there: eight bytes, a page's number, where it is BIG_DATA."""
        start = int(self.at[place] + NODE_BYTES + self.key_bytes[place])
        size = BIG_DATA_BYTES if self.flags[place] == BIG_DATA else int(self.number[place])
        return self.data[start : start + size].tobytes()

    def _gather(self, starts: NDArray[np.intp], dtype: str) -> NDArray[Any]:
        """What stands at these bytes of `data`, and not behind its end."""
        count = self.data.size - np.dtype(dtype).itemsize + 1
        return np.ndarray((count,), dtype, self.data.data, strides=(1,))[starts]


def nodes_of(pages: NDArray[np.uint8], numbers: Pages, kind: int, keys_min: int) -> Nodes:
    """What is in these pages, all BRANCH or all LEAF, with so many keys each at least. PageFault where one is
    of another kind or of another number, or where what is in it does not fill it without gaps."""
    size = pages.shape[1]
    words = pages.view(np.uint16)
    lower, upper = words[:, 6].astype(np.intp), words[:, 7].astype(np.intp)
    _expect(pages[:, :8].view(np.uint64)[:, 0] == numbers.astype(np.uint64), numbers, "another's number")
    _expect(words[:, 5] == kind, numbers, "another kind of page")
    bounds = (lower >= HEAD_BYTES + 2 * keys_min) & (lower <= upper) & (upper <= size)
    _expect(bounds & (lower % 2 == 0) & (upper % 2 == 0), numbers, "wrong bounds")
    counts = (lower - HEAD_BYTES) // 2
    page = np.repeat(np.arange(numbers.size), counts)
    place = np.arange(page.size) - np.repeat(np.cumsum(counts) - counts, counts)
    at = words[page, HEAD_BYTES // 2 + place].astype(np.intp)
    inside = (at >= upper[page]) & (at <= size - NODE_BYTES) & (at % 2 == 0)
    _expect(inside, numbers[page], "a node outside the page")
    low, high, flags, key_bytes = np.moveaxis(
        words.ravel()[((page * size + at) // 2)[:, None] + np.arange(4)], 1, 0
    )
    number = low.astype(np.intp) | high.astype(np.intp) << 16
    key_bytes = key_bytes.astype(np.intp)
    if kind == BRANCH:
        number |= flags.astype(np.intp) << 32
        length = NODE_BYTES + key_bytes
        good = key_bytes <= KEY_BYTES_MAX
    else:
        length = NODE_BYTES + key_bytes + np.where(flags == BIG_DATA, BIG_DATA_BYTES, number)
        good = (key_bytes <= KEY_BYTES_MAX) & (key_bytes > 0) & (flags <= SUB_TREE)
    _expect(good & (at + length <= size), numbers[page], "a node of wrong size")
    nodes = Nodes(
        data=pages.reshape(-1),
        page=page,
        at=page * size + at,
        flags=flags,
        key_bytes=key_bytes,
        number=number,
    )
    _expect_filled(numbers, nodes, nodes.at + length + length % 2, upper, size)
    return nodes


def _expect_filled(numbers: Pages, nodes: Nodes, ends: Pages, upper: Pages, size: int) -> None:
    """The first node begins at `upper`, each other where one ends, and the last one ends with the page."""
    order = np.argsort(nodes.at)
    begins, ends = nodes.at[order], ends[order]
    # Sorted, the nodes of a page are still where they were, in another order.
    is_first = np.diff(nodes.page, prepend=-1) != 0
    expected = np.append(begins[1:], 0)
    is_last = np.append(is_first[1:], True)
    expected[is_last] = (nodes.page[is_last] + 1) * size
    page = nodes.page[is_first]
    why = "nodes with gaps, or over each other"
    _expect(begins[is_first] == page * size + upper[page], numbers[page], why)
    _expect(ends == expected, numbers[nodes.page], why)


def _expect(good: NDArray[np.bool_], numbers: Pages, why: str) -> None:
    if not good.all():
        raise PageFault(f"page {numbers[good.argmin()]}: {why}")
