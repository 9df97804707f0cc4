"""KERPLE: a learned penalty on the distance, logarithmic or a power of it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape

LEAST = 0.01
"""Both parameters stay at this or above, as in the authors' code."""

LARGEST_POWER = 2.0
"""Past it -a r^p is no longer a conditionally positive definite kernel."""


class Kerple(Encoding):
    """KERPLE, kernelized relative position embedding.

    Formula: s_ij = q_i . k_j / sqrt(D) + b_h(i - j), with b_h(r) = -p_h ln(1 + a_h r) (`log`) or b_h(r) = -a_h r^p_h
    (`power`), a > 0, p > 0, and p <= 2 for `power`. Acts on the scores of every layer: `bias` gives float32
    (H, *distance.shape), added after the division by sqrt(D). 2 H learned parameters, p and a of each head, one set for
    all layers; p starts uniform in [0, 2), a in [0, 1), and after every update both are brought back to 0.01 or more.

    Worked number: p = 2 and a = 1 give -2 ln 4 at distance 3 (`log`), and -1 x 3^2 (`power`).

    >>> three = torch.tensor([0, 3])
    >>> for variant in ("log", "power"):
    ...     kerple = Kerple(Shape(layers=1, width=2, heads=1, train_length=8), variant)
    ...     _ = kerple.load_state_dict({"p": torch.tensor([2.0]), "a": torch.tensor([1.0])})
    ...     print([round(b, 6) for b in kerple.bias(three)[0].tolist()])
    [-0.0, -2.772589]
    [-0.0, -9.0]

    Paper: Chi et al. 2022, https://arxiv.org/abs/2205.09921.

    Differences from the paper: its equation 1 has the bias inside the division by sqrt(D); its code (a fork of
    GPT-NeoX, `ParallelKerpleLog`, `ParallelKerplePower`) adds it to the divided scores, as here. Start and limits are
    that code's, which clamps in every forward pass; here after every update, and once at the start. The forms with
    three or four parameters are not built.
    """

    paper = "https://arxiv.org/abs/2205.09921"
    acts_on = "scores (learned bias)"
    reported = (
        "OpenWebText2, trained at 512: perplexity 23.9 there, 21.4 at 16,384 "
        "(`log`, Chi et al. 2022, Table 3); FineWeb-Edu, trained at 1,024: 16.70, and 26.13 at 15,360 "
        "(Veisi et al. 2025, CABLE, Table 1)"
    )
    shift_invariant = True

    def __init__(self, shape: Shape, variant: Literal["log", "power"] = "log") -> None:
        """`variant`: how the penalty grows with the distance."""
        super().__init__(shape)
        if variant not in ("log", "power"):
            raise ValueError(f"variant must be log or power, not {variant}")
        self.variant = variant
        self.p = nn.Parameter(2 * torch.rand(shape.heads))
        self.a = nn.Parameter(torch.rand(shape.heads))
        self.constrain()

    @torch.no_grad()
    def constrain(self) -> None:
        self.p.clamp_(LEAST, LARGEST_POWER if self.variant == "power" else None)
        self.a.clamp_(LEAST)

    def bias(self, distance: Tensor) -> Tensor:
        of_head = (-1, *[1] * distance.ndim)
        p, a, r = self.p.float().view(of_head), self.a.float().view(of_head), distance.float()
        return -p * torch.log1p(a * r) if self.variant == "log" else -a * r**p
