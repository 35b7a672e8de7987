"""What a quantised KV cache costs a model: the perplexity of SmolLM2 on text, with blocks that came back.

    python -m bench.perplexity [TEXT ...] [--json] [--quick] [--save]

TEXT is a file of conversations, a JSON object with `messages` on each line, plain or as `.zst`; without
any, `shared/data/text/oasst_en100_paths.jsonl.zst` beside the checkout. A text is computed in chunks. After
each chunk all its blocks are quantised, and written back from that: the next chunk reads what a cold tier
would have given it. So all but the tokens of a token's own chunk come to it through the quantisation. The
reference reads the same chunks as they were; both predict the same tokens.
"""

import argparse
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import zstandard

from bench.report import ROOT, Row, add_options, make_row, tell
from engine.batch import Batch
from engine.model import Llama
from engine.models import load_model_weights, open_model
from kernels.dequantize_blocks import dequantize_blocks
from kernels.layout import KVLayout
from kernels.quantize_blocks import quantize_blocks
from kernels.quantized_layout import Quantization, QuantizedLayout

BLOCK_TOKENS, CHUNK_TOKENS, CONTEXT_TOKENS = 16, 128, 1024
# Texts of so many tokens, of conversations one after the other.
TEXTS, TEXTS_QUICK = 4, 1
DEFAULT = Path("shared", "data", "text", "oasst_en100_paths.jsonl.zst")
# More than this would be told from chance by who reads the answers.
RATIO_MAX = 1.01


def measure(ids: Sequence[int], texts: int) -> Iterator[Row]:
    """Rows of perplexity by quantisation, each over that of the lossless run, text by text."""
    torch.set_num_threads(2)
    model = Llama(load_model_weights("smollm2"))
    parts = [
        ids[first : first + CONTEXT_TOKENS] for first in range(0, texts * CONTEXT_TOKENS, CONTEXT_TOKENS)
    ]
    parts = [part for part in parts if len(part) == CONTEXT_TOKENS]
    lossless = [_perplexity(model, part, None) for part in parts]
    tokens = f"{len(parts)} texts of {CONTEXT_TOKENS:,} tokens"
    yield make_row(f"perplexity of SmolLM2, {tokens}, fp32 KV", "", lossless)
    for kind in Quantization:
        lossy = [_perplexity(model, part, kind) for part in parts]
        yield make_row(
            f"perplexity of SmolLM2, {tokens}, {kind.value} KV [fp32 KV]",
            "",
            lossy,
            reference=lossless,
            ratio_at_most=RATIO_MAX,
        )


def _perplexity(model: Llama, ids: Sequence[int], kind: Quantization | None) -> float:
    layout = model.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=model.weights.dtype)
    blocks = -(-len(ids) // BLOCK_TOKENS)
    pool = layout.view(np.zeros((blocks, layout.frame_stride_bytes), np.uint8))
    table, surprise = np.arange(blocks), 0.0
    for first in range(0, len(ids) - 1, CHUNK_TOKENS):
        chunk = ids[first : first + CHUNK_TOKENS]
        batch = Batch.prefill(chunk, cached=first, block_table=table, block_tokens=BLOCK_TOKENS)
        logits = model.logits(model.compute(batch, pool))
        following = torch.tensor(ids[first + 1 : first + 1 + CHUNK_TOKENS])
        told = torch.nn.functional.cross_entropy(logits[: len(following)], following, reduction="sum")
        surprise += float(told)
        if kind is not None:
            _through(pool, layout, kind, range(first // BLOCK_TOKENS, (first + len(chunk)) // BLOCK_TOKENS))
    return math.exp(surprise / (len(ids) - 1))


def _through(pool: torch.Tensor, layout: KVLayout, kind: Quantization, blocks: range) -> None:
    """To a cold tier and back."""
    quantised = QuantizedLayout(source=layout, quantization=kind)
    frames, filled = torch.tensor(blocks), torch.full((len(blocks),), BLOCK_TOKENS)
    staging = torch.zeros(len(blocks), quantised.block_bytes, dtype=torch.uint8)
    quantize_blocks(pool, frames, filled, staging, quantised)
    dequantize_blocks(staging, frames, pool, quantised)


def _read_ids(paths: Sequence[Path], count: int) -> list[int]:
    """At least `count` tokens, if there are so many, of conversations in the model's own template."""
    tokenizer = open_model("smollm2").load_tokenizer()
    ids: list[int] = []
    for path in paths:
        with path.open("rb") as file:
            plain = zstandard.ZstdDecompressor().stream_reader(file) if path.suffix == ".zst" else file
            for line in io.TextIOWrapper(plain):
                ids += tokenizer.chat(json.loads(line)["messages"])
                if len(ids) >= count:
                    return ids
    return ids


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.perplexity", description="SmolLM2 on text, with a quantised KV cache."
    )
    parser.add_argument("text", nargs="*", type=Path, help="files of conversations")
    add_options(parser, "perplexity")
    arguments = parser.parse_args()
    defaults = (parent / DEFAULT for parent in (ROOT, *ROOT.parents))
    paths = arguments.text or [path for path in defaults if path.is_file()][:1]
    if not paths:
        parser.error(f"no text: name a file, or put one at {DEFAULT} beside this checkout")
    texts = TEXTS_QUICK if arguments.quick else TEXTS
    tell("perplexity", measure(_read_ids(paths, texts * CONTEXT_TOKENS), texts), arguments)


if __name__ == "__main__":
    _main()
