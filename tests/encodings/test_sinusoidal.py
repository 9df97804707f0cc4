"""Sinusoidal positions: PAIR-2 of the known faults, and the two properties Vaswani et al. give."""

import math

import pytest
import torch

from posbench.encodings.base import Shape
from posbench.encodings.sinusoidal import Sinusoidal, sinusoid

SHAPE = Shape(layers=1, width=16, heads=2, train_length=8)


def test_the_first_row_by_hand():
    """Width 4, position 1: frequencies 1 and 10000^(-2/4) = 1/100, so sin 1, cos 1, sin 0.01, cos 0.01."""
    assert sinusoid(torch.tensor(1), 4).tolist() == pytest.approx([0.841471, 0.540302, 0.010000, 0.999950], abs=1e-6)


def test_every_number_equals_a_double_loop():
    """The paper's formula with Python's floats; the dimension index where the pair index belongs would double w."""
    table = sinusoid(torch.arange(50), 12)
    for p in range(50):
        for m in range(6):
            angle = p / 10000 ** (2 * m / 12)
            assert table[p, 2 * m].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, 2 * m + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_every_row_has_squared_norm_half_the_width():
    """sin^2 + cos^2 = 1 for each of the width / 2 pairs."""
    assert torch.allclose(sinusoid(torch.arange(1000), 64).square().sum(-1), torch.tensor(32.0), atol=1e-4)


@pytest.mark.parametrize("start", [3, 500, 100_000])
def test_dot_products_depend_on_the_distance_alone(start):
    """PE(p) . PE(q) = sum of cos(w (p - q)), so rows 0 and k and rows p and p + k agree at any p."""
    near, far = sinusoid(torch.arange(40), 64), sinusoid(torch.arange(start, start + 40), 64)
    assert torch.allclose(near @ near.T, far @ far.T, atol=1e-4)
    assert (far @ far.T)[0, 7].item() == pytest.approx(
        sum(math.cos(7 * 10000 ** (-2 * m / 64)) for m in range(32)), abs=1e-5
    )


def test_a_shift_by_k_turns_each_pair_by_k_w():
    """[sin, cos] at p + k is the matrix [[cos kw, sin kw], [-sin kw, cos kw]] times [sin, cos] at p."""
    k, width = 11, 8
    here, there = sinusoid(torch.arange(30), width), sinusoid(torch.arange(30) + k, width)
    for m in range(width // 2):
        w = 10000 ** (-2 * m / width)
        turn = torch.tensor([[math.cos(k * w), math.sin(k * w)], [-math.sin(k * w), math.cos(k * w)]])
        pair = slice(2 * m, 2 * m + 2)
        assert torch.allclose(here[:, pair] @ turn.T, there[:, pair], atol=1e-6)


def test_token_vectors_are_multiplied_by_the_root_of_the_width():
    """Width 16: x = 4 E + PE, and PE(0) = 0, 1, 0, 1, ...: the first position is 0."""
    ones = torch.ones(1, 2, 16)
    out = Sinusoidal(SHAPE).embed(ones, torch.arange(2)[None])
    assert torch.equal(out[0, 0], torch.tensor([4.0, 5.0] * 8))
    assert torch.allclose(out[0, 1], 4 + sinusoid(torch.tensor(1), 16))


def test_the_base_sets_the_longest_wavelength():
    """Width 4, base 100: the second pair turns by 1/10 a position."""
    shape = Shape(layers=1, width=4, heads=1, train_length=8)
    out = Sinusoidal(shape, base=100).embed(torch.zeros(1, 1, 4), torch.tensor([[1]]))
    assert out[0, 0, 2].item() == pytest.approx(math.sin(0.1), abs=1e-6)


def test_an_odd_width_and_a_base_of_zero_are_refused():
    with pytest.raises(ValueError, match="even, not 15"):
        Sinusoidal(Shape(layers=1, width=15, heads=1, train_length=8))
    with pytest.raises(ValueError, match="above 0, not 0"):
        Sinusoidal(SHAPE, base=0)
