"""What can go wrong for an engine.

ClientError
├── Refused          the service refused the call, and nothing has changed
├── ServiceLost      the service, or this engine's place in it, is gone: attach again
│   └── Unanswered   no answer in time, so whether the call was carried out is unknown
├── ForkedChild      the client was used in a forked child
└── SharedTail       a slot was asked for that another sequence still shares

Want of memory is none of these: it is the `outcome` of an operation.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Whoever prints an error need not load gRPC for it: `statuses.py` does, and makes them.
    import grpc

__all__ = ["ClientError", "ForkedChild", "Refused", "ServiceLost", "SharedTail", "Unanswered"]


class ClientError(Exception):
    """Also raised itself, where the client was used in a way that cannot work."""


class Refused(ClientError):
    """`reason` is one of the contract's fixed words (or the gRPC code where the service gave none).

    The message is for people and says it all; `field`, `value` and `remedy` are for programs.
    """

    def __init__(self, code: "grpc.StatusCode", message: str, reason: str, metadata: dict[str, str]) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.field = metadata.get("field", "")
        self.value = metadata.get("value", "")
        self.remedy = metadata.get("remedy", "")
        super().__init__(f"{reason}: {message}")


class ServiceLost(ClientError):
    """The client has let go of all pools; their memory goes with the engine's last view of it. After the
    next attach everything is new: engine, epoch, pools, steps.

    Sequences are gone; what was committed may still be cached, so allocate it again by its keys.
    """


class Unanswered(ServiceLost):
    pass


class ForkedChild(ClientError):
    pass


class SharedTail(ClientError):
    pass
