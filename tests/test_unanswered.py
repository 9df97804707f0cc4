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


PROTOCOLS = "(alibi trained at 64 is read with nonoverlapping, same-targets, block 32)"


def row(encoding: str, length: int) -> str:
    return f"there is no row of {encoding} trained at 64 and read at {length} on the same targets"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"left": {"encoding": "aliby", "train_length": 64, "at": "2L"}, "right": {"encoding": "rope", "at": 64}},
            "the study lists no run of aliby trained at 64 (of alibi trained at 64 it does)",
        ),
        (
            {"right": {"train_length": 512, "at": "1L"}},
            "the study lists no run of alibi trained at 512 (of alibi trained at 64 it does)",
        ),
        ({"right": {"at": "8L"}}, row("alibi", 512) + " (alibi trained at 64 is read at 64, 128)"),
        ({"protocol": "sliding"}, f"nothing is read with sliding {PROTOCOLS}"),
        ({"right": {"at": "1L", "extension": "yarn"}}, row("alibi + yarn", 64)),
        ({"protocol": "same-targets", "right": {"at": "1L", "block": 1}}, row("alibi", 64) + f" {PROTOCOLS}"),
        # 128 targets of the one eval, all of the other.
        ({"protocol": "nonoverlapping", "right": {"at": "1L", "protocol": "same-targets"}}, row("alibi", 64)),
        (
            {
                "left": {"encoding": "alibi", "train_length": 64, "at": "2L", "minus": {"protocol": "sliding"}},
                "right": {"at": "1L", "minus": {"protocol": "sliding"}},
            },
            f"nothing is read with sliding {PROTOCOLS}",
        ),
        # L + 8, 16 and 32; L and 2 L are read.
        (
            {"left": {"encoding": "alibi", "train_length": 64}, "relation": "fails-by", "right": {"at": "2L"}}
            | {"protocol": "same-targets", "paper": {"table": "Table 2", "left": ["alibi", 512]}},
            "alibi trained at 64 is not read at 72, 80, 96",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_nearest_and_with_who_wants_it(tmp_path: Path, changes, said: str):
    assert lines(tmp_path, **changes) == [f"Nothing that is listed measures 'ALiBi at 2 L': {said}."]


def planned(folder: Path, **changes: Any) -> list[str]:
    """Of RoPE trained at 64, read at 64 and 256 as it is and under YaRN by 4, whose gain is claimed."""
    content = {
        "runs": [["encoding=rope", "train.length=64"]],
        "evals": {"flat": {"protocol": "nonoverlapping", "lengths": [256], "extensions": ["none", "yarn"]}},
        "claims": [
            made.claim(
                left={"encoding": "rope", "train_length": 64, "at": "4L", "extension": "yarn"}, right={"at": "4L"}
            )
        ],
    }
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(content | changes))
    found = study.load(str(file))
    return unanswered(found.claims, study.plan(found).jobs)


def test_two_evals_of_other_targets_do_not_answer_a_claim_about_both(tmp_path: Path):
    plain = {"protocol": "nonoverlapping", "lengths": [256]}
    of_less = {"plain": plain, "under yarn": plain | {"extensions": ["yarn"], "targets": 4096}}
    assert planned(tmp_path) == []
    assert planned(tmp_path, evals={"plain": plain, "under yarn": plain | {"extensions": ["yarn"]}}) == []
    (line,) = planned(tmp_path, evals=of_less)
    assert line.endswith("on the same targets.")
    of_another_split = {"plain": plain, "under yarn": plain | {"extensions": ["yarn"], "split": "validation"}}
    (line,) = planned(tmp_path, evals=of_another_split)
    assert line.endswith("on the same targets.")


def test_runs_without_a_seed_in_common_do_not_answer_a_claim_about_both(tmp_path: Path):
    flat = {"flat": {"protocol": "nonoverlapping", "lengths": [256]}}
    claims = [made.claim(left={"encoding": "rope", "train_length": 64, "at": 256}, right={"encoding": "alibi"})]
    rope, alibi = ["encoding=rope", "train.length=64"], ["encoding=alibi", "train.length=64"]
    assert planned(tmp_path, runs=[rope, alibi], evals=flat, claims=claims) == []
    (line,) = planned(tmp_path, runs=[rope, [*alibi, "seed=2"]], evals=flat, claims=claims)
    assert line.endswith("the two have no seed in common.")


