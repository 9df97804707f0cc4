"""What the claims of a study want and nothing that it lists measures: said before the first run, not after the last.

The claims are judged as they will be, on rows as the study will give them, of no loss to speak of. What the text has to
say of it is not known before: whether it is long enough, and whether two evals that ask for different numbers of
targets, taken for different sets here, both take all there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import torch

from posbench import extensions, reader
from posbench.config import build_encoding, built_length
from posbench.encodings.base import Shape
from posbench.errors import closest
from posbench.evaluate import unreadable
from posbench.identity import hash8, identity, label
from posbench.job import Job
from posbench.records import Row
from posbench.report.claims import Claim, judge


def unanswered(claims: Iterable[Claim], jobs: Sequence[Job]) -> list[str]:
    """A line for each thing that is missing: the first claim that wants it, and the nearest there is.

    Speeds are none of a study's business. A run that starts from one of these, fine-tuned say, may be there without
    being listed, and its claims are named here.
    """
    rows = [row for job in jobs for row in _rows(job)]
    configs = [job.config for job in jobs]
    trained = [f"{label(one.encoding, one.extension)} trained at {one.train.length:,}" for one in configs]
    wanted: dict[str, list[str]] = {}
    for verdict in judge([claim for claim in claims if not claim.about_speed], rows):
        if verdict.reason is not None:
            found = _not_listed(verdict.claim, trained) or verdict.reason + _nearest(verdict.claim, rows)
            wanted.setdefault(found, []).append(verdict.claim.name)
    return [_line(why, names) for why, names in wanted.items()]


def _rows(job: Job) -> list[Row]:
    """Those that a job will give, as far as they are known before. Texts and sets of targets go by what they are chosen
    by, so that equal ones are equal."""
    config = job.config
    who = identity(config)
    about = asdict(reader.about(config, job.label, who, config.data["name"], 0))
    own_text = {key: value for key, value in config.data.items() if key != "attend"}
    shape = Shape(config.model.layers, config.model.width, config.model.heads, built_length(config))
    with torch.random.fork_rng(devices=[]):
        encoding = build_encoding(config.encoding, shape)
    rows = []
    for request in job.requests:
        plain = request.extension is None and "class" not in config.extension
        reason = unreadable(request) or (
            reader.too_long(about["encoding"], encoding, request.length) if plain else None
        )
        rows.append(
            Row(
                **about,
                run_hash=hash8(who),
                step=0,
                extension=request.extension and extensions.key(extensions.read(request.extension)),
                protocol=request.protocol,
                length=request.length,
                stride=request.stride,
                block=request.block,
                min_context=request.min_context,
                split=request.split,
                corpus_hash=_text(own_text),
                tokenizer_hash=_text(config.tokenizer),
                targets_digest=_text([request.targets, request.block, request.min_context]),
                dtype="",
                status="n/a" if reason else "ok",
                reason=reason,
                loss=None if reason else 0.0,
                targets=0,
                documents=0,
                device="",
                threads=0,
                time="",
            )
        )
    return rows


def _text(chosen_by: object) -> str:
    return json.dumps(chosen_by, sort_keys=True)


def _not_listed(claim: Claim, trained: Sequence[str]) -> str | None:
    """The first run that a claim wants and no job trains, with the nearest; None where there are all."""
    for side in claim.sides:
        wanted = f"{side.encoding} trained at {side.train_length:,}"
        if wanted not in trained:
            near = closest(wanted, dict.fromkeys(trained))
            return f"the study lists no run of {wanted}{f' (of {near} it does)' if near else ''}"
    return None


def _nearest(claim: Claim, rows: Sequence[Row]) -> str:
    """How the first side is read that nothing reads as the claim has it, in brackets; "" where that says nothing."""
    for side in claim.sides:
        of_it = [row for row in rows if side.is_of(row)]
        alike = [
            row
            for row in of_it
            if row.protocol == side.protocol and side.stride in (None, row.stride) and side.block in (None, row.block)
        ]
        name, lengths = f"{side.name} trained at {side.train_length:,}", sorted({row.length for row in alike})
        if not alike:
            return f" ({name} is read with {', '.join(dict.fromkeys(map(_how, of_it)))})" if of_it else ""
        if side.length not in lengths:
            return f" ({name} is read at {', '.join(f'{length:,}' for length in lengths)})"
    return ""


def _how(row: Row) -> str:
    return row.protocol if row.block is None else f"{row.protocol}, block {row.block}"


def _line(why: str, names: Sequence[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"Nothing that is listed measures '{names[0]}'{more}: {why}."
