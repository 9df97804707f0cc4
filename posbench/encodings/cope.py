"""Contextual position encoding: a query counts the keys it finds worth counting, and looks the count up in a table."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape, overridden


def counts(s: Tensor, rows: slice, most: int) -> Tensor:
    """min(most, sum of sigmoid(s_it) over the keys t from j to i): float32 (B, H, Q, S), 0 at keys after the query.

    s (B, H, Q, S) are scores; the queries are the keys number `rows`.

    >>> counts(torch.zeros(1, 1, 2, 3), slice(1, 3), 10)[0, 0].tolist()
    [[1.0, 0.5, 0.0], [1.5, 1.0, 0.5]]
    """
    later = torch.arange(s.shape[3], device=s.device) > torch.arange(rows.start, rows.stop, device=s.device)[:, None]
    gates = s.sigmoid().masked_fill(later, 0.0)
    return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=most)


class _Table(Encoding):
    """One layer's table."""

    def __init__(self, shape: Shape, npos: int) -> None:
        super().__init__(shape)
        self.table = nn.Parameter(torch.zeros(npos, shape.head_dim))

    def scores(
        self,
        s: Tensor,
        q: Tensor,
        k: Tensor,
        q_pos: Tensor,
        k_pos: Tensor,
        state: dict[str, Tensor],
        rows: slice,
    ) -> Tensor:
        p = counts(s, rows, self.table.shape[0] - 1)
        low, high = p.detach().floor(), p.detach().ceil()
        # One product for each of the npos vectors, then picked by count: no (Q, S, D) exists.
        at_whole = q @ self.table.float().T * q.shape[-1] ** -0.5  # (B, H, Q, npos)
        at_low, at_high = at_whole.gather(-1, low.long()), at_whole.gather(-1, high.long())
        return s + at_low + (p - low) * (at_high - at_low)


class Cope(Encoding):
    """Contextual position encoding (CoPE).

    Formula: s_ij = (q_i . k_j + z_i(p_ij)) / sqrt(D), p_ij = min(npos - 1, sum over t = j ... i of g_it),
    g_it = sigmoid(q_i . k_t / sqrt(D)), z_i(p) = q_i . E[p] at whole numbers p, linear between floor(p) and ceil(p).
    Acts on the scores (B, H, Q, S) of every layer. E (npos, D) is learned, shared by the heads, one a layer:
    layers x npos x D parameters, which start at zero: at step 0 the model is `none`. Position ids play no role: order
    is that of the tokens.

    Nothing but the keys is cached; p is formed for one block of queries, which then holds about eight tensors of the
    size of its scores (gates, counts, two sets of indices at 8 bytes) and one of npos numbers a query; training keeps
    those of all blocks.

    By default npos is the training length, more than any count of that length. Then the rows past the largest count
    that training reached keep their zero, and longer windows read them; all counts from npos - 1 on share the last row.

    Worked number: scores of zero make every gate 1/2: with E = (0, 1, 4), D = 1 and q = 1 the counts 3/2, 1, 1/2 of the
    third query give 5/2, 1, 1/2.

    >>> layer = Cope(Shape(layers=1, width=1, heads=1, train_length=3)).for_layer(0)
    >>> _ = layer.load_state_dict({"table": torch.tensor([[0.0], [1.0], [4.0]])})
    >>> q, k, at = torch.ones(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), torch.arange(3)[None]
    >>> layer.scores(torch.zeros(1, 1, 3, 3), q, k, at, at, {}, slice(0, 3))[0, 0, 2].tolist()
    [2.5, 1.0, 0.5]

    Paper: Golovneva et al. 2024, https://arxiv.org/abs/2405.18719.

    Differences from the paper: the authors' code (facebookresearch/RAM, projects/cope) divides z by sqrt(D) by default,
    as here; the listing printed in the paper, and x-transformers, do not, which is the same model with sqrt(D) E for E.
    That code's default npos is the training length + 1. Its other options, gates from keys of their own or from
    values, are not built.
    """

    paper = "https://arxiv.org/abs/2405.18719"
    acts_on = "scores (learned, times the query, at counted positions)"
    reported = (
        "Books3, trained at 128, the last 256 tokens: perplexity 31.61 there, 25.79 at 512, 90.66 at 8,192 "
        "(Zheng et al. 2024, DAPE, Table 6)"
    )
    shift_invariant = True
    reads_positions = False

    def __init__(self, shape: Shape, npos: int | None = None) -> None:
        """`npos`: rows of the table, one more than the largest count; None: the training length."""
        super().__init__(shape)
        rows = shape.train_length if npos is None else npos
        if rows < 2:
            raise ValueError(f"npos must be 2 or more, not {rows}")
        if npos is None:
            self.length_sized = "its table has a row for each count up to the training length"
        self.layers = nn.ModuleList(_Table(shape, rows) for _ in range(shape.layers))

    @property
    def hooks(self) -> frozenset[str]:
        return overridden(self, Encoding) | self.for_layer(0).hooks

    def for_layer(self, layer: int) -> Encoding:
        return cast(Encoding, self.layers[layer])
