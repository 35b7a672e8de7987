"""Whose a block is, for who asks whether it was forgotten."""

from kvstore.core.calls import Forget
from kvstore.core.types import ForgetId
from kvstore.sim.origins import Origin, Origins
from kvstore.sim.work import Space

SPACE = Space(1, 1)
MINE, OTHERS = (32, 33, 49, 73), (32, 33, 45, 46)


def test_forks_that_go_on_from_one_part_filled_block_each_have_their_own() -> None:
    """Both keep what its first writer has left in it, and its generation: what one has filled is forgotten,
    and not what the other has."""
    origins = Origins()
    for block, session in ((MINE, "chat"), (OTHERS, "")):
        origins.use(SPACE, block, session)
        origins.commit(11, Origin(SPACE, block, session, 3))
    forget = Forget(time=1.0, session="chat", tenant="")
    origins.begin_forget(ForgetId(1), forget, 1, 20)
    assert origins.is_forgotten(11, MINE, 21)
    assert not origins.is_forgotten(11, MINE, 19)
    assert not origins.is_forgotten(11, OTHERS, 21)
    origins.end_forget(ForgetId(1))
    assert origins.is_forgotten(11, MINE, 21)
    assert not origins.is_forgotten(11, OTHERS, 21)
