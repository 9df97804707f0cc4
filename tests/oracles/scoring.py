"""Attention scores written down in plain Python: what every oracle of this folder starts from.

The oracles know nothing of posbench: lists and float64, one batch item, loops over heads, queries and keys, meant for
40 tokens or fewer. q and k are (H, T, D), already projected; x is (T, C); positions has T entries. A result is
(H, T, T): the scores before the softmax, None where the query may not look. Which key a query may see follows the
order of the tokens (j <= i); distances follow the position ids, which need not be consecutive.

"Source" says where a formula is from. methods.md and known-faults (EXT-, BIAS-, PAIR-, PREC-) are the formula sheet and
the list of faults that posbench was planned from; neither is part of the repository. A paper named without "through
methods.md" is cited from memory of it. "Certain", "likely" and "not pinned down" say how far a disagreement with an
oracle should be trusted.

Import them as `from oracles.rotations import rope`; tests/ is on the path of every test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Vector = Sequence[float]
Matrix = Sequence[Vector]
Heads = Sequence[Matrix]
Scores = list[list[list[float | None]]]


def dot(a: Vector, b: Vector) -> float:
    """The inner product of two vectors of one length."""
    assert len(a) == len(b)
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def times(matrix: Matrix, vector: Vector) -> list[float]:
    """matrix (M, N) times vector (N)."""
    return [dot(row, vector) for row in matrix]


def plus(a: Vector, b: Vector) -> list[float]:
    """The sum of two vectors."""
    return [x + y for x, y in zip(a, b, strict=True)]


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x)."""
    return 1 / (1 + math.exp(-x))


def softplus(x: float) -> float:
    """ln(1 + e^x), without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def leaky_relu(x: float, slope: float = 0.01) -> float:
    """x where positive, else slope * x (0.01 is PyTorch's default)."""
    return x if x > 0 else slope * x


def causal(heads: int, tokens: int, score: Callable[[int, int, int], float | None]) -> Scores:
    """(H, T, T) from score(head, query, key), called only where key <= query; None elsewhere."""
    return [[[score(h, i, j) if j <= i else None for j in range(tokens)] for i in range(tokens)] for h in range(heads)]


def product(q: Heads, k: Heads, h: int, i: int, j: int) -> float:
    """q_i . k_j / sqrt(d) of one head."""
    return dot(q[h][i], k[h][j]) / math.sqrt(len(q[h][i]))


def softmax(row: Sequence[float | None]) -> list[float]:
    """The attention weights of one row; 0 where the score is None."""
    top = max(score for score in row if score is not None)
    powers = [0.0 if score is None else math.exp(score - top) for score in row]
    return [power / math.fsum(powers) for power in powers]


def weights(scores: Scores) -> list[list[list[float]]]:
    """Softmax of each row of (H, T, T) scores."""
    return [[softmax(row) for row in head] for head in scores]


def mixed(scores: Scores, v: Heads) -> list[list[list[float]]]:
    """The attention output (H, T, D): weights times values."""
    return [
        [[math.fsum(w * v[h][j][c] for j, w in enumerate(row)) for c in range(len(v[h][0]))] for row in head]
        for h, head in enumerate(weights(scores))
    ]
