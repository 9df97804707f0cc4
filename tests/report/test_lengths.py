"""The length table: every number with its uncertainty and count, every absence with its reason."""

from __future__ import annotations

import json
import math
import re

from posbench.report.lengths import length_tables, perplexity_text, ratio_text
from posbench.report.tables import render


def line_of(text: str, label: str, which: int = 0) -> list[str]:
    """The cells of the `which`-th printed row of a label."""
    lines = [line for line in text.splitlines() if line.startswith(label + " ")]
    return re.split(r"\s{2,}", lines[which].strip())


def study(make, reference):
    rows = [make(name, length, value) for name, values in STUDY.items() for length, value in values.items()]
    rows += [
        make("sinusoidal", 128, 60.0, train_length=256, setup="6f"),
        make("sinusoidal", 256, 45.0, train_length=256, setup="6f"),
    ]
    return [*rows, *(reference("bigram", length, 68.0) for length in (128, 256))]


STUDY = {
    "none": {128: 60.0, 256: 61.0},
    "learned": {128: 50.0, 256: None},
    "alibi": {128: 43.4, 256: 42.4},
}


def test_parts_of_the_same_name_say_how_many_targets_each_has(make):
    rows = [make("none", 128, 60.0), make("none", 128, 61.0, targets_digest="other", targets=64)]
    rows.append(make("none", 128, 62.0, split="validation"))
    assert [one.title.split(", ", 1)[1] for one in length_tables(rows)] == [
        f"nonoverlapping: {of}"
        for of in (
            f"test split of {rows[0].corpus}, tokenizer {rows[0].tokenizer} (2,048), {rows[0].targets:,} targets",
            f"test split of {rows[0].corpus}, tokenizer {rows[0].tokenizer} (2,048), 64 targets",
            f"validation split of {rows[0].corpus}, tokenizer {rows[0].tokenizer} (2,048)",
        )
    ]


def test_parts_of_the_same_name_and_number_of_targets_say_which_set_it_is(make):
    """And of the same set of another text, which its name does not tell, that text."""
    ones = [{}, {"targets_digest": "d9e8f7a6b5c4"}, {"targets_digest": "d9e8f7a6b5c4", "corpus_hash": "c1"}]
    assert [
        one.title.split("(2,048), ")[1] for one in length_tables([make("rope", 128, 40.0, **one) for one in ones])
    ] == [
        "98,304 targets, set of targets 5e70f7a4",
        "98,304 targets, set of targets d9e8f7a6, corpus c0",
        "98,304 targets, set of targets d9e8f7a6, corpus c1",
    ]


def test_the_training_length_is_marked_in_each_line(make, reference):
    text = render(length_tables(study(make, reference)))
    assert line_of(text, "alibi") == ["alibi", "128", "1", "43.40 ±0.43*", "42.40 ±0.42"]
    assert line_of(text, "sinusoidal") == ["sinusoidal", "256", "1", "60.00 ±0.60", "45.00 ±0.45*"]


def test_sections_are_perplexity_ratio_and_gain_over_none(make, reference):
    """Bits per byte are loss / 2 here, so alibi gains ln(60 / 43.4) / 2 = 0.162 over none at 128."""
    text = render(length_tables(study(make, reference)))
    assert line_of(text, "alibi", 1) == ["alibi", "128", "1", "1.000*", "0.977"]
    gain = [f"{math.log(60 / 43.4) / 2:+.3f}*", f"{math.log(61 / 42.4) / 2:+.3f}"]
    assert line_of(text, "alibi", 2) == ["alibi", "128", "1", *gain]


def test_a_gain_is_only_over_none_trained_alike(make, reference):
    (table,) = length_tables(study(make, reference))
    gains = {(r["label"], r["train_length"]): r["gain_bits_per_byte"] for r in table.records if r["length"] == 128}
    assert gains["sinusoidal", 256] is None
    assert gains["none", 128] is None
    assert gains["alibi", 128] > 0


def test_a_gain_has_its_deviation_over_the_seeds_and_says_of_how_many_it_is(make):
    rows = [make("none", 128, value, seed=seed) for seed, value in ((1, 60.0), (2, 66.0))]
    rows += [make("fox", 128, 40.0, seed=seed) for seed in (1, 2, 3)]
    text = render(length_tables(rows))
    mean, deviation = math.log(60 * 66 / 40**2) / 4, math.log(66 / 60) / 2 / math.sqrt(2)
    assert line_of(text, "fox", 1)[3] == f"{mean:+.3f} ±{deviation:.3f} of 2*"


def test_an_absent_number_shows_its_reason_and_lets_the_table_stand(make):
    rows = [make("learned", 128, 50.0), make("learned", 256, None, reason="learned has positions for 128 inputs")]
    text = render(length_tables([*rows, make("rope", 128, 40.0)]))
    assert line_of(text, "learned")[3:5] == ["50.00 ±0.50*", "n/a (a)"]
    assert line_of(text, "rope")[3:5] == ["40.00 ±0.40*", "-"]
    assert "n/a (a): learned has positions for 128 inputs" in text


def test_an_absent_number_shows_its_reason_in_each_section(make, reference):
    text = render(length_tables(study(make, reference)))
    assert [line_of(text, "learned", which)[4] for which in range(3)] == ["n/a (a)"] * 3


def test_the_number_of_targets_is_a_note_and_stands_in_the_records(make):
    (table,) = length_tables([make("rope", 128, 40.0)])
    assert "98,304 targets of 5 documents at every length." in table.notes
    assert "targets" not in [column.key for column in table.columns]
    assert table.records[0]["targets"] == 98_304


