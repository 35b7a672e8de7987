"""Facts of transfers: which blocks they move where, and how that ends."""

from collections.abc import Iterator

from kvstore.core.effects import Transfer
from kvstore.core.events import TransferEnded
from kvstore.core.types import TransferId
from kvstore.observe.facts import NO_KEY, Fact, Held, Place
from kvstore.observe.tables import Tables

__all__ = ["TransferTeller"]


class TransferTeller:
    """Follows the places of blocks in `tables`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._transfers: dict[TransferId, tuple[Transfer, tuple[Held, ...]]] = {}

    def start(self, transfer: Transfer) -> Iterator[Fact]:
        blocks, replaced = [], []
        keys = [stored.key for stored in transfer.keys] or [NO_KEY] * len(transfer.source_frames)
        pairs = zip(transfer.source_frames, transfer.target_frames, keys, strict=True)
        for source, target, key in pairs:
            place = Place(transfer.target, target)
            block, before = self._tables.move(Place(transfer.source, source), place, key)
            blocks.append(block)
            if before is not None and before.key:
                replaced.append(Held(before, source=place))
        self._transfers[transfer.id] = (transfer, tuple(blocks))
        text = f"transfer {transfer.id} from {transfer.source.name} to {transfer.target.name}"
        if replaced:
            yield Fact(text=f"copies gone, {text} needs the room", blocks=tuple(replaced))
        yield Fact(text=f"{text} started", blocks=tuple(blocks))

    def ended(self, event: TransferEnded) -> Iterator[Fact]:
        if event.transfer not in self._transfers:
            return
        transfer, blocks = self._transfers.pop(event.transfer)
        late = [blocks[place] for place in event.late]
        failed = [blocks[place] for place in event.failed if place not in set(event.late)]
        good = [block for place, block in enumerate(blocks) if place not in set(event.failed)]
        text = f"transfer {transfer.id} from {transfer.source.name} to {transfer.target.name}"
        if good:
            yield Fact(text=f"{text} ended well", blocks=tuple(good))
        if failed:
            yield Fact(text=f"{text} failed", blocks=tuple(failed))
        if late:
            yield Fact(text=f"{text} was not done in time", blocks=tuple(late))
        for block in failed + late:
            if block.target is not None:
                self._tables.drop(block.target, block.content)
