"""The faults that posbench survives, counted: a hundred kills, the other tests of this folder, and those of damaged and
read-only files, as one table.

    bash scripts/faults.sh                                  50 kills of a study, 50 of a resumed one; under 20 minutes
    bash scripts/faults.sh --kills 6 --seeds 1              a first look, of three runs instead of twelve
    bash scripts/faults.sh --table results/faults/table.md  kept

Exit status 1 when anything was lost, done twice or unequal, when a test failed, when the version that writes in place
was not found to lose anything, or when a whole hundred of kills put less at risk than `ENOUGH` says.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from kills import Harness, Kill, undisturbed
from sweeps import Place, planned
from writes import KINDS, PLACES

import posbench
from posbench import system

HERE = Path(__file__).parent

WHOLE_RUN = 50
"""Kills of a study that begins, from which on `ENOUGH` is asked for."""

ENOUGH = {"of 100 kills inside a write": 30, "runs at risk": 12, "rows at risk": 200}

OF_TOKENS = (
    *("test_a_damaged_file_is_named_and_never_read", "test_a_foreign_directory_is_refused"),
    "test_tokens_of_another_text_in_this_place_are_refused",
)
DAMAGED = (str(HERE.parent / "test_damaged.py"), *(f"{HERE.parent}/data/test_tokens.py::{test}" for test in OF_TOKENS))
"""What is truncated, foreign or garbage, and the read-only folder: tests that the suite runs as well."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Disturb studies and count what is lost.")
    parser.add_argument("--kills", type=int, default=50, help="of a study that begins, and as many of a resumed one")
    parser.add_argument("--seeds", type=int, default=4, help="of each of the three encodings of the study")
    parser.add_argument("--lanes", type=int, default=2, help="studies at a time")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments")
    parser.add_argument("--table", type=Path, help="a file for the table")
    asked = parser.parse_args()
    begun = time.monotonic()

    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        whole = undisturbed(planned(here, asked.seeds), Place(here / "undisturbed"))
        runs, rows = len(whole.plan.jobs), whole.writes["row"]
        tell(f"undisturbed: {runs} runs and {rows} rows in {whole.seconds:.1f} s after the first step")
        (here / "renamed").mkdir()
        (here / "plain").mkdir()
        kills = Harness(whole, here / "renamed", seed=asked.seed).rounds(asked.kills, asked.lanes, tell)
        plain = Harness(whole, here / "plain", plain=True, seed=asked.seed)
        lossy = plain.rounds(max(3, asked.kills // 5), asked.lanes, tell)
    outcomes = Outcomes()
    for marked, where_from in (("faults", [str(HERE)]), ("", DAMAGED)):
        pytest.main(["-m", marked, "-p", "no:cacheprovider", "-p", "no:xdist", *where_from], plugins=[outcomes])
    lacking = too_little(kills) if asked.kills >= WHOLE_RUN else []

    minutes = (time.monotonic() - begun) / 60
    text = "\n".join(
        [
            *(
                "# Faults survived",
                "",
                f"A study of {runs} runs and {rows} rows. {where()}, {minutes:.1f} minutes.",
                "",
            ),
            *("## Killed with SIGKILL, and gone on with", "", *table(kills), "", *verdict(kills), *lacking, ""),
            *("## The same, of a version that writes its files in place", "", *table(lossy), "", *verdict(lossy), ""),
            *("## Other faults", "", *outcomes.table()),
        ]
    )
    print(text)
    if asked.table:
        asked.table.write_text(text + "\n")
    good = all(kill.verdict.good for kill in kills) and any(kill.verdict.lost for kill in lossy)
    return 0 if good and outcomes.good and not lacking else 1


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def where() -> str:
    commit, changed = system.commit() or (None, False)
    of = f"commit {commit[:7]}{' with changes' if changed else ''}" if commit else f"posbench {posbench.__version__}"
    machine = f"{os.cpu_count()} cores, {platform.system()}"
    return f"{of}, {machine}, Python {platform.python_version()}, torch {torch.__version__}"


def table(kills: list[Kill]) -> list[str]:
    """Kills by what was killed: in which write and how far, or during what."""
    words = ("killed in", "begun", "resumed", "runs at risk", "rows at risk", "lost", "done twice", "equal")
    lines = [f"| {' | '.join(words)} |", f"|{' --- |' * len(words)}"]
    known = [f"{kind}, {place}" for kind in KINDS for place in (*PLACES, "in the write")]
    places = sorted({kill.where for kill in kills}, key=lambda one: (known.index(one) if one in known else 99, one))
    lines += [row(place, [kill for kill in kills if kill.where == place]) for place in places]
    return [*lines, row("all", kills)]


def row(name: str, kills: list[Kill]) -> str:
    equal = sum(not kill.verdict.unequal and not kill.verdict.lost for kill in kills)
    cells = [
        *(sum(kill.nth == nth for kill in kills) for nth in (1, 2)),
        *(sum(kill.runs for kill in kills), sum(kill.rows for kill in kills)),
        *(len(set(distinct(kills, what))) for what in ("lost", "twice")),
        f"{equal} of {len(kills)}",
    ]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def distinct(kills: Iterable[Kill], what: str) -> list[tuple[int, str]]:
    """The runs and rows of a kind of verdict, each with its round: two kills of one round have one verdict."""
    return [(kill.round, name) for kill in kills for name in getattr(kill.verdict, what)]


def verdict(kills: list[Kill]) -> list[str]:
    inside = sum(kill.inside for kill in kills)
    lines = [f"{len(kills)} kills, {inside} of them inside a write."]
    bad = {kill.round: kill for kill in kills if not kill.verdict.good}
    for kill in list(bad.values())[:5]:
        said = [line for line in kill.verdict.said.splitlines() if line.startswith("error: ")][:1]
        lost, twice = len(kill.verdict.lost), len(kill.verdict.twice)
        because = re.sub(r"/\S*/(runs|data)/", "", "".join(said))  # no path of this machine
        lines.append(f"- {kill.where}: {lost} runs and rows lost, {twice} done twice. {because}".rstrip())
    return lines


def too_little(kills: list[Kill]) -> list[str]:
    """What of `ENOUGH` these kills do not reach, a line each."""
    inside = 100 * sum(kill.inside for kill in kills) // max(1, len(kills))
    reached = (inside, sum(kill.runs for kill in kills), sum(kill.rows for kill in kills))
    found = zip(ENOUGH.items(), reached, strict=True)
    return [f"- Too little: {count} {what}, not {least}." for (what, least), count in found if count < least]


class Outcomes:
    """A plugin of pytest that keeps what each test says of itself, and whether it passed."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.passed: dict[str, bool] = {}

    @pytest.hookimpl(trylast=True)  # when those that are not asked for are left out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.said[item.nodeid] = " ".join((item.function.__doc__ or item.name).split())  # type: ignore[attr-defined]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and report.passed

    @property
    def good(self) -> bool:
        return bool(self.said) and all(self.passed.get(test, False) for test in self.said)

    def table(self) -> list[str]:
        """A test a line, with its cases."""
        lines = ["| what happens | cases | ends as it must |", "| --- | --- | --- |"]
        for text in dict.fromkeys(self.said.values()):
            tests = [test for test, its in self.said.items() if its == text]
            cases = [test.partition("[")[2].rstrip("]") for test in tests]
            named = "; ".join(cases) if len(cases) < 8 else str(len(cases))
            lines.append(
                f"| {text} | {named} | {sum(self.passed.get(test, False) for test in tests)} of {len(tests)} |"
            )
        return lines


if __name__ == "__main__":
    sys.exit(main())
