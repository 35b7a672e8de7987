"""The forward pass of a Llama-family model over a paged KV pool.

Computes what `transformers` computes for Llama, Qwen2, Qwen3 and Mistral, operation by operation where
rounding could tell; the config says what they differ in. The model owns no KV: it writes and reads the frames
that a batch names, in a pool that it is given. It knows nothing of how blocks are found, shared or moved.
Tests: tests/engine/test_model.py, test_families.py, test_smollm2.py.
"""

import torch
from torch.nn.functional import linear, rms_norm, silu

from engine.batch import Batch
from engine.rope import inverse_frequencies
from engine.weights import LayerWeights, Weights
from kernels.paged_attention_decode import paged_attention_decode
from kernels.paged_attention_prefill import paged_attention_prefill
from kernels.store_kv import store_kv

__all__ = ["Llama"]


class Llama:
    """A model ready to run. It keeps nothing between calls: what they share is in the pool."""

    def __init__(self, weights: Weights) -> None:
        config = weights.config
        self.config = config
        self.weights = weights
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        angles = torch.outer(torch.arange(config.context_length).float(), frequencies)
        # dtype[context_length, 1, head_dim / 2] each; the middle axis spreads over heads.
        # Computed where all models' are, and moved: another device's cosines differ in their last bits.
        self._cos = angles.cos().to(weights.device, weights.dtype)[:, None]
        self._sin = angles.sin().to(weights.device, weights.dtype)[:, None]

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        """Compute a batch: its tokens' KV into the pool, and the logits after each sequence's last token.

        pool: `KVLayout.view` of the mapped memory,
              dtype[frames, layers, 2, block_tokens, kv_heads, head_dim].
        Returns fp32[sequences, vocab].
        """
        hidden = self.compute(batch, pool)
        return self.logits(hidden[batch.query_starts[1:] - 1])

    @torch.inference_mode()
    def compute(self, batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        """The same without the logits: what the last layer makes of each token, dtype[tokens, hidden]."""
        weights = self.weights
        hidden = weights.embedding[batch.token_ids]
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        for index, layer in enumerate(weights.layers):
            normed = self._norm(hidden, layer.attention_norm)
            hidden += self._attend(normed, layer, batch, pool[:, index], cos, sin)
            hidden += _mlp(self._norm(hidden, layer.mlp_norm), layer)
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """What comes next after each of some tokens of `compute`, fp32[tokens, vocab]."""
        weights = self.weights
        return linear(self._norm(hidden, weights.final_norm), weights.output).float()

    def _attend(
        self,
        hidden: torch.Tensor,
        layer: LayerWeights,
        batch: Batch,
        kv_layer: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """Self-attention of one layer, [tokens, hidden] to the same; stores the new K and V on the way."""
        config = self.config
        heads = config.heads + config.kv_heads
        qkv = _project(hidden, layer.qkv, layer.qkv_bias).view(len(hidden), -1, config.head_dim)
        rotated = _rotate(self._norm_heads(qkv[:, :heads], layer), cos, sin)
        query, key = rotated[:, : config.heads], rotated[:, config.heads :]
        store_kv(kv_layer, batch.slot_mapping, key, qkv[:, heads:])
        if batch.is_decode:
            attended = paged_attention_decode(
                query, kv_layer, batch.block_tables, batch.context_lens, batch.context_len_max
            )
        elif batch.decode_count:
            attended = _attend_mixed(query, kv_layer, batch)
        else:
            attended = paged_attention_prefill(
                query,
                kv_layer,
                batch.block_tables,
                batch.query_starts,
                batch.context_lens,
                batch.query_len_max,
            )
        return _project(attended.flatten(1), layer.attention_output, layer.attention_output_bias)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)

    def _norm_heads(self, heads: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        """Q and K normed head by head, [tokens, heads + kv_heads, head_dim], in models that do so."""
        if layer.qk_norm is None:
            return heads
        return rms_norm(heads, heads.shape[-1:], None, self.config.rms_norm_eps) * layer.qk_norm


def _attend_mixed(query: torch.Tensor, kv_layer: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Single tokens at the front and a chunk behind them, each as it is attended where it stands alone."""
    count = batch.decode_count
    singles = paged_attention_decode(
        query[:count],
        kv_layer,
        batch.block_tables[:count],
        batch.context_lens[:count],
        batch.context_len_max,
    )
    chunk = paged_attention_prefill(
        query[count:],
        kv_layer,
        batch.block_tables[count:],
        batch.query_starts[count:] - count,
        batch.context_lens[count:],
        batch.query_len_max,
    )
    return torch.cat((singles, chunk))


def _project(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[tokens, in] to [tokens, out]; `weight` is [in, out]."""
    return hidden @ weight if bias is None else torch.addmm(bias, hidden, weight)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, head_dim]: dimension i turns with i + head_dim / 2."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _mlp(hidden: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
    """SwiGLU, [tokens, hidden] to the same."""
    gate, up = _project(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    return _project(silu(gate) * up, layer.down, layer.down_bias)
