"""Scalable softmax: scores grow with the logarithm of the number of keys, so that attention does not fade."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posbench.encodings.base import Shape
from posbench.encodings.wrapper import Inner, Wrapper


class SSMax(Wrapper):
    """Scalable softmax (SSMax), a learned log-n temperature, around any encoding.

    Formula: scores q_i . k_j / sqrt(D) are multiplied by s_h ln n, n the number of keys that query i sees (i + 1
    counted from 0, fewer in a window of keys or a document of its own): weights n^(s z) / sum n^(s z). `scale` gives
    the factor, float32 (H, 1 or B, T), applied to the queries of every layer. s is learned, one number a head and
    layer: layers x H parameters, beside those of the inner encoding. The first query sees one key, and its factor is 0.

    A `scale` of the inner encoding is multiplied by this one. A bias is added after it and stays as it is; what an
    inner encoding computes from queries or scores (`shaw`, `cope`, `dape`) it computes from the scaled ones, and what
    it adds without the query (u . k and v . W_r R of `transformer_xl`) is a bias.

    Worked number: trained at 256, s starts at 1/ln 256: 16 keys have half the scores they would have, 65,536 twice.

    >>> from posbench.encodings.none import NoPosition
    >>> ssmax = SSMax(Shape(layers=1, width=2, heads=1, train_length=256), NoPosition)
    >>> [round(x, 6) for x in ssmax.scale(torch.tensor([[1, 16, 256, 65536]]), 65536).flatten().tolist()]
    [0.0, 0.5, 1.0, 2.0]

    Paper: Nakanishi 2025, https://arxiv.org/abs/2501.19399.

    Differences from the paper: it replaces the softmax, so that there a bias, too, would be multiplied. The initial
    s = 1 / ln(training length), which makes the last query of a training window that of the inner encoding, is ours.
    """

    paper = "https://arxiv.org/abs/2501.19399"
    reported = (
        "its own numbers not read; log-n scaling with RoPE, FineWeb, trained at 4,096: 3.260 nats there, "
        "3.378 at 65,536, RoPE alone 3.261 and 5.260 (Anson et al. 2025, Table 1)"
    )
    by_layer = True

    def __init__(self, shape: Shape, inner: Inner) -> None:
        """`inner`: the encoding whose scores are scaled."""
        super().__init__(shape, inner)
        if shape.train_length < 2:
            raise ValueError("ssmax starts at 1 / ln(training length), which needs a length of 2 or more")
        self.acts_on = f"temperature of the softmax; {self.inner.acts_on}"
        self.strength = nn.Parameter(torch.full((shape.layers, shape.heads), 1 / math.log(shape.train_length)))

    def scale(self, n_keys: Tensor, length: int) -> float | Tensor:
        strength_H = self.strength[self.layer].float().view(-1, *[1] * n_keys.ndim)
        return strength_H * n_keys.float().log() * self.inner.scale(n_keys, length)
