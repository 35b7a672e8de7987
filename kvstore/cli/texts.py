"""What people type, as a message of the contract can hold it; and numbers as people read them."""

from kvstore.core.errors import ConfigInvalid

__all__ = ["ENGINE_CHARACTERS", "check_text", "counted", "rate_words", "shown"]

# Of an engine's UUID so many are shown, unless more are needed to tell two apart.
ENGINE_CHARACTERS = 8


def check_text(flag: str, text: str) -> str:
    """The same. What the shell gave in bytes that are no UTF-8 is refused: nobody can be called so."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigInvalid("no UTF-8", field=flag, value=text, remedy="type it in UTF-8") from None
    return text


def shown(name: str) -> str:
    """What somebody else has named so, as it may be printed: a terminal obeys some of what is no text, and a
    line ends where it says so. Those characters stand as Python writes them."""
    return name if name.isprintable() else "".join(map(_shown_character, name))


def _shown_character(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def counted(count: int, noun: str) -> str:
    """1 block, 1,024 blocks; of two words the first is counted: 2 swaps out."""
    first, space, rest = noun.partition(" ")
    return f"{count:,} {first}{'' if count == 1 else 's'}{space}{rest}"


def rate_words(bytes_per_second: float) -> str:
    """In powers of ten, as rates are typed: 200 MB/s."""
    value = float(bytes_per_second)
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.4g} TB/s"
