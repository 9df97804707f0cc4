"""The tensors that are alive at the same time in a call, to the byte as torch's allocator gives them to its thread.

What a library allocates past that, as some products do for a moment, and what threads of Python make is not seen.

The peak of a process says what a call takes of the machine, but not how that grows: the allocator keeps blocks that
were freed and cuts them otherwise every time, so that two processes that do the same differ by tens of MiB.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

MEMORY = "[memory]"
"""What torch's profiler calls an allocation, or with a minus one that is given back."""


def most_alive(call: Callable[[], object]) -> int:
    """Bytes of the tensors that `call` makes on a CPU, as many as are alive at once, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        found.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
    events = [event for event in events if event.get("name") == MEMORY]
    events.sort(key=lambda event: (event["ts"], event["args"]["Ev Idx"]))
    made: dict[int, int] = {}
    alive = most = 0
    for event in events:
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            made[address] = size
            alive += size
        else:
            alive -= made.pop(address, 0)  # none where it was there before the call
        most = max(most, alive)
    return most
