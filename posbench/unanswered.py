"""What the claims of a study want and nothing that it lists measures: said before the first run, not after the last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from posbench.errors import closest
from posbench.evaluate import Request
from posbench.identity import label
from posbench.job import Job
from posbench.report.claims import Claim
from posbench.report.claims.claim import Side
from posbench.report.claims.failure import candidates


def unanswered(claims: Iterable[Claim], jobs: Iterable[Job]) -> list[str]:
    """A line for each thing that is missing, with the nearest one there is and the first claim that wants it.

    Speeds are none of a study's business. A run that starts from one of these, fine-tuned say, is not listed either,
    and its claims are named here.
    """
    runs: dict[tuple[str, int], list[Request]] = {}
    for job in jobs:
        config = job.config
        runs.setdefault((label(config.encoding, config.extension), config.train.length), []).extend(job.requests)
    wanted: dict[str, list[str]] = {}
    unread: dict[str, set[int]] = {}
    for claim in claims:
        for side, lengths in _readings(claim):
            what, missing = _missing(side, lengths, runs)
            if what is not None:
                unread.setdefault(what, set()).update(missing)
                if claim.name not in (names := wanted.setdefault(what, [])):
                    names.append(claim.name)
    return [_line(what, sorted(unread[what]), names) for what, names in wanted.items()]


def _readings(claim: Claim) -> Iterator[tuple[Side, list[int]]]:
    """What has to be read for a claim: each of its sides with its lengths."""
    if claim.about_failure:
        home = claim.left.train_length
        yield claim.left, [home, *candidates(home, claim.right.length)]
    elif not claim.about_speed:
        for side in (claim.left, claim.right):
            yield from ((reading, [reading.length]) for _, reading in side.readings)


def _missing(
    side: Side, lengths: Sequence[int], runs: dict[tuple[str, int], list[Request]]
) -> tuple[str | None, list[int]]:
    """What a study lacks for a side, and the lengths at which; None where it lacks nothing."""
    if (side.encoding, side.train_length) not in runs:
        trained = f"{side.encoding} trained at {side.train_length:,}"
        near = closest(trained, (f"{encoding} trained at {length:,}" for encoding, length in runs))
        return f"The study lists no run of {trained}{f' (of {near} it does)' if near else ''}", []
    asked = [one for one in runs[side.encoding, side.train_length] if _is(one, side)]
    under = "" if side.extension is None else f" under {side.extension}"
    missing = [length for length in lengths if length not in {one.length for one in asked}]
    what = f"The study does not read {side.encoding} trained at {side.train_length:,}{under} with {side.how}"
    return (what, missing if asked else []) if missing else (None, [])


def _is(request: Request, side: Side) -> bool:
    extension = None if request.extension is None else json.loads(request.extension)["name"]
    wanted = None if side.extension is None else side.extension.split()[0]  # "yarn factor=4"
    settings = ((request.stride, side.stride), (request.block, side.block))
    same = all(own == given for own, given in settings if given is not None)
    return same and (request.protocol, extension) == (side.protocol, wanted)


def _line(what: str, lengths: Sequence[int], names: Sequence[str]) -> str:
    at = f" at {', '.join(f'{length:,}' for length in lengths)}" if lengths else ""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{what}{at}, which is wanted by: {names[0]}{more}."
