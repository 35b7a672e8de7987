"""How many answers may be under way at once. Beyond that a request is refused, not queued for ever."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.server.errors import overloaded

__all__ = ["Admission"]


class Admission:
    """Used in the event loop alone."""

    def __init__(self, answers_max: int) -> None:
        self._answers_max = answers_max
        self.answers = 0

    @contextmanager
    def admit(self, answers: int) -> Iterator[None]:
        """For as long as a request of so many answers is under way."""
        if self.answers + answers > self._answers_max:
            raise overloaded(
                f"{self.answers} answers are under way, and {answers} more would be above the "
                f"{self._answers_max} that this server takes at once. Please try again later."
            )
        self.answers += answers
        try:
            yield
        finally:
            self.answers -= answers
