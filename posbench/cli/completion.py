"""What the shell offers at <tab>: overrides of the config, runs, choices of a group.

A completion must never disturb the shell: whatever goes wrong, nothing is offered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import typer

from posbench.search_path import choices, config_dir

OF_JOBS = ("workers=2", "workers=4", "workers=8", "on_error=continue", "on_error=stop", "on_error=retry=1")
"""What several jobs take beside their settings."""


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of runs; only their folders are looked at."""
    root = Path(os.environ.get("POSBENCH_RUNS") or "runs")
    have = ("run.json", "status.json")  # as in posbench/run.py, which takes longer to import than <tab> may take
    return sorted({file.parent.name for name in have for file in root.glob(f"{incomplete}*/{name}")})


def choice(group: str) -> Callable[[typer.Context, str], list[str]]:
    """A completion of the names of a config group."""

    def names(ctx: typer.Context, incomplete: str) -> list[str]:
        return [name for name in choices(group) if name.startswith(incomplete)]

    return names


def runs_and_eval(ctx: typer.Context, incomplete: str) -> list[str]:
    """Runs, and settings of `eval`."""
    return runs(ctx, incomplete) + [
        match for match in overrides(ctx, incomplete) if "eval" in (match[:4], _at()[1][:4])
    ]


def overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """Continuations of an override: groups, choices, settings and their present values."""
    typed, word = _at() if "COMP_WORDS" in os.environ else (list(ctx.params.get("overrides") or []), incomplete)
    multirun, folder = bool(ctx.params.get("multirun")) or ctx.info_name == "sweep", ctx.params.get("config_dir")
    found: list[str] = []
    if multirun or ctx.info_name in ("run", "reproduce"):
        typed = [one for one in typed if not one.startswith(("workers=", "on_error="))]
        found = [one for one in OF_JOBS if word and one.startswith(word)]
    with contextlib.suppress(Exception):
        found += _matches(word, typed, multirun, folder)
        if len(found) == 1 and found[0][-1] in "=/.":
            # The shell would end it with a blank, were there not more that begin with it.
            found += _matches(found[0], typed, multirun, folder)
    # What bash takes for the word begins after the last "=".
    prefix = word[: len(word) - len(incomplete)]
    return [match.removeprefix(prefix) for match in found]


def _at() -> tuple[list[str], str]:
    """The overrides before the cursor and the word at it. Bash splits at "=": `encoding=ro` are three words to it."""
    parts = os.environ.get("COMP_WORDS", "").split("\n")[2 : int(os.environ.get("COMP_CWORD", "0")) + 1]
    words: list[str] = []
    for part in parts:
        if words and (part == "=" or words[-1].endswith("=")):
            words[-1] += part
        else:
            words.append(part)
    return [word for word in words[:-1] if "=" in word and not word.startswith("-")], words[-1] if words else ""


def _matches(word: str, typed: list[str], multirun: bool, folder: str | None) -> list[str]:
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    from posbench.compose import register
    from posbench.search_path import extra_dir

    # `encoding=rope,al`: the last of several choices.
    done, comma, last = word.rpartition(",")
    key = word.partition("=")[0] + "="
    if comma:
        word, multirun = key + last, True
    with extra_dir(folder), hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        register()
        plugin = DefaultCompletionPlugin(GlobalHydra.instance().config_loader())
        found = plugin._query("config", " ".join([*(["--multirun"] if multirun else []), *typed, word]))
    found = [match for match in found if match.split("=")[0] not in ("hydra", "hydra.", "hydra/")]
    return [f"{done},{match.removeprefix(key)}" for match in found] if comma else found
