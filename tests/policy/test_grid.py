"""A part of the grid of `bench.swap_grid`: the store's choice against what both ways take in virtual time."""

import pytest

from bench.swap_grid import Cell, measure, summarise

GB = 1e9


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return [
        measure(tokens, speed, load)
        for tokens, speed, load in (
            (64, 10 * GB, 0.0),
            (256, 5 * GB, 0.0),
            (256, 5 * GB, 0.3),
            (512, 2 * GB, 0.3),
            (1_024, 20 * GB, 0.3),
            (2_048, 1 * GB, 0.6),
            (8_192, 5 * GB, 0.0),
            (16_384, 5 * GB, 0.0),
        )
    ]


def test_the_cheaper_way_is_chosen_and_a_dearer_one_is_hardly_dearer(cells: list[Cell]) -> None:
    found = summarise(cells)
    assert found["cheaper_chosen_share"] >= 0.95
    assert found["dearer_most"] <= 1.1


def test_neither_way_is_always_the_cheaper(cells: list[Cell]) -> None:
    """Or the test above would hold for a store that always does the same."""
    cheaper = {cell.swap_seconds < cell.drop_seconds for cell in cells}
    assert cheaper == {False, True}
    assert {cell.chosen for cell in cells} == {"swap", "drop"}
