"""The only place that cuts text.

A stream is N ids, the first of them an end token; target number t (1 <= t < N) is ids[t]. Every way of reading it, in
training and in each protocol, is a `Windows`: for window w

    inputs   ids[begin : end]            end - begin of them, positions counted from 0
    targets  ids[begin + 1 : end + 1]    of which the last `scored` are counted: numbers end - scored + 1 ... end

so a target's context, the number of inputs it sees, is its distance from `begin`. Nothing is padded: `batches` puts
together only windows of one length and one number of scored targets.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from posbench.errors import UserError


@dataclass(frozen=True)
class Windows:
    """W windows over one stream, in the order in which they are read."""

    begin: np.ndarray
    """First input of each window, (W,) int64."""
    end: np.ndarray
    """One past its last input, which is the number of its last target, (W,) int64."""
    scored: np.ndarray
    """How many of its last targets are counted, (W,) int64, at least 1."""

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def lengths(self) -> np.ndarray:
        """Inputs of each window, (W,)."""
        return self.end - self.begin

    @property
    def targets(self) -> int:
        """Targets scored by all windows together."""
        return int(self.scored.sum())

    def spans(self) -> np.ndarray:
        """The scored targets as the fewest runs [first, stop) of consecutive numbers, sorted, (R, 2) int64."""
        stop = self.end + 1
        order = np.argsort(stop, kind="stable")
        first, stop = (stop - self.scored)[order], stop[order]
        assert (first[1:] >= stop[:-1]).all(), "a target is scored twice"
        opens = np.append(True, first[1:] != stop[:-1])[: len(first)]
        closes = np.append(opens[1:], True)[: len(first)]
        return np.stack([first[opens], stop[closes]], axis=1)

    def digest(self, ids_digest: str) -> str:
        """16 hex digits that name the set of targets, however it was cut, in the stream of that content digest."""
        content = ids_digest.encode() + self.spans().astype("<i8").tobytes()
        return hashlib.sha256(content).hexdigest()[:16]


def nonoverlapping(n_ids: int, length: int, targets: int | None = None) -> Windows:
    """The first `targets` targets (None: all n_ids - 1) in order, `length` a window, the last window shorter and kept.

    Context runs from 1 to `length` in each window. This is how Press et al. (arXiv 2108.12409) measure Tables 1-5.
    """
    begin, end = _groups(n_ids, length, targets)
    return Windows(begin, end, end - begin)


def sliding(n_ids: int, length: int, stride: int, targets: int | None = None) -> Windows:
    """The first `targets` targets (None: all n_ids - 1) in groups of `stride` <= `length`, the last group shorter.

    A group that ends at target e is read with inputs max(0, e - length) ... e - 1, so its targets see
    length - stride + 1 ... length inputs once e > length; with stride 1 exactly `length`.
    """
    assert stride <= length
    begin, end = _groups(n_ids, stride, targets)
    return Windows(np.maximum(end - length, 0), end, end - begin)


def _groups(n_ids: int, size: int, targets: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The targets first + 1 ... last of consecutive groups of `size`, the last group shorter."""
    count = n_ids - 1 if targets is None else min(targets, n_ids - 1)
    first = np.arange(0, count, size, dtype=np.int64)
    return first, np.minimum(first + size, count)


def same_targets(documents: np.ndarray, length: int, min_context: int, block: int, targets: int) -> Windows:
    """One set of targets for every length up to `min_context`: each has length - block + 1 ... length ids of context,
    all of its own document.

    `documents` are the D + 1 offsets of the documents in the stream. After the first `min_context` ids of a document,
    consecutive blocks of `block` ids are eligible (an incomplete last one is not). Of all G eligible blocks in corpus
    order, g = targets // block are taken, block floor(i G / g) for i = 0 ... g - 1, or all when g >= G.
    """
    assert block <= length <= min_context
    eligible = np.maximum(np.diff(documents) - min_context, 0) // block
    total, wanted = int(eligible.sum()), targets // block
    chosen = np.arange(total) if wanted >= total else np.arange(wanted, dtype=np.int64) * total // wanted
    before = np.append(0, np.cumsum(eligible))
    document = np.searchsorted(before, chosen, side="right") - 1
    end = documents[document] + min_context + (chosen - before[document] + 1) * block - 1
    return Windows(end - length, end, np.full(len(chosen), block, dtype=np.int64))


def training(n_ids: int, length: int, seed: int, epoch: int) -> Windows:
    """One epoch: shuffled nonoverlapping windows of `length` from an offset in [0, length), a shorter last one dropped.

    Offset and order are drawn from (seed, epoch). In a stream of fewer than 2 x length ids the offset leaves room for
    one window; a stream without room for any is a `UserError`.
    """
    if n_ids <= length:
        raise UserError(
            f"The training text has {n_ids - 1} targets, fewer than one window of {length}.",
            f"Choose train.length={n_ids - 1} or less, or a longer text.",
        )
    rng = np.random.default_rng([seed, epoch])
    offset = int(rng.integers(min(length, n_ids - length)))
    begin = offset + length * np.arange((n_ids - 1 - offset) // length, dtype=np.int64)
    begin = rng.permutation(begin)
    return Windows(begin, begin + length, np.full(len(begin), length, dtype=np.int64))


def batches(windows: Windows, token_budget: int) -> Iterator[np.ndarray]:
    """Window numbers of one batch after another, order kept: at most `token_budget` inputs (or one window) a batch,
    and within a batch one length and one number of scored targets."""
    lengths = windows.lengths
    differs = (np.diff(lengths) != 0) | (np.diff(windows.scored) != 0)
    edges = np.concatenate([[0], np.flatnonzero(differs) + 1, [len(windows)]])
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        size = max(1, token_budget // int(lengths[low])) if high > low else 1
        for start in range(low, high, size):
            yield np.arange(start, min(start + size, high))


def gather(ids: np.ndarray, windows: Windows, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (B, T) and scored targets (B, n), int64, of one batch of `batches`, copied out of the (mapped) ids."""
    begin, scored = windows.begin[numbers], int(windows.scored[numbers[0]])
    length = int(windows.end[numbers[0]] - begin[0])
    view = np.lib.stride_tricks.sliding_window_view(ids, length + 1)
    text = np.asarray(view[begin], dtype=np.int64)
    return text[:, :-1], text[:, -scored:]


def generators(seed: int, split: str, numbers: Sequence[int] | np.ndarray) -> list[np.random.Generator]:
    """A generator for each window number, for encodings that draw positions: a function of (seed, split, number), so
    that a draw depends on neither batch size nor resume."""
    return [np.random.default_rng([seed, zlib.crc32(split.encode()), int(number)]) for number in numbers]
