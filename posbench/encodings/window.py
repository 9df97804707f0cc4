"""Which of the keys before it a query may see, the last few or its own block and the one before; queries in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Index = TypeVar("Index", int, Tensor)


@dataclass(frozen=True)
class Sliding:
    """The last `size` keys, the query itself among them.

    >>> [Sliding(3).first(i) for i in range(6)]
    [0, 0, 0, 1, 2, 3]
    """

    size: int

    def first(self, query: Index) -> Index:
        """The number of the first key that query number `query` sees, counted from the start of the window of text."""
        return _from_zero(query - self.size + 1)


@dataclass(frozen=True)
class Blockwise:
    """The query's own block of `size` keys and the block before it, as xPos reads long inputs.

    >>> [Blockwise(2).first(i) for i in range(6)]
    [0, 0, 0, 0, 2, 2]
    """

    size: int

    def first(self, query: Index) -> Index:
        """The number of the first key that query number `query` sees, counted from the start of the window of text."""
        return _from_zero((query // self.size - 1) * self.size)


Window = Sliding | Blockwise


class Sight(Protocol):
    """As much of a window as cutting queries into blocks asks of one."""

    def first(self, query: int) -> int:
        """The number of the first key that query number `query` may see."""


def query_blocks(n_queries: int, n_keys: int, size: int, window: Sight | None) -> list[tuple[int, int, slice]]:
    """(first query, one past the last, keys these may see) of each block, the queries being the last of the keys.

    >>> query_blocks(3, 5, 2, Sliding(2))
    [(0, 2, slice(1, 4, None)), (2, 3, slice(3, 5, None))]
    """
    blocks, past = [], n_keys - n_queries
    for a in range(0, n_queries, size):
        b = min(a + size, n_queries)
        blocks.append((a, b, slice(0 if window is None else window.first(past + a), past + b)))
    return blocks


def by_blocks(
    attended: Callable[[int, int, slice], Tensor], q: Tensor, v: Tensor, size: int, window: Sight | None
) -> Tensor:
    """What `attended` gives for each of `query_blocks`, of `size` queries, joined: (B, H, T, D).

    Where nothing is kept for a gradient the blocks of most keys come first: the next ones find room in what these
    freed, where blocks that grow would find none (docs/performance-log.md).
    """
    blocks = query_blocks(q.shape[2], v.shape[2], size, window)
    if torch.is_grad_enabled():
        parts = [attended(*block) for block in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    for a, b, keys in reversed(blocks):
        out[:, :, a:b] = attended(a, b, keys)
    return out


def _from_zero(x: Index) -> Index:
    return (x + abs(x)) // 2
