"""A statement is held against two numbers of one part, and never becomes more than seen or not seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posbench.errors import UserError
from posbench.report.claims import claims_table, judge, parse
from posbench.report.tables import render


def claim(**changes: Any) -> dict[str, Any]:
    """ALiBi trained at 128 is at 256 not above its value at 128, by at most 1 %."""
    return {
        "name": "ALiBi at 2 L",
        "left": {"encoding": "alibi", "train_length": 128, "at": "2L"},
        "relation": "not-above",
        "right": {"encoding": "alibi", "train_length": 128, "at": 128},
        "margin": 0.01,
        "protocol": "nonoverlapping",
        "paper": {"table": "Table 5", "left": ["alibi", 128, 256], "right": ["alibi", 128, 128]},
    } | changes


def verdict(make, left: float | None, right: float, **changes: Any) -> str:
    (found,) = judge(parse([claim(**changes)]), [make("alibi", 256, left), make("alibi", 128, right)])
    return found.text


@pytest.mark.parametrize(
    ("relation", "left", "expected"),
    [
        ("less", 49.99, "seen"),
        ("less", 50.0, "not seen"),
        ("not-above", 50.49, "seen"),
        ("not-above", 50.51, "not seen"),
        ("not-above", 10.0, "seen"),
        ("equal", 50.49, "seen"),
        ("equal", 50.51, "not seen"),
        # The margin is one of ratios: 1 / 1.01 is as far from 1 as 1.01.
        ("equal", 49.51, "seen"),
        ("equal", 49.49, "not seen"),
    ],
)
def test_a_relation_is_seen_or_not_by_the_two_values(make, relation, left, expected):
    """Right 50, margin 1 %: the border is 50.5, and 50 / 1.01 = 49.505 below."""
    assert verdict(make, left, 50.0, relation=relation) == expected


def test_losses_far_apart_are_compared_all_the_same(make):
    """e^800 times as much, and as little: neither ratio is a float."""
    rows = [make("alibi", 256, 1.0, loss=801.0), make("alibi", 128, 1.0, loss=1.0)]
    swapped = [make("alibi", 256, 1.0, loss=1.0), make("alibi", 128, 1.0, loss=801.0)]
    found = [judge(parse([claim(relation="less")]), some)[0] for some in (rows, swapped)]
    assert [one.text for one in found] == ["not seen", "seen"]
    assert "inf" in render(claims_table(found))


def test_no_verdict_says_supported(make):
    text = render(claims_table(judge(parse([claim()]), [make("alibi", 256, 40.0), make("alibi", 128, 50.0)])))
    assert "seen" in text
    assert "supported" not in text


def test_both_numbers_their_ratio_and_the_papers_stand_in_the_table(make):
    """21.70 / 23.98 = 0.905 in Table 5 of the paper, trained at 128."""
    table = claims_table(judge(parse([claim()]), [make("alibi", 256, 45.0), make("alibi", 128, 50.0)]))
    text = render(table)
    found = [" ".join(line.split()) for line in text.splitlines()]
    assert "seen: ALiBi at 2 L (nonoverlapping, within 1%)" in found
    assert "these runs alibi 128 > 256 45.00 ±0.45 alibi 128 > 128 50.00 ±0.50 0.900" in found
    assert "Table 5 alibi 128 > 256 21.70 alibi 128 > 128 23.98 0.905" in found
    (record,) = json.loads(render(table, "json"))[0]["rows"]
    assert record["ratio"] == pytest.approx(0.9)
    assert record["source"].startswith("Press et al. 2022, Table 5, https://arxiv.org/abs/2108.12409v2")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("alibi", 128, 50.0, {})], "there is no row of alibi trained at 128 and read at 256 on the same targets"),
        ([("alibi", 128, 50.0, {}), ("alibi", 256, None, {"reason": "too long"})], "read at 256: too long"),
        ([("alibi", 128, 50.0, {}), ("alibi", 256, 45.0, {"targets_digest": "o"})], "on the same targets"),
        ([("alibi", 128, 50.0, {"seed": 1}), ("alibi", 256, 45.0, {"seed": 2})], "no seed in common"),
        ([("alibi", 128, 50.0, {"protocol": "sliding"})], "nothing was read with nonoverlapping"),
        (
            [("alibi", n, 50.0, {"recipe": r, "train_tokens": t}) for n in (128, 256) for r, t in (("a", 1), ("b", 2))],
            "which alibi trained at 128 is meant",
        ),
    ],
)
def test_what_no_pair_of_rows_answers_is_not_measured_with_the_reason(make, rows, reason):
    found = judge(parse([claim()]), [make(name, length, value, **other) for name, length, value, other in rows])
    assert found[0].text == "not measured"
    assert reason in found[0].reason
    heading = f"not measured: ALiBi at 2 L (nonoverlapping, within 1%); {found[0].reason}"
    assert heading in render(claims_table(found), width=1000)


def test_a_claim_compares_encodings_of_different_training_lengths(make):
    other = claim(
        left={"encoding": "alibi", "train_length": 128, "at": 256},
        relation="less",
        right={"encoding": "sinusoidal", "train_length": 256, "at": "1L"},
        paper={"table": "Table 5", "left": ["alibi", 128, 256], "right": ["sinusoidal", 256, 256]},
    )
    rows = [make("alibi", 256, 45.0), make("sinusoidal", 256, 44.0, train_length=256)]
    (found,) = judge(parse([other]), rows)
    assert (found.text, found.ratio.error) == ("not seen", None), "two single runs have no interval"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relation": "lesss"}, "Did you mean 'less'"),
        ({"margine": 0.1}, "Did you mean 'margin'"),
        ({"left": {"encoding": "alibi", "train_length": 128, "at": "2x"}}, "neither a multiple such as 2L"),
        ({"left": {"encoding": "alibi"}}, "cannot be read"),
        ({"paper": {"table": "Table 5", "left": ["alibi", 128, 257], "right": ["alibi", 128, 128]}}, "Table 5 of the"),
    ],
)
def test_a_claim_that_cannot_be_held_against_rows_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        parse([claim(**changes)])
