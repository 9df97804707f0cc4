"""What a study's YAML may say, and what the shipped ones do."""

from __future__ import annotations

import math
from typing import Any

import made
import pytest

from posbench import evaluate, study
from posbench.errors import UserError
from posbench.report.claims import parse
from posbench.report.claims.claim import PROTOCOLS, sources
from posbench.report.claims.comparison import Comparison
from posbench.report.claims.failure import Failure
from posbench.report.claims.source import Curve, readings
from posbench.search_path import files
from posbench.statistics import Estimate

SHIPPED = [(name, claim) for name in files("study") for claim in study.load(name).claims]


ALIBI: dict[str, Any] = {"encoding": "alibi", "train_length": 128, "at": "2L"}

FAILURE: dict[str, Any] = {
    "left": {"encoding": "rope", "train_length": 128},
    "relation": "fails-by",
    "right": {"at": "L+64"},
    "paper": {"table": "Table 2", "left": ["rope", 512]},
}


def test_what_the_right_does_not_say_is_as_on_the_left():
    (claim,) = parse([made.claim()])
    assert (claim.right.encoding, claim.right.train_length, claim.right.length) == ("alibi", 128, 128)
    (other,) = parse([made.claim(right={"encoding": "rope", "at": 300})])
    assert (other.right.encoding, other.right.length, other.right.protocol) == ("rope", 300, "nonoverlapping")
    (same,) = parse([made.claim(left=ALIBI | {"extension": "yarn"}, right={"encoding": "rope", "train_length": 64})])
    assert (same.right.length, same.right.extension) == (256, None), "2 L of the left, in tokens"


def test_equal_has_a_margin_of_one_percent_unless_it_says_another():
    assert parse([made.claim(relation="equal")])[0].margin == 0.01
    assert parse([made.claim(relation="equal", margin=0.05)])[0].margin == 0.05
    assert parse([made.claim()])[0].margin == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 5}, "'name' is 5, which is no text"),
        ({"name": None}, "'name' is None, which is no text"),
        ({"note": ["x"]}, "'note' is .*, which is no text"),
        ({"relation": ["less"]}, "'relation' is .*, which is no text"),
        ({"left": {"encoding": ["alibi"], "train_length": 128, "at": "2L"}}, "'encoding' is .*, which is no text"),
        ({"right": {"at": "1L", "extension": 5}}, "'extension' is 5, which is no text"),
        ({"right": {"at": "1L", "stride": [5]}}, "'stride' is .*, no whole number"),
        (
            {"left": {"encoding": "alibi", "train_length": math.inf, "at": "2L"}},
            "'train_length' is inf, no whole number",
        ),
        ({"left": 5}, "cannot be read: 5 is no side, which is a mapping of keys"),
        (FAILURE | {"left": 5}, "cannot be read: 5 is no side"),
        ({"right": ["1L"]}, "is no side"),
        ({"paper": "Table 5"}, "Table 5 is no source"),
        (
            {"paper": {"table": "Table 5", "left": 5, "right": 6}},
            r"'left' of a source is 5, not \[encoding, training length",
        ),
        ({"relation": "lesss"}, "Did you mean 'less'"),
        ({"protocol": "slidin"}, "Did you mean 'sliding'"),
        ({"margine": 0.1}, "In the claim 'ALiBi at 2 L': There is no key of a claim 'margine'. Did you mean 'margin'"),
        ({"left": {"encodng": "alibi"}}, "Did you mean 'encoding'"),
        ({"left": {"encoding": "alibi", "train_length": 128, "at": "2x"}}, "neither a multiple such as 2L"),
        ({"left": {"encoding": "alibi"}}, "cannot be read: its left side has no 'train_length'"),
        ({"primary": "yes"}, "neither true nor false"),
        ({"protocol": "training", "primary": True}, "no primary claim"),
        ({"protocol": "training", "right": {"at": "1L", "protocol": "sliding"}}, "no protocol 'sliding'"),
        ({"relation": "equal", "margin": 0}, "no share of the perplexity"),
        ({"margin": 5}, "no share of the perplexity"),
        ({"relation": "equal", "margin": "0.01"}, "'margin' is 0.01, no share"),
        ({"relation": "equal", "margin": True}, "'margin' is True, no share"),
        ({"relation": "equal", "margin": [0.01]}, r"'margin' is \[0.01\], no share"),
        ({"relation": "equal", "margin": None}, "'margin' is None, no share"),
        ({"relation": "equal", "margin": 10**400}, "no share"),
        ({"relation": "equal", "margin": math.nan}, "'margin' is nan, no share"),
        ({"name": " "}, "'name' is ' ', which is no name"),
        ({"name": "a\nb"}, "which is no name"),
        ({"right": {"at": "1L", "extension": ""}}, "'extension' is '', which is no name"),
        ({"left": ALIBI | {"encoding": "al\tibi"}}, "'encoding' is 'al\\\\tibi', which is no name"),
        ({"left": ALIBI | {"at": "\N{ARABIC-INDIC DIGIT TWO}L"}}, "neither a multiple such as 2L"),
        ({"paper": {"table": "Table 5", "left": ["alibi", 128, 257], "right": ["alibi", 128, 128]}}, "Table 5 of the"),
        ({"paper": {"tabel": "Table 5"}}, "Did you mean 'table'"),
        ({"paper": None}, "None is no source"),
        (FAILURE | {"right": {"at": "1L"}}, "no length past L"),
        ({"margin": 0.01}, "'less' has no margin"),
        ({"relation": "equal", "margin": 1e-300}, "no share of the perplexity"),
        ({"right": {"at": "2L"}}, "its right side is its left one"),
        ({"left": ALIBI | {"minus": {"protocol": "sliding"}}}, "'minus' stands on one side alone"),
        ({"left": ALIBI | {"minus": {}}, "right": {"at": "1L", "minus": {}}}, "is taken off itself"),
        ({"left": ALIBI | {"stride": 64}}, "'stride' is 64, and sliding alone has one"),
        ({"left": ALIBI | {"block": 0}, "protocol": "same-targets"}, "'block' is 0"),
        ({"left": ALIBI | {"at": "0L"}}, "a length that is not from 1 to"),
        ({"left": ALIBI | {"train_length": -128}}, "a length that is not from 1 to"),
        ({"left": ALIBI | {"at": "99999999999L"}}, "a length that is not from 1 to"),
        (FAILURE | {"right": {"at": "2L", "encoding": "alibi"}}, "no length past L alone"),
        (FAILURE | {"paper": {"table": "Table 2", "left": ["rope", 511]}}, "Table 2 of the paper has no rope"),
    ],
)
def test_a_claim_that_cannot_be_held_against_rows_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        parse([made.claim(**changes)])


