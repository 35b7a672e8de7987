"""Folders and tiers that several files of tests begin with."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.core.types import NamespaceId, StoredSession, TenantId
from tests.tiers.clocks import Clock
from tests.tiers.helpers import (
    chain,
    key_of,
    open_tier,
    write,
)
from tests.tiers.verified import COUNT, SMALL


@pytest.fixture
def disk(tmp_path: Path):
    tier = open_tier(tmp_path)
    yield tier
    tier.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """Five segments, chains of ten, uses and a session."""
    folder = tmp_path_factory.mktemp("made")
    with closing(open_tier(folder, SMALL)) as tier:
        tier.names.writer_id("engine", "build")
        for first in range(0, COUNT, 10):
            write(tier, chain(10, first))
        tier.note_uses(chain(10, 20))
        tier.keep_sessions(
            [
                StoredSession(
                    namespace=NamespaceId(1),
                    tenant=TenantId(1),
                    name="chat",
                    turn=3,
                    keys=tuple(key_of(n) for n in range(10)),
                )
            ]
        )
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "folder"))
