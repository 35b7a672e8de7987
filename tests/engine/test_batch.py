"""Batches: where each token goes, and those without room are refused."""

import numpy as np
import pytest

from engine.batch import Batch


def test_batches_without_room_are_refused():
    with pytest.raises(ValueError, match=r"positions 10\.\.16, but frames for 16 tokens"):
        Batch.prefill(range(7), cached=10, block_table=[3], block_tokens=16)
    with pytest.raises(ValueError, match=r"but frames for 16 tokens"):
        Batch.decode([1, 2], context_lens=[3, 17], block_tables=[[0], [1]], block_tokens=16)
    with pytest.raises(ValueError, match=r"2 tokens with 1 positions"):
        Batch.decode([1, 2], context_lens=[3], block_tables=[[0], [1]], block_tokens=16)
    with pytest.raises(ValueError, match="a batch of 0 tokens"):
        Batch.prefill([], cached=0, block_table=[0], block_tokens=16)


def test_batches_say_where_each_token_goes():
    chunk = Batch.prefill(range(5), cached=14, block_table=[7, 3], block_tokens=16)
    assert chunk.slot_mapping.tolist() == [7 * 16 + 14, 7 * 16 + 15, 3 * 16, 3 * 16 + 1, 3 * 16 + 2]
    assert chunk.context_lens.tolist() == [19]
    assert not chunk.is_decode

    tables = np.array([[5, 0], [2, 9]], np.int32)
    step = Batch.decode([1, 2], context_lens=[16, 17], block_tables=tables, block_tokens=16)
    assert step.positions.tolist() == [15, 16]
    assert step.slot_mapping.tolist() == [5 * 16 + 15, 9 * 16]
    assert step.is_decode
    assert step.block_tables.data_ptr() == tables.ctypes.data


def test_single_tokens_stand_before_the_chunk_that_they_are_mixed_with():
    tables = np.array([[5, 0], [2, 9], [7, 3]], np.int32)
    batch = Batch.mixed(
        [1, 2], range(5), context_lens=[16, 17], cached=14, block_tables=tables, block_tokens=16
    )
    assert batch.token_ids.tolist() == [1, 2, 0, 1, 2, 3, 4]
    assert batch.positions.tolist() == [15, 16, 14, 15, 16, 17, 18]
    assert batch.slot_mapping[:3].tolist() == [5 * 16 + 15, 9 * 16, 7 * 16 + 14]
    assert batch.query_starts.tolist() == [0, 1, 2, 7]
    assert batch.context_lens.tolist() == [16, 17, 19]
    assert (batch.query_len_max, batch.decode_count, batch.is_decode) == (5, 2, False)
