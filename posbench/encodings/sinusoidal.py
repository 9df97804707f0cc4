"""Sinusoidal positions, added to the token vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.encodings.angles import cos_sin, frequencies
from posbench.encodings.base import Encoding, Shape


def sinusoid(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """PE(p, 2m) = sin(p w_m), PE(p, 2m+1) = cos(p w_m), w_m = base^(-2m/width): float32 (*positions.shape, width).

    The interleaved order of Vaswani et al., section 3.5. fairseq's form is described in `Sinusoidal`.
    """
    cos, sin = cos_sin(positions, frequencies(width, base))
    return torch.stack((sin, cos), dim=-1).flatten(-2)


class Sinusoidal(Encoding):
    """Fixed sines and cosines of the position, added once to the token vectors.

    Formula: x_p = sqrt(C) E[token] + PE(p), with PE as in `sinusoid`; positions p count from 0. Acts on the token
    vectors x (B, T, C), before the first layer. No learned parameters.

    PE(p + k) is PE(p) with each pair turned by the angle k w_m, and PE(p) . PE(q) depends on p - q alone.

    Worked number: width 4, position 1.

    >>> [round(x, 6) for x in sinusoid(torch.tensor(1), 4).tolist()]
    [0.841471, 0.540302, 0.01, 0.99995]

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762.

    Differences from the paper: none in the formula. The paper does not say how token vectors start; here at N(0, 1/C),
    so that sqrt(C) makes their variance 1 beside PE's mean square of 1/2. Press et al. ran fairseq's form, which is
    neither the paper's nor this one: the C/2 sines come first and the cosines after them, the frequencies are
    base^(-m/(C/2 - 1)), so that the slowest is 1/base exactly, and the first position is 2.
    """

    paper = "https://arxiv.org/abs/1706.03762"
    acts_on = "token vectors"
    reported = (
        "WikiText-103, trained at 512: perplexity 20.05 there, 43.54 at 1,012, 178.97 at 3,512 "
        "(Press et al. 2022, Table 2)"
    )

    def __init__(self, shape: Shape, base: float = 10000.0) -> None:
        """`base`: wavelengths run from 2 pi to nearly base x 2 pi."""
        super().__init__(shape)
        if shape.width % 2:
            raise ValueError(f"sines and cosines come in pairs: the width must be even, not {shape.width}")
        if base <= 0:
            raise ValueError(f"base must be above 0, not {base}")
        self.base = base

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        width = self.shape.width
        # float32 also for 16-bit token vectors: the sum is rounded once.
        return (x.float() * width**0.5 + sinusoid(positions, width, self.base)).to(x.dtype)
