"""Dynamic NTK scaling: the base grows with the current length."""

from __future__ import annotations

from torch import Tensor

from posbench.extensions.base import Factor, Frequencies, Trained
from posbench.extensions.ntk import rebased


class DynamicNtk(Frequencies):
    """NTK-aware scaling by the current length.

    Formula: with n keys in sight, s(n) = f n / L - (f - 1) for n > L, else 1; base b' = b s(n)^(D/(D-2)). `auto` is
    f = 1, so that s(n) = n / L. Up to the trained length L nothing changes, whatever f is. No parameters but the
    factor f. Every window is turned as its own length asks, all of its tokens alike, so keys do not stay valid as later
    tokens come: it cannot decode with a cache.

    Worked number: head width 64, base 10,000, L = 512, f = 2: the base is 31,082.24 at 1,024. The last pair is slowed
    by s(1024) = 2 x 2 - 1 = 3.

    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.rope import Rope
    >>> rope = Rope(Shape(layers=1, width=64, heads=1, train_length=512))
    >>> dynamic = DynamicNtk().extend(rope, trained_length=512, length=1024, factor=2)
    >>> [round((rope.frequencies / dynamic.angles(length)[0])[31].item(), 5) for length in (512, 1024)]
    [1.0, 3.0]

    Paper: Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.3; first a forum post by emozilla.

    Differences from the paper: the paper's rule is f = 1. The factor is that of the code in use (Hugging Face), where
    f = 1 also changes nothing up to L and multiplies by n / L beyond it.
    """

    paper = "https://arxiv.org/abs/2309.00071"
    reported = (
        "FineWeb, trained at 4,096: 3.261 nats there, 3.703 at 16,384, 5.430 at 65,536; RoPE alone 3.936 and 5.260 "
        "(Anson et al. 2025, Table 1)"
    )
    dynamic = True

    def resolve(self, factor: Factor, trained_length: int, length: int) -> float:
        return super().resolve(1.0 if isinstance(factor, str) else factor, trained_length, length)

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        longer = max(length, trained.length) / trained.length
        return rebased(trained, factor * longer - (factor - 1)), 1.0
