"""Errors a user can cause, said in one or two lines.

A `UserError` ends a command with exit status 2 and no traceback. Anything else that escapes is our fault and keeps
its traceback. `explain` turns what Hydra and OmegaConf raise for a mistyped command line into a `UserError`.
"""

from __future__ import annotations

import difflib
import errno
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf.errors import OmegaConfBaseException


class UserError(Exception):
    """A mistake of the caller: `message` names the thing, `hint` the nearest valid choice."""

    status = 2
    """The exit status of a command that it ends."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n{hint}")
        self.message = message
        self.hint = hint


class ProcessError(UserError):
    """A process has ended that others need: nobody's mistake, said in as few words."""

    status = 1


def closest(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The choice that looks most like `word`, or None when nothing comes near."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=cutoff)
    return found[0] if found else None


def reason(error: BaseException) -> str:
    """The first line of what an error says, or its kind; of the operating system's the bare words.

    >>> reason(PermissionError(13, "Permission denied", "a.txt")), reason(ValueError()), reason(KeyError("a\\nb"))
    ('Permission denied', 'ValueError', "'a\\\\nb'")
    """
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0].rstrip(".")


def how_it_ended(status: int) -> str:
    """What became of a process, from its exit status as Python's `subprocess` gives it: negative for a signal.

    >>> how_it_ended(3), how_it_ended(-15), how_it_ended(-9)
    ('has ended with status 3', 'was ended by SIGTERM', 'was ended by SIGKILL, most likely for want of memory')
    """
    if status >= 0:
        return f"has ended with status {status}"
    guess = ", most likely for want of memory" if status == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-status).name}{guess}"


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


ENVIRONMENT = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE),
    *(errno.EEXIST, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
)
"""Why the operating system may refuse a file, through no fault of posbench."""


def refused(error: BaseException | None) -> UserError | None:
    """What the operating system refused, as a `UserError` with its file; None when it is no such thing.

    >>> print(refused(OSError(errno.ENOSPC, "No space left on device", "runs/rope/model.safetensors")))
    No space left on device: runs/rope/model.safetensors
    """
    if not isinstance(error, OSError) or error.errno not in ENVIRONMENT:
        return None
    file = error.filename2 or error.filename  # of a rename, what it was to become
    return UserError(f"{error.strerror}: {file}" if file else f"{error.strerror}.")


def explain(error: BaseException, words: Sequence[str] = ()) -> UserError | None:
    """What Hydra or OmegaConf raised for a mistyped command line, as a `UserError`; None when it is no such thing.

    `words` are the overrides on it, for where Hydra does not say which of them it means.
    """
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, UserError):
        return error
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        from posbench.search_path import no_choice

        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return no_choice(group.replace("//", "/") or "config", choice, error.options or ())
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if str(error).startswith("Unexpected type annotation: Set"):
        return UserError("A choice(...) or range(...) stands within a list of values.", "Write it alone, or a=1,2,3.")
    if isinstance(error, OmegaConfBaseException):
        return _bad_setting(error)
    if isinstance(error, ValueError) and str(error).startswith("Config group override"):
        return _no_name(words)
    if not isinstance(error, HydraException):
        return None
    text = str(error)
    if text.startswith(("Ambiguous value for argument", "Sweep parameters '")):
        return _several(text.split("'")[1])
    if text.startswith("Could not append to config."):
        return UserError(text.splitlines()[0].split(". ")[1], "Leave out the '+' to change it.")
    if twice := re.match(r"Multiple values for (\S+)\. |(\S+) appears more than once", text):
        return UserError(f"{twice[1] or twice[2]} is there already.", "Leave out the '+' to change it.")
    if isinstance(cause := error.__cause__ or error.__context__, OmegaConfBaseException):
        explained = _bad_setting(cause)
        # "In 'model/mine': ConfigKeyError raised while composing config:": the fault is in a file, not in a word.
        where = text.split(":")[0] + ": " if text.startswith("In '") else ""
        return UserError(where + explained.message, explained.hint)
    if missing := re.match(r"Could not (?:override|delete(?: from config\.)?) '([^'=]*)'", text):
        from posbench.config import Config

        if missing[1] == "study":  # a folder of configs, but not one that a run is composed from
            return UserError("A study has runs, and a run no study.", "Write posbench study run NAME.")
        return no_setting(missing[1], asdict(Config()))
    return UserError(text.splitlines()[0])


