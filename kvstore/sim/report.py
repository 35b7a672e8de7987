"""A failure in words: what went wrong, how to see it again, and the story of the block concerned."""

from dataclasses import fields

from kvstore.sim.attempts import Failure
from kvstore.sim.config import SimConfig
from kvstore.sim.story import tell

__all__ = ["report"]


def report(original: Failure, smallest: Failure) -> str:
    """`smallest` is what `shrink` made of `original`."""
    config = smallest.config
    places = ", ".join(f"{tier.name} frame {frame}" for tier, frame in smallest.places) or "the last event"
    return "\n".join(
        [
            f"seed {original.config.seed}: {original.message}",
            f"smallest run that fails so: {len(smallest.schedule)} of {len(original.schedule)} entries; "
            + _sizes(config),
            f"there: {smallest.message}",
            *(f"  {each.time:9.4f}  {each.kind.name}, place {each.place}" for each in smallest.schedule),
            f"the story of {places}:",
            *(f"  {line}" for line in tell(smallest.log, smallest.places)),
        ]
    )


def _sizes(config: SimConfig) -> str:
    """Numbers that differ from zero."""
    named = [(field.name, getattr(config, field.name)) for field in fields(config)]
    return ", ".join(
        f"{name}={value}" for name, value in named if isinstance(value, int) and value and name != "seed"
    )
