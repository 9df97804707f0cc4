"""FlexAttention: a bias by distance and a mask inside one fused kernel, on CUDA.

    B batch, T queries (the last of S keys), H heads, D head width

The kernel keeps its scores in float32 whatever the dtype of q and k, adds the bias there, and visits only the blocks of
keys that some query of a block may see:

    queries   / . . .     .  never visited
       |      # / . .     /  looked at key by key: the diagonal, the edge of a window or of a document
       v      # # / .     #  every query sees every key
              # # # /
              keys ->     each BLOCK x BLOCK

Here these are counted from the ends of the blocks. (`create_block_mask` looks at every pair of query and key instead:
at 131,072 tokens 17 GB of truth values.)

It is compiled once for all lengths: lengths, batch and what is captured are inputs. Only one window against several,
and another dtype, number of heads or form of bias make a kernel of their own.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from posbench import system
from posbench.encodings.window import Window

BLOCK = 128
"""Queries and keys of a block of the mask."""

LEAST = BLOCK
"""Queries from which on it is used: fewer would leave most of a block empty, and lengths below a block have been
computed wrongly by it (pytorch#159247)."""

LEAST_WIDTH = 16
"""Of a head: below it the kernel cannot be built."""

RECOMPILE_LIMIT = 256
"""Kernels of one process. At torch's own limit of 8 it would go on without one, and with T x S scores in memory."""

Mod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _lacking() -> str:
    if os.environ.get("POSBENCH_FLEX") == "off":
        return "POSBENCH_FLEX=off"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return "" if system.has_compiler() else "triton needs a C compiler and Python's headers"


# Asked once: a compiled graph can read a string, and no file system.
_unavailable = _lacking()


def offered(device: torch.device, n_queries: int) -> bool:
    """Whether it is a kernel for so many queries on that device."""
    return device.type == "cuda" and n_queries >= LEAST


def lacking(head_dim: int) -> str:
    """Why it cannot be used on a GPU of this machine, for heads of that width; "": it can."""
    if _unavailable:
        return _unavailable
    return "" if head_dim >= LEAST_WIDTH else f"heads are {head_dim} wide, and it takes {LEAST_WIDTH} or more"


@contextmanager
def without() -> Iterator[None]:
    """Within it another kernel is picked, for whoever looks at single operations: compiled code shows none."""
    global _unavailable
    before, _unavailable = _unavailable, "left aside"
    try:
        yield
    finally:
        _unavailable = before


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: BlockMask) -> Tensor:
    """softmax(q . k / sqrt(D) + bias) . v as `mask` (of `block_mask`) lets it be seen: (B, H, T, D) in the dtype of q.

    q (B, H, T, D), k and v (B, H, S, D), of one dtype. `bias` is float32 and may want a gradient: (H, S), by distance;
    or (H,), the bias of distance 1, where it grows in proportion.
    """
    past = k.shape[2] - q.shape[2]
    score_mod: Mod | None = None
    if bias is not None and bias.ndim == 1:
        score_mod = _in_proportion(bias, past)
    elif bias is not None:
        # Its gradient is added up by atomic operations: with a copy for each window these wait less for each other.
        # Never a view: that had no gradient, without a word, where torch (2.13) runs its graphs as they are.
        copies = bias.expand(len(q), -1, -1).clone(memory_format=torch.contiguous_format)
        score_mod = _by_distance(copies, past)
    # Within a compiled graph it becomes a part of that graph.
    run = cast(Callable[..., Tensor], flex_attention) if torch.compiler.is_compiling() else _compiled()
    return run(q, k, v, score_mod=score_mod, block_mask=mask)


@cache
def _compiled() -> Callable[..., Tensor]:
    import torch._dynamo

    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, RECOMPILE_LIMIT)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, RECOMPILE_LIMIT)
    return torch.compile(flex_attention, dynamic=True)


def _in_proportion(slope_H: Tensor, past: int) -> Mod:
    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score + slope_H[h] * (q + past - k).to(torch.float32)

    return score_mod


def _by_distance(bias_BHS: Tensor, past: int) -> Mod:
    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        # A later key, which the mask takes away, has no distance.
        return score + bias_BHS[b, h, (q + past - k).clamp(min=0)]

    return score_mod


def block_mask(
    n_queries: int, n_keys: int, window: Window | None, documents: Tensor | None, device: torch.device
) -> BlockMask:
    """What the last `n_queries` of `n_keys` keys may see: the keys up to themselves in `window`, and with `documents`
    (B, S), numbers that never fall, those of their own document. (1 or B, 1, blocks of queries, blocks of keys)
    """
    past = n_keys - n_queries

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        at = q + past
        seen = at >= k
        if window is not None:
            seen = seen & (k >= window.first(at))
        if documents is not None:
            seen = seen & (documents[b, at] == documents[b, k])
        return seen

    # Keys are numbered 0 ... S - 1, queries as the keys that they are. (Q, 1) and (K,), their ends included.
    q_first = torch.arange(past, n_keys, BLOCK, device=device)[:, None]
    k_first = torch.arange(0, n_keys, BLOCK, device=device)
    q_end, k_end = q_first + BLOCK - 1, k_first + BLOCK - 1
    q_last, k_last = q_end.clamp(max=n_keys - 1), k_end.clamp(max=n_keys - 1)
    seen = k_first <= q_last
    whole = (k_end <= q_first) & (q_end < n_keys)  # one that reaches past the end is never whole
    if window is not None:
        seen = seen & (k_last >= window.first(q_first))
        whole = whole & (k_first >= window.first(q_last))
    seen, whole = seen[None, None], whole[None, None]
    if documents is not None:
        of_q_first, of_q_last = documents[:, q_first[:, 0]], documents[:, q_last[:, 0]]
        seen = seen & (documents[:, k_last][:, None, :] >= of_q_first[:, :, None])[:, None]
        whole = whole & (documents[:, k_first][:, None, :] == of_q_last[:, :, None])[:, None]
    return BlockMask.from_kv_blocks(
        *_listed(seen & ~whole),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=(n_queries, n_keys),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the blocks of keys of each block of queries are true, and their numbers, those first: int32."""
    count = blocks.sum(-1, dtype=torch.int32)
    return count, blocks.to(torch.int32).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
