"""The allocator of the engine's own memory, beside one that is too plain to be wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.frames import FrameTables

FRAMES = 12
sequences = st.integers(1, 4)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), sequences, st.integers(0, FRAMES + 2)),
        st.tuples(st.just("free"), sequences, st.just(0)),
        st.tuples(st.just("hand_over"), sequences, sequences),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(operations)
def test_it_does_what_a_dict_of_counts_does_and_no_frame_has_two_holders(asked):
    frames, counts = FrameTables(FRAMES), dict[int, int]()
    for kind, sequence, other in asked:
        before = {each: list(frames.table(each)) for each in range(1, 5)}
        if kind == "grow":
            lacking = max(other - counts.get(sequence, 0), 0)
            fits = sum(counts.values()) + lacking <= FRAMES
            assert frames.grow(sequence, other) == fits
            counts[sequence] = counts.get(sequence, 0) + (lacking if fits else 0)
            # What it had it has still, in order.
            assert list(frames.table(sequence))[: len(before[sequence])] == before[sequence]
        elif kind == "free":
            frames.free(sequence)
            counts.pop(sequence, None)
            assert sequence not in frames
        elif counts.get(other):
            with pytest.raises(ValueError, match="frames of its own"):
                frames.hand_over(sequence, other)
        else:
            frames.hand_over(sequence, other)
            counts[other] = counts.pop(sequence, 0)
            assert list(frames.table(other)) == before[sequence]
        assert {each: len(frames.table(each)) for each in counts} == counts
        held = [frame for each in counts for frame in frames.table(each)]
        assert len(set(held)) == len(held)
        assert set(held) <= set(range(FRAMES))
        assert frames.free_count == FRAMES - len(held)