def test_a_gain_past_the_training_length_is_said_to_hold_what_none_loses(make):
    """alibi stays at 40; none goes from 60 to 80, so that alibi gains more, or from 60 to 58."""
    said = {}
    for past in (80.0, 58.0):
        rows = [make("alibi", 128, 40.0), make("alibi", 256, 40.0), make("none", 128, 60.0), make("none", 256, past)]
        said[past] = "also grow because `none` gets worse there" in " ".join(length_tables(rows)[0].notes)
    assert said == {80.0: True, 58.0: False}


def test_the_order_of_the_rows_is_said_where_there_are_several(make):
    note = "Sorted by perplexity at 128, lowest first; what has none there stands last."
    assert note not in length_tables([make("rope", 128, 40.0)])[0].notes
    assert note in length_tables([make("rope", 128, 40.0), make("alibi", 128, 41.0)])[0].notes


def test_references_stand_at_the_bottom_and_an_undertrained_run_is_marked(make, reference):
    text = render(length_tables([make("rope", 128, 70.0), reference("bigram", 128, 68.0)]))
    labels = [line.split("  ")[0] for line in text.splitlines() if "±0" in line]
    assert labels == ["rope †", "bigram"]
    assert "† undertrained: at L not below the bigram" in text


def test_every_table_says_heads_and_head_width(make):
    assert "heads x head width 4 x 32" in render(length_tables([make("alibi", 128, 40.0)]))
    two = [make("alibi", 128, 40.0), make("alibi", 128, 30.0, heads=8, head_dim=16, recipe="m")]
    text = render(length_tables(two))
    assert "nano, 4 x 32" in text
    assert "nano, 8 x 16" in text


def test_rows_of_different_targets_come_in_parts_with_the_reason(make):
    tables = length_tables(
        [make("rope", 128, 40.0), make("alibi", 128, 40.0, targets_digest="other", protocol="sliding")]
    )
    assert [table.title.startswith(f"Part {n} of 2, ") for n, table in enumerate(tables, start=1)] == [True, True]
    assert "differ in protocol and set of targets" in tables[0].notes[-1]


def test_several_seeds_show_their_count_also_where_one_is_missing(make):
    rows = [make("rope", 128, 40.0, seed=seed) for seed in (1, 2, 3)]
    rows += [make("rope", 256, 44.0, seed=1), make("rope", 256, 44.0, seed=2)]
    assert line_of(render(length_tables(rows)), "rope")[2:5] == ["3", "40.00 ±0.00*", "44.00 ±0.00 of 2"]


def test_each_printed_number_is_a_rounding_of_the_one_in_the_json(make, reference):
    tables = length_tables(study(make, reference))
    text = render(tables)
    for record in json.loads(render(tables, "json"))[0]["rows"]:
        assert record["targets"] == 98_304
        if record["perplexity"] is not None:
            assert perplexity_text(record["perplexity"], record["perplexity_error"]) in text


def test_large_perplexities_stay_readable():
    assert perplexity_text(43.404, 0.5204) == "43.40 ±0.52"
    assert perplexity_text(12345.67, 8.9) == "12345.7 ±8.9"
    assert perplexity_text(1e9) == "1e+09"
    assert ratio_text(0.9771, 0.0042) == "0.977 ±0.004"


def test_a_perplexity_that_no_float_holds_is_inf_and_its_ratio_too(make):
    """e^800 over e^4 is past the largest float, e^709; e^30 = 1.07 x 10^13, over e^4 e^26 = 1.96 x 10^11."""
    rows = [make("rope", 128, 1.0, loss=4.0), make("rope", 256, 1.0, loss=30.0), make("rope", 512, 1.0, loss=800.0)]
    tables = length_tables(rows)
    text = render(tables)
    assert line_of(text, "rope")[3:6] == ["54.60 ±0.55*", "1.07e+13", "inf"]
    assert line_of(text, "rope", 1)[3:6] == ["1.000*", "1.96e+11", "inf"]
    assert [row["perplexity"] for row in json.loads(render(tables, "json"))[0]["rows"]][2] is None
    assert ",inf,,inf,," in render(tables, "csv")


RECORD = dict.fromkeys(("hash", "format", "ids_digest", "steps")) | {
    **{key: {} for key in ("identity", "config", "decisions")},
    "corpus": {"name": "sotu", "fingerprint": ""},
    "tokenizer": {"fingerprint": "", "vocab_size": 2048},
    "versions": {"torch": "2.13.0"},
}


def test_what_the_record_of_a_run_says_of_its_encoding_stands_under_the_table(make, tmp_path):
    """Not where its run is no more, nor under that of a run that says nothing or is of before."""
    says = {"t5": {"caveat": "buckets 27-31 are never trained."}, "rope": {"caveat": ""}, "none": {}}
    for name, caveat in says.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(RECORD | caveat))
    rows = [make(name, 128, 40.0, path=tmp_path / name / "rows" / "x.json") for name in [*says, "alibi"]]
    notes = [note for note in length_tables(rows)[0].notes if " at L = " in note]
    assert notes == ["t5 at L = 128: buckets 27-31 are never trained."]


def test_the_table_says_what_stands_before_a_window(make):
    assert "One end token begins the text and is not scored; no window has a prefix of its own." in render(
        length_tables([make("rope", 128, 40.0)])
    )


def test_the_lowest_of_each_column_is_marked_among_runs_that_were_measured(make, reference):
    """Nothing to choose from is no best one, and what a reference is below is none either."""
    rows = [*study(make, reference), make("alibi", 512, 41.0), make("alibi", 1024, 41.0), make("none", 1024, 60.0)]
    (table,) = length_tables([*rows, reference("bigram", 1024, 40.0)])
    best = {(row["label"], row["length"]) for row in table.records if row["best"]}
    assert best == {("alibi", 128), ("alibi", 256)}
