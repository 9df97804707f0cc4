"""Which keys of a long window are too far away to count, by a calculator."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posbench import strided
from posbench.encodings.window import Sliding

HEADS, WIDTH = 4, 8
SLOPES = 2.0 ** -torch.arange(2, 10, 2)


def alibi(keys: int) -> Tensor:
    """-m d of slopes 1/4, 1/16, 1/64 and 1/256."""
    return -SLOPES[:, None] * torch.arange(keys)


def drawn(keys: int, queries: int, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = (queries, keys, keys)
    q, k, v = (torch.randn(2, HEADS, length, WIDTH, generator=generator) * size for length in lengths)
    return q, k, v


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are looked for from 64 on, 16 at a time, in blocks of 32 queries."""
    for name, value in (("FAR", 64), ("KEYS", 16), ("QUERIES", 32), ("SQUARE", 32)):
        monkeypatch.setattr(strided, name, value)


def test_keys_are_read_until_what_is_left_weighs_less_than_a_float32_can_hold(monkeypatch: pytest.MonkeyPatch):
    """Without scores all from distance r on weigh e^(-r/4) / (1 - e^(-1/4)) of the own key: 2^-40 of it, e^-27.73, at
    r = 4 (27.73 + 1.51) = 116.9. So distances 0 to 116 are read, and one more."""
    monkeypatch.setattr(strided, "KEYS", 1)
    zero = torch.zeros(1, 1, 256, WIDTH)
    vector = strided.bias_vector(alibi(256)[:1], None)
    assert strided.reach(zero, zero, vector) == [118]


def test_a_key_may_score_as_much_above_the_own_one_as_their_lengths_allow(monkeypatch: pytest.MonkeyPatch):
    """|q| |k| = 2 x 4 and q . k = -8: the difference is 16, over sqrt(4) 8, which takes a bias 4 x 8 = 32 keys farther
    to make up for: 117 + 32 distances and one more."""
    monkeypatch.setattr(strided, "KEYS", 1)
    q, k = torch.full((1, 1, 256, 4), 1.0), torch.full((1, 1, 256, 4), -2.0)
    vector = strided.bias_vector(alibi(256)[:1], None)
    assert strided.reach(q, k, vector) == [150]


def test_a_bias_that_stays_reads_everything_and_one_that_falls_slowly_farther(monkeypatch: pytest.MonkeyPatch):
    """T5's last bucket goes on for ever. Slope 1/256 needs 256 (27.73 + 5.55) = 8,518 distances (as 1 - e^(-1/256) is
    e^-5.55), more than 4,096; 1/64 needs 64 (27.73 + 4.17) = 2,041.3, 2,042 and one more."""
    monkeypatch.setattr(strided, "KEYS", 1)
    zero = torch.zeros(1, HEADS, 4096, WIDTH)
    assert strided.reach(zero, zero, strided.bias_vector(torch.zeros(1, 4096), None)) == [4096]
    assert strided.reach(zero, zero, strided.bias_vector(alibi(4096), None))[2:] == [2043, 4096]


def uncut(
    monkeypatch: pytest.MonkeyPatch, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, window: Sliding | None
) -> Tensor:
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(strided, "FAR", k.shape[2] + 1)
        return strided.attend(q, k, v, strided.bias_vector(bias, window), window)


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("window", [None, Sliding(300)])
@pytest.mark.parametrize(("queries", "keys"), [(500, 500), (33, 500), (161, 487)])
@pytest.mark.parametrize("heads", [HEADS, 1])
def test_what_is_not_read_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, window: Sliding | None, heads: int
):
    """Of each head its own bias, or one for all; some head reads less than the window. Nothing moves by 2^-39 of the
    largest value, a thousandth of a rounding."""
    q, k, v = drawn(keys, queries)
    bias = alibi(keys)[:heads]
    vector = strided.bias_vector(bias, window)
    assert min(strided.reach(q, k, vector)) < min(keys, 300)
    with torch.no_grad():
        found = strided.attend(q, k, v, vector, window)
    assert torch.equal(found, uncut(monkeypatch, q, k, v, bias, window))


