"""ALiBi: BIAS-1, BIAS-2, BIAS-3, BIAS-4 of the known faults, Bloom's code as the oracle."""

import pytest
import torch
from tiny import decoder, ids
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from posbench import attention
from posbench.encodings.alibi import Alibi, slopes
from posbench.encodings.base import Shape


def alibi(heads: int, head_dim: int = 2) -> Alibi:
    return Alibi(Shape(layers=1, width=heads * head_dim, heads=heads, train_length=8))


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_by_the_papers_rule(heads, exponents):
    """2^-e: heads count from 1, so 8 heads run 1/2 ... 1/256; other counts interleave the next power of two."""
    assert slopes(heads) == pytest.approx([2**-e for e in exponents], rel=1e-12)


@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12, 20])
def test_slopes_equal_blooms(heads):
    """Bloom stores slope x key index; the difference of two neighbours is the slope."""
    theirs = build_alibi_tensor(torch.ones(1, 5), heads, torch.float32)[:, 0]
    assert slopes(heads) == pytest.approx((theirs[:, 1] - theirs[:, 0]).tolist(), rel=1e-6)


def test_the_bias_equals_a_double_loop():
    bias = alibi(8).bias((torch.arange(9)[:, None] - torch.arange(9)[None, :]).clamp(min=0))
    for h in range(8):
        for i in range(9):
            for j in range(i + 1):
                assert bias[h, i, j].item() == -(2.0 ** -(h + 1)) * (i - j)


@pytest.mark.parametrize("head_dim", [2, 32, 128])
def test_the_bias_is_added_after_the_division_by_the_root_of_the_head_width(head_dim):
    """All queries zero, slope 1/2: the third row is softmax(-1, -1/2, 0), whatever the head width.

    A bias scaled with the scores would be 1/sqrt(2), 1/sqrt(32) ... of that; a boolean mask would give 1/3 each.
    """
    e, at = alibi(8, head_dim), torch.arange(3)[None]
    how = attention.begin(e, at, at, consecutive=True)
    zero = torch.zeros(1, 8, 3, head_dim)
    values = torch.eye(3, head_dim) if head_dim >= 3 else torch.tensor([[1.0, 0], [0, 1], [0, 0]])
    weights = attention.attend(zero, zero, values.expand(1, 8, 3, head_dim), {}, how)
    expected = [0.186324, 0.307196, 0.506480]
    n = min(head_dim, 3)
    assert weights[0, 0, 2, :n].tolist() == pytest.approx(expected[:n], abs=1e-6)
    assert weights[0, 0, 0, :n].tolist() == pytest.approx([1, 0, 0][:n])  # causal: the first sees itself


def test_without_slopes_the_losses_are_those_of_none():
    """The bias must reach evaluation: taking it away changes every loss but those of the first tokens."""
    tokens = ids(40)
    model = decoder(("alibi", {}))
    with_bias = model.token_losses(tokens[:, :-1], tokens[:, 1:])
    model.encoding.slopes = [0.0] * 4
    without = model.token_losses(tokens[:, :-1], tokens[:, 1:])
    assert (with_bias - without).abs().max() > 0.1
    none = decoder(("none", {}))
    assert torch.allclose(without, none.token_losses(tokens[:, :-1], tokens[:, 1:]), atol=1e-5)


def test_nothing_else_tells_order():
    """ALiBi on top of absolute positions is a known fault: token vectors must come out as they went in."""
    e, x = alibi(4), torch.randn(1, 3, 8)
    assert e.hooks == {"bias"}
    assert torch.equal(e.embed(x, torch.arange(3)[None]), x)
    assert not e.state_dict()
