"""DAPE: a small network over the heads corrects another encoding's bias by what the scores are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.encodings.base import Shape, overridden
from posbench.encodings.wrapper import Inner, Wrapper


def _mixed(x: Tensor, linear: nn.Linear) -> Tensor:
    """A linear layer over the second dimension, (B, I, N) -> (B, O, N), in float32 whatever the model's dtype."""
    return torch.baddbmm(linear.bias.float()[:, None], linear.weight.float().expand(len(x), -1, -1), x)


class _Network(nn.Module):
    """(B, 2 H, Q, S) -> (B, H, Q, S)."""

    def __init__(self, heads: int, hidden: int) -> None:
        super().__init__()
        self.rise = nn.Linear(2 * heads, hidden)
        self.fall = nn.Linear(hidden, heads)

    def forward(self, x: Tensor) -> Tensor:
        # As matrices over all pairs: with the heads last, as nn.Linear wants them, a training step takes twice as long.
        pairs = x.flatten(2)
        return _mixed(F.leaky_relu(_mixed(pairs, self.rise)), self.fall).unflatten(2, x.shape[2:])


class Dape(Wrapper):
    """Data-adaptive positional encoding (DAPE), around an encoding that adds to the scores.

    Formula: S + B + f([S; B]) at each (i, j): S the scores q_i . k_j / sqrt(D) of all H heads, B what the inner
    encoding adds to them, f = Linear(2 H -> hidden), LeakyReLU (slope 0.01), Linear(hidden -> H). Acts on the scores
    (B, H, Q, S) of every layer, across heads. One f a layer: layers x (2 H hidden + hidden + hidden H + H) parameters,
    beside those of the inner encoding. For an inner one that does more than a bias by distance (`fox`, `cable`), B is
    its new scores less the old.

    f runs at every pair of a query and a key: a block of queries holds 2 H + 2 hidden numbers for each pair, with 4
    heads and 32 hidden about 18 times its scores, and training keeps those of all blocks.

    Worked number: one head, hidden 1, both first weights 1, second weight 2, no biases: S = 3 and B = -1 give
    3 - 1 + 2 LeakyReLU(2) = 6, and S = 0, B = -1 give -1 + 2 x (-0.01) = -1.02.

    >>> from posbench.encodings.alibi import Alibi
    >>> layer = Dape(Shape(layers=1, width=2, heads=1, train_length=8), Alibi, hidden=1).for_layer(0)
    >>> _ = [p.data.fill_(w) for p, w in zip(layer.parameters(), (1.0, 0.0, 2.0, 0.0), strict=True)]
    >>> q = torch.zeros(1, 1, 1, 2)
    >>> far = torch.tensor([[256]]), torch.tensor([[0]])  # slope 1/256
    >>> [round(layer.scores(torch.full((1, 1, 1, 1), s), q, q, *far, {}, slice(0, 1)).item(), 6) for s in (3.0, 0.0)]
    [6.0, -1.02]

    Paper: Zheng et al. 2024, https://arxiv.org/abs/2405.14722. The form with convolutions of 2410.04798 (DAPE V2) is
    not built: its hidden numbers to the right of the diagonal depend on how many keys there are.

    Differences from the paper: none in the formula. One f a layer and PyTorch's initial values for linear layers are as
    in the authors' code (github.com/chuanyang-Zheng/DAPE, classes AliBi_C and ParallelKerpleLog_C).
    """

    paper = "https://arxiv.org/abs/2405.14722"
    reported = (
        "Pile ArXiv, trained at 512, the last 256 tokens, around `alibi`: perplexity 4.5262 there, 4.0013 at 8,192; "
        "`alibi` alone 4.6146 and 4.7679 (Zheng et al. 2024, Table 5)"
    )
    by_layer = True

    def __init__(self, shape: Shape, inner: Inner, hidden: int = 32) -> None:
        """`inner`: the encoding whose bias is corrected. `hidden`: width of the network."""
        super().__init__(shape, inner)
        if not self.inner.hooks & {"bias", "scores"}:
            raise ValueError("dape corrects a bias, and what it holds adds none to the scores (alibi and t5 do)")
        if hidden < 1:
            raise ValueError(f"hidden must be 1 or more, not {hidden}")
        self.acts_on = f"scores (a network over scores and bias); {self.inner.acts_on}"
        self.networks = nn.ModuleList(_Network(shape.heads, hidden) for _ in range(shape.layers))

    @property
    def hooks(self) -> frozenset[str]:
        """Without `bias`: `scores` adds it, because it needs both apart."""
        return (overridden(self, Wrapper) | self.inner.hooks) - {"bias"}

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
        added = torch.zeros_like(s)
        if "bias" in self.inner.hooks:
            distance = (q_pos[:, :, None] - k_pos[:, None, :]).clamp(min=0)
            added = added + self.inner.bias(distance).float().transpose(0, 1)
        if "scores" in self.inner.hooks:
            added = self.inner.scores(s + added, q, k, q_pos, k_pos, state, rows) - s
        return s + added + self.networks[self.layer](torch.cat((s, added), dim=1))
