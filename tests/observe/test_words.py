"""Events in words: what is one is told as one, and what is many as many."""

import pytest

from kvstore.core.events import FramesReturned, TransferEnded
from kvstore.core.operations import Operation
from kvstore.core.types import TransferId
from kvstore.observe.words import event_words, operation_words
from tests.core.ops import free, swap_out


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (free(1), "Free sequence 1 (DEFAULT)"),
        (free(1, 2), "Free sequences 1 2 (DEFAULT)"),
        (swap_out(1, 1), "Swap OUT sequence 1 (KEEP), 1 token filled"),
        (swap_out(1, 2), "Swap OUT sequence 1 (KEEP), 2 tokens filled"),
    ],
)
def test_operations(operation: Operation, words: str) -> None:
    assert operation_words(operation) == words


@pytest.mark.parametrize(("places", "words"), [((3,), "place 3"), ((3, 4), "places 3 4")])
def test_places_of_a_transfer(places: tuple[int, ...], words: str) -> None:
    transfer = TransferId(7)
    ended = TransferEnded(time=0.0, transfer=transfer, failed=places, late=places)
    assert event_words(ended) == f"transfer 7 ended, failed for {words}, late for {words}"
    back = FramesReturned(time=0.0, transfer=transfer, positions=places)
    assert event_words(back) == f"late frames of transfer 7 come back: {words}"