def _unreadable(word: str) -> UserError:
    """A word of the command line that Hydra's grammar cannot read."""
    from posbench.search_path import choices

    key, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[+~]{0,2}[\w./@:-]+", key, re.ASCII):
        meant = next(
            (f"{group}={word}" for group in ("encoding", "model", "data", "optim") if word in choices(group)), None
        )
        question = f" Did you mean '{meant}'?" if meant else ""
        hint = "Write group=choice or group.setting=value, as in encoding=rope."
        return UserError(f"'{word}' is no setting.{question}", hint)
    if value[:1] in ("[", "{", "("):
        return UserError(f"The list in {word} is cut short or not readable.", f"Quote it whole, as in '{key}=[1,2]'.")
    return UserError(f"The value in {word} is not readable as it stands.", f"Quote it twice: '{key}=\"{value}\"'.")


def _no_name(words: Sequence[str]) -> UserError:
    """A group that was given null, a number or a truth value."""
    from posbench.search_path import choices

    for word in words:
        group, _, value = word.partition("=")
        if re.fullmatch(r"(?i)null|true|false|[+-]?(nan|inf|[\d._e+-]+)", value) and choices(group):
            return unknown(group, value, choices(group))
    return UserError("A group is given something that is no name.", "Write group=choice, as in encoding=rope.")


def _several(word: str) -> UserError:
    """A comma list where one job was asked for."""
    word = word.lstrip("+")  # with which a command may have passed it on
    key, _, values = word.partition("=")
    as_list = f"; for one setting that is a list write '{key}=[{values}]'" if "." in key and "(" not in values else ""
    return UserError(f"{word} gives several values.", f"posbench train -m runs one job for each{as_list}.")


def _bad_setting(error: OmegaConfBaseException) -> UserError:
    """A key that does not exist, or a value of the wrong kind."""
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue

    key, text = error.full_key or error.key, str(error).splitlines()[0]
    if key is None:
        return UserError(f"{text}.")
    key = str(key)
    if isinstance(error, MissingMandatoryValue):
        return UserError(f"{key} must be given.", f"Write {key}=... on the command line.")
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        group, _, setting = key.partition(".")
        if group == "extension":
            from posbench.extensions import foreign

            if said := foreign(setting):
                return UserError(f"There is no setting '{key}'.", said)
        return no_setting(key, error.parent_node or {})
    if "NoneType" in text or "is not Optional" in text:
        return UserError(f"{key} cannot be empty.")
    if "is not a ListConfig" in text:
        return UserError(f"{key}: this is no list.", f"Write it in brackets, as in {key}=[128,256].")
    if "does not support deletion" in text:
        return UserError(f"{key} cannot be taken away.", f"Write {key}=... to change it.")
    if kind := re.match(r"Value '(.*)' of type '\w+' could not be converted to (Integer|Float|Boolean)", text, re.S):
        return UserError(f"{key}: '{kind[1]}' is no {KINDS[kind[2]]}.")
    return UserError(f"{key}: {text}")


KINDS = {"Integer": "whole number", "Float": "number", "Boolean": "true or false"}


OF_SEVERAL = ("workers", "on_error")
"""Settings of a sweep or study, which no single run has."""


def no_setting(key: str, siblings: Mapping[Any, Any]) -> UserError:
    """There is no setting `key` (dotted) beside those of the mapping `siblings`."""
    group, _, word = key.rpartition(".")
    if group.startswith("encoding."):  # of a text: what a wrapper holds has no keys of its own on a command line
        return UserError(f"There is no setting '{key}'.", f"Name both: {group}='{{name: ENCODING, {word}: VALUE}}'")
    if key in OF_SEVERAL:
        return UserError(
            f"'{key}' is no setting of a run.", f"It is one of the whole: posbench study run NAME {key}=..."
        )
    names = sorted(str(name) for name in siblings if name != "hydra")
    of_several = None if group else closest(word, OF_SEVERAL, 0.8)
    near = of_several or closest(word, names)
    if near is not None:
        near = f"{group}.{near}" if group else near
    elif not group:
        # `length=128` where `train.length=128` is meant.
        below = [name for name in names if isinstance(siblings[name], Mapping)]
        near = next((f"{name}.{word}" for name in below if word in siblings[name]), None)
    question = f" Did you mean '{near}'?" if near else ""
    return UserError(
        f"There is no setting '{key}'.{question}", f"{group or 'settings'}: {', '.join(names) or '(none)'}"
    )
