"""From a command to Hydra: one job or a sweep, through `hydra.main`.

1. In a sweep every job is composed and checked before the first one starts.
2. `hydra.main` runs with an argv made here, so that its launchers, sweepers, --cfg and --info all work.
3. One job: the task turns what Hydra composed into a `Config` and hands it to the command's work.
   A sweep: our launchers (hydra_plugins/posbench_launcher.py) hand over all of its jobs at once, for posbench/launch.py
   to do. Another launcher calls the task for each, maybe in a process or on a machine of its own.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from posbench.cli.options import legible, say, settings
from posbench.errors import UserError, refused
from posbench.search_path import config_dir, extra_dir

if TYPE_CHECKING:
    from posbench.cluster import Engine
    from posbench.config import Config
    from posbench.job import Job, Result
    from posbench.launch import Settings

Work = Callable[[Any, str], None]
"""What one job does with its Config and the command line that would run it."""

Sweep = Callable[[Any, Any], Any]
"""What does the jobs of a sweep as their `Settings` say, and gives the result of each."""


def launch(
    work: Work,
    command: str,
    words: Sequence[str] | None,
    *,
    sweep: Sweep | None = None,
    flags: Sequence[str] = (),
    folder: str | None = None,
) -> None:
    """Run `work` for the config of `words`, or `sweep` for the jobs that are their combinations.

    `flags` are Hydra's own (--cfg job, --info, ...), `folder` is one more folder of configs. Raises `UserError` for a
    bad command line, and `typer.Exit(1)` after a sweep in which a job failed.
    """
    import tempfile  # here, since `posbench --help` can do without it

    from posbench.cluster import needs
    from posbench.launch import asked

    words = settings(words)
    how, rest = asked(words)
    needs(rest)
    for word in words:
        if sweep is None and word not in rest:
            raise UserError(f"{word} has no effect here.", "It belongs to several jobs: add -m.")
        setting = word.lstrip("+")
        if setting.startswith("hydra.mode="):  # a sweep behind our back: unchecked, its failures not gathered
            raise UserError(f"{word} has no effect.", "Write -m to run one job for each of a=1,2.")
        if setting.startswith("hydra.sweeper.params"):
            raise UserError(f"{word} has no effect.", "Write the lists themselves, as in seed=1,2.")
    with extra_dir(folder):
        task = _Task(work, sweep, command, how, folder, {} if sweep is None else _checked_jobs(rest))
        with tempfile.TemporaryDirectory(prefix="posbench-") as scratch:
            own = [f"hydra.job.name={command}", f"hydra.sweep.dir='{scratch}'"]
            _hydra(task, [*own, *rest], sweep is not None, flags)
    task.finish()


def _hydra(task: _Task, words: list[str], multirun: bool, flags: Sequence[str]) -> None:
    import hydra

    from posbench.compose import register
    from posbench.errors import explain

    register()
    # The overrides come first: Hydra's parser takes them in one piece.
    argv = [*words, *(["--multirun"] if multirun else []), *flags]
    main = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")(task)
    with _process(argv):
        try:
            main()
        except SystemExit as end:
            if not flags or not end.code:
                raise
            raise typer.Exit(2) from end  # `--cfg job --package x`, of which Hydra has said that there is none
        except Exception as error:
            explained = explain(error, words)
            if explained is None or explained is error:
                raise
            if multirun:  # each job was composed; Hydra also composes what they have in common
                explained.message += " It must be one of every combination asked for."
            raise explained from error


@contextmanager
def _process(argv: Sequence[str]) -> Iterator[None]:
    """Within it, sys.argv is what Hydra shall read, and Hydra's errors come to us instead of ending the process."""
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [before[0], *argv], "1"
    try:
        yield
    finally:
        sys.argv = before
        del os.environ["HYDRA_FULL_ERROR"]
        os.environ.update({"HYDRA_FULL_ERROR": full_error} if full_error is not None else {})


def _checked_jobs(words: Sequence[str]) -> dict[tuple[str, ...], Config]:
    """The config of each job of a sweep by its words. Raises `UserError` for the first that cannot be composed."""
    from posbench.compose import combinations, compose, tell_many

    jobs = combinations(words)
    tell_many(len(jobs), say)
    found = {}
    for job in jobs:
        try:
            found[_settings(job)] = compose(job)
        except UserError as error:
            own = " ".join(word for word in job if word not in words)
            raise UserError(f"In the job {own}: {error.message}" if own else error.message, error.hint) from error
    return found


