"""SWAN: layers that see everything and no positions, between layers of RoPE that see a window."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from posbench.encodings.base import Encoding, Shape, overridden
from posbench.encodings.exact import log_ratio
from posbench.encodings.rope import Rope
from posbench.encodings.window import Sliding, Window


class _Global(Encoding):
    """All keys and no positions, scores growing with the logarithm of their number past the training length."""

    shift_invariant = True

    def __init__(self, shape: Shape, scaling: bool) -> None:
        super().__init__(shape)
        self.scaling = scaling

    def scale(self, n_keys: Tensor, length: int) -> float | Tensor:
        if not self.scaling:
            return 1.0
        return log_ratio(n_keys, self.shape.train_length).expand(self.shape.heads, *n_keys.shape)


class _Local(Rope):
    """RoPE among the last `size` keys."""

    def __init__(self, shape: Shape, size: int, layout: Literal["half", "interleaved"], base: float) -> None:
        super().__init__(shape, layout=layout, base=base)
        self.size = size
        self.bounded = size <= shape.train_length

    def window(self, layer: int) -> Window | None:
        return Sliding(self.size)


class Swan(Encoding):
    """SWAN: global layers without positions, interleaved with sliding windows of RoPE.

    Formula: layer l = 0, 1, ... is global when l is a multiple of `period`: it sees all keys up to its own, tells no
    positions, and its scores are multiplied by max(1, ln n / ln L) for a query that sees n keys, L the training length.
    The other layers are RoPE in which a query sees the last `window` keys, its own among them. Acts on q and k
    (B, H, T, D) and on the keys in sight. No learned parameters; cached keys stay valid. No local layer ever meets a
    distance that it was not trained on, and what is far is found by the global ones. So the extensions that
    stretch RoPE do not apply, unless `window` is above L. Trained on at another length (`init_from`), L stays the first
    one.

    Worked number: of 8 layers, 0 and 4 are global; trained at 128, a query that sees 2,048 keys has its scores
    multiplied by 11/7 = 1.571429 there.

    >>> import torch
    >>> swan = Swan(Shape(layers=8, width=8, heads=1, train_length=128))
    >>> [layer for layer in range(8) if swan.for_layer(layer).window(layer) is None]
    [0, 4]
    >>> round(swan.for_layer(4).scale(torch.tensor([[2048]]), 2048).item(), 6)
    1.571429

    Paper: Puvvada et al. 2025, https://arxiv.org/abs/2504.08719 (EMNLP 2025, main 123).

    Differences from the paper: only summaries of it could be read. From these are the cycle of one global layer and
    three local ones, the global one first, the window of 512 keys, and that scores of global layers are multiplied at
    inference alone by a function log(a + n) of the position, a fitted on texts of 32,000 tokens; neither a nor the base
    of that logarithm could be found. ln n / ln L is ours: it grows alike, and is 1 up to L, so that training and
    evaluation agree. That the 512 keys count the query's own, and the base of RoPE, are ours as well. The default
    window is 512, but at most L/2: at short training lengths a window of 512 would never have been seen.
    """

    paper = "https://arxiv.org/abs/2504.08719"
    acts_on = "queries and keys of the local layers, keys in sight; temperature of the global ones"
    reported = "not read"
    shift_invariant = True

    def __init__(
        self,
        shape: Shape,
        period: int = 4,
        window: int | None = None,
        scaling: bool = True,
        layout: Literal["half", "interleaved"] = "half",
        base: float = 10000.0,
    ) -> None:
        """`period`: layers from one global layer to the next. `window`: keys that a query of a local layer sees; None:
        512, but at most half the training length. `scaling`: the factor of the global layers. `layout` and `base`: see
        `Rope`.
        """
        super().__init__(shape)
        size = max(1, min(512, shape.train_length // 2)) if window is None else window
        if period < 1:
            raise ValueError(f"period must be 1 or more, not {period}")
        if size < 1:
            raise ValueError(f"window must be 1 or more, not {size}")
        self.period = period
        self.everywhere, self.near = _Global(shape, scaling), _Local(shape, size, layout, base)
        self.bounded = self.near.bounded

    @property
    def hooks(self) -> frozenset[str]:
        return overridden(self, Encoding) | self.everywhere.hooks | self.near.hooks

    def for_layer(self, layer: int) -> Encoding:
        return self.near if layer % self.period else self.everywhere
