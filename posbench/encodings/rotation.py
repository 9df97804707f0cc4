"""Turning pairs of numbers by angles: one pass for the cosines and half of one for each half of the sines.

Written out, (a cos - b sin, b cos + a sin) is six passes over half of the numbers and one to put them together, and
twice that backwards: a twentieth of a training step at width 128, unless it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.chunk(2, dim=-1)
    return a, b


def _neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., ::2], x[..., 1::2]


LAYOUTS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {"half": _halves, "interleaved": _neighbours}
"""Of x (..., D) views of the first and of the second number of each pair, (..., D/2)."""


def twice(per_pair: Tensor, layout: str) -> Tensor:
    """A number a pair (..., D/2) for both of its numbers: (..., D)."""
    return torch.cat((per_pair, per_pair), dim=-1) if layout == "half" else per_pair.repeat_interleave(2, dim=-1)


def tables(cos: Tensor, sin: Tensor, heads: int, layout: str) -> tuple[Tensor, Tensor]:
    """What `turn` takes for queries of several heads, from cos and sin (1 or B, T, D/2): (1 or B, H, T, D) and
    (1 or B, H, T, D/2).

    They lie in memory as queries do, so that a product of both is one run over it.
    """
    spread = (x[:, :, None].expand(-1, -1, heads, -1).contiguous() for x in (twice(cos, layout), sin))
    cos, sin = (x.transpose(1, 2) for x in spread)
    return cos, sin


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Turn each pair (a, b) of x (..., D) to (a cos - b sin, b cos + a sin), in float32: as x in shape and dtype.

    cos (..., D), each pair's twice, and sin (..., D/2) broadcast against x, in which the pairs lie as `layout` says.

    >>> turn(torch.tensor([3.0, 4.0]), torch.zeros(2), torch.ones(1), "half").tolist()
    [-4.0, 3.0]
    """
    if torch.compiler.is_compiling():
        return _written_out(x.float(), cos, sin, layout).to(x.dtype)
    return _Turn.apply(x.float(), cos, sin, layout).to(x.dtype)


def _written_out(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """What a compiler makes one pass of; of additions to views it makes kernels that a CPU takes number by number."""
    (a, b), (cos, _) = LAYOUTS[layout](x), LAYOUTS[layout](cos)
    pair = a * cos - b * sin, b * cos + a * sin
    return torch.cat(pair, dim=-1) if layout == "half" else torch.stack(pair, dim=-1).flatten(-2)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, layout: str, way: int) -> Tensor:
    out = x * cos
    (a, b), (to_a, to_b) = LAYOUTS[layout](x), LAYOUTS[layout](out)
    to_a.addcmul_(b, sin, value=-way)
    to_b.addcmul_(a, sin, value=way)
    return out


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
        ctx.layout = layout
        learned = cos.requires_grad or sin.requires_grad  # an encoding of one's own may learn its angles
        ctx.save_for_backward(cos, sin, x if learned else None)
        return _turned(x, cos, sin, layout, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        cos, sin, x = ctx.saved_tensors
        d_cos = d_sin = None
        if x is not None:
            (a, b), (d_a, d_b) = LAYOUTS[ctx.layout](x), LAYOUTS[ctx.layout](grad)
            d_cos, d_sin = (grad * x).sum_to_size(cos.shape), (d_b * a - d_a * b).sum_to_size(sin.shape)
        return _turned(grad, cos, sin, ctx.layout, -1), d_cos, d_sin, None
