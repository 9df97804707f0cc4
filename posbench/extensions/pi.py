"""Position interpolation: positions are divided by s, so that a long input spans the trained range."""

from __future__ import annotations

from torch import Tensor

from posbench.encodings.alibi import Alibi
from posbench.encodings.base import Encoding
from posbench.extensions.base import Factor, Frequencies, Trained, stretchable


class Pi(Frequencies):
    """Position interpolation (PI).

    Formula: position p becomes p / s before the rotation, which is theta'_m = theta_m / s for every pair m. Of ALiBi
    the distances are interpolated in the same way: its slopes become m_h / s. No parameters but the factor s.

    Worked number: trained at 8 and asked for 16, head width 4: the frequencies 1 and 0.01 become 0.5 and 0.005.

    >>> from posbench.encodings.base import Shape
    >>> from posbench.encodings.rope import Rope
    >>> rope = Rope(Shape(layers=1, width=4, heads=1, train_length=8))
    >>> Pi().extend(rope, trained_length=8, length=16).angles(16)[0].tolist()
    [0.5, 0.005]

    Paper: Chen et al. 2023, https://arxiv.org/abs/2306.15595. It fine-tunes after the change, for 1,000 steps.

    Differences from the paper: none for RoPE, all that the paper changes. For ALiBi it is the scaling of Al-Khateeb et
    al. 2023, https://arxiv.org/abs/2310.13017, of which descriptions were read: theirs follows each input's length,
    here the windows of one length have one factor, a shorter last one too.
    """

    paper = "https://arxiv.org/abs/2306.15595"
    acts_on = "position ids"
    reported = (
        "PG19 in sliding windows, LLaMA 7B trained at 2,048: perplexity 7.20 there, above 1,000 at 8,192; "
        "fine-tuned for 8,192: 7.13 and 6.95 (Chen et al. 2023, Table 1)"
    )

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        return trained.frequencies / factor, 1.0

    def applies_to(self, encoding: Encoding) -> bool:
        return super().applies_to(encoding) or bool(stretchable(encoding, Alibi))

    def extend(self, encoding: Encoding, trained_length: int, length: int, factor: Factor = "auto") -> Encoding:
        new = super().extend(encoding, trained_length, length, factor)
        for alibi in stretchable(new, Alibi):
            alibi.slopes = [slope / self.resolve(factor, trained_length, length) for slope in alibi.slopes]
        return new
