"""Transformer-XL's relative positions: a learned view of the distance's sinusoid, and what every query asks anyway."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from posbench.encodings.angles import frequencies
from posbench.encodings.base import Encoding, Shape, overridden
from posbench.encodings.relative import sinusoid_products


def _drawn(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).normal_(0.0, 0.02))


class _Layer(Encoding):
    """u, v and W_r of one layer."""

    def __init__(self, shape: Shape, base: float) -> None:
        super().__init__(shape)
        self.base = base
        self.u = _drawn(shape.heads, shape.head_dim)
        self.v = _drawn(shape.heads, shape.head_dim)
        self.relative = _drawn(shape.width, shape.width)

    def scores(
        self,
        s: Tensor,
        q: Tensor,
        k: Tensor,
        q_pos: Tensor,
        k_pos: Tensor,
        state: dict[str, Tensor],
        rows: slice,
    ) -> Tensor:
        by_content = torch.einsum("hd,bhsd->bhs", self.u.float(), k)[:, :, None]
        # (q + v) . W_r R = (W_r^T (q + v)) . R: the matrix meets each query once, not each distance.
        matrix_HDC = self.relative.float().unflatten(0, (self.shape.heads, -1))
        asked = (q + self.v.float()[:, None]) @ matrix_HDC
        by_distance = sinusoid_products(asked, q_pos, k_pos, frequencies(self.shape.width, self.base))
        return s + (by_content + by_distance) * q.shape[-1] ** -0.5


class TransformerXL(Encoding):
    """The relative positions of Transformer-XL.

    Formula: s_ij = ((q_i + u_h) . k_j + (q_i + v_h) . (W_r R(i - j))_h) / sqrt(D), R(r) = (sin(r w_0), sin(r w_1), ...,
    cos(r w_0), cos(r w_1), ...) of the model's width C, w_m = base^(-2m/C); (.)_h is the slice of head h. Acts on the
    scores (B, H, Q, S) of every layer. u, v (H, D) and W_r (C, C) are learned, of each layer its own: layers x
    (C^2 + 2 C) parameters, which start at N(0, 0.02^2). Distances are not clipped.

    Worked number: one head of width 2 with u = v = 0 and W_r the identity: query (3, 2) gives distance 1 the score
    (3 sin 1 + 2 cos 1) / sqrt(2) = 2.549144 on top of q . k.

    >>> layer = TransformerXL(Shape(layers=1, width=2, heads=1, train_length=8)).for_layer(0)
    >>> _ = layer.load_state_dict({"u": torch.zeros(1, 2), "v": torch.zeros(1, 2), "relative": torch.eye(2)})
    >>> q, k, at = torch.tensor([[[[3.0, 2.0]]]]), torch.zeros(1, 1, 2, 2), torch.arange(2)[None]
    >>> s = layer.scores(torch.zeros(1, 1, 1, 2), q, k, at[:, 1:], at, {}, slice(1, 2))
    >>> [round(x, 4) for x in s[0, 0, 0].tolist()]
    [2.5491, 1.4142]

    Cost: R has the model's width, so the term costs H times the product of queries and keys.

    Paper: Dai et al. 2019, https://arxiv.org/abs/1901.02860, section 3.3.

    Differences from the paper: the positions alone, without its memory of earlier segments; distances are not clipped
    at test time (its code's `clamp_len`); it is built into posbench's block, whose norms stand before the layers. The
    start is that of its code, which the paper does not give.
    """

    paper = "https://arxiv.org/abs/1901.02860"
    acts_on = "scores (learned, times the query)"
    reported = (
        "WikiText-103, trained at 512: perplexity 19.96 there, 18.92 at 1,512, 19.05 at 2,512 "
        "(Oka et al. 2025, Table 1)"
    )
    shift_invariant = True

    def __init__(self, shape: Shape, base: float = 10000.0) -> None:
        """`base`: wavelengths run from 2 pi to nearly base x 2 pi."""
        super().__init__(shape)
        if shape.width % 2:
            raise ValueError(f"sines and cosines come in pairs: the width must be even, not {shape.width}")
        if base <= 0:
            raise ValueError(f"base must be above 0, not {base}")
        self.layers = nn.ModuleList(_Layer(shape, base) for _ in range(shape.layers))

    @property
    def hooks(self) -> frozenset[str]:
        return overridden(self, Encoding) | self.for_layer(0).hooks

    def for_layer(self, layer: int) -> Encoding:
        return cast(Encoding, self.layers[layer])
