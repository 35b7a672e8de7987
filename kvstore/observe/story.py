"""What happened to one block, sequence or session: one line a fact, in the order of the journal."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from kvstore.core.types import EngineId
from kvstore.observe.facts import Fact, Held, Place
from kvstore.observe.reading import Run
from kvstore.observe.selecting import Selector
from kvstore.observe.telling import Teller
from kvstore.observe.words import count, numbers

__all__ = ["Story", "heading_words", "tell_story"]

SHORT = 8
KEY_DIGITS = 12
KEYS_MAX = 4


def heading_words(run: Run) -> str:
    """Which run it is, and whether its beginning is there."""
    heading = run.heading
    begun = ""
    if heading.start_wall:
        begun = f", begun {datetime.fromtimestamp(heading.start_wall, UTC):%Y-%m-%d %H:%M:%S} UTC"
    part = "whole" if run.whole else f"its beginning is overwritten, kept from entry {heading.first_entry} on"
    return f"run {heading.store_epoch:016x} of version {heading.build}{begun}: {part}"


class Story(NamedTuple):
    """`is_known`: some of it is of this one alone, and not part of every story."""

    lines: list[str]
    is_known: bool


def tell_story(run: Run, selector: Selector) -> Story:
    """Seconds count from the run's beginning. Works on any kept part of a run."""
    teller = Teller(run.heading.config.block_tokens)
    lines = []
    is_known = False
    for entry in run.entries():
        for fact in teller.tell(entry):
            line = _line(fact, selector)
            is_known = is_known or bool(line and not fact.always)
            if line:
                lines.append(f"{entry.event.time - run.heading.start_time:.3f} s {line}")
    return Story(list(_with_short_names(lines, teller.engines)), is_known)


def _line(fact: Fact, selector: Selector) -> str:
    """Empty: of no concern."""
    if fact.always or selector.concerns(fact):
        blocks = fact.blocks
    else:
        blocks = tuple(block for block in fact.blocks if selector.holds(fact, block))
        if not blocks:
            return ""
    return f"{fact.text}: {_blocks_words(blocks, len(fact.blocks))}" if blocks else fact.text


def _blocks_words(blocks: tuple[Held, ...], among: int) -> str:
    words = count(len(blocks), "block")
    if len(blocks) < among:
        words = f"{len(blocks)} of {count(among, 'block')}"
    keys = [block.content.key.hex()[:KEY_DIGITS] for block in blocks if block.content.key]
    if 0 < len(keys) <= KEYS_MAX:
        words += f" ({' '.join(keys)})"
    places = [
        _places_words([place for place in side if place is not None])
        for side in ([block.source for block in blocks], [block.target for block in blocks])
    ]
    told = " to ".join(each for each in places if each)
    return f"{words}, {told}" if told else words


def _places_words(places: list[Place]) -> str:
    if not places:
        return ""
    plural = "" if len(places) == 1 else "s"
    return f"{places[0].tier.name} frame{plural} {numbers(place.frame for place in places)}"


def _with_short_names(lines: Iterable[str], engines: Iterable[EngineId]) -> Iterator[str]:
    """An engine's first digits, as `kvstore status` shows them; its last ones where many begin alike."""
    names = {engine: engine[:SHORT] for engine in engines}
    if len(set(names.values())) < len(names):
        names = {engine: engine[-SHORT:] for engine in names}
    for line in lines:
        for engine, name in names.items():
            line = line.replace(engine, name)
        yield line
