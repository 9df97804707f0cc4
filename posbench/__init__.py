"""Which position encoding still works past the training length, how sure is that, and what does it cost?

    posbench.load("rope-L512")     a run: .config, .model(), .tokenizer(), .status()
    posbench.records()             the rows of all runs as a DataFrame

The command line is `posbench --help`. Nothing heavy is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posbench import records as records
    from posbench.run import Run

__version__ = "0.1.0"


def load(run: str | Path) -> Run:
    """The run at a path, or of a name, or of the unique beginning of a name or hash. `UserError` when there is none."""
    from posbench.run import find

    return find(str(run))


def __getattr__(name: str) -> Any:
    if name == "records":
        return import_module("posbench.records")
    raise AttributeError(f"module 'posbench' has no attribute '{name}'")
