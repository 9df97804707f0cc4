"""What a reader sees of a claim: the verdict, the numbers of these runs, the paper's, and what would contradict it."""

from __future__ import annotations

import json
from typing import Any

import made
import pytest

from posbench.errors import UserError
from posbench.report.claims import claims_table, judge, parse, short_table
from posbench.report.tables import FORMATS, render


def claim(**changes: Any) -> dict[str, Any]:
    return made.claim(**{"relation": "not-above", "margin": 0.01} | changes)


def lines(table) -> list[str]:
    return [" ".join(line.split()) for line in render(table, width=1000).splitlines()]


def test_one_seed_is_never_said_to_support(make):
    found = judge(parse([claim()]), [make("alibi", 256, 40.0), make("alibi", 128, 50.0)])
    text = render(claims_table(found))
    assert "seen" in text
    assert "supported" not in text


def test_both_numbers_their_ratio_and_the_papers_stand_in_the_table(make):
    """21.70 / 23.98 = 0.905 in Table 5 of the paper, trained at 128."""
    table = claims_table(judge(parse([claim()]), [make("alibi", 256, 45.0), make("alibi", 128, 50.0)]))
    found = lines(table)
    assert "seen: ALiBi at 2 L (nonoverlapping, within 1 %)" in found
    assert "these runs alibi 128 > 256 45.00 ±0.45 alibi 128 > 128 50.00 ±0.50 0.900" in found
    assert "Press, Table 5 alibi 128 > 256 21.70 alibi 128 > 128 23.98 0.905" in found
    assert "contradicted by > 1.010" in found
    (record,) = json.loads(render(table, "json"))[0]["rows"]
    assert record["ratio"] == pytest.approx(0.9)
    assert record["paper_source"].startswith("Press et al. 2022, Table 5, https://arxiv.org/abs/2108.12409v2 (WikiText")
    source = f"{record['paper_source']}; {record['paper_model']}."
    assert source in table.notes
    assert record["paper_model"] == "16 layers x 1024, 8 heads, 247M"


def test_a_question_of_ones_own_stands_there_without_a_paper(make):
    own = claim()
    del own["paper"]
    rows = [make("alibi", 256, 45.0), make("alibi", 128, 50.0)]
    table, short = claims_table(judge(parse([own]), rows)), short_table(judge(parse([own]), rows))
    assert table.title == "Statements, held against these runs"
    assert [line.split()[0] for line in lines(table) if line.startswith(("these", "Press", "contradicted"))] == [
        "these",
        "contradicted",
    ]
    assert json.loads(render(table, "json"))[0]["rows"][0]["paper_source"] is None
    assert (short.title, [column.title for column in short.columns]) == ("Statements", ["statement", "", "these runs"])
    mixed = short_table(judge(parse([own, claim(name="seen elsewhere")]), rows))
    assert (mixed.title, mixed.columns[-1].title) == ("Statements", "the paper")
    assert [row[-1].text for row in mixed.sections[0].rows] == ["", "0.905 (Press, Table 5)"]


def test_nearest_stands_beside_a_paper_alone():
    own = claim(nearest=claim()["paper"])
    del own["paper"]
    with pytest.raises(UserError, match="'nearest' stands beside a 'paper' alone"):
        parse([own])


def test_seeds_and_p_value_stand_in_the_heading_and_the_interval_beside_the_ratio(make):
    rows = [make("alibi", 128, 50.0, seed=seed) for seed in range(3)]
    rows += [make("alibi", 256, 45.0 + seed / 10, seed=seed) for seed in range(3)]
    found = lines(claims_table(judge(parse([claim(), claim(name="main", primary=True)]), rows)))
    headings = [line for line in found if line.startswith("supported: ")]
    first = "supported: main (nonoverlapping, within 1 %, primary); 3 seeds, p < 0.001 after correction"
    assert [heading.startswith(first) for heading in headings] == [True, False], "the primary ones come first"
    assert any(line.startswith("supported: ALiBi at 2 L (nonoverlapping, within 1 %); 3 seeds, p") for line in found)
    assert any(line.endswith("0.902 0.897 to 0.907") for line in found)


