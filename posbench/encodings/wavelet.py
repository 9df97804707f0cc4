"""Wavelets of the distance, times the query: sharp for near keys, ever wider for those further back."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from posbench.encodings.base import Encoding, Shape
from posbench.encodings.relative import products


def ricker(t: Tensor) -> Tensor:
    """(1 - t^2) exp(-t^2/2), the negative second derivative of a Gaussian, without its constant."""
    return (1 - t**2) * torch.exp(-(t**2) / 2)


def gaussian(t: Tensor) -> Tensor:
    """exp(-t^2)."""
    return torch.exp(-(t**2))


MOTHERS = {"ricker": ricker, "gaussian": gaussian}


class Wavelet(Encoding):
    """Wavelet-based relative positions.

    Formula: s_ij = (q_i . k_j + q_i . p_r) / sqrt(D), r = i - j, where p_r holds w((r - b)/a) for `scales` scales
    a = 1, 2, 4, ... and D / scales shifts b = 0, 1, 2, ...; w(t) = (1 - t^2) exp(-t^2/2) (`ricker`) or exp(-t^2)
    (`gaussian`). Acts on the scores (B, H, Q, S) of every layer. p_r is fixed: no learned parameters, and the heads
    share it. Distances are not clipped, but p_r fades: with 8 scales nothing is left of it some 600 keys back, and
    those keys are told apart by content alone.

    Worked number: head width 4 in 2 scales has the shifts 0 and 1; at distance 1 p_r is w(1), w(0) and, twice as wide,
    w(1/2), w(0): 0, 1, 0.661873, 1.

    >>> wavelet = Wavelet(Shape(layers=1, width=4, heads=1, train_length=8), scales=2)
    >>> [round(x, 6) for x in wavelet.vectors(torch.tensor(1)).tolist()]
    [0.0, 1.0, 0.661873, 1.0]

    Cost: a product of query and distance beside that of query and key; while training, Q x S x D numbers a layer, the
    same for all windows of a batch.

    Paper: Oka et al. 2025, https://arxiv.org/abs/2502.02004.

    Differences from the paper: it has heads 128 wide, with 8 scales (1 to 128) and 16 shifts (0 to 15). Other widths
    are ours: 8 scales and D / 8 shifts, so that near distances are told apart by fewer numbers, far ones by the same
    scales (nano's heads of 32: 4 shifts). Wavelets go without the factor 1/sqrt(a) of a transform. The order of scales
    and shifts inside p_r, which only permutes what the query learns, is ours too.
    """

    paper = "https://arxiv.org/abs/2502.02004"
    acts_on = "scores (fixed vectors, times the query)"
    reported = "WikiText-103, trained at 512: perplexity 19.19 there, 17.99 at 2,512 (Oka et al. 2025, Table 1)"
    shift_invariant = True

    def __init__(self, shape: Shape, scales: int = 8, mother: Literal["ricker", "gaussian"] = "ricker") -> None:
        """`scales`: how many; the head width must be a multiple of it. `mother`: w."""
        super().__init__(shape)
        if scales < 1 or shape.head_dim % scales:
            raise ValueError(f"scales must divide the head width {shape.head_dim}, which {scales} does not")
        if mother not in MOTHERS:
            raise ValueError(f"mother must be one of {', '.join(MOTHERS)}, not {mother}")
        self.scales = scales
        self.mother = mother

    def vectors(self, distance: Tensor) -> Tensor:
        """p_r for distances of any shape: float32 (*distance.shape, D), shift after shift, scale after scale."""
        shift = torch.arange(self.shape.head_dim // self.scales, device=distance.device)
        scale = 2.0 ** torch.arange(self.scales, device=distance.device)
        t = (distance[..., None] - shift).float()[..., None, :] / scale[:, None]
        return MOTHERS[self.mother](t).flatten(-2)

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
        return s + products(q, q_pos, k_pos, self.vectors) * q.shape[-1] ** -0.5
