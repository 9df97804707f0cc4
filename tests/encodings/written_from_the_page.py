"""Rotations whose wavelengths each head learns, none longer than what training can show."""

import math

import torch
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape


class Laps(Encoding):
    """Learned rotations, of which every pair has gone round at least `laps` times by the end of the training window.

    RoPE's slow pairs never finish a turn in training, so a longer text shows angles that no weight has seen. Here
    each head learns its wavelengths, but between bounds: the longest is train_length / laps.

    Formula: pair m of head h turns by 2 pi i / w_hm at position i,
    w_hm = shortest^(1 - g) longest^g, g = sigmoid(u_hm), u learned, longest = train_length / laps.
    """

    acts_on = "queries and keys (learned rotations)"
    shift_invariant = True

    def __init__(self, shape: Shape, laps: float = 1.0, shortest: float = 4.0) -> None:
        super().__init__(shape)
        if laps <= 0:
            raise ValueError("laps must be more than 0")
        if shape.head_dim % 2:
            raise ValueError("head_dim must be even: its numbers are turned in pairs")
        self.shortest, self.longest = shortest, shape.train_length / laps
        if not 2 <= shortest < self.longest:
            raise ValueError(f"shortest must be from 2 up to below train_length / laps = {self.longest:g}")
        pairs = shape.head_dim // 2
        evenly = (torch.arange(pairs) + 0.5) / pairs
        self.place_HM = nn.Parameter(evenly.logit().repeat(shape.heads, 1))

    def wavelengths(self) -> Tensor:
        """In tokens, (H, D / 2), float64."""
        g = self.place_HM.double().sigmoid()
        return torch.exp((1 - g) * math.log(self.shortest) + g * math.log(self.longest))

    def begin(self, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
        angle_BHTM = 2 * math.pi * positions.double()[:, None, :, None] / self.wavelengths()[:, None, :]
        return angle_BHTM.cos().float(), angle_BHTM.sin().float()

    def rotate(self, q: Tensor, k: Tensor, ctx: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cos, sin = ctx

        def turn(x: Tensor) -> Tensor:
            a, b = x.float().chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)

        return turn(q), turn(k)
