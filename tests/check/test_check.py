"""`posbench check` over the catalogue, and over encodings with one known fault each.

Both matrices are files, so that no property becomes "does not apply" unseen. A new encoding needs a line in
catalogue.csv: `posbench check all --format csv` says what came.
"""

import csv
from pathlib import Path

import pytest
import torch
from broken import BROKEN
from tiny import CASES, FILES, described, encoding

from posbench.check import check, judge
from posbench.check.properties import PROPERTIES, Failed
from posbench.check.subject import Subject

HERE = Path(__file__).parent


def matrix(name: str) -> dict[str, dict[str, str]]:
    with (HERE / name).open(newline="") as file:
        return {row.pop("encoding"): row for row in csv.DictReader(file)}


CATALOGUE, FAULTS = matrix("catalogue.csv"), matrix("broken.csv")


def outcomes(subject: Subject) -> dict[str, str]:
    verdicts = list(check(subject))
    print("\n".join(f"{v.property}: {v.outcome}: {v.said}\n{v.trace}" for v in verdicts if v.outcome != "passed"))
    return {v.property: v.outcome for v in verdicts}


@pytest.mark.parametrize("name", FILES)
def test_an_encoding_of_the_catalogue_keeps_every_property_that_applies(name):
    found = outcomes(Subject(described(name)))
    assert "failed" not in found.values()
    assert found == CATALOGUE[name]


@pytest.mark.parametrize("case", [case for case in CASES if case.values[0][1]])
def test_an_option_that_changes_the_formula_breaks_no_property(case):
    name, own = case
    assert "failed" not in outcomes(Subject(described(name, **own))).values()


def test_the_matrix_holds_what_there_is():
    assert CATALOGUE.keys() == FILES.keys()
    assert {key for row in CATALOGUE.values() for key in row} == set(PROPERTIES)


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_a_fault_is_found_by_the_property_it_breaks(cls):
    own = {"inner": described("alibi")} if cls.__name__ == "Inert" else {}
    torch.manual_seed(0)
    found = outcomes(Subject({"name": cls.__name__, "class": f"{HERE / 'broken.py'}:{cls.__name__}", **own}))
    assert found == FAULTS[cls.__name__]


def test_every_property_is_broken_by_some_fault():
    assert {key for row in FAULTS.values() for key, outcome in row.items() if outcome == "failed"} == set(PROPERTIES)


def faulty(name: str) -> Subject:
    return Subject({"name": name, "class": f"{HERE / 'broken.py'}:{name}"})


@pytest.mark.parametrize("name", [name for name in FILES if list(encoding((name, {})).parameters())])
def test_no_fault_hides_where_far_keys_count_for_nothing(name):
    """At one of its draws the first of 200 tokens changes what the last one reads."""
    assert max(drawn.reach() for drawn in Subject(described(name)).draws) > 1e-3


def test_a_fault_that_shows_in_far_keys_alone_does_not_show_where_they_count_for_nothing():
    wide, *narrower = faulty("LostGates").draws
    assert PROPERTIES["cached = one pass"](wide)
    for drawn in narrower:
        with pytest.raises(Failed):
            PROPERTIES["cached = one pass"](drawn)
    assert narrower


def test_a_hook_that_gives_one_tensor_for_two_is_found_out_in_training_too():
    """A batch of two would be taken apart into what should be two tensors."""
    assert judge(faulty("OneTensor"), "finite under autocast").outcome == "failed"


def test_a_size_that_it_does_not_take_is_the_fault_of_the_property_that_asks_for_it():
    failed = {verdict.property: verdict.said for verdict in check(faulty("Demanding")) if verdict.outcome == "failed"}
    said = "The encoding 'Demanding' cannot be built: it needs a training length of 64, not 16."
    assert failed == {"obeys max_length": said}


def test_most_faults_break_one_property_alone():
    """A bias after the softmax depends on how many keys a block holds as well; a distance from the end moves with every
    token that a cache takes in; and a gradient of 0 x ln 0 is neither finite nor above 0."""
    failing = {name: [key for key, outcome in row.items() if outcome == "failed"] for name, row in FAULTS.items()}
    several = {name: keys for name, keys in failing.items() if len(keys) != 1}
    assert several.keys() == {"BiasAfterSoftmax", "FromTheEnd", "InfiniteSlope"}
