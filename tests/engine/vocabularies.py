"""A small byte-level BPE, trained in a moment, and texts that tokenizers disagree on."""

import json
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

__all__ = ["CONTROL", "OWN", "TEMPLATE", "TEXTS", "train", "vocabulary"]

CONTROL = ["<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"]
OWN = ["<think>", "</think>"]
TEXTS = [
    "",
    "Hello, world! Hello again.",
    "  two  spaces,\ttabs\r\nand\n\n\nlines  ",
    "naïve cafe\u0301, 東京, Ελλάδα, עברית, 👩‍👩‍👧",
    "0123456789 3.14 1e-9 ½ ٣ 12345",
    "don't DON'T it's we'LL I'm",
    "def f(x):\n    return x['it''s'] != 0x2F",
    "<|begin_of_text|>the <think>river</think> end<|eot_id|> and <|not_one|>",
    "\x00\x7f\ufffd",
]
# What templates of real models use: a namespace, loop controls, JSON, the names of control tokens.
TEMPLATE = """{{ bos_token }}{%- set ns = namespace(count=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}{% continue %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {{- '[' + message.role + ns.count | string + ']' + message.content | trim + eos_token }}
{%- endfor %}
{%- if tools is not none and tools %}{{ raise_exception('no tools here') }}{% endif %}
{%- if messages[0].role == 'tool' %}{{ raise_exception('begins with a tool') }}{% endif %}
{{- {'of': 'é<'} | tojson }}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


def train() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=420,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = "the river, the hello world it's don't  spaces\n\n lines return again e\u0301 \u00e9"
    tokenizer.train_from_iterator([words, "123/123/123/12345/12345/45/45/45"] * 4, trainer)
    tokenizer.add_tokens(OWN)
    return tokenizer


def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens with their ids, control tokens and its own included; merges in order."""
    tokenizer = train()
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return tokenizer.get_vocab(), [(left, right) for left, right in model["merges"]]
