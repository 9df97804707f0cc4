"""The loss of every target of some windows, whoever gives it: the core of evaluation.

A model is here a function from ids to losses. Its losses are summed in float64, with their counts, by block of text
and by context, and nothing is averaged: windows score unequal numbers of targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from posbench.data.tokens import Stream
from posbench.data.windows import Windows, batches, gather
from posbench.records import Arrays
from posbench.side_by_side import each

BLOCK = 128
"""Consecutive targets of one block of text."""

Score = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(inputs (B, T), targets (B, n), window numbers (B,)) -> float32 nats (B, n) of the last n targets of each window."""


def positions(length: int) -> np.ndarray:
    """Upper edges of the bins of context up to `length`: 1, 2, ..., 64, then 24 an octave, so that powers of two are
    edges. The last may lie beyond `length`, since the same context is in the same bin at every length."""
    octaves = max(0, math.ceil(math.log2(length / 64)))
    above = np.floor(64 * 2.0 ** (np.arange(1, 24 * octaves + 1) / 24))
    edges = np.concatenate([np.arange(1, 65), above]).astype(np.int32)
    return edges[: int(np.searchsorted(edges, length)) + 1]


def measure(
    stream: Stream,
    windows: Windows,
    score: Score,
    token_budget: int,
    tick: Callable[[int], None] = lambda inputs: None,
    at_once: int = 1,
) -> Arrays:
    """The loss of every target, once, summed in float64 by block of text and by context. Nothing is averaged here.

    Blocks of `BLOCK` ids are counted from the start of each document, so they are the same for every way of reading
    it. `tick` is told the number of inputs read so far; up to `at_once` batches are read at the same time.
    """
    size = np.diff(stream.documents)
    before = np.append(0, np.cumsum(-(-size // BLOCK)))
    nats, count, n_bytes = np.zeros(before[-1]), np.zeros(before[-1], np.int64), np.zeros(before[-1], np.int64)
    first = np.full(before[-1], len(stream.ids), np.int64)
    edges = positions(int(windows.lengths.max()))
    position_nats, position_count = np.zeros(len(edges)), np.zeros(len(edges), np.int64)
    read = 0

    def read_batch(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        inputs_BT, targets_Bn = gather(stream.ids, windows, numbers)
        return numbers, score(inputs_BT, targets_Bn, numbers), inputs_BT.shape[1]

    todo = list(batches(windows, token_budget))
    # A window beyond the budget keeps all threads busy by itself; two at once would only take twice the memory.
    fitting = 2 * token_budget // int(windows.lengths.max())
    for numbers, losses_Bn, length in each(read_batch, todo, max(1, min(at_once, len(todo), fitting))):
        n = losses_Bn.shape[1]
        target_Bn = windows.end[numbers, None] + np.arange(1 - n, 1)
        document = np.searchsorted(stream.documents, target_Bn, side="right") - 1
        block = before[document] + (target_Bn - stream.documents[document]) // BLOCK
        # One after the other, in the order of the text: unlike a sum by batch, this does not depend on the batch.
        np.add.at(nats, block, losses_Bn.astype(np.float64))
        np.add.at(count, block, 1)
        np.add.at(n_bytes, block, stream.nbytes[target_Bn])
        np.minimum.at(first, block, target_Bn)
        context_Bn = np.broadcast_to(np.arange(1 - n, 1) + length, losses_Bn.shape)
        bins = np.searchsorted(edges, context_Bn)
        np.add.at(position_nats, bins, losses_Bn.astype(np.float64))
        np.add.at(position_count, bins, 1)
        read += len(numbers) * length
        tick(read)
    used, seen = count > 0, position_count > 0
    return Arrays(
        document=np.repeat(np.arange(len(size)), np.diff(before))[used].astype(np.int32),
        first=first[used],
        count=count[used].astype(np.int16),
        bytes=n_bytes[used].astype(np.int32),
        nats=nats[used],
        position=edges[seen],
        position_count=position_count[seen],
        position_nats=position_nats[seen],
    )