def test_what_was_printed_nearest_to_this_length_stands_below_where_it_was_seen(make):
    """ALiBi beats sinusoidal at 512, and at 128, the length nearest to this one, it does not: 23.98 against 23.81."""
    one = claim(
        left={"encoding": "alibi", "train_length": 128, "at": "1L"},
        right={"encoding": "sinusoidal", "at": "1L"},
        relation="less",
        margin=0,
        paper={"table": "Table 5", "left": ["alibi", 512, 512], "right": ["sinusoidal", 512, 512]},
        nearest={"table": "Table 5", "left": ["alibi", 128, 128], "right": ["sinusoidal", 128, 128]},
    )
    found = lines(claims_table(judge(parse([one]), [])))
    assert "Press, Table 5 alibi 512 > 512 19.73 sinusoidal 512 > 512 20.05 0.984" in found
    assert "Press, Table 5, nearest L alibi 128 > 128 23.98 sinusoidal 128 > 128 23.81 1.007" in found
    (row,) = short_table(judge(parse([one]), [])).sections[0].rows
    assert row[-1].text == "0.984 (Press, Table 5), L = 512; at L = 128: 1.007 (Press, Table 5)"


def test_what_was_not_measured_stays_in_the_table_with_the_reason(make):
    found = lines(claims_table(judge(parse([claim()]), [make("alibi", 128, 50.0)])))
    reason = "there is no row of alibi trained at 128 and read at 256 on the same targets"
    assert f"not measured: ALiBi at 2 L (nonoverlapping, within 1 %); {reason}" in found


def test_a_failure_is_a_length_and_a_multiple_of_l(make):
    one = claim(
        left={"encoding": "rope", "train_length": 128},
        relation="fails-by",
        right={"at": "L+16"},
        protocol="same-targets",
        margin=0.0,
        paper={"table": "Table 2", "left": ["rope", 512]},
    )
    rows = [make("rope", n, p, protocol="same-targets") for n, p in ((128, 50.0), (136, 50.0), (144, 60.0))]
    found = lines(claims_table(judge(parse([one]), rows)))
    assert "these runs rope 128 fails at 144 (1.12 x) by 144 (1.12 x) 1.200 at 144" in found
    assert "Press, Table 2 rope 512 best at 712 (1.39 x) above L from 812 (1.59 x)" in found
    assert "contradicted by no failure by 144: within 1 % of L" in found


def test_a_verdict_on_undertrained_runs_is_marked(make, reference):
    """At L the bigram has 45, below ALiBi's 50."""
    rows = [make("alibi", 256, 45.0), make("alibi", 128, 50.0), reference("bigram", 128, 45.0)]
    table, short = (of(judge(parse([claim()]), rows)) for of in (claims_table, short_table))
    assert table.sections[0].title.startswith("seen †: ALiBi at 2 L")
    assert short.sections[0].rows[0][1].text == "seen †"
    assert all(any("† one of its lines is undertrained" in note for note in one.notes) for one in (table, short))
    assert table.records[0]["undertrained"]
    trained = claims_table(judge(parse([claim()]), [*rows[:2], reference("bigram", 128, 51.0)]))
    assert "†" not in render(trained)


def test_notes_speak_of_a_paper_only_where_there_is_one(make):
    own = claim()
    del own["paper"]
    rows = [make("alibi", 256, 45.0), make("alibi", 128, 50.0)]
    assert "paper" not in render(claims_table(judge(parse([own]), rows)))
    assert "another model than the paper's" in render(claims_table(judge(parse([claim()]), rows)))


def test_every_format_holds_every_claim(make):
    gap = claim(
        name="ALiBi at 2 L, its gap",
        left={"encoding": "alibi", "train_length": 128, "at": "2L", "minus": {"protocol": "sliding"}},
        right={"at": "1L", "minus": {"protocol": "sliding"}},
        paper={"table": "Table 5", "minus": "Table 15", "left": ["alibi", 512, 1024], "right": ["alibi", 512, 512]},
    )
    rows = [make("alibi", n, 50.0, protocol=p) for n in (128, 256) for p in ("nonoverlapping", "sliding")]
    table = claims_table(judge(parse([claim(), gap]), rows))
    for form in FORMATS:
        assert render(table, form).count("ALiBi at 2 L") == 2
    assert "Press, Table 5 - Table 15" in render(table)
