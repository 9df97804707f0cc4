"""What is left of a claim when a document is left out."""

from __future__ import annotations

import math

import made
import pytest

from posbench import records
from posbench.report.claims import judge, left_out_table, parse
from posbench.report.claims.verdict import without
from posbench.report.tables import render

DOCUMENT = [0] * 8 + [3] * 8
DOCUMENTS = {"Taft": [0], "Polk": [3], "Adams": [5, 6]}


def verdicts(folder, seeds: int, first: float, second: float, **changes):
    """ALiBi trained at 128 gains `first` nats a token at 256 in document 0 and `second` in document 3, in its blocks
    0.04 less and more in turn."""
    rows = []
    for seed in range(seeds):
        for length in (128, 256):
            gain = [one + seed / 1000 + turn for one in (first, second) for turn in [-0.04, 0.04] * 4]
            nats = [128 * (4.0 - one * (length == 256)) for one in gain]
            arrays = made.arrays(nats, document=DOCUMENT)
            rows.append(made.alibi_row(folder, seed, length, arrays))
    return judge(parse([made.claim(**{"primary": True} | changes)]), rows)


def test_without_a_document_only_the_others_count(tmp_path):
    """Gains of 0.3 and -0.1: seen on average, and not in document 3 alone."""
    whole = verdicts(tmp_path, 1, 0.3, -0.1)
    assert whole[0].ratio.value == pytest.approx(math.exp(-0.1))
    (others,) = without(whole, [0])
    assert (others.text, others.ratio.value) == ("not seen", pytest.approx(math.exp(0.1)))
    (others,) = without(whole, [3])
    assert (others.text, others.ratio.value) == ("seen", pytest.approx(math.exp(-0.3)))


def test_a_document_that_was_not_read_changes_nothing(tmp_path):
    whole = verdicts(tmp_path, 3, 0.3, 0.2)
    (same,) = without(whole, [5])
    assert same.comparison is whole[0].comparison
    assert (same.text, same.p) == (whole[0].text, whole[0].p)


def test_several_documents_are_left_out_together(tmp_path):
    """All there is cannot be: then nothing is."""
    whole = verdicts(tmp_path, 1, 0.3, -0.1)
    (others,) = without(whole, [0, 5])
    assert others.ratio.value == pytest.approx(math.exp(0.1))
    (same,) = without(whole, [0, 3])
    assert same.comparison is whole[0].comparison


def test_the_table_has_a_column_for_each_name(tmp_path):
    """Three seeds that gain 0.3 and 0.28, and 0.001 more on average; of Adams nothing was read."""
    text = render(left_out_table(verdicts(tmp_path, 3, 0.3, 0.28), DOCUMENTS), width=1000)
    line = next(line for line in text.splitlines() if line.startswith("ALiBi at 2 L"))
    expected = "supported, 0.748 [0.672, 0.831] supported, 0.755 [0.667, 0.854] supported, 0.740 [0.654, 0.837]"
    assert " ".join(line.removeprefix("ALiBi at 2 L").split()) == expected
    assert "without Adams" in text


def test_a_failure_is_looked_for_again(tmp_path):
    """Worse by 0.3 at 256 in document 0 alone."""
    own = {"left": {"encoding": "alibi", "train_length": 248}, "relation": "fails-by", "right": {"at": "L+8"}}
    own |= {"protocol": "same-targets", "paper": {"table": "Table 2", "left": ["alibi", 512]}}
    rows = []
    for length, more in ((248, 0.0), (256, 0.3)):
        arrays = made.arrays([128 * (4 + more)] * 8 + [512.0] * 8, document=DOCUMENT)
        key = {"encoding": "alibi", "train_length": 248, "recipe": "a", "protocol": "same-targets"}
        rows.append(records.write(tmp_path, made.row(arrays, length=length, **key), arrays))
    whole = judge(parse([{"name": "it", "primary": True} | own]), rows)
    assert [one.text for one in without(whole, [3])] == ["seen"]
    assert [one.text for one in without(whole, [0])] == ["not seen"]


def test_without_primary_claims_that_were_measured_there_is_no_table(tmp_path):
    assert left_out_table(verdicts(tmp_path, 1, 0.3, 0.2, primary=False), DOCUMENTS) is None
    assert left_out_table(verdicts(tmp_path, 0, 0.3, 0.2), DOCUMENTS) is None
