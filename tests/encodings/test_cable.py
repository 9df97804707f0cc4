"""CABLE: the oracle's loops for each of its forms, the sign, ALiBi as a special case."""

import math

import pytest
import torch
from oracles.data_dependent import cable
from oracles.draws import HEADS, HERE, TOKENS, WIDTH, K, Q, drawn, same
from tiny import decoder, ids, layer_scores

from posbench.encodings.base import Shape
from posbench.encodings.cable import Cable
from posbench.model import Cache

SHAPE = Shape(layers=2, width=HEADS * WIDTH, heads=HEADS, train_length=8)
X = drawn(TOKENS, HEADS * WIDTH, seed=4)


def layer(step, slope=None, shape=SHAPE, **own):
    steps = Cable(shape, slopes=slope is not None, **own).for_layer(1)
    weights = {"step": step} if slope is None else {"step": step, "slope": slope}
    steps.load_state_dict({name: torch.tensor(weight) for name, weight in weights.items()})
    return steps


@pytest.mark.parametrize("kernelized", [False, True])
@pytest.mark.parametrize("slopes", [False, True])
def test_the_scores_equal_the_oracles(slopes, kernelized):
    w_c = drawn(HEADS, HEADS * WIDTH, seed=5, size=0.3)
    w_s = drawn(HEADS, HEADS * WIDTH, seed=6, size=0.3) if slopes else None
    expected = cable(Q, K, positions=HERE, x=X, w_c=w_c, w_s=w_s, kernelized=kernelized)
    assert same(layer_scores(layer(w_c, w_s, kernelized=kernelized), Q, K, HERE, X), expected, 1e-5)


def test_steps_of_one_and_a_constant_slope_are_alibi():
    """x = 1 for all tokens, wc = 1, softplus(ws) = 1/4: minus a quarter of the distance."""
    steps = layer([[1.0]], [[math.log(math.exp(0.25) - 1)]], Shape(2, 1, 1, 8))
    scores = layer_scores(steps, [[[0.0]] * 9], [[[0.0]] * 9], list(range(9)), [[1.0]] * 9)
    for i in range(9):
        assert scores[0][i][: i + 1] == pytest.approx([-(i - j) / 4 for j in range(i + 1)], abs=1e-6)


def test_a_token_whose_product_is_negative_takes_no_step():
    """x = 1, -5, 2: from the first key to the third query it is 0 + 2, with g = 1."""
    steps = layer([[1.0]], None, Shape(2, 1, 1, 8))
    scores = layer_scores(steps, [[[0.0]] * 3], [[[0.0]] * 3], HERE[:3], [[1.0], [-5.0], [2.0]])
    assert scores[0][2] == [-2.0, -2.0, 0.0]


def test_the_bias_is_never_above_zero():
    """Steps and slopes are 0 or more, so that a key never gains by being far."""
    x = torch.randn(1, 50, 32, generator=torch.Generator().manual_seed(0))
    for own in ({}, {"kernelized": True}, {"slopes": False}):
        e = decoder(("cable", own)).encoding.for_layer(0)
        zero, at = torch.zeros(1, 4, 50, 8), torch.arange(50)[None]
        bias = e.scores(torch.zeros(1, 4, 50, 50), zero, zero, at, at, e.state(x), slice(0, 50)).tril()
        assert bias.max() <= 0
        assert bias.min() < -1


def test_float32_numbers_are_kept_beside_the_keys():
    model, cache = decoder(("cable", {})).to(torch.bfloat16), Cache(2)
    with torch.no_grad():
        model.hidden(ids(30, batch=3), cache=cache)
    kept = {name: (tuple(t.shape), t.dtype) for name, t in cache.layers[1].state.items()}
    assert kept == dict.fromkeys(("step", "slope"), ((3, 30, 4), torch.float32))


def test_its_parameters_are_one_matrix_or_two_a_layer():
    shape = Shape(layers=4, width=128, heads=4, train_length=128)
    assert sum(p.numel() for p in Cable(shape).parameters()) == 4 * 2 * 4 * 128
    assert sum(p.numel() for p in Cable(shape, slopes=False).parameters()) == 4 * 4 * 128
