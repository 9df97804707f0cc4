"""Oracles for what acts on token vectors or on position ids: none, sinusoidal, learned, randomized."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from oracles.scoring import Heads, Matrix, Scores, causal, plus, product


def none(q: Heads, k: Heads, *, positions: Sequence[float]) -> Scores:
    """s_ij = q_i . k_j / sqrt(d); positions are ignored.

    Source: NoPE, Haviv et al. 2022 (arXiv 2203.16634) and Kazemnejad et al. 2023 (2305.19466); methods.md. Certain.
    """
    return causal(len(q), len(q[0]), lambda h, i, j: product(q, k, h, i, j))


def sinusoid(width: int, position: float, *, form: str = "paper", base: float = 10000.0) -> list[float]:
    """The position vector of one position, `width` numbers.

    form "paper": PE(p, 2m) = sin(p / base^(2m/width)), PE(p, 2m+1) = cos(same), m = 0 .. width/2 - 1.
    Source: Vaswani et al. 2017 (1706.03762), section 3.5. Certain.

    form "halves": the same frequencies, all sines, then all cosines (Transformer-XL's code). Certain.

    form "fairseq": all sines, then all cosines, frequency base^(-m / (width/2 - 1)); fairseq's first token has position
    2 (padding_idx + 1), so the caller adds 2 to a position that counts from 0.
    Source: methods.md ([C], the code Press et al. ran) and the docstring of the port in CompVis's latent-diffusion
    (get_timestep_embedding, "from fairseq"), which has the same frequencies. Certain.
    """
    half = width // 2
    if form == "fairseq":
        angles = [position * base ** (-m / (half - 1)) for m in range(half)]
    else:
        angles = [position * base ** (-2 * m / width) for m in range(half)]
    if form == "paper":
        return [f(angle) for angle in angles for f in (math.sin, math.cos)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


def sinusoidal(
    x: Matrix,
    *,
    positions: Sequence[float],
    form: str = "paper",
    base: float = 10000.0,
    factor: float | None = None,
    first: float = 0.0,
) -> list[list[float]]:
    """x_i <- factor * x_i + PE(first + position_i), x (T, C); factor None means sqrt(C), as fairseq and the paper do.

    Source: 1706.03762 section 3.4 (the factor) and 3.5; methods.md. `first` is 2 for fairseq's own count. Certain.
    """
    width = len(x[0])
    scale = math.sqrt(width) if factor is None else factor
    return [
        plus([scale * number for number in token], sinusoid(width, first + position, form=form, base=base))
        for token, position in zip(x, positions, strict=True)
    ]


def learned(x: Matrix, *, positions: Sequence[int], table: Matrix) -> list[list[float]]:
    """x_i <- x_i + P[position_i], table (L, C); IndexError past it (also below 0).

    Source: 1706.03762; methods.md. Whether token vectors are multiplied by sqrt(C) first is a matter of the model, not
    of the method. Certain.
    """
    if any(not 0 <= position < len(table) for position in positions):
        raise IndexError(f"positions outside of 0 .. {len(table) - 1}")
    return [plus(token, table[position]) for token, position in zip(x, positions, strict=True)]


def randomized_problems(draw: Sequence[int], *, length: int, maximum: int) -> list[str]:
    """What is wrong with one draw of position ids: [] if it is `length` distinct ascending integers of 0 .. maximum-1.

    Source: Ruoss et al. 2023 (2305.16843) through methods.md. Certain. (From memory the paper counts from 1 to M;
    methods.md from 0 to M - 1: a shift that no relative method sees, but a sinusoid's or a learned table's input.)
    """
    problems = []
    if len(draw) != length:
        problems.append(f"{len(draw)} positions instead of {length}")
    if any(int(position) != position for position in draw):
        problems.append("not integers")
    if any(not 0 <= position < maximum for position in draw):
        problems.append(f"outside of 0 .. {maximum - 1}")
    if any(later <= earlier for earlier, later in itertools.pairwise(draw)):
        problems.append("not ascending, or not distinct")
    return problems


def randomized_mean(index: int, *, length: int, maximum: int) -> float:
    """The mean of the draw's entry `index` over all draws: (index + 1)(maximum + 1)/(length + 1) - 1.

    The order statistic of a sample without replacement from 0 .. maximum-1 (a textbook fact, not in the paper). A draw
    that is sorted first and cut afterwards, or contiguous with a random offset, has another mean. Certain.
    """
    return (index + 1) * (maximum + 1) / (length + 1) - 1


def randomized_variance(index: int, *, length: int, maximum: int) -> float:
    """The variance of the draw's entry `index`; with k = index + 1, n = length, M = maximum:

    k (n + 1 - k)(M + 1)(M - n) / ((n + 1)^2 (n + 2)). A textbook fact, as the mean. Certain.
    """
    k = index + 1
    top = k * (length + 1 - k) * (maximum + 1) * (maximum - length)
    return top / ((length + 1) ** 2 * (length + 2))


def randomized(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[int],
    maximum: int,
    inner: Callable[..., Scores],
    **parameters: Any,
) -> Scores:
    """The scores of `inner` (another oracle) at a draw of positions, after a check that it is one.

    Source: 2305.16843; methods.md: "use them as positions in any method". Certain.
    """
    assert not randomized_problems(positions, length=len(q[0]), maximum=maximum)
    return inner(q, k, positions=positions, **parameters)