def _settings(job: Sequence[str]) -> tuple[str, ...]:
    """The words of a job that are of its run."""
    return tuple(word for word in job if not word.startswith(("hydra.", "hydra/")))


class _Task:
    """Hydra's task function. It keeps what goes wrong, so that Hydra neither stops the sweep nor prints over us."""

    def __init__(
        self,
        work: Work,
        sweep: Sweep | None,
        command: str,
        how: Settings,
        folder: str | None,
        checked: Mapping[tuple[str, ...], Config],
    ) -> None:
        self.work, self.sweep, self.command, self.how, self.folder = work, sweep, command, how, folder
        self.checked = checked
        self.process = os.getpid()
        self.error: Exception | None = None
        self.results: list[tuple[str, Result | None]] = []
        # hydra.main reads the name and module of a function.
        self.__name__, self.__qualname__ = command, command

    def __call__(self, cfg: Any) -> None:
        """One job, or of a sweep under another launcher than ours each in turn."""
        from hydra.core.hydra_config import HydraConfig

        from posbench.errors import explain

        hydra = HydraConfig.get()
        try:
            if self.sweep is None:
                job = self._composed(cfg, hydra)
                self.work(job.config, job.command)
                return
            (result,) = self._do([self._composed(cfg, hydra)])
        except Exception as error:
            if os.getpid() != self.process:
                raise
            self.error = explain(error, list(hydra.overrides.task)) or error
            return
        if result is not None and result.state != "done" and os.getpid() != self.process:
            raise UserError(result.message)  # Hydra carries it to the main process

    def launch(
        self, jobs: Sequence[Sequence[str]], compose: Callable[[int], Any], engine: Engine | None
    ) -> list[Result | None]:
        """The jobs of a sweep, each in its words, on an engine or here; the result of each, None for one that was not
        begun.

        `compose` has Hydra compose one of them, by its number here: for a sweeper that makes jobs of its own.
        """
        from posbench import cluster

        self.how = cluster.on(self.how, engine)
        found = []
        for number, words in enumerate(jobs):
            if (config := self.checked.get(_settings(words))) is not None:
                found.append(self._job(config, _settings(words)))
            else:
                cfg = compose(number)
                found.append(self._composed(cfg, cfg.hydra))
        return self._do(found)

    def _do(self, jobs: list[Job]) -> list[Result | None]:
        assert self.sweep is not None
        found: list[Result | None] = self.sweep(jobs, self.how)
        self.results += zip((job.label for job in jobs), found, strict=True)
        return found

    def _composed(self, cfg: Any, hydra: Any) -> Job:
        from posbench.compose import from_hydra

        words = list(hydra.overrides.task)
        return self._job(from_hydra(cfg, hydra.runtime.choices, hydra.runtime.config_sources, words), words)

    def _job(self, config: Config, words: Sequence[str]) -> Job:
        from posbench.job import Job

        extra = ["--config-dir", self.folder] if self.folder else []
        return Job(config, shlex.join(["posbench", self.command, *words, *extra]), shlex.join(words))

    def finish(self) -> None:
        """Raise what the one job raised, or sum the sweep up and exit with 1 when a job failed."""
        from posbench.launch import summary, tally

        if self.error is not None:
            raise self.error
        lines = summary(self.results)
        for line in lines:
            say(line)
        if len(self.results) > 1:
            say(tally(result for _, result in self.results))
        if lines:
            raise typer.Exit(1)


def tell(error: Exception, debugging: bool) -> None:
    """An error on stderr: one or two lines for a `UserError` and for what the operating system refuses, a traceback
    for a fault of ours and when debugging."""
    error = refused(error) or error
    if isinstance(error, UserError) and not debugging:
        said = [error.message] if error.hint is None else [error.message, error.hint]
        say("error: " + "\n".join(map(legible, said)))
    else:
        traceback.print_exception(error)


def debugging() -> bool:
    """Whether a traceback is wanted for every error."""
    return "1" in (os.environ.get("POSBENCH_DEBUG"), os.environ.get("HYDRA_FULL_ERROR"))
