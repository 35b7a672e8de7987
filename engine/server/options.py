"""What a server is to be, and what is started for it: checked before, and passed down."""

from dataclasses import dataclass, field
from pathlib import Path

from engine.kv.set_ups import FULL, RESERVE_TOKENS_MAX, SetUp
from engine.server.kv_choice import KVChoice
from engine.server.limits import Limits

__all__ = ["Asked", "Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    # As it is called in requests.
    model: str
    # The service's socket; empty: this user's default.
    kvstore: str = ""
    host: str = "127.0.0.1"
    # 0: any that is free.
    port: int = 8000
    # What requests have to bring; empty: none is asked for.
    api_key: str = ""
    set_up: SetUp = FULL
    # The process's own memory for KV, where the set-up has no service.
    kv_bytes: int = 0
    block_tokens: int = 16
    # What each request has room for, where that is reserved; 0: the model's context, up to a bound.
    reserve_tokens: int = 0
    # Sequences that are computed at once.
    running_max: int = 16
    # How long the service may be away when the server starts.
    attach_seconds: float = 60.0
    limits: Limits = field(default_factory=Limits)

    def request_tokens_max(self, context_tokens: int) -> int:
        """What a request may have, of a model with this context."""
        if not self.set_up.is_contiguous:
            return context_tokens
        return min(self.reserve_tokens or RESERVE_TOKENS_MAX, context_tokens)

    def frame_tokens(self, context_tokens: int) -> int:
        """Of a frame of the pool; contiguous: a request has one, and that all of its room."""
        return self.request_tokens_max(context_tokens) if self.set_up.is_contiguous else self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Beside what the server itself is to be."""

    # A name or a path.
    model: str
    dtype: str
    device: str
    threads: int
    choice: KVChoice
    # The service is to be started, if the set-up has one.
    is_own: bool
    # Of that service; None: a temporary one.
    folder: Path | None
