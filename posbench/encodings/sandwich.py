"""Sandwich: the inner product of two sinusoidal position vectors as a fixed bias by distance."""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.encodings.angles import cos_sin
from posbench.encodings.base import Encoding, Shape


class Sandwich(Encoding):
    """Sandwich: a bias that falls like the inner product of two sinusoidal position vectors.

    Formula: s_ij = q_i . k_j / sqrt(D) + b_h(i - j), b_h(r) = (sum_m cos(r w_m) - E/2) / (8h/H), w_m = base^(-2m/E),
    m = 1 ... E/2, heads h = 1 ... H; E is the width of the sinusoid. Acts on the scores of every layer: `bias` gives
    float32 (H, *distance.shape), added after the division by sqrt(D), zero at distance 0. No learned parameters. As
    with ALiBi the heads depend on their number; unlike ALiBi's the bias is bounded, at -E H / 8h.

    Worked number: E = 4, base 10,000, one head: at distance 100 (cos 1 + cos 0.01 - 2) / 8.

    >>> sandwich = Sandwich(Shape(layers=1, width=4, heads=1, train_length=8))
    >>> [round(b, 6) for b in sandwich.bias(torch.tensor([0, 100]))[0].tolist()]
    [-0.0, -0.057468]

    Paper: Chi, Fan, Rudnicky and Ramadge 2023, https://arxiv.org/abs/2212.10356.

    Differences from the paper: the formula is that of NeMo's port (`SandwichRelativePositionEmbedding`), whose
    exponents count from m = 1, so that the fastest frequency is below 1; the authors' code was not at hand. E is the
    head width, as that port passes it; the paper takes it as a width of its own, and a wider one makes all biases
    larger.
    """

    paper = "https://arxiv.org/abs/2212.10356"
    acts_on = "scores (fixed bias)"
    reported = "not read"
    shift_invariant = True

    def __init__(self, shape: Shape, width: int | None = None, base: float = 10000.0) -> None:
        """`width`: E, of the sinusoid; None: the head width. `base`: of its frequencies."""
        super().__init__(shape)
        self.width = shape.head_dim if width is None else width
        if self.width < 2 or self.width % 2:
            raise ValueError(f"width must be an even number from 2 on, not {self.width}")
        if base <= 0:
            raise ValueError(f"base must be above 0, not {base}")
        self.base = base

    def bias(self, distance: Tensor) -> Tensor:
        # 1 - cos is summed as 2 sin^2 of half the angle: near distance 0 cos is 1 to all digits of float32. One
        # frequency at a time: all of them would be E/2 tensors of the size of the distances.
        total = torch.zeros(distance.shape, device=distance.device)
        for m in range(1, self.width // 2 + 1):
            half_angle = torch.tensor([0.5 * self.base ** (-2 * m / self.width)], dtype=torch.float64)
            total = total + 2 * cos_sin(distance, half_angle)[1][..., 0] ** 2
        heads = torch.arange(1, self.shape.heads + 1, device=distance.device)
        ratio = 8 * heads.float() / self.shape.heads
        return -total / ratio.view(-1, *[1] * distance.ndim)
