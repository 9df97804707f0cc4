"""Rotary position embedding: queries and keys are turned by angles in proportion to their position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from posbench.encodings.angles import cos_sin, frequencies
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.rotation import LAYOUTS, tables, turn
from posbench.errors import UserError


class Rope(Encoding):
    """Rotary position embedding (RoPE).

    Formula: pair m of a query or key at position p is turned by the angle p theta_m, theta_m = base^(-2m/D),
    m = 0 ... D/2 - 1. Then q_i . k_j depends on the content and on i - j alone. Acts on q and k (B, H, T, D) of every
    layer, all D numbers of each head; values and token vectors are untouched, norms unchanged, no learned parameters.
    Cached keys are already turned and stay valid.

    Which two numbers are a pair is the `layout`: (2m, 2m+1) is `interleaved`, the paper's; (m, m + D/2) is `half`, that
    of GPT-NeoX and Llama. They are one method up to a fixed permutation of the head, but weights trained in one do not
    fit the other. So the layout stands in the checkpoint, and one of the other layout is refused. (A training that
    begins with a run's weights and names another layout, `init_from=RUN encoding.layout=...`, asks for that misfit.)

    Worked number: head width 4, position 1 turns pair 0 by 1 radian and pair 1 by 0.01.

    >>> rope = Rope(Shape(layers=1, width=4, heads=1, train_length=8), layout="interleaved")
    >>> q, _ = rope.rotate(torch.tensor([[[[1.0, 0, 1, 0]]]]), torch.zeros(1, 1, 1, 4), rope.begin(torch.ones(1, 1), 2))
    >>> [round(x, 6) for x in q.flatten().tolist()]
    [0.540302, 0.841471, 0.99995, 0.01]

    Paper: Su et al. 2021, https://arxiv.org/abs/2104.09864.

    Differences from the paper: the default layout is Llama's, so that a run is a Llama checkpoint. `embed_scale` is
    ours: a control for `sinusoidal`, whose token vectors are multiplied by sqrt(C).
    """

    paper = "https://arxiv.org/abs/2104.09864"
    acts_on = "queries and keys"
    reported = (
        "WikiText-103, trained at 512: perplexity 20.07 there, 19.79 at 712, 35.54 at 3,512 "
        "(Press et al. 2022, Table 2)"
    )
    shift_invariant = True

    stretch: Callable[[int], tuple[Tensor, float]] | None = None
    """What an extension has put in the place of the trained angles (see `angles`)."""

    def __init__(
        self,
        shape: Shape,
        layout: Literal["half", "interleaved"] = "half",
        base: float = 10000.0,
        embed_scale: bool = False,
    ) -> None:
        """`layout`: which numbers are a pair. `base`: wavelengths run from 2 pi to nearly base x 2 pi positions.
        `embed_scale`: multiply the token vectors by sqrt(C) before the first layer.
        """
        super().__init__(shape)
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout}")
        if shape.head_dim % 2:
            raise ValueError(f"pairs need an even head width, not width / heads = {shape.head_dim}")
        if base <= 0:
            raise ValueError(f"base must be above 0, not {base}")
        self.layout = layout
        self.embed_scale = embed_scale
        self.base = float(base)
        # Not a buffer: it is a function of the settings, and float64 whatever the dtype of the model.
        self.frequencies = frequencies(shape.head_dim, base)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x * self.shape.width**0.5 if self.embed_scale else x

    def angles(self, length: int) -> tuple[Tensor, float]:
        """Frequencies, float64 (D/2,), and a factor on cos and sin, with `length` keys in sight."""
        return (self.frequencies, 1.0) if self.stretch is None else self.stretch(length)

    def begin(self, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Float32 cos (1 or B, H, T, D) and sin (1 or B, H, T, D/2)."""
        turning, factor = self.angles(length)
        cos, sin = cos_sin(positions, turning)
        return tables(factor * cos, factor * sin, self.shape.heads, self.layout)

    def rotate(self, q: Tensor, k: Tensor, ctx: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return turn(q, *ctx, self.layout), turn(k, *ctx, self.layout)

    def get_extra_state(self) -> Tensor:
        """The layout's name as bytes: a tensor, because that is all a safetensors file holds."""
        return torch.tensor(list(self.layout.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse weights of the other layout. Raises UserError."""
        stored = bytes(state.tolist()).decode()
        if stored != self.layout:
            raise UserError(
                f"This checkpoint was trained with rope layout '{stored}' and cannot be read as '{self.layout}'.",
                f"Set encoding.layout={stored}.",
            )
