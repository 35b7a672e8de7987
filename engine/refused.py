"""How a model is refused: by the field, its value, why, and what to do about it."""

from pathlib import Path

__all__ = ["ModelRefused", "TokenizerRefused"]


class ModelRefused(ValueError):
    """A model that this engine does not run, or one whose files are damaged."""

    def __init__(self, path: Path, what: str, why: str, remedy: str) -> None:
        """what: the field and its value, a tensor or a file, as it is named there."""
        super().__init__(f"{path}: {what}: {why}; remedy: {remedy}")


class TokenizerRefused(ModelRefused):
    """There is no tokenizer, or none that can be read. Token ids can be computed all the same."""
