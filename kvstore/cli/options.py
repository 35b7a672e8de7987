"""What several commands share: the socket, and the service behind it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kvstore.client.address import default_address, to_address

if TYPE_CHECKING:
    from kvstore.client.operator_calls import OperatorCalls

__all__ = ["DEADLINE_SECONDS", "DEFAULT_SOCKET", "Socket", "operator"]

# For a call that a healthy service answers at once.
DEADLINE_SECONDS = 5.0
DEFAULT_SOCKET = default_address()

Socket = Annotated[str, typer.Option(help="The service's socket: a path, or unix:PATH.")]


@contextmanager
def operator(socket: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> "Iterator[OperatorCalls]":
    """The calls of operators alone: for the whole client a command would wait for numpy."""
    # Imported here: an address that can't be one, and the help, are told without gRPC.
    address = to_address(socket)
    from kvstore.client.calls import Service
    from kvstore.client.operator_calls import OperatorCalls

    service = Service(address, deadline_seconds)
    try:
        yield OperatorCalls(service)
    finally:
        service.close()
