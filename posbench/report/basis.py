"""What the numbers of a report rest on, so that nobody reads more into them: seeds, models, training, text, lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from posbench.errors import UserError
from posbench.records import Row
from posbench.run import Run


def basis(rows: Sequence[Row]) -> dict[str, str]:
    """Each by its name, in words; nothing where no run was read."""
    runs = {row.run: row for row in rows if row.kind == "run"}
    if not runs:
        return {}
    seeds: dict[tuple[Any, ...], set[int | None]] = {}
    for row in runs.values():
        seeds.setdefault((row.encoding, row.recipe or row.run_hash, row.dtype, row.step), set()).add(row.seed)
    known = [_known(row) for row in runs.values()]
    found = {
        "seeds": f"{_between({len(one) for one in seeds.values()})} of each recipe",
        "models": _listed(f"{row.model}, {row.heads} heads x {row.head_dim}" for row in runs.values()),
        "parameters": _between({one["parameters"] for one in known} - {None}),
        "trained on": _listed(f"{row.trained_on}, tokenizer {row.tokenizer} of {row.vocab_size:,}" for row in rows),
        "tokens": _between({row.train_tokens for row in runs.values()} - {None}),
        "epochs": _between({one["epochs"] for one in known} - {None}, ".2f"),
        "trained at": ", ".join(dict.fromkeys(f"{row.train_length:,}" for row in _by_length(runs.values())))
        + " tokens",
        "read": _listed(f"{row.split} split of {row.corpus}" for row in rows),
        "documents read": _between({max(row.documents for row in rows)}),
        "read at": f"{_between({row.length for row in rows})} tokens at once",
    }
    return {name: text for name, text in found.items() if text}


def _by_length(rows: Collection[Row]) -> list[Row]:
    return sorted((row for row in rows if row.train_length), key=lambda row: row.train_length or 0)


def _known(row: Row) -> dict[str, Any]:
    """What only its folder says; None for what is not there."""
    found: dict[str, Any] = {"parameters": None, "epochs": None}
    if row.path is not None:
        with suppress(UserError, OSError):
            run = Run(row.path.parents[1])
            found["parameters"] = run.record.get("parameters", {}).get("total")
            found["epochs"] = run.status().get("epochs")
    return found


def _listed(texts: Any) -> str:
    return "; ".join(dict.fromkeys(texts))


def _between(numbers: Collection[Any], form: str = ",") -> str:
    """The one number, or from the smallest to the largest.

    >>> _between({1_709, 854}), _between({3}), _between(set())
    ('854 to 1,709', '3', '')
    """
    ends = dict.fromkeys(f"{number:{form}}" for number in (min(numbers), max(numbers))) if numbers else ()
    return " to ".join(ends)
