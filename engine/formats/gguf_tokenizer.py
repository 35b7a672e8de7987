"""The tokenizer that a GGUF file carries: SentencePiece's BPE, or byte-level BPE.

A byte-level BPE works on pieces that a text is cut into beforehand, as it was for training: `pre` names how.
Tests: tests/engine/test_tokenizer.py, test_tokenizer_gguf.py, test_sentencepiece.py.
"""

from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Encoder
from tokenizers.models import BPE

from engine.formats.gguf_file import GGUFFile
from engine.formats.sentencepiece import build_sentencepiece
from engine.refused import TokenizerRefused
from engine.tokenizer import Tokenizer

__all__ = ["read_tokenizer"]

_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"
# GGUF's token types; all others are plain pieces of text.
_CONTROL, _USER_DEFINED = 3, 4
# Control tokens that end an answer beside the one that the file names: a chat model may still say the end of
# a text, or of a message to a tool, instead of its end of turn.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>")
# Of words, numbers, signs and blanks; how many digits stand together is what models differ in.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS = ("smollm", "llama-bpe", "qwen2")
_REMEDY = "take the model as a folder with tokenizer.json"


def read_tokenizer(file: GGUFFile) -> Tokenizer:
    _check_kind(file)
    tokens: list[str] = _need(file, "tokens")
    types: list[int] = _need(file, "token_type")
    if len(types) != len(tokens):
        what, why = f"{len(types)} tokenizer.ggml.token_type", f"there are {len(tokens)} tokens"
        raise TokenizerRefused(file.path, what, why, _REMEDY)
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    own = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    encoder = _build(file, tokens, types)
    encoder.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    encoder.add_tokens([AddedToken(token, special=False, normalized=False) for token in own])

    ids = {name: file.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    names = {
        f"{name}_token": _token(file, tokens, ids[name]) for name in ("bos", "eos") if ids[name] is not None
    }
    if "bos_token" in names and _has_start(file):
        _start_with(encoder, names["bos_token"], ids["bos"])
    ends = {ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None}
    ends |= {tokens.index(token) for token in _ENDS if token in control}
    return Tokenizer(
        file.path,
        encoder,
        template=file.get("tokenizer.chat_template"),
        names=names,
        eos_ids=frozenset(ends),
    )


def _check_kind(file: GGUFFile) -> None:
    kind, pre = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre")
    if kind is None:
        raise TokenizerRefused(file.path, "tokenizer.ggml.model", "the file has no tokenizer", _REMEDY)
    if kind not in (_BYTE_LEVEL, _SENTENCEPIECE):
        what = f"tokenizer.ggml.model = {kind!r}"
        why = f"only {_BYTE_LEVEL!r}, byte-level BPE, and {_SENTENCEPIECE!r}, SentencePiece, are supported"
        raise TokenizerRefused(file.path, what, why, _REMEDY)
    if kind == _BYTE_LEVEL and pre not in _PRE_TOKENIZERS:
        what, why = f"tokenizer.ggml.pre = {pre!r}", f"only {', '.join(_PRE_TOKENIZERS)} are supported"
        raise TokenizerRefused(file.path, what, why, _REMEDY)


def _build(file: GGUFFile, tokens: list[str], types: list[int]) -> Encoder:
    if file.get("tokenizer.ggml.model") == _BYTE_LEVEL:
        return _build_byte_level(tokens, _need(file, "merges"), file.get("tokenizer.ggml.pre"))
    scores: list[float] = _need(file, "scores")
    if len(scores) != len(tokens):
        what, why = f"{len(scores)} tokenizer.ggml.scores", f"there are {len(tokens)} tokens"
        raise TokenizerRefused(file.path, what, why, _REMEDY)
    has_prefix = file.get("tokenizer.ggml.add_space_prefix")
    return build_sentencepiece(tokens, scores, types, has_prefix=has_prefix is None or has_prefix)


def _has_start(file: GGUFFile) -> bool:
    """Whether a text begins with a token of its own; llama.cpp's default where the file does not say."""
    stated = file.get("tokenizer.ggml.add_bos_token")
    if stated is not None:
        return bool(stated)
    kind, pre = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre")
    return bool(kind == _SENTENCEPIECE or pre == "llama-bpe")


def _build_byte_level(tokens: list[str], merges: list[str], pre: str) -> Encoder:
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Llama 3 takes a whole word that is a token as it is, whatever the merges would make of it.
    encoder = Encoder(BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe"))
    if pre == "smollm":
        # Every digit a piece of its own, then GPT-2's pattern over bytes.
        first: Any = pre_tokenizers.Digits(individual_digits=True)
    else:
        digits = "{1,3}" if pre == "llama-bpe" else ""
        first = pre_tokenizers.Split(Regex(_WORDS % digits), behavior="isolated")
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
    encoder.pre_tokenizer = pre_tokenizers.Sequence([first, of_bytes])
    if pre == "qwen2":
        encoder.normalizer = normalizers.NFC()
    encoder.decoder = decoders.ByteLevel()
    return encoder


def _start_with(encoder: Encoder, token: str, token_id: int) -> None:
    encoder.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, token_id)]
    )


def _need(file: GGUFFile, name: str) -> Any:
    value = file.get(f"tokenizer.ggml.{name}")
    if value is None:
        raise TokenizerRefused(file.path, f"tokenizer.ggml.{name}", "it is missing", _REMEDY)
    return value


def _token(file: GGUFFile, tokens: list[str], token_id: int) -> str:
    if not 0 <= token_id < len(tokens):
        what, why = f"a control token's id {token_id}", f"there are {len(tokens)} tokens"
        raise TokenizerRefused(file.path, what, why, _REMEDY)
    return tokens[token_id]
