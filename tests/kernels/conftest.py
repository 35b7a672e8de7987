"""Where kernels are interpreted, and which of the shapes in a module's GRID are tried."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.kernels.interpreting import Interpreter

Case = Mapping[str, Any]


# From the first test of this folder on, so that it counts as there before any module.
@pytest.fixture(scope="session", autouse=True)
def interpreted() -> Iterator[Interpreter]:
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`case`: one of the module's GRID. All of them with `--kernel-grid`, else a spread."""
    if "case" in metafunc.fixturenames:
        grid = metafunc.module.GRID
        cases = grid if metafunc.config.getoption("--kernel-grid") else spread(grid)
        metafunc.parametrize("case", cases, ids=lambda case: "-".join(map(str, case.values())))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What tries all shapes by itself is for `--kernel-grid` alone."""
    if not config.getoption("--kernel-grid"):
        left_out = [item for item in items if item.get_closest_marker("grid")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def spread(grid: Sequence[Case]) -> list[Case]:
    """Cases in which all values of the first two axes meet, and each of the others is seen twice."""
    times: Counter[Any] = Counter()
    chosen = []
    for case in random.Random(1).sample(grid, len(grid)):
        (first, second, *others) = case.items()
        if not times[first, second] or any(times[other] < 2 for other in others):
            times.update([(first, second), *others])
            chosen.append(case)
    return chosen
