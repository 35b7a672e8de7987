"""Block keys: the names under which the KV of a token prefix is shared.

A key is a SHA-256 over everything that the KV of its block depends on besides the model (which is the
namespace, and the service's to add): an adapter, digests of other inputs such as images, and all tokens to
the end of the block.

    field(tag, value) = tag (1 byte) | length of value (8 bytes, little-endian) | value
    root   = SHA-256( field "V" format version | field "A" adapter | field "I" input, for each input )
    key[i] = SHA-256( field "P" key[i-1], or root | field "T" tokens of block i as little-endian int32 )

Tags and lengths keep the fields apart: an adapter "X" and an input b"X" give different keys. Nothing here
depends on the process, the machine or the version of Python. Keys stand on disk, so what changes them must
change VERSION.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

__all__ = ["KEY_BYTES", "KeyChain", "Tokens", "block_keys"]

KEY_BYTES = 32
VERSION = b"kvstore block key 1"
TOKEN_BYTES = 4
TOKEN_END = 2**31

Tokens = Sequence[int] | npt.NDArray[np.integer[Any]]


class KeyChain:
    """The keys of one token stream, grown as its tokens come."""

    def __init__(self, block_tokens: int, *, adapter: str = "", inputs: Sequence[bytes] = ()) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens must be at least 1, not {block_tokens}")
        self.keys: list[bytes] = []  # One per full block so far.
        self.token_count = 0
        self._parent = _root_key(adapter, inputs)
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._rest = b""  # Tokens behind the last full block.

    def extend(self, tokens: Tokens) -> None:
        new = _token_bytes(tokens)  # Refuses before anything has changed.
        self.token_count += len(new) // TOKEN_BYTES
        data = self._rest + new
        end = len(data) - len(data) % self._block_bytes
        self._rest = data[end:]
        # The inner loop of every prompt: one hash a block, all else made beforehand.
        sha256, append, size, parent = hashlib.sha256, self.keys.append, self._block_bytes, self._parent
        before, between = _field_head(b"P", KEY_BYTES), _field_head(b"T", size)
        for start in range(0, end, size):
            parent = sha256(before + parent + between + data[start : start + size]).digest()
            append(parent)
        self._parent = parent


def block_keys(
    tokens: Tokens, block_tokens: int, *, adapter: str = "", inputs: Sequence[bytes] = ()
) -> list[bytes]:
    """The keys of all full blocks of `tokens`."""
    chain = KeyChain(block_tokens, adapter=adapter, inputs=inputs)
    chain.extend(tokens)
    return chain.keys


def _root_key(adapter: str, inputs: Sequence[bytes]) -> bytes:
    fields = [(b"V", VERSION), (b"A", adapter.encode()), *((b"I", value) for value in inputs)]
    return hashlib.sha256(b"".join(_field_head(tag, len(value)) + value for tag, value in fields)).digest()


def _field_head(tag: bytes, length: int) -> bytes:
    return tag + length.to_bytes(8, "little")


def _token_bytes(tokens: Tokens) -> bytes:
    """As little-endian int32. A list, often of one token, is quicker without numpy."""
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens must be a flat array of integers, not {tokens.dtype}{tokens.shape}")
        if tokens.size and (tokens.min() < 0 or tokens.max() >= TOKEN_END):
            raise _out_of_range([int(token) for token in tokens])
        return tokens.astype("<i4").tobytes()
    try:
        packed = struct.pack(f"<{len(tokens)}I", *tokens)
    except struct.error:
        raise _out_of_range(tokens) from None
    # Below TOKEN_END the highest bit of the highest byte is 0: one look for all, and no call a token.
    if not packed[TOKEN_BYTES - 1 :: TOKEN_BYTES].isascii():
        raise _out_of_range(tokens)
    return packed


def _out_of_range(tokens: Sequence[int]) -> ValueError:
    index = next(index for index, token in enumerate(tokens) if not _is_token(token))
    return ValueError(
        f"tokens[{index}] is {tokens[index]!r}; a token is an integer from 0 to {TOKEN_END - 1}"
    )


def _is_token(value: object) -> bool:
    return isinstance(value, SupportsIndex) and 0 <= value.__index__() < TOKEN_END
