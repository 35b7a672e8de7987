"""A model by name, with its weights and its words."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.checkpoint import Checkpoint, find_smollm2
from engine.model import Llama
from engine.models import load_model_weights
from engine.server.tiny_words import TinyWords
from engine.server.words import Message, Words
from engine.tokenizer import Tokenizer
from engine.weights import load_weights

__all__ = ["Loaded", "load"]


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Llama
    words: Words


def load(name: str) -> Loaded:
    """Raises ValueError for a name that is none, and ModelNotFoundError for a model that is not there."""
    if name == "smollm2":
        checkpoint = Checkpoint(find_smollm2())
        return Loaded(Llama(load_weights(checkpoint)), _ChatWords(checkpoint))
    return Loaded(Llama(load_model_weights(name)), TinyWords())


class _ChatWords(Tokenizer):
    """A tokenizer that shows the text of a conversation too."""

    def render(self, messages: Sequence[Message]) -> str:
        return self._template.render(messages=messages, add_generation_prompt=True, **self._names)
