"""A tether: the connection that a pool's descriptor comes by, and that stays open while it is mapped."""

import os
import socket
import time

__all__ = ["fetch"]

GOOD = b"\0"
RETRY_SECONDS = 0.02  # A full backlog or a closed connection: long enough for the service to catch up.
DESCRIPTORS_MAX = 8  # Room to notice more than the one that is due.


def fetch(socket_path: str, secret: bytes, end: float) -> tuple[socket.socket, list[int]]:
    """Until `end`, of the monotonic clock; OSError: not to be had.

    The service closes a connection to make room for others, and then the secret is still good. If it was
    spent all the same, the next try is told so, and that is no error to try again after.
    """
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
