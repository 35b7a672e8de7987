"""Vocabularies of SentencePiece's BPE, which have scores and no merges, as an encoder of `tokenizers`.

SentencePiece joins, again and again, the two neighbours whose piece has the highest score, the leftmost of
equals. A BPE joins by the rank of a pair, so all ways to split a piece into two others are ranked by the
piece's score: how `transformers` converts such vocabularies too. Blanks are written as ▁, also one before the
text where the model wants it, and what has no piece is spelled in bytes. Text is not normalised otherwise:
the models that are run here were trained so. Tests: tests/engine/test_sentencepiece.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, normalizers
from tokenizers.models import BPE

__all__ = ["build_sentencepiece"]

_BLANK = "▁"
# GGUF's types of tokens that are part of texts: plain, and the bytes. Control tokens are in no text, and
# those that a user defined are found before anything is joined.
_NORMAL = 1
_UNKNOWN = 2


def build_sentencepiece(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], *, has_prefix: bool
) -> Encoder:
    """scores, types: of each token. has_prefix: whether a blank stands before every text."""
    joined = {
        token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == _NORMAL
    }
    unknown = [token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN]
    encoder = Encoder(
        BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_rank(joined),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    blanks: list[Any] = [normalizers.Replace(" ", _BLANK)]
    parts: list[Any] = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        blanks.insert(0, normalizers.Prepend(_BLANK))
        parts.append(decoders.Strip(" ", 1, 0))
    encoder.normalizer = normalizers.Sequence(blanks)
    encoder.decoder = decoders.Sequence(parts)
    return encoder


def _rank(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """All pairs whose join is a piece, the highest score first."""
    pairs = [
        (score, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    pairs.sort(key=lambda pair: -pair[0])
    return [(left, right) for _, left, right in pairs]
