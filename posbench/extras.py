"""Packages that posbench can do without: what needs one says so in a sentence, with the command that installs it."""

from __future__ import annotations

import importlib.util

from posbench.errors import UserError


def require(what: str, module: str, extra: str) -> None:
    """Raise `UserError` when `module` is not installed, which `what` needs and the extra `extra` brings."""
    try:
        there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        there = False
    if not there:
        raise UserError(f"{what} needs {module}, which is not installed.", f"Type: pip install 'posbench[{extra}]'")
