"""A file of scripts/ as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parent.parent / "scripts"


def load(name: str) -> ModuleType:
    """`scripts/NAME.py`, loaded anew."""
    if str(SCRIPTS) not in sys.path:  # as of a script that is run
        sys.path.append(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(f"scripts.{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
