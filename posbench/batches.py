"""The batches of a training: which windows they hold, and how one is cut into passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posbench import system
from posbench.checkpoint import State
from posbench.config import Config
from posbench.data import windows
from posbench.data.tokens import Stream
from posbench.model import Decoder


class Batches:
    """The windows of the training stream in the order of their epochs, a batch across an epoch's end included."""

    def __init__(self, stream: Stream, config: Config) -> None:
        self.stream, self.length, self.seed = stream, config.train.length, config.seed
        self.rows = config.train.batch_tokens // config.train.length
        self.own = range(self.rows)
        """Which windows of each batch are computed here; the others are not read."""
        self.epoch = 0
        self.windows = self._windows(0)

    def _windows(self, epoch: int) -> windows.Windows:
        return windows.training(len(self.stream.ids), self.length, self.seed, epoch)

    def next(self, state: State, decoder: Decoder, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Ids (own windows, length + 1) of the next batch and their position ids, None where they count; moves `state`
        past the whole batch."""
        parts: list[np.ndarray] = []
        at = 0
        while at < self.rows:
            if self.epoch != state.epoch:
                self.epoch, self.windows = state.epoch, self._windows(state.epoch)
            count = min(self.rows - at, len(self.windows) - state.window)
            first, last = max(self.own.start, at), min(self.own.stop, at + count)
            if first < last:
                chosen = np.arange(first, last) - at + state.window
                inputs, targets = windows.gather(self.stream.ids, self.windows, chosen)
                parts.append(np.concatenate([inputs, targets[:, -1:]], axis=1))
            at += count
            state.window += count
            if state.window == len(self.windows):
                state.epoch, state.window = state.epoch + 1, 0
        numbers = [state.read + row for row in self.own]
        state.read += self.rows
        positions = decoder.positions(numbers, self.length, windows.generators(self.seed, "train", numbers))
        return system.on_device(torch.from_numpy(np.concatenate(parts)), device), positions

    def epochs(self, state: State) -> float:
        """Passes over the training text so far."""
        return state.epoch + state.window / len(self.windows)


@dataclass
class Part:
    """What one pass reads."""

    ids: Tensor
    """(B, L + 1)"""
    positions: Tensor | None
    """(1 or B, L)"""
    weight: float
    """Its share of the whole batch's targets."""


def parts(batch: Tensor, positions: Tensor | None, rows: int, whole: int, passes: int) -> Iterator[Part]:
    """`batch` (B, L + 1), of the `whole` windows of a step, in passes of `rows` windows, the last one smaller.

    Where there are to be more `passes` than that takes, the first window is read again, with no weight.
    """
    for first in range(0, max(len(batch), passes * rows), rows):
        ids = batch[first : first + rows]
        if len(ids):
            own = positions if positions is None or len(positions) == 1 else positions[first : first + rows]
            yield Part(ids, own, len(ids) / whole)
        else:
            yield Part(batch[:1], None if positions is None else positions[:1], 0.0)
