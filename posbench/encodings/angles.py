"""Angles of sines and cosines: the one place that forms position x frequency.

In float32 the cosine of position x frequency is off by 1e-4 at position 4,000 and by 3e-3 at 100,000, and in bf16
positions above 256 are no longer distinct. So the product is formed in float64 and only cosine and sine are rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posbench.encodings.exact import float64


def frequencies(dim: int, base: float) -> Tensor:
    """base^(-2m/dim) for the pairs m = 0 ... dim/2 - 1: float64 (dim/2,), in radians a position.

    >>> frequencies(4, 10000).tolist()
    [1.0, 0.01]
    """
    # The device is named so that a model built under another default device still gets real numbers.
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)


def cos_sin(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 cosines and sines (*positions.shape, F) of positions (any shape, integer or float) x frequencies (F,)."""
    exact = float64(positions)[..., None]
    angles = exact * frequencies.to(exact.device)
    return angles.cos().float().to(positions.device), angles.sin().float().to(positions.device)
