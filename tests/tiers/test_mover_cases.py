"""Movers: rows of group 6 of the list of cases."""

import queue
import random

import numpy as np
import pytest

from kvstore.core.effects import Transfer
from kvstore.core.errors import CheckFailed
from kvstore.core.types import COPY, LOAD, Frame, Tier, TransferId, Urgency
from kvstore.tiers import moves
from kvstore.tiers.copying import COPY_PIECE_BYTES
from kvstore.tiers.movers import READ_PIECE_BYTES, Movers
from kvstore.tiers.pool import HostPool
from kvstore.tiers.turns import GiveWay
from tests.tiers.helpers import chain, open_tier
from tests.tiers.mover_house import FRAME, WAIT


def test_case_6_01_starting_thousands_of_copies_waits_for_none_and_neighbours_move_as_one(monkeypatch):
    """CASES.md 6.01: 5,000 block copies are started while nothing moves at all, and go in few large ones."""
    blocks, size = 5_000, 4096
    ends: queue.SimpleQueue = queue.SimpleQueue()
    copies: list[tuple[int, int, int]] = []

    def copy(from_, to, runs, part, copy=moves._copy_paced):
        copies.extend(runs)
        return copy(from_, to, runs, part)

    monkeypatch.setattr(moves, "_copy_paced", copy)
    monkeypatch.setattr(moves, "_copy", copy)
    with HostPool("gpu", blocks, size, 1) as gpu, HostPool("cpu", blocks, size, 1) as cpu:
        gpu.frames(0)[:] = np.arange(blocks, dtype=np.uint8)[:, None]
        movers = Movers(gpu, cpu, None, lambda id, failed, late: ends.put(id))
        # The link stands still: whoever waited for a copy here would wait for ever.
        movers.set_rate(COPY, 1)
        source, target = COPY
        frames = list(map(Frame, range(blocks)))
        jobs = [
            Transfer(
                id=TransferId(start),
                source=source,
                target=target,
                source_frames=tuple(frames[start : start + 100]),
                target_frames=tuple(frames[start : start + 100]),
            )
            for start in range(0, blocks, 100)
        ]
        movers.start(jobs, [])
        assert movers.by_link[COPY].counts.blocks_moved < blocks
        movers.set_rate(COPY, 0)
        assert {ends.get(timeout=WAIT) for _ in jobs} == {job.id for job in jobs}
        assert np.array_equal(gpu.frames(0), cpu.frames(0))
        assert sum(count for _, _, count in copies) == blocks
        # One a transfer, but for the first blocks, which went and stood under the limit.
        assert len(copies) <= len(jobs) + 2
        assert movers.close(WAIT)


def test_case_6_18_swap_ins_pass_200_swap_outs_that_still_get_on():
    """CASES.md 6.18, on the rules of the links alone: two links over one memory, in virtual time.

    What is asked for takes no more than twice its time alone; what nobody waits for keeps its floor.
    """
    way, now = GiveWay(), 0.0
    piece_seconds, waits, moved = 0.001, [], 0
    out_at = 0.0
    for _ in range(50):
        way.asked, began, left = 1, now, 4
        while left:
            # A piece of the other link runs beside it, and each has half of the memory's speed meanwhile.
            beside = now >= out_at and way.hold_seconds(Urgency.BACKGROUND, now) <= 0
            seconds = piece_seconds * (2 if beside else 1)
            now += seconds
            left -= 1
            if beside:
                way.ended(Urgency.BACKGROUND, now, seconds)
                moved += 1
        waits.append(now - began)
        way.asked = 0
        now += 0.001
    assert max(waits) <= 2 * 4 * piece_seconds
    assert moved > 0


@pytest.mark.parametrize("seed", range(3))
def test_case_6_18_swap_ins_never_stand_behind_swap_outs(seed):
    """With real threads: the way down stands still, 200 blocks wait for it, and the way up goes on."""
    rng = random.Random(seed)
    ends: queue.SimpleQueue = queue.SimpleQueue()
    with HostPool("gpu", 220, FRAME, 1) as gpu, HostPool("cpu", 220, FRAME, 1) as cpu:
        movers = Movers(gpu, cpu, None, lambda id, failed, late: ends.put(id))
        movers.set_rate(COPY, 1)
        rows = [Frame(frame) for frame in rng.sample(range(220), 205)]

        def job(number: int, link, frames, urgency) -> Transfer:
            return Transfer(
                id=TransferId(number),
                source=link[0],
                target=link[1],
                source_frames=tuple(frames),
                target_frames=tuple(frames),
                urgency=urgency,
            )

        down = [job(n, COPY, rows[n * 10 : n * 10 + 10], Urgency.BACKGROUND) for n in range(20)]
        movers.start(down, [])
        up = [job(100 + n, LOAD, rows[200 + n : 201 + n], Urgency.ASKED) for n in range(5)]
        movers.start(up, [])
        assert {ends.get(timeout=WAIT) for _ in up} == {each.id for each in up}
        movers.set_rate(COPY, 0)
        assert {ends.get(timeout=WAIT) for _ in down} == {each.id for each in down}
        assert movers.close(WAIT)


def test_case_6_19_a_slow_disk_holds_no_copies_of_blocks_and_nobody_who_starts_a_write(tmp_path):
    """CASES.md 6.19, as far as the movers go: what waits for a slow disk waits in its frames, bounded in
    bytes, and to start one more is refused at once and not waited for."""
    disk = open_tier(tmp_path, size=60_000)
    ends: queue.SimpleQueue = queue.SimpleQueue()
    with HostPool("gpu", 2, 60_000, 1) as gpu, HostPool("cpu", 8, 60_000, 1) as cpu:
        movers = Movers(
            gpu, cpu, disk, lambda id, failed, late: ends.put(failed), in_flight_bytes_max=4 * cpu.frame_bytes
        )
        movers.set_rate((Tier.CPU, Tier.DISK), 1)
        jobs = [
            Transfer(
                id=TransferId(number),
                source=Tier.CPU,
                target=Tier.DISK,
                source_frames=(Frame(number),),
                target_frames=(Frame(number),),
                keys=(chain(8)[number],),
            )
            for number in range(6)
        ]
        movers.start(jobs[:2], [])
        ends.get(timeout=WAIT)  # The first goes at once, and the next ones pay for it.
        movers.start(jobs[2:5], [])
        assert movers.by_link[Tier.CPU, Tier.DISK].bytes_in_flight == 4 * cpu.frame_bytes
        with pytest.raises(CheckFailed, match="bytes in flight"):
            movers.start(jobs[5:], [])
        movers.set_rate((Tier.CPU, Tier.DISK), 0)
        for _ in range(4):
            assert ends.get(timeout=WAIT) == ()
        assert movers.close(WAIT)
    disk.close()


def test_pieces_are_small_against_what_is_in_flight():
    assert 1 << 20 <= COPY_PIECE_BYTES <= 4 << 20
    assert READ_PIECE_BYTES <= 16 << 20
