"""Causal attention: the only place that picks a kernel.

    B batch, T new tokens (queries), S keys in sight (S >= T; the queries are the last T of them), Q queries of one
    block, H heads, D head width.

`begin` looks once a forward pass at what an encoding does and settles how its scores are formed; `attend` then runs
that for each layer. Five kernels, each equal to a naive float32 softmax (tests/test_attention.py, tests/on_gpu.py):

    causal   scaled_dot_product_attention, no bias: torch's flash attention where the GPU has one
    flex     on CUDA a bias by distance, a window, documents kept apart: FlexAttention (posbench/flex.py). Fewer queries
             than a block of it go to the kernels below
    strided  a bias by distance over consecutive positions, learned or not: a view of one vector (posbench/strided.py)
    dense    a bias over positions that are not consecutive, documents kept apart, a window other than the last so many
             keys: the bias and mask of one block of queries
    blocks   an encoding that rewrites scores or adds to the values: explicit softmax, one block of queries at a time

Biases are formed in float32 and added to float32 scores, also when the model runs in bf16. Where `flex` is not to be
had on a GPU the reason says why, and the other kernels take float32 queries and keys: torch's fused ones have been seen
to misread a float32 bias beside bf16 scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from posbench import flex, strided
from posbench.encodings.base import Encoding
from posbench.encodings.window import Sliding, Window, by_blocks

KERNELS = ("causal", "flex", "strided", "dense", "blocks")

SCORE_BLOCK = 256
"""Most queries of one block whose scores exist as a tensor."""

SCORES = {"cpu": 2**21, "cuda": 2**26}
"""Most scores of one block where none is kept for a gradient: of long windows it has fewer queries. Measured on a CPU;
on a GPU 8 heads keep their 256 queries up to 32,768 keys."""


@dataclass
class Pass:
    """How one forward pass attends: made by `begin`, used by every layer that shares an encoding instance."""

    encoding: Encoding
    kernel: str
    reason: str
    context: Any
    """What `encoding.begin` returned, for `encoding.rotate`."""
    q_pos: Tensor
    """(1 or B, T)"""
    k_pos: Tensor
    """(1 or B, S)"""
    scale: float | Tensor
    """Factor on the queries: a number or (1 or B, H, T)."""
    window: Window | None
    """Which keys a query may see; None: all up to itself."""
    documents: Tensor | None
    """(B, S), the number of each key's document where a query sees no other; None: it sees all before it."""
    vector: Tensor | None
    """strided: the bias of every distance as `strided.attend` takes it"""
    bias: Tensor | None = None
    """flex: the bias as `flex.attend` takes it."""
    mask: BlockMask | None = None
    """flex: what all T queries may see."""


def begin(
    encoding: Encoding,
    q_pos: Tensor,
    k_pos: Tensor,
    consecutive: bool,
    layer: int = 0,
    documents: Tensor | None = None,
) -> Pass:
    """Settle how queries at positions `q_pos` (1 or B, T) attend to keys at `k_pos` (1 or B, S).

    `consecutive` says that the positions count up by one, so that a distance is a difference of indices. With
    `documents` (B, S) a query sees the keys of its own document alone.
    Raises ValueError when there are more queries than keys: the missing keys can be nobody's future.
    """
    if q_pos.shape[1] > k_pos.shape[1]:
        raise ValueError(f"{q_pos.shape[1]} queries cannot be the last of {k_pos.shape[1]} keys")
    # Without autocast: a bias, scale or angle that goes through a matrix product must not come out in 16 bits.
    with torch.autocast(q_pos.device.type, enabled=False):
        return _begin(encoding, q_pos, k_pos, consecutive, layer, documents)


