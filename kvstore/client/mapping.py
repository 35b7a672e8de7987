"""The pools of a service in this process's memory.

A pool comes as a file descriptor over a Unix socket, of a memory file or of pages on a GPU. That connection
stays open for as long as the memory is mapped: it is the tether, and the service holds back an engine's
frames until the last tether has ended. So a tether must never end before its mapping. Here the kernel's
order sees to that where the process dies, and a finalizer on the mapping itself where it lives: `close`
gives up the client's own reference, and memory and tether go when the last array or tensor that the engine
made from the pool has gone. Nothing is ever unmapped under one that is still in use.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from google.protobuf.message import DecodeError

from kvstore.client.cuda_mapping import DeviceFrames, close_device, device_uuid, map_cuda, open_device
from kvstore.client.errors import ClientError, ServiceLost
from kvstore.client.host_mapping import HostFrames, map_host
from kvstore.client.tethers import fetch
from kvstore.cuda.driver import Driver
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["MappedPool", "map_pools", "map_shared_rank", "share_rank"]

PAGE_BYTES = 4096


class MappedPool:
    """One rank's frames. `close` is the client's to call; the engine drops its arrays, views and tensors."""

    def __init__(self, handle: pb.PoolHandle, frames: HostFrames | DeviceFrames, tether: int) -> None:
        self.rank = handle.rank
        self.block_bytes = handle.block_bytes
        self.frame_count = handle.frame_count
        # Of the GPU that the frames are on; empty: they are in host memory.
        self.device_uuid = device_uuid(handle)
        self.tether = tether  # To be watched only; good until `close`.
        self._frames: HostFrames | DeviceFrames | None = frames

    @property
    def frames(self) -> HostFrames:
        """[frame_count, frame_stride_bytes], writable and shared; a frame begins with its block.

        Of a pool in host memory; those on a GPU are `device_frames`.
        """
        frames = self._mapped()
        if isinstance(frames, DeviceFrames):
            raise ClientError(f"the pool of rank {self.rank} is on {self.device_uuid}: use device_frames")
        return frames

    @property
    def device_frames(self) -> DeviceFrames:
        """Of a pool on a GPU, for `torch.as_tensor`."""
        frames = self._mapped()
        if not isinstance(frames, DeviceFrames):
            raise ClientError(f"the pool of rank {self.rank} is in host memory: use frames")
        return frames

    def close(self) -> None:
        self._frames = None

    def _mapped(self) -> HostFrames | DeviceFrames:
        if self._frames is None:
            raise ServiceLost(f"the pool of rank {self.rank} is no longer mapped: attach again")
        return self._frames


def map_pools(
    response: pb.AttachResponse,
    ranks: Sequence[int],
    block_bytes: int,
    *,
    seconds: float,
    cuda: Driver | None = None,
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
            pools.append(_map_pool(handles[rank], response.fd_socket_path, secret, seconds, cuda))
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


def map_shared_rank(shared: bytes, *, seconds: float = 2.0, cuda: Driver | None = None) -> MappedPool:
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
    return _map_pool(handle, response.fd_socket_path, secret, seconds, cuda)


def _map_pool(
    handle: pb.PoolHandle, socket_path: str, secret: bytes, seconds: float, cuda: Driver | None
) -> MappedPool:
    if not device_uuid(handle):
        connection, descriptors = _fetch(handle, socket_path, secret, seconds)
        with connection, _closing(descriptors):
            frames = map_host(handle, descriptors, connection.fileno())
            return MappedPool(handle, frames, connection.detach())
    device = open_device(handle, cuda)
    try:
        connection, descriptors = _fetch(handle, socket_path, secret, seconds)
        with connection, _closing(descriptors):
            device_frames = map_cuda(handle, device, descriptors, connection.fileno())
            return MappedPool(handle, device_frames, connection.detach())
    except BaseException:
        close_device(device)
        raise


def _fetch(
    handle: pb.PoolHandle, socket_path: str, secret: bytes, seconds: float
) -> tuple[socket.socket, list[int]]:
    try:
        return fetch(socket_path, secret, time.monotonic() + seconds)
    except OSError as error:
        raise ServiceLost(f"no pool of rank {handle.rank} from {socket_path}: {error}") from error


@contextmanager
def _closing(descriptors: list[int]) -> Iterator[None]:
    """A mapping holds the memory by itself."""
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _check_handle(handle: pb.PoolHandle, block_bytes: int) -> None:
    """Sizes that contradict each other would map frames over each other or beyond the end."""
    kind = handle.WhichOneof("memory")
    stride, wrong = handle.frame_stride_bytes, ""
    size = getattr(handle, kind).size_bytes if kind else 0
    if not kind:
        wrong = "its memory is of a kind that this client cannot map"
    elif kind != "host" and not device_uuid(handle):
        wrong = "it is on a device without a name"
    elif handle.block_bytes != block_bytes:
        wrong = f"its blocks have {handle.block_bytes} bytes, and {block_bytes} were asked for"
    elif not handle.frame_count:
        wrong = "it has no frames"
    elif stride < block_bytes or stride % PAGE_BYTES:
        wrong = f"frames of {block_bytes} bytes cannot stand {stride} bytes apart"
    elif handle.frame_count * stride > size or (kind == "host" and handle.frame_count * stride != size):
        wrong = f"{handle.frame_count} frames of {stride} bytes are not {size} bytes"
    if wrong:
        raise ClientError(f"the pool of rank {handle.rank} cannot be mapped: {wrong}")
