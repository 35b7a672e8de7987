"""A model by name or path, with its weights and its words.

It is loaded by a thread that ends then. A thread that has computed keeps the helpers that OpenMP gave it;
where those of the thread that loads stand beside those of the engine's there are more than cores, and then
libgomp lets them sleep at once when they wait: every forward pass took a fifth longer. Tests:
tests/engine/server/test_loading.py.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

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
    loaded: Future[Loaded] = Future()

    def run() -> None:
        try:
            loaded.set_result(_load(name, model, dtype, device))
        except BaseException as error:
            loaded.set_exception(error)

    # A daemon: who interrupts it does not wait for its end.
    thread = Thread(target=run, name="loading", daemon=True)
    thread.start()
    result = loaded.result()
    thread.join()
    return result


def _load(name: str, model: Model, dtype: str, device: str) -> Loaded:
    place = open_device(device)
    words = TinyWords() if name == "tiny" else model.load_tokenizer()
    return Loaded(Llama(place.place(model.load_weights(DTYPES[dtype]))), words, device)