def test_at_most_six_claims_are_primary():
    seven = [made.claim(name=name, primary=True) for name in "abcdefg"]
    assert len(parse([*seven[:6], made.claim()])) == 7
    with pytest.raises(UserError, match="7 claims are primary, and at most 6 can be"):
        parse(seven)


def test_a_study_may_name_the_primary_ones_of_its_claims_and_of_those_of_others():
    others = parse([made.claim(name="a", primary=True), made.claim(name="b")])
    found = parse([made.claim(name="c")], others, primary=["b", "c"])
    assert [(claim.name, claim.primary) for claim in found] == [("a", False), ("b", True), ("c", True)]
    with pytest.raises(UserError, match="no claim to be primary 'd'"):
        parse([], others, primary=["d"])
    with pytest.raises(UserError, match="'a' is named twice"):
        parse([], others, primary=["a", "b", "a"])


def test_two_claims_of_one_name_are_refused():
    """Neither could be told from the other in a table, nor be the primary one."""
    with pytest.raises(UserError, match="two claims of the name 'a'"):
        parse([made.claim(name="a")], parse([made.claim(name="a", relation="equal")]))


def test_a_block_and_a_stride_are_those_of_a_protocol():
    """Of the left, on the right too; with another protocol they mean nothing."""
    left = {"encoding": "alibi", "train_length": 128, "at": "2L", "block": 1}
    same, flat = parse(
        [
            made.claim(name="a", left=left, protocol="same-targets"),
            made.claim(name="b", left=left, protocol="same-targets", right={"at": "1L", "protocol": "nonoverlapping"}),
        ]
    )
    assert (same.right.block, flat.right.block) == (1, None)
    assert same.left.how == "same-targets, block 1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "> 1.000"),
        ({"relation": "not-above", "margin": 0.02}, "> 1.020"),
        ({"relation": "equal"}, "< 0.990 or > 1.010"),
        (FAILURE, "no failure by 192: within 1 % of L"),
        (FAILURE | {"relation": "holds-to"}, "a failure by 192"),
        (FAILURE | {"relation": "holds-to", "margin": 0.02}, "more than 2 % above L by 192"),
    ],
)
def test_every_claim_says_what_would_contradict_it(changes, said):
    assert parse([made.claim(**changes)])[0].contradicted_by == said


