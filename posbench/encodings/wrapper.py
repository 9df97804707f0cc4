"""An encoding around another one: randomized(alibi), dape(kerple), ssmax(rope), ..."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from posbench.encodings.base import Encoding, Shape, overridden
from posbench.encodings.window import Window

Inner = Callable[[Shape], Encoding]
"""What a wrapper's `inner` parameter is given: the encoding it names, not yet built, because only the wrapper knows
for which shape."""


_FACTS = (
    "max_length",
    "shift_invariant",
    "cacheable",
    "reads_positions",
    "bounded",
    "widest",
    "proportional",
    "length_sized",
)


class Wrapper(Encoding):
    """Base of encodings that change another one: every hook and every fact is the inner one's until a
    subclass has its own; caveats and reasons for no gradient are told beside the inner one's.

    A subclass overrides the hooks where it acts and calls `self.inner` there for the rest. In a YAML `inner` is the
    name of an encoding; on a command line `encoding.inner=rope`, or with its parameters
    `encoding.inner='{name: rope, base: 500}'`.
    """

    by_layer: bool = False
    """True when it has parameters of its own for each layer, which it picks by `layer`."""

    layer: int = 0
    """Which layer's instance this is."""

    def __init__(self, shape: Shape, inner: Inner, inner_shape: Shape | None = None) -> None:
        """`inner_shape`: the shape the inner encoding is built for, where it is not `shape`."""
        super().__init__(shape)
        self.inner = inner(inner_shape or shape)
        self._layers: dict[int, Wrapper] = {}
        own = self._own()
        for fact in _FACTS:
            if fact not in own:
                setattr(self, fact, getattr(self.inner, fact))
        beneath = {f"inner.{name}": reason for name, reason in self.inner.without_gradient.items()}
        self.without_gradient = {**self.without_gradient, **beneath}
        self.caveat = " ".join(text for text in (self.caveat, self.inner.caveat) if text)

    def _own(self) -> set[str]:
        """What its class has in place of the inner one's. A `bias` of its own brings `proportional` with it."""
        mro = type(self).__mro__
        return {name for cls in mro[: mro.index(Wrapper)] for name in vars(cls)}

    def around(self, inner: Encoding) -> Self:
        """The same wrapper, its own parameters and facts shared, around the encoding of one layer."""
        other = copy.copy(self)
        other._modules = {**self._modules, "inner": inner}
        other._layers = {}
        if "proportional" not in self._own():  # the only fact of one layer: which form its bias has
            other.proportional = inner.proportional
        return other

    @property
    def hooks(self) -> frozenset[str]:
        return overridden(self, Wrapper) | self.inner.hooks

    def positions(self, windows: Sequence[int], length: int, rng: Sequence[np.random.Generator]) -> Tensor:
        return self.inner.positions(windows, length, rng)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.inner.embed(x, positions)

    def begin(self, positions: Tensor, length: int) -> Any:
        return self.inner.begin(positions, length)

    def state(self, x: Tensor) -> dict[str, Tensor]:
        return self.inner.state(x)

    def rotate(self, q: Tensor, k: Tensor, ctx: Any) -> tuple[Tensor, Tensor]:
        return self.inner.rotate(q, k, ctx)

    def bias(self, distance: Tensor) -> Tensor:
        return self.inner.bias(distance)

    def scale(self, n_keys: Tensor, length: int) -> float | Tensor:
        return self.inner.scale(n_keys, length)

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
        return self.inner.scores(s, q, k, q_pos, k_pos, state, rows)

    def values(self, w: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.inner.values(w, q_pos, k_pos)

    def window(self, layer: int) -> Window | None:
        return self.inner.window(layer)

    def for_layer(self, layer: int) -> Encoding:
        """Itself, or itself around the inner encoding's own instance of the layer.

        Made at the first call and kept: a compiled graph cannot make one, so the decoder asks for all before.
        """
        inner = self.inner.for_layer(layer)
        if inner is self.inner and not self.by_layer:
            return self
        if layer not in self._layers or self._layers[layer].inner is not inner:
            self._layers[layer] = self.around(inner)
            self._layers[layer].layer = layer
        return self._layers[layer]
