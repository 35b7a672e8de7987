"""The other process of `gpu_sharing`: makes memory on a GPU, gives it away, and copies when it is told to.

    python -m bench.gpu_exporter SOCKET UUID SIZE

On the socket: first the memory's descriptor, with its size. Then one letter after the other: `d` copies to
the host and `u` from it, over and over, until the next letter; each is answered by a line with the bytes
copied and the seconds that it took.
"""

import select
import socket
import sys
import time
from collections import deque

import numpy as np

from kvstore.cuda.bindings import load_driver
from kvstore.cuda.driver import Device
from kvstore.cuda.memory import DeviceMemory
from kvstore.tiers.memory import MemoryFile

__all__ = ["PATTERN_BYTES", "pattern"]

PATTERN_BYTES = 1 << 16
COPIES_UNDER_WAY = 4


def pattern(size: int) -> np.ndarray:
    """uint8[size // PATTERN_BYTES, PATTERN_BYTES]: what the memory holds."""
    return np.random.default_rng(7).integers(0, 256, (size // PATTERN_BYTES, PATTERN_BYTES), np.uint8)


def main() -> None:
    path, uuid, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    device = load_driver().open(uuid)
    host = MemoryFile("gpu-check", size)
    memory_of_host = host.map()
    memory_of_host[:] = pattern(size).reshape(-1)
    with device.current(), socket.socket(socket.AF_UNIX) as connection:
        memory = DeviceMemory.make(device, size)
        if memory.fd is None:
            raise SystemExit("this device exports no descriptors")
        address = memory_of_host.ctypes.data
        device.pin(address, size)
        device.copy(memory.address, address, size, device.make_stream())
        device.synchronize()
        connection.connect(path)
        socket.send_fds(connection, [str(memory.size_bytes).encode()], [memory.fd])
        sides = {b"d": (address, memory.address), b"u": (memory.address, address)}
        while (letter := connection.recv(1)) in sides:
            copied, seconds = _copy_until_told(device, *sides[letter], size, connection)
            connection.sendall(f"{copied} {seconds}\n".encode())


def _copy_until_told(
    device: Device, target: int, source: int, size: int, connection: socket.socket
) -> tuple[int, float]:
    """Some copies under way at each time, so that the stream never runs dry."""
    stream, under_way, count = device.make_stream(), deque[int](), 0
    began = time.perf_counter()
    is_told = False
    while not is_told or under_way:
        is_told = is_told or bool(select.select([connection], [], [], 0)[0])
        if not is_told and len(under_way) < COPIES_UNDER_WAY:
            device.copy(target, source, size, stream)
            event = device.make_event()
            device.record(event, stream)
            under_way.append(event)
        elif device.is_done(under_way[0]):
            device.destroy_event(under_way.popleft())
            count += 1
        else:
            time.sleep(20e-6)
    seconds = time.perf_counter() - began
    connection.recv(1)
    device.destroy_stream(stream)
    return count * size, seconds


if __name__ == "__main__":
    main()