def _begin(
    encoding: Encoding, q_pos: Tensor, k_pos: Tensor, consecutive: bool, layer: int, documents: Tensor | None
) -> Pass:
    n_queries, n_keys = q_pos.shape[1], k_pos.shape[1]
    hooks = encoding.hooks
    window = encoding.window(layer)
    scale: float | Tensor = 1.0
    if "scale" in hooks:
        scale = encoding.scale(_seen(n_queries, n_keys, window, documents, q_pos.device), n_keys)
        if isinstance(scale, Tensor):
            scale = scale.transpose(0, 1)

    vector = bias = mask = None
    flexible = True
    if hooks & {"scores", "values"}:
        kernel, reason, flexible = "blocks", "the encoding rewrites scores or values", False
    elif "bias" in hooks and not consecutive:
        kernel, reason, flexible = "dense", "a bias over positions that are not consecutive", False
    elif documents is not None:
        kernel, reason = "dense", "documents that do not see each other"
    elif window is not None and not isinstance(window, Sliding):
        kernel, reason = "dense", "keys in sight that differ from query to query"
    elif "bias" in hooks:
        vector = encoding.bias(torch.arange(n_keys, device=q_pos.device)).float()
        kernel, reason = "strided", f"a {'learned' if strided.learned(vector) else 'fixed'} bias by distance"
    elif window is not None or n_queries < n_keys:
        kernel, reason = "strided", "a window of keys" if window is not None else "fewer queries than keys"
        vector = torch.zeros(1, n_keys, device=q_pos.device)
    else:
        kernel, reason, flexible = "causal", "no bias", False

    if flexible and flex.offered(q_pos.device, n_queries):
        if lacking := flex.lacking(encoding.shape.head_dim):
            reason += f"; no FlexAttention: {lacking}"
        else:
            kernel, vector = "flex", None
            bias = _flex_bias(encoding, n_keys, q_pos.device) if "bias" in hooks else None
            mask = flex.block_mask(n_queries, n_keys, window, documents, q_pos.device)

    if vector is not None:
        sliding = window if isinstance(window, Sliding) else None
        vector = strided.bias_vector(vector, sliding)
        if strided.leaves_out(vector, n_queries, n_keys, sliding):
            reason += "; keys too far away to count are left out"
    context = encoding.begin(q_pos, n_keys)
    return Pass(encoding, kernel, reason, context, q_pos, k_pos, scale, window, documents, vector, bias, mask)


def _flex_bias(encoding: Encoding, n_keys: int, device: torch.device) -> Tensor:
    """The bias of consecutive positions as `flex.attend` takes it."""
    if encoding.proportional:
        return encoding.bias(torch.ones(1, dtype=torch.int64, device=device)).float()[:, 0]
    return encoding.bias(torch.arange(n_keys, device=device)).float()


def _seen(n_queries: int, n_keys: int, window: Window | None, documents: Tensor | None, device: torch.device) -> Tensor:
    """How many keys each query sees, itself included: (1 or B, T)."""
    at = torch.arange(n_keys - n_queries, n_keys, device=device)[None]
    first = torch.zeros_like(at) if window is None else window.first(at)
    if documents is not None:  # counted up along the window, so a document begins where its number first stands
        first = torch.maximum(first, torch.searchsorted(documents, documents[:, -n_queries:].contiguous()))
    return at - first + 1


def attend(q: Tensor, k: Tensor, v: Tensor, state: dict[str, Tensor], how: Pass) -> Tensor:
    """softmax(q . k / sqrt(D) ...) . v for the last queries of S keys: (B, H, T, D), in the dtype of q.

    q (B, H, T, D), already rotated; T may be less than in `begin`: then these are the last T of its queries.
    k, v (B, H, S, D); `state` is what `encoding.state` gave for the S keys.
    """
    n_queries = q.shape[2]
    if isinstance(how.scale, Tensor):
        # Multiplied before it is rounded: in 16 bits the factors of 4,000 and 4,001 keys are one number.
        q = (q.float() * how.scale[:, :, -n_queries:, None]).to(q.dtype)
    elif how.scale != 1.0:
        q = q * how.scale
    if how.kernel == "causal" and n_queries == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    dtype = q.dtype
    with torch.autocast(q.device.type, enabled=False):
        if how.kernel in ("flex", "causal") and _flexible(n_queries, how):
            return _flex(q, k, v, how)
        q, k, v = q.float(), k.float(), v.float()
        if how.kernel == "blocks":
            out = _blocks(q, k, v, state, how)
        elif how.kernel in ("dense", "flex"):
            out = _dense(q, k, v, how)
        else:
            out = _strided(q, k, v, how)
    return out.to(dtype)


def _flexible(n_queries: int, how: Pass) -> bool:
    """Whether the last `n_queries` can go through FlexAttention, also where all of them need no mask."""
    return flex.offered(how.k_pos.device, n_queries) and not flex.lacking(how.encoding.shape.head_dim)


