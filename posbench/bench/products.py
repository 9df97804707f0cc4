"""The matrix products of a step: recorded from a real one, then run alone. No training step can be faster than these.

They are recorded part by part, at the shapes that the step has them in, and run in two ways: one after the other by all
threads, and the parts at the same time, each by its share of the threads, as the step itself computes them
(posbench/side_by_side.py). The faster of the two is the bound, the GEMM bound of the tables.

Products inside a fused attention kernel are not seen, nor are element-wise passes, copies and Python: what is lost
between this bound and a step is those. A product with a vector is no matrix product: it is a sum of rows.

    N products of one batch, (A, K) times (K, B)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posbench.side_by_side import each

FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "addmm_": 1, "baddbmm_": 1, "addbmm": 1, "addbmm_": 1}
"""Operations that are a matrix product: where among their arguments its two factors begin."""


@dataclass(frozen=True)
class Factor:
    """A matrix of a product as it lies in memory: its layout decides how fast a product is."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> Factor:
        return Factor(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def make(self, device: torch.device) -> Tensor:
        """A tensor like it, of random numbers."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return torch.rand(last + 1, device=device).to(self.dtype).as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class Product:
    """(A, K) times (K, B), or N of them."""

    left: Factor
    right: Factor
    out: torch.dtype

    @property
    def flops(self) -> int:
        """Multiplications and additions.

        >>> a, b = Factor((2, 3), (3, 1), torch.float32), Factor((3, 5), (5, 1), torch.float32)
        >>> Product(a, b, torch.float32).flops
        60
        """
        *batch, rows, inner = self.left.shape
        return 2 * (batch[0] if batch else 1) * rows * inner * self.right.shape[-1]

    def prepare(self, device: torch.device) -> Callable[[], Any]:
        """The product of tensors made now, into one made now."""
        a, b = self.left.make(device), self.right.make(device)
        multiply = torch.mm if a.ndim == 2 else torch.bmm
        if self.out != a.dtype:  # tensor cores that sum bf16 products in float32
            return partial(multiply, a, b, out_dtype=self.out)
        return partial(multiply, a, b, out=multiply(a, b))


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products: list[Product] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        first = FACTORS.get(func.overloadpacket.__name__)
        if first is not None:
            found = Product(Factor.of(args[first]), Factor.of(args[first + 1]), out.dtype)
            if 1 not in (*found.left.shape[-2:], found.right.shape[-1]):
                self.products.append(found)
        return out


@dataclass(frozen=True)
class Step:
    """The products of one step, forward, backward and update, in their order."""

    parts: tuple[tuple[Product, ...], ...]
    """Of each part of the batch."""
    update: tuple[Product, ...] = ()
    """Of the optimizer, once all parts are there."""
    at_once: int = 1
    """Parts that are computed at the same time."""

    @property
    def products(self) -> tuple[Product, ...]:
        return (*chain(*self.parts), *self.update)

    @property
    def flops(self) -> int:
        return sum(product.flops for product in self.products)

    def run(self, device: torch.device, at_once: int = 1) -> Callable[[], None]:
        """All of them on tensors that are there already, `at_once` parts at the same time, each part by a thread of its
        own; equal products of one part share their tensors."""
        parts, update = [_alone(part, device) for part in self.parts], _alone(self.update, device)

        def call() -> None:
            for _ in each(lambda part: part(), parts, at_once):
                pass
            update()

        return call


def record(call: Callable[[], object]) -> tuple[Product, ...]:
    """The matrix products of one call, in their order, as far as this thread computes them."""
    with _Recorder() as recorder:
        call()
    return tuple(recorder.products)


def _alone(products: Sequence[Product], device: torch.device) -> Callable[[], None]:
    made = {product: product.prepare(device) for product in dict.fromkeys(products)}
    calls = [made[product] for product in products]

    def call() -> None:
        for multiply in calls:
            multiply()

    return call
