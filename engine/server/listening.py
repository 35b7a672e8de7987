"""The address that is listened on: bound before anything is loaded, so one that is taken is told at once.

Nobody can connect before `listen`: who asks earlier is refused, and does not wait for a model to be loaded.
"""

import errno
import socket

from engine.server.flags import reason

__all__ = ["CannotListen", "bind", "listen"]

BACKLOG = 128
REMEDIES = {
    errno.EADDRNOTAVAIL: "an address that this machine has, like 127.0.0.1",
    errno.EACCES: "a port above 1023, or 0 for any that is free",
}
REMEDY = "choose another port, or 0 for any that is free"


class CannotListen(Exception):
    """The address is taken, or is none of this machine."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        remedy = REMEDIES.get(error.errno or 0, REMEDY)
        super().__init__(f"--host {host} --port {port}: {reason(error)}; remedy: {remedy}")


def bind(host: str, port: int) -> socket.socket:
    """Not listening yet. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As a server that was stopped a moment ago leaves it.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise CannotListen(host, port, error) from error
    return bound


def listen(bound: socket.socket, host: str, port: int) -> None:
    """Raises CannotListen, and closes it: somebody else may have begun meanwhile."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise CannotListen(host, port, error) from error
