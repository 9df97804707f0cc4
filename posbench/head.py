"""The tied head and its loss in one: the gradient is made with the loss, a few rows of logits at a time.

    N targets, C width, V vocabulary.

A whole batch of logits is the largest tensor of a small model's step, and plain cross-entropy goes over it six times,
from memory each time. Here a chunk stays in the processor's cache from its product to its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 2**20
"""Logits that exist at once: 4 MB, whatever the length and the vocabulary."""


def logits(hidden: Tensor, weight_VC: Tensor) -> Tensor:
    """Float32 scores of the next token (..., V) from hidden (..., C)."""
    return F.linear(hidden, weight_VC).float()


@torch.no_grad()
def token_nats(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor) -> Tensor:
    """Float32 nats of each target (N,), without a gradient."""
    rows = max(1, CHUNK // len(weight_VC))
    found = []
    for hidden, target in zip(hidden_NC.split(rows), targets_N.split(rows), strict=True):
        scores = logits(hidden, weight_VC)
        found.append(scores.logsumexp(1) - scores.gather(1, target[:, None])[:, 0])
    return torch.cat(found)


def mean_nats(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor) -> Tensor:
    """Mean nats a target, a scalar: F.cross_entropy(hidden @ weight.T, targets) up to rounding, with its gradients.

    Under autocast, where the product is in bf16 and the loss in float32, it is exactly that.
    """
    if torch.is_autocast_enabled(hidden_NC.device.type):
        return F.cross_entropy(logits(hidden_NC, weight_VC), targets_N)
    return _MeanNats.apply(hidden_NC, weight_VC, targets_N)


class _MeanNats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        rows = max(1, CHUNK // len(weight))
        total = hidden.new_zeros(())
        d_weight = torch.zeros_like(weight)
        d_hidden = []
        for h, target in zip(hidden.split(rows), targets.split(rows), strict=True):
            scores, at = h @ weight.T, target[:, None]
            norm = scores.logsumexp(1, keepdim=True)
            total = total + (norm - scores.gather(1, at)).sum()
            # The gradient of the loss by the scores: softmax, less 1 at the target.
            d_scores = scores.sub_(norm).exp_()
            d_scores.scatter_add_(1, at, d_scores.new_full(at.shape, -1.0))
            d_hidden.append(d_scores @ weight)
            d_weight.addmm_(d_scores.T, h)
        ctx.save_for_backward(torch.cat(d_hidden), d_weight)
        ctx.count = len(targets)
        return total / ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        d_hidden, d_weight = ctx.saved_tensors
        scale = grad / ctx.count
        return d_hidden * scale, d_weight * scale, None
