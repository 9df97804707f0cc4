"""DAPE: the oracle's loops around several encodings, the bias added once, one network a layer."""

import math

import pytest
import torch
from oracles.data_dependent import dape, fox
from oracles.distance_biases import alibi, kerple_log
from oracles.draws import HEADS, HERE, TOKENS, WIDTH, K, Q, drawn, same
from tiny import SHAPE as MODEL
from tiny import decoder, described, ids, layer_scores, logits

from posbench import attention, encodings
from posbench.encodings.alibi import Alibi
from posbench.encodings.base import Shape
from posbench.encodings.dape import Dape
from posbench.encodings.fox import Fox
from posbench.encodings.kerple import Kerple
from posbench.encodings.t5 import T5
from posbench.errors import UserError

SHAPE = Shape(layers=2, width=HEADS * WIDTH, heads=HEADS, train_length=8)
W1, B1, W2, B2 = drawn(5, 2 * HEADS, seed=5), drawn(5, seed=6), drawn(HEADS, 5, seed=7), drawn(HEADS, seed=8)
X = drawn(TOKENS, HEADS * WIDTH, seed=4)
ZERO = [[[0.0] * WIDTH] * TOKENS] * HEADS


def layer(inner):
    e = Dape(SHAPE, inner, hidden=5)
    network = dict(zip(("rise.weight", "rise.bias", "fall.weight", "fall.bias"), (W1, B1, W2, B2), strict=True))
    e.networks[1].load_state_dict({name: torch.tensor(numbers) for name, numbers in network.items()})
    return e.for_layer(1)


@pytest.mark.parametrize("positions", [HERE, [3 * i + i % 2 for i in HERE]])
def test_the_scores_equal_the_oracles_around_alibi(positions):
    """B is the oracle's ALiBi of zero queries and keys."""
    expected = dape(Q, K, positions=positions, bias=alibi(ZERO, ZERO, positions=positions), w1=W1, b1=B1, w2=W2, b2=B2)
    assert same(layer_scores(layer(Alibi), Q, K, positions), expected, 1e-5)


def test_the_scores_equal_the_oracles_around_kerple():
    own = layer(Kerple)
    bias = kerple_log(ZERO, ZERO, positions=HERE, p=own.inner.p.tolist(), a=own.inner.a.tolist())
    expected = dape(Q, K, positions=HERE, bias=bias, w1=W1, b1=B1, w2=W2, b2=B2)
    assert same(layer_scores(own, Q, K, HERE), expected, 1e-5)


def test_the_scores_equal_the_oracles_around_a_bias_that_the_tokens_compute():
    """fox adds its bias to the scores itself: it is what its scores have more."""
    own = layer(Fox)
    gates = own.inner.gate
    bias = fox(ZERO, ZERO, positions=HERE, x=X, w_f=gates.weight.tolist(), b_f=gates.bias.tolist())
    expected = dape(Q, K, positions=HERE, bias=bias, w1=W1, b1=B1, w2=W2, b2=B2)
    assert same(layer_scores(own, Q, K, HERE, X), expected, 1e-5)


def test_a_network_of_zeros_leaves_the_inner_encoding():
    """S + B, B once: an inner bias that attention adds as well would show."""
    model, tokens = decoder(("dape", {})), ids(300)
    with torch.no_grad():
        for parameter in model.encoding.networks.parameters():
            parameter.zero_()
    assert torch.allclose(logits(model, tokens), logits(decoder(("alibi", {})), tokens), atol=1e-5)
    assert "bias" not in model.encoding.hooks


def test_the_bias_is_not_divided_and_the_network_sees_divided_scores():
    """Head width 16, q = k = 2: S = 2 x 2 x 16 / 4 = 16; slope 1/256 over 256 tokens: B = -1.

    One head, f = LeakyReLU(S + B) x 2: 16 - 1 + 30.
    """
    e = Dape(Shape(1, 16, 1, 8), Alibi, hidden=1)
    with torch.no_grad():
        for parameter, number in zip(e.networks.parameters(), (1.0, 0.0, 2.0, 0.0), strict=True):
            parameter.fill_(number)
    scores = layer_scores(e.for_layer(0), [[[2.0] * 16] * 2], [[[2.0] * 16] * 2], [0, 256])
    assert scores[0][1] == pytest.approx([45.0, 48.0], rel=1e-6)


def test_every_layer_has_a_network_of_its_own_and_shares_the_inner_encoding():
    e = Dape(SHAPE, T5, hidden=7)
    a, b = (e.for_layer(i) for i in range(2))
    assert a.networks[a.layer] is not b.networks[b.layer]
    assert a.inner is b.inner is e.inner
    own = 2 * HEADS * 7 + 7 + 7 * HEADS + HEADS
    assert sum(p.numel() for p in e.parameters()) == 2 * own + 32 * HEADS
    assert len(e.state_dict()) == len(list(e.parameters()))


def test_the_inner_encoding_learns_through_it():
    """t5's table gets the gradient of both ways it takes: added, and through the network."""
    own = layer(T5)
    q, k, v = torch.randn(3, 1, HEADS, 40, WIDTH, generator=torch.Generator().manual_seed(0))
    at = torch.arange(40)[None]
    own.inner.table.data.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(1))

    def read():
        return attention.attend(q, k, v, {}, attention.begin(own, at, at, consecutive=True)).square().sum()

    (slope,) = torch.autograd.grad(read(), own.inner.table)
    moved = []
    for sign in (1, -1):
        with torch.no_grad():
            own.inner.table[3, 1] += sign * 1e-2
            moved.append(read().item())
            own.inner.table[3, 1] -= sign * 1e-2
    assert slope[3, 1].item() == pytest.approx((moved[0] - moved[1]) / 2e-2, rel=0.02)


def test_something_without_a_bias_is_refused():
    with pytest.raises(UserError, match="adds none to the scores"):
        encodings.build(described("dape", inner="rope"), MODEL)
    with pytest.raises(UserError, match="hidden must be 1 or more, not 0"):
        encodings.build(described("dape", hidden=0), MODEL)


def test_it_starts_as_linear_layers_do():
    """PyTorch's own start, as in the authors' code: uniform to 1/sqrt(inputs), here 1/sqrt(8) and 1/sqrt(32)."""
    torch.manual_seed(0)
    network = Dape(Shape(1, 32, 4, 8), Alibi).networks[0]
    for weight, inputs in ((network.rise.weight, 8), (network.fall.weight, 32)):
        assert 0.9 < weight.abs().max().item() * math.sqrt(inputs) <= 1
