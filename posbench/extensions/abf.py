"""Adjusted base frequency: the rotation of another base."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posbench.extensions.base import Frequencies, Trained


class Abf(Frequencies):
    """Adjusted base frequency (ABF).

    Formula: theta'_m = base^(-2m/D), in place of the base b that was trained. Its one parameter is `base`; there is no
    factor, and it changes short inputs too. The trained base changes nothing.

    Worked number: head width 4: at base 1,000,000 the slower of two pairs turns by 0.001, ten times slower than at the
    trained 10,000.

    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.rope import Rope
    >>> rope = Rope(Shape(layers=1, width=4, heads=1, train_length=8))
    >>> [round(x, 9) for x in Abf(base=1e6).extend(rope, trained_length=8, length=16).angles(16)[0].tolist()]
    [1.0, 0.001]

    Paper: Xiong et al. 2023, https://arxiv.org/abs/2309.16039 (base 500,000). It goes on training after the change.

    Differences from the paper: none.
    """

    paper = "https://arxiv.org/abs/2309.16039"
    reported = "not read"
    takes_factor = False

    def __init__(self, base: float = 500000.0) -> None:
        """`base`: wavelengths run from 2 pi to nearly base x 2 pi positions."""
        if not 0 < base < math.inf:
            raise ValueError(f"base must be above 0, not {base}")
        self.base = base

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        share = torch.arange(0, trained.dim, 2, dtype=torch.float64) / trained.dim
        # A ratio, so that a frequency that an encoding holds at 0 stays there.
        return trained.frequencies * (trained.base / self.base) ** share, 1.0
