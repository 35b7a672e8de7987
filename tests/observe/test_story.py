"""Stories as a reader gets them: the whole text, reviewed as such."""

from pathlib import Path

import pytest

from kvstore.core.errors import JournalInvalid
from kvstore.core.events import Lookup
from kvstore.core.types import Retention
from kvstore.observe.selecting import parse_selector
from tests.core.caller import Caller
from tests.core.ops import allocate, commit, fork, free, swap_in, swap_out
from tests.core.world import World, keys_of, make_store, text
from tests.observe.helpers import journaled, replay

TOKENS = text(1, 12)
KEYS = keys_of(TOKENS)


def story(path: Path, of: str) -> list[str]:
    done = replay(path, "--story", of)
    assert done.exit_code == 0, done.output
    heading, *lines = done.output.splitlines()
    assert heading == "run 0000000000000007 of version test: whole"
    return [line.removeprefix("  ") for line in lines]
