"""A request, and the stream of tokens that comes of it.

A `Request` is what was asked for and never changes. A `Stream` is the request as the engine runs it: its
tokens, how much of their KV is written, and the sequence that holds it in the store. A stream outlives its
sequences: when the service is lost it keeps its tokens and is admitted again under a new id.
"""

import time
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.sampling import GREEDY, Choice, Sampling
from kvstore.client import KeyChain

__all__ = [
    "CHUNK_TOKENS",
    "NO_SEQUENCE",
    "Cached",
    "Request",
    "Stream",
    "StreamState",
    "Work",
    "chunk_end",
]

# A prefill chunk has at most so many tokens. All but the last end at multiples of this, counted from position
# 0, whatever was cached: so that a run with a cached prefix and one without cut a prompt at the same places.
CHUNK_TOKENS = 256
# Sequences are numbered from 1.
NO_SEQUENCE = 0


class StreamState(Enum):
    """What the engine does with a stream. Where its blocks are is the store's to know."""

    QUEUED = auto()  # Holds no frames yet; the store may keep a ticket for it.
    LOADING = auto()  # Has its frames; cached or swapped blocks are on their way into them.
    RUNNING = auto()
    PREEMPTED = auto()  # Swapped out or dropped, to come back by a swap in.
    FORKING = auto()  # Is to share the blocks of the sequence that it goes on from.
    SEARCHING = auto()  # Holds nothing itself: its beams look for its answer.
    FINISHED = auto()
    FAILED = auto()
    CANCELLED = auto()


