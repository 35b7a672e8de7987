"""The engine's weights in the other implementation: what the model is compared with, in tests and in time."""

from typing import TYPE_CHECKING

from engine.weights import Weights

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

__all__ = ["to_transformers"]


def to_transformers(weights: Weights) -> "LlamaForCausalLM":
    """The same weights in the other implementation."""
    # It takes seconds to import, and each of the processes that share the tests reads all files.
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

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
        query, key, value = layer.qkv.T.tensor_split(
            [shape.heads * shape.head_dim, shape.heads * shape.head_dim + kv_width], dim=0
        )
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
    if not isinstance(model, LlamaForCausalLM):
        raise TypeError(f"transformers made a {type(model).__name__}")
    model.train(False)
    # Its decorator hides the types.
    model.to(weights.dtype)  # type: ignore[arg-type]
    return model
