"""Oracles for biases on the scores that need only positions: ALiBi, T5, KERPLE, Sandwich, FIRE.

All are q_i . k_j / sqrt(d) + b_h, the bias after the division, unless the function says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from oracles.scoring import Heads, Matrix, Scores, Vector, causal, dot, product


def biased(q: Heads, k: Heads, positions: Sequence[float], bias: Callable[[int, float], float]) -> Scores:
    """q_i . k_j / sqrt(d) + bias(head, distance)."""
    return causal(len(q), len(q[0]), lambda h, i, j: product(q, k, h, i, j) + bias(h, positions[i] - positions[j]))


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8h/n), h = 1..n, for n a power of two; else those of the next lower power of two, then every second slope
    (the 1st, 3rd, ...) of the next higher one.

    Source: Press et al. 2022 (2108.12409), section 3; the rule for other n is in their code (fairseq's get_slopes) and
    footnote. Bloom, MPT and x-transformers give the same lists; known-faults BIAS-1, BIAS-2. Certain.
    """
    lower = 1
    while 2 * lower <= heads:
        lower *= 2
    slopes = [2 ** (-8 * h / lower) for h in range(1, lower + 1)]
    finer = [2 ** (-8 * h / (2 * lower)) for h in range(1, 2 * lower + 1)]
    return slopes + finer[0::2][: heads - lower]


def alibi(q: Heads, k: Heads, *, positions: Sequence[float], slopes: Sequence[float] | None = None) -> Scores:
    """b = -m_h r, after the division by sqrt(d). Source: 2108.12409 section 3 and footnote 10 (methods.md). Certain.

    The code of Press and of Bloom adds m_h j instead: another number in every row, the same weights.
    """
    own = alibi_slopes(len(q)) if slopes is None else slopes
    return biased(q, k, positions, lambda h, r: -own[h] * r)


def t5_bucket(distance: int, *, buckets: int = 32, far: int = 128) -> int:
    """r for r < e = buckets/2, else min(buckets - 1, e + floor(ln(r/e)/ln(far/e) (buckets - e))), causal.

    Worked out in whole numbers: the largest n with (r/e)^(buckets - e) >= (far/e)^n, so no rounded logarithm decides.
    Source: Raffel et al. 2020 (1910.10683), section 2.1; mesh-tensorflow and HF's code; methods.md; BIAS-5. Certain.
    HF and x-transformers take float32 logarithms: with another (buckets, far) they may differ where the logarithm is
    exactly a whole number.
    """
    exact = buckets // 2
    if distance < exact:
        return distance
    steps = buckets - exact
    n = 0
    while n + exact < buckets - 1 and distance**steps * exact ** (n + 1) >= far ** (n + 1) * exact**steps:
        n += 1
    return exact + n


def t5(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[int],
    table: Matrix,
    far: int = 128,
    divide: bool = True,
) -> Scores:
    """b = table[bucket(r)][h], table (buckets, H); divide False leaves the scores undivided, as T5 itself does.

    Source: 1910.10683; HF's T5 (no 1/sqrt(d)); ports keep the division (methods.md). x-transformers multiplies the bias
    by sqrt(d) besides (its `scale`). Buckets certain; the division is a convention to be stated.
    """
    root = math.sqrt(len(q[0][0])) if divide else 1.0
    return causal(
        len(q),
        len(q[0]),
        lambda h, i, j: (
            dot(q[h][i], k[h][j]) / root + table[t5_bucket(positions[i] - positions[j], buckets=len(table), far=far)][h]
        ),
    )


def kerple_log(q: Heads, k: Heads, *, positions: Sequence[float], p: Vector, a: Vector) -> Scores:
    """b = -p_h ln(1 + a_h r), p and a clamped to at least 0.01.

    Source: Chi et al. 2022 (2205.09921) through methods.md; the authors' Megatron code (ParallelKerpleLog)
    clamps both at 0.01. Place (methods.md): the paper's equation 1 has the bias inside the division by sqrt(d), the
    code adds it to the divided scores. Certain for the code.
    """
    return biased(q, k, positions, lambda h, r: -max(p[h], 0.01) * math.log(1 + max(a[h], 0.01) * r))


