"""What the simulator finds: a promise of the store that was not kept."""

from kvstore.core.types import Tier

__all__ = ["Place", "Wrong", "expect"]

# A frame of a tier.
Place = tuple[Tier, int]


class Wrong(Exception):
    """A promise that was not kept, and the frames that it is about."""

    def __init__(self, message: str, places: tuple[Place, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.places = places


def expect(condition: object, message: str, places: tuple[Place, ...] = ()) -> None:
    """Raises `Wrong` unless `condition` holds."""
    if not condition:
        raise Wrong(message, places)
