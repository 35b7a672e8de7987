"""How a flag is refused, and checks that need nothing but what was typed: nothing of the model is loaded yet.

Tests: tests/engine/server/test_flags.py.
"""

import ipaddress
import os
import stat
from pathlib import Path

from engine.names import MODEL_NAMES
from kvstore.client.address import to_address
from kvstore.client.errors import ClientError

__all__ = [
    "FlagRefused",
    "check_between",
    "check_host",
    "check_model",
    "check_one_of",
    "check_socket",
    "model_name",
    "read_key",
    "reason",
]

KEY_CHARACTERS_MIN = 16
KEY_BYTES_MAX = 4096
IS_KEY = f"a key is one line of at least {KEY_CHARACTERS_MIN} printable characters without blanks"
MODEL_REMEDY = f"a GGUF file, a folder with config.json and *.safetensors, or one of {', '.join(MODEL_NAMES)}"
SOCKET_REMEDY = "a path, or unix:PATH, of at most 107 bytes in UTF-8, without % ? # and commas"


class FlagRefused(ValueError):
    """The message names the flag, its value, why it can't be, and what to do about it."""

    def __init__(self, flag: str, value: object, why: str, remedy: str) -> None:
        text = f"{value:.12g}" if isinstance(value, float) else str(value)
        # What is empty or blank would not be seen, and a terminal obeys some of what is no text.
        shown = text if text.strip() and text.isprintable() else repr(text)
        super().__init__(f"{flag} {shown}: {why}; remedy: {remedy}")


def check_one_of(flag: str, value: str, why: str, names: tuple[str, ...]) -> None:
    if value not in names:
        raise FlagRefused(flag, value, why, f"one of {', '.join(names)}")


def check_between(flag: str, value: float, least: float, most: float) -> None:
    # NaN is in no order with anything, so it fails here too.
    if not least <= value <= most:
        raise FlagRefused(flag, value, "out of bounds", f"{least:.12g} to {most:.12g}")


def check_model(name: str) -> None:
    """Whether there is such a file or folder; what is in it is looked at when it is opened."""
    if name in MODEL_NAMES:
        return
    if not name.strip():
        raise FlagRefused("--model", name, "it names no model", MODEL_REMEDY)
    path = Path(name)
    if not model_name(name).isprintable():
        why = "answers name the model, and that is no text"
        raise FlagRefused("--model", name, why, "a link with another name")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FlagRefused("--model", name, "there is no such model, file or folder", MODEL_REMEDY) from None
    except OSError as error:
        raise FlagRefused("--model", name, reason(error), MODEL_REMEDY) from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise FlagRefused("--model", name, "it is neither a file nor a folder", MODEL_REMEDY)
    if not os.access(path, os.R_OK):
        raise FlagRefused("--model", name, "it may not be read", "chmod, or run as its owner")


def model_name(model: str) -> str:
    """As it is called in requests: the path's last part, without what it is a file of."""
    return os.path.basename(os.path.abspath(model)).removesuffix(".gguf")


def check_socket(flag: str, text: str) -> None:
    try:
        to_address(text)
    except ClientError:
        raise FlagRefused(flag, text, "it can't be a socket's address", SOCKET_REMEDY) from None


def check_host(host: str, *, has_key: bool) -> None:
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise FlagRefused("--host", host, "it is no IP address", "127.0.0.1, or ::1") from None
    if not is_loopback and not has_key:
        raise FlagRefused("--host", host, "whoever reaches it could use the model", "add --api-key-file")


def read_key(name: str) -> str:
    """The key, which is never shown; refused where it is none, or others may read it."""
    flag = "--api-key-file"
    if not name.strip():
        raise FlagRefused(flag, name, "it names no file", "name one, or leave it out")
    path = Path(name)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise FlagRefused(flag, name, "it is no file", "a file with the key in it")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise FlagRefused(flag, name, "others may read it", f"chmod 600 {name}")
        if found.st_size > KEY_BYTES_MAX:
            raise FlagRefused(flag, name, f"it has {found.st_size} bytes", IS_KEY)
        key = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise FlagRefused(flag, name, f"it can't be read: {reason(error)}", "a file with the key") from error
    except UnicodeDecodeError:
        # The error itself would show some of the key.
        raise FlagRefused(flag, name, "it can't be read: it is no ASCII", IS_KEY) from None
    if len(key) < KEY_CHARACTERS_MIN or not key.isprintable() or " " in key:
        raise FlagRefused(flag, name, "there is no key in it", IS_KEY)
    return key


def reason(error: OSError) -> str:
    """In the system's words, without the name that stands before it already."""
    return os.strerror(error.errno) if error.errno else str(error)
