"""p-RoPE: rotary position embedding without its slowest frequencies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch

from posbench.encodings.base import Shape
from posbench.encodings.rope import Rope


class PRope(Rope):
    """p-RoPE: RoPE whose slowest pairs do not turn.

    Formula: as RoPE, with theta_m = base^(-2m/D) for m < floor(p D/2) and theta_m = 0 for the others. p = 1 is RoPE,
    p = 0 no encoding. The frequencies that stay keep their values: this is not "partial" rotation, which spreads all of
    them over fewer pairs. Acts on q and k (B, H, T, D) of every layer; no learned parameters. Pairs that do not turn
    compare content at any distance; RoPE's slowest ones nearly do, until inputs grow long. Cached keys stay valid.

    Worked number: head width 8, p = 0.75: three of the four pairs turn.

    >>> PRope(Shape(layers=1, width=8, heads=1, train_length=8)).frequencies.tolist()
    [1.0, 0.1, 0.01, 0.0]

    Paper: Barbero et al. 2024, https://arxiv.org/abs/2410.06205.

    Differences from the paper: the default layout is Llama's (see `rope`). The paper trained p = 0.75 and 0.25 at head
    width 256; at width 32 the default turns 12 pairs of 16.
    """

    paper = "https://arxiv.org/abs/2410.06205"
    reported = (
        "FineWeb, trained at 4,096, with what they call an effective base of 1,024: 3.260 nats there, 3.984 at 16,384, "
        "5.735 at 65,536 (Anson et al. 2025, Table 1); its own Table 2 has the trained length alone"
    )
    neutral: Mapping[str, Any] = MappingProxyType({"p": 1.0})

    def __init__(
        self,
        shape: Shape,
        p: float = 0.75,
        layout: Literal["half", "interleaved"] = "half",
        base: float = 10000.0,
    ) -> None:
        """`p`: the share of pairs that turn, 0 to 1, the fastest ones. `layout` and `base`: see `Rope`."""
        super().__init__(shape, layout=layout, base=base)
        if not 0 <= p <= 1:
            raise ValueError(f"p must be from 0 to 1, not {p}")
        pair = torch.arange(len(self.frequencies), device="cpu")
        self.frequencies = self.frequencies * (pair < math.floor(p * shape.head_dim / 2))
