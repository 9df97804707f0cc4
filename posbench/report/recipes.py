"""Encodings that were trained by several recipes: whether what is found hangs on one of them."""

from __future__ import annotations

from typing import Any

from posbench.records import digest8
from posbench.report.lengths import UNCERTAINTY, loss_text, part_title
from posbench.report.parts import Line, Part, Value
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell

SHIPPED = "as shipped"


def recipe_table(part: Part) -> Table | None:
    """Recipes down, encodings across: nats a token at the training length; None where none was trained by two."""
    lines = [line for line in part.lines if line.one.extension is None and line.train_length in line.rows]
    cells: dict[str, dict[tuple[str, int], Line]] = {}
    budgets = len({line.one.train_tokens for line in lines})
    for line in lines:
        recipe = _recipe(line) + (f", {line.one.train_tokens or 0:,} tokens" if budgets > 1 else "")
        cells.setdefault(recipe, {}).setdefault(_across(line), line)
    counts = [sum(key in row for row in cells.values()) for key in map(_across, lines)]
    if max(counts, default=0) < 2:
        return None
    across = list(dict.fromkeys(map(_across, lines)))
    several = len({length for _, length in across}) > 1
    titles = [f"{name} {length:,}" if several else name for name, length in across]
    columns = [Column("recipe", "recipe", right=False), *(Column(title, title) for title in titles)]
    losses = {key: {recipe: _loss(row[key]) for recipe, row in cells.items() if key in row} for key in across}
    lowest = {
        key: min((loss.value for loss in of.values() if loss is not None), default=None) for key, of in losses.items()
    }
    rows, records = [], list[dict[str, Any]]()
    for recipe in sorted(cells, key=lambda recipe: not recipe.startswith(SHIPPED)):
        row = cells[recipe]
        rows.append([cell(recipe), *(_cell(row.get(key), losses[key].get(recipe), lowest[key]) for key in across)])
        records += [_record(recipe, row[key], losses[key][recipe]) for key in across if key in row]
    notes = [
        "Each at its own training length. All else is as in posbench's own recipe; the mean over seeds. "
        f"{UNCERTAINTY}, and says nothing of another seed of the same recipe."
    ]
    return Table(f"Nats a token at L by recipe, {part_title(part)}", columns, [Section("", rows)], notes, records)


def _recipe(line: Line) -> str:
    """What of its training is not the default, without what says so of every such setting."""
    words = [word for word in (line.one.settings or "").split() if word.startswith(("optim.", "train."))]
    return " ".join(word.partition(".")[2] for word in words) or SHIPPED


def _across(line: Line) -> tuple[str, int]:
    assert line.train_length is not None
    return " ".join(filter(None, (line.one.encoding, line.variant))), line.train_length


def _loss(line: Line) -> Value | None:
    return line.loss(line.train_length or 0)


def _cell(line: Line | None, loss: Value | None, lowest: float | None) -> Cell:
    if line is None:
        return EMPTY
    if loss is None:
        return Cell(None, "n/a")
    source = digest8(line.measured(line.train_length or 0)[0])
    return Cell(loss.value, loss_text(loss), best=loss.value == lowest, source=source)


def _record(recipe: str, line: Line, loss: Value | None) -> dict[str, Any]:
    length = line.train_length or 0
    return {
        "recipe": recipe,
        "encoding": line.one.encoding,
        "settings": line.one.settings,
        "train_length": length,
        "train_tokens": line.one.train_tokens,
        "split": line.one.split,
        "protocol": line.one.protocol,
        "seeds": loss and loss.seeds,
        "loss": loss and loss.value,
        "loss_error": loss and loss.error,
        "runs": [row.run for row in line.rows[length]],
    }
