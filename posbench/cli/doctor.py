"""`posbench doctor`: what this machine offers."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from posbench.cli.options import Format, FormatOption, show


def doctor(format: FormatOption = Format.table) -> None:
    """What this machine offers: torch, device, corpora."""
    import torch

    import posbench
    from posbench import run, search_path, system
    from posbench.cli.data import corpora
    from posbench.report.tables import Column, table

    commit = system.commit()
    facts: dict[str, Any] = {
        "posbench": posbench.__version__
        + (f", commit {commit[0][:12]}{' with changes' * commit[1]}" if commit else ""),
        "python": f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "device": _device(),
        "compiler": "found" if system.has_compiler() else "none: torch.compile is not used",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "float32 matmul": f"{system.matmul_rate():.0f} GF/s",
        "runs": str(run.root().resolve()),
        "your configs": ", ".join(map(str, search_path.user_dirs())) or "none (POSBENCH_CONFIGS, --config-dir)",
    }
    columns = [Column("what", "", right=False), Column("value", "", right=False)]
    rows = [{"what": key, "value": value} for key, value in facts.items()]
    show([table("This machine", columns, rows), corpora()], format)


def _device() -> str:
    import torch

    from posbench import system

    device = system.device("auto")
    if device.type != "cuda":
        return device.type
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"cuda: {', '.join(names)}"
