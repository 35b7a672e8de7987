"""The disk tier as it is, through the page cache, and on devices that fail, each by the same suite."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.tiers.files import DirectFiles, Files
from tests.tiers.conformance import BlockTierSuite, BrokenDeviceSuite
from tests.tiers.faults import NO_FAULTS, FaultyFiles, Rates
from tests.tiers.sized import Sizes


class TestDirect(BrokenDeviceSuite):
    def files(self) -> Files:
        return DirectFiles()


class TestThroughABuffer(BlockTierSuite):
    """Frames that are not those of a pool."""

    def files(self) -> Files:
        return DirectFiles()

    @pytest.fixture
    def sizes(self) -> Sizes:
        return Sizes(10_001, 2, padded=False)


class Buffered(DirectFiles):
    """Where O_DIRECT is refused when a file is used, as some file systems do."""

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)


class TestBuffered(BrokenDeviceSuite):
    def files(self) -> Files:
        return Buffered()


class TestFaulty(BlockTierSuite):
    """Errors, short reads and torn writes in every hundredth call or more."""

    fails = True
    rates = Rates(
        delay=50,
        read_error=60,
        short_read=60,
        write_error=60,
        torn_write=60,
        sync_error=60,
        create_error=100,
        remove_error=100,
    )

    @pytest.fixture(autouse=True)
    def _device(self, seed: int, request: pytest.FixtureRequest) -> Iterator[None]:
        self._seed = seed
        self._all: list[FaultyFiles] = []
        self._rates = self.rates
        yield
        if "long_life" in request.node.name:
            met = sum((files.met for files in self._all), Counter())
            assert len(met) >= 3, f"a device without faults: {met}"

    def files(self) -> Files:
        self._all.append(FaultyFiles(DirectFiles(), 1000 * self._seed + len(self._all), self._rates))
        return self._all[-1]

    def heal(self) -> None:
        self._rates = NO_FAULTS
        for files in self._all:
            files.rates = NO_FAULTS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--fault-seeds")))
