"""Products q . p_r of queries with vectors p_r that depend on the distance alone, for one block of queries.

    B batch, Q queries of the block, S keys, H heads, D width of the vectors.

Positions may be integers or floats, count up by one or leave gaps, and differ from row to row of the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posbench.encodings.angles import cos_sin

PIECE = 1 << 22
"""Numbers of the vectors of pairs that exist at once without a gradient."""


def products(q: Tensor, q_pos: Tensor, k_pos: Tensor, vectors: Callable[[Tensor], Tensor]) -> Tensor:
    """q_i . p_r, r = i - j: (B, H, Q, S) from q (B, H, Q, D), positions (1 or B, Q) and (1 or B, S).

    `vectors` gives p_r (*distance.shape, D) for distances of any shape; without learned parameters, it is the same for
    all heads. A key later than the query gets the product of distance 0.

    In evaluation over whole positions each distance's vector is formed once. With a gradient (training, short windows)
    each pair has its own, because what positions hold cannot be asked in a compiled step: Q x S x D numbers, whatever
    the batch, unless its positions differ.

    >>> at = torch.tensor([[0.0, 0.5, 2.0]])
    >>> products(torch.ones(1, 1, 3, 1), at, at, lambda r: r[..., None])[0, 0, 2].tolist()
    [2.0, 1.5, 0.0]
    """
    distance = (q_pos[:, :, None] - k_pos[:, None, :]).clamp(min=0)  # (1 or B, Q, S)
    if not torch.is_grad_enabled() and not distance.is_floating_point():
        count = int(distance.max()) + 1
        if count <= 2 * distance.shape[-1]:  # with wide gaps most of a table would serve no pair
            by_distance = q @ vectors(torch.arange(count, device=q.device)).T
            return by_distance.gather(-1, distance[:, None].expand(*q.shape[:-1], -1))
    at_once = max(1, PIECE // (distance.shape[0] * distance.shape[2] * q.shape[-1]))
    pieces = zip(q.split(at_once, dim=2), distance.split(at_once, dim=1), strict=True)
    return torch.cat([torch.einsum("bhqd,bqsd->bhqs", a, vectors(r)) for a, r in pieces], dim=2)


def sinusoid_products(q: Tensor, q_pos: Tensor, k_pos: Tensor, frequencies: Tensor) -> Tensor:
    """q_i . R(i - j), R(r) = (sin(r w), cos(r w)): (B, H, Q, S) from q (B, H, Q, D) and frequencies w (D/2,).

    Sinusoids of a difference separate: q . R(i - j) is q turned by the angles of i, times the sinusoid of j. So no
    vector of a pair is ever formed, and the products cost what those of queries and keys of width D do.

    >>> at, w = torch.arange(3)[None], torch.tensor([0.5], dtype=torch.float64)
    >>> q = torch.tensor([3.0, 2.0]).expand(1, 1, 3, 2)
    >>> [round(x, 4) for x in sinusoid_products(q, at, at, w)[0, 0, 2].tolist()]  # 3 sin(r/2) + 2 cos(r/2)
    [3.605, 3.1934, 2.0]
    """
    sines, cosines = q.chunk(2, dim=-1)
    cos, sin = (x[:, None] for x in cos_sin(q_pos, frequencies))
    turned = torch.cat((cosines * sin - sines * cos, sines * sin + cosines * cos), dim=-1)
    cos, sin = cos_sin(k_pos, frequencies)
    return turned @ torch.cat((sin, cos), dim=-1)[:, None].mT