@pytest.mark.parametrize("keys", [4096, 5000])
def test_nor_in_long_windows_alone_or_with_others(monkeypatch: pytest.MonkeyPatch, keys: int):
    """With nothing set otherwise; 5,000 keys end in a block of 904 queries. The second window scores three times as
    much and has to be read farther."""
    q, k, v = drawn(keys, keys)
    k[1] *= 3
    vector = strided.bias_vector(alibi(keys), None)
    one, both = strided.reach(q[:1], k[:1], vector), strided.reach(q, k, vector)
    assert one < both
    assert both[0] < keys
    with torch.no_grad():
        found = strided.attend(q, k, v, vector, None)
        alone = strided.attend(q[:1], k[:1], v[:1], vector, None)
    assert torch.equal(found, uncut(monkeypatch, q, k, v, alibi(keys), None))
    assert torch.equal(found[:1], alone)


def test_large_values_far_away_move_no_number_by_more_than_is_said(monkeypatch: pytest.MonkeyPatch):
    """The first half has values of a million: 2^-39 of them is 2e-6."""
    q, k, v = drawn(4096, 4096)
    v[:, :, :2048] *= 1e6
    with torch.no_grad():
        found = strided.attend(q, k, v, strided.bias_vector(alibi(4096), None), None)
    assert (found - uncut(monkeypatch, q, k, v, alibi(4096), None)).abs().max() <= 2**-39 * v.abs().max()


def test_where_a_gradient_is_wanted_all_keys_are_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strided, "reach", None)  # so that a call raises
    q, k, v = (x[:1, :1] for x in drawn(4096, 1024))
    learned = torch.zeros(1, 4096, requires_grad=True)
    strided.attend(q, k, v, strided.bias_vector(learned, None), None)
    strided.attend(q.requires_grad_(), k, v, strided.bias_vector(alibi(4096)[:1], None), None)


@pytest.mark.parametrize(
    ("bias", "window", "looked_for"),
    [
        (alibi(4096), None, True),
        (torch.zeros(1, 4096), None, False),  # as T5's, whose last bucket goes on for ever
        (torch.zeros(1, 4096), Sliding(100), False),  # -inf from there on, of which nothing is read anyway
        (alibi(4096), Sliding(64), False),  # a quarter of 63 is less than 27.7
        (alibi(4095), None, False),
    ],
)
def test_keys_are_looked_for_where_the_bias_falls_far(bias: Tensor, window: Sliding | None, looked_for: bool):
    vector, keys = strided.bias_vector(bias, window), bias.shape[1]
    with torch.no_grad():
        assert strided.leaves_out(vector, keys, keys, window) == looked_for
        assert not strided.leaves_out(vector, strided.QUERIES - 1, keys, window)
    assert not strided.leaves_out(vector, keys, keys, window)


@pytest.mark.usefixtures("near")
def test_fewer_keys_are_read(monkeypatch: pytest.MonkeyPatch):
    """Slope 1/4 needs 117 distances and one more: of 32 queries 149 keys, from a multiple of 16 on. Queries 448 to 479
    begin at 448 - 117 = 331, so at 320: 160 keys, head by head, and no others more of 500."""
    seen: list[int] = []
    real = F.scaled_dot_product_attention

    def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
        seen.append(k.shape[1] * k.shape[2])
        return real(q, k, v, attn_mask=attn_mask)

    monkeypatch.setattr(strided.F, "scaled_dot_product_attention", attention)
    q, k, v = drawn(500, 500, 0.0)
    with torch.no_grad():
        strided.attend(q, k, v, strided.bias_vector(alibi(500)[:1].expand(HEADS, -1), None), None)
    assert max(seen) == 160


@pytest.mark.usefixtures("near")
def test_a_far_key_that_outweighs_its_bias_is_read():
    """The first of 500 keys scores 200 where its bias is -125 at most: all but nothing else is seen of the last query.
    A not-a-number hides no key from the other queries either."""
    q, k, v = drawn(500, 500)
    q[..., -1, :], k[..., 0, :] = 20.0, 10.0 * 8**0.5 / 8
    vector = strided.bias_vector(alibi(500), None)
    with torch.no_grad():
        found = strided.attend(q, k, v, vector, None)
        assert torch.allclose(found[0, 0, -1], v[0, 0, 0], atol=1e-5)
        q[0, 0, 7] = math.nan
        again = strided.attend(q, k, v, vector, None)
    assert torch.equal(found[:, :, 8:], again[:, :, 8:])
