"""A claim is data: two measured values, the relation a paper saw between them, and where it printed it.

    name: ALiBi at 2 L is not above its value at L
    left: {encoding: alibi, train_length: 128, at: 2L}      # `at`: a multiple of the training length, or tokens
    relation: not-above                                     # less | not-above | equal
    right: {encoding: alibi, train_length: 128, at: 1L}
    margin: 0.01                                            # a share of the right perplexity
    protocol: nonoverlapping
    paper: {table: Table 5, left: [alibi, 128, 256], right: [alibi, 128, 128]}   # encoding, trained at, read at
    note: what else a reader should know of it              # optional

With one seed a relation is *seen* or *not seen* in these runs, never supported: another seed or another text may turn
it round. What no row answers is *not measured*, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posbench.errors import UserError, unknown
from posbench.records import Row
from posbench.report import published
from posbench.report.lengths import perplexity_text, ratio_text
from posbench.report.parts import Line, Part, Value, parts, ratio
from posbench.report.published import Printed
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell

RELATIONS = ("less", "not-above", "equal")
KEYS = ("name", "left", "relation", "right", "margin", "protocol", "paper", "note")


@dataclass(frozen=True)
class Selector:
    """One side of a claim: an encoding (its label) trained at one length and read at another."""

    encoding: str
    train_length: int
    length: int

    def __str__(self) -> str:
        return f"{self.encoding} trained at {self.train_length:,} and read at {self.length:,}"


@dataclass(frozen=True)
class Claim:
    """`relation` between the perplexities of `left` and `right`, and the paper's two numbers."""

    name: str
    left: Selector
    relation: str
    right: Selector
    margin: float
    protocol: str
    paper: tuple[Printed, Printed]
    note: str | None = None

    @property
    def paper_ratio(self) -> float | None:
        left, right = (entry.perplexity for entry in self.paper)
        return None if left is None or right is None else left / right

    def holds(self, ratio: float) -> bool:
        """Whether `ratio`, the left perplexity over the right, is what the claim says."""
        above = 1 + self.margin
        if self.relation == "less":
            return ratio < 1
        if self.relation == "not-above":
            return ratio <= above
        return 1 / above <= ratio <= above


@dataclass(frozen=True)
class Verdict:
    """A claim held against rows: both perplexities and their ratio, or the reason why they are not there."""

    claim: Claim
    left: Value | None = None
    right: Value | None = None
    ratio: Value | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """seen | not seen | not measured"""
        if self.ratio is None:
            return "not measured"
        return "seen" if self.claim.holds(self.ratio.value) else "not seen"


def parse(entries: Iterable[Mapping[str, Any]]) -> list[Claim]:
    """The claims of a study's YAML. Raises `UserError` for anything it cannot hold against rows."""
    return [_claim(entry) for entry in entries]


def _claim(entry: Mapping[str, Any]) -> Claim:
    for key in entry:
        if key not in KEYS:
            raise unknown("key of a claim", str(key), KEYS)
    try:
        relation, paper = entry["relation"], entry["paper"]
        if relation not in RELATIONS:
            raise unknown("relation", str(relation), RELATIONS)
        return Claim(
            name=entry["name"],
            left=_selector(entry["left"]),
            relation=relation,
            right=_selector(entry["right"]),
            margin=float(entry.get("margin", 0.0)),
            protocol=entry["protocol"],
            paper=(published.find(paper["table"], *paper["left"]), published.find(paper["table"], *paper["right"])),
            note=entry.get("note"),
        )
    except (KeyError, TypeError, ValueError) as error:
        said = error.args[0] if isinstance(error, KeyError) else error
        raise UserError(
            f"The claim {entry.get('name')!r} cannot be read: {said}.", "See posbench/report/claims.py."
        ) from error


def _selector(entry: Mapping[str, Any]) -> Selector:
    """
    >>> _selector({"encoding": "alibi", "train_length": 128, "at": "2L"}).length
    256
    """
    at, train_length = str(entry["at"]), int(entry["train_length"])
    if not re.fullmatch(r"\d+L?", at):
        raise ValueError(f"'at' is {at}, neither a multiple such as 2L nor a number of tokens")
    length = int(at[:-1]) * train_length if at.endswith("L") else int(at)
    return Selector(entry["encoding"], train_length, length)


def judge(claims: Iterable[Claim], rows: Iterable[Row]) -> list[Verdict]:
    """Each claim held against the rows. Both sides are taken from one part: only there do they compare."""
    found = parts(rows)
    return [_judge(claim, [part for part in found if part.shared["protocol"] == claim.protocol]) for claim in claims]


def _judge(claim: Claim, parts: Sequence[Part]) -> Verdict:
    verdicts = [_in_part(claim, part) for part in parts]
    # The first part that has both sides; else the one that has more of them.
    verdicts.sort(key=lambda verdict: (verdict.left is None) + (verdict.right is None))
    return verdicts[0] if verdicts else Verdict(claim, reason=f"nothing was read with {claim.protocol}")


