"""Log-n scaling: attention grows sharper with the logarithm of how many keys there are."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from posbench.encodings.base import Encoding
from posbench.encodings.exact import log_ratio
from posbench.extensions.base import Extension, Factor, scaled


def _temperature(n_keys: Tensor, length: int) -> Tensor:
    return log_ratio(n_keys, length)[None]


class LogN(Extension):
    """Log-n scaling.

    Formula: the query that sees n keys is multiplied by max(1, ln n / ln L), L the trained length. Acts on the queries
    of every layer, after the rotation; biases are not multiplied. No parameters and no factor; up to L nothing changes.
    It applies where queries see all keys in some layer, after a factor of the encoding's own: those of `ssmax` and of
    `swan`'s global layers, which grow with ln n themselves, then grow with its square. Keys are untouched and stay
    valid in a cache.

    Worked number: trained at 8, the 64th query is multiplied by ln 64 / ln 8 = 2, the eighth by 1.

    >>> import torch
    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.rope import Rope
    >>> rope = Rope(Shape(layers=1, width=4, heads=1, train_length=8))
    >>> LogN().extend(rope, trained_length=8, length=64).scale(torch.tensor([[8, 64]]), 64).tolist()
    [[[1.0, 2.0]]]

    Paper: the scaling is from Chiang and Cholak 2022, https://arxiv.org/abs/2202.12172, there with ln n in training
    too; the form with ln n / ln L on a trained model is that of Qwen's code.

    Differences from the paper: used on a trained model, from L on, as that code does.
    """

    paper = "https://arxiv.org/abs/2202.12172"
    acts_on = "queries (temperature by the keys in sight)"
    reported = "not read for a model trained without it"
    takes_factor = False

    def applies_to(self, encoding: Encoding) -> bool:
        layers = range(encoding.shape.layers)
        return any(encoding.for_layer(layer).window(layer) is None for layer in layers)

    def extend(self, encoding: Encoding, trained_length: int, length: int, factor: Factor = "auto") -> Encoding:
        if trained_length < 2:
            raise ValueError("a trained length of 1 has no logarithm to divide by")
        return scaled(encoding, partial(_temperature, length=trained_length))
