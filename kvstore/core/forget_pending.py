"""Forget: what is in its scope and not published yet, or not even computed, is not published any more."""

import numpy as np

from kvstore.core.blocks import Blocks
from kvstore.core.engines import Engine, Publish
from kvstore.core.forget_scope import Scope
from kvstore.core.prefix import chain_places

__all__ = ["silence"]


def silence(engine: Engine, scope: Scope, blocks: Blocks) -> None:
    """What sequences in scope have not published yet, and will compute from now on, stays their own."""
    for sequence in engine.sequences.values():
        if scope.covers_work(engine, sequence.domain, sequence.session):
            sequence.forgotten = True
    dropped = [fence for fence in engine.fences if scope.covers_fence(engine, fence)]
    if not dropped and not engine.quarantine:
        return
    gone = set(map(id, dropped))
    engine.fences = type(engine.fences)(each for each in engine.fences if id(each) not in gone)
    engine.quarantine = [each for each in engine.quarantine if not scope.covers_fence(engine, each)]
    for fence in dropped:
        if isinstance(fence, Publish):
            _unannounce(engine, fence, scope, blocks)


def _unannounce(engine: Engine, publication: Publish, scope: Scope, blocks: Blocks) -> None:
    """The engine's own sequences could find it before all others."""
    rows = publication.rows[publication.first : publication.end]
    pending = engine.pending.get(publication.domain, {})
    places = chain_places(publication.keys, publication.first, publication.end)
    for place, row in zip(places, rows, strict=True):
        if pending.get(place) == row:
            del pending[place]
    if scope.whole or not scope.session:
        # Nor may another sequence publish it, to which it was shown.
        blocks.bar(np.array(rows, np.intp))
