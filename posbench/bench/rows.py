"""What a comparison found, as rows in plain values, unrounded: bytes, tokens a second, of each ratio its interval."""

from __future__ import annotations

from typing import Any

from posbench.bench.cells import OURS
from posbench.bench.compare import Limit, Outcome
from posbench.bench.entries import Entry
from posbench.bench.rounds import Ratio, ratio, spread
from posbench.bench.trial import Trial


def records(outcome: Outcome) -> list[dict[str, Any]]:
    """A row for each entry."""
    return [_record(entry, outcome) for entry in outcome.entries]


def _record(entry: Entry, outcome: Outcome) -> dict[str, Any]:
    best, seconds = entry.best, outcome.seconds.get(entry)
    trial = best.trial if best else Trial()
    tokens = entry.cells[0].tokens
    found: dict[str, Any] = {
        "name": entry.name,
        "encoding": entry.encoding,
        "task": entry.task,
        "length": entry.length,
        "windows": entry.windows,
        "status": "n/a" if seconds is None else "ok",
        "reason": entry.reason,
        "variant": str(best.cell.variant) if best else None,
        "kernel": best.kernel if best else None,
        "parameters": trial.parameters,
        "loss_difference": entry.loss_difference,
        "peak_bytes": trial.peak,
        "extra_bytes": trial.extra,
        "tensor_bytes": trial.tensors,
    }
    speed = None if seconds is None else spread([tokens / one for one in seconds])
    found |= {
        "tokens_per_second": speed and speed.median,
        "lowest": speed and speed.low,
        "highest": speed and speed.high,
        "rounds": speed and speed.rounds,
        "seconds": seconds,  # of one call, by round: any two entries can be held against each other
    }
    found |= {"against": entry.against.name if entry.against else None}
    found |= _ratio("ratio", _times_base(entry, outcome))
    step = outcome.steps.get(entry)
    bound = outcome.bound(step)
    found |= _ratio("gemm_share", ratio(outcome.limits[bound], seconds) if bound and seconds else None)
    peak = next(((one, times) for one, times in outcome.limits.items() if one.unit == "GF/s"), None)
    # Of the products' multiplications alone: those of attention are not counted.
    share = ratio(peak[1], seconds) if step and peak and seconds else None
    times = step.flops / 1e9 / peak[0].amount if step and peak else 1.0
    found |= {key: value and times * value for key, value in _ratio("peak_share", share).items()}
    return found | {"gflop_products": step.flops / 1e9 if step else None}


def _times_base(entry: Entry, outcome: Outcome) -> Ratio | None:
    """Of an encoding its speed over the base's; of a peer posbench's over its."""
    seconds = outcome.seconds.get(entry)
    base = outcome.seconds.get(entry.against) if entry.against else None
    if seconds is None or base is None:
        return None
    ours = entry.cells[0].maker == OURS
    return ratio(base, seconds) if ours else ratio(seconds, base)


def _ratio(name: str, found: Ratio | None) -> dict[str, Any]:
    return {
        name: found and found.median,
        f"{name}_low": found and found.low,
        f"{name}_high": found and found.high,
    }


def limit_records(outcome: Outcome) -> list[dict[str, Any]]:
    """What the machine did in the same rounds."""
    found = []
    for limit, seconds in outcome.limits.items():
        speed = spread([limit.amount / one for one in seconds])
        found.append(
            {
                "limit": _called(limit, outcome),
                "median": speed.median,
                "lowest": speed.low,
                "highest": speed.high,
                "unit": limit.unit,
                "rounds": speed.rounds,
                "products": len(limit.step.products) if limit.step else None,
                "gflop": limit.step.flops / 1e9 if limit.step else None,
            }
        )
    return found


def _called(limit: Limit, outcome: Outcome) -> str:
    """Of products whose they are, how they were run, and whether that is the slower way, which bounds nothing."""
    if limit.step is None:
        return limit.name
    of = ", ".join(dict.fromkeys(entry.label for entry, step in outcome.steps.items() if step == limit.step))
    way = "all threads in turn" if limit.at_once == 1 else f"{limit.at_once} parts at once"
    slower = "" if outcome.bound(limit.step) == limit else " (slower)"
    return f"{limit.name}, {way}{slower}: {of}"
