"""Results that are committed: rows out of the folder of runs, and all else made from them.

    results/studies.yaml        the folders: the study of each, and the commands that run it
    results/FOLDER/runs/        rows of its runs and what is known of each; no weights, no logs, nothing of a machine
    results/FOLDER/study.json   what was asked for, so that it is seen what is missing
    results/FOLDER/text/        the names of the documents
    results/FOLDER/index.html, tables.*, figures/, and the marked parts of the pages README.md, that of the project
                                among them: made from these

    python scripts/results.py collect [FOLDER ...]   copy what is new in $POSBENCH_RUNS
    python scripts/results.py rebuild [FOLDER ...]   make what is made
    python scripts/results.py check                  status 1 where that would change a byte

A row that is here stays, whatever becomes of the folder of runs. Numbers of csv and json have ten digits: the last ones
differ from processor to processor, as each adds in another order.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from posbench import data, files, pilot, records, study
from posbench.data.tokens import read_header
from posbench.errors import UserError, unknown
from posbench.progress import duration
from posbench.records import BadRow, Row
from posbench.report import claims, page, tables
from posbench.report.curves import texts
from posbench.report.figures import Bench, read_bench
from posbench.report.figures.perplexity import by_length
from posbench.report.parts import Part
from posbench.report.summary import summary_table, widest
from posbench.run import Run, root

ROOT = Path(__file__).resolve().parent.parent
DIGITS = 10
STATUS = ("state", "step", "steps", "tokens", "epochs", "loss", "valid", "seconds", "peak_memory")
"""What is kept of a run's status: not the machine, nor when it was written."""

MADE = ("index.html", "tables.*", "figures/*")
COMMAND = "bash scripts/rebuild_results.sh"


