"""Claims as a table: a section each, with the numbers of these runs, the paper's, and what would contradict it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posbench.report.claims.claim import SPEEDS, Claim, Side, percent, sources
from posbench.report.claims.failure import Failure
from posbench.report.claims.source import Curve, Source
from posbench.report.claims.verdict import Verdict
from posbench.report.lengths import perplexity_text, ratio_cell, ratio_text
from posbench.report.parts import Value, marked
from posbench.report.published import Printed
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell
from posbench.statistics import exp

DAGGER = "† one of its lines is undertrained: at L not below the bigram, so that past L it has nothing to lose."


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """A section a claim, the primary ones first."""
    sections = [Section(_heading(verdict), _rows(verdict)) for verdict in in_order(verdicts)]
    value = "perplexity, speed" if any(verdict.claim.about_speed for verdict in verdicts) else "perplexity"
    return Table(
        f"{_statements(verdicts)}, held against these runs",
        [
            Column("from", "from", right=False),
            Column("left_side", "trained > read", right=False),
            Column("left", value),
            Column("right_side", "trained > read", right=False),
            Column("right", value),
            Column("ratio", "ratio"),
            Column("interval", "95 %"),
        ],
        sections,
        _notes(verdicts),
        [_record(verdict) for verdict in in_order(verdicts)],
        repeat_head=False,
    )


def short_table(verdicts: Sequence[Verdict]) -> Table:
    """A line a claim: what became of it, the number that decides, and the paper's."""
    columns = [
        Column("claim", "statement", right=False),
        Column("verdict", "", right=False),
        Column("ours", "these runs", right=False),
    ]
    rows = [[cell(_named(one.claim)), cell(marked(one.text, one.undertrained)), _short(one)] for one in verdicts]
    if any(one.claim.paper for one in verdicts):
        columns.append(Column("paper", "the paper", right=False))
        rows = [[*row, _printed_of(one.claim)] for row, one in zip(rows, verdicts, strict=True)]
    gaps = ", of a gap that of two such ratios" if any(one.claim.left.minus for one in verdicts) else ""
    notes = [
        f"A ratio is that of the perplexities compared{gaps}, turned so that it is below 1 where a statement of "
        "better, worse, slower or smaller is so."
    ]
    if any(one.undertrained for one in verdicts):
        notes.append(DAGGER)
    return Table(_statements(verdicts), columns, [Section("", rows)], notes)


def _statements(verdicts: Sequence[Verdict]) -> str:
    """Whose they are: a study's own have no paper."""
    return "Statements of papers" if all(one.claim.paper for one in verdicts) else "Statements"


def _named(claim: Claim) -> str:
    return f"{claim.name}, within {percent(claim.margin)}" if claim.margin else claim.name


def _short(verdict: Verdict) -> Cell:
    if verdict.claim.about_failure and verdict.failure is not None:
        return _fails(verdict.failure, verdict.claim)
    if verdict.ratio is None:
        return Cell(None, verdict.reason or "-")
    low, high = verdict.interval or (None, None)
    return ratio_cell(verdict.ratio.value, low, high, "")


def _printed_of(claim: Claim) -> Cell:
    """Where the statement was seen, and what was printed at the nearest L, which may say the contrary."""
    if claim.paper is None:
        return EMPTY
    seen, *nearest = sources(claim)
    at = [f"; at L = {_trained_at(source):,}: {_printed(source)}" for source in nearest]
    return cell(f"{_printed(seen)}{f', L = {_trained_at(seen):,}' if nearest else ''}{''.join(at)}")


def _trained_at(source: Source | Curve) -> int:
    return source.left.train_length if isinstance(source, Curve) else source.right.train_length


def _printed(source: Source | Curve) -> str:
    if isinstance(source, Curve):
        best, back = _curve(source)[1], _curve(source)[3]
        return f"{best.text}, above L from {back.text} ({source.name})"
    return f"{'-' if source.difference is None else ratio_text(exp(source.difference))} ({source.name})"


def in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """As they are shown: the primary ones first."""
    return sorted(verdicts, key=lambda verdict: not verdict.claim.primary)


