"""Learned absolute positions, added to the token vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape


class Learned(Encoding):
    """One trainable vector for each position, added once to the token vectors.

    Formula: x_p = E[token] + P[p], P (N, C), positions p = 0 ... N - 1. Acts on the token vectors x (B, T, C), before
    the first layer. N x C learned parameters, starting at N(0, 1/C) like the token vectors. N is the training length,
    and `max_length`: a window with a position past the table is refused with ValueError, the same on every device.

    Worked number: GPT-2 small's table of 1,024 positions at width 768 has 786,432 parameters.

    >>> Learned(Shape(layers=12, width=768, heads=12, train_length=1024)).table.numel()
    786432

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.5 ("learned positional embeddings"), after
    Gehring et al. 2017, https://arxiv.org/abs/1705.03122.

    Differences from the paper: the initial distribution, which the paper does not give, is fairseq's; the token vectors
    are not multiplied by sqrt(C).
    """

    paper = "https://arxiv.org/abs/1706.03762"
    acts_on = "token vectors"
    reported = (
        "nothing past its table: FineWeb-Edu, trained at 1,024: perplexity 17.47 there, no number beyond "
        "(Veisi et al. 2025, CABLE, Table 1)"
    )
    length_sized = "its table has a row for each position of the training length"

    def __init__(self, shape: Shape, length: int | None = None) -> None:
        """`length`: positions in the table; None: the training length."""
        super().__init__(shape)
        rows = shape.train_length if length is None else length
        if rows < shape.train_length:
            raise ValueError(f"a table of length {rows} is too short for the training length {shape.train_length}")
        self.max_length = rows
        self.table = nn.Parameter(torch.empty(rows, shape.width).normal_(0.0, shape.width**-0.5))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        # Looked at before the lookup: past the table CUDA ends in an assertion that takes the whole process with it.
        # Reading a number back would cut a compiled graph; what is compiled is training, whose length fits (__init__).
        if not torch.compiler.is_compiling():
            longest = int(positions.max()) + 1
            if longest > self.table.shape[0]:
                raise ValueError(f"learned positions end at length {self.table.shape[0]}; asked for {longest}")
        return x + nn.functional.embedding(positions, self.table)
