"""A pool in host memory, in this process's address space."""

import mmap
import os
import stat
import weakref

import numpy as np
import numpy.typing as npt

from kvstore.client.errors import ClientError
from kvstore.prefault import prefault
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["HostFrames", "map_host"]

HostFrames = npt.NDArray[np.uint8]


def map_host(handle: pb.PoolHandle, descriptors: list[int], tether: int) -> HostFrames:
    """[frame_count, frame_stride_bytes]. The tether ends after the last array made from it.

    The size is checked against the file itself: reading beyond its end is a SIGBUS, no exception.
    """
    if len(descriptors) != 1:
        raise ClientError(f"rank {handle.rank} came with {len(descriptors)} descriptors, not with one")
    found, size = os.fstat(descriptors[0]), handle.host.size_bytes
    if not stat.S_ISREG(found.st_mode) or found.st_size != size:
        raise ClientError(f"the pool of rank {handle.rank} has {found.st_size} bytes instead of {size}")
    memory = mmap.mmap(descriptors[0], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    prefault(memory)
    # The arrays hold the mapping and the finalizer holds the tether; nothing else holds either. Not at
    # exit: there the kernel unmaps first and ends connections last, as it should be.
    weakref.finalize(memory, os.close, tether).atexit = False
    return np.frombuffer(memory, dtype=np.uint8).reshape(-1, handle.frame_stride_bytes)
