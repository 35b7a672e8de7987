"""What the shadow memory takes for right, and what not."""

import pytest

from kvstore.core.effects import DiskDelete, Transfer
from kvstore.core.types import Frame, Tier, TransferId
from kvstore.sim.shadow import GARBAGE, Shadow
from kvstore.sim.texts import keys_of, stored_keys, text
from kvstore.sim.work import Inherit, Publish, ReadTokens, Seen, Space, WriteTokens
from kvstore.sim.wrong import Wrong

TOKENS = text(1, 8)
HERE, THERE = Space(1, 1), Space(1, 2)


def written(shadow: Shadow, table: tuple[int, ...] = (0, 1), space: Space = HERE) -> Seen:
    seen = Seen()
    shadow.execute(WriteTokens(table, TOKENS, 0, 8, space, seen))
    return seen


def transfer(source: Tier, target: Tier, count: int = 2) -> Transfer:
    """Frames 0 and 1 to frames 5 and 6."""
    return Transfer(
        id=TransferId(1),
        source=source,
        target=target,
        source_frames=tuple(map(Frame, range(count))),
        target_frames=tuple(map(Frame, range(5, 5 + count))),
        keys=tuple(stored_keys(TOKENS)) if Tier.DISK in (source, target) else (),
    )


def test_a_block_that_was_moved_on_every_rank_is_right() -> None:
    shadow = Shadow(3)
    seen = written(shadow)
    for rank in shadow.ranks:
        shadow.transfer(transfer(Tier.GPU, Tier.CPU), set(), rank)
    assert [str(shadow.held(Tier.CPU, 6, rank)) for rank in shadow.ranks] == [
        "block 1 (namespace 1, tenant 1, tokens [1000004, 1000005, 1000006, 1000007], generation 2)"
    ] * 3
    shadow.execute(ReadTokens((0, 1), TOKENS, 8, HERE, seen))
    assert shadow.reads == 2


def test_a_block_that_failed_on_one_rank_is_garbage_there_alone() -> None:
    shadow = Shadow(2)
    written(shadow)
    for rank in shadow.ranks:
        shadow.transfer(transfer(Tier.GPU, Tier.CPU), {(1, 0)}, rank)
    assert shadow.held(Tier.CPU, 5, 1) == GARBAGE
    assert shadow.held(Tier.CPU, 5, 0) == shadow.held(Tier.GPU, 0)
    assert shadow.held(Tier.CPU, 6, 1) == shadow.held(Tier.GPU, 1)


def test_the_frame_of_one_rank_being_wrong_is_named() -> None:
    shadow = Shadow(2)
    written(shadow)
    shadow.frames[1][Tier.GPU][1] = GARBAGE
    with pytest.raises(Wrong, match=r"block 1 of sequence 7.*GPU frame 1 of rank 1 holds garbage") as caught:
        shadow.execute(ReadTokens((0, 1), TOKENS, 8, HERE, None, "sequence 7"))
    assert caught.value.places == ((Tier.GPU, 1),)


@pytest.mark.parametrize("table", [(1, 0), (0, 0), (0, 9)], ids=["swapped", "repeated", "nothing"])
def test_another_block_is_wrong(table: tuple[int, int]) -> None:
    shadow = Shadow()
    written(shadow)
    with pytest.raises(Wrong):
        shadow.execute(ReadTokens(table, TOKENS, 8))


def test_the_same_text_of_another_tenant_is_wrong() -> None:
    shadow = Shadow()
    written(shadow, space=THERE)
    with pytest.raises(Wrong, match=r"\(namespace 1, tenant 1\).*holds block 0 \(namespace 1, tenant 2"):
        shadow.execute(ReadTokens((0, 1), TOKENS, 8, HERE))


def test_a_generation_that_nobody_committed_is_wrong_until_somebody_does() -> None:
    """Another engine has computed the same block."""
    shadow = Shadow()
    mine, others = written(shadow), written(shadow, (2, 3))
    read = ReadTokens((2, 3), TOKENS, 8, HERE, Seen(mine))
    with pytest.raises(Wrong, match=r"generation 3.*not generation 1 or a committed one"):
        shadow.execute(read)
    shadow.execute(Publish(TOKENS, 0, 2, HERE, others))
    shadow.execute(ReadTokens((2, 3), TOKENS, 8, HERE, mine))
    assert mine == others


def test_a_tail_is_written_on_only_after_its_head() -> None:
    shadow = Shadow()
    seen = Seen()
    shadow.execute(WriteTokens((0,), TOKENS, 0, 2, HERE, seen))
    shadow.execute(WriteTokens((0,), TOKENS, 2, 4, HERE, seen))
    assert seen == {0: 1}
    with pytest.raises(Wrong, match=r"tokens \[1000004\] to go on from"):
        shadow.execute(WriteTokens((0, 1), TOKENS, 5, 6, HERE, seen))


def test_a_child_sees_as_much_as_it_inherits() -> None:
    shadow = Shadow()
    child = Seen()
    shadow.execute(Inherit(written(shadow), child, 1))
    assert child == {0: 1}


# ------------------------------------------------------------------------------------ disk


def on_disk(shadow: Shadow, count: int = 2) -> None:
    written(shadow)
    for rank in shadow.ranks:
        shadow.transfer(transfer(Tier.GPU, Tier.CPU), set(), rank)
        shadow.frames[rank][Tier.CPU] |= {
            0: shadow.held(Tier.CPU, 5, rank),
            1: shadow.held(Tier.CPU, 6, rank),
        }
    shadow.write(transfer(Tier.CPU, Tier.DISK), count)


def test_a_write_that_was_torn_keeps_its_head() -> None:
    shadow = Shadow(2)
    on_disk(shadow, 1)
    assert [key.key for key in shadow.disk.find()] == list(keys_of(TOKENS)[:1])


def test_the_disk_names_parents_first_and_drops_what_hangs_on_nothing() -> None:
    shadow = Shadow()
    on_disk(shadow)
    first, second = stored_keys(TOKENS)
    # Written again: the parent is now the younger entry.
    shadow.disk.put(first, (GARBAGE,))
    assert shadow.disk.find() == (first, second)
    shadow.disk.delete(DiskDelete(keys=(first,)))
    assert shadow.disk.find() == ()
    assert len(shadow.disk) == 0


def test_what_is_not_on_disk_can_not_be_read_from_it() -> None:
    with pytest.raises(Wrong, match="read from disk, where it is not"):
        Shadow().transfer(transfer(Tier.DISK, Tier.CPU), set(), 0)
