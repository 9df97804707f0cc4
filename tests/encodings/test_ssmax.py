"""Scalable softmax: the oracle's loops, the number of keys a query really sees, what it does to what it holds."""

import math

import pytest
import torch
from oracles.distance_biases import alibi
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from oracles.rotations import rope
from oracles.temperatures import ssmax
from tiny import SHAPE as MODEL
from tiny import decoder, described, ids, layer_scores, logits

from posbench import encodings
from posbench.encodings.alibi import Alibi
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.none import NoPosition
from posbench.encodings.rope import Rope
from posbench.encodings.shaw import Shaw
from posbench.encodings.ssmax import SSMax
from posbench.errors import UserError

SHAPE = Shape(layers=2, width=HEADS * WIDTH, heads=HEADS, train_length=8)
STRENGTH = [0.4, 0.6]


def layer(inner, shape=SHAPE):
    e = SSMax(shape, inner)
    with torch.no_grad():
        e.strength[1] = torch.tensor(STRENGTH)
    return e.for_layer(1)


def times(scores):
    """Each row's scores times s ln N, by hand."""
    return [
        [[None if x is None else s * math.log(i + 1) * x for x in row] for i, row in enumerate(head)]
        for s, head in zip(STRENGTH, scores, strict=True)
    ]


def test_the_scores_equal_the_oracles():
    expected = ssmax(Q, K, positions=HERE, s=STRENGTH)
    assert same(layer_scores(layer(NoPosition), Q, K, HERE), expected, 1e-5)


def test_around_rope_the_rotated_scores_are_scaled():
    assert same(layer_scores(layer(Rope), Q, K, HERE), times(rope(Q, K, positions=HERE)), 1e-5)


def test_a_bias_is_added_as_it_is():
    """Scaled scores, plus the oracle's ALiBi of zero queries and keys."""
    zero = [[[0.0] * WIDTH] * len(HERE)] * HEADS
    scaled, bias = ssmax(Q, K, positions=HERE, s=STRENGTH), alibi(zero, zero, positions=HERE)
    expected = [
        [[None if x is None else x + b for x, b in zip(*rows, strict=True)] for rows in zip(*heads, strict=True)]
        for heads in zip(scaled, bias, strict=True)
    ]
    assert same(layer_scores(layer(Alibi), Q, K, HERE), expected, 1e-5)


def test_a_term_of_the_queries_is_scaled_with_them():
    """shaw's q . a, with its key term known from shaw alone."""
    torch.manual_seed(0)
    own = layer(Shaw)
    assert same(layer_scores(own, Q, K, HERE), times(layer_scores(own.inner, Q, K, HERE)), 1e-5)


class Twice(Encoding):
    def scale(self, n_keys, length):
        return 2.0


def test_the_scale_of_what_it_holds_is_multiplied():
    own, plain = layer(Twice), layer(NoPosition)
    seen = torch.arange(1, 9)[None]
    assert torch.equal(own.scale(seen, 8), 2 * plain.scale(seen, 8))


def test_at_the_start_the_last_query_of_a_training_window_is_that_of_the_inner_encoding():
    """1 / ln(L) x ln(L) = 1; queries before it are softer, those of longer windows sharper."""
    shape = Shape(layers=3, width=32, heads=4, train_length=128)
    e = SSMax(shape, NoPosition)
    assert e.strength.shape == (3, 4)
    factor = e.for_layer(2).scale(torch.tensor([[1, 2, 128, 128**2]]), 128**2)
    assert factor.dtype == torch.float32
    for head in factor[:, 0].tolist():
        assert head == pytest.approx([0, math.log(2) / math.log(128), 1, 2], abs=1e-6)


def test_a_document_of_its_own_counts_its_own_keys():
    """The second document reads as if alone, at the same positions; counted from the window's start it would not."""
    model, tokens = decoder(("ssmax", {"inner": "alibi"})), ids(60) % 63 + 1
    tokens[0, 25] = 0
    apart = decoder(("ssmax", {"inner": "alibi"}))
    apart.boundary = 0
    alone = logits(model, tokens[:, 25:])
    assert torch.allclose(logits(apart, tokens)[:, 25:], alone, atol=1e-4)
    assert (logits(model, tokens)[:, 25:] - alone).abs().max() > 1e-2


def test_each_layer_and_head_has_a_strength_of_its_own():
    """The first layer at 0 (uniform attention) is not the second at 0."""
    tokens, read = ids(40), []
    for number in range(2):
        model = decoder(("ssmax", {}))
        with torch.no_grad():
            model.encoding.strength[number] = 0
        read.append(logits(model, tokens))
    assert (read[0] - read[1]).abs().max() > 1e-2


def test_a_training_length_of_one_is_refused():
    with pytest.raises(UserError, match="a length of 2 or more"):
        encodings.build(described("ssmax"), Shape(MODEL.layers, MODEL.width, MODEL.heads, 1))
