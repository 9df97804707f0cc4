"""Oracles for scores that need the queries, the keys or the tokens: Shaw, Transformer-XL, wavelet, CoPE, CABLE, FoX,
DAPE."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oracles.scoring import (
    Heads,
    Matrix,
    Scores,
    Vector,
    causal,
    dot,
    leaky_relu,
    plus,
    product,
    sigmoid,
    softplus,
    times,
)
from oracles.token_vectors import sinusoid


def clipped(distance: float, longest: int) -> int:
    """min(r, longest) for the causal side."""
    return int(min(max(distance, 0), longest))


def shaw(q: Heads, k: Heads, *, positions: Sequence[int], keys: Matrix) -> Scores:
    """s_ij = q_i . (k_j + a^K_{min(r, K)}) / sqrt(d), keys (K + 1, D), shared by the heads.

    Source: Shaw et al. 2018 (1803.02155), equations 3 to 5; methods.md (K = 16). HF's `relative_key` has the same term,
    divided with the scores, on a two-sided table. Certain; K and the sharing as methods.md says.
    """
    longest = len(keys) - 1
    return causal(
        len(q),
        len(q[0]),
        lambda h, i, j: (
            dot(q[h][i], plus(k[h][j], keys[clipped(positions[i] - positions[j], longest)])) / math.sqrt(len(q[h][i]))
        ),
    )


def shaw_values(weights: Heads, *, positions: Sequence[int], values: Matrix) -> list[list[list[float]]]:
    """What Shaw's option adds to w.v: sum_{j <= i} w_ij a^V_{min(r, K)}, (H, T, D); weights (H, T, T), 0 where masked.

    Source: 1803.02155, equation 3; methods.md. Certain.
    """
    longest = len(values) - 1
    added = []
    for head in weights:
        added.append([])
        for i, row in enumerate(head):
            total = [0.0] * len(values[0])
            for j in range(i + 1):
                total = plus(total, [row[j] * a for a in values[clipped(positions[i] - positions[j], longest)]])
            added[-1].append(total)
    return added


def transformer_xl(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    u: Matrix,
    v: Matrix,
    w_r: Matrix,
    form: str = "halves",
) -> Scores:
    """s_ij = ((q_i + u_h) . k_j + (q_i + v_h) . (W_r R(r))_h) / sqrt(d), u and v (H, D), W_r (H D, H D).

    R(r) is the sinusoid of the distance, H D wide; (.)_h is the slice h D .. (h + 1) D of the product.
    Source: Dai et al. 2019 (1901.02860), section 3.3; DAPE's RelativePositionalEncodingLayer and methods.md agree.
    Certain, but for the order inside R: the code has all sines, then all cosines ("halves"); another order only
    permutes the columns of W_r. The paper's own code clamps r at test time (clamp_len); not here.
    """
    heads, width = len(q), len(q[0][0])

    def score(h: int, i: int, j: int) -> float:
        r = times(w_r, sinusoid(heads * width, positions[i] - positions[j], form=form))[h * width : (h + 1) * width]
        return (dot(plus(q[h][i], u[h]), k[h][j]) + dot(plus(q[h][i], v[h]), r)) / math.sqrt(width)

    return causal(heads, len(q[0]), score)


def wavelet_vector(distance: float, *, width: int, scales: int = 8, mother: str = "ricker") -> list[float]:
    """p_r: component n * (width/scales) + b is w((r - b)/2^n), n = 0 .. scales - 1, b = 0 .. width/scales - 1.

    w(t) = (1 - t^2) exp(-t^2/2) ("ricker") or exp(-t^2) ("gauss").
    Source: Oka et al. 2025 (2502.02004) as methods.md gives it; for d = 128: 8 scales, 16 shifts. At other
    widths 8 scales x d/8 shifts is posbench's own rule (methods.md, "Traps"). Likely. Not pinned down: which of (a, b)
    runs faster inside the vector (a permutation of q's dimensions, so only weights move with it), and whether the
    paper's vector carries the transform's 1/sqrt(a), which methods.md does not have.
    """
    shifts = width // scales

    def w(t: float) -> float:
        return (1 - t * t) * math.exp(-t * t / 2) if mother == "ricker" else math.exp(-t * t)

    return [w((distance - b) / 2**n) for n in range(scales) for b in range(shifts)]


def wavelet(q: Heads, k: Heads, *, positions: Sequence[float], scales: int = 8, mother: str = "ricker") -> Scores:
    """s_ij = (q_i . k_j + q_i . p_r)/sqrt(d), no clipping of r. Source: as there. Likely."""
    width = len(q[0][0])
    return causal(
        len(q),
        len(q[0]),
        lambda h, i, j: (
            dot(
                q[h][i],
                plus(k[h][j], wavelet_vector(positions[i] - positions[j], width=width, scales=scales, mother=mother)),
            )
            / math.sqrt(width)
        ),
    )


def cope_positions(q: Heads, k: Heads, *, npos: int) -> Scores:
    """p_ij = min(npos - 1, sum_{t=j..i} sigmoid(q_i . k_t / sqrt(d))), both ends included.

    Source: Golovneva et al. 2024 (2405.18719) through methods.md; copies of the paper's listing take
    the gates from the divided logits. Certain.
    """

    def position(h: int, i: int, j: int) -> float:
        return min(npos - 1.0, math.fsum(sigmoid(product(q, k, h, i, t)) for t in range(j, i + 1)))

    return causal(len(q), len(q[0]), position)


def cope(q: Heads, k: Heads, *, positions: Sequence[float], table: Matrix, divide_position_term: bool = True) -> Scores:
    """s_ij = (q_i . k_j + z_i[p_ij])/sqrt(d), z_i[p] = q_i . E[p], linear between floor and ceil; E = table (npos, D),
    one for all heads.

    Source: 2405.18719 through methods.md. The division of z is not settled: methods.md ([C], the released code)
    divides it; the listing printed in the paper (copies of it were read) and x-transformers' CoPE add z undivided to
    divided logits (divide_position_term False). Position ids play no role.
    """
    counted = cope_positions(q, k, npos=len(table))
    root = math.sqrt(len(q[0][0]))

    def score(h: int, i: int, j: int) -> float:
        p = counted[h][i][j]
        assert p is not None
        low, high = math.floor(p), math.ceil(p)
        share = p - low
        z = share * dot(q[h][i], table[high]) + (1 - share) * dot(q[h][i], table[low])
        return product(q, k, h, i, j) + (z / root if divide_position_term else z)

    return causal(len(q), len(q[0]), score)


def fox(q: Heads, k: Heads, *, positions: Sequence[float], x: Matrix, w_f: Matrix, b_f: Vector) -> Scores:
    """b_ij = sum_{t=j+1..i} ln sigmoid(w_f . x_t + b_f): 0 for a query on itself; after the division.

    x (T, C), w_f (H, C), b_f (H). Source: Lin et al. 2025 (2503.02130) through methods.md; x-transformers'
    DataDependentAlibi. Certain. Position ids play no role.
    """

    def bias(h: int, i: int, j: int) -> float:
        return math.fsum(math.log(sigmoid(dot(w_f[h], x[t]) + b_f[h])) for t in range(j + 1, i + 1))

    return causal(len(q), len(q[0]), lambda h, i, j: product(q, k, h, i, j) + bias(h, i, j))


def cable(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    x: Matrix,
    w_c: Matrix,
    w_s: Matrix | None = None,
    kernelized: bool = False,
) -> Scores:
    """score - B, B = g_i (S_i - S_j) = g_i sum_{t=j+1..i} ReLU(w_c . x_t), g_i = softplus(w_s . x_i); w_c, w_s (H, C).

    w_s None: g = 1 (the paper's NW). kernelized: score - ln(B^2 + 1).
    Source: methods.md, which read Veisi et al. 2025 (2503.08067): the paper writes +B and says that a token bias of -1
    gives ALiBi, hence the minus. The authors' Cable.py differs in everything else: softplus in place of ReLU, a linear
    layer with bias, no g, scores and bias both over sqrt(width of the model) so that the bias comes out undivided.
    Certain as methods.md's formula, not as the released code. Position ids play no role.
    """

    def bias(h: int, i: int, j: int) -> float:
        steps = math.fsum(max(0.0, dot(w_c[h], x[t])) for t in range(j + 1, i + 1))
        b = steps if w_s is None else softplus(dot(w_s[h], x[i])) * steps
        return math.log(b * b + 1) if kernelized else b

    return causal(len(q), len(q[0]), lambda h, i, j: product(q, k, h, i, j) - bias(h, i, j))


def dape(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    bias: Heads,
    w1: Matrix,
    b1: Vector,
    w2: Matrix,
    b2: Vector,
) -> Scores:
    """S + B + w2 LeakyReLU(w1 [S; B] + b1) + b2 at each (i, j); [S; B] is the 2H scores, then biases, of all heads.

    bias (H, T, T), any additive one (entries above the diagonal are not read); w1 (M, 2H), b1 (M), w2 (H, M), b2 (H).
    Source: Zheng et al. 2024 (2405.14722) as methods.md gives it, and the authors' *_C classes, which hand the divided
    scores in as S. LeakyReLU's slope is PyTorch's 0.01. Certain.
    """
    heads = len(q)

    def score(h: int, i: int, j: int) -> float:
        both = [product(q, k, n, i, j) for n in range(heads)] + [bias[n][i][j] for n in range(heads)]
        hidden = [leaky_relu(number) for number in plus(times(w1, both), b1)]
        return both[h] + both[heads + h] + dot(w2[h], hidden) + b2[h]

    return causal(heads, len(q[0]), score)


def dape_v2(
    q: Heads,
    k: Heads,
    *,
    positions: Sequence[float],
    bias: Heads,
    w1: Sequence[Matrix],
    b1: Vector,
    w2: Sequence[Matrix],
    b2: Vector,
) -> Scores:
    """As dape, with 1 x n convolutions along the keys (n odd) in place of the two layers: w1 (M, 2H, n), w2 (H, M, n).

    [S; B] is set to 0 above the diagonal first; keys outside the row count as 0. Only the input is masked, as in the
    authors' *_DAPEV2 classes: a hidden number just right of the diagonal is not 0, and still knows no later key.
    Source: Zheng et al. 2024 (2410.04798) through that code (n = dapev2_kernel, padding n // 2, LeakyReLU 0.01).
    Certain for the code. Key T does not exist, so its hidden numbers count as 0, while inside the window the ones right
    of the diagonal are not: the last rows of a window differ from the same rows of a longer one, at their last keys.
    A cache cannot reproduce this; masking the hidden numbers too would mend it, and would be another method.
    """
    heads, tokens = len(q), len(q[0])
    reach = len(w1[0][0]) // 2

    def both(n: int, i: int, j: int) -> float:
        if j > i:
            return 0.0
        return product(q, k, n, i, j) if n < heads else bias[n - heads][i][j]

    def hidden(m: int, i: int, j: int) -> float:
        total = b1[m]
        for n in range(2 * heads):
            for step in range(-reach, reach + 1):
                if 0 <= j + step < tokens:
                    total += w1[m][n][step + reach] * both(n, i, j + step)
        return leaky_relu(total)

    def score(h: int, i: int, j: int) -> float:
        total = b2[h]
        for m in range(len(w1)):
            for step in range(-reach, reach + 1):
                if 0 <= j + step < tokens:
                    total += w2[h][m][step + reach] * hidden(m, i, j + step)
        return both(h, i, j) + both(heads + h, i, j) + total

    return causal(heads, tokens, score)
