"""Sums of per-token numbers between a key and a query: the one place that cumulates over a window of text."""

from __future__ import annotations

from torch import Tensor

from posbench.encodings.exact import float64


def between(steps: Tensor, rows: slice) -> Tensor:
    """The sum of `steps` (B, S, H) over the tokens after key j, up to query i: float32 (B, H, Q, S).

    The queries are the keys number `rows`. A query on itself gets 0. At keys after the query, which the caller masks,
    stands minus the sum the other way round.

    >>> import torch
    >>> between(torch.tensor([[[1.0], [2.0], [3.0]]]), slice(1, 3))[0, 0].tolist()
    [[2.0, 0.0, -3.0], [5.0, 3.0, 0.0]]
    """
    # A float32 total over 100,000 tokens has lost the digits that two neighbours differ in; only the difference is
    # rounded.
    total = float64(steps).cumsum(1).transpose(1, 2)
    return (total[:, :, rows, None] - total[:, :, None, :]).float().to(steps.device)
