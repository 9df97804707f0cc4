"""The claims of a study's YAML, read and checked; posbench/report/claims/__init__.py says what the keys mean."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from posbench.errors import UserError, unknown
from posbench.records import Row, extension_label
from posbench.report.claims.source import Curve, Source, source
from posbench.statistics import Estimate

PROTOCOLS = ("nonoverlapping", "sliding", "same-targets")
"""As posbench/evaluate.py has them, which imports more than whoever reads a table should wait for."""

SPEEDS = ("training", "evaluation")
"""What `posbench bench` times, in the place of a protocol."""

COMPARISONS = ("less", "not-above", "equal")
FAILURES = ("fails-by", "holds-to")
RELATIONS = (*COMPARISONS, *FAILURES)
KEYS = ("name", "primary", "left", "relation", "right", "margin", "protocol", "paper", "nearest", "note")
SIDE_KEYS = ("encoding", "train_length", "at", "extension", "protocol", "stride", "block", "minus")
TEXTS = ("name", "relation", "note", "encoding", "extension", "protocol", "table")
NAMES = ("name", "encoding", "extension")
OPTIONAL = ("note", "extension", "stride", "block")
WHOLE_NUMBERS = ("train_length", "stride", "block")
SOURCE_KEYS = ("paper", "table", "left", "right", "minus")

MOST_PRIMARY = 6
MARGIN = 0.01
"""Of `equal`, unless said otherwise: a share of the perplexity."""
LEAST_MARGIN = 1e-4
"""But for none: no study has seeds and text enough to show less."""
MOST_TOKENS = 2**31
"""Of a length."""


@dataclass(frozen=True)
class Side:
    """One side of a claim: an encoding (its label) trained at one length, and how it was read; less, with `minus`,
    another reading."""

    encoding: str
    train_length: int
    length: int
    protocol: str
    extension: str | None = None
    stride: int | None = None
    block: int | None = None
    minus: Side | None = None

    @property
    def how(self) -> str:
        """Its protocol, and what of its settings the claim asks for."""
        settings = {"stride": self.stride, "block": self.block}
        return ", ".join([self.protocol, *(f"{key} {value}" for key, value in settings.items() if value is not None)])

    @property
    def name(self) -> str:
        return self.encoding if self.extension is None else f"{self.encoding} + {self.extension}"

    def is_of(self, row: Row) -> bool:
        """Whether a row is of its encoding, training length and extension."""
        extension = None if row.extension is None else extension_label(row)
        return (row.encoding, row.train_length, extension) == (self.encoding, self.train_length, self.extension)

    @property
    def readings(self) -> list[tuple[int, Side]]:
        """What is added up, each with its sign."""
        return [(1, self)] if self.minus is None else [(1, self), (-1, self.minus)]

    def __str__(self) -> str:
        return f"{self.name} trained at {self.train_length:,} and read at {self.length:,}"


@dataclass(frozen=True)
class Claim:
    """`relation` between the losses of `left` and `right`, or the length by which `left` fails."""

    name: str
    left: Side
    relation: str
    right: Side
    margin: float
    protocol: str
    paper: Source | Curve | None = None
    """where it was seen; None of a question of one's own"""
    nearest: Source | Curve | None = None
    """what that paper, or another, has at the training length nearest to this one's"""
    primary: bool = False
    note: str | None = None

    @property
    def border(self) -> float:
        """The margin in nats a token."""
        return math.log1p(self.margin)

    @property
    def tolerance(self) -> float:
        """Of a failure the nats a token up to which a length counts as no worse than L, once it is shown to be within:
        the margin, or that of `equal`. Of none at all nothing could be shown."""
        return math.log1p(self.margin or MARGIN)

    @property
    def sides(self) -> list[Side]:
        """All readings that it is about."""
        return [reading for side in (self.left, self.right) for _, reading in side.readings]

    @property
    def about_failure(self) -> bool:
        return self.relation in FAILURES

    @property
    def about_speed(self) -> bool:
        return self.protocol in SPEEDS

    @property
    def contradicted_by(self) -> str:
        """The value that would contradict it, as a ratio of perplexities or a length."""
        above = 1 + self.margin
        if self.about_failure:
            how = "a failure" if not self.margin else f"more than {percent(self.margin)} above L"
            where = f"by {self.right.length:,}"
            lasts = f"no failure {where}: within {percent(self.margin or MARGIN)} of L"
            return lasts if self.relation == "fails-by" else f"{how} {where}"
        if self.relation == "equal":
            return f"< {1 / above:.3f} or > {above:.3f}"
        return f"> {1.0 if self.relation == 'less' else above:.3f}"

    def holds(self, difference: float) -> bool:
        """Whether a difference in nats, left less right, is what a comparison says."""
        if self.relation == "less":
            return difference < 0
        if self.relation == "not-above":
            return difference <= self.border
        return abs(difference) <= self.border

    def settled_by(self, low: float, high: float) -> bool:
        """Whether it holds for all differences between the two, or for none."""
        if self.holds(low) != self.holds(high):
            return False
        return self.holds(low) or low * high > 0  # "equal" holds at neither end of what is wide

    def p_values(self, difference: Estimate) -> tuple[float, float]:
        """Of a comparison: p-values against its not being so, and against its being so."""
        if self.relation == "equal":
            return difference.within(self.border), difference.outside(self.border)
        border = 0.0 if self.relation == "less" else self.border
        return difference.below(border), difference.above(border)


