"""Pages of a mapping are in the page table before anything touches them."""

import mmap
import os
import resource

import numpy as np
import pytest

from kvstore.client.host_mapping import map_host
from kvstore.prefault import PIECE_BYTES, prefault
from kvstore.tiers.memory import MemoryFile
from kvstore.v1 import kvstore_pb2 as pb

PAGES = 2_000
STRIDE_BYTES = mmap.PAGESIZE


def has_populate() -> bool:
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        mapped.madvise(23)
    except OSError:
        return False
    return True


needs_populate = pytest.mark.skipif(not has_populate(), reason="the kernel is older than 5.14")


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@needs_populate
def test_who_maps_a_pool_meets_no_page_for_the_first_time():
    file = MemoryFile("test", PAGES * STRIDE_BYTES)
    tether, other_end = os.pipe()
    handle = pb.PoolHandle(frame_stride_bytes=STRIDE_BYTES, host=pb.HostMemory(size_bytes=file.size_bytes))
    frames = map_host(handle, [file.fd], tether)
    before = faults()
    frames[:, 0] = 1
    assert faults() - before < PAGES / 20
    assert np.count_nonzero(file.map()) == PAGES
    del frames
    file.close()
    os.close(other_end)


@needs_populate
@pytest.mark.parametrize("size", [mmap.PAGESIZE, PIECE_BYTES, PIECE_BYTES + mmap.PAGESIZE])
def test_all_of_it_in_pieces(size):
    mapped = mmap.mmap(-1, size)
    prefault(mapped)
    before = faults()
    np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE] = 1
    assert faults() - before < max(size // mmap.PAGESIZE / 20, 30)


def test_a_kernel_that_cannot_is_no_error():
    class Old(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError("EINVAL")

    mapped = Old(-1, mmap.PAGESIZE)
    prefault(mapped)
    assert mapped[0] == 0
