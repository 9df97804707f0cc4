"""What the machine itself can do, timed in the same rounds as everything else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

SIZE = {"cpu": 1024, "cuda": 8192, "mps": 4096}
"""Rows and columns of the matrices whose product is the peak: large enough for the full speed, on a CPU a few
milliseconds."""

COPY_BYTES = 2**30
COPIED = 2 * COPY_BYTES
"""Bytes that a copy reads and writes."""


def matmul(dtype: torch.dtype, device: torch.device) -> tuple[Callable[[], object], int]:
    """A large square matrix product, and its multiplications and additions."""
    size = SIZE[device.type]
    a, b = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    return partial(torch.mm, a, b, out=a @ b), 2 * size**3


def copy(device: torch.device) -> Callable[[], object]:
    """A large copy within the memory of a GPU."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    return partial(torch.empty_like(source).copy_, source)
