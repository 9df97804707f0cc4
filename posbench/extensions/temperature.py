"""DroPE's temperature at test time, for a model without positions."""

from __future__ import annotations

import math

from torch import Tensor

from posbench.encodings.base import Encoding
from posbench.extensions.base import Extension, Factor, scaled


class Temperature(Extension):
    """The test-time temperature of DroPE, a model whose positions were taken away (`init_from=RUN encoding=none`).

    Formula: all scores are multiplied by 1 + coefficient ln(s). Acts on the queries of every layer. Its parameters are
    the factor s and `coefficient`. It applies to an encoding that does nothing, such as `none`.

    Worked number: s = 4 multiplies the scores by 1 + 0.412 ln 4 = 1.571153.

    >>> import torch
    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.none import NoPosition
    >>> none = NoPosition(Shape(layers=1, width=4, heads=1, train_length=8))
    >>> round(Temperature().extend(none, trained_length=8, length=32).scale(torch.tensor([[32]]), 32), 6)
    1.571153

    Paper: Gelberg et al. 2025, https://arxiv.org/abs/2512.12167: 0.412 for models trained from the start, 0.103 for
    SmolLM.

    Differences from the paper: none.
    """

    paper = "https://arxiv.org/abs/2512.12167"
    acts_on = "queries (one temperature)"
    reported = "not read"

    def __init__(self, coefficient: float = 0.412) -> None:
        """`coefficient`: how fast the scores grow with ln s."""
        if not 0 <= coefficient < math.inf:
            raise ValueError(f"coefficient must be 0 or more, not {coefficient}")
        self.coefficient = coefficient

    def applies_to(self, encoding: Encoding) -> bool:
        return not encoding.hooks

    def extend(self, encoding: Encoding, trained_length: int, length: int, factor: Factor = "auto") -> Encoding:
        warmth = 1 + self.coefficient * math.log(self.resolve(factor, trained_length, length))

        def temperature(n_keys: Tensor) -> float:
            return warmth

        return scaled(encoding, temperature)
