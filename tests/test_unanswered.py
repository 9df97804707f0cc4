"""What a study's claims want and its runs and evals do not give is said, with the nearest there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made
import pytest
import yaml

from posbench import study
from posbench.search_path import files
from posbench.unanswered import unanswered

SAME = {"protocol": "same-targets", "lengths": [64, 128], "targets": 64, "block": 32, "min_context": 128}


def lines(folder: Path, **claim: Any) -> list[str]:
    """Of a study of ALiBi and RoPE trained at 64, read at 64 and 128, with one claim."""
    content = {
        "common": ["train.length=64"],
        "runs": [["encoding=alibi"], ["encoding=rope"]],
        "evals": {"flat": {"protocol": "nonoverlapping", "lengths": [128]}, "same": SAME},
        "claims": [made.claim(left={"encoding": "alibi", "train_length": 64, "at": "2L"}) | claim],
    }
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    found = study.load(str(file))
    return unanswered(found.claims, study.plan(found).jobs)


def test_of_what_the_study_measures_nothing_is_said(tmp_path: Path):
    assert lines(tmp_path) == []
    assert lines(tmp_path, protocol="same-targets", right={"at": "1L", "block": 32}) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"left": {"encoding": "aliby", "train_length": 64, "at": "2L"}, "right": {"encoding": "rope", "at": 64}},
            "The study lists no run of aliby trained at 64 (of alibi trained at 64 it does)",
        ),
        (
            {"right": {"train_length": 512, "at": "1L"}},
            "The study lists no run of alibi trained at 512 (of alibi trained at 64 it does)",
        ),
        (
            {"right": {"at": "8L"}},
            "The study does not read alibi trained at 64 with nonoverlapping at 512",
        ),
        (
            {"protocol": "sliding"},
            "The study does not read alibi trained at 64 with sliding",
        ),
        (
            {"right": {"at": "1L", "extension": "yarn"}},
            "The study does not read alibi trained at 64 under yarn with nonoverlapping",
        ),
        (
            {"protocol": "same-targets", "right": {"at": "1L", "block": 1}},
            "The study does not read alibi trained at 64 with same-targets, block 1",
        ),
        (
            {
                "left": {"encoding": "alibi", "train_length": 64, "at": "2L", "minus": {"protocol": "sliding"}},
                "right": {"at": "1L", "minus": {"protocol": "sliding"}},
            },
            "The study does not read alibi trained at 64 with sliding",
        ),
        # L + 8, 16 and 32; L and 2 L are read.
        (
            {"left": {"encoding": "alibi", "train_length": 64}, "relation": "fails-by", "right": {"at": "2L"}}
            | {"protocol": "same-targets", "paper": {"table": "Table 2", "left": ["alibi", 512]}},
            "The study does not read alibi trained at 64 with same-targets at 72, 80, 96",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_nearest_and_with_who_wants_it(tmp_path: Path, changes, said: str):
    assert lines(tmp_path, **changes) == [f"{said}, which is wanted by: ALiBi at 2 L."]


def test_several_claims_that_want_the_same_are_counted(tmp_path: Path):
    """Five ask for 512 and are one line."""
    left = {"encoding": "alibi", "train_length": 64, "at": 512}
    file = tmp_path / "mine.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "runs": [["encoding=alibi", "train.length=64"]],
                "evals": {"flat": {"protocol": "nonoverlapping", "lengths": [64]}},
                "claims": [made.claim(name=f"claim {number}", left=left, right={"at": "1L"}) for number in range(5)],
            }
        )
    )
    found = study.load(str(file))
    (line,) = unanswered(found.claims, study.plan(found).jobs)
    assert line.endswith("at 512, which is wanted by: claim 0 (and 4 more).")


@pytest.mark.parametrize("name", sorted(set(files("study")) - {"extensions"}))
def test_a_shipped_study_measures_what_its_claims_want(name: str):
    """Extensions aside, whose fine-tuned runs begin with its own."""
    shipped = study.load(name)
    assert unanswered(shipped.claims, study.plan(shipped).jobs) == []


def test_fine_tuned_runs_are_said_to_be_missing_of_the_study_of_extensions():
    shipped = study.load("extensions")
    assert [line.split(" (")[0] for line in unanswered(shipped.claims, study.plan(shipped).jobs)] == [
        "The study lists no run of rope+pi trained at 512",
        "The study lists no run of rope trained at 512",
    ]
