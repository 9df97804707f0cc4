"""xPos: rotary position embedding whose pairs fade with distance, read in blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from posbench.encodings.base import Shape
from posbench.encodings.rope import Rope
from posbench.encodings.rotation import twice
from posbench.encodings.window import Blockwise, Window

LARGEST_EXPONENT = 75.0
"""exp of it is a float32, with room for what it multiplies; rounded to float32 it is off by less than 1e-5."""

LEAST_WIDTH = 1025
"""Positions that a block of queries must be able to span; kernels give it fewer."""


class XPos(Rope):
    """xPos, with blockwise causal attention past the training length.

    Formula: as RoPE, and pair m of the product q_i . k_j times z_m^((i - j)/B), z_m = (2m/D + gamma)/(1 + gamma), so
    that fast pairs fade sooner than slow ones. Acts on q and k (B, H, T, D) of every layer, and on the scores
    (B, H, Q, S), where the powers are formed. No learned parameters.

    The powers: z_m^(i/B) on a query and z_m^(-j/B) on a key, as the paper writes it, leave float32 near position
    36,000. Here both are counted from the first query of the block of queries at hand, so that a query's is at most 1
    and a key's tends to 0 with distance; cached keys are merely turned and stay valid. A block may span some 30,000
    positions (`widest`): `randomized` refuses more, and settings are refused under which it could not span 1,025.

    Blocks (`blockwise`): a query sees its own block of L/2 keys, L the training length, and the block before it. Up to
    L that is every key, so it changes nothing in training; past L no distance is larger than those trained. Trained on
    at another length (`init_from`), the blocks stay those of the first one.

    Worked number: head width 4, gamma = 0.4, B = 512: pair 0 has z = 2/7, at distance 512 it counts 0.285714; pair 1,
    z = 9/14, counts 0.642857.

    >>> xpos = XPos(Shape(layers=1, width=4, heads=1, train_length=8))
    >>> q, k = torch.eye(4)[None, None, :2] * 2, torch.eye(4)[None, None, :2]
    >>> at = torch.tensor([[512, 513]]), torch.tensor([[0, 1]])
    >>> [round(x, 6) for x in xpos.scores(q @ k.mT / 2, q, k, *at, {}, slice(0, 2))[0, 0].diagonal().tolist()]
    [0.285714, 0.642857]

    Paper: Sun et al. 2022, https://arxiv.org/abs/2212.10554. It trains with full attention and reads blocks at
    inference: all its numbers past L have them, and without them perplexity at 8 L is 63.99 in place of 24.89 (rotary
    with blocks: 26.16). So `blockwise` is on by default.

    Differences from the paper: the default layout is Llama's; the paper's is `interleaved`. For an odd L the block is
    (L + 1)/2, and past L one distance is new, L. Blocks are counted by tokens of the window, not by position ids.
    The extensions of RoPE apply only without blocks, which otherwise hold no distance that was not trained; they change
    the frequencies, not how fast pairs fade.
    """

    paper = "https://arxiv.org/abs/2212.10554"
    acts_on = "queries and keys, scores (fading), keys in sight"
    reported = (
        "PG22, trained at 1,024: perplexity 26.59 there, 24.89 at 8,192 with blocks, 63.99 without "
        "(Sun et al. 2022, Tables 2 and 5)"
    )
    neutral: Mapping[str, Any] = MappingProxyType({"gamma": 1e9, "blockwise": False})

    def __init__(
        self,
        shape: Shape,
        layout: Literal["half", "interleaved"] = "half",
        base: float = 10000.0,
        gamma: float = 0.4,
        scale_base: float = 512.0,
        blockwise: bool = True,
    ) -> None:
        """`layout` and `base`: see `Rope`. `gamma`: the larger, the slower and the more alike pairs fade.
        `scale_base`: B, the distance at which pair m counts z_m. `blockwise`: see only two blocks of keys.
        """
        super().__init__(shape, layout=layout, base=base)
        if gamma <= 0:
            raise ValueError(f"gamma must be above 0, not {gamma}")
        if scale_base <= 0:
            raise ValueError(f"scale_base must be above 0, not {scale_base}")
        share = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device="cpu") / shape.head_dim
        self.rates = ((share + gamma) / (1 + gamma)).log() / scale_base
        """ln(z_m) / B, float64 (D/2,)."""
        self.blockwise = self.bounded = blockwise
        fastest = -float(self.rates[0])
        self.widest = LARGEST_EXPONENT / fastest if fastest else math.inf
        if self.widest < LEAST_WIDTH:
            raise ValueError(
                f"at gamma={gamma:g} and scale_base={scale_base:g} pairs fade faster than float32 can tell; "
                f"scale_base={math.ceil(LEAST_WIDTH / self.widest * scale_base)} is slow enough"
            )

    def window(self, layer: int) -> Window | None:
        return Blockwise((self.shape.train_length + 1) // 2) if self.blockwise else None

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
        start = q_pos[:, :1]
        faded = self._times(q, q_pos - start, 1) @ self._times(k, k_pos - start, -1).mT * q.shape[-1] ** -0.5
        # Less the plain product, rather than in its place: a bias that a wrapper has added stays.
        return faded + (s - q @ k.mT * q.shape[-1] ** -0.5)

    def _times(self, x: Tensor, offset: Tensor, sign: int) -> Tensor:
        """x (B, H, T, D) with pair m times z_m^(sign offset / B), offset (1 or B, T)."""
        # In float32: the offset is exact, and where the exponent is large enough to be rounded the power is near 0.
        power = (sign * offset[:, None, :, None].float() * self.rates.float().to(x.device)).exp()
        return x * twice(power, self.layout)