@dataclass
class Folder:
    """One folder of results."""

    path: Path
    study: str
    commands: list[str]
    budget: str = "default"
    settings: list[str] = field(default_factory=list)
    """Of `posbench study run`."""
    bench: str | None = None
    """Where its costs are from: a file beside the folders."""
    further: int = 0
    """Runs that its commands train from one of the study's, which no plan can name before that is there."""

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def text(self) -> Path:
        return self.path / "text"

    @cached_property
    def asked(self) -> dict[str, Any]:
        """study.json; of a folder that nothing was collected for, empty."""
        file = self.path / "study.json"
        return json.loads(file.read_bytes()) if file.is_file() else {}

    @cached_property
    def rows(self) -> list[Row]:
        """Raises `UserError` where one of them is damaged."""
        with self.opened(), warnings.catch_warnings():
            warnings.simplefilter("error", BadRow)
            try:
                return records.read()
            except BadRow as error:
                raise UserError(f"{error}", f"{self.runs} holds committed rows: git restore them.") from error

    @cached_property
    def costs(self) -> Bench:
        """The tables of its bench file; none where there is no such file yet."""
        file = self.path.parent / self.bench if self.bench else None
        return read_bench(file) if file is not None and file.is_file() else []

    @cached_property
    def summary(self) -> tables.Table | None:
        """The short answer of its rows; None where they give none."""
        with self.opened():
            return summary_table(texts(self.rows)[0], self.costs)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Within it posbench reads the rows and names of this folder."""
        before = {key: os.environ.get(key) for key in ("POSBENCH_RUNS", "POSBENCH_DATA")}
        os.environ |= {"POSBENCH_RUNS": str(self.runs), "POSBENCH_DATA": str(self.text)}
        try:
            yield
        finally:
            for key, value in before.items():
                os.environ.pop(key)
                if value is not None:
                    os.environ[key] = value


def folders(results: Path, chosen: Sequence[str] = ()) -> list[Folder]:
    """Those of studies.yaml, or the `chosen` ones of them."""
    file = results / "studies.yaml"
    try:
        listed = yaml.safe_load(file.read_text(encoding="utf-8"))
        found = {name: Folder(results / name, **entry) for name, entry in listed.items()}
    except (OSError, yaml.YAMLError, TypeError, AttributeError) as error:
        raise UserError(f"{file} names no folders of results: {str(error).splitlines()[0]}.") from error
    for name in chosen:
        if name not in found:
            raise unknown("folder of results", name, found)
    return [found[name] for name in (chosen or found)]


# Rows in --------------------------------------------------------------------------------------------------------------


def collect(folder: Folder) -> int:
    """Copy the rows of a study that are in $POSBENCH_RUNS and not here; returns how many were new.

    Raises `UserError` for a row or run that names a path of this machine.
    """
    plan = study.plan(study.load(folder.study), folder.budget, folder.settings)
    seeds, new = {job.config.seed for job in plan.jobs}, 0
    rows = [row for row in pilot.asked(plan.jobs) if row.kind != "run" or row.seed in seeds]
    for row in rows:
        assert row.path is not None
        kept = folder.runs / row.run / "rows" / row.path.name
        if not kept.exists():
            _refuse_private(row.path, row.path.read_text(encoding="utf-8"))
            kept.parent.mkdir(parents=True, exist_ok=True)
            if row.arrays_sha256 is not None:  # first, as whoever wrote them: a row that is there is whole
                shutil.copyfile(row.path.with_suffix(".npz"), kept.with_suffix(".npz"))
            shutil.copyfile(row.path, kept)
            new += 1
    for run in {row.run: row.path.parents[1] for row in rows if row.kind == "run" and row.path}.values():
        _keep_run(Run(run), folder.runs / run.name)
    for corpus_hash, split in {(row.corpus_hash, row.split) for row in rows}:
        _keep_names(folder.text, corpus_hash, split)
    known = {job.run.name: {"command": job.command, "rows": len(set(job.requests))} for job in plan.jobs}
    asked = {"study": folder.study, "budget": folder.budget, "runs": known}
    _publish(folder.path / "study.json", asked)
    return new


def _keep_run(run: Run, kept: Path) -> None:
    record = json.loads(json.dumps(run.record))
    if record["config"].get("init_from"):
        record["config"]["init_from"]["path"] = record["config"]["init_from"]["name"]
    _publish(kept / "run.json", record)
    status = {key: value for key, value in run.status().items() if key in STATUS}
    _publish(kept / "status.json", status | {"state": "done"})


def _keep_names(folder: Path, corpus_hash: str, split: str) -> None:
    for header in sorted(data.root().glob("*/header.json")):
        with suppress(UserError):
            corpus = read_header(header.parent)["corpus"]
            if corpus["fingerprint"] == corpus_hash:
                kept = folder / corpus["name"]
                _publish(kept / "header.json", read_header(header.parent))
                _publish(kept / f"{split}.names.json", json.loads((header.parent / f"{split}.names.json").read_bytes()))
                return


def _publish(file: Path, value: Any) -> None:
    """Write it, unless that is what is there."""
    _refuse_private(file, json.dumps(value))
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file() or json.loads(file.read_bytes()) != value:
        files.write_json(file, value)


def _refuse_private(file: Path, text: str) -> None:
    """Raise `UserError` where what a file holds names a path of this machine."""
    for place in (Path.home(), ROOT, Path(tempfile.gettempdir()), root().resolve(), data.root().resolve()):
        if len(place.parts) > 1 and re.search(rf"{re.escape(str(place))}\b", text):
            raise UserError(f"{file} names {place}, which is of this machine.", "It cannot be among the results.")


# Made from them -------------------------------------------------------------------------------------------------------


def made(folder: Folder) -> dict[str, bytes]:
    """What is made of the rows of a folder, by its path there; nothing without rows."""
    if not folder.rows:
        return {}
    loaded = study.load(folder.study)
    report = page.Report(
        loaded.title,
        folder.rows,
        COMMAND,
        loaded.claims,
        " ".join(filter(None, [loaded.budgets[folder.budget].get("note"), _so_far(folder)])) or None,
        folder.costs,
        images=["svg"],
        measured_by=folder.commands,
        digits=DIGITS,
    )
    with folder.opened(), tempfile.TemporaryDirectory() as temporary:
        page.write(report, Path(temporary))
        if (drawing := answer(texts(folder.rows)[0])) is not None:
            (Path(temporary) / "figures" / "answer.svg").write_bytes(drawing.svg())
        return {str(file.relative_to(temporary)): file.read_bytes() for file in _files(Path(temporary))}


def _files(folder: Path) -> list[Path]:
    return sorted(file for pattern in MADE for file in folder.glob(pattern) if file.is_file())


def answer(group: Sequence[Part]) -> Any:
    """The figure of the two protocols that a reader needs: all targets, and the same ones at every length."""
    flat = widest([part for part in group if part.shared["protocol"] == "nonoverlapping"])
    same = widest([part for part in group if part.shared["protocol"] == "same-targets"])
    return by_length([part for part in (flat, same) if part], "answer", "Does it still work past its training length?")


def pages(results: Path, all_folders: Sequence[Folder]) -> dict[Path, str]:
    """The pages README.md, that of the project among them, with their marked parts made anew."""
    found = {}
    for folder in all_folders:
        file = folder.path / "README.md"
        found[file] = _filled(file, {"runs": _about(folder)})
    file, front = results / "README.md", results.parent / "README.md"
    parts = {"answer": _answer(all_folders[0]), "folders": _folders(all_folders)}
    return found | {file: _filled(file, parts), front: _filled(front, {"answer": _front(all_folders[0])})}


def _filled(file: Path, parts: Mapping[str, str]) -> str:
    text = file.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}: made by {COMMAND} -->\n", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise UserError(f"{file} has no place for '{name}'.", f"It needs the lines {begin.strip()} and {end}")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{part.strip()}\n\n{end}{rest.partition(end)[2]}"
    return text


def _front(folder: Folder) -> str:
    """Of the front page: the short table with what its words and signs mean, and the figure."""
    if not folder.rows:
        return _nothing(folder)
    table = folder.summary
    place = folder.path.relative_to(folder.path.parents[1]).as_posix()
    lines = [f"*{study.load(folder.study).title}.* {_so_far(folder) or ''}".strip() + "\n"]
    if table:
        few = replace(table, title="", notes=[note for note in table.notes if note.startswith(("In brackets", "†"))])
        lines += [tables.render(few, "md").split("\n\n", 1)[1]]
    return "\n".join([*lines, f"![Perplexity by length in both protocols]({place}/figures/answer.svg)"])


def _nothing(folder: Folder) -> str:
    return f"Nothing of `{folder.path.name}` has been measured yet."


def _answer(folder: Folder) -> str:
    """The one table, the one figure, and what became of the primary claims."""
    if not folder.rows:
        return _nothing(folder)
    table = folder.summary
    with folder.opened():
        verdicts = claims.judge(study.load(folder.study).claims, folder.rows, folder.costs)
    counts = Counter(verdict.text for verdict in verdicts)
    lines = []
    if said := _so_far(folder):
        lines += [f"**{said}** The list: [{folder.path.name}]({folder.path.name}/README.md).\n"]
    lines += [tables.render(table, "md") if table else ""]
    lines += [f"![Perplexity by length in both protocols]({folder.path.name}/figures/answer.svg)\n"]
    lines += ["Dotted: L. Bands: 95 %. nonoverlapping: every target of the test split; same-targets: the same ones at "
              "each length; closer: those curves of one protocol that change little, if there are any.\n"]  # fmt: skip
    primary = [verdict for verdict in claims.in_order(verdicts) if verdict.claim.primary]
    if primary:
        lines += [
            "Statements of the paper that were named primary before the study was run (of all "
            f"{len(verdicts)}, the exploratory ones among them, "
            f"{', '.join(f'{count} {text}' for text, count in sorted(counts.items()))}):\n",
            tables.render(claims.short_table(primary), "md"),
        ]
    lines += [f"Every number with its row, run, command and hash: [{folder.path.name}/index.html]"
              f"({folder.path.name}/index.html)."]  # fmt: skip
    return "\n".join(lines)


def _so_far(folder: Folder) -> str | None:
    """How much of what was asked for is here; None of all of it."""
    if not (missing := _missing(folder)):
        return None
    asked = folder.asked["runs"]
    others = _others(missing, asked)
    said = f"So far {len(asked.keys() - missing.keys())} of {len(asked)} runs"
    return said + (f", and without {', '.join(others)}." if others else ".")


def _folders(all_folders: Sequence[Folder]) -> str:
    columns = [tables.Column(key, key, right=False) for key in ("folder", "what it compares", "runs", "missing")]
    rows = []
    for folder in all_folders:
        asked, missing = folder.asked.get("runs", {}), _missing(folder)
        rows.append(
            {
                "folder": f"[{folder.path.name}]({folder.path.name}/README.md)",
                "what it compares": study.load(folder.study).title,
                "runs": f"{len(asked.keys() - missing.keys())} of {len(asked)}" if asked else "none yet",
                "missing": _listed(missing, asked) if missing else "nothing" if asked else "all",
            }
        )
    table = tables.table("", columns, rows)
    return "\n".join(tables.render(table, "md").splitlines()[2:])


def _others(missing: Mapping[str, str], asked: Mapping[str, Any]) -> list[str]:
    """What is missing beside runs of the plan: references, and runs that go on."""
    return [name for name in missing if name not in asked]


def _listed(missing: Mapping[str, str], asked: Mapping[str, Any]) -> str:
    """How many runs are missing, and what else by name."""
    runs = sum(name in asked for name in missing)
    others = _others(missing, asked)
    return ", ".join([f"{runs} run{'s' * (runs > 1)}", *others] if runs else others)


def _missing(folder: Folder) -> dict[str, str]:
    """The runs and references of a study that are not here with all of their rows, each with what is missing."""
    if not folder.asked:
        return {}
    counts = Counter(row.run for row in folder.rows)
    found = {}
    for name, about in folder.asked["runs"].items():
        if counts[name] < about["rows"]:
            lacking = f"{about['rows'] - counts[name]} of {about['rows']} rows"
            found[name] = lacking if counts[name] else "not measured"
    counted = {row.encoding for row in folder.rows if row.kind == "reference"}
    found |= {name: "not counted" for name in study.load(folder.study).references if name not in counted}
    gone_on = {row.run for row in folder.rows if row.init_from is not None}
    if len(gone_on) < folder.further:
        found["init_from"] = f"{folder.further - len(gone_on)} of {folder.further} runs that go on from one of these"
    return found


def _about(folder: Folder) -> str:
    """Commands, environment, time, runs, and what is missing."""
    lines = ["```", *folder.commands, f"python scripts/results.py collect {folder.path.name}", COMMAND, "```", ""]
    if not folder.rows:
        return "\n".join([*lines, "Nothing has been measured yet."])
    runs = [Run(path) for path in sorted(folder.runs.iterdir()) if (path / "run.json").is_file()]
    counts, seconds = Counter(row.run for row in folder.rows), [run.status().get("seconds") or 0.0 for run in runs]
    evaluation = sum(row.seconds or 0.0 for row in folder.rows)
    facts = {
        "versions": _said(", ".join(f"{k} {v}" for k, v in run.record.get("versions", {}).items()) for run in runs),
        "code": _said(f"commit {commit[0][:7]}" for run in runs if (commit := run.record.get("commit"))),
        "device": _said(f"{row.device}, {row.threads} thread{'s' * (row.threads != 1)}" for row in folder.rows),
        "training": f"{duration(sum(seconds))} of single runs, {duration(statistics.median(seconds))} each (median)",
        "evaluation": f"{duration(evaluation)} for {len(folder.rows):,} rows",
    }
    lines += ["| | |", "| :--- | :--- |", *(f"| {key} | {value} |" for key, value in facts.items() if value), ""]
    missing = _missing(folder)
    if missing:
        lines += ["**Missing:**", "", *(f"- `{name}`: {what}" for name, what in missing.items()), ""]
    else:
        lines += ["Nothing is missing of what was asked for.", ""]
    columns = [tables.Column("run", "run", right=False), tables.Column("tokens", "tokens")]
    columns += [
        tables.Column("valid", "validation, nats"),
        tables.Column("took", "training"),
        tables.Column("rows", "rows"),
    ]
    shown = [
        {
            "run": run.name,
            "tokens": run.status().get("tokens"),
            "valid": run.status().get("valid"),
            "took": duration(took) if took else "",
            "rows": counts[run.name],
        }
        for run, took in zip(runs, seconds, strict=True)
    ]
    lines += tables.render(tables.table("", columns, shown), "md").splitlines()[2:]
    return "\n".join(lines)


def _said(texts: Any) -> str:
    return "; ".join(sorted(set(filter(None, texts))))


# All of it ------------------------------------------------------------------------------------------------------------


def rebuild(results: Path, chosen: Sequence[str] = ()) -> list[Path]:
    """Write what is made, and take away what is made no more; returns the files that have changed."""
    return [file for file, content in _differing(results, chosen) if _write(file, content)]


def check(results: Path) -> list[Path]:
    """The files that `rebuild` would change."""
    return [file for file, _ in _differing(results)]


def _differing(results: Path, chosen: Sequence[str] = ()) -> Iterator[tuple[Path, bytes | None]]:
    """Files that are not as they are made, with what they should hold; None: nothing."""
    for folder in folders(results, chosen):
        wanted = {folder.path / name: content for name, content in made(folder).items()}
        wanted |= dict.fromkeys(file for file in _files(folder.path) if file not in wanted)
        for file, content in wanted.items():
            if (file.read_bytes() if file.is_file() else None) != content:
                yield file, content
    for file, text in pages(results, folders(results)).items():
        if file.read_text(encoding="utf-8") != text:
            yield file, text.encode()


def _write(file: Path, content: bytes | None) -> bool:
    if content is None:
        file.unlink()
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(file, content)
    return True


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("collect", "rebuild", "check"))
    parser.add_argument("folder", nargs="*", help="of results/studies.yaml; none: all of them")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    given = parser.parse_args(words)
    try:
        folders(given.results, given.folder)
        if given.action == "collect":
            for folder in folders(given.results, given.folder):
                print(f"{folder.path.name}: {collect(folder):,} new rows")
            return 0
        changed = check(given.results) if given.action == "check" else rebuild(given.results, given.folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    for file in changed:
        print(file if given.action == "rebuild" else f"not as it is made: {file}")
    if not changed:
        print("All of it is as its rows give it.")
    return int(bool(changed) and given.action == "check")


if __name__ == "__main__":
    sys.exit(main())
