"""Attention with linear biases: every score is lowered in proportion to the distance."""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.encodings.base import Encoding, Shape


def slopes(heads: int) -> list[float]:
    """The slope m_h of each head, by the paper's rule for any number of heads.

    A power of two n: 2^(-8h/n), h = 1 ... n. Any other number: the slopes of the next lower power of two, then every
    second slope of the next higher one (the paper's code, and Bloom's); they are not in descending order.

    >>> slopes(6)
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    lower = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8 * h / lower) for h in range(1, lower + 1)]
    between = [2.0 ** (-8 * h / (2 * lower)) for h in range(1, 2 * lower, 2)]
    return first + between[: heads - lower]


class Alibi(Encoding):
    """Attention with linear biases (ALiBi).

    Formula: s_ij = q_i . k_j / sqrt(D) - m_h (i - j), m_h from `slopes`. Acts on the scores of every layer: `bias`
    gives float32 (H, *distance.shape), added after the division by sqrt(D). No learned parameters. The slopes depend
    on the number of heads: 8 heads have 1/2 ... 1/256, 4 heads 1/4 ... 1/256.

    Worked number: with all queries zero, slope 1/2 and three keys, the last query's weights are 0.186324, 0.307196,
    0.506480, whatever the head width.

    >>> alibi = Alibi(Shape(layers=1, width=8, heads=8, train_length=8))
    >>> [round(w, 6) for w in alibi.bias(torch.tensor([2, 1, 0]))[0].softmax(0).tolist()]
    [0.186324, 0.307196, 0.50648]

    Paper: Press, Smith and Lewis 2022, https://arxiv.org/abs/2108.12409.

    Differences from the paper: none. The paper's code stores m_h j in place of -m_h (i - j), which is the same after
    the softmax; here the bias is formed in float32 also when the model runs in 16 bits.
    """

    paper = "https://arxiv.org/abs/2108.12409"
    acts_on = "scores (fixed bias)"
    reported = (
        "WikiText-103, trained at 512: perplexity 19.73 there, 18.40 at 3,512 "
        "(Press et al. 2022, Table 2); in sliding windows 17.98, and 18.30 at 3,072 (Table 15)"
    )
    shift_invariant = True
    proportional = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slopes = slopes(shape.heads)

    def bias(self, distance: Tensor) -> Tensor:
        # Made here from Python's floats: a buffer would follow the model into bf16, where neighbours share one value.
        slope_H = torch.tensor(self.slopes, dtype=torch.float32, device=distance.device)
        return -slope_H.view(-1, *[1] * distance.ndim) * distance.float()
