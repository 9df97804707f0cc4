"""NTK-by-parts: slow pairs are interpolated, fast ones left alone, with a ramp between."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from posbench.extensions.base import Frequencies, Trained

Ramp = Literal["code", "paper"]


def pair_turning(turns: float, trained: Trained) -> float:
    """Where between the pairs the one lies that turns so often in a trained window: D ln(L / (2 pi turns)) / (2 ln b).

    >>> from posbench.encodings.angles import frequencies
    >>> trained = Trained(frequencies(64, 10000), base=10000, length=512)
    >>> [round(pair_turning(turns, trained), 4) for turns in (32, 1)]
    [3.2475, 15.2887]
    """
    return trained.dim * math.log(trained.length / (2 * math.pi * turns)) / (2 * math.log(trained.base))


def interpolated_share(trained: Trained, ramp: Ramp, beta_fast: float, beta_slow: float) -> Tensor:
    """How much of each pair is interpolated, float64 (D/2,) from 0 (fast) to 1 (slow): the one owner of the ramp.

    `code`: linear in the number of the pair, between those that turn `beta_fast` and `beta_slow` times in a trained
    window, rounded outwards. `paper`: linear in the number of turns.
    """
    if ramp == "paper":
        turns = trained.length * trained.frequencies / (2 * math.pi)
        return 1 - ((turns - beta_slow) / (beta_fast - beta_slow)).clamp(0, 1)
    if trained.base <= 1:
        raise ValueError(f"the ramp needs a base above 1, not {trained.base:g}")
    low = max(math.floor(pair_turning(beta_fast, trained)), 0)
    high = max(min(math.ceil(pair_turning(beta_slow, trained)), trained.dim - 1), low)
    # The code's own width of a step, where both ends are one pair.
    width = high - low or 0.001
    return ((torch.arange(trained.dim // 2, dtype=torch.float64) - low) / width).clamp(0, 1)


class NtkByParts(Frequencies):
    """NTK-by-parts: the frequencies of YaRN without its temperature.

    Formula: theta'_m = g_m theta_m / s + (1 - g_m) theta_m, g_m the share that is interpolated: 0 for pairs that turn
    more than `beta_fast` times in a trained window of L, 1 below `beta_slow` times, linear between. By `ramp`, `code`
    is linear in the number of the pair m, between floor and ceil of D ln(L / (2 pi beta)) / (2 ln b), clamped to
    [0, D - 1]; `paper` is linear in the number of turns L theta_m / (2 pi). Its parameters are the factor s, `ramp` and
    the two betas. L is the trained length, never the longer one.

    Worked number: head width 64, base 10,000, L = 512, s = 8: pairs 0 to 3 keep their frequency, pair 4 is slowed by
    1.0722, pair 8 by 1.5072, pairs from 16 on by 8. The formula of the paper slows pair 4 by 1.2134.

    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.rope import Rope
    >>> rope = Rope(Shape(layers=1, width=64, heads=1, train_length=512))
    >>> def slowed(**own):
    ...     frequencies, _ = NtkByParts(**own).extend(rope, trained_length=512, length=4096).angles(4096)
    ...     return [round(x, 4) for x in (rope.frequencies / frequencies)[[3, 4, 8, 16]].tolist()]
    >>> slowed()
    [1.0, 1.0722, 1.5072, 8.0]
    >>> slowed(ramp="paper")[1]
    1.2134

    Paper: Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.2.

    Differences from the paper: the default ramp is that of the released code and of Hugging Face, which is not the
    paper's formula; `ramp=paper` is. The betas are the paper's values for Llama.
    """

    paper = "https://arxiv.org/abs/2309.00071"
    reported = "not read"

    def __init__(self, ramp: Ramp = "code", beta_fast: float = 32.0, beta_slow: float = 1.0) -> None:
        """`ramp`: how the share that is interpolated rises from pair to pair. `beta_fast`: turns in a trained window
        from which on a pair is left alone. `beta_slow`: turns below which it is interpolated whole.
        """
        if not 0 < beta_slow < beta_fast < math.inf:
            raise ValueError(f"beta_fast={beta_fast:g} must be above beta_slow={beta_slow:g}, and both above 0")
        self.ramp, self.beta_fast, self.beta_slow = ramp, beta_fast, beta_slow

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        share = interpolated_share(trained, self.ramp, self.beta_fast, self.beta_slow)
        return trained.frequencies * (share / factor + 1 - share), 1.0
