"""Sandwich against the oracle, and its digits near and far."""

import pytest
import torch
from oracles.distance_biases import sandwich, sandwich_bias
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from tiny import layer_scores

from posbench.encodings.base import Shape
from posbench.encodings.sandwich import Sandwich

SHAPE = Shape(layers=1, width=HEADS * WIDTH, heads=HEADS, train_length=8)


@pytest.mark.parametrize(("width", "base"), [(None, 10000.0), (128, 10000.0), (6, 500.0)])
def test_the_scores_equal_the_oracles(width, base):
    for positions in (HERE, [90_000 + 37 * i for i in HERE], [i / 3 for i in HERE]):
        expected = sandwich(Q, K, positions=positions, width=width, base=base)
        assert same(layer_scores(Sandwich(SHAPE, width, base), Q, K, positions), expected, 1e-5)


def test_neighbours_are_apart_by_the_right_amount():
    """Width 4, base 1e8: at distance 1 the sum of 1 - cos is 5e-9, which float32 cosines lose."""
    sandwich = Sandwich(Shape(1, 4, 1, 8), base=1e8)
    expected = -(1e-4**2 / 2) / 8
    assert sandwich.bias(torch.tensor(1)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("distance", [0, 1, 100, 4095, 100_000])
def test_each_head_is_the_first_divided_by_its_number(distance):
    """8 h / 4 for 4 heads: 2, 4, 6, 8; to six digits at any distance."""
    bias = Sandwich(Shape(1, 128, 4, 8)).bias(torch.tensor(distance))
    for h in range(4):
        assert bias[h].item() == pytest.approx(sandwich_bias(distance, head=h + 1, heads=4, width=32), rel=1e-6)
        assert bias[h].item() == pytest.approx(bias[0].item() / (h + 1), rel=1e-6)


def test_the_penalty_stays_within_its_bound():
    """The sum of E/2 cosines lies between -E/2 and E/2, so the bias between -E H / 8 h and 0."""
    bias = Sandwich(Shape(1, 64, 2, 8)).bias(torch.arange(0, 200_000, 7))
    assert (bias <= 0).all()
    assert bias[0].min() > -32 * 2 / 8
    assert bias[1].min() > -32 * 2 / 16


def test_no_more_than_one_number_a_distance_and_head_at_a_time():
    """A tensor of all frequencies at once would be E/2 = 64 times the distances."""
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.append(out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    with Sizes():
        Sandwich(Shape(1, 8, 2, 8), width=128).bias(torch.arange(1000))
    assert max(sizes) == 2 * 1000


def test_no_parameters_and_nothing_stored():
    assert not Sandwich(SHAPE).state_dict()


@pytest.mark.parametrize("width", [0, 5])
def test_what_has_no_formula_is_refused(width):
    with pytest.raises(ValueError, match=f"width must be an even number from 2 on, not {width}"):
        Sandwich(SHAPE, width)
    with pytest.raises(ValueError, match="base must be above 0, not -1"):
        Sandwich(SHAPE, base=-1)
