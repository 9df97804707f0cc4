"""Attention with a bias by distance over consecutive positions, which is a view of one vector; it may be learned.

    B batch, T queries (the last of S keys), H heads, D head width; G is 1 or H

With the queries reversed the bias of query row r, counted from the last, and key s depends on r + s alone, so that a
view of the biases of distances S - 1 ... -T + 1 with strides (1, 1) is the whole matrix. Nothing of size T x S exists
but for short windows, and nothing is turned round but the queries and sums of one block.

In a long window a bias that falls without end, as ALiBi's does, leaves keys far away no weight that counts in float32.
Where no gradient is wanted they are not read, head by head: a number moves by less than 2^-39 of the largest value, and
in all that was tried by nothing. (Weights that are not quite 0 are also slow: numbers below 1e-38 take a processor many
times as long.)

The gradient of a bias that is being learned is what lies on each of its diagonals, added up. Torch's fused attention
gives a bias no gradient, and its plain one writes the scores to memory and reads them there six times. So the gradient
is by hand here: formed anew from queries and keys, of as many windows at once as stay near the processor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.encodings.window import Sight, Sliding, by_blocks, query_blocks

QUERIES = 1024
"""Queries of one call: large enough for the fused kernel, small enough to skip the empty triangle."""

SQUARE = 512
"""Keys up to which the whole bias is one small tensor, which takes less than turning the queries."""

BACK = 128
"""Queries of one block whose gradient is formed at once."""

FAR = 4096
"""Keys from which those too far away to count are looked for, by a block of queries or more: of fewer, a call for each
head takes longer than it saves."""

NEGLIGIBLE = 2**-40
"""Weight over that of the query's own key below which all keys from some distance on together are not read. A sum in
float32 is rounded to 2^-24."""

KEYS = 512
"""A multiple of so many keys is left out, as torch's fused attention adds up so many at a time: a block of queries then
sees the same sums, the first of them left out."""

CACHED = 2**18
"""Scores of one such block on a CPU: a MiB, so that each pass over them finds them near."""


def bias_vector(bias: Tensor, window: Sliding | None) -> Tensor:
    """What `attend` takes, from the bias (G, S) of distances 0 ... S - 1: that of S - 1 ... -QUERIES + 1,
    (G, S + QUERIES - 1), -inf where masked."""
    future = bias.new_full((bias.shape[0], QUERIES - 1), -math.inf)
    vector = torch.cat([bias.flip(1), future], dim=1)
    if window is not None:
        vector[:, : max(0, bias.shape[1] - window.size)] = -math.inf
    return vector


def learned(bias: Tensor) -> bool:
    """Whether its gradient is wanted: a view of a parameter says so even where none is kept."""
    return bias.requires_grad and torch.is_grad_enabled()


def leaves_out(vector: Tensor, n_queries: int, n_keys: int, window: Sliding | None) -> bool:
    """Whether keys too far away to count are looked for: on a CPU, in a long window, where no gradient is wanted and
    the bias falls so far that equal scores would leave them nothing."""
    if n_keys < FAR or n_queries < QUERIES or vector.device.type != "cpu":
        return False
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    farthest = (n_keys if window is None else min(window.size, n_keys)) - 1
    own = _keys(vector) - 1
    return bool((vector[:, own - farthest] - vector[:, own]).min() <= math.log(NEGLIGIBLE))


def attend(q: Tensor, k: Tensor, v: Tensor, vector: Tensor, window: Sliding | None) -> Tensor:
    """softmax(q . k / sqrt(D) + bias) . v in float32: (B, H, T, D).

    q (B, H, T, D), k and v (B, H, S, D), float32; `vector` as `bias_vector` gives it, of the same window.
    """
    if not learned(vector):
        if leaves_out(vector, q.shape[2], k.shape[2], window):
            return _by_reach(q, k, v, vector, window)
        return _attend(q, k, v, vector, window)
    if torch.compiler.is_compiling():
        return _laid_out(q, k, v, vector, window)
    return _Learned.apply(q, k, v, vector, window)


def _attend(q: Tensor, k: Tensor, v: Tensor, vector: Tensor, window: Sight | None) -> Tensor:
    n_queries, n_keys = q.shape[2], k.shape[2]
    if n_keys <= SQUARE:
        mask = _turned(vector, n_queries, n_keys).flip(-2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(1, q.shape[1], -1, -1))

    def attended(a: int, b: int, keys: slice) -> Tensor:
        mask = _turned(vector, b - a, keys.stop - keys.start).expand(1, q.shape[1], -1, -1)
        turned = q[:, :, a:b].flip(2)
        return F.scaled_dot_product_attention(turned, k[:, :, keys], v[:, :, keys], attn_mask=mask).flip(2)

    return by_blocks(attended, q, v, QUERIES, window)


def _by_reach(q: Tensor, k: Tensor, v: Tensor, vector: Tensor, window: Sliding | None) -> Tensor:
    """The same, without the keys that no query of a head has to read."""
    near = [_Near(size, window) for size in reach(q, k, vector)]
    if len(near) == 1:
        return _attend(q, k, v, vector, near[0])
    out = q.new_empty(*q.shape[:3], v.shape[3])
    for h, keys in enumerate(near):
        head = slice(h, h + 1)
        # A copy: `_turned` counts from where the memory begins.
        out[:, head] = _attend(q[:, head], k[:, head], v[:, head], vector[head].clone(), keys)
    return out


@dataclass(frozen=True)
class _Near:
    """The last `size` keys of those that `window` lets a query see, and as many before as would be summed up with
    them."""

    size: int
    window: Sliding | None

    def first(self, query: int) -> int:
        whole = 0 if self.window is None else self.window.first(query)
        return whole + max(0, query - self.size + 1 - whole) // KEYS * KEYS


def reach(q: Tensor, k: Tensor, vector: Tensor) -> list[int]:
    """How many keys each head (of one bias: all of them) has to read, the query's own among them.

    Those farther away have together less than `NEGLIGIBLE` of the weight of the query's own key, whatever they are: a
    score is at most |q| |k| / sqrt(D), and the bias says how much less it is worth. Of a batch it is the farthest.
    """
    n_queries, n_keys = q.shape[2], k.shape[2]
    bias = vector[:, : _keys(vector)].double()  # of the farthest first
    beyond = bias.logcumsumexp(1).flip(1) - bias[:, -1:]  # (G, S): all from a distance on, over the own key
    own = (q * k[:, :, -n_queries:]).sum(-1)
    most = q.norm(dim=-1) * k.norm(dim=-1).amax(2, keepdim=True)
    above = (most - own).amax((0, 2)).double() * q.shape[3] ** -0.5  # (H,)
    above = above if len(vector) > 1 else above.amax(0, keepdim=True)
    keys = (~(beyond + above[:, None] < math.log(NEGLIGIBLE))).sum(1)  # where a score is NaN, all of them
    return [min(n_keys, size + 1) for size in keys.tolist()]


def _keys(vector: Tensor) -> int:
    """How many keys a vector is for: the place behind that of distance 0."""
    return vector.shape[1] - (QUERIES - 1)


def _turned(vector: Tensor, n_queries: int, n_keys: int) -> Tensor:
    """The bias of queries that are the last of the keys, the last query in row 0: a view (G, T, S).

    Row r and column s lie S - 1 - r - s apart.
    """
    shape, strides = (len(vector), n_queries, n_keys), (vector.stride(0), 1, 1)
    return vector.as_strided(shape, strides, _keys(vector) - n_keys)


def _laid_out(q: Tensor, k: Tensor, v: Tensor, vector: Tensor, window: Sliding | None) -> Tensor:
    """For a compiler, which makes few passes of plain operations by itself, and of the gradient by hand code that is
    longer and no faster: the bias of all pairs of a block, each picked by its distance."""
    past = k.shape[2] - q.shape[2]

    def attended(a: int, b: int, keys: slice) -> Tensor:
        query = torch.arange(past + a, past + b, device=q.device)
        key = torch.arange(keys.start, keys.stop, device=q.device)
        mask = vector[:, _keys(vector) - 1 - query[:, None] + key].expand(1, q.shape[1], -1, -1)
        return F.scaled_dot_product_attention(q[:, :, a:b], k[:, :, keys], v[:, :, keys], attn_mask=mask)

    return by_blocks(attended, q, v, QUERIES, window)


def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, vector: Tensor, window: Sliding | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, n_queries, width = q.shape
    n_keys, scale = k.shape[2], width**-0.5
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    d_vector = torch.zeros_like(vector)
    # The gradient of a score is its weight times what its own weight's gradient has over the mean of the row.
    mean = (grad * out).sum(-1, keepdim=True)
    for a, b, keys in query_blocks(n_queries, n_keys, BACK, window):
        seen = keys.stop - keys.start
        bias = _turned(vector, b - a, seen).flip(-2).expand(heads, -1, -1)
        windows = _at_once(q, heads * (b - a) * seen)
        d_bias = q.new_zeros(heads, b - a, seen)
        for i in range(0, batch, windows):
            some = slice(i, i + windows)
            q_, k_, v_, grad_ = q[some, :, a:b], k[some, :, keys], v[some, :, keys], grad[some, :, a:b]
            weights = (q_ @ k_.transpose(2, 3)).mul_(scale).add_(bias).softmax(-1)
            dv[some, :, keys] += weights.transpose(2, 3) @ grad_
            d_scores = (grad_ @ v_.transpose(2, 3)).sub_(mean[some, :, a:b]).mul_(weights)
            d_bias += d_scores.sum(0)
            d_scores *= scale
            dq[some, :, a:b] = d_scores @ k_
            dk[some, :, keys] += d_scores.transpose(2, 3) @ q_
        sums = _diagonals(d_bias.flip(-1)).flip(1)
        first = _keys(vector) - seen
        d_vector[:, first : first + sums.shape[1]] += sums.sum_to_size(len(vector), sums.shape[1])
    return dq, dk, dv, d_vector


def _at_once(q: Tensor, scores: int) -> int:
    """How many windows of so many scores each have their gradients formed at once."""
    return max(1, CACHED // scores) if q.device.type == "cpu" else len(q)


def _diagonals(x: Tensor) -> Tensor:
    """Of x (H, T, S) the sums over all r + s that are equal, r the row and s the column: (H, T + S - 1).

    >>> _diagonals(torch.tensor([[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]])).tolist()
    [[1.0, 12.0, 23.0, 30.0]]
    """
    heads, rows, columns = x.shape
    # With T zeros after each row and rows one shorter than that, each begins one column further right.
    padded = F.pad(x, (0, rows)).view(heads, -1)[:, : rows * (rows + columns - 1)]
    return padded.view(heads, rows, rows + columns - 1).sum(1)


class _Learned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, vector: Tensor, window: Sliding | None) -> Tensor:
        # Detached: a mask that wants a gradient is not for the fused kernel, and a view of one wants it here too.
        out = _attend(q, k, v, vector.detach(), window)
        ctx.window = window
        ctx.save_for_backward(q, k, v, vector, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, vector, out = ctx.saved_tensors
        return *_gradients(grad, q, k, v, out, vector, ctx.window), None
