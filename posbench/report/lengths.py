"""The table of a comparison: encodings down, window lengths across, from rows alone.

One table a part: perplexity, its ratio to the value at the training length, bits per byte gained over `none`; of
extensions the nats they gain over the encoding as it was trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from posbench.errors import UserError
from posbench.records import Row, digest8
from posbench.report.parts import (
    SHARED,
    UNDERTRAINED,
    Line,
    Part,
    Value,
    before_target,
    bits_gained,
    exponential,
    gain,
    how,
    marked,
    order,
    parts,
    shape_text,
)
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell
from posbench.run import Run

UNCERTAINTY = "± is the standard error over the text for one seed, the standard deviation over seeds for more"


def length_tables(rows: Iterable[Row]) -> list[Table]:
    """One table a part."""
    found = parts(rows)
    return numbered([_table(part) for part in found], found)


def numbered(tables: list[Table], found: Sequence[Part]) -> list[Table]:
    """The tables of parts; when there are several, each says which it is and the first why."""
    if len(tables) > 1:
        titles = told_apart([one.title for one in tables], found)
        for number, (one, title) in enumerate(zip(tables, titles, strict=True), start=1):
            one.title = f"Part {number} of {len(tables)}, {title}"
        differing = [name for key, name in SHARED.items() if len({part.shared[key] for part in found}) > 1]
        tables[0].notes.append(
            f"In {len(tables)} parts, because the rows differ in {listed(differing)}: numbers of two parts do not "
            "compare."
        )
    return tables


def told_apart(titles: Sequence[str], found: Sequence[Part]) -> list[str]:
    """The titles of parts, none of them twice: equal ones go on with their number of targets, then with what no reader
    could tell apart but by its hash."""
    tells = [[f"{part.one.targets:,} targets" for part in found]]
    for key in ("targets_digest", "corpus_hash", "tokenizer_hash"):
        tells.append([f"{SHARED[key]} {part.shared[key][:8]}" for part in found])
    told = list(titles)
    for words in tells:
        told = [f"{one}, {word}" if told.count(one) > 1 else one for one, word in zip(told, words, strict=True)]
    return told


def _table(part: Part) -> Table:
    """Up to three sections over the same columns, all written from the records that csv and json give."""
    extended = any(line.one.extension is not None or line.one.extended for line in part.lines)
    columns = [Column("encoding", "encoding", right=False)]
    columns += [Column("extension", "extension", right=False)] if extended else []
    columns += [Column("train_length", "L"), Column("seeds", "seeds")]
    columns += [Column(str(length), f"{length:,}") for length in part.lengths]
    records = {
        (id(line), length): _record(line, length, _none_like(line, part), _as_trained(line, part))
        for line in [*part.lines, *part.references]
        for length in part.lengths
        if length in line.rows
    }
    for length in part.lengths:
        models, others = (
            [found for line in lines if (found := records.get((id(line), length))) is not None]
            for lines in (part.lines, part.references)
        )
        _mark_best(models, others)
    reasons = Reasons()

    def section(
        title: str, lines: Sequence[Line], text: Callable[[Line, dict[str, Any]], str], ranked: bool = False
    ) -> Section:
        def told(line: Line, record: dict[str, Any]) -> str:
            return text(line, record) if record["status"] == "ok" else reasons.mark(record["reason"])

        rows = []
        for line in lines:
            found = [records.get((id(line), length)) for length in part.lengths]
            cells = [
                Cell(None, "- ") if record is None else _starred(record, told(line, record), ranked) for record in found
            ]
            rows.append([*_head(line, extended), *cells])
        return Section(title, rows)

    sections, gained = [section("Perplexity", part.lines, _value_text, ranked=True)], list[str]()
    if part.references:
        sections.append(section("", part.references, _value_text))
    if any(record["ratio"] is not None and record["ratio"] != 1 for record in records.values()):
        sections.append(section("Ratio to the value at L", part.lines, _ratio_text))
    if any(record["gain_bits_per_byte"] is not None for record in records.values()):
        title = "Bits per byte gained over `none` at the same length, trained alike"
        sections.append(section(title, part.lines, _gain_text))
        gained.append("Bits gained are of equal seeds, ± is over them; a single pair of runs has none.")
        if _none_worsens(part):
            gained.append(
                "Past L the bits gained also grow because `none` gets worse there: a gain that rises is no perplexity "
                "that falls."
            )
    if any(record["gain_nats"] is not None for record in records.values()):
        title = "Nats a token gained by the extension over the same checkpoint as it was trained"
        lines = [line for line in part.lines if line.one.extension is not None]
        sections.append(section(title, lines, _extension_gain_text))
    notes = [*_notes(part), *gained, *reasons.notes()]
    return Table(part_title(part), columns, sections, notes, list(records.values()))


def _record(line: Line, length: int, none: Line | None, trained: Line | None) -> dict[str, Any]:
    """One line and length, unrounded."""
    row = line.rows[length][0]
    loss, ratio = line.loss(length), line.ratio(length)
    perplexity = exponential(loss) if loss else None
    bits = bits_gained(line, none, length) if none else None
    one_seed = loss is not None and loss.seeds == 1
    gained = gain(line, trained, length) if trained else None
    return {
        "encoding": row.encoding,
        "label": line.name,
        "extension": line.extension if line.one.kind == "run" else None,
        "kind": row.kind,
        "train_length": row.train_length,
        "length": length,
        "protocol": row.protocol,
        "stride": row.stride,
        "block": row.block,
        "min_context": row.min_context,
        "corpus": row.corpus,
        "tokenizer": row.tokenizer,
        "split": row.split,
        "targets_digest": row.targets_digest,
        "targets": row.targets,
        "documents": row.documents,
        "seeds": loss.seeds if loss and row.kind == "run" else None,
        "status": "ok" if loss else "n/a",
        "reason": None if loss else row.reason,
        "loss": loss and loss.value,
        "loss_standard_error": loss.error if loss and one_seed else None,
        "loss_seed_deviation": loss.error if loss and not one_seed else None,
        "perplexity": perplexity and perplexity.value,
        "perplexity_error": perplexity and perplexity.error,
        "ratio": ratio and ratio.value,
        "ratio_error": ratio and ratio.error,
        "bits_per_byte": line.bits_per_byte(length),
        "gain_bits_per_byte": bits and bits.value,
        "gain_bits_per_byte_error": bits and bits.error,
        "gain_bits_per_byte_seeds": bits and bits.seeds,
        "gain_nats": gained and gained.value,
        "gain_nats_error": gained and gained.error,
        "undertrained": line.undertrained,
        "model": row.model,
        "heads": row.heads,
        "head_dim": row.head_dim,
        "train_tokens": row.train_tokens,
        "dtype": row.dtype,
        "runs": [one.run for one in line.rows[length]],
        "rows": [digest8(one) for one in line.rows[length]],
        "best": False,
    }


def _mark_best(records: list[dict[str, Any]], references: list[dict[str, Any]]) -> None:
    """The lowest of a column, where there is more than one to choose from and no reference is lower."""
    measured = [record for record in records if record["perplexity"] is not None]
    if len(measured) > 1:
        best = min(measured, key=lambda record: record["loss"])
        best["best"] = all(best["loss"] <= reference["loss"] for reference in references)


def _none_like(line: Line, part: Part) -> Line | None:
    """The line of `none` that was trained like `line`."""
    like = (line.one.kind, line.one.setup, line.one.dtype)
    return next(
        (
            one
            for one in part.lines
            if one is not line
            and (one.one.encoding, one.one.extension) == ("none", None)
            and (one.one.kind, one.one.setup, one.one.dtype) == like
        ),
        None,
    )


def _none_worsens(part: Part) -> bool:
    """Whether what others are held against loses more at some length past L than at L."""
    for base in [base for line in part.lines if (base := _none_like(line, part)) is not None]:
        home = base.mean(base.train_length or 0)
        past = [base.mean(length) for length in part.lengths if length > (base.train_length or 0)]
        if home is not None and any(loss is not None and loss > home for loss in past):
            return True
    return False


def _as_trained(line: Line, part: Part) -> Line | None:
    """The line of the same runs without an extension; None for one that has none."""
    if line.one.extension is None:
        return None
    return next((one for one in part.lines if one.one.extension is None and one.trained == line.trained), None)


def _head(line: Line, extended: bool) -> list[Cell]:
    label = [cell(marked(line.label, line.undertrained))]
    if line.one.kind == "reference":
        return [*label, *([EMPTY] if extended else []), EMPTY, EMPTY]
    return [*label, *([cell(line.extension)] if extended else []), cell(line.train_length), cell(line.seeds)]


def _starred(record: dict[str, Any], text: str, ranked: bool) -> Cell:
    """The star marks the training length; a space where none stands keeps the digits below each other."""
    star = "*" if record["length"] == record["train_length"] else " "
    return Cell(text, text and text + star, ranked and record["best"], record["rows"][0])


class Reasons:
    """Letters for the reasons of n/a cells, in the order in which they come up."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def mark(self, reason: str) -> str:
        """The text of such a cell."""
        return f"n/a ({self.letters.setdefault(reason, chr(ord('a') + len(self.letters)))})"

    def notes(self) -> list[str]:
        return [f"n/a ({letter}): {reason}" for reason, letter in self.letters.items()]


