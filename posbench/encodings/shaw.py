"""Shaw's relative positions: a learned vector for each clipped distance, added to keys and, by option, to values."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, overridden


def _table(shape: Shape, clip: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(clip + 1, shape.head_dim).normal_(0.0, 0.02))


class _Keys(Encoding):
    """One layer's key term."""

    def __init__(self, shape: Shape, clip: int) -> None:
        super().__init__(shape)
        self.key_table = _table(shape, clip)

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
        # q . (k + a) = q . k + q . a: one product for each of the clip + 1 vectors, then picked by distance.
        by_distance = q @ self.key_table.float().T * q.shape[-1] ** -0.5  # (B, H, Q, clip + 1)
        return by_distance.gather(-1, self._clipped(q_pos, k_pos).expand_as(s)).add_(s)

    def _clipped(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Distances clipped to the table: int64 (1 or B, 1, Q, S)."""
        distance = q_pos[:, None, :, None] - k_pos[:, None, None, :]
        return distance.clamp(0, self.key_table.shape[0] - 1).long()


class _KeysAndValues(_Keys):
    """One layer's key term and value term."""

    def __init__(self, shape: Shape, clip: int) -> None:
        super().__init__(shape, clip)
        self.value_table = _table(shape, clip)

    def values(self, w: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        # sum_j w_ij a[c(i - j)]: the weights are summed by distance first, then meet the clip + 1 vectors.
        by_distance = w.new_zeros(*w.shape[:-1], self.value_table.shape[0])
        by_distance = by_distance.scatter_add(-1, self._clipped(q_pos, k_pos).expand_as(w), w)
        return by_distance @ self.value_table.float()


class Shaw(Encoding):
    """Relative position representations of Shaw et al.

    Formula: s_ij = q_i . (k_j + aK[c(i - j)]) / sqrt(D), out_i = sum_j w_ij (v_j + aV[c(i - j)]), c(r) = min(r, clip).
    Acts on the scores (B, H, Q, S) of every layer and, with `values`, on what is read. aK and aV (clip + 1, D) are
    learned, shared by the heads, one pair a layer: layers x (clip + 1) x D parameters a term, starting at N(0, 0.02^2).
    All distances from `clip` on share one vector.

    Worked number: with zero keys, clip 1, D = 1, q = 2, aK = (0, 3), a query two or more back scores 2 x 3 = 6.

    >>> shaw = Shaw(Shape(layers=1, width=1, heads=1, train_length=3), clip=1)
    >>> _ = shaw.load_state_dict({"layers.0.key_table": torch.tensor([[0.0], [3.0]])})
    >>> q, k, at = torch.full((1, 1, 3, 1), 2.0), torch.zeros(1, 1, 3, 1), torch.arange(3)[None]
    >>> shaw.for_layer(0).scores(torch.zeros(1, 1, 3, 3), q, k, at, at, {}, slice(0, 3))[0, 0, 2].tolist()
    [6.0, 6.0, 0.0]

    Paper: Shaw, Uszkoreit and Vaswani 2018, https://arxiv.org/abs/1803.02155.

    Differences from the paper: a decoder sees no later key, so the distances below zero have no vectors; the value term
    is off unless asked for; the initial distribution, which the paper does not give, is that of the other matrices.
    """

    paper = "https://arxiv.org/abs/1803.02155"
    reported = "not read"
    shift_invariant = True

    def __init__(self, shape: Shape, clip: int = 16, values: bool = False) -> None:
        """`clip`: the longest distance with a vector of its own. `values`: also add aV to the values."""
        super().__init__(shape)
        if clip < 1:
            raise ValueError(f"clip must be 1 or more, not {clip}")
        layer = _KeysAndValues if values else _Keys
        self.layers = nn.ModuleList(layer(shape, clip) for _ in range(shape.layers))
        self.acts_on = "scores and values" if values else "scores (learned, times the query)"

    @property
    def hooks(self) -> frozenset[str]:
        return overridden(self, Encoding) | self.for_layer(0).hooks

    def for_layer(self, layer: int) -> Encoding:
        return cast(Encoding, self.layers[layer])
