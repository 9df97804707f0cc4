"""Scale-invariant attention: scores are spread and lowered with the logarithm of the distance."""

from __future__ import annotations

from torch import Tensor

from posbench.encodings.base import Shape
from posbench.encodings.wrapper import Inner, Wrapper


class ScaleInvariant(Wrapper):
    """Scale-invariant attention, around another encoding.

    Formula: s_ij becomes a_t s_ij + m_t, t = i - j, a_t = sqrt(1 + 2 ln(1 + t/tau)), m_t = -2 ln(1 + t/tau), s_ij being
    the score of the encoding it holds, divided by sqrt(D), its bias and all. Acts on the scores (B, H, Q, S) of every
    layer; no learned parameters of its own. Where scores are independent standard normals, the mean of exp(score) is
    sqrt(e)/(1 + t/tau): each decade of distances past tau gets as much attention as the next.

    Worked number: at distance 10 = tau a score of 1 becomes sqrt(1 + 2 ln 2) - 2 ln 2 = 0.158469.

    >>> import torch
    >>> from posbench.encodings.none import NoPosition
    >>> e = ScaleInvariant(Shape(layers=1, width=1, heads=1, train_length=8), inner=NoPosition)
    >>> one, at = torch.ones(1, 1, 1, 1), torch.tensor([[10]])
    >>> round(e.scores(one, one, one, at, at - 10, {}, slice(0, 1)).item(), 6)
    0.158469

    Paper: Anson, Wang and Aitchison 2025, https://arxiv.org/abs/2505.17083: tau = 10, around p-RoPE.

    Differences from the paper: it normalises queries and keys (QK-norm), which keeps their scores near the standard
    normals it assumes; that is not built, here they are as the model makes them. Its p-RoPE is "an effective base of
    1024"; `prope` with p = 0.75 at base 10,000 keeps the frequencies above 1/1,000.
    """

    paper = "https://arxiv.org/abs/2505.17083"
    reported = (
        "with p-RoPE, FineWeb, trained at 4,096: 3.244 nats there, 3.235 at 16,384, 3.247 at 65,536 "
        "(Anson et al. 2025, Table 1)"
    )
    reads_positions = True

    def __init__(self, shape: Shape, inner: Inner, tau: float = 10.0) -> None:
        """`inner`: the encoding whose scores are changed. `tau`: the distance up to which little changes."""
        super().__init__(shape, inner)
        if tau <= 0:
            raise ValueError(f"tau must be above 0, not {tau}")
        self.tau = tau
        self.acts_on = f"scores (by distance); {self.inner.acts_on}"

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
        s = self.inner.scores(s, q, k, q_pos, k_pos, state, rows)
        distance = (q_pos[:, None, :, None] - k_pos[:, None, None, :]).clamp(min=0)
        growth = 2 * (distance.float() / self.tau).log1p()
        return (1 + growth).sqrt() * s - growth
