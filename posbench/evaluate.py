"""From windows to losses to rows: the one code path of every protocol, for trained runs and for references.

    1. requests   what to measure of a run: a protocol at each length, the run's own training length among them
    2. lay        the windows of a request over its split, or why it cannot be measured
    3. measure    the loss of every target (posbench/losses.py)
    4. rows       a row for each request, kept as soon as it is there; one that is there already is not computed again

Whoever reads the text is a `Reader` (posbench/reader.py); references are read by the same code as runs.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from posbench import encodings, extensions, lock, reader, records, statistics, system
from posbench.compose import corpus, load_group
from posbench.config import Config, Eval, built_length
from posbench.data import tokens
from posbench.data.tokenizer import Tokenizer
from posbench.data.tokens import Prepared, Stream
from posbench.data.windows import Windows, nonoverlapping, same_targets, sliding
from posbench.encodings.base import Shape
from posbench.errors import UserError, unknown
from posbench.identity import label
from posbench.losses import measure
from posbench.progress import progress
from posbench.reader import TOKEN_BUDGET, Reader, at_once
from posbench.records import Arrays, Row
from posbench.run import Run

PROTOCOLS = ("nonoverlapping", "sliding", "same-targets")

SAME_TARGETS = 4096
"""Targets of the protocol same-targets unless said otherwise."""


# What to measure ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One cell to measure. What does not belong to the protocol is None."""

    protocol: str
    length: int
    stride: int | None = None
    block: int | None = None
    min_context: int | None = None
    targets: int | None = None
    """The first so many of the split; same-targets: so many, spread over it. None: all."""
    split: str = "test"
    on: str | None = None
    """Another corpus than the run's own: its name, or the path of a text."""
    extension: str | None = None
    """A change to the trained encoding, as `extensions.write` gives it; None: as the run was trained."""


