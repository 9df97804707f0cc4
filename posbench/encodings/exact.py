"""Float64 on any device: the one place that asks for it, and what it is needed for in more than one encoding."""

from __future__ import annotations

import math

from torch import Tensor


def float64(x: Tensor) -> Tensor:
    """x in float64, on the CPU where its device has none (MPS). What is made of it goes back with `.to(x.device)`."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def log_ratio(n: Tensor, length: int) -> Tensor:
    """max(1, ln n / ln length), float32 in the shape of n: how scores grow with the n keys in sight, past `length`.

    A length of 1, whose logarithm is 0, counts as 2. Exactly 1 at n = length.

    >>> import torch
    >>> log_ratio(torch.tensor([1, 8, 64]), 8).tolist()
    [1.0, 1.0, 2.0]
    """
    return (float64(n).log() / math.log(max(length, 2))).clamp(min=1).float().to(n.device)
