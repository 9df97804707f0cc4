"""NTK-aware scaling: a larger base, so that the slowest pair is slowed by s and the fastest not at all."""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.extensions.base import Frequencies, Trained


def rebased(trained: Trained, factor: float) -> Tensor:
    """The frequencies of the base b s^(D/(D-2)), float64 (D/2,): theta_m s^(-2m/(D-2)).

    Written as a change of the frequencies, so that one that an encoding holds at 0 stays there. Raises ValueError for
    a head width of 2, whose one pair is the fastest and the slowest.
    """
    if trained.dim == 2:
        raise ValueError("a changed base needs a head width above 2")
    return trained.frequencies * factor ** -(torch.arange(0, trained.dim, 2, dtype=torch.float64) / (trained.dim - 2))


class Ntk(Frequencies):
    """NTK-aware scaling, static.

    Formula: base b' = b s^(D/(D-2)), theta'_m = b'^(-2m/D). Pair 0 keeps its frequency, the slowest is slowed by
    exactly s, those between by s^(2m/(D-2)). No parameters but the factor s.

    Worked number: head width 64, base 10,000, s = 8: the base is 85,550.38, pair 1 is slowed by 1.06938, the last by 8.

    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.rope import Rope
    >>> rope = Rope(Shape(layers=1, width=64, heads=1, train_length=512))
    >>> frequencies, _ = Ntk().extend(rope, trained_length=512, length=4096).angles(4096)
    >>> [round(x, 5) for x in (rope.frequencies / frequencies)[[0, 1, 31]].tolist()]
    [1.0, 1.06938, 8.0]

    Paper: Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.1; first a forum post by bloc97.

    Differences from the paper: none.
    """

    paper = "https://arxiv.org/abs/2309.00071"
    reported = (
        "PG19 in sliding windows, trained at 2,048, not fine-tuned: perplexity 14.5 there, 14.9 at 4,096, "
        "80.4 at 16,384; RoPE alone 491.4 at 4,096 (Wang et al. 2024, Table 2)"
    )

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        return rebased(trained, factor), 1.0
