"""The pools of a service in this process's memory.

A pool comes as a file descriptor over a Unix socket. That connection stays open for as long as the memory is
mapped: it is the tether, and the service holds back an engine's frames until the last tether has ended. So a
tether must never end before its mapping. Here the kernel's order sees to that where the process dies, and a
finalizer on the mapping itself where it lives: `close` gives up the client's own reference, and memory and
tether go when the last array that the engine made from the pool has gone. Nothing is ever unmapped under an
array that is still in use.
"""

import mmap
import os
import socket
import stat
import time
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from kvstore.client.errors import ClientError, ServiceLost
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["MappedPool", "map_pools", "map_shared_rank", "share_rank"]

GOOD = b"\0"
PAGE_BYTES = 4096
RETRY_SECONDS = 0.02  # A full backlog or a closed connection: long enough for the service to catch up.
DESCRIPTORS_MAX = 8  # Room to notice more than the one that is due.


class MappedPool:
    """One rank's frames. `close` is the client's to call; the engine drops its arrays, views and tensors."""

    def __init__(self, handle: pb.PoolHandle, memory: mmap.mmap, tether: int) -> None:
        self.rank = handle.rank
        self.block_bytes = handle.block_bytes
        self.frame_count = handle.frame_count
        self.tether = tether  # To be watched only; good until `close`.
        # The arrays hold the mapping and the finalizer holds the tether; nothing else holds either. Not at
        # exit: there the kernel unmaps first and ends connections last, as it should be.
        weakref.finalize(memory, os.close, tether).atexit = False
        flat = np.frombuffer(memory, dtype=np.uint8)
        self._frames: npt.NDArray[np.uint8] | None = flat.reshape(-1, handle.frame_stride_bytes)

    @property
    def frames(self) -> npt.NDArray[np.uint8]:
        """[frame_count, frame_stride_bytes], writable and shared; a frame begins with its block."""
        frames = self._frames
        if frames is None:
            raise ServiceLost(f"the pool of rank {self.rank} is no longer mapped: attach again")
        return frames

    def close(self) -> None:
        self._frames = None


def map_pools(
    response: pb.AttachResponse, ranks: Sequence[int], block_bytes: int, *, seconds: float
) -> list[MappedPool]:
    """Fetches and maps the pools of these ranks, all or none; `seconds` bounds the exchange for each."""
    handles = {handle.rank: handle for handle in response.pools}
    if not handles or len(handles) != len(response.pools) or len(handles) != len(response.fd_secrets):
        raise ClientError(
            "there must be one pool and one secret a rank: this client is older than its service"
        )
    pools: list[MappedPool] = []
    try:
        for rank in ranks:
            if rank not in handles:
                raise ClientError(f"there is no rank {rank}; the ranks are {sorted(handles)}")
            _check_handle(handles[rank], block_bytes)
            secret = response.fd_secrets[rank]
            pools.append(_map_pool(handles[rank], response.fd_socket_path, secret, seconds))
    except BaseException:
        for pool in pools:
            pool.close()
        raise
    return pools


def share_rank(response: pb.AttachResponse, rank: int) -> bytes:
    """What another process of this engine needs to map this rank, once: where, how large, and the secret."""
    [handle] = [handle for handle in response.pools if handle.rank == rank]
    secret, path = response.fd_secrets[rank], response.fd_socket_path
    return pb.AttachResponse(pools=[handle], fd_secrets=[secret], fd_socket_path=path).SerializeToString()


def map_shared_rank(shared: bytes, *, seconds: float = 2.0) -> MappedPool:
    """In a worker process: the pool of the rank that `Client.share_rank` gave away. Raises ServiceLost where
    there is none to be had, in `seconds` or at all, and ClientError where these are other bytes.

    From here on this process is one of the engine's: what the engine holds is not given to anybody else
    until it has ended too. Its tether ends when the service does; then `close`, and drop the arrays.
    """
    try:
        response = pb.AttachResponse.FromString(shared)
        [handle], [secret] = response.pools, response.fd_secrets
    except (DecodeError, TypeError, ValueError) as error:
        raise ClientError(f"not what Client.share_rank gave: {error}") from error
    _check_handle(handle, handle.block_bytes)
    return _map_pool(handle, response.fd_socket_path, secret, seconds)


def _map_pool(handle: pb.PoolHandle, socket_path: str, secret: bytes, seconds: float) -> MappedPool:
    try:
        connection, descriptors = _fetch(socket_path, secret, time.monotonic() + seconds)
    except OSError as error:
        raise ServiceLost(f"no pool of rank {handle.rank} from {socket_path}: {error}") from error
    with connection:
        try:
            memory = _map(handle, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return MappedPool(handle, memory, connection.detach())


def _fetch(socket_path: str, secret: bytes, end: float) -> tuple[socket.socket, list[int]]:
    """The service closes a connection to make room for others, and then the secret is still good. If it was
    spent all the same, the next try is told so, and that is no error to try again after."""
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(end - time.monotonic(), RETRY_SECONDS))
            connection.connect(socket_path)
            return connection, _receive_descriptors(connection, secret)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            connection.close()
            if time.monotonic() + RETRY_SECONDS >= end:
                raise
        except BaseException:
            connection.close()
            raise
        time.sleep(RETRY_SECONDS)


def _receive_descriptors(connection: socket.socket, secret: bytes) -> list[int]:
    connection.sendall(secret)
    # Close-on-exec: a program that the engine starts must not hold the pool.
    flags = socket.MSG_CMSG_CLOEXEC
    answer, descriptors, _, _ = socket.recv_fds(connection, len(GOOD), DESCRIPTORS_MAX, flags)
    if answer == GOOD:
        return descriptors
    for descriptor in descriptors:
        os.close(descriptor)
    if not answer:
        raise ConnectionResetError("the service closed the connection without an answer")
    raise ConnectionError(f"the secret was answered with {answer!r}: spent already, or the service is ending")


def _check_handle(handle: pb.PoolHandle, block_bytes: int) -> None:
    """Sizes that contradict each other would map frames over each other or beyond the end."""
    stride, size = handle.frame_stride_bytes, handle.host.size_bytes
    wrong = ""
    if handle.WhichOneof("memory") != "host":
        wrong = "its memory is of a kind that this client cannot map"
    elif handle.block_bytes != block_bytes:
        wrong = f"its blocks have {handle.block_bytes} bytes, and {block_bytes} were asked for"
    elif not handle.frame_count:
        wrong = "it has no frames"
    elif stride < block_bytes or stride % PAGE_BYTES:
        wrong = f"frames of {block_bytes} bytes cannot stand {stride} bytes apart"
    elif handle.frame_count * stride != size:
        wrong = f"{handle.frame_count} frames of {stride} bytes are not {size} bytes"
    if wrong:
        raise ClientError(f"the pool of rank {handle.rank} cannot be mapped: {wrong}")


def _map(handle: pb.PoolHandle, descriptors: list[int]) -> mmap.mmap:
    """The size is checked against the file itself: reading beyond its end is a SIGBUS, no exception."""
    if len(descriptors) != 1:
        raise ClientError(f"rank {handle.rank} came with {len(descriptors)} descriptors, not with one")
    found, size = os.fstat(descriptors[0]), handle.host.size_bytes
    if not stat.S_ISREG(found.st_mode) or found.st_size != size:
        raise ClientError(f"the pool of rank {handle.rank} has {found.st_size} bytes instead of {size}")
    return mmap.mmap(descriptors[0], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
