"""What the numbers of a report rest on, so that nobody reads more into them: seeds, models, training, text, lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posbench.errors import UserError
from posbench.records import Row
from posbench.report.parts import trained_as
from posbench.run import Run

Recorded = tuple[dict[str, Any], dict[str, Any]]
"""Record and status of a run; both empty where its folder is gone, or damaged."""


def basis(rows: Sequence[Row], known: Mapping[str, Recorded]) -> dict[str, str]:
    """Each by its name, in words, from rows and what is `known` of the runs by their names; nothing where no run was
    read."""
    runs = list({row.run: row for row in rows if row.kind == "run"}.values())
    if not runs:
        return {}
    seeds: dict[tuple[Any, ...], set[int | None]] = {}
    for row in runs:
        seeds.setdefault(trained_as(row), set()).add(row.seed)
    records, statuses = zip(*(known[row.run] for row in runs), strict=True)
    read = [row for row in rows if row.status == "ok"]
    found = {
        "seeds": f"{_between(len(one) for one in seeds.values())} of each recipe",
        "models": _listed(f"{row.model}, {row.heads} heads x {row.head_dim}" for row in runs),
        "parameters": _between(record.get("parameters", {}).get("total") for record in records),
        "trained on": _listed(f"{row.trained_on}, tokenizer {row.tokenizer} of {row.vocab_size:,}" for row in rows),
        "training tokens": _between(row.train_tokens for row in runs),
        "epochs": _between((status.get("epochs") for status in statuses), ".2f"),
        "trained at": f"{_between(row.train_length for row in runs)} tokens",
        "read": _listed(f"{row.split} split of {row.corpus}" for row in rows),
        "documents behind a number": _between(row.documents for row in read),
        "targets behind a number": _between(row.targets for row in read),
        "read at": f"{_between(row.length for row in rows)} tokens at once",
    }
    return {name: text for name, text in found.items() if text}


def recorded(row: Row) -> Recorded:
    """What is known of its run."""
    if row.path is None:
        return {}, {}
    try:
        run = Run(row.path.parents[1])
        return run.record, run.status()
    except (UserError, OSError):
        return {}, {}


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _between(numbers: Iterable[Any], form: str = ",") -> str:
    """The one number, or from the smallest to the largest, of those that are known.

    >>> _between([1_709, None, 854]), _between([3, 3]), _between([None])
    ('854 to 1,709', '3', '')
    """
    there = [number for number in numbers if number is not None]
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (min(there), max(there)))) if there else ""
