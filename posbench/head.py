"""The tied head and its loss in one: the gradient is made with the loss, a few rows of logits at a time.

    N targets, C width, V vocabulary.

A whole batch of logits is the largest tensor of a small model's step, and plain cross-entropy goes over it six times,
from memory each time. Here a chunk stays in the processor's cache from its product to its gradient.

Scores are float32 sums of products, also under autocast: bf16 keeps three digits, and a score of 20 rounded to it is
off by up to 0.06 nats.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = {"cpu": 2**20, "cuda": 2**27}
"""Logits that exist at once, whatever the length: 4 MB stay in a processor's cache, 512 MB keep a GPU busy."""

LEAST_ROWS = 256
"""Rows of a chunk at least, where the vocabulary leaves fewer (50,304 ids: 52 MB): each chunk reads all weights of the
head and adds to all of their gradient, which for a few rows takes longer than the cache saves."""


def chunk_rows(vocab_size: int, device_type: str) -> int:
    """Targets whose logits exist at once."""
    return max(LEAST_ROWS, CHUNK.get(device_type, CHUNK["cpu"]) // vocab_size)


def peak_bytes(targets: int, vocab_size: int, width: int, device_type: str) -> int:
    """Bytes that `mean_nats` takes on top of what it is given: the gradient of the weights, and the logits of a chunk,
    twice while the next chunk's are made."""
    rows = min(targets, chunk_rows(vocab_size, device_type))
    return 4 * vocab_size * (width + 2 * rows)


def logits(hidden: Tensor, weight_VC: Tensor) -> Tensor:
    """Float32 scores of the next token (..., V) from hidden (..., C)."""
    rows, weight = _operands(hidden.flatten(0, -2), weight_VC)
    return _product(rows, weight.T).view(*hidden.shape[:-1], -1)


@torch.no_grad()
def token_nats(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor) -> Tensor:
    """Float32 nats of each target (N,), without a gradient."""
    rows = chunk_rows(len(weight_VC), hidden_NC.device.type)
    hidden_NC, weight_VC = _operands(hidden_NC, weight_VC)
    found = []
    for hidden, target in zip(hidden_NC.split(rows), targets_N.split(rows), strict=True):
        scores = _product(hidden, weight_VC.T)
        found.append(scores.logsumexp(1) - scores.gather(1, target[:, None])[:, 0])
    return torch.cat(found)


def mean_nats(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor) -> Tensor:
    """Mean nats a target, a scalar: F.cross_entropy(hidden @ weight.T, targets) up to rounding, with its gradients."""
    return _MeanNats.apply(hidden_NC, weight_VC, targets_N)


def _operands(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both as they are multiplied: in float32, or in bf16 under autocast on CUDA, whose tensor cores sum in float32.

    The product of two bf16 numbers is exact in float32, so that only the operands are rounded there, not the scores.
    """
    half = hidden.is_cuda and torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if half else torch.float32
    return hidden.to(dtype), weight.to(dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, summed and returned in float32."""
    if a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, as `_product`."""
    if a.dtype != torch.float32:
        total += _product(a, b)
    else:
        total.addmm_(a, b)


class _MeanNats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        rows = chunk_rows(len(weight), hidden.device.type)
        ctx.dtypes = hidden.dtype, weight.dtype
        hidden, weight = _operands(hidden, weight)
        total = hidden.new_zeros((), dtype=torch.float32)
        d_weight = torch.zeros_like(weight, dtype=torch.float32)
        d_hidden = []
        for h, target in zip(hidden.split(rows), targets.split(rows), strict=True):
            scores, at = _product(h, weight.T), target[:, None]
            own, top = scores.gather(1, at), scores.amax(1, keepdim=True)
            # In place, with one exponential for both: the loss takes the sum, its gradient by the scores the softmax
            # less 1 at the target.
            d_scores = scores.sub_(top).exp_()
            norm = d_scores.sum(1, keepdim=True)
            total = total + (top + norm.log() - own).sum()
            d_scores.div_(norm)
            d_scores.scatter_add_(1, at, d_scores.new_full(at.shape, -1.0))
            d_scores = d_scores.to(h.dtype)
            d_hidden.append(_product(d_scores, weight))
            _add_product(d_weight, d_scores.T, h)
        ctx.save_for_backward(torch.cat(d_hidden), d_weight)
        ctx.count = len(targets)
        return total / ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (d_hidden, d_weight), (hidden_dtype, weight_dtype) = ctx.saved_tensors, ctx.dtypes
        scale = grad / ctx.count
        return (d_hidden * scale).to(hidden_dtype), (d_weight * scale).to(weight_dtype), None
