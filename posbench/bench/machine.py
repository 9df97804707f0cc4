"""What is needed to repeat a measurement: versions, machine, settings, the command."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import posbench
from posbench import files, system
from posbench.config import Config
from posbench.decisions import precision_of

WITH_CHANGES = " with changes"
"""Behind the hash of a commit that is not all of the code."""


def code(command: str) -> dict[str, Any]:
    """What was run, of which versions, on which processor and when."""
    commit = system.commit()
    return {
        "command": command,
        "posbench": posbench.__version__,
        "commit": f"{commit[0][:12]}{WITH_CHANGES * commit[1]}" if commit else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def keep(file: Path, command: str, seconds: Sequence[float]) -> None:
    """Write how long a command has taken, each time, with all of it."""
    files.write_json(file, {"seconds": [round(one, 2) for one in seconds]} | code(command))


def facts(config: Config, vocab: int, command: str, **more: Any) -> dict[str, Any]:
    """In the order in which they are printed."""
    device, shape, train = system.device(config.device), config.model, config.train
    return code(command) | {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": system.set_threads(train.threads),
        "precision": precision_of(config, device),
        "model": f"{shape.name}: {shape.layers} x {shape.width}, {shape.heads} heads, {shape.hidden} hidden",
        "vocabulary": vocab,
        "train_length": train.length,
        "batch_tokens": train.batch_tokens,
        "optim": config.optim.name,
        **more,
    }


def slug() -> str:
    """The processor's name as that of a folder.

    >>> _slug("Intel(R) Xeon(R) Processor"), _slug("AMD EPYC 7B13")
    ('intel-xeon', 'amd-epyc-7b13')
    """
    return _slug(_processor())


def _slug(name: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)|\b(processor|cpu)\b", " ", name.lower())))


def _processor() -> str:
    """The CPU's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def version_of(package: str) -> str | None:
    """Of an installed package; None where it is not."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def free_memory(device: torch.device) -> int:
    """Bytes that could be had now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 8 * 2**30