DONE = (StreamState.FINISHED, StreamState.FAILED, StreamState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for."""

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    # The conversation that this is a turn of; empty: none, and its blocks are kept as plain cache.
    session: str = ""
    turn: int = 0
    # Of two streams the one of higher priority goes first, and among equals the users take turns.
    priority: int = 0
    # Whose it is: among users what is computed is shared fairly. Empty: one user of all who name none.
    user: str = ""
    # Tokens that end the answer; the one that did is its last.
    stop_ids: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    # Answers to the same prompt, which is computed once.
    samples: int = 1
    # Above 1: the answers are the best of a beam search over so many, and nothing is drawn.
    beams: int = 1
    # When it was asked: what its first token's time is counted from.
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Leading tokens that were found in each tier when a sequence was admitted."""

    gpu: int
    cpu: int
    disk: int


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """One answer to a request on its way. Made by `Scheduler.submit`; compared by identity.

    Of several samples the first computes the prompt, and the others follow: from the same logits each draws
    its own first token, and then they share the prompt's blocks.
    """

    request: Request
    # Its number among the samples of the request.
    sample: int = 0
    # Other samples that wait for this one to compute the prompt.
    followers: list["Stream"] = field(default_factory=list)
    # FORKING: the sequence whose blocks it is to share.
    parent: int = NO_SEQUENCE
    # Tokens that it may write, as it was granted last. Whoever shares blocks since a fork asks anew before it
    # writes behind them.
    room: int = 0
    # Sequences that it is, or is to become by forks.
    width: int = 1
    # Keys of all full blocks of `tokens`, whether their KV is written or not.
    chain: KeyChain
    # Prompt and answer so far.
    tokens: list[int]
    state: StreamState = StreamState.QUEUED
    # Its priority, and what it has gained by waiting until it was admitted last.
    level: int = 0
    # Its number in the order of first admissions, from 1; 0: never admitted yet.
    place: int = 0
    # Since when it is not on the GPU: its arrival, its last preemption or the loss of the service.
    waits_since: float = 0.0
    # Its id in the store, never used again.
    sequence: int = NO_SEQUENCE
    # Leading tokens whose KV is written. The last token's is not, before it has been fed to the model.
    computed: int = 0
    # Leading blocks that are committed, or came out of the cache.
    committed_blocks: int = 0
    cached: Cached = Cached(gpu=0, cpu=0, disk=0)
    # How often it was admitted anew: once, and once more for each loss of the service.
    admissions: int = 0
    preemptions: int = 0
    # Of each token of the answer, by how much its logit was ahead of the next best.
    margins: list[float] = field(default_factory=list)
    first_token_seconds: float = 0.0
    # FAILED or CANCELLED: why, in words for the one who asked.
    reason: str = ""

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def is_done(self) -> bool:
        return self.state in DONE

    @property
    def tokens_pending(self) -> int:
        """Tokens that the model has not been fed yet: one while decoding, more before that."""
        return len(self.tokens) - self.computed

    @property
    def ends_with_next_token(self) -> bool:
        """Whether the pass to come is its last for sure: by a stop token, say, any may be."""
        is_last = len(self.margins) + 1 >= self.request.max_new_tokens
        is_alone = self.request.beams == 1 and not self.followers
        return is_last and is_alone and self.tokens_pending == 1 and self.has_room

    @property
    def next_chunk(self) -> int:
        """Tokens of the next piece of work on this stream."""
        return chunk_end(self.computed, len(self.tokens)) - self.computed

    def findable_blocks(self, block_tokens: int) -> int:
        """Leading blocks that a cache may have. The one with the last token is never a hit: its logits have
        to be computed."""
        return (len(self.tokens) - 1) // block_tokens

    @property
    def has_room(self) -> bool:
        return self.room >= len(self.tokens)

    def room_needed(self, block_tokens: int, ahead_tokens: int = 0) -> int:
        """In tokens, to the end of the last block: then it is asked for once a block, not once a token.

        ahead_tokens: that it will have beside, by the time that the room is there
        """
        if self.takes_room_exactly:
            return len(self.tokens)
        return -(-(len(self.tokens) + ahead_tokens) // block_tokens) * block_tokens

    def has_prompt_to_commit(self, block_tokens: int) -> bool:
        """Whether blocks of its prompt are full, and not told yet."""
        return self.committed_blocks < min(self.computed, len(self.request.prompt)) // block_tokens

    @property
    def takes_room_exactly(self) -> bool:
        """A fork shares its last block as part-filled by what was asked for."""
        return bool(self.followers) or self.request.beams > 1

    def arrive(self, valid_tokens: int, block_tokens: int) -> None:
        """Its blocks are on the GPU, the leading `valid_tokens` with content."""
        self.state = StreamState.RUNNING
        self.computed = min(valid_tokens, len(self.tokens) - 1)
        self.committed_blocks = min(self.committed_blocks, self.computed // block_tokens)

    def add(self, choice: Choice) -> None:
        """Takes the model's next token, and finishes when it was the last."""
        if not self.margins:
            self.first_token_seconds = time.monotonic() - self.request.arrived
        self.take(choice.token)
        self.margins.append(choice.margin)
        if choice.token in self.request.stop_ids or len(self.margins) >= self.request.max_new_tokens:
            self.state = StreamState.FINISHED

    def take(self, token: int) -> None:
        self.tokens.append(token)
        self.chain.extend([token])

    def finish(self, answer: list[int]) -> None:
        """Its beams have found this for it; it holds nothing itself."""
        self.first_token_seconds = time.monotonic() - self.request.arrived
        self.tokens = [*self.request.prompt, *answer]
        self.state = StreamState.FINISHED

    def start_over(self) -> None:
        """Nothing of it is in the store any more, but its tokens stay."""
        self.state = StreamState.QUEUED
        self.sequence = self.parent = NO_SEQUENCE
        self.computed = self.committed_blocks = self.room = 0


@dataclass(frozen=True, slots=True)
class Work:
    """One forward pass: one token for each of many streams, a chunk of one stream's tokens, or both."""

    decoded: list[Stream]
    # At most one, so that nobody's next token waits for more than a chunk.
    prefilled: list[Stream] = field(default_factory=list)
    # Tokens of that chunk.
    chunk_tokens: int = 0

    @property
    def streams(self) -> list[Stream]:
        """All of them, in the order of the batch."""
        return [*self.decoded, *self.prefilled]

    def tokens_of(self, stream: Stream) -> int:
        """New tokens of it; 0: it isn't computed here."""
        if stream in self.prefilled:
            return self.chunk_tokens
        return int(stream in self.decoded)

    @property
    def token_counts(self) -> list[int]:
        """New tokens of each of `streams`."""
        return [1] * len(self.decoded) + [self.chunk_tokens] * len(self.prefilled)


def chunk_end(first: int, end: int) -> int:
    """Where the chunk that begins at token `first` ends: on the grid, or with the tokens.

    What is left behind a cached prefix is one chunk, if it is no longer than one, wherever the grid is: to
    cut it there would be a second pass.
    """
    if end - first <= CHUNK_TOKENS:
        return end
    return (first // CHUNK_TOKENS + 1) * CHUNK_TOKENS