def _value_text(line: Line, record: dict[str, Any]) -> str:
    return _counted(perplexity_text(record["perplexity"], record["perplexity_error"]), record["seeds"], line)


def _counted(text: str, seeds: int | None, line: Line) -> str:
    """With the number of seeds that it is of, where these are not all of its line."""
    return text if seeds in (None, line.seeds) else f"{text} of {seeds}"


def _ratio_text(line: Line, record: dict[str, Any]) -> str:
    return "" if record["ratio"] is None else ratio_text(record["ratio"], record["ratio_error"])


def _gain_text(line: Line, record: dict[str, Any]) -> str:
    value = record["gain_bits_per_byte"]
    text = _signed(value, record["gain_bits_per_byte_error"], 3)
    return _counted(text, record["gain_bits_per_byte_seeds"], line)


def _extension_gain_text(line: Line, record: dict[str, Any]) -> str:
    return _signed(record["gain_nats"], record["gain_nats_error"], 4)


def _signed(value: float | None, error: float | None, digits: int) -> str:
    """Such as "+0.2231 ±0.0008"; "" of none."""
    if value is None:
        return ""
    # Adding zero turns -0.0 into 0.0.
    return f"{round(value, digits) + 0.0:+.{digits}f}" + ("" if error is None else f" ±{error:.{digits}f}")


