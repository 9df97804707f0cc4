"""Figures: the same rows give the same bytes, what is absent is marked, an encoding looks the same everywhere."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.text import Text

from posbench.errors import UserError
from posbench.report import curves
from posbench.report.curves import perplexities, use_of_context
from posbench.report.figures import drawings
from posbench.report.figures.axes import spread
from posbench.report.figures.context import by_context
from posbench.report.figures.cost import SHOWN, by_cost, read_bench
from posbench.report.figures.paper import beside_the_paper
from posbench.report.figures.perplexity import CLOSER, by_length
from posbench.report.figures.style import COLOURS, DARK, GROUND, look, looks
from posbench.report.parts import parts
from posbench.search_path import choices


def study(make):
    """Two encodings by two protocols, one of them without positions past its training length."""
    values = {"alibi": {128: 43.0, 256: 42.0, 512: 41.0}, "learned": {128: 50.0, 256: None, 512: None}}
    flat = [make(name, length, value) for name, by in values.items() for length, value in by.items()]
    same = {"protocol": "same-targets", "block": 32, "min_context": 512, "targets_digest": "same"}
    return flat + [make("alibi", length, value, **same) for length, value in {32: 44.0, 128: 43.0, 256: 43.5}.items()]


def texts(drawing) -> list[str]:
    """What a reader finds written in it."""
    return [text.get_text() for text in drawing.figure.findobj(Text)]


def perplexity(rows, extended: bool = False):
    return by_length(curves.texts(rows)[0], "perplexity", "title", extended)


def test_the_same_rows_give_the_same_bytes_without_a_date(make):
    rows = [make("alibi", length, value) for length, value in ((128, 43.0), (256, 42.0))]
    first, second = perplexity(rows), perplexity(rows)
    assert first.svg() == second.svg() == first.svg()
    assert not re.search(rb"dc:date|20\d\d-\d\d-\d\d", first.svg())
    ElementTree.fromstring(first.svg())


def test_both_protocols_stand_side_by_side_with_the_training_length_and_every_name(make):
    found = texts(perplexity(study(make)))
    assert found.count("L = 128") == 2
    assert [text for text in found if text.startswith(("nonoverlapping", "same-targets"))] == [
        "nonoverlapping",
        "same-targets, block 32, minimal context 512",
    ]
    assert (found.count("alibi"), found.count("learned")) == (2, 1)
    for length in ("128", "256", "512"):
        assert length in found


def test_what_is_not_measurable_is_a_cross_at_its_length(make):
    figure = perplexity(study(make)).figure
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [line.get_xdata()[0] for line in crosses] == [256, 512]
    assert {line.get_color() for line in crosses} == {look("learned")[0]}


def test_a_perplexity_that_no_float_holds_is_an_arrow_and_spoils_no_scale(make):
    rows = [make("rope", 128, 40.0), make("rope", 256, 45.0), make("rope", 512, 1.0, loss=800.0)]
    (axes,) = perplexity(rows).figure.axes
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "^" and len(line.get_xdata()) == 1] == [
        512
    ]
    assert axes.get_ylim()[1] < 50


def test_a_reference_above_all_runs_is_not_drawn(make, reference):
    rows = [make("rope", 128, 40.0), make("rope", 256, 70.0)]
    rows += [
        reference(name, length, value)
        for name, value in (("bigram", 60.0), ("unigram", 400.0))
        for length in (128, 256)
    ]
    drawing = perplexity(rows)
    found = texts(drawing)
    assert "bigram" in found
    assert "unigram" not in found
    assert drawing.notes[-1] == "Not drawn where far from all models, or without a value: unigram."


def test_what_looks_flat_beside_the_others_is_drawn_once_more_at_its_own_scale(make, reference):
    """40 to 41 of 40 to 70 is a thirtieth; a reference, which changes as little, would only press it together."""
    rows = [make("alibi", 128, 40.0), make("alibi", 256, 41.0), make("rope", 128, 40.0), make("rope", 256, 70.0)]
    rows += [reference("bigram", length, 60.0) for length in (128, 256)]
    drawing = perplexity(rows)
    whole, closer = drawing.figure.axes
    assert closer.get_title(loc="left") == "nonoverlapping: closer"
    assert CLOSER in drawing.notes
    assert {"alibi", "rope", "bigram"} <= {text.get_text() for text in whole.findobj(Text)}
    assert {"alibi", "rope", "bigram"} & {text.get_text() for text in closer.findobj(Text)} == {"alibi"}
    assert closer.get_ylim()[1] < 42


def test_what_changes_alike_is_drawn_once(make):
    """40 to 41 and 42 to 44: a quarter and half of all that is drawn."""
    rows = [make("alibi", 128, 40.0), make("alibi", 256, 41.0), make("rope", 128, 42.0), make("rope", 256, 44.0)]
    drawing = perplexity(rows)
    assert len(drawing.figure.axes) == 1
    assert CLOSER not in drawing.notes


def test_what_looks_flat_is_judged_on_the_scale_on_which_it_is_drawn(make):
    """From 10 to 50 is a quarter of 10 to 3,000 in logarithms, and a seventy-fifth of it without."""
    rows = [make("alibi", 128, 10.0), make("alibi", 256, 50.0), make("rope", 128, 10.0), make("rope", 256, 3000.0)]
    assert len(perplexity(rows).figure.axes) == 1


def test_use_of_context_has_its_own_closer_panel(make):
    same = {"protocol": "same-targets", "block": 32, "min_context": 512, "targets_digest": "same"}
    rows = [make("alibi", length, value, **same) for length, value in {32: 44.0, 128: 43.0, 256: 43.5}.items()]
    rows += [make("rope", length, value, **same) for length, value in {32: 44.0, 128: 43.0, 256: 90.0}.items()]
    drawing = by_context(curves.texts(rows)[0], "context", "title")
    assert [axes.get_title(loc="left") for axes in drawing.figure.axes] == [
        "same-targets, block 32, minimal context 512",
        "same-targets, block 32, minimal context 512: closer",
    ]
    assert CLOSER in drawing.notes


def test_use_of_context_starts_at_a_quarter_of_the_training_length(make):
    """ln 43 - ln 44 at 128, less than nothing: the longer context helps."""
    same = next(part for part in parts(study(make)) if part.shared["min_context"])
    base, curve = use_of_context(same.lines[0])
    assert base == 32
    assert [point.value for point in curve.points] == pytest.approx([0.0, np.log(43 / 44), np.log(43.5 / 44)])


def test_without_a_quarter_the_shortest_length_is_where_it_starts_and_the_figure_says_so(make):
    rows = [row for row in study(make) if row.length != 32]
    drawing = by_context(curves.texts(rows)[0], "context", "title")
    assert any("shortest length that was: alibi (128)" in note for note in drawing.notes)


def test_lines_of_two_training_lengths_start_at_a_quarter_of_their_own_and_the_axis_says_so(make):
    """32 of 128 and 64 of 256; without the 64 that one starts at 128, which the note says of it alone."""
    same = {"protocol": "same-targets", "block": 32, "min_context": 512, "targets_digest": "same"}
    rows = [make("alibi", length, 44.0, **same) for length in (32, 128, 256)]
    rows += [make("alibi", length, 43.0, train_length=256, **same) for length in (64, 128, 256)]
    whole = by_context(curves.texts(rows)[0], "context", "title")
    assert "nats a token, less those at L/4" in texts(whole)
    assert not any("was not read" in note for note in whole.notes)
    lacking = by_context(curves.texts([row for row in rows if row.length != 64])[0], "context", "title")
    assert "nats a token, less those at L/4, or the shortest read" in texts(lacking)
    assert lacking.notes[-1].endswith("shortest length that was: alibi, L = 256 (128).")


def test_an_extended_line_has_its_checkpoint_beside_it_whichever_seeds_were_read(make):
    yarn = '{"name": "yarn", "class": "x"}'
    rows = [make("rope", length, 40.0, seed=seed) for seed in (1, 2) for length in (128, 256)]
    rows += [make("rope", length, 39.0, seed=2, extension=yarn) for length in (128, 256)]
    assert {"rope", "rope + yarn"} <= set(texts(perplexity(rows, extended=True)))


def test_several_seeds_have_the_interval_of_students_t(make):
    """Losses ln 40 + (-0.1, 0, 0.1): s = 0.1, and 4.303 x 0.1 / sqrt(3) = 0.2484 to each side."""
    rows = [make("rope", 128, 40.0 * np.exp(shift), seed=seed) for seed, shift in enumerate((-0.1, 0.0, 0.1), start=1)]
    ((point,),) = [curve.points for curve in perplexities(parts(rows)[0].lines)]
    assert (point.low, point.high) == pytest.approx((40 * np.exp(-0.2484), 40 * np.exp(0.2484)), rel=1e-3)


def test_single_seeds_without_losses_behind_them_have_no_interval(make):
    ((point,),) = [curve.points for curve in perplexities(parts([make("rope", 128, 40.0)])[0].lines)]
    assert (point.low, point.high) == (None, None)


def test_extensions_have_a_figure_of_their_own(make):
    yarn = '{"name": "yarn", "class": "x"}'
    rows = [make("rope", length, value) for length, value in ((128, 40.0), (256, 60.0))]
    rows += [make("rope", 256, 45.0, extension=yarn), make("alibi", 128, 42.0)]
    extended, plain = texts(perplexity(rows, extended=True)), texts(perplexity(rows))
    assert ("rope + yarn" in extended, "alibi" in extended) == (True, False)
    assert ("rope + yarn" in plain, "alibi" in plain) == (False, True)


def test_the_papers_curves_stand_beside_ours_with_their_source(make):
    rows = [make("alibi", length, 40.0) for length in (128, 256, 512)]
    drawing = beside_the_paper(curves.texts(rows)[0], "paper", "title")
    assert "alibi, L = 128" in texts(drawing)
    assert any("Table 5" in note and "2108.12409" in note for note in drawing.notes)


def test_cost_is_of_one_machine(make):
    rows = [make("alibi", 128, 40.0, tokens_per_second=1000.0, peak_memory=2**30)]
    rows += [make("rope", 128, 40.0, tokens_per_second=2000.0, peak_memory=2**30)]
    rows += [make("none", 128, 40.0, tokens_per_second=9000.0, peak_memory=2**30, threads=8)]
    found = texts(by_cost(curves.texts(rows)[0], "cost", "title"))
    assert "tokens a second read (cpu, 1 thread)" in found
    assert "none" not in found


def test_cost_may_come_from_bench(make):
    ratio = {"ratio": 0.8, "ratio_low": 0.7, "ratio_high": 0.9}
    bench = [{"task": "eval", "encoding": "alibi", "length": 128, "tokens_per_second": 5.0, **ratio}]
    found = texts(by_cost(curves.texts([make("alibi", 128, 40.0)])[0], "cost", "title", bench))
    assert "evaluation speed at 128, times that of none" in found


def test_a_bench_whose_rows_lack_what_is_shown_is_refused(tmp_path):
    """Of the keys named here all are there but the command that made it."""
    row = dict.fromkeys(SHOWN, 1) | {"name": "alibi", "encoding": "alibi"}
    file = tmp_path / "bench.json"
    file.write_text(json.dumps([{"rows": [row]}]))
    assert read_bench(file) == [row]
    del row["command"]
    file.write_text(json.dumps([{"rows": [row]}]))
    with pytest.raises(UserError, match="a row of it has no 'command'"):
        read_bench(file)


@pytest.mark.parametrize("text", ["[1, 2]", "null", '"x"', "[", "[]"])
def test_what_is_no_bench_is_said_in_no_words_of_python(tmp_path, text):
    file = tmp_path / "bench.json"
    file.write_text(text)
    with pytest.raises(UserError, match="holds no speeds of encodings"):
        read_bench(file)


def test_nothing_is_drawn_of_nothing():
    assert drawings([]) == []


# How it looks ---------------------------------------------------------------------------------------------------------


def test_an_encoding_keeps_its_colour_and_marker_whatever_stands_beside_it(make):
    alone = parts([make("alibi", 128, 40.0)])[0].lines
    others = parts([make(name, 128, 40.0) for name in ("rope", "alibi", "of my own")])[0].lines
    (mine,) = looks(alone).values()
    (beside,) = [one for line in others if line.label == "alibi" for one in [looks(others)[id(line)]]]
    assert mine == beside


def test_training_lengths_of_one_encoding_differ_in_their_dashes_alone(make):
    lines = parts([make("alibi", 128, 40.0), make("alibi", 128, 41.0, train_length=64)])[0].lines
    shorter, longer = (looks(lines)[id(line)] for line in sorted(lines, key=lambda line: line.train_length))
    assert (shorter.colour, shorter.marker) == (longer.colour, longer.marker)
    assert shorter.dashes == "-" != longer.dashes


def test_a_label_of_a_users_own_has_a_look_and_no_two_shipped_ones_the_same():
    shipped = [look(name) for name in choices("encoding")]
    assert len(set(shipped)) == len(shipped)
    assert look("of my own")[0] in COLOURS


def test_the_encodings_of_the_shipped_study_differ_in_colour():
    names = ("none", "sinusoidal", "learned", "rope", "alibi", "t5")
    assert len({look(name)[0] for name in names}) == len(names)


def linear(colour: str) -> np.ndarray:
    """Of a hexadecimal colour, as light."""
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """As WCAG 2 has it."""
    low, high = sorted(float(linear(one) @ [0.2126, 0.7152, 0.0722]) for one in (a, b))
    return (high + 0.05) / (low + 0.05)


# Machado, Oliveira & Fernandes 2009, https://doi.org/10.1109/TVCG.2009.113, severity 1.
SEEN = {
    "all": (1, 0, 0, 0, 1, 0, 0, 0, 1),
    "no red": (0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998),
    "no green": (0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881),
    "no blue": (1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900),
}


def lab(light: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(
        light, 0, 1
    )
    f = np.cbrt(xyz / np.array([0.9505, 1, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("cones", SEEN)
@pytest.mark.parametrize(("colours", "ground"), [(list(COLOURS), GROUND), (list(COLOURS.values()), DARK[GROUND])])
def test_colours_are_told_apart_by_every_kind_of_eye(cones, colours, ground):
    """20 in CIELAB; 2 is what can just be seen."""
    seen = [lab(np.reshape(SEEN[cones], (3, 3)) @ linear(colour)) for colour in colours]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 20
    assert min(contrast(colour, ground) for colour in colours) >= 3


def test_names_at_the_ends_of_curves_do_not_cover_each_other():
    """Four ends in one place, 0.1 apart, about their middle."""
    assert spread([0.5, 0.5, 0.5, 0.5], 0.1) == pytest.approx([0.35, 0.45, 0.55, 0.65])
    assert spread([0.0, 0.9], 0.1) == [0.0, 0.9]
