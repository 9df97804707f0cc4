"""The loss of each document, from the blocks behind the rows; and what it is called, where that is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from typing import Any

import numpy as np

from posbench import data
from posbench.compose import load_group
from posbench.data.tokens import read_header
from posbench.errors import UserError
from posbench.files import parse_json
from posbench.records import Row, digest8
from posbench.report.lengths import UNCERTAINTY, loss_text
from posbench.report.parts import Line, Part, Value, how, mean_value, text_error
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell
from posbench.statistics import Blocks, contrast


def names(row: Row) -> dict[int, str]:
    """Names of the documents of its split by their number, from prepared text of the same corpus; none where there is
    none of it on this machine."""
    found = _prepared(row)
    return {} if found is None else dict(enumerate(found[1]))


def alike(row: Row, numbers: Iterable[int]) -> dict[str, list[int]]:
    """Of these documents of its split those that belong together, each group by its name: what one pattern of the split
    took in, such as the messages of one president; a document that no pattern took in by itself."""
    prepared, named = _prepared(row), names(row)
    patterns = [] if prepared is None else _patterns(prepared[0], row.split)
    found: dict[str, list[int]] = {}
    for number in sorted(numbers):
        name = named.get(number, f"document {number}")
        pattern = next((one for one in patterns if fnmatch(name, one)), name)
        found.setdefault(re.sub(r"^[\W_]+|[\W_]+$", "", pattern), []).append(number)
    return found


def _prepared(row: Row) -> tuple[dict[str, Any], list[str]] | None:
    """The settings of the corpus of a row and the names of the documents of its split."""
    for header in sorted(data.root().glob("*/header.json")):
        try:
            corpus = read_header(header.parent)["corpus"]
            if corpus["fingerprint"] == row.corpus_hash:
                found = parse_json((header.parent / f"{row.split}.names.json").read_bytes())
                return corpus.get("data", {}), [str(name) for name in found]
        except (UserError, OSError, ValueError, KeyError, TypeError):  # damaged, or of another posbench: no names
            continue
    return None


def _patterns(settings: Mapping[str, Any], split: str) -> list[str]:
    """By which a corpus chose the documents of a split; of several joined those of each."""
    with suppress(UserError):
        parts = [load_group("data", part) for part in settings.get("parts") or []]
        found = [one.get(split) for one in (settings, *parts)]
        return [pattern for some in found if isinstance(some, list) for pattern in some]
    return []  # a part that is no choice here


def document_tables(part: Part, named: Mapping[int, str]) -> list[Table]:
    """Documents down, lines across: one table at the training length of each line, one at the longest of the part. None
    where fewer than two documents were read."""
    longest = part.lengths[-1]
    everything = [*part.lines, *part.references]
    own = {id(line): line.train_length or longest for line in everything}
    tables = [
        _table(f"at L: {how(part)}", [(line, own[id(line)]) for line in everything], named),
        _table(f"at {longest:,}: {how(part)}", [(line, longest) for line in everything], named)
        if any(length != longest for length in own.values())
        else None,
    ]
    return [table for table in tables if table is not None]


def _table(where: str, read: Sequence[tuple[Line, int]], named: Mapping[int, str]) -> Table | None:
    lengths = {id(line): length for line, length in read}
    lines = [line for line, length in read if line.measured(length)]
    found = {id(line): _losses(line, lengths[id(line)]) for line in lines}
    numbers = sorted({number for losses in found.values() for number in losses})
    if len(numbers) < 2:
        return None
    titles = [line.name if line.train_length is None else f"{line.name} {line.train_length:,}" for line in lines]
    columns = [Column("document", "document", right=False), Column("targets", "targets")]
    columns += [Column(title, title) for title in titles]
    rows, entries = [], list[dict[str, Any]]()
    for number in numbers:
        name = named.get(number, f"document {number}")
        losses = [found[id(line)].get(number) for line in lines]
        count = next(loss[0] for loss in losses if loss)
        shown = [
            EMPTY
            if loss is None
            else Cell(loss[1].value, loss_text(loss[1]), source=digest8(line.measured(lengths[id(line)])[0]))
            for loss, line in zip(losses, lines, strict=True)
        ]
        rows.append([cell(name), cell(count), *shown])
        entries += [
            {"document": name, "label": line.name, "train_length": line.train_length, "targets": count}
            | {"length": lengths[id(line)], "loss": loss[1].value, "loss_error": loss[1].error, "seeds": loss[1].seeds}
            for loss, line in zip(losses, lines, strict=True)
            if loss
        ]
    title = f"Nats a token of each document {where}"
    notes = [f"The mean over seeds; after each name its L. {UNCERTAINTY}; none of a document that is one block."]
    return Table(title, columns, [Section("", rows)], notes, entries)


def _losses(line: Line, length: int) -> dict[int, tuple[int, Value]]:
    """Targets of each document, and nats a token."""
    seeds = [contrast([(1, row)]) for row in line.measured(length) if row.arrays_sha256 is not None]
    if not seeds:
        return {}
    found = {}
    for number in np.unique(seeds[0].document).tolist():
        at = seeds[0].document == number
        own = [Blocks(blocks.document[at], blocks.count[at], blocks.nats[at]) for blocks in seeds]
        error = text_error(own[0]) if len(own) == 1 else None
        found[number] = (int(own[0].count.sum()), mean_value([blocks.mean for blocks in own], error))
    return found
