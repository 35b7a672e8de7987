"""Which requests an engine takes: what could never be computed is refused before it is begun.

Tests: tests/engine/test_engine.py, kv/test_set_ups.py.
"""

from dataclasses import dataclass

from engine.config import ModelConfig
from engine.requests import Request
from engine.scheduling.promises import Promises

__all__ = ["AnswerRoom", "EngineError", "check_request", "find_answer_room"]

# A Fork takes 64 children.
BRANCHES_MAX = 64


class EngineError(Exception):
    """A request that this engine cannot take."""


def check_request(
    request: Request, config: ModelConfig, *, reserve_tokens: int | None, promises: Promises | None
) -> None:
    """`reserve_tokens`: what there is for each request, where that is fixed. `promises`: by which it would be
    admitted; without them only the store says what it never has room for."""
    length = len(request.prompt) + request.max_new_tokens
    if not request.prompt or request.max_new_tokens < 1:
        raise EngineError("a request needs a prompt and room for one new token")
    if length > config.context_length:
        raise EngineError(f"{length} tokens are more than the model's {config.context_length}")
    if reserve_tokens is not None and length > reserve_tokens:
        raise EngineError(f"{length} tokens are more than the {reserve_tokens} that are reserved for each")
    if not (1 <= request.samples <= BRANCHES_MAX and 1 <= request.beams <= BRANCHES_MAX):
        raise EngineError(f"samples and beams must be from 1 to {BRANCHES_MAX}")
    if request.samples > request.beams > 1:
        raise EngineError(f"{request.beams} beams are too few for {request.samples} answers")
    if min(request.prompt) < 0 or max(request.prompt) >= config.vocab_size:
        raise EngineError(f"the prompt's tokens must be from 0 to {config.vocab_size - 1}")
    if promises is not None and (blocks := promises.blocks_of(request)) > promises.frame_count:
        raise EngineError(
            f"its answers may come to need {blocks} blocks, and the KV memory has {promises.frame_count}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRoom:
    """What the pool can ever hold behind a prompt."""

    # Of the longest answer; below 1: none.
    tokens_max: int
    # Of so many answers or beams at the same time.
    at_once: int


def find_answer_room(
    prompt_tokens: int,
    *,
    samples: int,
    beams: int,
    block_tokens: int,
    frame_count: int,
    promises: Promises | None,
) -> AnswerRoom:
    """In a pool of so many frames, each of so many tokens.

    Samples that may be preempted only have to fit one by one: the others are swapped out meanwhile. But where
    they share a part-filled block at the prompt's end, whoever writes to it needs one more. Beams have to fit
    at once, as each waits with every token for all others; and with `promises` so do samples.
    """
    if promises is None and beams == 1 < samples and _lacks_a_copy(prompt_tokens, block_tokens, frame_count):
        # The first token of each is the prompt's to give.
        return AnswerRoom(tokens_max=1, at_once=samples)
    width = max(samples, beams) if promises is not None or beams > 1 else 1
    is_shared = promises is None or promises.shares
    shared = prompt_tokens // block_tokens if is_shared else 0
    blocks = (frame_count + (width - 1) * shared) // width
    # The last token of an answer is not fed to the model.
    return AnswerRoom(tokens_max=blocks * block_tokens - prompt_tokens + 1, at_once=width)


def _lacks_a_copy(prompt_tokens: int, block_tokens: int, frame_count: int) -> bool:
    """The prompt takes all frames, the last of them in part."""
    full, part = divmod(prompt_tokens, block_tokens)
    return part > 0 and full + 1 == frame_count