def _notes(verdicts: Sequence[Verdict]) -> list[str]:
    notes = []
    papers = any(verdict.claim.paper for verdict in verdicts)
    if any(verdict.holds is not None and verdict.p is None for verdict in verdicts):
        another = " and another model than the paper's" if papers else ""
        notes.append(
            "seen: the values of these runs stand in that relation, within the margin of the statement. One seed, or "
            f"two, one text{another}: that neither supports nor contradicts it. There is an interval only where both "
            "values are of one checkpoint, and it is the text's: where that leaves it open, it is undecided."
        )
    if any(verdict.p is not None for verdict in verdicts):
        notes.append(
            "supported, contradicted: shown at 5 % for other seeds and other text like this, by Student's t over the "
            "seeds' paired differences, widened by what the text leaves open; equal: two one-sided tests. undecided: "
            "neither. The interval is that of the ratio for both."
        )
        if any(verdict.corrected is not None for verdict in verdicts):
            notes.append(
                "primary: named before the study was run, and corrected for their number (Holm). The others are "
                "exploratory: of forty that are false one is supported by chance, where it is equality of twenty."
            )
    if any(verdict.claim.about_failure for verdict in verdicts):
        notes.append(
            "A method fails at the first of L + 8, 16, 32, 64, 128 and 2 L, 4 L, ... whose loss on the same targets is "
            "above that at L, the interval above 0 (95 % for all these lengths together)."
            + (" The paper's two readings are of nonoverlapping windows unless its table says otherwise." * papers)
        )
    if any(verdict.comparison is not None and len(verdict.comparison.blocks) > 1 for verdict in verdicts):
        notes.append(
            "A gap of two protocols that have targets of their own: the ratio of their perplexities is of two texts, "
            "and only what it changes by is compared, each protocol on its own targets; what a document makes of one "
            "it may make of the other, so that whole documents are the units of its error."
        )
    if any(verdict.speed is not None for verdict in verdicts):
        notes.append(
            "Speeds are of one run of `posbench bench encodings`, in interleaved rounds: the median of the rounds' "
            "ratios with its interval by order statistics. On that machine: another may turn it round."
        )
    if any(verdict.undertrained for verdict in verdicts):
        notes.append(DAGGER)
    cells = [cell for verdict in verdicts for source in sources(verdict.claim) for cell in source.cells]
    return notes + list(dict.fromkeys(f"{cell.source}; {cell.model}." for cell in cells))


def _heading(verdict: Verdict) -> str:
    claim = verdict.claim
    margin = f", within {percent(claim.margin)}" if claim.margin else ""
    how = " - ".join(dict.fromkeys(side.how for _, side in claim.left.readings))
    primary = ", primary" if claim.primary else ""
    asides = [text for text in (_evidence(verdict), verdict.reason, claim.note) if text]
    said = marked(verdict.text, verdict.undertrained)
    return f"{said}: {claim.name} ({how}{margin}{primary}){''.join(f'; {text}' for text in asides)}"


def _evidence(verdict: Verdict) -> str | None:
    if verdict.p is None:
        return None
    p = verdict.p if verdict.corrected is None else verdict.corrected
    said = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"{verdict.seeds} seeds, {said}{'' if verdict.corrected is None else ' after correction'}"


def _rows(verdict: Verdict) -> list[list[Cell]]:
    claim = verdict.claim
    rows = [_ours(verdict)]
    for source in sources(claim):
        name = source.name if source is claim.paper else f"{source.name}, nearest L"
        rows.append([cell(name), *(_curve(source) if isinstance(source, Curve) else _cells(source)), EMPTY])
    against = cell(claim.contradicted_by)
    if claim.about_failure:
        return [*rows, [cell("contradicted by"), EMPTY, against, EMPTY, EMPTY, EMPTY, EMPTY]]
    return [*rows, [cell("contradicted by"), EMPTY, EMPTY, EMPTY, EMPTY, against, EMPTY]]


def _ours(verdict: Verdict) -> list[Cell]:
    claim = verdict.claim
    head, ratio, interval = cell("these runs"), _ratio(verdict), _interval(verdict)
    if claim.about_failure:
        bound = _length_text(claim.right.length, claim.right.train_length)
        side = cell(f"{claim.left.name} {claim.left.train_length:,}")
        if verdict.failure is not None and verdict.ratio is not None:
            at = verdict.failure.at(claim.border) or max(verdict.failure.by_length)
            ratio = Cell(verdict.ratio.value, f"{ratio_text(verdict.ratio.value)} at {at:,}")
        return [head, side, _fails(verdict.failure, claim), cell("by"), cell(bound), ratio, interval]
    sides = [cell(_side_text(side)) for side in (claim.left, claim.right)]
    return [head, sides[0], _shown(verdict.left, claim), sides[1], _shown(verdict.right, claim), ratio, interval]


def _side_text(side: Side) -> str:
    return f"{side.name} {side.train_length:,} > {side.length:,}"


def _printed_text(printed: Printed) -> str:
    return f"{printed.encoding} {printed.train_length:,} > {printed.length:,}"


def _length_text(length: int, train_length: int) -> str:
    return f"{length:,} ({length / train_length:.3g} x)"


def _fails(failure: Failure | None, claim: Claim) -> Cell:
    if failure is None:
        return EMPTY
    at = failure.at(claim.border)
    none = f"not by {max(failure.by_length):,}"
    return Cell(at, none if at is None else f"fails at {_length_text(at, failure.train_length)}")


