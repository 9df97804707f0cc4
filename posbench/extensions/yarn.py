"""YaRN: NTK-by-parts, and sharper attention."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from torch import Tensor

from posbench.extensions.base import Trained
from posbench.extensions.ntk_by_parts import NtkByParts, Ramp

Magnitude = float | Literal["auto"]


def refuse_magnitude(magnitude: Magnitude) -> None:
    """Raise ValueError for a magnitude that cannot multiply a cosine."""
    if not isinstance(magnitude, str) and not 0 < magnitude < math.inf:
        raise ValueError(f"magnitude must be auto or a number above 0, not {magnitude}")


class Yarn(NtkByParts):
    """YaRN.

    Formula: the frequencies of `ntk_by_parts`, and cos and sin times the magnitude 0.1 ln(s) + 1, so that queries and
    keys carry it once each and the scores its square. The paper writes it as scores divided by a temperature t with
    sqrt(1/t) = 0.1 ln(s) + 1. A number for `magnitude` stands in its place; 1 leaves the scores alone. The other
    parameters are those of `ntk_by_parts`, and the factor s.

    Worked number: s = 8 multiplies cos and sin by 1.207944 and the scores by 1.459129.

    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.rope import Rope
    >>> rope = Rope(Shape(layers=1, width=64, heads=1, train_length=512))
    >>> _, magnitude = Yarn().extend(rope, trained_length=512, length=4096).angles(4096)
    >>> round(magnitude, 6), round(magnitude**2, 6)
    (1.207944, 1.459129)

    Paper: Peng et al. 2023, https://arxiv.org/abs/2309.00071.

    Differences from the paper: those of `ntk_by_parts`. `magnitude` is what multiplies cos and sin, the one convention
    of posbench; other tools also have a pair of settings whose ratio it is.
    """

    acts_on = "rotation frequencies and score temperature"
    reported = (
        "PG19 in sliding windows, trained at 2,048, not fine-tuned: perplexity 14.5 there, 14.5 at 4,096, "
        "17.1 at 16,384; RoPE alone 491.4 at 4,096 (Wang et al. 2024, Table 2)"
    )
    foreign: ClassVar[dict[str, str]] = {
        "attention_factor": "What multiplies cos and sin is extension.magnitude here.",
        **dict.fromkeys(
            ("mscale", "mscale_all_dim"),
            "They are a ratio, (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1): write its value as "
            "extension.magnitude; for two equal ones that is 1.",
        ),
    }

    def __init__(
        self,
        ramp: Ramp = "code",
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        magnitude: Magnitude = "auto",
    ) -> None:
        """`magnitude`: the number that multiplies cos and sin; auto: 0.1 ln(s) + 1. The others: see `NtkByParts`."""
        super().__init__(ramp, beta_fast, beta_slow)
        refuse_magnitude(magnitude)
        self.magnitude = magnitude

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        frequencies, _ = super().angles(trained, factor, length)
        return frequencies, 0.1 * math.log(factor) + 1 if isinstance(self.magnitude, str) else float(self.magnitude)