def part_title(part: Part) -> str:
    """How and on what a part was measured."""
    row = part.one
    return f"{how(part)}: {row.split} split of {row.corpus}, tokenizer {row.tokenizer} ({row.vocab_size:,})"


def _notes(part: Part) -> list[str]:
    notes = [before_target(part)]
    if len(part.lines) > 1:
        notes.append(order(part))
    if part.lines:
        notes.append(
            f"* at the training length L. {UNCERTAINTY}: no interval. One seed says nothing about another, two little."
        )
    shapes = sorted({shape_text(line.one) for line in part.lines})
    if len(shapes) == 1:
        row = part.lines[0].one
        notes.append(f"Model {row.model}, heads x head width {row.heads} x {row.head_dim}.")
    elif shapes:
        notes.append("Models of different size: in brackets model, heads x head width.")
    measured = [
        row for line in [*part.lines, *part.references] for length in part.lengths for row in line.measured(length)
    ]
    if measured:
        documents = measured[0].documents
        notes.append(
            f"{measured[0].targets:,} targets of {documents} document{'s' * (documents != 1)} at every length."
        )
    notes.append("One end token begins the text and is not scored; no window has a prefix of its own.")
    if part.shared["protocol"] == "nonoverlapping" and len(part.lengths) > 1:
        notes.append(
            "Longer windows leave fewer targets early in a window, so perplexity falls with the length unless the "
            "model gets worse past L; same-targets is free of that."
        )
    if any(line.one.extension is not None for line in part.lines):
        notes.append(
            "extension: a change to the trained encoding, no further training; as it stands, or with factor auto, by "
            "length / L, where a run was trained with an extension by length / the L before that. Its gain holds for "
            "this checkpoint on this text; ± is its paired standard error."
        )
    stretched = {line.label: None for line in part.lines if line.one.extended and line.one.extension is not None}
    if stretched:
        notes.append(
            f"Of {listed(list(stretched))}, trained under an extension: `as trained` is under it, `none` without it; "
            "any other extension takes its place."
        )
    if any(line.undertrained for line in part.lines):
        notes.append(UNDERTRAINED)
    notes += [f"{line.name} at L = {line.train_length:,}: {caveat}" for line in part.lines if (caveat := _caveat(line))]
    if part.references:
        notes.append("unigram, bigram: counted on the training split, no model.")
    return notes


def _caveat(line: Line) -> str | None:
    """What the record of a run says of its encoding at that training length; rows away from their run say nothing."""
    path = line.one.path
    if path is None:
        return None
    with contextlib.suppress(UserError):
        return Run(path.parents[1]).record.get("caveat")
    return None


def perplexity_text(value: float, error: float | None = None) -> str:
    """Such as "43.40 ±0.52": two decimals, fewer when the number is large; "inf" when no float holds it."""
    if value >= 1e7:
        return f"{value:.3g}"
    digits = 2 if value < 1000 else 1 if value < 1e5 else 0
    return f"{value:.{digits}f}" + ("" if error is None else f" ±{error:.{digits}f}")


def loss_text(loss: Value) -> str:
    """Nats a token, such as "3.689 ±0.021"."""
    return f"{loss.value:.3f}" + ("" if loss.error is None else f" ±{loss.error:.3f}")


def ratio_text(value: float, error: float | None = None) -> str:
    """Such as "0.977 ±0.004"."""
    if value >= 1e7:
        return f"{value:.3g}"
    return f"{value:.3f}" + ("" if error is None else f" ±{error:.3f}")


def ratio_cell(value: float, low: float | None, high: float | None, source: str) -> Cell:
    """Such as "0.977 [0.970, 0.985]": a ratio with the ends of its interval, where it has one."""
    interval = "" if low is None or high is None else f" [{ratio_text(low)}, {ratio_text(high)}]"
    return Cell(value, ratio_text(value) + interval, source=source)


def listed(words: Sequence[str]) -> str:
    """Such as "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