def _shown(value: Value | None, claim: Claim) -> Cell:
    if value is None:
        return EMPTY
    if claim.about_speed:
        return Cell(value.value, f"{value.value:,.0f} tokens/s")
    if claim.left.minus is not None:
        return Cell(value.value, f"{ratio_text(value.value)} (ratio)")
    return Cell(value.value, perplexity_text(value.value, value.error))


def _ratio(verdict: Verdict) -> Cell:
    value = verdict.ratio
    return EMPTY if value is None else Cell(value.value, ratio_text(value.value))


def _interval(verdict: Verdict) -> Cell:
    if verdict.interval is None:
        return EMPTY
    low, high = verdict.interval
    return Cell([low, high], f"{ratio_text(low)} to {ratio_text(high)}")


def _cells(source: Source) -> list[Cell]:
    numbers = [source.left, source.right]
    shown = [Cell(entry.value, entry.text) for entry in numbers]
    if source.left.protocol in SPEEDS:
        shown = [Cell(entry.value, f"{entry.value:,.0f} words/s") for entry in numbers]
    if source.minus is not None:
        ratios = [
            None if a.value is None or b.value is None else a.value / b.value
            for a, b in zip(numbers, source.minus, strict=True)
        ]
        shown = [EMPTY if ratio is None else Cell(ratio, ratio_text(ratio)) for ratio in ratios]
    ratio = None if source.difference is None else exp(source.difference)
    last = EMPTY if ratio is None else Cell(ratio, ratio_text(ratio))
    return [cell(_printed_text(source.left)), shown[0], cell(_printed_text(source.right)), shown[1], last]


def _curve(curve: Curve) -> list[Cell]:
    home = curve.left.train_length
    longest = curve.cells[-1].length
    back = f"not by {longest:,}" if curve.back is None else _length_text(curve.back, home)
    side = cell(f"{curve.left.encoding} {home:,}")
    best = Cell(curve.best, f"best at {_length_text(curve.best, home)}")
    return [side, best, cell("above L from"), Cell(curve.back, back), EMPTY]


def _record(verdict: Verdict) -> dict[str, Any]:
    claim, comparison, failure = verdict.claim, verdict.comparison, verdict.failure
    deciding = None if comparison is None else comparison.deciding
    over_seeds = None if comparison is None else comparison.over_seeds
    text = None if comparison is None else comparison.text
    low, high = (None, None) if verdict.interval is None else verdict.interval
    seeds_low, seeds_high = (None, None) if over_seeds is None else over_seeds.interval()
    text_low, text_high = (None, None) if text is None else text.interval()
    return {
        "claim": claim.name,
        "primary": claim.primary,
        "verdict": verdict.text,
        "reason": verdict.reason,
        "left": str(claim.left),
        "left_minus": claim.left.minus and claim.left.minus.how,
        "relation": claim.relation,
        "right": f"{claim.right.length:,} tokens" if claim.about_failure else str(claim.right),
        "margin": claim.margin,
        "contradicted_by": claim.contradicted_by,
        "protocol": claim.left.how,
        "left_value": verdict.left and verdict.left.value,
        "right_value": verdict.right and verdict.right.value,
        "ratio": verdict.ratio and verdict.ratio.value,
        "ratio_low": low,
        "ratio_high": high,
        "nats": comparison and comparison.mean,
        "nats_error": deciding and deciding.error,
        "nats_df": deciding and deciding.df,
        "nats_low_over_seeds": seeds_low,
        "nats_high_over_seeds": seeds_high,
        "nats_low_over_text": text_low,
        "nats_high_over_text": text_high,
        "fails_at": None if failure is None else failure.at(claim.border),
        "lengths": None if failure is None else list(failure.by_length),
        "seeds": verdict.seeds,
        "undertrained": verdict.undertrained,
        "p": verdict.p,
        "p_corrected": verdict.corrected,
        **_source_record("paper", claim.paper),
        **_source_record("nearest", claim.nearest),
        "note": claim.note,
    }


def _source_record(name: str, source: Source | Curve | None) -> dict[str, Any]:
    if source is None:
        return {f"{name}_source": None}
    left = source.left
    found: dict[str, Any] = {f"{name}_source": left.source, f"{name}_model": left.model}
    if isinstance(source, Curve):
        return found | {
            f"{name}_left": f"{left.encoding} trained at {left.train_length:,}",
            f"{name}_best": source.best,
            f"{name}_above": source.back,
        }
    sides = {"left": left, "right": source.right}
    found |= {
        f"{name}_{side}": f"{entry.encoding} trained at {entry.train_length:,} and read at {entry.length:,}"
        for side, entry in sides.items()
    }
    found |= {f"{name}_{side}_value": entry.value for side, entry in sides.items()}
    minus = source.minus
    return found | {
        f"{name}_minus": minus and minus[0].source,
        f"{name}_ratio": None if source.difference is None else exp(source.difference),
    }