def requests(
    config: Config, eval: Eval, on: str | None = None, extended: Sequence[Mapping[str, Any]] | None = None
) -> list[Request]:
    """What `eval` asks of the run of `config`, by extension and length, its own training length always among them.

    `extended` are the extensions, described; None: those that `eval` names. The default of `min_context` is the longest
    of these lengths. Raises `UserError` for an unknown protocol and an unknown extension.
    """
    if extended is None:
        extended = [load_group("extension", name) for name in eval.extensions]
    lengths = sorted({*eval.lengths, config.train.length})
    if eval.protocol not in PROTOCOLS:
        raise unknown("protocol", eval.protocol, PROTOCOLS)
    wanted = []
    for length in lengths:
        request = Request(eval.protocol, length, targets=eval.targets, split=eval.split, on=on)
        if eval.protocol == "sliding":
            request = replace(request, stride=eval.stride or max(1, length // 2))
        elif eval.protocol == "same-targets":
            targets, min_context = eval.targets or SAME_TARGETS, eval.min_context or lengths[-1]
            request = replace(request, block=eval.block, min_context=min_context, targets=targets)
        wanted.append(request)
    # No extension is what a run without one was trained with.
    plain = "class" not in config.extension
    chosen = [None if plain and "class" not in one else extensions.write(one) for one in extended] or [None]
    return [replace(request, extension=one) for one in dict.fromkeys(chosen) for request in wanted]


def share_targets(eval: Eval, configs: Iterable[Config]) -> None:
    """Settle one `min_context` for these runs, whatever their own lengths, so that they share their targets."""
    if eval.min_context is None:
        eval.min_context = max([0, *eval.lengths, *(config.train.length for config in configs)])


def refuse_inapplicable(run: Run, requests: Sequence[Request]) -> None:
    """Raise `UserError` for an extension that does not apply to the encoding of a run, with those that do."""
    config, wanted = run.config, dict.fromkeys(request.extension for request in requests)
    shape = Shape(config.model.layers, config.model.width, config.model.heads, built_length(config))
    with torch.random.fork_rng(devices=[]):
        encoding = encodings.build(config.encoding, shape)
    for extension in wanted:
        if extension is not None:
            extensions.applied(extensions.read(extension), encoding, label(config.encoding))


def unreadable(request: Request) -> str | None:
    """Why no text could give what a request asks for; None: one may."""
    length, stride, block = request.length, request.stride, request.block
    if stride is not None and stride > length:
        return f"a stride of {stride} is longer than a window of {length}"
    min_context, targets = request.min_context, request.targets
    if block is None:
        few = targets is not None and targets < length
        return f"there are {targets} targets, fewer than one window of {length}" if few else None
    assert min_context is not None
    assert targets is not None
    if block > min_context:
        return f"a block of {block} targets does not fit {min_context} ids of context (min_context)"
    if block > targets:
        return f"{targets} targets are fewer than one block of {block}"
    if length > min_context:
        return f"the targets have {min_context} ids of context (min_context), fewer than {length}"
    return f"a block of {block} targets does not fit a window of {length}" if block > length else None


def lay(request: Request, stream: Stream) -> tuple[Windows, str | None]:
    """The windows of a request over a stream, and why they do not measure what it asks for (None: they do)."""
    length, n_ids, reason = request.length, len(stream.ids), unreadable(request)
    if request.protocol == "same-targets":
        block, min_context, targets = request.block, request.min_context, request.targets
        assert block is not None
        assert min_context is not None
        assert targets is not None
        if block > min(min_context, targets):
            return NOTHING, reason
        # The set is the same at every length, also at one that cannot read it.
        windows = same_targets(stream.documents, min(max(length, block), min_context), min_context, block, targets)
        if reason is None and not len(windows):
            longest = int(np.diff(stream.documents).max(initial=0))
            wanted = f"{min_context} ids of context and a block of {block}"
            reason = f"no document is long enough for {wanted}: the longest has {longest} ids"
        return windows, reason
    if request.protocol == "sliding":
        assert request.stride is not None
        windows = sliding(n_ids, max(length, request.stride), request.stride, request.targets)
    else:
        windows = nonoverlapping(n_ids, length, request.targets)
    if reason is None and windows.targets < length:
        reason = f"there are {windows.targets} targets, fewer than one window of {length}"
    return windows, reason


NOTHING = nonoverlapping(1, 1)


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass
class Text:
    """One split of a prepared corpus."""

    prepared: Prepared
    split: str

    @cached_property
    def stream(self) -> Stream:
        return self.prepared.stream(self.split)

    @cached_property
    def words_to(self) -> dict[int, int]:
        """Words between white space in the documents before each offset; empty when the tokenizer does not give back
        the text it was made from."""
        stream, offsets = self.stream, self.stream.documents.tolist()
        words = [0]
        for a, b in pairwise(offsets):
            text = self.prepared.tokenizer.decode(stream.ids[a : b - 1])
            if len(text.encode()) != int(stream.nbytes[a:b].sum()):
                return {}
            words.append(words[-1] + len(text.split()))
        return dict(zip(offsets, words, strict=True))

    def documents(self, spans: np.ndarray) -> int:
        """From how many documents the targets of `spans` (R, 2) come."""
        low, high = (np.searchsorted(self.stream.documents, spans - [0, 1], side="right") - 1).T
        return int((high - low + 1).sum() - (low[1:] == high[:-1]).sum())

    def words(self, spans: np.ndarray) -> int | None:
        """Words that the targets of `spans` are; None when they are not whole documents, or it cannot be known."""
        whole = len(spans) == 1 and spans[0, 0] == self.stream.documents[0] and spans[0, 1] in self.stream.documents
        return self.words_to.get(int(spans[0, 1])) if whole else None


def evaluate(
    run: Run,
    requests: Sequence[Request],
    force: bool = False,
    device: str = "auto",
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """The rows of a run, in the order of the requests; `on_row` is told of each that is new, once it is on disk.

    Rows that are there are not computed again unless `force`. What cannot be measured (a length that does not fit in
    memory, a text that is too short, positions that end) becomes an n/a row with its reason, and the others stand.
    Encoding and sizes are the run's own. Raises `UserError` when the run is not finished or its text has changed.
    """
    return rows(reader.of_run(run, system.device(device)), _texts(run, requests), force, on_row)


def missing(run: Run, requests: Sequence[Request], device: str = "auto") -> list[tuple[Request, int]]:
    """The requests that have no row yet, each with the number of inputs it would read."""
    whole = reader.of_run(run, system.device(device))
    return [(request, inputs) for request, row, inputs in _look(whole, run, requests) if row is None]


def kept(run: Run, requests: Sequence[Request], device: str = "auto") -> list[Row] | None:
    """The rows of a run whose weights may be gone, where all of them are there; None otherwise.

    They may have been measured elsewhere: `device` need not be here, and "auto" may be any.
    """
    whole = reader.of_run(run, torch.device("cpu"), weights=False)
    kinds = ("cuda", "cpu") if device == "auto" else (device.partition(":")[0],)
    for dtype in dict.fromkeys(reader.dtype(run, kind) for kind in kinds):
        rows = [row for _, row, _ in _look(whole, run, requests, dtype)]
        if None not in rows:
            return [row for row in rows if row is not None]
    return None


def _look(
    whole: Reader, run: Run, requests: Sequence[Request], dtype: str | None = None
) -> Iterator[tuple[Request, Row | None, int]]:
    """Each request with its row, or None, and the number of inputs it reads. No weights are loaded."""
    for request, text in _texts(run, requests):
        windows, reason = lay(request, text.stream)
        row = _finished(whole, request, text, windows, dtype)
        yield request, row, 0 if reason else int(windows.lengths.sum())


def rows(
    reader: Reader, wanted: Iterable[tuple[Request, Text]], force: bool, on_row: Callable[[Row], None]
) -> list[Row]:
    """The row of each request over its text: found in the reader's folder, or computed and written there.

    Raises `lock.HeldError` when one has to be computed and another process is at work on that run.
    """
    system.set_threads(0)
    found = []
    with contextlib.ExitStack() as stack:
        locked = False
        for request, text in wanted:
            windows, reason = lay(request, text.stream)
            row = None if force else _finished(reader, request, text, windows)
            if row is None and not locked:
                stack.enter_context(lock.hold(reader.folder.parent, reader.about.run))
                locked = True
                row = None if force else _finished(reader, request, text, windows)  # meanwhile, by whoever held it
            if row is None:
                row = _measure(reader.under(request.extension, request.length), request, text, windows, reason)
                on_row(row)
            found.append(row)
    return found


def _measure(reader: Reader, request: Request, text: Text, windows: Windows, reason: str | None) -> Row:
    """Compute a row and keep it; `reason`: why it cannot be measured."""
    blank = _blank(reader, request, text, windows)
    reason = reason or reader.limit(request.length)
    if reason is None:
        return records.write(reader.folder, *_compute(reader, text, windows, blank))
    return records.write(reader.folder, replace(blank, reason=reason), None)


def _compute(reader: Reader, text: Text, windows: Windows, blank: Row) -> tuple[Row, Arrays | None]:
    """The row with its numbers and what it took; or with the reason why there are none."""
    total, device = int(windows.lengths.sum()), reader.device
    title = f"{blank.run} {blank.protocol} {blank.length}"
    reason, arrays = None, None
    start = time.perf_counter()
    with progress(total, title) as bar, system.peak_memory(device) as peak:
        try:
            score, budget = reader.score(text.split), TOKEN_BUDGET[device.type]
            arrays = measure(text.stream, windows, score, budget, bar.update, at_once(device))
        except (MemoryError, RuntimeError) as error:
            if not system.out_of_memory(error):
                raise
            reason = f"a window of {blank.length} does not fit in the memory of {device.type}"
    seconds = time.perf_counter() - start
    kernel, kernel_reason = reader.kernel()
    row = replace(blank, kernel=kernel, kernel_reason=kernel_reason, seconds=seconds, peak_memory=peak.bytes)
    if arrays is None:
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return replace(row, reason=reason), None
    if not np.isfinite(arrays.nats).all():
        bad = int((~np.isfinite(arrays.nats)).sum())
        return replace(row, reason=f"the loss is not finite in {bad} of {len(arrays.nats)} blocks of text"), None
    row = replace(row, tokens_per_second=total / seconds)
    return replace(row, **summary(arrays, text.words(windows.spans()))), arrays


def summary(arrays: Arrays, words: int | None) -> dict[str, Any]:
    """The numbers of a row from the sums behind it: sums and counts are divided once, here."""
    nats, targets, n_bytes = float(arrays.nats.sum()), int(arrays.count.sum()), int(arrays.bytes.sum())
    loss = nats / targets
    return {
        "status": "ok",
        "nats": nats,
        "bytes": n_bytes,
        "words": words,
        "loss": loss,
        "standard_error": statistics.standard_error(arrays.nats, arrays.count),
        "perplexity": _exp(loss),
        "bits_per_byte": nats / math.log(2) / n_bytes if n_bytes else None,
        "word_perplexity": _exp(nats / words) if words else None,
    }


def _exp(x: float) -> float | None:
    """exp(x); None past the largest float. (A text without blanks is one word of thousands of nats.)"""
    return math.exp(x) if x < 709 else None


def _blank(reader: Reader, request: Request, text: Text, windows: Windows) -> Row:
    """The row of a request with its key, before anything is measured."""
    prepared = text.prepared
    about = asdict(reader.about) | {"corpus": prepared.corpus}
    commit, dirty = reader.commit or (None, None)
    return Row(
        **about,
        run_hash=reader.run_hash,
        step=reader.step,
        extension=reader.extension,
        protocol=request.protocol,
        length=request.length,
        stride=request.stride,
        block=request.block,
        min_context=request.min_context,
        split=request.split,
        targets_digest=windows.digest(text.stream.digest),
        corpus_hash=prepared.corpus_fingerprint,
        tokenizer_hash=prepared.tokenizer.fingerprint,
        dtype=reader.dtype,
        status="n/a",
        targets=windows.targets,
        documents=text.documents(windows.spans()),
        device=_name(reader.device),
        threads=torch.get_num_threads(),
        commit=commit,
        dirty=dirty,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _finished(reader: Reader, request: Request, text: Text, windows: Windows, dtype: str | None = None) -> Row | None:
    """The row of a request, when there is a good one; in `dtype`, None: in the reader's own."""
    one = reader.under(request.extension, request.length, search=False)
    key = _blank(one, request, text, windows)
    path = one.folder / f"{records.file_name(replace(key, dtype=dtype) if dtype else key)}.json"
    with contextlib.suppress(UserError):
        if path.is_file():
            return records.load(path)
    return None


def texts(
    own: Callable[[], Prepared], tokenizer: Tokenizer, requests: Sequence[Request]
) -> Iterator[tuple[Request, Text]]:
    """Each request with the split it reads: of the corpus `own` gives, or of the one named by `on`, in `tokenizer`."""
    found: dict[tuple[str | None, str], Text] = {}
    for request in requests:
        key = request.on, request.split
        if key not in found:
            prepared = own() if request.on is None else tokens.prepare(corpus(request.on, request.split), tokenizer)
            found[key] = Text(prepared, request.split)
        yield request, found[key]


def _texts(run: Run, requests: Sequence[Request]) -> Iterator[tuple[Request, Text]]:
    return texts(partial(reader.prepared, run), run.tokenizer(), requests)
