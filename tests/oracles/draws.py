"""Queries, keys and tokens for the oracles' own tests, and how two of their results are compared."""

from __future__ import annotations

import random
from typing import Any

import pytest
from oracles.scoring import Heads

HEADS, TOKENS, WIDTH, MODEL = 2, 12, 16, 6


def drawn(*shape: int, seed: int = 0, size: float = 1.0) -> Any:
    """Nested lists of normal numbers."""
    generator = random.Random(str((shape, seed)))

    def fill(rest: tuple[int, ...]) -> Any:
        return [fill(rest[1:]) for _ in range(rest[0])] if rest else generator.gauss(0.0, size)

    return fill(shape)


Q: Heads = drawn(HEADS, TOKENS, WIDTH, seed=1)
K: Heads = drawn(HEADS, TOKENS, WIDTH, seed=2)
X = drawn(TOKENS, MODEL, seed=3)
HERE = list(range(TOKENS))


def flat(scores: Any) -> list[float]:
    """All numbers of nested lists, None left out."""
    if isinstance(scores, (list, tuple)):
        return [number for part in scores for number in flat(part)]
    return [] if scores is None else [scores]


def same(scores: Any, others: Any, tolerance: float = 1e-12) -> bool:
    """Whether two results have the same numbers (and as many of them)."""
    return flat(scores) == pytest.approx(flat(others), rel=tolerance, abs=tolerance)
