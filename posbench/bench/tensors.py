"""The tensors that are alive at the same time in a call, to the byte.

The peak of a process says what a call takes of the machine, but not how that grows: the allocator keeps blocks that
were freed and cuts them otherwise every time, so that two processes that do the same differ by tens of MiB.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from posbench import system

MEMORY = "[memory]"
"""What torch's profiler calls an allocation, or with a minus one that is given back."""


def most_alive(call: Callable[[], object], device: torch.device) -> int:
    """Bytes of the tensors alive at once within `call`, at most. On a CPU and MPS those that it makes, as torch's
    profiler counts them, and not what was there before; on CUDA all on the card."""
    if device.type == "cuda":
        with system.peak_memory(device) as peak:
            call()
        return peak.bytes
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        found.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
    events = [event for event in events if event.get("name") == MEMORY]
    events.sort(key=lambda event: event["args"]["Ev Idx"])
    return max(accumulate((event["args"]["Bytes"] for event in events), initial=0))
