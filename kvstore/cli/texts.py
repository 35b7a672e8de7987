"""What people type, as a message of the contract can hold it."""

from kvstore.core.errors import ConfigInvalid

__all__ = ["check_text"]


def check_text(flag: str, text: str) -> str:
    """The same. What the shell gave in bytes that are no UTF-8 is refused: nobody can be called so."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigInvalid("no UTF-8", field=flag, value=text, remedy="type it in UTF-8") from None
    return text
