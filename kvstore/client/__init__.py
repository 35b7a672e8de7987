"""The library that an inference engine imports. See client.py.

A name loads the module that it stands in when it is first asked for, so an operator's command, which needs
calls and no pools, does not wait for numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore.client import operations
    from kvstore.client.address import default_address
    from kvstore.client.attaching import Layout
    from kvstore.client.attachment import PendingStep
    from kvstore.client.client import Client
    from kvstore.client.cuda_mapping import DeviceFrames
    from kvstore.client.errors import ClientError, ForkedChild, Refused, ServiceLost, SharedTail, Unanswered
    from kvstore.client.keys import KEY_BYTES, KeyChain, block_keys
    from kvstore.client.mapping import MappedPool, map_shared_rank
    from kvstore.client.operator_calls import OperatorCalls
    from kvstore.client.tables import BlockTables

__all__ = [
    "KEY_BYTES",
    "BlockTables",
    "Client",
    "ClientError",
    "DeviceFrames",
    "ForkedChild",
    "KeyChain",
    "Layout",
    "MappedPool",
    "OperatorCalls",
    "PendingStep",
    "Refused",
    "ServiceLost",
    "SharedTail",
    "Unanswered",
    "block_keys",
    "default_address",
    "map_shared_rank",
    "operations",
]

MODULES = {
    "KEY_BYTES": "keys",
    "BlockTables": "tables",
    "Client": "client",
    "ClientError": "errors",
    "DeviceFrames": "cuda_mapping",
    "ForkedChild": "errors",
    "KeyChain": "keys",
    "Layout": "attaching",
    "MappedPool": "mapping",
    "OperatorCalls": "operator_calls",
    "PendingStep": "attachment",
    "Refused": "errors",
    "ServiceLost": "errors",
    "SharedTail": "errors",
    "Unanswered": "errors",
    "block_keys": "keys",
    "default_address": "address",
    "map_shared_rank": "mapping",
}


def __getattr__(name: str) -> object:
    if name == "operations":
        return import_module(f"{__name__}.operations")
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    # From now on it stands here.
    globals()[name] = value
    return value