def test_a_gap_in_a_paper_is_one_table_less_another():
    """Table 5 less Table 15 of ALiBi trained at 512: 18.48 / 18.28 at 2,048 against 19.73 / 17.98 at 512."""
    (claim,) = parse(
        [
            made.claim(
                paper={
                    "table": "Table 5",
                    "minus": "Table 15",
                    "left": ["alibi", 512, 2048],
                    "right": ["alibi", 512, 512],
                }
            )
        ]
    )
    assert claim.paper.difference == pytest.approx(math.log(18.48 / 18.28) - math.log(19.73 / 17.98))


def test_the_papers_two_readings_of_a_failure():
    """Table 2: sinusoidal is best at 532, and at 582 above its 20.05 at 512; rotary at 712 and 812; ALiBi is never."""
    found = {}
    for encoding in ("sinusoidal", "rope", "t5", "alibi"):
        (claim,) = parse([made.claim(**FAILURE | {"paper": {"table": "Table 2", "left": [encoding, 512]}})])
        found[encoding] = (claim.paper.best, claim.paper.back)
    assert found["sinusoidal"] == (532, 582)
    assert found["rope"] == (712, 812)
    assert found["t5"] == (1112, 2512)
    assert found["alibi"][1] is None


def test_readings_of_a_curve_that_only_rises_and_of_one_that_only_falls():
    assert readings({128: 5.0, 256: 6.0, 512: 7.0}) == (128, 256)
    assert readings({128: 7.0, 256: 6.0, 512: 5.0}) == (512, None)


def test_protocols_are_those_that_can_be_measured():
    assert PROTOCOLS == evaluate.PROTOCOLS


# The shipped studies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "claim"), SHIPPED, ids=[f"{name}: {claim.name}" for name, claim in SHIPPED])
def test_what_the_paper_printed_bears_out_its_claim(name, claim):
    """A claim whose own source does not hold it would be ours, not the paper's."""
    if isinstance(claim.paper, Curve):
        home, bound = claim.paper.left.train_length, claim.right.length / claim.left.train_length
        fails = claim.paper.best < claim.paper.cells[-1].length and claim.paper.best <= home * bound
        above = [math.log(cell.value / claim.paper.left.value) for cell in claim.paper.cells]
        assert fails if claim.relation == "fails-by" else max(above) <= claim.border
    else:
        assert claim.holds(claim.paper.difference)


@pytest.mark.parametrize(("name", "claim"), SHIPPED, ids=[f"{name}: {claim.name}" for name, claim in SHIPPED])
def test_no_claim_is_true_by_construction(name, claim):
    """Some result of a study would contradict it, and each names its table, model and text."""
    if claim.about_failure:
        flat, above = (Failure(128, {256: Comparison([nats, nats + 1e-4, nats - 1e-4], None)}) for nats in (0.0, 0.5))
        fails, lasts = (found.p_values(claim.border, claim.tolerance) for found in (above, flat))
        assert fails[0] < 0.05 < fails[1]
        assert lasts[1] < 0.05 < lasts[0]
    else:
        assert any(claim.p_values(Estimate(nats, 1e-4, 4))[1] < 0.05 for nats in (-0.5, 0.5))
        assert claim.left != claim.right
    for source in sources(claim):
        assert "https://arxiv.org/abs/" in source.left.source
        assert source.left.table in source.left.source
        assert source.left.model


def test_the_shipped_study_has_fifteen_claims_or_more_and_six_of_them_are_primary():
    claims = study.load("train_short_test_long").claims
    assert len(claims) >= 15
    assert sum(claim.primary for claim in claims) == 6
    assert len({claim.name for claim in claims}) == len(claims)


def test_the_long_study_names_its_primary_claims_of_two_others():
    long, first, second = map(study.load, ("tsl_cpu", "train_short_test_long", "extrapolation_full"))
    others = [claim.name for claim in [*first.claims, *second.claims]]
    assert [claim.name for claim in long.claims][: len(others)] == others
    assert all(claim.about_speed for claim in long.claims[len(others) :])
    assert sum(claim.primary for claim in long.claims) == 6
    assert study.load("tsl_books").claims == long.claims
