"""Oracles for what turns queries and keys: RoPE in both layouts, p-RoPE, xPos."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oracles.scoring import Heads, Scores, Vector, causal, dot


def frequencies(width: int, *, base: float = 10000.0) -> list[float]:
    """theta_m = base^(-2m/width), m = 0 .. width/2 - 1. Source: RoFormer (2104.09864), section 3.2.2. Certain."""
    return [base ** (-2 * m / width) for m in range(width // 2)]


def pair(m: int, width: int, layout: str) -> tuple[int, int]:
    """The two dimensions of pair m: (m, m + width/2) for "half", (2m, 2m + 1) for "interleaved"."""
    return {"half": (m, m + width // 2), "interleaved": (2 * m, 2 * m + 1)}[layout]


def rotated(vector: Vector, position: float, *, theta: Sequence[float], layout: str) -> list[float]:
    """The vector with pair m turned by position * theta_m; pairs beyond len(theta) stay.

    (a, b) -> (a cos - b sin, a sin + b cos). Source: 2104.09864, equation 34 ("interleaved", the paper's); GPT-NeoX and
    LLaMA pair dimension m with m + width/2 ("half"). Certain.
    """
    turned = list(vector)
    for m, frequency in enumerate(theta):
        a, b = pair(m, len(vector), layout)
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        turned[a] = vector[a] * cos - vector[b] * sin
        turned[b] = vector[a] * sin + vector[b] * cos
    return turned


def rope(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    theta: Sequence[float] | None = None,
    base: float = 10000.0,
    layout: str = "half",
    magnitude: float = 1.0,
) -> Scores:
    """s_ij = (m R_i q_i) . (m R_j k_j) / sqrt(d), R_i the rotation by position i, m the magnitude of cos and sin.

    `theta` replaces the frequencies of `base` (what the extensions change); `magnitude` is YaRN's and LongRoPE's factor
    on the table, so that scores change by its square. Source: 2104.09864 section 3.2; methods.md. Certain.
    """
    width = len(q[0][0])
    theta = frequencies(width, base=base) if theta is None else theta

    def turn(vector: Vector, position: float) -> list[float]:
        return [magnitude * number for number in rotated(vector, position, theta=theta, layout=layout)]

    return causal(
        len(q),
        len(q[0]),
        lambda h, i, j: dot(turn(q[h][i], positions[i]), turn(k[h][j], positions[j])) / math.sqrt(width),
    )


def prope_frequencies(width: int, *, p: float, base: float = 10000.0) -> list[float]:
    """RoPE's frequencies, the floor(p * width/2) highest kept, the others 0.

    Source: Barbero et al. 2024 (2410.06205), the code in its appendix, through methods.md. Same as
    `proportional` in transformers' modeling_rope_utils. The exponents stay those of the whole head (2m/width), which is
    the difference to "partial" rotary. Certain.
    """
    kept = math.floor(p * width / 2)
    return [theta if m < kept else 0.0 for m, theta in enumerate(frequencies(width, base=base))]


def prope(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    p: float,
    base: float = 10000.0,
    layout: str = "half",
) -> Scores:
    """RoPE with prope_frequencies: p = 1 is RoPE, p = 0 is NoPE. Source: as there. Certain."""
    theta = prope_frequencies(len(q[0][0]), p=p, base=base)
    return rope(q, k, positions=positions, theta=theta, layout=layout)


def xpos_decays(width: int, *, gamma: float = 0.4) -> list[float]:
    """z_m = (2m/width + gamma)/(1 + gamma), m = 0 .. width/2 - 1: the decay of pair m.

    Source: Sun et al. 2022 (2212.10554); torchscale's component/xpos_relative_position.py and
    x-transformers have the same numbers, written (2m + 0.4 width)/(1.4 width). Certain.
    """
    return [(2 * m / width + gamma) / (1 + gamma) for m in range(width // 2)]


def same_or_previous_block(query: float, key: float, *, block: int) -> bool:
    """Whether the key's block is the query's own or the one before it; block b holds positions b*block .. +block-1."""
    return math.floor(query / block) - math.floor(key / block) in (0, 1)


def xpos(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    base: float = 10000.0,
    gamma: float = 0.4,
    scale_base: float = 512.0,
    middle: float = 0.0,
    block: int | None = None,
    layout: str = "half",
) -> Scores:
    """s_ij = (z^((i-c)/B) R_i q_i) . (z^(-(j-c)/B) R_j k_j) / sqrt(d): pair m carries z_m^((i - j)/B).

    c (`middle`) only moves the powers against overflow; torchscale and x-transformers take the middle of the sequence,
    the paper 0. `block`: blockwise causal attention, None for a full view; the paper's block is half the training
    length, a query sees its own block and the previous one.

    Source: 2212.10554 through methods.md; torchscale. z, B and the sign: certain. The blocks are counted
    from position id 0: with consecutive ids the paper's picture; with others (randomized) nobody says whether ids or
    token counts decide, so do not compare that case.
    """
    width = len(q[0][0])
    theta, decays = frequencies(width, base=base), xpos_decays(width, gamma=gamma)

    def turn(vector: Vector, position: float, sign: int) -> list[float]:
        turned = rotated(vector, position, theta=theta, layout=layout)
        for m, z in enumerate(decays):
            for dimension in pair(m, width, layout):
                turned[dimension] *= z ** (sign * (position - middle) / scale_base)
        return turned

    def score(h: int, i: int, j: int) -> float | None:
        if block is not None and not same_or_previous_block(positions[i], positions[j], block=block):
            return None
        return dot(turn(q[h][i], positions[i], 1), turn(k[h][j], positions[j], -1)) / math.sqrt(width)

    return causal(len(q), len(q[0]), score)


def xpos_by_distance(
    q: Vector, k: Vector, distance: float, *, layout: str = "half", scale_base: float = 512.0
) -> float:
    """One xPos score from the distance alone: sum over pairs of z_m^(r/B) Re((a + ib) conj(c + id) e^(i r theta_m)).

    The closed form of the product above, to check it against; divided by sqrt(d). Certain.
    """
    width = len(q)
    total = 0.0
    for m, (theta, z) in enumerate(zip(frequencies(width), xpos_decays(width), strict=True)):
        a, b = pair(m, width, layout)
        along, across = q[a] * k[a] + q[b] * k[b], q[a] * k[b] - q[b] * k[a]
        angle = distance * theta
        total += z ** (distance / scale_base) * (along * math.cos(angle) + across * math.sin(angle))
    return total / math.sqrt(width)
