"""What the model computes in one forward pass: tokens, their places, and the contexts that they attend to.

A batch is a chunk of one prompt (`prefill`), one new token for each of many sequences (`decode`), or both at
once (`mixed`). All are described in the same fields.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Tensors of one forward pass. Sequences stand one after the other; `tokens` counts all new tokens."""

    # int64[tokens]: the new tokens.
    token_ids: torch.Tensor
    # int64[tokens]: each one's place in its sequence, from 0.
    positions: torch.Tensor
    # int64[tokens]: where its KV goes, `frame * block_tokens + offset`.
    slot_mapping: torch.Tensor
    # int64[sequences + 1]: where each sequence's new tokens begin; the last is `tokens`.
    query_starts: torch.Tensor
    # The most new tokens of a sequence, known on the host.
    query_len_max: int
    # int64[sequences]: tokens of each context, the new ones included.
    context_lens: torch.Tensor
    # The largest of `context_lens`, known on the host.
    context_len_max: int
    # int32 or int64 [sequences, blocks]: frames in token order, then any frame numbers.
    block_tables: torch.Tensor
    # Where chunk and single tokens are mixed: so many sequences at the front have one new token each.
    decode_count: int = 0

    @property
    def is_decode(self) -> bool:
        """One new token a sequence. (A prefill chunk of a single token is the same work.)"""
        return self.query_len_max == 1

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        """The same batch with each tensor as `move` returns it: elsewhere, as a rule."""
        moved: dict[str, Any] = {
            field.name: move(tensor)
            for field in fields(self)
            if isinstance(tensor := getattr(self, field.name), torch.Tensor)
        }
        return replace(self, **moved)

    @classmethod
    def prefill(
        cls, token_ids: npt.ArrayLike, *, cached: int, block_table: npt.ArrayLike, block_tokens: int
    ) -> "Batch":
        """The next `token_ids` of one sequence whose first `cached` tokens have their KV in the pool.

        block_table: the frames of at least `cached + len(token_ids)` tokens, in token order.
        """
        ids = np.array(token_ids, dtype=np.int64)
        tables = _tables(block_table)[None]
        positions = np.arange(cached, cached + len(ids))
        rows = np.zeros_like(positions)
        return cls._build(ids, rows, positions, np.array([len(ids)]), tables, block_tokens)

    @classmethod
    def decode(
        cls,
        token_ids: npt.ArrayLike,
        *,
        context_lens: npt.ArrayLike,
        block_tables: npt.ArrayLike,
        block_tokens: int,
    ) -> "Batch":
        """One new token for each sequence.

        context_lens  [sequences]: tokens of each context with the new token
        block_tables  [sequences, blocks]: padded with any frame number; int32 or int64 arrays are used in
                      place, not copied, and must not change before the forward pass has ended
        """
        ids = np.array(token_ids, dtype=np.int64)
        positions = np.asarray(context_lens, dtype=np.int64) - 1
        rows = np.arange(len(ids))
        return cls._build(ids, rows, positions, np.ones_like(ids), _tables(block_tables), block_tokens)

    @classmethod
    def mixed(
        cls,
        token_ids: npt.ArrayLike,
        chunk: npt.ArrayLike,
        *,
        context_lens: npt.ArrayLike,
        cached: int,
        block_tables: npt.ArrayLike,
        block_tokens: int,
    ) -> "Batch":
        """One new token for each sequence but the last, and the next `chunk` of that.

        token_ids     [sequences - 1]: as in `decode`
        context_lens  [sequences - 1]: tokens of each of their contexts with the new token
        cached        tokens of the last sequence that have their KV in the pool
        block_tables  [sequences, blocks]: as in `decode`
        """
        singles, ids = np.array(token_ids, dtype=np.int64), np.array(chunk, dtype=np.int64)
        lens = np.array([*np.ones_like(singles), len(ids)])
        places = np.asarray(context_lens, dtype=np.int64) - 1
        return cls._build(
            np.concatenate((singles, ids)),
            np.repeat(np.arange(len(lens)), lens),
            np.concatenate((places, np.arange(cached, cached + len(ids)))),
            lens,
            _tables(block_tables),
            block_tokens,
            decode_count=len(singles),
        )

    @classmethod
    def _build(
        cls,
        token_ids: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        query_lens: npt.NDArray[np.int64],
        block_tables: npt.NDArray[np.integer],
        block_tokens: int,
        decode_count: int = 0,
    ) -> "Batch":
        """`rows` names each token's sequence; a sequence's last token is the last of its context."""
        if len(token_ids) == 0 or len(rows) != len(token_ids) or len(positions) != len(token_ids):
            raise ValueError(f"a batch of {len(token_ids)} tokens with {len(positions)} positions")
        context_len_max = int(positions.max()) + 1
        room = block_tables.shape[1] * block_tokens
        if positions.min() < 0 or context_len_max > room:
            raise ValueError(f"positions {positions.min()}..{positions.max()}, but frames for {room} tokens")
        frames = block_tables[rows, positions // block_tokens].astype(np.int64)
        ends = np.cumsum(query_lens)
        return cls(
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(frames * block_tokens + positions % block_tokens),
            query_starts=torch.from_numpy(np.concatenate(([0], ends))),
            query_len_max=int(query_lens.max()),
            context_lens=torch.from_numpy(positions[ends - 1] + 1),
            context_len_max=context_len_max,
            block_tables=torch.from_numpy(block_tables),
            decode_count=decode_count,
        )


def _tables(block_tables: npt.ArrayLike) -> npt.NDArray[np.integer]:
    """Block tables in a type that torch can index with, copied only if they are not."""
    tables = np.asarray(block_tables)
    return tables if tables.dtype in (np.int32, np.int64) else tables.astype(np.int64)
