"""What the processes of one training do together: share out a batch, add up its gradient, agree on when to stop.

A training in one process is a `Group` of one, for which each of these does nothing. In several, each process computes
the windows of the batch that are its share and weighs their loss by it, so that the sum of all is the mean over the
batch, whatever the number of processes and also where the shares are not equal. That is what torch's
DistributedDataParallel does with its hooks on `backward`; here the sum is taken of the gradients when they are there,
since they may come from several passes at the same time (posbench/side_by_side.py), from no graph for a parameter that
an encoding did not use, and from unequal shares.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from posbench.errors import ProcessError
from posbench.stop import Stop

BUCKET = 2**24
"""Numbers that are added up in one message: 64 MB of float32."""


class Group:
    """One process, which is all there is."""

    rank, count = 0, 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that locks, writes and speaks."""
        return self.rank == 0

    def share(self, rows: int) -> range:
        """Which of `rows` windows are this process's: as many as any other's, or one fewer."""
        return range(self.rank * rows // self.count, (self.rank + 1) * rows // self.count)

    def seed(self, seed: int) -> int:
        """What dropout is seeded with: its draws are another sequence in each process."""
        return seed

    def place(self, device: torch.device) -> torch.device:
        """The device of this process, of a kind."""
        return device

    def refuse_apart(self, step: int) -> None:
        """Raise ProcessError unless all processes are at the same step."""

    def agree(self, stop: Stop, due: bool) -> tuple[bool, bool]:
        """Whether all stop now, since one of them was asked to, and whether the leader finds something due."""
        return stop.asked, due

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Make each of them the sum over all processes, in place."""

    def total(self, number: float) -> float:
        """The sum over all processes."""
        return number

    def each(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every process, by rank; all are of one size, and on the CPU."""
        return [tensor]


ALONE = Group()


class Several(Group):
    """One of several processes, between `torch.distributed.init_process_group` and its end.

    What is on a GPU is summed there, all else on the CPU.
    """

    def __init__(self, rank: int, count: int, local: int, heard: Sequence[int], parent: int) -> None:
        """`heard`: signals that came between two steps; `parent`: the pid of whoever started this process."""
        self.rank, self.count, self.local, self.heard, self.parent = rank, count, local, heard, parent

    def seed(self, seed: int) -> int:
        if self.leads:
            return seed
        return int.from_bytes(hashlib.sha256(f"{seed}/dropout/{self.rank}".encode()).digest()[:8]) >> 1

    def place(self, device: torch.device) -> torch.device:
        return torch.device("cuda", self.local) if device.type == "cuda" else device

    def refuse_apart(self, step: int) -> None:
        steps = [int(one) for one in self.each(torch.tensor([step]))]
        if len(set(steps)) > 1:
            raise ProcessError(
                f"The processes of one training found checkpoints of different steps, {min(steps)} and {max(steps)}.",
                "All of them must see the same folder of runs (POSBENCH_RUNS).",
            )

    def agree(self, stop: Stop, due: bool) -> tuple[bool, bool]:
        asked = [*self.heard, stop.signal or 0]
        if os.getppid() != self.parent:  # whoever started it is gone
            asked.append(signal.SIGTERM)
        said = torch.tensor([max(asked), int(due and self.leads)])
        torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX)
        if said[0]:  # else what this process may have heard since waits for the next step
            stop.signal = int(said[0])
        return bool(said[0]), bool(said[1])

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            torch.distributed.all_reduce(flat)
            for tensor, summed in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def total(self, number: float) -> float:
        summed = torch.tensor(number, dtype=torch.float64)
        torch.distributed.all_reduce(summed)
        return summed.item()

    def each(self, tensor: Tensor) -> list[Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.count)]
        torch.distributed.all_gather(found, tensor)
        return found


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket


def most(rows: int, count: int) -> int:
    """The windows of the largest share."""
    return math.ceil(rows / count)
