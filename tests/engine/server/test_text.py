"""Text comes out of tokens piece by piece, and is the text of all of them."""

import random

import pytest

from engine.models import open_model
from engine.server.text import TextStream
from engine.server.tiny_words import TinyWords
from engine.tokenizer import Tokenizer

TEXT = "naïve café, 東京 👩‍👩‍👧 – plain, ½ and \ufffd itself"


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return open_model("smollm2").load_tokenizer()


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def words(request, smollm2):
    return TinyWords() if request.param == "tiny" else smollm2


def pieces_of(words, ids) -> list[str]:
    stream = TextStream(words.decode)
    return [*(stream.add(token) for token in ids), stream.end()]


def test_a_character_comes_when_it_is_whole(words):
    pieces = pieces_of(words, words.encode("a東京👩"))
    assert "".join(pieces) == "a東京👩"
    assert not any("\ufffd" in piece for piece in pieces)


def test_all_pieces_are_the_whole_text(words):
    assert "".join(pieces_of(words, words.encode(TEXT))) == TEXT


@pytest.mark.parametrize("seed", range(20))
def test_tokens_at_random_give_what_decode_gives(words, seed):
    draw = random.Random(seed)
    ids = [draw.randrange(words.vocab_size) for _ in range(60)]
    assert "".join(pieces_of(words, ids)) == words.decode(ids)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_that_are_no_text_for_long_give_what_decode_gives(seed):
    words, draw = TinyWords(), random.Random(seed)
    ids = [draw.choice([0x80, 0xBF, 0xC3, 0xE6, 0xF0]) for _ in range(400)]
    ids += "東京".encode()
    assert "".join(pieces_of(words, ids)) == words.decode(ids)


def test_bytes_that_never_become_a_character_come_out_at_the_end():
    words = TinyWords()
    stream = TextStream(words.decode)
    assert [stream.add(token) for token in "é".encode()[:1] * 3] == ["", "\ufffd", "\ufffd"]
    assert stream.end() == "\ufffd"


def test_whole_tokens_within_a_text_are_found():
    words = TinyWords()
    stream = TextStream(words.decode)
    for token in [*b"a", *"é".encode(), 258, *"é".encode()[:1]]:  # 258 is a pair of letters.
        stream.add(token)
    assert [stream.tokens_within(length) for length in range(6)] == [
        (0, 0), (1, 1), (3, 2), (3, 2), (4, 4), (4, 4),
    ]  # fmt: skip
