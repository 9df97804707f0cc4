"""Randomized positions: what is drawn, when, and by whom it is read."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from oracles.distance_biases import alibi
from oracles.draws import HEADS, WIDTH, K, Q, same
from oracles.rotations import rope
from oracles.token_vectors import randomized, randomized_mean, randomized_problems, randomized_variance
from tiny import SHAPE, decoder, described, encoding, ids, layer_scores, logits

from posbench import encodings, extensions
from posbench.data.windows import generators
from posbench.encodings.alibi import Alibi
from posbench.encodings.base import Shape
from posbench.encodings.randomized import Randomized
from posbench.encodings.rope import Rope
from posbench.encodings.wrapper import Wrapper
from posbench.encodings.xpos import XPos
from posbench.errors import UserError
from posbench.extensions.pi import Pi
from posbench.generate import generate

SMALL = Shape(layers=1, width=HEADS * WIDTH, heads=HEADS, train_length=12)


def draw(e, numbers, length, seed=1, split="train"):
    return e.positions(list(numbers), length, generators(seed, split, numbers))


@pytest.mark.parametrize("length", [1, 5, 12, 48])
def test_a_draw_is_of_distinct_positions_in_order(length):
    e = Randomized(SMALL, Alibi, span=48)
    for at in draw(e, range(20), length).tolist():
        assert randomized_problems(at, length=length, maximum=48) == []


def test_every_set_of_positions_is_as_likely():
    """4,000 draws of 4 of 16: mean and variance of each place, within 5 standard errors; no place is 0 or fixed.

    A draw that is contiguous from a random start, or of ids that are sorted and then cut, has others.
    """
    e = Randomized(SMALL, Alibi, span=16)
    at = draw(e, range(4000), 4).double()
    for place in range(4):
        mean, variance = (f(place, length=4, maximum=16) for f in (randomized_mean, randomized_variance))
        assert at[:, place].mean().item() == pytest.approx(mean, abs=5 * (variance / 4000) ** 0.5)
        assert at[:, place].var().item() == pytest.approx(variance, rel=0.12)


def test_a_draw_belongs_to_the_number_of_the_window():
    """The same alone, in another batch and in another order; others for another window, split or seed."""
    e = Randomized(SMALL, Alibi)
    together = draw(e, [5, 6, 7], 12)
    assert torch.equal(draw(e, [6], 12)[0], together[1])
    assert torch.equal(draw(e, [7, 5], 12), together[[2, 0]])
    others = [together[0], together[1], draw(e, [5], 12, split="test")[0], draw(e, [5], 12, seed=2)[0]]
    assert all(not torch.equal(a, b) for i, a in enumerate(others) for b in others[:i])


def test_training_and_evaluation_both_draw():
    model = decoder(("randomized", {}))
    for mode in (True, False):
        model.train(mode)
        at = model.positions([3], 40, generators(1, "test", [3]))
        assert at.max() > 300
        assert torch.equal(at, draw(model.encoding, [3], 40, split="test"))


@pytest.mark.parametrize("inner", ["sinusoidal", "learned", "rope", "alibi", "t5"])
def test_at_given_positions_it_is_what_it_holds(inner):
    """Bit for bit; and a draw of its own gives other logits."""
    model, tokens = decoder(("randomized", {"inner": inner})), ids(30)
    wrapper, at = model.encoding, draw(model.encoding, [0], 30, split="test")
    drawn = logits(model, tokens)
    model.encoding = wrapper.inner
    assert torch.equal(logits(model, tokens, positions=at), drawn)
    assert (logits(model, tokens) - drawn).abs().max() > 1e-2


def test_what_it_holds_reads_what_was_drawn():
    e = Randomized(SMALL, Rope, span=500)
    at = draw(e, [0], 12)[0].tolist()
    assert same(layer_scores(e, Q, K, at), randomized(Q, K, positions=at, maximum=500, inner=rope), 1e-5)
    e = Randomized(SMALL, Alibi, span=500)
    expected = randomized(Q, K, positions=at, maximum=500, inner=alibi)
    assert same(layer_scores(e, Q, K, at), expected, 1e-5)


def test_two_windows_of_a_batch_have_positions_of_their_own():
    """The same tokens twice: other logits in each row, those of that window alone."""
    model, tokens = decoder(("randomized", {"inner": "rope"})), ids(30).expand(2, -1)
    both = logits(model, tokens)
    assert (both[0] - both[1]).abs().max() > 1e-2
    at = draw(model.encoding, [0, 1], 30, split="test")
    assert torch.allclose(logits(model, tokens[:1], positions=at[1:]), both[1:], atol=1e-5)


@pytest.mark.parametrize(("span", "expected"), [(None, 4096), (256, 256), (1000, 1000)])
def test_the_span_is_the_longest_window(span, expected):
    """16 x 256 unless told; one more token is refused with the number."""
    e = encoding(("randomized", {"span": span}))
    assert e.max_length == e.span == expected
    assert draw(e, [0], expected).tolist() == [list(range(expected))]
    with pytest.raises(ValueError, match=f"a span of {expected}; asked for {expected + 1}"):
        draw(e, [0], expected + 1)


def test_a_learned_table_has_a_row_for_each_position_of_the_span():
    e = encoding(("randomized", {"inner": "learned"}), replace(SHAPE, train_length=8))
    assert e.inner.table.shape == (128, 32)
    assert e.length_sized
    assert not encoding(("randomized", {})).length_sized


def test_the_facts_stay_when_it_goes_around_the_instance_of_a_layer():
    """shaw has an encoding for each layer."""
    e = encoding(("randomized", {"inner": "shaw", "span": 700}))
    assert e.for_layer(1).max_length == 700
    assert e.for_layer(1).inner is e.inner.for_layer(1)
    assert "positions" in e.for_layer(1).hooks


def test_what_cannot_be_drawn_is_refused():
    build = partial(encodings.build, shape=SHAPE)
    with pytest.raises(UserError, match="span of 255 is too short for the training length 256"):
        build(described("randomized", span=255))
    with pytest.raises(UserError, match="chooses its own positions"):
        build(described("randomized", inner="randomized"))
    with pytest.raises(UserError, match="table of length 100 is too short"):
        build(described("randomized") | {"inner": described("learned", length=100)})


def test_a_text_is_written_at_positions_drawn_for_all_of_it():
    """Through the cache as in whole passes, at the draw for 3 tokens and 5 more."""
    model = decoder(("randomized", {"inner": "rope"}))
    at = model.positions([0], 8, generators(1, "generate", [0]))
    text = [5, 9, 2]
    for _ in range(6):
        text.append(int(logits(model, torch.tensor([text]), positions=at[:, : len(text)])[0, -1].argmax()))
    assert list(generate(model, text[:3], 6, end=64, temperature=0)) == text[3:]


def test_there_is_nothing_to_stretch_in_it():
    """All positions of the span were trained, and no window has others; beside one, in another wrapper, neither."""
    e = Randomized(SMALL, Rope, span=500)
    for held in (e, Wrapper(SMALL, lambda shape: e)):
        assert not Pi().applies_to(held)
        assert held.bounded
    assert Pi().applies_to(e.inner)
    assert extensions.applicable(e) == ["logn", "none"]


@pytest.mark.parametrize("inner", ["none", "fox", "cable", "cope"])
def test_what_reads_no_positions_cannot_be_randomized(inner):
    with pytest.raises(UserError, match="what it holds reads no positions"):
        encodings.build(described("randomized", inner=inner), SHAPE)
    twice = described("randomized") | {"inner": described("ssmax", inner=inner)}
    with pytest.raises(UserError, match="what it holds reads no positions"):
        encodings.build(twice, SHAPE)
    distances = described("randomized") | {"inner": described("scale_invariant", inner=inner)}
    assert encodings.build(distances, SHAPE).reads_positions


def test_a_span_in_which_powers_leave_float32_is_refused():
    """Of xPos: 75 / (ln(1.4 / 0.4) / 512) = 30,652.2 positions in one block of queries."""
    assert Randomized(SMALL, XPos, span=30_652).inner.widest == pytest.approx(30_652.25, abs=0.01)
    with pytest.raises(ValueError, match="a span of 30653 is too wide for what it holds, which reads 30652 at most"):
        Randomized(SMALL, XPos, span=30_653)
