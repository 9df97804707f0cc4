"""The length curve as text: a letter at each value, readable at any width and without colour."""

from __future__ import annotations

import pytest

from posbench.report.parts import parts
from posbench.report.terminal import HEIGHT, LEAST, MOST, plot


def drawn(rows, width: int = 60) -> list[str]:
    (part,) = parts(rows)
    return plot(part, width).splitlines()


def rising(make):
    """Worse by the same factor at each step."""
    return [make("rope", length, value) for length, value in ((128, 40.0), (256, 50.0), (512, 60.0))]


def test_letters_stand_at_their_values_from_the_lowest_to_the_highest(make):
    lines = drawn(rising(make))[2 : 2 + HEIGHT]
    assert lines[0].startswith("60.00 ┤")
    assert lines[0].endswith("a")
    assert lines[-1].startswith("40.00 ┤a")
    assert sum(line.count("a") for line in lines) == 3


def test_the_axis_names_the_lengths_and_marks_the_training_length(make):
    lines = drawn(rising(make))
    ruler = next(number for number, line in enumerate(lines) if "└" in line)
    assert lines[ruler + 1].split() == ["128", "256", "512"]
    assert lines[ruler + 2].index("L") == lines[ruler].index("┬")


def test_a_letter_is_explained_with_its_training_length_and_where_it_ends(make):
    assert drawn(rising(make))[-1] == "a  rope, L = 128: 60.00 at 512"


@pytest.mark.parametrize("width", [1, 40, 200])
def test_it_keeps_to_a_width(make, width):
    lines = drawn(rising(make), width)
    assert max(map(len, lines[2 : 2 + HEIGHT + 3])) <= min(max(width, LEAST), MOST)


def test_what_is_not_measurable_is_said(make):
    rows = [*rising(make), make("learned", 128, 45.0), make("learned", 256, None)]
    assert "b  learned, L = 128: 45.00 at 128, n/a further on" in drawn(rows)


def test_values_far_apart_are_drawn_by_their_logarithm(make):
    """4, 40 and 400: the middle one is in the middle."""
    rows = [make("rope", length, value) for length, value in ((128, 4.0), (256, 40.0), (512, 400.0))]
    lines = drawn(rows)[2 : 2 + HEIGHT]
    assert [number for number, line in enumerate(lines) if "a" in line] == [0, 8, HEIGHT - 1]


def test_a_reference_above_all_runs_is_left_out(make, reference):
    lines = drawn([*rising(make), reference("unigram", 128, 600.0), reference("bigram", 128, 55.0)])
    assert [line.split()[1].rstrip(",:") for line in lines[-2:]] == ["rope", "bigram"]


def test_one_value_is_a_plot_too(make):
    assert any(line.endswith("┤a") for line in drawn([make("rope", 128, 40.0)]))
