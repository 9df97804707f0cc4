"""Oracles for changes to a trained encoding: PI, NTK, dynamic NTK, NTK-by-parts, YaRN, Llama 3, LongRoPE, ABF, ALiBi.

L is the trained length, s the factor. Every `*_frequencies` gives width/2 numbers for `rope(..., theta=...)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oracles.distance_biases import alibi, alibi_slopes
from oracles.rotations import frequencies, rope
from oracles.scoring import Heads, Scores


def pi_frequencies(width: int, *, factor: float, base: float = 10000.0) -> list[float]:
    """theta_m / s, the same as positions / s. Source: Chen et al. 2023 (2306.15595), equation 4; methods.md; HF's
    `linear`. Certain."""
    return [theta / factor for theta in frequencies(width, base=base)]


def pi(q: Heads, k: Heads, *, positions: Sequence[float], factor: float, **own: Any) -> Scores:
    """RoPE at positions / s: written on the positions here, on the frequencies above. Source: as there. Certain."""
    return rope(q, k, positions=[position / factor for position in positions], **own)


def ntk_base(width: int, *, factor: float, base: float = 10000.0) -> float:
    """b' = b s^(d/(d-2)): the slowest pair is slowed by s exactly, the fastest not at all.

    Source: bloc97's post; Peng et al. 2023 (2309.00071), definition 1 (section 3.1); methods.md. Certain.
    """
    return base * factor ** (width / (width - 2))


def ntk(q: Heads, k: Heads, *, positions: Sequence[float], factor: float, base: float = 10000.0, **own: Any) -> Scores:
    """RoPE on ntk_base. Source: as there. Certain."""
    return rope(q, k, positions=positions, base=ntk_base(len(q[0][0]), factor=factor, base=base), **own)


def dynamic_ntk_base(
    width: int, *, trained_length: int, length: int, factor: float = 1.0, base: float = 10000.0
) -> float:
    """b' = b (s l/L - (s - 1))^(d/(d-2)) with l = max(length, L); b up to L whatever s is; s = 1: (l/L)^(d/(d-2)).

    Source: HF's `dynamic` (modeling_rope_utils), known-faults EXT-2. 2309.00071 section 3.3 has no factor: it is s = 1
    here. Certain; the two disagree for s other than 1.
    """
    longest = max(length, trained_length)
    return base * (factor * longest / trained_length - (factor - 1)) ** (width / (width - 2))


def dynamic_ntk(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    trained_length: int,
    length: int,
    factor: float = 1.0,
    base: float = 10000.0,
    **own: Any,
) -> Scores:
    """RoPE on dynamic_ntk_base of the whole input's length, for all its positions. Source: as there. Certain."""
    width = len(q[0][0])
    changed = dynamic_ntk_base(width, trained_length=trained_length, length=length, factor=factor, base=base)
    return rope(q, k, positions=positions, base=changed, **own)


def yarn_range(
    width: int, *, trained_length: int, beta_fast: float = 32, beta_slow: float = 1, base: float = 10000.0
) -> tuple[float, float]:
    """The pair indices at which a pair turns beta_fast and beta_slow times within L: width ln(L/(2 pi beta))/(2 ln b).

    Source: the YaRN repository and HF's `yarn`; known-faults EXT-5. Certain.
    """

    def index(beta: float) -> float:
        return width * math.log(trained_length / (beta * 2 * math.pi)) / (2 * math.log(base))

    return index(beta_fast), index(beta_slow)


