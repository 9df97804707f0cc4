"""scripts/coverage_check.py in small: what it simulates is what it says, and it shows an interval that is much too
short; of 40 simulations one of 90 % instead of 95 % is not told apart, which takes the script's own 1,000."""

from __future__ import annotations

from types import ModuleType

import made
import numpy as np
import pytest
import scripted

from posbench.statistics import bootstrap

SIMULATIONS = 40


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return scripted.load("coverage_check")


def rates(script: ModuleType, once, shape) -> dict[str, float]:
    rng = np.random.default_rng(0)
    return script.rates(lambda: once(shape, rng), SIMULATIONS)


def test_autoregressions_are_correlated_within_documents_alone(script):
    shape = script.Shape("", [40, 60], 128, 0.6, 1.0, 0.0, 0.0)
    drawn = script.autoregression(shape, 4000, np.random.default_rng(0))
    correlation = np.corrcoef(drawn.T)
    assert drawn.var() == pytest.approx(1, abs=0.02)
    assert [correlation[b, b + 1] for b in (0, 30, 38, 40, 98)] == pytest.approx([0.6] * 5, abs=0.05)
    assert correlation[39, 40] == pytest.approx(0, abs=0.05)


def test_what_a_text_is_made_of_is_found_in_it_again(script):
    """Of 400 seeds the spread is found to 1 in sqrt(800), 0.035, twice over. Their means lie 0.0041 apart: 0.03 of 100
    blocks makes 0.003 by itself, as much as the seeds do, and is taken off."""
    shape = script.Shape("", [40, 60], 128, 0.0, 0.02, 0.03, 0.003)
    (seeds,) = script.simulate(shape, 400, 0.3, np.random.default_rng(0)).sets
    found = script.measured("found", seeds)
    assert (found.documents, found.tokens) == ([40, 60], 128)
    assert found.text == pytest.approx(0.02, rel=0.2)  # of 100 blocks, one in sqrt(200)
    assert found.rest == pytest.approx(0.03, rel=0.02)
    assert found.correlation == pytest.approx(0, abs=0.1)
    assert found.seed == pytest.approx(0.003, rel=0.2)
    assert np.std([blocks.mean for blocks in seeds]) > 0.0038


def test_what_documents_differ_by_is_found_in_them_again(script):
    """A fifth of the variance is between 200 documents of 50 blocks: known to a tenth of itself, as 200 values know
    their variance to sqrt(2 / 199). Neighbours alike are not taken for it."""
    rng = np.random.default_rng(0)
    for correlation, share in ((0.0, 0.2), (0.4, 0.2), (0.4, 0.0)):
        shape = script.Shape("", [50] * 200, 128, correlation, 1.0, 0.0, 0.0, share)
        found = script.between_documents(script.autoregression(shape, 1, rng)[0], shape.document, correlation)
        assert found == pytest.approx(share, abs=0.04)


def test_intervals_of_one_checkpoint_cover(script, monkeypatch):
    """95 % of 40 simulations, give or take two standard errors of 3.5 %; blocks taken as independent do not."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 400)
    shape = script.Shape("", [60, 90, 50], 128, 0.4, 0.03, 0.03, 0.0)
    found = rates(script, script.on_one_checkpoint, shape)
    drawn, student = list(found)[:2]
    assert found[drawn] >= 0.88
    assert found[student] >= 0.88
    assert found["these documents: blocks taken as independent, normal"] < found[student]


def test_intervals_over_seeds_cover_and_false_claims_are_not_supported(script):
    shape = script.Shape("", [30, 40, 20, 30, 25], 128, 0.3, 0.03, 0.03, 0.004, 0.1)
    found = rates(script, lambda one, rng: script.over_seeds(one, 4, rng), shape)
    this_text, alone, passages, both, apart, _, together, added = found.values()
    assert min(this_text, both, apart, together) >= 0.88
    assert alone < passages <= both
    assert together <= added
    false = rates(script, lambda one, rng: script.false_support(one, 4, rng), shape)
    assert max(rate for name, rate in false.items() if "uncorrected" not in name) <= 0.09


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rows nope.json nope.json", "error: There is nothing at nope.json."),
        ("--simulations 0", "error: --simulations 0 is below 1."),
        ("--seed -1", "error: --seed -1 is below 0."),
    ],
)
def test_what_it_cannot_do_is_two_lines(script, capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    assert script.main(words.split()) == 2
    first, hint = capsys.readouterr().err.splitlines()
    assert first == said
    assert hint


def test_one_row_is_no_two(script, capsys, tmp_path):
    row = made.alibi_row(tmp_path / "rows", 1, 128, made.arrays([256.0, 384.0]))
    assert script.main(["--rows", str(row.path), str(row.path)]) == 2
    assert "error: --rows names 1 row." in capsys.readouterr().err