def _in_part(claim: Claim, part: Part) -> Verdict:
    sides = (claim.left, claim.right)
    lines = [
        [
            line
            for line in part.lines
            if (line.one.encoding, line.train_length, line.one.extension) == (side.encoding, side.train_length, None)
        ]
        for side in sides
    ]
    values = [
        found[0].perplexity(side.length) if len(found) == 1 else None for side, found in zip(sides, lines, strict=True)
    ]
    reasons = [_why(side, found) for side, found, value in zip(sides, lines, values, strict=True) if value is None]
    if reasons:
        return Verdict(claim, values[0], values[1], reason=reasons[0])
    (left,), (right,) = lines
    found = ratio(left, claim.left.length, right, claim.right.length)
    return Verdict(claim, values[0], values[1], found, None if found else "the two have no seed in common")


def _why(side: Selector, lines: Sequence[Line]) -> str:
    if len(lines) > 1:
        labels = "; ".join(line.label for line in lines)
        return f"which {side.encoding} trained at {side.train_length:,} is meant: {labels}?"
    rows = lines[0].rows.get(side.length) if lines else None
    return f"{side}: {rows[0].reason}" if rows else f"there is no row of {side} on the same targets"


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """A section a statement: seen or not, the two numbers of these runs and below them the paper's."""
    columns = [
        Column("from", "from", right=False),
        Column("left_side", "trained > read", right=False),
        Column("left", "perplexity"),
        Column("right_side", "trained > read", right=False),
        Column("right", "perplexity"),
        Column("ratio", "ratio"),
    ]
    sections = [Section(_heading(verdict), [_ours(verdict), _theirs(verdict.claim)]) for verdict in verdicts]
    notes = [
        "seen: the two values of these runs stand in that relation, within the margin of the statement. One seed, one "
        "text and another model than the paper's: that neither supports nor contradicts it."
    ]
    title = "Statements of Press, Smith & Lewis 2022, https://arxiv.org/abs/2108.12409v2"
    return Table(title, columns, sections, notes, [_record(verdict) for verdict in verdicts], repeat_head=False)


def _heading(verdict: Verdict) -> str:
    claim = verdict.claim
    margin = f", within {claim.margin:.0%}" if claim.margin else ""
    asides = [text for text in (verdict.reason, claim.note) if text]
    return f"{verdict.text}: {claim.name} ({claim.protocol}{margin}){''.join(f'; {text}' for text in asides)}"


def _ours(verdict: Verdict) -> list[Cell]:
    sides = (verdict.claim.left, verdict.claim.right)
    left, right = (cell(f"{side.encoding} {side.train_length:,} > {side.length:,}") for side in sides)
    shown = [_shown(value, perplexity_text) for value in (verdict.left, verdict.right)]
    return [cell("these runs"), left, shown[0], right, shown[1], _shown(verdict.ratio, ratio_text)]


def _theirs(claim: Claim) -> list[Cell]:
    left, right = (cell(f"{entry.encoding} {entry.train_length:,} > {entry.length:,}") for entry in claim.paper)
    shown = [Cell(entry.perplexity, entry.text) for entry in claim.paper]
    ratio = EMPTY if claim.paper_ratio is None else Cell(claim.paper_ratio, ratio_text(claim.paper_ratio))
    return [cell(claim.paper[0].table), left, shown[0], right, shown[1], ratio]


def _record(verdict: Verdict) -> dict[str, Any]:
    claim, (left, right) = verdict.claim, verdict.claim.paper
    return {
        "claim": claim.name,
        "verdict": verdict.text,
        "reason": verdict.reason,
        "left": str(claim.left),
        "relation": claim.relation,
        "right": str(claim.right),
        "margin": claim.margin,
        "protocol": claim.protocol,
        "left_perplexity": verdict.left and verdict.left.value,
        "right_perplexity": verdict.right and verdict.right.value,
        "ratio": verdict.ratio and verdict.ratio.value,
        "ratio_error": verdict.ratio and verdict.ratio.error,
        "seeds": verdict.ratio and verdict.ratio.seeds,
        "paper_left": f"{left.encoding} trained at {left.train_length:,} and read at {left.length:,}",
        "paper_left_perplexity": left.perplexity,
        "paper_right": f"{right.encoding} trained at {right.train_length:,} and read at {right.length:,}",
        "paper_right_perplexity": right.perplexity,
        "paper_ratio": claim.paper_ratio,
        "source": left.source,
        "note": claim.note,
    }


def _shown(value: Value | None, text: Callable[[float, float | None], str]) -> Cell:
    return EMPTY if value is None else Cell(value.value, text(value.value, value.error))
