"""Randomized positions: each window's position ids are drawn from a range far wider than the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posbench.encodings.base import Shape
from posbench.encodings.wrapper import Inner, Wrapper


class Randomized(Wrapper):
    """Randomized positions, around any encoding that reads position ids.

    Formula: a window of T tokens has, in ascending order, T different integers of 0 ... span - 1, each set of T as
    likely as any other; the encoding it holds takes them for positions. Then every position and distance up to the span
    occurs in training, whatever the training length. Acts on the position ids (B, T); where they are used is a matter
    of the encoding it holds, and so are the learned parameters, whose number is what it has at training length `span`:
    it is built for that, so that a learned table has `span` rows.

    Draws are made in evaluation as well, from a generator of (run seed, split, window number): neither the size of a
    batch nor a resume changes one. In training a window read again is drawn again. The span is the longest window
    (`max_length`): a longer one is refused with ValueError. A cache needs the positions of the whole text beforehand.
    No window holds a position that training did not, so the extensions that stretch positions do not apply. An encoding
    that reads none (`none`, `fox`, `cable`, `cope`) is refused.

    Worked number: at training length 4 the default span is 64; the average distance of neighbours is (64 + 1)/(4 + 1)
    = 13.

    >>> from posbench.encodings.alibi import Alibi
    >>> randomized = Randomized(Shape(layers=1, width=8, heads=8, train_length=4), inner=Alibi)
    >>> at = randomized.positions(range(2000), 4, [np.random.default_rng(i) for i in range(2000)])
    >>> randomized.max_length, round((at[:, 1:] - at[:, :-1]).double().mean().item())
    (64, 13)

    Paper: Ruoss et al. 2023, https://arxiv.org/abs/2305.16843.

    Differences from the paper: the default span is ours: the paper takes 2,048 for trainings at up to 40 tokens and
    tests at up to 500; at training length 128 the default is that number. A study that evaluates longer windows has to
    set it. The paper's code (github.com/google-deepmind/randomized_positional_encodings) makes one draw for all
    sequences of a batch, and where an encoding acts on scores one for each layer; here each window has its own, the
    same in all layers. It draws in tests too, as here. T5 is not among the paper's: with its default distances most of
    a window is in the last bucket.
    """

    paper = "https://arxiv.org/abs/2305.16843"
    reported = (
        "algorithmic tasks, not language: test accuracy at unseen lengths 12.0 % higher on average "
        "(Ruoss et al. 2023, abstract)"
    )

    def __init__(self, shape: Shape, inner: Inner, span: int | None = None) -> None:
        """`inner`: the encoding that reads the positions. `span`: positions are drawn from 0 ... span - 1; None:
        16 times the training length.
        """
        span = 16 * shape.train_length if span is None else span
        if span < shape.train_length:
            raise ValueError(f"a span of {span} is too short for the training length {shape.train_length}")
        super().__init__(shape, inner, replace(shape, train_length=span))
        if "positions" in self.inner.hooks:
            raise ValueError("it holds an encoding that chooses its own positions")
        if not self.inner.reads_positions:
            raise ValueError("what it holds reads no positions (rope, alibi and learned do)")
        if span > self.inner.widest:
            raise ValueError(
                f"a span of {span} is too wide for what it holds, which reads {int(self.inner.widest)} at most"
            )
        self.max_length = span
        self.bounded = True
        self.acts_on = f"position ids; {self.inner.acts_on}"

    @property
    def span(self) -> int:
        """Positions to draw from."""
        return self.inner.shape.train_length

    def positions(self, windows: Sequence[int], length: int, rng: Sequence[np.random.Generator]) -> Tensor:
        if length > self.span:
            raise ValueError(f"randomized positions are drawn from a span of {self.span}; asked for {length}")
        drawn = [generator.choice(self.span, length, replace=False, shuffle=False) for generator in rng]
        return torch.from_numpy(np.sort(np.stack(drawn), axis=1))