def kerple_power(q: Heads, k: Heads, *, positions: Sequence[float], p: Vector, a: Vector) -> Scores:
    """b = -a_h r^p_h, a at least 0.01, p clamped to 0.01 .. 2.

    Source: 2205.09921; the authors' ParallelKerplePower (clamp(min=0.01, max=2) on p). Certain for the code.
    """
    return biased(q, k, positions, lambda h, r: -max(a[h], 0.01) * r ** min(max(p[h], 0.01), 2.0))


def kerple_log3(q: Heads, k: Heads, *, positions: Sequence[float], p: Vector, a: Vector, power: Vector) -> Scores:
    """b = -p_h ln(1 + a_h r^power_h): the three-parameter form of methods.md. Not clamped here; likely."""
    return biased(q, k, positions, lambda h, r: -p[h] * math.log(1 + a[h] * r ** power[h]))


def sandwich_bias(distance: float, *, head: int, heads: int, width: int, base: float = 10000.0) -> float:
    """(sum_{m=1..e/2} cos(r / base^(2m/e)) - e/2) / (8h/n), head h counted from 1; 0 at r = 0.

    Source: Chi et al. 2023 (2212.10356) as NeMo's SandwichRelativePositionEmbedding has it (megatron/
    position_embedding/sandwich_relative_position_embedding.py; methods.md agrees). The exponents start at m = 1, not 0.
    Earlier versions of that NeMo file leave out the cosine, or stop at e/2 - 1: wrong copies exist. Certain for NeMo's
    last version; whether the authors' e is the head width or another number (the paper tunes one, 128 at d = 64) is
    not pinned down.
    """
    half = width // 2
    total = math.fsum(math.cos(distance / base ** (2 * m / width)) for m in range(1, half + 1))
    return (total - half) / (8 * head / heads)


def sandwich(
    q: Heads, k: Heads, *, positions: Sequence[float], width: int | None = None, base: float = 10000.0
) -> Scores:
    """sandwich_bias after the division; width None is the head width, as NeMo passes. Source: as there."""
    own, heads = len(q[0][0]) if width is None else width, len(q)
    return biased(q, k, positions, lambda h, r: sandwich_bias(r, head=h + 1, heads=heads, width=own, base=base))


def fire(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    w1: Vector,
    b1: Vector,
    w2: Matrix,
    b2: Vector,
    c: float = 0.1,
    multiplier: float = 1.0,
    threshold: float = 256.0,
    eps: float = 1e-6,
) -> Scores:
    """b = (w2 ReLU(w1 u + b1) + b2)_h, u = ln(|c| r + 1) / (ln(|c| max(i, T) + 1) + eps), T = |multiplier| threshold.

    w1, b1 (M), w2 (H, M), b2 (H); i is the query's position id, counted from 0.

    Source: Li et al. 2024 (2310.04418) through methods.md and DAPE's class FIRE. There T0 is init_L // 2 (256 for 512;
    other copies of the paper's listing take init_L itself), the max is over the row's largest distance, so i counts
    from 0 (methods.md's notation counts from 1, which would be another number in every row past T), and eps is added
    after the logarithm. Certain for that code. DAPE's FIRE_C and FIRE_DAPEV2 have a LeakyReLU inside where FIRE has a
    ReLU.
    """

    def bias(h: int, i: int, j: int) -> float:
        top = math.log(abs(c) * (positions[i] - positions[j]) + 1)
        bottom = math.log(abs(c) * max(positions[i], abs(multiplier) * threshold) + 1) + eps
        hidden = [max(0.0, w * top / bottom + b) for w, b in zip(w1, b1, strict=True)]
        return dot(w2[h], hidden) + b2[h]

    return causal(len(q), len(q[0]), lambda h, i, j: product(q, k, h, i, j) + bias(h, i, j))
