"""Forgetting attention: the oracle's loops, x-transformers', exactness far out, what is kept beside the keys."""

import math

import pytest
import torch
from oracles.data_dependent import fox
from oracles.draws import HEADS, HERE, TOKENS, WIDTH, K, Q, drawn, same
from tiny import decoder, ids, layer_scores
from x_transformers.x_transformers import DataDependentAlibi

from posbench import attention
from posbench.encodings.base import Shape
from posbench.encodings.fox import Fox
from posbench.model import Cache

SHAPE = Shape(layers=2, width=HEADS * WIDTH, heads=HEADS, train_length=8)
X = drawn(TOKENS, HEADS * WIDTH, seed=4)


def layer(weight, bias, shape=SHAPE):
    gates = Fox(shape).for_layer(1)
    gates.load_state_dict({"gate.weight": torch.tensor(weight), "gate.bias": torch.tensor(bias)})
    return gates


def test_the_scores_equal_the_oracles():
    w, b = drawn(HEADS, HEADS * WIDTH, seed=5, size=0.3), drawn(HEADS, seed=6)
    expected = fox(Q, K, positions=HERE, x=X, w_f=w, b_f=b)
    assert same(layer_scores(layer(w, b), Q, K, HERE, X), expected, 1e-5)


def test_the_bias_equals_that_of_x_transformers():
    """Their gates start at a bias of 5; the formula is the same."""
    theirs = DataDependentAlibi(HEADS * WIDTH, HEADS)
    linear = theirs.to_forget_gates[0]
    own = layer(linear.weight.tolist(), linear.bias.tolist())
    x, zero, at = torch.tensor(X)[None], torch.zeros(1, HEADS, TOKENS, WIDTH), torch.arange(TOKENS)[None]
    bias = own.scores(torch.zeros(1, HEADS, TOKENS, TOKENS), zero, zero, at, at, own.state(x), slice(0, TOKENS))
    assert torch.allclose(bias.tril(), theirs(x).tril(), atol=1e-5)


@pytest.mark.parametrize("head_dim", [2, 32])
def test_the_bias_is_added_after_the_division_by_the_root_of_the_head_width(head_dim):
    """All queries zero and every gate 1/2: the third of three reads 1/7, 2/7, 4/7, whatever the head width."""
    gates = layer([[0.0] * head_dim], [0.0], Shape(2, head_dim, 1, 8))
    zero, at = torch.zeros(1, 1, 3, head_dim), torch.arange(3)[None]
    values = torch.eye(3, 2).expand(1, 1, 3, 2)
    how = attention.begin(gates, at, at, consecutive=True)
    out = attention.attend(zero, zero, values, gates.state(torch.zeros(1, 3, head_dim)), how)
    assert out[0, 0, 2].tolist() == pytest.approx([1 / 7, 2 / 7], abs=1e-6)


def test_gates_that_never_close_are_no_encoding():
    """f = sigmoid(100) is 1: the losses of `none`."""
    model, tokens = decoder(("fox", {})), ids(300)
    with torch.no_grad():
        for gates in model.encoding.layers:
            gates.gate.weight.zero_()
            gates.gate.bias.fill_(100.0)
    none = decoder(("none", {}))
    losses = [m.token_losses(tokens[:, :-1], tokens[:, 1:]) for m in (model, none)]
    assert torch.allclose(*losses, atol=1e-5)


def test_a_constant_gate_is_alibi():
    """ln f = -1/4 in every head: a slope of 1/4 (4 heads have 1/4, 1/16, ...)."""
    gates = layer(
        [[0.0] * 8] * 4,
        [-math.log(math.exp(slope) - 1) for slope in (1 / 4, 1 / 16, 1 / 64, 1 / 256)],
        Shape(2, 8, 4, 8),
    )
    q = k = [[[0.0, 0.0]] * 20] * 4
    scores = layer_scores(gates, q, k, list(range(20)), [[0.0] * 8] * 20)
    assert scores[0][19][0] == pytest.approx(-19 / 4, rel=1e-6)
    assert scores[3][19][18] == pytest.approx(-1 / 256, rel=1e-5)


def test_one_float32_number_a_token_head_and_layer_is_kept():
    """In a bf16 model too, because sums of thousands of them are formed."""
    model, cache = decoder(("fox", {})).to(torch.bfloat16), Cache(2)
    with torch.no_grad():
        model.hidden(ids(30, batch=3), cache=cache)
    kept = cache.layers[1].state
    assert {name: (tuple(t.shape), t.dtype) for name, t in kept.items()} == {"log_forget": ((3, 30, 4), torch.float32)}


def test_it_starts_as_the_papers_code_does():
    """N(0, 0.02^2) and no bias: gates near 1/2. C + 1 numbers a head and layer."""
    torch.manual_seed(0)
    e = Fox(Shape(layers=4, width=128, heads=4, train_length=128))
    assert sum(p.numel() for p in e.parameters()) == 4 * 4 * 129
    weights = torch.cat([gates.gate.weight.flatten() for gates in e.layers])
    assert weights.std().item() == pytest.approx(0.02, rel=0.06)
    assert all((gates.gate.bias == 0).all() for gates in e.layers)
