"""FIRE: a small network of the distance, told as a share of how much text stands before the query."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, overridden


class _Bias(Encoding):
    """One network: psi's c, the threshold's multiplier, and the layers 1 -> hidden -> H."""

    def __init__(self, shape: Shape, hidden: int, threshold: float, c: float, eps: float) -> None:
        super().__init__(shape)
        self.eps = eps
        self.into = nn.Linear(1, hidden)
        self.out = nn.Linear(hidden, shape.heads)
        self.c = nn.Parameter(torch.tensor(float(c)))
        self.multiplier = nn.Parameter(torch.ones(()))
        self.threshold = float(threshold)

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
        c = self.c.float().abs()
        distance = (q_pos[:, :, None] - k_pos[:, None, :]).clamp(min=0).float()
        whole = torch.maximum(q_pos.float(), self.multiplier.float().abs() * self.threshold)
        share = torch.log1p(c * distance) / (torch.log1p(c * whole) + self.eps)[:, :, None]  # (1 or B, Q, S)
        knots, slope, height = self._lines()
        line = torch.bucketize(share.detach(), knots)[:, None].expand(-1, len(slope), -1, -1)
        # A copy of the lines for each query: the gradient is then summed query by query, which rounds less.
        slope, height = (x[None, :, None].expand(*line.shape[:3], -1).gather(-1, line) for x in (slope, height))
        return s + slope * share[:, None] + height

    def get_extra_state(self) -> Tensor:
        """The threshold, which goes with the weights: a model trained at one length and built for another keeps it. No
        buffer, which would follow the model into 16 bits."""
        return torch.tensor(self.threshold, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.threshold = float(state)

    def _lines(self) -> tuple[Tensor, Tensor, Tensor]:
        """The network between its knots (hidden,), where a ReLU opens or shuts, is a straight line: slope x + height,
        both (H, hidden + 1). So a pair costs one look-up, and its hidden layer is never formed."""
        w, b = self.into.weight.float()[:, 0], self.into.bias.float()
        with torch.no_grad():
            # It is asked for numbers from 0 to 1: a ReLU that switches outside does not switch.
            knots = (-b / w).nan_to_num(nan=2.0).clamp(-1, 2).sort().values
            inside = torch.cat((knots[:1] - 1, (knots[:-1] + knots[1:]) / 2, knots[-1:] + 1))
            on = (inside[:, None] * w + b > 0).float()  # (hidden + 1, hidden)
        out = self.out.weight.float()
        return knots, out @ (on * w).T, out @ (on * b).T + self.out.bias.float()[:, None]


class Fire(Encoding):
    """FIRE, functional interpolation for relative position encoding.

    Formula: s_ij = q_i . k_j / sqrt(D) + f_h(psi(i - j) / (psi(max(i, T)) + eps)), psi(x) = ln(|c| x + 1), with a
    network f: 1 -> hidden (ReLU) -> H, eps = 1e-6 and T = |multiplier| T0. Acts on the scores (B, H, Q, S) of every
    layer: whatever the length, f is asked for numbers between 0 and 1 alone. Positions i count from 0. The bias depends
    on the query's position, not on the distance alone; keys once computed stay valid.

    Learned parameters: 2 hidden + (hidden + 1) H + 2 a layer (230 with 32 hidden and 4 heads), or once with `shared`.
    c starts at 0.1, the multiplier at 1, f as torch's linear layers do. Of the queries, those before T teach T, and
    those behind it do not.

    Worked number: c = 1, T0 = 1, f(x) = x: query 3 gives key 2 the bias ln 2 / ln 4 = 1/2 and key 0 the bias 1.

    >>> fire = Fire(Shape(layers=1, width=1, heads=1, train_length=2), hidden=1, c=1.0)
    >>> _ = [p.data.fill_("bias" not in name) for name, p in fire.named_parameters()]
    >>> at, zero = torch.arange(4)[None], torch.zeros(1, 1, 4, 4)
    >>> [round(b, 4) for b in fire.for_layer(0).scores(zero, zero, zero, at, at, {}, slice(0, 4))[0, 0, 3].tolist()]
    [1.0, 0.7925, 0.5, 0.0]

    Cost: beside the scores one number a pair of positions and head, the same for all windows of a batch unless their
    positions differ. Between the knots of its ReLUs f is a straight line, so it is looked up, not run.

    Paper: Li et al. 2024, https://arxiv.org/abs/2310.04418.

    Differences from the paper: T0 is half the training length, as in DAPE's runs of it (2405.14722), where the paper's
    listing has the fixed number 512; at a training length below T0 the paper's would be a function of the distance
    alone. The paper's listing takes the absolute value of the distance; a decoder needs no more than i >= j.
    """

    paper = "https://arxiv.org/abs/2310.04418"
    acts_on = "scores (a learned function of distance and query position)"
    reported = (
        "Pile ArXiv, trained at 512, the last 256 tokens: perplexity 4.5741 there, 4.6953 at 1,024, 30.1164 at 2,048 "
        "(Zheng et al. 2024, DAPE, Table 5); its own paper's numbers not read"
    )

    def __init__(
        self,
        shape: Shape,
        hidden: int = 32,
        threshold: float | None = None,
        c: float = 0.1,
        shared: bool = False,
    ) -> None:
        """`hidden`: width of f. `threshold`: T0; None: half the training length. `c`: its start. `shared`: one f for
        all layers, the paper's FIRE-S."""
        super().__init__(shape)
        if hidden < 1:
            raise ValueError(f"hidden must be 1 or more, not {hidden}")
        if threshold is None:
            threshold = shape.train_length / 2
        if threshold <= 0:
            raise ValueError(f"threshold must be above 0, not {threshold}")
        if c == 0:
            raise ValueError("c must not be 0: psi would be 0 everywhere")
        count = 1 if shared else shape.layers
        self.layers = nn.ModuleList(_Bias(shape, hidden, threshold, c, eps=1e-6) for _ in range(count))

    @property
    def hooks(self) -> frozenset[str]:
        return overridden(self, Encoding) | self.for_layer(0).hooks

    def for_layer(self, layer: int) -> Encoding:
        return cast(Encoding, self.layers[layer if len(self.layers) > 1 else 0])
