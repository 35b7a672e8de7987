"""Block keys are the same everywhere and for ever, and no two prefixes share one."""

import hashlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.client.keys import KEY_BYTES, KeyChain, block_keys

# These stand on people's disks: a change here is a new VERSION in keys.py, never a new number below.
GOLDEN = [
    (
        {},
        [
            "ca6e9e4264966b546956b33ee209cfe04f64364f91a776be7a6437851c80a2eb",
            "3eb1e50b0cbdb51cd15ce5f7fc385e20597b1876c7e687d7d28fb73ada491502",
        ],
    ),
    (
        {"adapter": "lora-7", "inputs": [b"\x01" * 32, b""]},
        [
            "433127fd6c052ab07947613716cb2787cce00f0bc56e531747e163d59ba26765",
            "cbca9e90261936bcdc70f51b6d6492ea1590e05f76227d4d268d14feaf17ab97",
        ],
    ),
]

SCRIPT = """
from kvstore.client.keys import block_keys
keys = block_keys(range(32), 16) + block_keys(range(32), 16, adapter="lora-7", inputs=[bytes([1]) * 32, b""])
print(" ".join(key.hex() for key in keys))
"""


@pytest.mark.parametrize(("others", "wanted"), GOLDEN)
def test_golden_keys(others, wanted):
    assert [key.hex() for key in block_keys(range(32), 16, **others)] == wanted


def test_the_keys_are_what_the_module_says_they_are():
    def field(tag: bytes, value: bytes) -> bytes:
        return tag + len(value).to_bytes(8, "little") + value

    parent = hashlib.sha256(
        field(b"V", b"kvstore block key 1")
        + field(b"A", "ä".encode())
        + field(b"I", b"image")
        + field(b"I", b"two")
    ).digest()
    wanted = []
    for block in ([0, 1, 2], [70000, 2**31 - 1, 5]):
        tokens = b"".join(token.to_bytes(4, "little") for token in block)
        parent = hashlib.sha256(field(b"P", parent) + field(b"T", tokens)).digest()
        wanted.append(parent)
    assert block_keys([0, 1, 2, 70000, 2**31 - 1, 5, 9], 3, adapter="ä", inputs=[b"image", b"two"]) == wanted


def test_case_1_13_keys_are_the_same_in_every_process():
    wanted = " ".join(key for _, keys in GOLDEN for key in keys)
    for seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == wanted


def test_case_1_10_an_adapter_is_not_an_input():
    plain = block_keys(range(16), 16)
    adapter = block_keys(range(16), 16, adapter="X")
    given_input = block_keys(range(16), 16, inputs=[b"X"])
    assert len({*plain, *adapter, *given_input}) == 3


# Few letters, among them the tags and the bytes of lengths: so fields run into each other, if they can.
LETTERS = st.text(alphabet="XAIVPT\0\1\2\x08", max_size=12)
FIELDS = st.tuples(LETTERS, st.lists(LETTERS.map(str.encode), max_size=4))


@given(FIELDS, FIELDS)
def test_case_1_10_other_fields_give_other_keys(one, other):
    keys = [block_keys([1, 2], 2, adapter=adapter, inputs=inputs) for adapter, inputs in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@given(st.lists(LETTERS.map(str.encode), max_size=4))
def test_inputs_joined_or_parted_are_other_inputs(inputs):
    joined = [b"".join(inputs)]
    assert (block_keys([1], 1, inputs=inputs) == block_keys([1], 1, inputs=joined)) == (inputs == joined)


TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=70)


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_keys_agree_exactly_as_far_as_full_blocks_do(one, other, block_tokens):
    keys, others = block_keys(one, block_tokens), block_keys(other, block_tokens)
    assert len(keys) == len(one) // block_tokens
    for index, (key, other_key) in enumerate(zip(keys, others, strict=False)):
        end = (index + 1) * block_tokens
        assert (key == other_key) == (one[:end] == other[:end])


@given(TOKENS, st.lists(st.integers(0, 70), max_size=6), st.integers(1, 9))
def test_a_chain_gives_the_same_however_it_grew(tokens, cuts, block_tokens):
    chain = KeyChain(block_tokens)
    edges = sorted([0, *(min(cut, len(tokens)) for cut in cuts), len(tokens)])
    for index, (start, end) in enumerate(itertools.pairwise(edges)):
        part = tokens[start:end]
        chain.extend(np.array(part, np.int32) if index % 2 else part)
    assert chain.keys == block_keys(tokens, block_tokens)
    assert chain.token_count == len(tokens)
    assert all(len(key) == KEY_BYTES for key in chain.keys)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.dtype(">i4")])
def test_arrays_of_any_integers_give_the_keys_of_the_list(dtype):
    assert block_keys(np.arange(40).astype(dtype), 16) == block_keys(list(range(40)), 16)
    assert block_keys(list(np.arange(40).astype(dtype)), 16) == block_keys(range(40), 16)


@pytest.mark.parametrize("bad", [-1, 2**31, 2**40, 1.5, "a"])
@pytest.mark.parametrize("as_array", [False, True])
def test_what_is_no_token_is_refused_and_nothing_changes(bad, as_array):
    chain = KeyChain(2)
    chain.extend([1, 2, 3])
    keys = list(chain.keys)
    tokens = [4, bad]
    with pytest.raises((ValueError, TypeError), match=r"token|not supported"):
        chain.extend(np.array(tokens) if as_array else tokens)
    assert (chain.keys, chain.token_count) == (keys, 3)
    chain.extend([4])
    assert chain.keys == block_keys([1, 2, 3, 4], 2)


def test_the_message_names_the_token():
    with pytest.raises(ValueError, match=r"tokens\[2\] is -7; a token is an integer from 0 to 2147483647"):
        block_keys([1, 2, -7], 16)
    with pytest.raises(ValueError, match=r"tokens\[1\] is 2147483648"):
        block_keys(np.array([1, 2**31]), 16)
    with pytest.raises(ValueError, match="flat array"):
        block_keys(np.zeros((2, 2), np.int32), 16)
    with pytest.raises(ValueError, match="block_tokens must be at least 1"):
        KeyChain(0)