def test_what_is_read_is_said_of_the_side_that_lacks_it(tmp_path: Path):
    """The left is read at 64 and 256, not at 512; that the right is not read without YaRN at 128 comes after it."""
    left = {"encoding": "rope", "train_length": 64, "at": 512, "extension": "yarn"}
    (line,) = planned(tmp_path, claims=[made.claim(left=left, right={"at": 128})])
    assert line.endswith("(rope + yarn trained at 64 is read at 64, 256).")


def test_a_length_that_no_text_could_give_is_said(tmp_path: Path):
    """256 past 128 ids of context, 64 in blocks of 128, and learned positions past L."""
    same = {"protocol": "same-targets", "lengths": [256], "targets": 512, "block": 32, "min_context": 128}
    claims = [
        made.claim(left={"encoding": "rope", "train_length": 64, "at": 256}, right={"at": 64}, protocol="same-targets")
    ]
    (line,) = planned(tmp_path, evals={"same": same}, claims=claims)
    assert line.endswith("the targets have 128 ids of context (min_context), fewer than 256.")
    (line,) = planned(tmp_path, evals={"same": same | {"min_context": 256, "block": 128}}, claims=claims)
    assert line.endswith("a block of 128 targets does not fit a window of 64.")
    flat = {"flat": {"protocol": "nonoverlapping", "lengths": [256]}}
    (line,) = planned(
        tmp_path,
        evals={"flat": {"protocol": "nonoverlapping", "lengths": [256], "targets": 100}},
        claims=[made.claim(left={"encoding": "rope", "train_length": 64, "at": 256}, right={"at": 64})],
    )
    assert line.endswith("there are 100 targets, fewer than one window of 256.")
    claims = [made.claim(left={"encoding": "learned", "train_length": 64, "at": 256}, right={"at": 64})]
    (line,) = planned(tmp_path, runs=[["encoding=learned", "train.length=64"]], evals=flat, claims=claims)
    assert line.endswith("learned has positions for 64 inputs and no more.")


def test_an_extension_is_meant_with_what_is_set_of_it(tmp_path: Path):
    claims = [
        made.claim(
            left={"encoding": "rope", "train_length": 64, "at": "4L", "extension": "yarn factor=4"}, right={"at": 64}
        )
    ]
    (line,) = planned(tmp_path, claims=claims)
    assert "rope + yarn factor=4 trained at 64" in line
    assert "is read at" not in line, "under no such extension"


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
    assert line.startswith(
        "Nothing that is listed measures 'claim 0' (and 4 more): there is no row of alibi trained at 64 and read at"
    )


BUDGETS = [
    (name, budget) for name in sorted(files("study")) if (one := study.load(name)).claims for budget in one.budgets
]
SHORT = {("extensions", "default"), ("extensions", "full"), ("train_short_test_long", "smoke")}
"""What does not answer all of its claims, and is not meant to."""


@pytest.mark.parametrize(("name", "budget"), sorted(set(BUDGETS) - SHORT))
def test_a_shipped_study_measures_what_its_claims_want(name: str, budget: str):
    shipped = study.load(name)
    assert unanswered(shipped.claims, study.plan(shipped, budget).jobs) == []


def test_fine_tuned_runs_are_said_to_be_missing_of_the_study_of_extensions():
    """They begin with its own runs, which are not there yet."""
    shipped = study.load("extensions")
    (line,) = unanswered(shipped.claims, study.plan(shipped).jobs)
    assert "(and 1 more): the study lists no run of rope+pi trained at 512" in line


def test_the_smoke_test_leaves_out_what_is_read_at_512():
    shipped = study.load("train_short_test_long")
    found = unanswered(shipped.claims, study.plan(shipped, "smoke").jobs)
    assert found
    assert all("512" in line for line in found)
