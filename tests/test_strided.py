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


def test_a_bias_that_stays_reads_everything():
    """T5's last bucket goes on for ever, and ALiBi's smallest slope reaches 256 x 29 keys, past the end."""
    zero = torch.zeros(1, HEADS, 64, WIDTH)
    flat = torch.zeros(1, 64)
    assert strided.reach(zero, zero, strided.bias_vector(flat, None)) == [64]
    assert strided.reach(zero, zero, strided.bias_vector(alibi(64), None))[3] == 64


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("window", [None, Sliding(40), Sliding(300)])
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (500, 500), (33, 500), (161, 487)])
@pytest.mark.parametrize("size", [0.01, 1.0, 4.0])
def test_what_is_not_read_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, window: Sliding | None, size: float
):
    q, k, v = drawn(keys, queries, size)
    vector = strided.bias_vector(alibi(keys), window)
    with torch.no_grad():
        found = strided.attend(q, k, v, vector, window)
        monkeypatch.setattr(strided, "FAR", keys + 1)
        assert torch.equal(found, strided.attend(q, k, v, vector, window))


@pytest.mark.usefixtures("near")
def test_fewer_keys_are_read(monkeypatch: pytest.MonkeyPatch):
    """Slope 1/4 needs 117 distances, eight times 16, of 500 keys, and one more: with 32 queries 160 at most."""
    seen: list[int] = []
    real = F.scaled_dot_product_attention

    def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
        seen.append(k.shape[1] * k.shape[2])
        return real(q, k, v, attn_mask=attn_mask)

    monkeypatch.setattr(strided.F, "scaled_dot_product_attention", attention)
    q, k, v = drawn(500, 500, 0.0)
    with torch.no_grad():
        strided.attend(q, k, v, strided.bias_vector(alibi(500)[:1].expand(HEADS, -1), None), None)
    assert max(seen) == HEADS * 160


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
