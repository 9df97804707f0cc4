"""No position signal: the causal mask alone tells order."""

from __future__ import annotations

from posbench.encodings.base import Encoding


class NoPosition(Encoding):
    """No encoding ("NoPE").

    Formula: score_ij = q_i . k_j / sqrt(D), j <= i. Acts on nothing; no parameters.

    The causal mask still breaks the symmetry of attention: a token can tell how many keys it sees, though not in which
    order they came. In one layer of uniform attention a token that differs from all others gets weight 1/i at query
    i = 1, 2, ...: 1/8 for the eighth.

    >>> import torch
    >>> q = k = torch.zeros(1, 1, 8, 2)
    >>> v = torch.eye(8)[None, None, :, :1]
    >>> torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0, 0, 7].tolist()
    [0.125]

    Paper: Haviv et al. 2022, https://arxiv.org/abs/2203.16634; the name and the study of length are from
    Kazemnejad et al. 2023, https://arxiv.org/abs/2305.19466.

    Differences from the paper: none.
    """

    paper = "https://arxiv.org/abs/2203.16634"
    acts_on = "nothing (the causal mask alone)"
    reported = (
        "StarCoder subset, trained at 1,024, the same targets: perplexity 2.450 there, 2.159 at 1,400, "
        "146.219 at 2,048 (Kazemnejad et al. 2023, Table 3, documents of 2,250 to 2,500 tokens)"
    )
    shift_invariant = True
    reads_positions = False
