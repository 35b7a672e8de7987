"""Turns that are judged before they are written: what that leaves out, and what it can't be combined with."""

import pytest

from kvstore.core.errors import ConfigInvalid
from kvstore.core.types import WRITE
from kvstore.planner.plan import Outcome, Rules, play
from kvstore.planner.profile import H200_LLAMA_8B
from kvstore.planner.study import Policies
from kvstore.planner.workload import load_workload
from tests.planner.made import Made, request, sizes

# So many conversations of one turn, and one that goes on again and again.
LONE, TURNS = 400, 200


def played(admission: str) -> Outcome:
    lone = [request(8.0 * number, range(100 * number, 100 * number + 6)) for number in range(1, LONE)]
    turns = [request(3 + 16.0 * number, [*range(6), 7], session="chat") for number in range(TURNS)]
    workload = load_workload(Made(*turns, *lone))
    machine = Policies(eviction="worth", disk_admission=admission).machine(
        sizes(16, 64, 4_096), H200_LLAMA_8B
    )
    return play(workload, machine, Rules(closed=False))


def test_what_never_comes_back_is_written_no_more_when_that_is_known() -> None:
    everything, worth = played("all"), played("worth")
    assert everything.bytes_moved[WRITE] > 0
    assert worth.bytes_moved[WRITE] < 0.5 * everything.bytes_moved[WRITE]
    # What comes back is found as before: it never leaves the tiers above.
    assert worth.hit_rate > 0.98 * everything.hit_rate


@pytest.mark.parametrize(("eviction", "admission"), [("lru", "worth"), ("worth", "some")])
def test_what_is_refused(eviction: str, admission: str) -> None:
    with pytest.raises(ConfigInvalid, match="--disk-admission"):
        Policies(eviction=eviction, disk_admission=admission)
