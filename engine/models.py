"""The models that can be asked for by name."""

from engine.checkpoint import Checkpoint, find_smollm2
from engine.config import ModelConfig
from engine.weights import Weights, load_weights, random_weights

__all__ = ["MODEL_NAMES", "TINY", "load_model_weights"]

# Random weights, the same in every process: for tests, where only memory matters and not what is said.
TINY = ModelConfig(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context_length=4096,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
)
TINY_SEED = 1
MODEL_NAMES = ("smollm2", "tiny")


def load_model_weights(name: str) -> Weights:
    """In fp32, so that greedy answers do not depend on how work was cut into batches."""
    if name == "tiny":
        return random_weights(TINY, TINY_SEED)
    if name == "smollm2":
        return load_weights(Checkpoint(find_smollm2()))
    raise ValueError(f"no model is called {name!r}; there are {', '.join(MODEL_NAMES)}")
