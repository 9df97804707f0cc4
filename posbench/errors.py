"""Errors a user can cause, said in one or two lines.

A `UserError` ends a command with exit status 2 and no traceback. Anything else that escapes is our fault and keeps
its traceback. `explain` turns what Hydra and OmegaConf raise for a mistyped command line into a `UserError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the caller: `message` names the thing, `hint` the nearest valid choice. Exit status 2."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n{hint}")
        self.message = message
        self.hint = hint


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that looks most like `word`, or None when nothing comes near."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return found[0] if found else None


def unknown(kind: str, word: str, choices: Iterable[str]) -> UserError:
    """The one way to say that a name does not exist.

    >>> print(unknown("encoding", "ropee", ["alibi", "rope"]))
    There is no encoding 'ropee'. Did you mean 'rope'?
    encoding: alibi, rope
    """
    names = sorted(choices)
    near = closest(word, names)
    question = f" Did you mean '{near}'?" if near else ""
    return UserError(f"There is no {kind} '{word}'.{question}", f"{kind}: {', '.join(names) or '(none)'}")
