"""SentencePiece's vocabularies against its rule: join the neighbours whose piece has the highest score."""

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import normalizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from engine.formats.gguf_file import GGUFFile
from engine.formats.gguf_tokenizer import read_tokenizer
from engine.tokenizer import Tokenizer
from tests.engine.gguf_writer import write_keys
from tests.engine.vocabularies import TEXTS

CONTROL = ["<unk>", "<s>", "</s>"]
CORPUS = "the river flows to the sea, the rivers flow; abab ababab aaa aaaa banana bandana 12 123 1234"
PLAIN, UNKNOWN, SPECIAL, BYTE = 1, 2, 3, 6


@pytest.fixture(scope="module")
def pieces() -> dict[str, float]:
    """Plain pieces with their scores, as SentencePiece gives them: minus the place at which it found each."""
    encoder = Encoder(BPE())
    encoder.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = BpeTrainer(vocab_size=120, show_progress=False, special_tokens=CONTROL)
    encoder.train_from_iterator([CORPUS] * 2, trainer)
    vocab = encoder.get_vocab()
    joined = sorted(
        (token for token in vocab if len(token) > 1 and token not in CONTROL), key=vocab.__getitem__
    )
    letters = [token for token in vocab if len(token) == 1]
    assert len(joined) > 50
    return {token: -float(place) for place, token in enumerate(joined + letters)}


def read(path: Path, pieces: dict[str, float], **changes: bool) -> Tokenizer:
    tokens = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    keys = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + list(pieces.values()),
        "token_type": [UNKNOWN, SPECIAL, SPECIAL] + [BYTE] * 256 + [PLAIN] * len(pieces),
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    write_keys(path, "llama", {f"tokenizer.ggml.{name}": value for name, value in keys.items()}, {})
    return read_tokenizer(GGUFFile(path))


def join(text: str, pieces: dict[str, float]) -> list[int]:
    """llama.cpp's `llm_tokenizer_spm`, without its queue: tokens as ids of the file above."""
    symbols = list(text)
    while True:
        places = [place for place in range(len(symbols) - 1) if symbols[place] + symbols[place + 1] in pieces]
        if not places:
            break
        best = max(places, key=lambda place: (pieces[symbols[place] + symbols[place + 1]], -place))
        symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]
    ids = {piece: 259 + place for place, piece in enumerate(pieces)}
    return [
        token
        for symbol in symbols
        for token in ([ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()])
    ]


def test_texts_are_joined_by_score(tmp_path, pieces):
    tokenizer = read(tmp_path / "m.gguf", pieces)
    draw = random.Random(0)
    random_texts = ["".join(draw.choices("ab an 12the rivers,é", k=40)) for _ in range(200)]
    longest = 0
    for text in [CORPUS, "abababa", "aaaaaaa", "  two blanks ", *TEXTS[1:], *random_texts]:
        ids = tokenizer.encode(text)
        assert ids == join("▁" + text.replace(" ", "▁"), pieces), text
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_prompt(text) == [1, *ids]
        longest = max(longest, len(text) - len(ids))
    assert longest > 30


def test_a_file_may_ask_for_neither_blank_nor_token_before_a_text(tmp_path, pieces):
    tokenizer = read(tmp_path / "m.gguf", pieces, add_space_prefix=False, add_bos_token=False)
    assert tokenizer.encode_prompt("the sea") == join("the▁sea", pieces)
    assert tokenizer.decode(tokenizer.encode(" the sea")) == " the sea"


def test_control_tokens_are_known_in_a_text_and_end_it(tmp_path, pieces):
    tokenizer = read(tmp_path / "m.gguf", pieces)
    assert tokenizer.eos_ids == {2}
    assert tokenizer.encode("<s>sea</s>") == [1, *join("▁sea", pieces), 2]
    assert tokenizer.decode([1, *join("▁sea", pieces), 2]) == "sea"
