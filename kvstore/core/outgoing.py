"""What follows from an event, put together: its effects. Here, and only here, transfers are started."""

from kvstore.core.admission import Admission
from kvstore.core.answers import Answer
from kvstore.core.effects import Admitted, BlocksUsed, DiskDelete, DiskNote, DiskSync, Effects, Transfer
from kvstore.core.forgetting import Forgetting
from kvstore.core.granting import Granting
from kvstore.core.links import Links
from kvstore.core.memory import Memory
from kvstore.core.news import News
from kvstore.core.sessions import Sessions
from kvstore.core.swaps import Swaps
from kvstore.core.types import StoredKey

__all__ = ["Outgoing"]


class Outgoing:
    """Takes what the parts of the store have left to be told. What is not there costs a look."""

    def __init__(
        self,
        memory: Memory,
        admission: Admission,
        links: Links,
        swaps: Swaps,
        granting: Granting,
        sessions: Sessions,
        forgetting: Forgetting,
        news: News,
    ) -> None:
        self._memory = memory
        self._admission = admission
        self._links = links
        self._swaps = swaps
        self._granting = granting
        self._sessions = sessions
        self._forgetting = forgetting
        self._news = news
        # Blocks of whose use the disk is to be told.
        self.used: tuple[StoredKey, ...] = ()

    def take(self, answer: Answer, time: float) -> Effects:
        """All that the event has led to, and the transfers that can start now."""
        news, memory = self._news, self._memory
        if memory.unwanted.size:
            memory.discard_again()
        transfers = tuple(self._start_transfers(time))
        if memory.unwanted.size:
            # What has made room for these may have been the last that hung on such.
            memory.discard_again()
        if memory.room_was_made:
            # Who waits for frames may find some now: no news, but a reason to ask again.
            news.woken.update(self._admission.engines_waiting())
        deleted, memory.replicas.deleted = memory.replicas.deleted, []
        admitted: tuple[Admitted, ...] = ()
        if self._granting.admitted:
            admitted = tuple(self._granting.admitted)
            self._granting.admitted.clear()
        return Effects(
            answer=answer,
            transfers=transfers,
            raised=self._links.transfers.take_raised(),
            deletes=(DiskDelete(keys=tuple(deleted)),) if deleted else (),
            wake=tuple(news.woken),
            admitted=admitted,
            happened=news.take_happened(),
            notes=self._notes() if self.used or self._sessions.has_notes else (),
            syncs=self._syncs() if self._forgetting.syncs else (),
        )

    def _start_transfers(self, time: float) -> list[Transfer]:
        """What can't even be begun fails at once, and makes room for others."""
        started = self._links.start(time)
        while self._links.refused:
            self._swaps.refuse(self._links.take_refused())
            self._news.woken.update(self._admission.engines_waiting())
            started += self._links.start(time)
        return started

    def _notes(self) -> tuple[DiskNote, ...]:
        used, self.used = self.used, ()
        uses = (BlocksUsed(keys=used),) if used else ()
        return (*self._sessions.notes(), *uses)

    def _syncs(self) -> tuple[DiskSync, ...]:
        syncs, self._forgetting.syncs = self._forgetting.syncs, []
        return tuple(syncs)
