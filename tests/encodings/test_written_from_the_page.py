"""An encoding written from docs/add-an-encoding.md alone, kept as it was: what the page promises must go on working."""

import math
from pathlib import Path

import pytest
import torch

from posbench import encodings
from posbench.check import check
from posbench.check.properties import PROPERTIES
from posbench.check.subject import Subject, ids
from posbench.encodings.base import Shape
from posbench.errors import UserError

MINE = {"name": "laps", "class": f"{Path(__file__).parent / 'written_from_the_page.py'}:Laps"}


def built(width, train_length, **own):
    """In one head."""
    return encodings.build(MINE | own, Shape(layers=1, width=width, heads=1, train_length=train_length))


def turned(encoding, x, position):
    x_BHTD = torch.tensor(x).view(1, 1, 1, -1)
    q, k = encoding.rotate(x_BHTD, x_BHTD, encoding.begin(torch.tensor([[position]]), position + 1))
    assert torch.equal(q, k)
    return q.flatten().tolist()


def test_it_keeps_every_property_that_applies():
    """It reads windows of any length, and has no bias: two properties have nothing to hold it to."""
    verdicts = list(check(Subject(MINE)))
    print("\n".join(f"{v.property}: {v.outcome}: {v.said}\n{v.trace}" for v in verdicts if v.outcome != "passed"))
    expected = dict.fromkeys(PROPERTIES, "passed") | {"bias in proportion": "n/a", "obeys max_length": "n/a"}
    assert {v.property: v.outcome for v in verdicts} == expected


def test_one_step_of_gradient_descent_moves_every_wavelength():
    decoder = Subject(MINE).model()
    place = decoder.encoding.place_HM
    start = place.detach().clone()
    tokens = ids(65, batch=2)
    before = decoder.loss(tokens[:, :-1], tokens[:, 1:])
    before.backward()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter -= 0.1 * parameter.grad
    assert (place != start).all()
    assert decoder.loss(tokens[:, :-1], tokens[:, 1:]) < before


@pytest.mark.parametrize(
    ("position", "expected"),
    [(0, [1.0, 0.0]), (1, [0.5**0.5, 0.5**0.5]), (2, [0.0, 1.0]), (4, [-1.0, 0.0]), (800, [1.0, 0.0])],
)
def test_the_one_pair_of_a_head_turns_once_in_eight_tokens(position, expected):
    """Trained at 16, the wavelength lies between 4 and 16. The one pair begins in the middle, g = 1/2:
    4^(1/2) 16^(1/2) = 2 x 4 = 8 tokens, an eighth of a turn a token."""
    assert turned(built(2, 16), [1.0, 0.0], position) == pytest.approx(expected, abs=1e-6)


def test_two_pairs_are_the_halves_of_the_head_and_begin_evenly_spread():
    """g = 1/4 and 3/4 between 4 and 64: 4 x 16^(1/4) = 8 and 4 x 16^(3/4) = 32. At position 8 the first has gone round,
    the second stands at a quarter: (3, 4) there becomes (-4, 3)."""
    encoding = built(4, 64)
    assert encoding.wavelengths().flatten().tolist() == pytest.approx([8.0, 32.0], rel=1e-6)
    assert turned(encoding, [1.0, 3.0, 2.0, 4.0], 8) == pytest.approx([1.0, -4.0, 2.0, 3.0], abs=1e-5)


def test_whatever_is_learned_every_pair_goes_round_in_the_training_window():
    """At laps = 2 and 64 tokens the longest wavelength is 32, and at 64 tokens that pair has gone round twice."""
    encoding = built(4, 64, laps=2.0)
    encoding.place_HM.data.copy_(torch.tensor([[-100.0, 100.0]]))
    assert encoding.wavelengths().flatten().tolist() == pytest.approx([4.0, 32.0])
    cos, sin = encoding.begin(torch.tensor([[64]]), 65)
    assert cos.flatten().tolist() == pytest.approx([1.0, 1.0])
    assert sin.flatten().tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_each_row_of_a_batch_may_have_positions_of_its_own():
    """(B, T) positions, here 3 rows for 2 heads of 2 pairs: the second row is as if it were alone."""
    encoding = encodings.build(MINE, Shape(layers=1, width=8, heads=2, train_length=64))
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 9, 20, 21, 50], [5, 6, 7, 8, 9]])
    x = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    together, _ = encoding.rotate(x, x, encoding.begin(positions, 51))
    alone, _ = encoding.rotate(x[1:2], x[1:2], encoding.begin(positions[1:2], 51))
    assert torch.equal(together[1:2], alone)
    angle = 2 * math.pi * 50 / encoding.wavelengths()[1, 0].item()
    a, b = x[1, 1, 4, 0].item(), x[1, 1, 4, 2].item()
    assert together[1, 1, 4, 0].item() == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-5)


def test_bounds_that_leave_nothing_to_learn_are_refused_in_its_own_words():
    with pytest.raises(UserError, match="'laps' cannot be built: laps must be more than 0"):
        built(2, 16, laps=0.0)
    with pytest.raises(UserError, match="below train_length / laps = 4"):
        built(2, 16, laps=4.0)
