"""LongRoPE: a factor of its own for each pair, given or searched, beyond the trained length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from posbench.encodings.base import Encoding
from posbench.encodings.rope import Rope
from posbench.extensions.base import SEARCH_LOSSES, Factor, Frequencies, Trained, stretchable
from posbench.extensions.ntk import Ntk
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.extensions.pi import Pi
from posbench.extensions.yarn import Magnitude, refuse_magnitude

PARENTS = 4
"""The best lists so far, from which the next one is made."""


def find_factors(
    loss: Callable[[list[float]], float],
    starts: Sequence[Sequence[float]],
    factor: float,
    evaluations: int = SEARCH_LOSSES,
) -> list[float]:
    """The list of factors with the lowest loss among at most `evaluations` lists that are tried.

    The `starts` are tried first. Each further list takes every factor from one of two of the best so far, multiplies
    some of them by s^(N(0, 1) / 4), keeps them within [1, 1.25 s] and makes them not fall from pair to pair. The draws
    are seeded: the same losses give the same list. A loss that is no number counts as infinite.

    >>> find_factors(lambda factors: abs(factors[1] - 3), starts=[[1.0, 1.0], [4.0, 4.0]], factor=4, evaluations=2)
    [4.0, 4.0]
    """
    draw = np.random.default_rng(0)
    tried: list[tuple[float, list[float]]] = []

    def attempt(factors: np.ndarray) -> None:
        # Rounded before they are tried: what is kept in a row's key is what was measured.
        chosen = np.maximum.accumulate(factors.clip(1, 1.25 * factor)).round(4).tolist()
        found = loss(chosen)
        tried.append((found if math.isfinite(found) else math.inf, chosen))

    for start in starts[:evaluations]:
        attempt(np.array(start, dtype=np.float64))
    while len(tried) < evaluations:
        best = sorted(tried)[:PARENTS]
        one, other = (np.array(best[i][1]) for i in draw.choice(len(best), 2))
        mixed = np.where(draw.random(len(one)) < 0.5, one, other)
        steps = np.where(draw.random(len(one)) < 0.3, draw.normal(size=len(one)), 0) / 4
        attempt(mixed * factor**steps)
    return min(tried)[1]


class LongRope(Frequencies):
    """LongRoPE.

    Formula: theta'_m = theta_m / factors_m with more than L keys in sight, theta_m / short_m up to the trained length L
    (at L itself too). Cos and sin are multiplied by sqrt(1 + ln s / ln L) at any length, or by `magnitude`. Its
    parameters are the two lists of D/2 numbers, `magnitude` and the factor s. Keys turned for a short input do not stay
    valid beyond L: it cannot decode with a cache.

    The factors are given as a list, or searched (`factors=search`): at most 64 lists are tried on validation text, from
    those of `pi`, `ntk` and `ntk_by_parts` on (see `find_factors`).

    Worked number: head width 4, L = 8: with the factors (1, 4), the second frequency is 0.01 at 8 keys, 0.0025 at 9.
    At s = 8 cos and sin are multiplied by sqrt(1 + ln 8 / ln 8) = 1.414214.

    >>> from posbench.encodings.base import Shape
    >>> rope = Rope(Shape(layers=1, width=4, heads=1, train_length=8))
    >>> long = LongRope(factors=[1.0, 4.0]).extend(rope, trained_length=8, length=64)
    >>> [long.angles(length)[0].tolist() for length in (8, 9)]
    [[1.0, 0.01], [1.0, 0.0025]]
    >>> round(long.angles(64)[1], 6)
    1.414214

    Paper: Ding et al. 2024, https://arxiv.org/abs/2402.13753.

    Differences from the paper: the paper also leaves the first tokens of an input as they are, and searches with
    hundreds of evaluations, fine-tuning between two rounds. The magnitude and the switch at L are those of the models
    that use it (Phi-3, in Hugging Face's code).
    """

    paper = "https://arxiv.org/abs/2402.13753"
    acts_on = "rotation frequencies and score temperature"
    reported = "8 times the trained length without fine-tuning (Ding et al. 2024, abstract); perplexities not read"
    dynamic = True
    foreign: ClassVar[dict[str, str]] = {
        "long_factor": "It is called extension.factors here.",
        "short_factor": "It is called extension.short here.",
        "attention_factor": "What multiplies cos and sin is extension.magnitude here.",
    }

    def __init__(
        self,
        factors: list[float] | Literal["search"] = "search",
        short: list[float] | None = None,
        magnitude: Magnitude = "auto",
    ) -> None:
        """`factors`: what divides each frequency beyond the trained length, fastest pair first. `short`: up to it;
        null: nothing. `magnitude`: the number that multiplies cos and sin; auto: sqrt(1 + ln s / ln L).
        """
        for name, values in (("factors", factors), ("short", short)):
            if isinstance(values, list) and not all(0 < value < math.inf for value in values):
                raise ValueError(f"{name} must be numbers above 0")
        refuse_magnitude(magnitude)
        self.factors, self.short, self.magnitude = factors, short, magnitude

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        if isinstance(self.factors, str):
            raise ValueError("its factors must be given as a list, unless a search finds them in an evaluation")
        for name, values in (("factors", self.factors), ("short", self.short)):
            if values is not None and len(values) != trained.dim // 2:
                raise ValueError(f"{name} needs one number for each of {trained.dim // 2} pairs, not {len(values)}")
        divisors = self.factors if length > trained.length else self.short
        frequencies = trained.frequencies
        if divisors is not None:
            frequencies = frequencies / torch.tensor(divisors, dtype=torch.float64)
        if not isinstance(self.magnitude, str):
            return frequencies, float(self.magnitude)
        if factor == 1:
            return frequencies, 1.0
        if trained.length == 1:
            raise ValueError("a trained length of 1 has no logarithm to divide by")
        return frequencies, math.sqrt(1 + math.log(factor) / math.log(trained.length))

    @property
    def searches(self) -> bool:
        return self.factors == "search"

    def search(
        self,
        encoding: Encoding,
        trained_length: int,
        length: int,
        factor: Factor,
        loss: Callable[[Encoding], float],
    ) -> dict[str, Any]:
        stretched = self.resolve(factor, trained_length, length)
        rope = stretchable(encoding, Rope)[0]
        trained = Trained(rope.frequencies, rope.base, trained_length)
        if stretched == 1 or length <= trained_length:  # no window is asked that would tell one list from another
            return {"factors": [1.0] * len(rope.frequencies)}

        def of(factors: list[float]) -> float:
            candidate = LongRope(factors, self.short, self.magnitude)
            return loss(candidate.extend(encoding, trained_length, length, stretched))

        # Of ones in place of the frequencies, since some of those may be 0.
        ones = Trained(torch.ones_like(trained.frequencies), trained.base, trained.length)
        starts = [(1 / start.angles(ones, stretched, length)[0]).tolist() for start in (Pi(), Ntk(), NtkByParts())]
        return {"factors": find_factors(of, starts, stretched)}
