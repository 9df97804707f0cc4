"""The length curve as text: the letter of a line at each value, readable at any width and without colour."""

from __future__ import annotations

import pytest

from posbench.report.parts import parts
from posbench.report.terminal import HEIGHT, LEAST, MOST, plots


def drawn(rows, width: int = 60) -> list[str]:
    (text,) = plots(parts(rows), width)
    return text.splitlines()


def legend(lines: list[str]) -> list[str]:
    """Below the axis and a blank line, up to the next one."""
    below = lines[2 + HEIGHT :]
    below = below[below.index("") + 1 :]
    return below[: below.index("")]


def rising(make):
    """Worse by the same factor at each step."""
    return [make("rope", length, value) for length, value in ((128, 40.0), (256, 50.0), (512, 60.0))]


def test_letters_stand_at_their_values_from_the_lowest_to_the_highest(make):
    lines = drawn(rising(make))[2 : 2 + HEIGHT]
    assert lines[0].startswith("60.00 ┤")
    assert lines[0].endswith("r")
    assert lines[-1].startswith("40.00 ┤r")
    assert sum(line.count("r") for line in lines) == 3


def test_the_axis_names_the_lengths_and_marks_the_training_length(make):
    lines = drawn(rising(make))
    ruler = next(number for number, line in enumerate(lines) if "└" in line)
    assert lines[ruler + 1].split() == ["128", "256", "512"]
    assert lines[ruler + 2].index("L") == lines[ruler].index("┬")


def test_a_letter_is_explained_with_its_training_length_and_where_it_ends(make):
    assert legend(drawn(rising(make))) == ["r  rope, L = 128: 60.00 at 512"]


def test_a_line_has_the_same_letter_in_every_picture(make):
    """The best one comes first in a picture, whatever its letter: alibi in the first, rope in the second."""
    other = {"protocol": "sliding", "stride": 64, "targets_digest": "other"}
    rows = [make("rope", 128, 40.0), make("alibi", 128, 30.0), make("rope", 128, 20.0, **other)]
    rows += [make("alibi", 128, 30.0, **other), make("alibi", 128, 25.0, train_length=64, **other)]
    rows += [make("learned", 128, 35.0, **other)]
    first, second = (legend(text.splitlines()) for text in plots(parts(rows), 60))
    assert [line.split(":")[0] for line in first] == ["A  alibi, L = 128", "r  rope, L = 128"]
    assert [line.split(":")[0] for line in second] == [
        "r  rope, L = 128",
        "a  alibi, L = 64",
        "A  alibi, L = 128",
        "l  learned, L = 128",
    ]


def test_a_letter_behind_another_is_said_with_its_lengths(make):
    rows = [*rising(make), make("alibi", 128, 40.1), make("alibi", 256, 45.0), make("alibi", 512, 60.1)]
    assert legend(drawn(rows)) == [
        "r  rope, L = 128: 60.00 at 512",
        "a  alibi, L = 128: 60.10 at 512; behind r at 128 and 512",
    ]


def test_under_the_picture_stands_what_a_target_had_before_it(make):
    assert "one to all of them" in drawn(rising(make), 100)[-1] + drawn(rising(make), 100)[-2]


@pytest.mark.parametrize("width", [1, 40, 200])
def test_it_keeps_to_a_width(make, width):
    lines = drawn(rising(make), width)
    assert max(map(len, lines[2 : 2 + HEIGHT + 3])) <= min(max(width, LEAST), MOST)


def test_what_is_not_measurable_is_said(make):
    rows = [*rising(make), make("learned", 128, 45.0), make("learned", 256, None)]
    assert "l  learned, L = 128: 45.00 at 128, n/a further on" in drawn(rows)


def test_values_far_apart_are_drawn_by_their_logarithm(make):
    """4, 40 and 400: the middle one is in the middle."""
    rows = [make("rope", length, value) for length, value in ((128, 4.0), (256, 40.0), (512, 400.0))]
    lines = drawn(rows)[2 : 2 + HEIGHT]
    assert [number for number, line in enumerate(lines) if "r" in line] == [0, 8, HEIGHT - 1]


@pytest.mark.parametrize(
    ("value", "top", "bottom", "said"),
    [
        (79.0, "79.00", "40.00", "u  unigram: 79.00 at 128"),
        (81.0, "60.00", "40.00", "unigram: 81.00 at 128, above the plot"),
        (21.0, "60.00", "21.00", "u  unigram: 21.00 at 128"),
        (19.0, "60.00", "40.00", "unigram: 19.00 at 128, below the plot"),
    ],
)
def test_a_reference_far_from_the_models_is_named_and_leaves_them_the_axis(make, reference, value, top, bottom, said):
    """The models go from 40 to 60: from 20 to 80 there is room for a reference, which leaves them half the height."""
    lines = drawn([*rising(make), reference("unigram", 128, value)])
    assert legend(lines) == ["r  rope, L = 128: 60.00 at 512", said]
    assert [lines[number].split(" ┤")[0] for number in (2, 1 + HEIGHT)] == [top, bottom]


def test_an_undertrained_line_is_marked(make, reference):
    """At L the bigram has 39, the model 40."""
    found = legend(drawn([*rising(make), reference("bigram", 128, 39.0)]))
    assert found[0] == "r  rope †, L = 128: 60.00 at 512"
    assert found[-2].startswith("† undertrained")


def test_references_without_a_model_are_all_drawn(reference):
    lines = drawn([reference("unigram", 128, 600.0), reference("bigram", 128, 55.0)])
    assert {"b  bigram: 55.00 at 128", "u  unigram: 600.00 at 128"} <= set(lines)


def test_a_line_that_has_nothing_to_draw_is_named(make):
    rows = [*rising(make), make("learned", 256, None), make("alibi", 256, 1.0, loss=800.0)]
    assert legend(drawn(rows))[1:] == ["alibi, L = 128: past any number", "learned, L = 128: n/a"]


def test_one_value_is_a_plot_too_and_has_one_label(make):
    lines = drawn([make("rope", 128, 40.0)])
    assert [line for line in lines if "┤" in line] == ["40.00 ┤r"]


def test_two_pictures_of_one_name_say_what_they_are_of(make):
    rows = [make("rope", 128, 40.0), make("rope", 128, 41.0, targets_digest="other", targets=64)]
    assert [text.splitlines()[0].split(", ")[-1] for text in plots(parts(rows), 60)] == ["98,304 targets", "64 targets"]
