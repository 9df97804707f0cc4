"""The CUDA devices of this machine, and which job has which: several jobs at a time never share one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posbench.job import Job


def devices() -> list[str]:
    """The CUDA devices that this process may use, each as CUDA_VISIBLE_DEVICES names it."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(number) for number in range(count)])[:count]


class Gpus:
    """Who has which GPU. Where there are none every job fits."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.free = list(names), list(names)

    def _choices(self, job: Job) -> list[str]:
        """Those that it could run on."""
        kind, _, number = job.config.device.partition(":")
        if kind not in ("auto", "cuda"):
            return []
        return self.names[int(number) :][:1] if number else self.names

    def has_one_for(self, job: Job) -> bool:
        choices = self._choices(job)
        return not choices or any(name in self.free for name in choices)

    def take(self, job: Job) -> str | None:
        """One of them, taken; None for a job that needs none."""
        choices = [name for name in self._choices(job) if name in self.free]
        if choices:
            self.free.remove(choices[0])
        return choices[0] if choices else None

    def give_back(self, name: str | None) -> None:
        self.free += [] if name is None else [name]