def percent(share: float) -> str:
    """
    >>> percent(0.01), percent(0.005)
    ('1 %', '0.5 %')
    """
    return f"{100 * share:.3g} %"


def parse(
    entries: Iterable[Mapping[str, Any]], others: Iterable[Claim] = (), primary: Sequence[str] | None = None
) -> list[Claim]:
    """The claims of a study's YAML, behind `others`. With `primary` the claims of these names are, and no others.

    Raises `UserError` for anything it cannot hold against rows, and for too many that are primary.
    """
    found = [*others, *map(_claim, entries)]
    names = [claim.name for claim in found]
    if twice := _twice(names):
        raise UserError(f"There are two claims of the name '{twice}'.", "Each needs a name of its own.")
    if primary is not None:
        if twice := _twice(primary):
            raise UserError(f"The claim '{twice}' is named twice as a primary one.")
        for name in primary:
            if name not in names:
                raise unknown("claim to be primary", str(name), names)
        found = [replace(claim, primary=claim.name in primary) for claim in found]
    count = sum(claim.primary for claim in found)
    if count > MOST_PRIMARY:
        raise UserError(
            f"{count} claims are primary, and at most {MOST_PRIMARY} can be.",
            "Name those that the study is for; the others are exploratory.",
        )
    return found


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _claim(entry: Mapping[str, Any]) -> Claim:
    try:
        _check("claim", entry, KEYS)
        relation, protocol = entry["relation"], entry["protocol"]
        for kind, word, choices in (("relation", relation, RELATIONS), ("protocol", protocol, (*PROTOCOLS, *SPEEDS))):
            if word not in choices:
                raise unknown(kind, str(word), choices)
        failure = relation in FAILURES
        if protocol in SPEEDS and (failure or entry.get("primary")):
            raise ValueError("of a speed there is no failure, and no primary claim: one machine says little of another")
        left = _side(entry["left"], {"protocol": protocol} | ({"at": "1L"} if failure else {}))
        right = _side(entry["right"], _inherited(left))
        if (left.minus is None) != (right.minus is None):
            raise ValueError("'minus' stands on one side alone, and a gap is held against a gap")
        if failure and (set(entry["right"]) != {"at"} or left.minus or right.length <= left.train_length):
            raise ValueError("the right of a failure is no length past L alone, such as {at: 2L}")
        if right == left:
            raise ValueError("its right side is its left one")
        if not isinstance(primary := entry.get("primary", False), bool):
            raise ValueError(f"'primary' is {primary}, neither true nor false")
        if "nearest" in entry and "paper" not in entry:
            raise ValueError("'nearest' stands beside a 'paper' alone")
        paper = _source(entry["paper"], failure) if "paper" in entry else None
        margin = entry.get("margin", MARGIN if relation == "equal" else 0)
        is_number = type(margin) in (int, float)
        if not is_number or (not LEAST_MARGIN <= margin < 1 and (margin != 0 or relation == "equal")):
            raise ValueError(f"'margin' is {margin}, no share of the perplexity such as 0.01")
        if margin and relation == "less":
            raise ValueError("'less' has no margin; 'not-above' has one")
        return Claim(
            name=entry["name"],
            left=left,
            relation=relation,
            right=right,
            margin=float(margin),
            protocol=protocol,
            paper=paper,
            nearest=_source(entry["nearest"], failure) if "nearest" in entry else paper,
            primary=primary,
            note=entry.get("note"),
        )
    except UserError as error:
        raise UserError(f"In the claim {entry.get('name')!r}: {error.message}", error.hint) from error
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        said = f"there is no '{error.args[0]}'" if type(error) is KeyError else str(error)
        raise UserError(
            f"The claim {entry.get('name')!r} cannot be read: {said}.", "docs/sweeps.md says under Claims what one has."
        ) from error


