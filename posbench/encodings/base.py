"""The contract of an encoding: how a decoder learns the order of its tokens.

An encoding is one `nn.Module` in one file. It overrides the hooks where it acts and leaves the others alone; model,
attention and evaluation ask `encoding.hooks` and the facts below, never for a name.

One forward pass over T new tokens, with S >= T keys in sight (S = T without a cache):

    positions = encoding.positions(windows, length, rng)      once a pass   (1 or B, T)
    x = encoding.embed(x, positions)                          once a pass   before the first layer
    for each layer i, with e = encoding.for_layer(i):
        ctx = e.begin(positions, length)                      once a pass for each distinct e
        state = e.state(x)                                    data-dependent encodings; kept beside the keys
        q, k = e.rotate(q, k, ctx)                            before the scores
        s = q . k / sqrt(D) * e.scale(...)                    (B, H, Q, S), float32
        s = s + e.bias(distance)                              added after the division by sqrt(D)
        s = e.scores(s, q, k, q_pos, k_pos, state, rows)      data-dependent scores, in blocks of queries
        out = softmax(s) . v + e.values(w, q_pos, k_pos)

Shapes: B batch, T new tokens, Q queries of one block, S keys, H heads, D head width, C model width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posbench.encodings.window import Window


@dataclass(frozen=True)
class Shape:
    """What an encoding may know of the model around it."""

    layers: int
    width: int
    heads: int
    train_length: int

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


HOOKS = ("positions", "embed", "begin", "state", "rotate", "bias", "scale", "scores", "values", "window", "for_layer")


class Encoding(nn.Module):
    """Base of all encodings: every hook a no-op, so that on its own it tells the model nothing.

    A subclass takes `(self, shape, **own)`, where `own` are the parameters of its YAML, and calls
    `super().__init__(shape)`. It raises `ValueError` for a parameter it cannot work with. It must not keep a table
    that depends on a length, nor a buffer of angles or biases: both are formed in `begin`, in float64 or float32.
    """

    paper: str = ""
    """Address of the paper, for `posbench encodings`."""

    acts_on: str = "nothing"
    """Where it acts, in the words of the catalogue: token vectors, queries and keys, scores, ..."""

    reported: str = ""
    """What the literature prints past the training length, numbers as printed, with paper and table; or "not read"."""

    max_length: int | None = None
    """The longest window it can be asked for; None: any."""

    shift_invariant: bool = False
    """True when adding one number to all positions changes no logit."""

    cacheable: bool = True
    """True when keys once computed stay valid as later tokens come."""

    reads_positions: bool = True
    """False when position ids play no role: order is that of the tokens, or is not told at all."""

    bounded: bool = False
    """True when no window, however long, holds a position or distance that training did not: there is nothing that an
    extension of positions could stretch."""

    widest: float = math.inf
    """The widest range of positions in which the queries of one block may lie, where they leave gaps."""

    proportional: bool = False
    """True when its bias grows in proportion to the distance: bias(r) is r times bias(1), a number for each head.

    Said of the `bias` of the class that says it: a subclass with another `bias` says it anew, or is False."""

    length_sized: str = ""
    """Why a stored tensor has the size of a length ("" : none has)."""

    without_gradient: Mapping[str, str] = MappingProxyType({})
    """Learned tensors that the first steps leave alone although all is well, each with the reason."""

    neutral: Mapping[str, Any] = MappingProxyType({})
    """Parameters at which it is another, simpler encoding; at its defaults it must differ from that."""

    caveat: str = ""
    """What a reader of its results must know at this training length, one sentence ("": nothing)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def __init_subclass__(cls, **own: Any) -> None:
        super().__init_subclass__(**own)
        first = {name: next(c for c in cls.__mro__ if name in vars(c)) for name in ("bias", "proportional")}
        if cls.__mro__.index(first["bias"]) < cls.__mro__.index(first["proportional"]):
            cls.proportional = False

    @property
    def hooks(self) -> frozenset[str]:
        """The names of the hooks this instance acts through. A wrapper adds those of what it holds."""
        return overridden(self, Encoding)

    def positions(self, windows: Sequence[int], length: int, rng: Sequence[np.random.Generator]) -> Tensor:
        """Position ids (1 or B, length) of whole windows, integers or floats.

        `windows` are the numbers of the windows in their stream and `rng` holds one generator for each, seeded by
        (run seed, split, window number), so that a draw depends on neither batch size nor resume.
        """
        return torch.arange(length)[None]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token vectors (B, T, C) with their position told."""
        return x

    def begin(self, positions: Tensor, length: int) -> Any:
        """What one pass over `positions` (1 or B, T) with `length` keys in sight needs; nothing of it is kept."""
        return None

    def state(self, x: Tensor) -> dict[str, Tensor]:
        """Per-token tensors (B, T, ...) from a layer's normed input (B, T, C), float32 also under bf16 autocast."""
        return {}

    def rotate(self, q: Tensor, k: Tensor, ctx: Any) -> tuple[Tensor, Tensor]:
        """Queries and keys (B, H, T, D) before the scores, in the dtype they came in; `ctx` is what `begin` gave."""
        return q, k

    def bias(self, distance: Tensor) -> Tensor:
        """Float32 score bias (H, *distance.shape) for distances query - key >= 0 of any shape and dtype."""
        raise NotImplementedError

    def scale(self, n_keys: Tensor, length: int) -> float | Tensor:
        """A factor on q for queries that see `n_keys` (1 or B, T) of the `length` keys in sight.

        A number, or float32 (H, *n_keys.shape). A query sees the keys up to itself that `window` and the ends of
        documents let it see.
        """
        return 1.0

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
        """New scores for one block of queries against the keys up to its last, from the first that any of them sees.

        s (B, H, Q, S) float32, already divided by sqrt(D); q (B, H, Q, D), k (B, H, S, D); q_pos (1 or B, Q), k_pos
        (1 or B, S); `state` holds the S keys' tensors. The queries are themselves keys: number `rows` of the S. The
        causal mask is applied by the caller, after this hook: what stands at keys later than the query is ignored, and
        must reach no score of an earlier one.
        """
        return s

    def values(self, w: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """What is added to w . v: (B, H, Q, D) from the attention weights w (B, H, Q, S)."""
        raise NotImplementedError

    def window(self, layer: int) -> Window | None:
        """Which keys a query of this layer may see (`Sliding`, `Blockwise`); None: all up to itself."""
        return None

    def for_layer(self, layer: int) -> Encoding:
        """The encoding of one layer: itself, or an instance of its own."""
        return self

    def constrain(self) -> None:
        """Bring its learned parameters back into the range the formula needs; called after every update."""


def overridden(encoding: Encoding, base: type[Encoding]) -> frozenset[str]:
    """The hooks that the class of `encoding` defines anew, compared with `base`.

    For a `hooks` of one's own: `super().hooks` is a property of a property, which torch.compile cannot follow.
    """
    return frozenset(name for name in HOOKS if getattr(type(encoding), name) is not getattr(base, name))