def by_parts_shares(
    width: int,
    *,
    trained_length: int,
    beta_fast: float = 32,
    beta_slow: float = 1,
    ramp: str = "code",
    truncate: bool = True,
    base: float = 10000.0,
) -> list[float]:
    """The share of each pair that keeps its frequency: 1 for the fast ones, 0 for the slow ones, a ramp between.

    ramp "paper": g(r) = 0 for r < beta_slow, 1 for r > beta_fast, linear in r between; r_m = L theta_m/(2 pi), the
    turns within L. Source: 2309.00071, definition 2 (section 3.2), alpha = 1 and beta = 32. Certain.

    ramp "code": linear in the pair index between floor(yarn_range low) and ceil(high), clamped to 0 .. width - 1 (not
    width/2 - 1); equal ends are moved apart by 0.001. Source: YaRN's repository, HF's `yarn`; known-faults EXT-5.
    `truncate` False (HF's switch) leaves floor and ceil away. Certain.
    """
    if ramp == "paper":
        turns = [trained_length * theta / (2 * math.pi) for theta in frequencies(width, base=base)]
        return [min(1.0, max(0.0, (r - beta_slow) / (beta_fast - beta_slow))) for r in turns]
    low, high = yarn_range(width, trained_length=trained_length, beta_fast=beta_fast, beta_slow=beta_slow, base=base)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    return [1 - min(1.0, max(0.0, (m - low) / (high - low))) for m in range(width // 2)]


def by_parts_frequencies(
    width: int, *, trained_length: int, factor: float, base: float = 10000.0, **own: Any
) -> list[float]:
    """theta'_m = g theta_m + (1 - g) theta_m / s with g of by_parts_shares (own: betas, ramp, truncate).

    Source: 2309.00071, definition 2; methods.md. Certain.
    """
    shares = by_parts_shares(width, trained_length=trained_length, base=base, **own)
    pairs = zip(shares, frequencies(width, base=base), strict=True)
    return [g * theta + (1 - g) * theta / factor for g, theta in pairs]


def yarn_magnitude(factor: float, *, slope: float = 0.1) -> float:
    """sqrt(1/t) = slope ln(s) + 1, and 1 for s <= 1: what cos and sin are multiplied by, so scores by its square.

    Source: 2309.00071, equation 22 (section 3.4); HF's attention_factor; known-faults EXT-3. Certain.
    """
    return 1.0 if factor <= 1 else slope * math.log(factor) + 1


def ratio_magnitude(factor: float, *, mscale: float, mscale_all_dim: float) -> float:
    """The other convention (DeepSeek, HF's mscale keys): yarn_magnitude with slope 0.1 mscale over the same with
    0.1 mscale_all_dim; equal numbers give 1 exactly. Source: HF's `yarn`; known-faults EXT-7. Certain."""
    return yarn_magnitude(factor, slope=0.1 * mscale) / yarn_magnitude(factor, slope=0.1 * mscale_all_dim)


def ntk_by_parts(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    trained_length: int,
    factor: float,
    base: float = 10000.0,
    layout: str = "half",
    **own: Any,
) -> Scores:
    """RoPE on by_parts_frequencies, no magnitude. Source: as there. Certain."""
    theta = by_parts_frequencies(len(q[0][0]), trained_length=trained_length, factor=factor, base=base, **own)
    return rope(q, k, positions=positions, theta=theta, layout=layout)


def yarn(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    trained_length: int,
    factor: float,
    magnitude: float | None = None,
    base: float = 10000.0,
    layout: str = "half",
    **own: Any,
) -> Scores:
    """NTK-by-parts with cos and sin times yarn_magnitude(s), or times `magnitude`. Source: as there. Certain."""
    theta = by_parts_frequencies(len(q[0][0]), trained_length=trained_length, factor=factor, base=base, **own)
    size = yarn_magnitude(factor) if magnitude is None else magnitude
    return rope(q, k, positions=positions, theta=theta, layout=layout, magnitude=size)


def llama3_frequencies(
    width: int,
    *,
    trained_length: int,
    factor: float,
    low: float = 1,
    high: float = 4,
    base: float = 10000.0,
) -> list[float]:
    """With w = 2 pi/theta: theta for w < L/high; theta/s for w > L/low; else (1 - c) theta/s + c theta with
    c = (L/w - low)/(high - low).

    Source: Meta's llama-models (apply_scaling), HF's `llama3`; known-faults EXT-1. Certain.
    """
    changed = []
    for theta in frequencies(width, base=base):
        wavelength = 2 * math.pi / theta
        if wavelength < trained_length / high:
            changed.append(theta)
        elif wavelength > trained_length / low:
            changed.append(theta / factor)
        else:
            smooth = (trained_length / wavelength - low) / (high - low)
            changed.append((1 - smooth) * theta / factor + smooth * theta)
    return changed


def llama3(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    trained_length: int,
    factor: float,
    low: float = 1,
    high: float = 4,
    base: float = 10000.0,
    layout: str = "half",
) -> Scores:
    """RoPE on llama3_frequencies, no magnitude. Source: as there. Certain."""
    theta = llama3_frequencies(
        len(q[0][0]), trained_length=trained_length, factor=factor, low=low, high=high, base=base
    )
    return rope(q, k, positions=positions, theta=theta, layout=layout)


def longrope_frequencies(
    width: int,
    *,
    trained_length: int,
    length: int,
    short: Sequence[float],
    long: Sequence[float],
    base: float = 10000.0,
) -> list[float]:
    """theta_m / short_m up to and at the trained length, theta_m / long_m beyond it.

    Source: Ding et al. 2024 (2402.13753), HF's `longrope`, known-faults EXT-6. Certain for the switch; the search that
    finds the lists is not part of this.
    """
    chosen = long if length > trained_length else short
    return [theta / own for theta, own in zip(frequencies(width, base=base), chosen, strict=True)]


def longrope_magnitude(factor: float, *, trained_length: int) -> float:
    """sqrt(1 + ln s / ln L), 1 for s <= 1, on cos and sin. Source: HF's `longrope`, Phi-3's code. Certain.

    HF applies it at every length once s > 1, the trained one included: with a fixed s a short input's scores change
    too.
    """
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained_length))


def longrope(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    trained_length: int,
    length: int,
    factor: float,
    short: Sequence[float],
    long: Sequence[float],
    magnitude: float | None = None,
    base: float = 10000.0,
    layout: str = "half",
) -> Scores:
    """RoPE on longrope_frequencies with longrope_magnitude(s), or the magnitude given. Source: as there. Certain."""
    theta = longrope_frequencies(
        len(q[0][0]), trained_length=trained_length, length=length, short=short, long=long, base=base
    )
    size = longrope_magnitude(factor, trained_length=trained_length) if magnitude is None else magnitude
    return rope(q, k, positions=positions, theta=theta, layout=layout, magnitude=size)


def abf(q: Heads, k: Heads, *, positions: Sequence[float], base: float = 500000.0, **own: Any) -> Scores:
    """RoPE on another base, nothing else. Source: Xiong et al. 2023 (2309.16039), from memory: 10,000 -> 500,000.
    Certain."""
    return rope(q, k, positions=positions, base=base, **own)


def alibi_interpolation(
    q: Heads, k: Heads, *, positions: Sequence[float], factor: float, slopes: Sequence[float] | None = None
) -> Scores:
    """ALiBi with slopes m_h / s, s = max(1, L'/L): distance s r weighs as much as r did.

    Source: Al-Khateeb et al. 2023 (2310.13017, "Position Interpolation Improves ALiBi Extrapolation"), from memory;
    methods.md does not have it. Likely: the paper scales the slopes by L/L' for L' > L and leaves them otherwise.
    """
    own = alibi_slopes(len(q)) if slopes is None else slopes
    return alibi(q, k, positions=positions, slopes=[slope / factor for slope in own])
