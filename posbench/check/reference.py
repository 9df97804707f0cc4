"""Attention written down once more, as posbench/encodings/base.py words it: whole matrices, float32, no kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posbench.encodings.base import Encoding
from posbench.encodings.window import Window


def attention(
    e: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    state: dict[str, Tensor] | None = None,
    mask: bool = True,
    window: Window | None = None,
) -> Tensor:
    """softmax(...) . v (B, H, T, D) of queries that are the last T of S keys; q and k are already rotated."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    rows = torch.arange(n_keys - n_queries, n_keys, device=q.device)
    columns = torch.arange(n_keys, device=q.device)
    first = torch.zeros_like(rows) if window is None else window.first(rows)
    factor = e.scale((rows - first + 1)[None], n_keys)
    if isinstance(factor, Tensor):
        factor = factor.transpose(0, 1)[..., None]
    q = q * factor
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if "bias" in e.hooks:
        s = s + e.bias((q_pos[:, :, None] - k_pos[:, None, :]).clamp(min=0)).transpose(0, 1)
    if "scores" in e.hooks:
        s = e.scores(s, q, k, q_pos, k_pos, state or {}, slice(n_keys - n_queries, n_keys))
    if mask:
        s = s.masked_fill((columns > rows[:, None]) | (columns < first[:, None]), -math.inf)
    w = (s - s.amax(-1, keepdim=True)).exp()
    w = w / w.sum(-1, keepdim=True)
    out = torch.einsum("bhqk,bhkd->bhqd", w, v)
    return out + e.values(w, q_pos, k_pos) if "values" in e.hooks else out
