"""What tests of the service say of it: how it is made, and the refusal that a call must end in."""

from collections.abc import Callable

import grpc
import pytest

from tests.server.harness import Service, refusal

__all__ = ["MakeService", "refused"]

MakeService = Callable[..., Service]


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, str]:
    """Code, reason and field of the refusal that a call must end in."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    info = refusal(error.value)
    return error.value.code(), info.reason, info.metadata.get("field", "")
