"""The page of a report: one HTML file that needs nothing beside it, with figures, tables, claims and where each number
is from; figures as SVG and PNG and all tables lie beside it.

    DIR/index.html
    DIR/figures/NAME.svg, NAME.png
    DIR/tables.md, tables.csv, tables.json, tables.tex

The same rows give the same files. A number leads to the row it is from, a row to its run, with command and hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import posbench
from posbench import files
from posbench.errors import UserError, reason
from posbench.records import Row, digest8, extension_label, file_name
from posbench.report import claims, published, tables
from posbench.report.basis import Recorded, basis, recorded
from posbench.report.claims import Claim, Verdict
from posbench.report.costs import cost_table
from posbench.report.curves import texts
from posbench.report.documents import alike, document_tables, names
from posbench.report.figures import Bench, Drawing, drawings, need
from posbench.report.figures.drawing import variables
from posbench.report.lengths import length_tables
from posbench.report.parts import Part, parts
from posbench.report.positions import position_tables
from posbench.report.recipes import recipe_table
from posbench.report.summary import summary_table
from posbench.report.tables import Table

FORMS = {"md": "md", "csv": "csv", "json": "json", "tex": "latex"}
"""Of the tables beside the page, by the ending of their file."""

GENERATOR = '<meta name="generator" content="posbench">'
"""By which a page is known as one."""


@dataclass(frozen=True)
class Report:
    """What a page is made of."""

    title: str
    rows: Sequence[Row]
    command: str
    """The command line that makes it."""
    claims: Sequence[Claim] = ()
    note: str | None = None
    """What a reader of its numbers has to know first."""
    bench: Bench = ()
    images: Sequence[str] = ("svg", "png")
    """Forms in which each figure lies beside it."""
    measured_by: Sequence[str] = ()
    """The commands that train and read what it is about; each run has its own of training."""
    digits: int | None = None
    """Of the numbers in csv and json; None: all. Other processors add in another order, and differ in the last ones."""


@dataclass(frozen=True)
class Group:
    """Tables under one heading."""

    name: str
    title: str
    tables: list[Table]
    long: bool = False
    """Each is shown when it is asked for."""


@dataclass(frozen=True)
class Content:
    """What is said in words and numbers."""

    verdicts: list[Verdict]
    groups: list[Group]

    @property
    def tables(self) -> list[Table]:
        found = [table for group in self.groups for table in group.tables]
        return [*found, *([claims.claims_table(self.verdicts)] if self.verdicts else [])]


def content(report: Report) -> Content:
    """The claims held against the rows, and every table."""
    verdicts = claims.judge(report.claims, report.rows, report.bench)
    return Content(verdicts, _groups(report, verdicts))


def write(report: Report, folder: Path) -> Path:
    """Write the page and what lies beside it; returns the path of the page.

    Raises `UserError` where what figures are drawn with is not installed, or `folder` holds something else; then
    nothing was written.
    """
    need()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and the report needs a folder.", "Name another with --out.")
    made = _files(report, folder)
    _refuse_others(made, page := folder / "index.html")
    for place in (folder, folder / "figures"):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{place} cannot be made: {reason(error)}.", "Name another with --out.") from error
    for path, render in made.items():
        files.write_bytes(path, render())
    return page


def _files(report: Report, folder: Path) -> dict[Path, Callable[[], bytes]]:
    """What lies in the folder of a report, by its path. The page is the first: by it the rest is known as posbench's,
    also where a kill has left only some of it."""
    drawn, said = drawings(report.rows, report.bench), content(report)

    def table(form: str) -> bytes:
        return tables.render(said.tables, form, digits=report.digits).encode()

    return {
        folder / "index.html": lambda: html(report, said, drawn).encode(),
        **{folder / f"tables.{ending}": partial(table, form) for ending, form in FORMS.items()},
        **{
            folder / "figures" / f"{drawing.name}.{form}": getattr(drawing, form)
            for drawing in drawn
            for form in report.images
        },
    }


def _refuse_others(paths: Iterable[Path], page: Path) -> None:
    """Raise `UserError` where something stands at one of the paths that no report has written."""
    there = [path for path in paths if path.exists()]
    for path in there:
        if path.is_dir():
            raise UserError(f"{path} is a folder, and a file of the report goes there.", "Name another with --out.")
    if there and (page not in there or GENERATOR.encode() not in page.read_bytes()[:2000]):
        raise UserError(f"{there[0]} was not written by posbench report.", "Name another folder with --out.")


def html(report: Report, said: Content, drawn: Sequence[Drawing]) -> str:
    """The text of the page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def markup(table: Table) -> Markup:
        return Markup(tables.html(table, known))

    known = {digest8(row) for row in report.rows}
    records = {row.run: recorded(row) for row in {row.run: row for row in report.rows}.values()}
    environment = Environment(
        loader=PackageLoader("posbench.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"table": markup, "linked": lambda text: Markup(tables.linked(text))}
    environment.globals |= {"digest8": digest8, "extension_label": extension_label}
    return environment.get_template("page.html").render(
        report=report,
        generator=Markup(GENERATOR),
        style=Markup((Path(__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")),
        colours={"light": variables(), "dark": variables(dark=True)},
        summaries=[found for group in texts(report.rows) if (found := summary_table(group, report.bench)) is not None],
        basis=basis(report.rows, records),
        drawings=[(drawing, Markup(drawing.inline())) for drawing in drawn],
        groups=said.groups,
        claims=_claims(said.verdicts),
        runs=_runs(report.rows, records),
        rows=sorted(report.rows, key=lambda row: (row.kind, row.run, row.protocol, row.extension or "", row.length)),
        file_name=file_name,
        made=_made(report),
    )


def _groups(report: Report, verdicts: Sequence[Verdict]) -> list[Group]:
    """Every table, under its heading; without those that there is nothing for."""
    found = parts(report.rows)
    flat = [part for part in found if part.shared["protocol"] == "nonoverlapping"]
    failing, costs = claims.failure_table(report.rows), cost_table(report.bench)
    groups = [
        Group("tables-lengths", "Perplexity by length", length_tables(report.rows)),
        Group("tables-recipes", "Other recipes", [one for part in found if (one := recipe_table(part))]),
        Group("tables-fails", "Where each fails", [failing] if failing else []),
        Group(
            "tables-positions", "Loss by position", [one for one in position_tables(report.rows) if one.records], True
        ),
        Group("tables-cost", "Cost", [costs] if costs else []),
        Group("tables-paper", "Beside the paper", [one for part in flat if (one := published.beside(part))]),
        Group("tables-documents", "Document by document", _documents(found, verdicts), True),
    ]
    return [group for group in groups if group.tables]


def _documents(found: Sequence[Part], verdicts: Sequence[Verdict]) -> list[Table]:
    tables = [one for part in found for one in document_tables(part, names(part.one))]
    documents = _read(verdicts)
    left_out = claims.left_out_table(verdicts, documents) if len(documents) > 1 else None
    return [*tables, *([left_out] if left_out else [])]


def _read(verdicts: Sequence[Verdict]) -> dict[str, list[int]]:
    """The documents that primary claims were held against, in groups by name."""
    primary = [verdict for verdict in verdicts if verdict.claim.primary and verdict.rows and verdict.comparison]
    blocks = [one for verdict in primary if verdict.comparison for one in verdict.comparison.blocks]
    numbers = {int(number) for one in blocks for number in one.document}
    return alike(primary[0].rows[0], numbers) if primary else {}


def _claims(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Verdicts in the order in which they are shown, each with a table of its own, and how many there are of each."""
    if not verdicts:
        return {}
    whole = claims.claims_table(verdicts)
    ordered = claims.in_order(verdicts)
    shown = []
    for verdict, section in zip(ordered, whole.sections, strict=True):
        one = Table("", whole.columns, [tables.Section("", section.rows)])
        marked, _, heading = section.title.partition(": ")
        shown.append({"verdict": verdict, "marked": marked, "heading": heading, "table": one})
    count = Counter(verdict.text for verdict in ordered)
    return {"title": whole.title, "shown": shown, "count": count, "notes": whole.notes}


def _runs(rows: Sequence[Row], known: Mapping[str, Recorded]) -> list[dict[str, Any]]:
    """What is known of each run: from its record where that is there, else from its rows."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.run, []).append(row)
    return [_run(name, of, *known[name]) for name, of in sorted(by_name.items())]


def _run(name: str, rows: Sequence[Row], record: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    one = rows[0]
    facts: dict[str, Any] = {"hash": one.run_hash, "encoding": one.encoding}
    if one.kind == "run":
        facts |= {"seed": one.seed, "L": one.train_length, "model": f"{one.model}, {one.heads} heads x {one.head_dim}"}
        facts |= {"training tokens": f"{one.train_tokens:,}" if one.train_tokens else None}
    facts |= {"trained on" if one.kind == "run" else "counted on": f"{one.trained_on}, tokenizer {one.tokenizer}"}
    if record:
        facts |= {"validation loss": f"{status['valid']:.4f} nats a token"} if status.get("valid") else {}
        facts |= {"parameters": f"{record['parameters']['total']:,}"} if "parameters" in record else {}
        decided = {key: value for key, value in record["decisions"].items() if key != "reasons"}
        facts["decided"] = ", ".join(f"{key} {value}" for key, value in decided.items())
        facts["versions"] = ", ".join(f"{key} {value}" for key, value in record.get("versions", {}).items())
        facts["commit"] = _commit(*(record.get("commit") or (None, None)))
    facts["text"] = f"corpus {one.corpus_hash[:12]}, tokenizer {one.tokenizer_hash[:12]}"
    return {
        "name": name,
        "command": record.get("command"),
        "rows": len(rows),
        "facts": {k: v for k, v in facts.items() if v},
    }


def _commit(commit: str | None, dirty: bool | None) -> str | None:
    return f"{commit[:12]}{' with changes' if dirty else ''}" if commit else None


def _made(report: Report) -> Mapping[str, str]:
    """How it was made: of the page its command, of its rows the commands, and where and when they were measured."""
    rows = report.rows
    where = sorted({f"{row.device}, {row.threads} thread{'s' * (row.threads != 1)}" for row in rows})
    kernels = sorted({f"{row.kernel} ({row.kernel_reason})" for row in rows if row.kernel})
    commits = sorted({text for row in rows if (text := _commit(row.commit, row.dirty))})
    seconds = sum(row.seconds or 0.0 for row in rows)
    made = {
        "this page": report.command,
        "its study": "\n".join(report.measured_by),
        "posbench": posbench.__version__,
        "numbers": f"{len(rows):,} of {len({row.run for row in rows})} runs and references",
        "measured": f"{min(row.time for row in rows)} to {max(row.time for row in rows)} UTC, {seconds:,.0f} s in all",
        "on": "; ".join(where),
        "kernels": "; ".join(kernels) or "none",
        "commits": "; ".join(commits) or "an installed posbench",
    }
    return {name: text for name, text in made.items() if text}
