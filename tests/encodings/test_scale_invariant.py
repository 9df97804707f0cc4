"""Scale-invariant attention: its two numbers, the scores it changes, and what it says of decades of distance."""

import math

import pytest
import torch
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from oracles.rotations import prope_frequencies, rotated
from oracles.temperatures import scale_invariant, scale_invariant_terms
from tiny import decoder, described, encoding, ids, layer_scores, logits

from posbench import encodings
from posbench.encodings.alibi import Alibi
from posbench.encodings.base import Shape
from posbench.encodings.none import NoPosition
from posbench.encodings.prope import PRope
from posbench.encodings.scale_invariant import ScaleInvariant
from posbench.encodings.xpos import XPos
from posbench.errors import UserError

SHAPE = Shape(layers=1, width=HEADS * WIDTH, heads=HEADS, train_length=64)


def changed(score: float, distance: int, **own) -> float:
    """What becomes of one score."""
    e = ScaleInvariant(SHAPE, NoPosition, **own)
    s, q = torch.full((1, 1, 1, 1), score), torch.zeros(1, 1, 1, WIDTH)
    at = torch.tensor([[100_000]])
    return e.scores(s, q, q, at, at - distance, {}, slice(0, 1)).item()


@pytest.mark.parametrize("tau", [1, 10, 50.5])
@pytest.mark.parametrize("distance", [0, 1, 10, 1000, 100_000])
def test_its_two_numbers_are_the_oracles(distance, tau):
    a, m = scale_invariant_terms(distance, tau=tau)
    assert changed(0.0, distance, tau=tau) == pytest.approx(m, abs=1e-5)
    assert changed(3.0, distance, tau=tau) == pytest.approx(3 * a + m, abs=1e-5)


def test_a_query_and_its_own_key_score_as_without():
    assert changed(3.0, 0) == 3.0


def test_each_decade_of_distances_gets_as_much_attention():
    """E exp(a s + m) = exp(m + a^2/2) for a standard normal s; summed over 10^3 ... 10^4 and 10^4 ... 10^5."""

    def share(first: int) -> float:
        e, distance = ScaleInvariant(SHAPE, NoPosition), torch.arange(first, 10 * first)
        zero, q = torch.zeros(1, 1, 1, len(distance)), torch.zeros(1, 1, 1, WIDTH)
        m, more = (
            e.scores(s, q, q, torch.tensor([[200_000]]), 200_000 - distance[None], {}, slice(0, 1)).double().flatten()
            for s in (zero, zero + 1)
        )
        return (m + (more - m) ** 2 / 2).exp().sum().item()

    assert share(1000) == pytest.approx(10 * math.exp(0.5) * math.log(10), rel=0.01)
    assert share(10_000) == pytest.approx(share(1000), rel=0.01)


@pytest.mark.parametrize("inner", ["none", "prope"])
def test_the_scores_equal_the_oracles(inner):
    e = encodings.build(described("scale_invariant", inner=inner), SHAPE)
    theta = prope_frequencies(WIDTH, p=0.75) if inner == "prope" else []
    for positions in (HERE, [40 * i for i in HERE]):
        q, k = (
            [[rotated(x, p, theta=theta, layout="half") for x, p in zip(head, positions, strict=True)] for head in both]
            for both in (Q, K)
        )
        assert same(layer_scores(e, Q, K, positions), scale_invariant(q, k, positions=positions), 1e-5)


@pytest.mark.parametrize("inner", [Alibi, XPos])
def test_it_changes_the_scores_of_what_it_holds_bias_and_all(inner):
    inside, ours = (layer_scores(e, Q, K, HERE) for e in (inner(SHAPE), ScaleInvariant(SHAPE, inner)))
    for h in range(HEADS):
        for i in HERE:
            for j in range(i + 1):
                a, m = scale_invariant_terms(i - j)
                assert ours[h][i][j] == pytest.approx(a * inside[h][i][j] + m, abs=1e-5)


def test_it_takes_the_facts_of_what_it_holds():
    assert type(encoding(("scale_invariant", {})).inner) is PRope
    assert encoding(("scale_invariant", {"inner": "learned"})).max_length == 256
    assert not encoding(("scale_invariant", {"inner": "sinusoidal"})).shift_invariant
    assert not list(encoding(("scale_invariant", {})).parameters())


def test_a_large_tau_leaves_what_it_holds():
    tokens = ids(60)
    far, inner = (logits(decoder(case), tokens) for case in (("scale_invariant", {"tau": 1e9}), ("prope", {})))
    assert (far - inner).abs().max() < 1e-4


def test_a_tau_of_0_is_refused():
    with pytest.raises(UserError, match="tau must be above 0"):
        encoding(("scale_invariant", {"tau": 0}))
