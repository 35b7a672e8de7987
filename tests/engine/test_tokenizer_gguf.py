"""Tokenizers that GGUF files carry, against those of `transformers` with the same vocabulary."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from engine.formats.gguf_file import GGUFFile
from engine.formats.gguf_tokenizer import read_tokenizer
from engine.refused import TokenizerRefused
from engine.tokenizer import Tokenizer
from tests.engine.gguf_writer import write_keys
from tests.engine.vocabularies import CONTROL, OWN, TEMPLATE, TEXTS, vocabulary

BEGIN, TURN, END = CONTROL


def write(path: Path, pre: str, **changes: Any) -> GGUFFile:
    tokens, merges = vocabulary()
    ordered = sorted(tokens, key=lambda token: tokens[token])
    kinds = dict.fromkeys(CONTROL, 3) | dict.fromkeys(OWN, 4)
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": ordered,
        "token_type": [kinds.get(token, 1) for token in ordered],
        "merges": [f"{left} {right}" for left, right in merges],
        "bos_token_id": tokens[BEGIN],
        "eos_token_id": tokens[TURN],
    } | changes
    named = {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not ...}
    write_keys(path, "llama", named | {"tokenizer.chat_template": TEMPLATE}, {})
    return GGUFFile(path)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token]) for token in tokenizer.encode(text)]


def test_qwen2s_tokens_are_those_of_transformers(tmp_path):
    from transformers import Qwen2Tokenizer

    tokens, merges = vocabulary()
    # It takes pairs, and says strings.
    pairs: Any = merges
    theirs = Qwen2Tokenizer(
        vocab=tokens, merges=pairs, bos_token=BEGIN, eos_token=TURN, unk_token=END, pad_token=END
    )
    theirs.add_tokens([AddedToken(token, normalized=False) for token in OWN])
    ours = read_tokenizer(write(tmp_path / "m.gguf", "qwen2"))
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.encode_prompt(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    # Composed and decomposed letters are the same to it.
    assert ours.encode("e\u0301") == ours.encode("\u00e9")
    assert pieces(ours, "12345") == list("12345")


def test_llama3_takes_three_digits_and_whole_words_and_begins_with_a_token(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path / "m.gguf", "llama-bpe"))
    # In GPT-2's way all five digits would be one piece, and one token.
    tokens, merges = vocabulary()
    assert "12345" in tokens
    assert pieces(tokenizer, "12345") == ["123", "45"]
    assert tokenizer.encode_prompt("the") == [tokens[BEGIN], *tokenizer.encode("the")]
    # No rule leads to this token any more, but it is the whole word.
    cut = [f"{left} {right}" for left, right in merges if left + right != "the"]
    whole = read_tokenizer(write(tmp_path / "cut.gguf", "llama-bpe", merges=cut))
    assert whole.encode("the") == [tokens["the"]]
    assert len(read_tokenizer(write(tmp_path / "qwen.gguf", "qwen2", merges=cut)).encode("the")) > 1


def test_control_tokens_and_its_own(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path / "m.gguf", "llama-bpe"))
    tokens, _ = vocabulary()
    ids = tokenizer.encode(f"{BEGIN}<think>the</think>{TURN}")
    assert ids[:2] == [tokens[BEGIN], tokens["<think>"]]
    assert tokenizer.decode(ids) == "<think>the</think>"
    assert tokenizer.eos_ids == {tokens[TURN], tokens[END]}
    assert tokenizer.render([{"role": "user", "content": "x"}]).startswith(f"{BEGIN}[user1]x{TURN}")
    silent = read_tokenizer(write(tmp_path / "silent.gguf", "llama-bpe", add_bos_token=False))
    assert silent.encode_prompt("the") == silent.encode("the")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ...}, "tokenizer.ggml.model: the file has no tokenizer"),
        ({"model": "bert"}, "tokenizer.ggml.model = 'bert': only"),
        ({"pre": "deepseek-llm"}, "tokenizer.ggml.pre = 'deepseek-llm': only smollm, llama-bpe, qwen2"),
        ({"model": "llama"}, "tokenizer.ggml.scores: it is missing"),
        ({"model": "llama", "scores": [0.0]}, "1 tokenizer.ggml.scores: there are"),
        ({"merges": ...}, "tokenizer.ggml.merges: it is missing"),
        ({"token_type": [1, 1]}, "2 tokenizer.ggml.token_type: there are"),
        ({"bos_token_id": 100_000}, "a control token's id 100000: there are"),
    ],
)
def test_what_can_not_be_read_is_refused(tmp_path, changes, message):
    file = write(tmp_path / "m.gguf", **({"pre": "qwen2"} | changes))
    with pytest.raises(TokenizerRefused) as refused:
        read_tokenizer(file)
    assert message in str(refused.value)
    assert "; remedy: " in str(refused.value)
