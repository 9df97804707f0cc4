"""What a training writes down of each step: loss, rate, norm, speed; and where it stops being a number."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posbench.checkpoint import State
from posbench.errors import UserError
from posbench.stored import Metrics


class NotFiniteError(UserError):
    """The loss or its gradient is no longer a number."""

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"{what} is no longer finite at step {step}.", "Try a lower optim.lr and optim.matrix_lr.")


class Journal:
    """The metrics of each step, fetched from the device `fetch` steps at a time: a fetch waits for all it computes."""

    def __init__(self, metrics: Metrics, state: State, batch_tokens: int, fetch: int) -> None:
        self.metrics, self.state, self.batch_tokens, self.every = metrics, state, batch_tokens, fetch
        self.waiting: list[tuple[int, float, Tensor, Tensor, float]] = []
        self.seconds = state.seconds
        self.text = ""

    def add(self, loss: Tensor, norm: Tensor, rate: float) -> None:
        self.waiting.append((self.state.step, self.state.seconds, loss, norm, rate))
        if len(self.waiting) == self.every:
            self.fetch()

    def fetch(self) -> None:
        """Write what waits. Raises NotFiniteError at the first step whose loss or gradient is not finite."""
        if not self.waiting:
            return
        values = torch.stack([torch.stack([loss, norm]) for _, _, loss, norm, _ in self.waiting]).tolist()
        speed = len(self.waiting) * self.batch_tokens / (self.state.seconds - self.seconds)
        for (step, seconds, _, _, rate), (loss, norm) in zip(self.waiting, values, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise NotFiniteError("The loss" if not math.isfinite(loss) else "The gradient", step)
            self.metrics.add(
                step=step,
                tokens=step * self.batch_tokens,
                loss=loss,
                lr=rate,
                norm=norm,
                tokens_per_second=speed,
                seconds=seconds,
            )
            self.state.loss = loss
        self.waiting, self.seconds = [], self.state.seconds
        self.text = f"loss {self.state.loss:.3f}, {speed:,.0f} tokens/s"

    def add_validation(self, valid: float) -> None:
        """Write the nats a token of the validation text, after all that waits. Raises as `fetch`."""
        self.fetch()
        if not math.isfinite(valid):
            raise NotFiniteError("The loss on validation text", self.state.step)
        self.metrics.add(step=self.state.step, tokens=self.state.step * self.batch_tokens, valid=valid)
        self.state.valid = valid
