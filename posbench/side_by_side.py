"""Parts of one task computed at the same time, each by a thread of Python on its own share of the cores.

An operation of a small model is over in a fraction of a millisecond. When all cores share each one out, they wait for
the slowest some thousand times a step; parts of a batch wait for each other once. Torch lets go of Python's lock
while it computes, and a gradient is computed by the thread that asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(work: Callable[[Item], Result], items: Iterable[Item], at_once: int) -> Iterator[Result]:
    """`work` of every item in their order, `at_once` at a time, each with as large a share of torch's threads.

    With `at_once` 1 it is `map`. An exception of `work` is raised where its result is due; what has not begun by then
    never does. Modes that torch keeps by thread (autocast, no_grad) have to be entered by `work` itself.
    """
    if at_once == 1:
        yield from map(work, items)
        return
    threads = torch.get_num_threads()
    share = max(1, threads // at_once)
    torch.set_num_threads(share)
    pool, waiting = _pool(at_once, share), deque[Future[Result]]()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > at_once:  # one more than at work, so that nobody waits for the caller
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        wait([future for future in waiting if not future.cancel()])
        torch.set_num_threads(threads)


@cache
def _pool(at_once: int, share: int) -> ThreadPoolExecutor:
    """Kept, since a new thread begins with memory of its own, each page of which has to be had from the system first.

    It is asked for when torch is set to `share` threads, which a thread takes over at its first operation.
    """
    return ThreadPoolExecutor(at_once)