def _flex(q: Tensor, k: Tensor, v: Tensor, how: Pass) -> Tensor:
    n_queries, n_keys, mask = q.shape[2], k.shape[2], how.mask
    if mask is None or n_queries < how.q_pos.shape[1]:  # in the last layer alone
        mask = flex.block_mask(n_queries, n_keys, how.window, how.documents, q.device)
    return flex.attend(q, k, v, how.bias, mask)


def _strided(q: Tensor, k: Tensor, v: Tensor, how: Pass) -> Tensor:
    vector = how.vector
    if vector is None:  # causal with fewer queries than `begin` was told
        vector = strided.bias_vector(q.new_zeros(1, k.shape[2]), None)
    assert how.window is None or isinstance(how.window, Sliding), "a distance says whether such a key is seen"
    return strided.attend(q, k, v, vector, how.window)


def _masked(how: Pass, n_queries: int, keys: slice) -> Tensor:
    """True (1 or B, 1, Q, S) where the last `n_queries` of the keys `keys` may not look, of these S keys."""
    device = how.k_pos.device
    query = torch.arange(keys.stop - n_queries, keys.stop, device=device)[:, None]
    key = torch.arange(keys.start, keys.stop, device=device)
    masked = (query < key)[None]
    if how.window is not None:
        masked = masked | (key < how.window.first(query))
    if how.documents is not None:
        own = how.documents[:, keys.stop - n_queries : keys.stop, None]
        masked = masked | (own != how.documents[:, None, keys])
    return masked[:, None]


def _dense(q: Tensor, k: Tensor, v: Tensor, how: Pass) -> Tensor:
    q_pos, k_pos = how.q_pos[:, -q.shape[2] :], how.k_pos

    def attended(a: int, b: int, keys: slice) -> Tensor:
        mask = _masked(how, b - a, keys)
        if "bias" in how.encoding.hooks:
            distance = q_pos[:, a:b, None] - k_pos[:, None, keys]  # (1 or B, Q, S)
            bias = how.encoding.bias(distance.clamp(min=0)).float().transpose(0, 1)  # (1 or B, H, Q, S)
            mask = bias.masked_fill(mask, -math.inf)
        else:
            mask = ~mask
        return F.scaled_dot_product_attention(q[:, :, a:b], k[:, :, keys], v[:, :, keys], attn_mask=mask)

    return by_blocks(attended, q, v, _queries_of_a_block(q, k, strided.QUERIES), how.window)


def _blocks(q: Tensor, k: Tensor, v: Tensor, state: dict[str, Tensor], how: Pass) -> Tensor:
    n_queries, head_dim = q.shape[2:]
    encoding, hooks = how.encoding, how.encoding.hooks
    q_pos_BT, k_pos_BS = how.q_pos[:, -n_queries:], how.k_pos

    def attended(a: int, b: int, keys: slice) -> Tensor:
        q_block, k_block, v_block = q[:, :, a:b], k[:, :, keys], v[:, :, keys]
        q_pos, k_pos = q_pos_BT[:, a:b], k_pos_BS[:, keys]
        s = (q_block @ k_block.transpose(2, 3)).mul_(head_dim**-0.5)
        if "bias" in hooks:
            distance = (q_pos[:, :, None] - k_pos[:, None, :]).clamp(min=0)
            s = s + encoding.bias(distance).float().transpose(0, 1)
        seen = {name: tensor[:, keys] for name, tensor in state.items()}
        rows = slice(k_block.shape[2] - (b - a), k_block.shape[2])
        s = encoding.scores(s, q_block, k_block, q_pos, k_pos, seen, rows)
        w = _Masked.apply(s, _masked(how, b - a, keys)).softmax(-1)
        y = w @ v_block
        if "values" in hooks:
            y = y + encoding.values(w, q_pos, k_pos)
        return y

    return by_blocks(attended, q, v, _queries_of_a_block(q, k, SCORE_BLOCK), how.window)


def _queries_of_a_block(q: Tensor, k: Tensor, most: int) -> int:
    """At most `most`, and fewer where their scores need not be kept for a gradient."""
    if torch.is_grad_enabled():
        return most
    scores = SCORES.get(q.device.type, SCORES["cpu"])
    return min(most, max(1, scores // (q.shape[0] * q.shape[1] * k.shape[2])))


class _Masked(torch.autograd.Function):
    """-inf where masked. The softmax that follows has a gradient of 0 there, which need not be filled in once more."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, masked: Tensor) -> Tensor:
        return s.masked_fill(masked, -math.inf)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
