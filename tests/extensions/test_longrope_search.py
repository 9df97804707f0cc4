"""The search of LongRoPE's factors: bounded, repeatable, never worse than where it starts."""

import math
from dataclasses import replace

import pytest
import torch
from tiny import SHAPE, decoder

from posbench.extensions.base import SEARCH_LOSSES
from posbench.extensions.longrope import LongRope, find_factors

GOAL = [1.0, 1.5, 3.0, 4.0]
STARTS = [[4.0] * 4, [1.0, 1.6, 2.5, 4.0], [1.0, 1.0, 2.0, 4.0]]


def far(factors):
    """How far a list is from GOAL, in logarithms."""
    return sum((math.log(a) - math.log(b)) ** 2 for a, b in zip(factors, GOAL, strict=True))


def test_it_asks_for_at_most_64_losses():
    asked = []
    find_factors(lambda factors: asked.append(factors) or far(factors), STARTS, 4.0)
    assert len(asked) == SEARCH_LOSSES == 64
    assert asked[:3] == STARTS
    asked.clear()
    find_factors(lambda factors: asked.append(factors) or far(factors), STARTS, 4.0, evaluations=2)
    assert asked == STARTS[:2]


def test_it_comes_nearer_than_where_it_starts_and_gives_a_list_it_has_tried():
    asked = []
    found = find_factors(lambda factors: asked.append(factors) or far(factors), STARTS, 4.0)
    assert far(found) < 0.5 * min(map(far, STARTS))
    assert far(found) == min(map(far, asked))


def test_the_same_losses_give_the_same_list():
    assert find_factors(far, STARTS, 4.0) == find_factors(far, STARTS, 4.0)


def test_factors_never_fall_from_pair_to_pair_and_stay_within_their_range():
    asked = []
    find_factors(lambda factors: asked.append(factors) or far(factors), STARTS, 4.0)
    for factors in asked:
        assert factors == sorted(factors)
        assert factors[0] >= 1
        assert factors[-1] <= 5


def test_a_loss_that_is_no_number_is_never_chosen():
    found = find_factors(lambda factors: math.nan if factors != STARTS[1] else 7.0, STARTS, 4.0, evaluations=3)
    assert found == STARTS[1]


def test_the_extension_searches_with_the_encoding_that_it_extends():
    """The loss is of extended encodings; the settings found are parameters of the class; the first tried is PI's."""
    rope = decoder(("rope", {}), replace(SHAPE, train_length=16)).encoding
    extension, tried = LongRope(), []

    def loss(encoding):
        turning, magnitude = encoding.angles(64)
        tried.append((rope.frequencies / turning).tolist())
        assert magnitude == pytest.approx(math.sqrt(1.5))  # ln 4 / ln 16
        return far(tried[-1])

    found = extension.search(rope, 16, 64, "auto", loss)
    assert tried[0] == pytest.approx([4.0] * 4)
    assert len(tried) == 64
    given = LongRope(**found).extend(rope, 16, 64)
    assert far((rope.frequencies / given.angles(64)[0]).tolist()) == pytest.approx(min(map(far, tried)))


def test_nothing_is_searched_where_nothing_is_stretched():
    """Nor with a factor, up to the trained length: there the short list holds, whatever the long one is."""
    rope = decoder(("rope", {}), replace(SHAPE, train_length=16)).encoding
    for factor in ("auto", 4.0):
        found = LongRope().search(rope, 16, 16, factor, lambda encoding: pytest.fail("asked"))
        assert found == {"factors": [1.0] * 4}


def test_only_a_list_that_is_missing_is_searched():
    assert LongRope().searches
    assert not LongRope([1.0]).searches
    assert torch.is_tensor(LongRope([1.0, 2.0, 3.0, 4.0]).extend(decoder(("rope", {})).encoding, 16, 64).angles(17)[0])
