"""CABLE: ALiBi with steps and slopes that the tokens choose themselves."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, overridden
from posbench.encodings.cumulative import between


def _matrix(shape: Shape) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape.heads, shape.width).normal_(0.0, 0.02))


class _Steps(Encoding):
    """One layer's steps, and slopes where there are any."""

    def __init__(self, shape: Shape, slopes: bool, kernelized: bool) -> None:
        super().__init__(shape)
        self.step = _matrix(shape)
        self.slope = _matrix(shape) if slopes else None
        self.kernelized = kernelized

    def state(self, x: Tensor) -> dict[str, Tensor]:
        state = {"step": F.linear(x, self.step.float()).relu()}
        if self.slope is not None:
            state["slope"] = F.softplus(F.linear(x, self.slope.float()))
        return state

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
        b = between(state["step"], rows)
        if self.slope is not None:
            b = b * state["slope"][:, rows].transpose(1, 2)[..., None]
        return s - (b.square().log1p() if self.kernelized else b)


class Cable(Encoding):
    """Context-aware biases for length extrapolation (CABLE).

    Formula: s_ij = q_i . k_j / sqrt(D) - B_ij, B_ij = g_i (S_i - S_j), S_i = sum over t <= i of a_t,
    a_t = ReLU(wc_h . x_t) the step that token t takes, g_i = softplus(ws_h . x_i) the slope of the query, x what the
    layer reads after its norm. With `kernelized` ln(B^2 + 1) is taken off in place of B. Without `slopes` g = 1, the
    paper's NW. Acts on the scores (B, H, Q, S) of every layer. wc and ws (H, C) are learned, one pair a layer:
    layers x 2 x H x C parameters, half of that without slopes. a = 1 and g = m_h would be ALiBi. Position ids play no
    role: order is that of the tokens.

    Beside the keys a_t and g_t (B, S, H) are kept, in float32; the sums are formed anew for each block of queries, in
    float64 (`between`). A block holds two more tensors of the size of its scores, and for a moment one of twice that.

    Worked number: steps of 1, 2 and 3 and the slope softplus(0) = ln 2: the third query's B is 5 ln 2, 3 ln 2, 0.

    >>> layer = Cable(Shape(layers=1, width=1, heads=1, train_length=3)).for_layer(0)
    >>> _ = layer.load_state_dict({"step": torch.ones(1, 1), "slope": torch.zeros(1, 1)})
    >>> state, at = layer.state(torch.tensor([[[1.0], [2.0], [3.0]]])), torch.arange(3)[None]
    >>> zero = torch.zeros(1, 1, 3, 1)
    >>> s = layer.scores(torch.zeros(1, 1, 3, 3), zero, zero, at, at, state, slice(0, 3))[0, 0, 2]
    >>> [round(x, 6) for x in (0 - s / torch.tensor(2.0).log()).tolist()]
    [5.0, 3.0, 0.0]

    Paper: Veisi, Amirzadeh and Mansourian 2025, https://arxiv.org/abs/2503.08067 (v3).

    Differences from the paper: it writes the bias as a sum and says that a token's bias of -1 gives ALiBi; the minus
    here is that. The released code (github.com/axiomlab/Cable) is the paper's earlier form: a_t = softplus(wc_h . x_t +
    b_h), no slopes, and scores not divided by sqrt(D) in one file, by sqrt(C) in another. Here they are divided by
    sqrt(D) as everywhere, and the bias comes after it. The initial distribution, N(0, 0.02^2), is that code's.
    """

    paper = "https://arxiv.org/abs/2503.08067"
    acts_on = "scores (bias computed from the tokens)"
    reported = "FineWeb-Edu, trained at 1,024: perplexity 16.52 there, 15.41 at 15,360 (Veisi et al. 2025, Table 1)"
    shift_invariant = True
    reads_positions = False

    def __init__(self, shape: Shape, slopes: bool = True, kernelized: bool = False) -> None:
        """`slopes`: each query also scales its biases. `kernelized`: biases grow with the logarithm of B^2 + 1."""
        super().__init__(shape)
        self.layers = nn.ModuleList(_Steps(shape, slopes, kernelized) for _ in range(shape.layers))

    @property
    def hooks(self) -> frozenset[str]:
        return overridden(self, Encoding) | self.for_layer(0).hooks

    def for_layer(self, layer: int) -> Encoding:
        return cast(Encoding, self.layers[layer])
