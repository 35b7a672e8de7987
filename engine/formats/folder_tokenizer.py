"""The tokenizer of a folder in Hugging Face's form: tokenizer.json, and what stands beside it.

tokenizer.json is read by `tokenizers` itself. Names of control tokens are in tokenizer_config.json (older:
special_tokens_map.json); the chat template there or in chat_template.jinja; what ends an answer in
generation_config.json and config.json. Tests: tests/engine/test_tokenizer_folder.py.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Encoder

from engine.formats.json_file import read_json
from engine.refused import TokenizerRefused
from engine.tokenizer import Tokenizer

__all__ = ["read_tokenizer"]

_CONVERT = "transformers' AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes it"


def read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerRefused(folder, "tokenizer.json", "there is no such file", _CONVERT)
    try:
        encoder = Encoder.from_file(str(path))
    except Exception as error:  # tokenizers has no narrower one
        raise TokenizerRefused(path, "its text", f"it can't be read ({error})", _CONVERT) from error
    # A file may hold what some earlier user had set.
    encoder.no_truncation()
    encoder.no_padding()
    described = _read(folder / "special_tokens_map.json") | _read(folder / "tokenizer_config.json")
    names = dict(_names(described))
    return Tokenizer(
        folder,
        encoder,
        template=_read_template(folder, described),
        names=names,
        eos_ids=frozenset(_ends(folder, encoder, names)),
    )


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _names(described: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each a string, or an object that says more of the token."""
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        match described.get(name):
            case str(token) | {"content": str(token)}:
                yield name, token


def _read_template(folder: Path, described: Mapping[str, Any]) -> str | None:
    """Of several the one called `default`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    match described.get("chat_template"):
        case str(template):
            return template
        case [*templates]:
            by_name = {each.get("name"): each.get("template") for each in templates if isinstance(each, dict)}
            default = by_name.get("default")
            return default if isinstance(default, str) else None
    return None


def _ends(folder: Path, encoder: Encoder, names: Mapping[str, str]) -> Iterator[int]:
    eos = encoder.token_to_id(names.get("eos_token", ""))
    if eos is not None:
        yield eos
    for name in ("generation_config.json", "config.json"):
        match _read(folder / name).get("eos_token_id"):
            case int(token):
                yield token
            case [*tokens]:
                yield from (token for token in tokens if isinstance(token, int))
