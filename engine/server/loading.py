"""A model by name or path, with its weights and its words."""

from dataclasses import dataclass

from engine.devices import open_device
from engine.model import Llama
from engine.models import DTYPES, Model, open_model
from engine.server.tiny_words import TinyWords
from engine.server.words import Words

__all__ = ["Loaded", "load", "load_opened"]


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Llama
    words: Words
    # Where the weights are: cpu, cuda or cuda:N. Each engine opens it for itself.
    device: str = "cpu"


def load(name: str, dtype: str = "fp32", device: str = "cpu") -> Loaded:
    """`dtype`: one of DTYPES. `device`: cpu, cuda or cuda:N.

    Raises ModelNotFoundError for a model that is not there, and ModelRefused for one that this engine does
    not run, or whose tokenizer it can't read; DeviceRefused for a device that can't be had.
    """
    return load_opened(name, open_model(name), dtype, device)


def load_opened(name: str, model: Model, dtype: str, device: str) -> Loaded:
    """What `open_model(name)` has found."""
    place = open_device(device)
    words = TinyWords() if name == "tiny" else model.load_tokenizer()
    return Loaded(Llama(place.place(model.load_weights(DTYPES[dtype]))), words, device)
