"""Who was told to wait for frames, and when it is of use to ask again."""

from kvstore.planner.machine import Machine

__all__ = ["Waits"]

# A ticket counts for a second: who waits asks again before that, so that copies make haste for him.
ASK_AGAIN_SECONDS = 0.5


class Waits:
    """Who wants in asks again when somebody has ended, and where all the frames that he lacks are on their
    way back, also when copies have ended. Who grows asks again whenever there may be room."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_blocked = self.growth_waits = False
        # Whether somebody has left since the last preemption: else two would push each other out for ever.
        self.has_room_changed = True
        self._awaits_copies = self._will_unblock = False

    def block(self, frames_short: int) -> None:
        """The first of those who want in has to wait."""
        if not self.is_blocked:
            self.is_blocked, self._awaits_copies = True, not frames_short
            if self._awaits_copies:
                self.ask_again_later()

    def ask_again_later(self) -> None:
        if not self._will_unblock:
            self._will_unblock = True
            self._machine.clock.at(self._machine.time + ASK_AGAIN_SECONDS, self._unblock)

    def copied(self) -> None:
        self.growth_waits = False
        self.is_blocked &= not self._awaits_copies

    def ended(self) -> None:
        self.is_blocked = self.growth_waits = False
        self.has_room_changed = True

    def preempted(self) -> None:
        self.growth_waits = self.has_room_changed = False

    def _unblock(self) -> None:
        self.is_blocked = self.growth_waits = self._will_unblock = False
