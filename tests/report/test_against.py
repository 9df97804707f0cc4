"""Every line against one of them: paired ratios, an interval only where there is one."""

from __future__ import annotations

import numpy as np
import pytest

from posbench.errors import UserError
from posbench.report.against import against_tables
from posbench.report.tables import render


def test_a_ratio_is_of_the_same_length_and_has_no_interval_of_single_seeds(make):
    rows = [make("alibi", 128, 40.0), make("alibi", 256, 50.0), make("rope", 128, 44.0), make("rope", 256, 100.0)]
    (table,) = against_tables(rows, "alibi")
    assert {record["length"]: record["ratio"] for record in table.records} == pytest.approx({128: 1.1, 256: 2.0})
    assert [record["label"] for record in table.records] == ["rope", "rope"]
    assert "1 seed each: no interval, which takes 3; another seed may turn it round." in render(table)
    assert "[" not in render(table).split("\n\n")[0]


def test_three_seeds_have_students_interval_of_the_paired_differences(make):
    """ln 1.1 + (-0.01, 0, 0.01): 4.303 x 0.01 / sqrt(3) = 0.02484 to each side."""
    rows = [make("alibi", 128, 40.0, seed=seed) for seed in (1, 2, 3)]
    rows += [make("rope", 128, 44.0 * float(np.exp(0.01 * (seed - 2))), seed=seed) for seed in (1, 2, 3)]
    (record,) = against_tables(rows, "alibi")[0].records
    assert (record["ratio_low"], record["ratio_high"]) == pytest.approx(
        (1.1 * np.exp(-0.02484), 1.1 * np.exp(0.02484)), rel=1e-4
    )
    assert f"[{record['ratio_low']:.3f}, {record['ratio_high']:.3f}]" in render(against_tables(rows, "alibi"))


def test_each_stands_against_the_one_of_its_own_training_length(make):
    rows = [make("alibi", 256, 40.0), make("alibi", 256, 50.0, train_length=256)]
    rows += [make("rope", 256, 60.0), make("rope", 256, 60.0, train_length=256)]
    found = {record["train_length"]: record["ratio"] for record in against_tables(rows, "alibi")[0].records}
    assert found == pytest.approx({128: 1.5, 256: 1.2})


def test_an_extension_stands_against_the_encoding_as_it_was_trained(make):
    yarn = '{"name": "yarn", "class": "x"}'
    rows = [make("rope", 256, 60.0), make("rope", 256, 45.0, extension=yarn)]
    (record,) = against_tables(rows, "rope")[0].records
    assert (record["label"], record["ratio"]) == ("rope + yarn", pytest.approx(0.75))


def test_the_best_is_bold_where_it_is_better(make):
    rows = [make(name, 128, value) for name, value in (("alibi", 40.0), ("rope", 38.0), ("none", 60.0))]
    assert "**0.950**" in render(against_tables(rows, "alibi"), "md")
    assert "**" not in render(against_tables(rows, "rope"), "md").split("\n", 1)[1]


def test_what_is_not_measurable_stays_marked(make):
    rows = [make("alibi", 128, 40.0), make("alibi", 256, 40.0), make("learned", 128, 50.0), make("learned", 256, None)]
    text = render(against_tables(rows, "alibi"))
    assert "n/a (a)\n" in text
    assert "n/a (a): it does not fit" in text


def test_where_the_other_was_not_measured_stands_its_reason(make):
    rows = [make("alibi", 128, 40.0), make("alibi", 256, 40.0), make("learned", 128, 50.0), make("learned", 256, None)]
    text = render(against_tables(rows, "learned"))
    assert next(line for line in text.splitlines() if line.startswith("alibi")).endswith("0.800  n/a (a)")


def test_the_seeds_there_are_and_those_an_interval_takes_are_said(make):
    rows = [make(name, 128, value, seed=seed) for name, value in (("alibi", 40.0), ("rope", 44.0)) for seed in (1, 2)]
    rows.append(make("none", 128, 50.0))
    text = render(against_tables(rows, "alibi"), width=200)
    assert "1 or 2 seeds each: no interval, which takes 3" in text


def test_an_unknown_one_names_those_there_are(make):
    with pytest.raises(UserError, match="Did you mean 'alibi'"):
        against_tables([make("alibi", 128, 40.0)], "alib")
