"""Oracles for factors on the scores, and for patterns over layers: SSMax, log-n, scale-invariant, DroPE, SWAN."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oracles.rotations import rope
from oracles.scoring import Heads, Scores, Vector, causal, product


def ssmax(q: Heads, k: Heads, *, positions: Sequence[float], s: Vector) -> Scores:
    """s_ij * s_h ln N, N = i + 1 the number of keys the query sees; s (H). The first row is 0.

    Source: Nakanishi 2025 (2501.19399) through methods.md; public ports have softmax(s log(n) q.k / sqrt(d)). Certain.
    """
    return causal(len(q), len(q[0]), lambda h, i, j: s[h] * math.log(i + 1) * product(q, k, h, i, j))


def log_n(q: Heads, k: Heads, *, positions: Sequence[float], trained_length: int, at_least_one: bool = False) -> Scores:
    """s_ij * ln N / ln L, N = i + 1. at_least_one: max(1, .), nothing changes up to N = L.

    Source: methods.md ([M], from memory there too); Su's blog (log-n attention) has the plain form, trained so; Qwen's
    code applies it at test time only, max(1, ln N / ln L). Both exist: at_least_one is not settled.
    """

    def factor(i: int) -> float:
        own = math.log(i + 1) / math.log(trained_length)
        return max(1.0, own) if at_least_one else own

    return causal(len(q), len(q[0]), lambda h, i, j: factor(i) * product(q, k, h, i, j))


def scale_invariant_terms(distance: float, *, tau: float = 10.0) -> tuple[float, float]:
    """(a_t, m_t): a_t^2 = 1 + 2 ln(1 + t/tau), m_t = -2 ln(1 + t/tau).

    Source: Anson et al. 2025 (2505.17083) with alpha = beta = e^0.5, through methods.md. A check of their own
    condition: for a unit Gaussian score the mean weight exp(m + a^2/2) is e^0.5/(1 + t/tau), so each decade of distance
    gets the same. Certain as methods.md's formula.
    """
    growth = math.log(1 + distance / tau)
    return math.sqrt(1 + 2 * growth), -2 * growth


def scale_invariant(q: Heads, k: Heads, *, positions: Sequence[float], tau: float = 10.0) -> Scores:
    """a_r s_ij + m_r, s_ij after the division. Source: as there. Rotation and QK-norm, which the paper adds, are left
    to the caller: hand in turned queries and keys."""

    def score(h: int, i: int, j: int) -> float:
        a, m = scale_invariant_terms(positions[i] - positions[j], tau=tau)
        return a * product(q, k, h, i, j) + m

    return causal(len(q), len(q[0]), score)


def drope_temperature(factor: float, *, slope: float = 0.412) -> float:
    """1 + slope ln(s), s = L'/L, and 1 for s <= 1: the factor on the logits of a model without positions.

    Source: Gelberg et al. 2025 (2512.12167) as methods.md quotes it: 0.412 trained from scratch, 0.103 for SmolLM. Not
    checked against code. The 1 below L is ours: the paper only speaks of longer inputs.
    """
    return 1.0 if factor <= 1 else 1 + slope * math.log(factor)


def drope(q: Heads, k: Heads, *, positions: Sequence[float], factor: float, slope: float = 0.412) -> Scores:
    """No positions, scores times drope_temperature. Source: as there."""
    return causal(len(q), len(q[0]), lambda h, i, j: drope_temperature(factor, slope=slope) * product(q, k, h, i, j))


def swan_layers(layers: int, *, period: int, first_global: int = 0) -> list[str]:
    """ "global" for the layers first_global, first_global + period, ...; "local" for the others.

    Source: Puvvada et al. 2025 (2504.08719), abstract: global layers without positions interleaved with sliding-window
    RoPE layers. methods.md did not read the ratio; from memory one global to three local (period 4), a window of 512.
    Not pinned down: period, which layer comes first, the window.
    """
    return ["global" if (layer - first_global) % period == 0 else "local" for layer in range(layers)]


def swan(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    kind: str,
    window: int,
    base: float = 10000.0,
    layout: str = "half",
    scale: float = 1.0,
) -> Scores:
    """kind "global": scale times NoPE, all keys; "local": RoPE, only the `window` latest keys (the query's own among
    them: j > i - window).

    Source: as there; `scale` is a factor on the global layers' scores that the paper lets grow with the logarithm of
    the length; its formula was not found. Not pinned down: that formula, and whether the window counts the query's own
    key.
    """
    if kind == "global":
        return causal(len(q), len(q[0]), lambda h, i, j: scale * product(q, k, h, i, j))
    turned = rope(q, k, positions=positions, base=base, layout=layout)
    return causal(len(q), len(q[0]), lambda h, i, j: turned[h][i][j] if i - j < window else None)
