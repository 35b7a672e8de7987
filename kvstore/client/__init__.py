"""The library that an inference engine imports. See client.py."""

from kvstore.client import operations
from kvstore.client.address import default_address
from kvstore.client.attaching import Layout
from kvstore.client.attachment import PendingStep
from kvstore.client.client import Client
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
