"""Forgetting attention: every token scales down, by a gate it computes itself, all that came before it."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, overridden
from posbench.encodings.cumulative import between


class _Gates(Encoding):
    """One layer's gates."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gate = nn.Linear(shape.width, shape.heads)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.zeros_(self.gate.bias)

    def state(self, x: Tensor) -> dict[str, Tensor]:
        return {"log_forget": F.logsigmoid(F.linear(x, self.gate.weight.float(), self.gate.bias.float()))}

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
        return s + between(state["log_forget"], rows)


class Fox(Encoding):
    """Forgetting attention, the attention of the Forgetting Transformer (FoX).

    Formula: s_ij = q_i . k_j / sqrt(D) + sum over t = j + 1 ... i of ln f_t, f_t = sigmoid(w_h . x_t + b_h), x_t what
    the layer reads of token t after its norm. Acts on the scores (B, H, Q, S) of every layer. w (H, C) and b (H) are
    learned, one pair a layer: layers x H x (C + 1) parameters. A weight is thus multiplied by the gates of all tokens
    after its key, up to the query. Position ids play no role: order is that of the tokens.

    Beside the keys ln f_t (B, S, H) is kept, in float32; its sums are formed anew for each block of queries, in float64
    (`between`), so that they are as exact at token 100,000 as at the first. A block of queries holds one more tensor of
    the size of its scores, and for a moment one of twice that.

    Worked number: at the start f is about 1/2. With w = 0, zero queries and three keys, the last query's weights are
    1/7, 2/7, 4/7.

    >>> import torch
    >>> layer = Fox(Shape(layers=1, width=4, heads=1, train_length=3)).for_layer(0)
    >>> state, at = layer.state(torch.zeros(1, 3, 4)), torch.arange(3)[None]
    >>> q = torch.zeros(1, 1, 3, 4)
    >>> s = layer.scores(torch.zeros(1, 1, 3, 3), q, q, at, at, state, slice(0, 3))
    >>> [round(7 * w, 6) for w in s[0, 0, 2].softmax(0).tolist()]
    [1.0, 2.0, 4.0]

    Paper: Lin et al. 2025, https://arxiv.org/abs/2503.02130.

    Differences from the paper: none in the formula. The initial values, w at N(0, 0.02^2) and b = 0, are those of the
    paper's code (github.com/zhixuan-lin/forgetting-transformer); x-transformers starts b at 5. The paper's models have
    normed queries and keys and, in the "Pro" block, gated and normed outputs and shifted keys: no part of the encoding,
    and not here.
    """

    paper = "https://arxiv.org/abs/2503.02130"
    acts_on = "scores (bias computed from the tokens)"
    reported = "figures alone: no number read"
    shift_invariant = True
    reads_positions = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.layers = nn.ModuleList(_Gates(shape) for _ in range(shape.layers))

    @property
    def hooks(self) -> frozenset[str]:
        return overridden(self, Encoding) | self.for_layer(0).hooks

    def for_layer(self, layer: int) -> Encoding:
        return cast(Encoding, self.layers[layer])