def _check(what: str, given: Any, allowed: Iterable[str]) -> None:
    """Raise UserError or ValueError unless these are keys that a claim, side or source has, each of its type."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{given} is no {what}, which is a mapping of keys")
    for key, value in given.items():
        if key not in allowed:
            raise unknown(f"key of a {what}", str(key), allowed)
        if value is None and key in OPTIONAL:
            continue
        if key in TEXTS and not isinstance(value, str):
            raise ValueError(f"'{key}' is {value}, which is no text unless it is quoted")
        if key in NAMES and not (value.strip() and value.isprintable()):
            raise ValueError(f"'{key}' is {value!r}, which is no name")
        if key in WHOLE_NUMBERS and type(value) is not int:
            raise ValueError(f"'{key}' is {value}, no whole number")


def _inherited(side: Side) -> dict[str, Any]:
    """What another side takes over where it says nothing else: all but the extension."""
    found = {"encoding": side.encoding, "train_length": side.train_length, "at": side.length}
    return found | {"protocol": side.protocol, "stride": side.stride, "block": side.block}


def _side(entry: Mapping[str, Any], inherited: Mapping[str, Any]) -> Side:
    """
    >>> _side({"encoding": "alibi", "train_length": 128, "at": "2L"}, {"protocol": "sliding"}).length
    256
    """
    _check("side", entry, SIDE_KEYS)
    if entry.get("protocol", inherited["protocol"]) != inherited["protocol"]:
        inherited = {key: value for key, value in inherited.items() if key not in ("stride", "block")}
    own = {**inherited, **entry}
    if missing := [key for key in ("encoding", "train_length", "at") if key not in own]:
        raise ValueError(f"its left side has no '{missing[0]}'")
    train_length = int(own["train_length"])
    side = Side(
        encoding=own["encoding"],
        train_length=train_length,
        length=_length(str(own["at"]), train_length),
        protocol=own["protocol"],
        extension=own.get("extension"),
        stride=own.get("stride"),
        block=own.get("block"),
    )
    if side.protocol not in (known := SPEEDS if inherited["protocol"] in SPEEDS else PROTOCOLS):
        raise unknown("protocol", str(side.protocol), known)
    for key, value, of in (("stride", side.stride, "sliding"), ("block", side.block, "same-targets")):
        if value is not None and (side.protocol != of or value < 1):
            raise ValueError(f"'{key}' is {value}, and {of} alone has one, of 1 token or more")
    if not all(1 <= tokens < MOST_TOKENS for tokens in (side.train_length, side.length)):
        raise ValueError(f"{side.name} has a length that is not from 1 to {MOST_TOKENS - 1:,} tokens")
    if "minus" not in entry:
        return side
    same = _inherited(side) | {"extension": side.extension}
    minus = _side(entry["minus"], same)
    if minus == side:
        raise ValueError(f"{side} is taken off itself")
    return replace(side, minus=minus)


def _length(at: str, train_length: int) -> int:
    """
    >>> [_length(at, 128) for at in ("L", "2L", "L+64", "200")]
    [128, 256, 192, 200]
    """
    found = re.fullmatch(r"([0-9]*)L|L\+([0-9]+)|([0-9]+)", at)
    if not found:
        raise ValueError(f"'at' is {at}, neither a multiple such as 2L or L+64 nor a number of tokens")
    multiple, more, tokens = found.groups()
    if multiple is not None:
        return int(multiple or 1) * train_length
    return train_length + int(more) if more else int(tokens)


def _source(entry: Any, failure: bool) -> Source | Curve:
    _check("source", entry, SOURCE_KEYS)
    return source(entry, failure)


def sources(claim: Claim) -> Iterator[Source | Curve]:
    """Where it was seen, and what stands nearest to it, if that is another cell; of a question of one's own nothing."""
    if claim.paper is not None:
        yield claim.paper
    if claim.nearest is not None and claim.nearest != claim.paper:
        yield claim.nearest
