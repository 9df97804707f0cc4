"""Llama 3.1's rule: long wavelengths are interpolated, short ones left alone, smoothly between."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from posbench.extensions.base import Frequencies, Trained


class Llama3(Frequencies):
    """The frequencies of Llama 3.1.

    Formula: pair m turns r_m = L theta_m / (2 pi) times in a trained window of L. theta'_m = theta_m where r_m is above
    `high`, theta_m / s where it is below `low`, and between them (1 - g) theta_m / s + g theta_m with
    g = (r_m - low) / (high - low). Its parameters are the factor s, `low` and `high`.

    Worked number: head width 64, base 10,000, L = 512, s = 8: pair 10 keeps its frequency, pair 11 is slowed by
    1.19677, pair 16 by 8.

    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.rope import Rope
    >>> rope = Rope(Shape(layers=1, width=64, heads=1, train_length=512))
    >>> frequencies, _ = Llama3().extend(rope, trained_length=512, length=4096).angles(4096)
    >>> [round(x, 5) for x in (rope.frequencies / frequencies)[[10, 11, 16]].tolist()]
    [1.0, 1.19677, 8.0]

    Paper: Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783, does not print the rule: it is that of the
    released code. There L = 8,192, s = 8 (Llama 3.1) or 32 (3.2), base 500,000.

    Differences from the paper: none from the code.
    """

    paper = "https://arxiv.org/abs/2407.21783"
    reported = "not read"
    foreign: ClassVar[dict[str, str]] = {
        "low_freq_factor": "It is called extension.low here.",
        "high_freq_factor": "It is called extension.high here.",
    }

    def __init__(self, low: float = 1.0, high: float = 4.0) -> None:
        """`low`: turns in a trained window below which a pair is interpolated. `high`: above which it is left alone."""
        if not 0 < low < high < math.inf:
            raise ValueError(f"high={high:g} must be above low={low:g}, and both above 0")
        self.low, self.high = low, high

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        turns = trained.length * trained.frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return trained.frequencies * ((1 - kept) / factor + kept), 1.0
