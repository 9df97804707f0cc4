"""From a command to Hydra: one job or a sweep, through `hydra.main`.

1. In a sweep every job is composed and checked before the first one starts.
2. `hydra.main` runs with an argv made here, so that its launchers, sweepers, --cfg and --info all work.
3. The task turns what Hydra composed into a `Config` and hands it to the command's work. What goes wrong in a sweep is
   printed when it happens and again at the end, and the next job runs all the same.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from posbench.cli.options import say, settings
from posbench.errors import UserError, refused
from posbench.search_path import config_dir, extra_dir

Work = Callable[[Any, str], None]
"""What a job does with its Config and the command line that would run it alone."""


def launch(
    work: Work,
    command: str,
    words: Sequence[str] | None,
    *,
    multirun: bool = False,
    fail_fast: bool = False,
    flags: Sequence[str] = (),
    folder: str | None = None,
) -> None:
    """Run `work` for the config of `words`, or with `multirun` for each of their combinations.

    With `fail_fast` no job is begun after one that failed. `flags` are Hydra's own (--cfg job, --info, ...), `folder`
    is one more folder of configs. Raises `UserError` for a bad command line, and `typer.Exit(1)` after a sweep in which
    a job failed.
    """
    import tempfile  # here, since `posbench --help` can do without it

    words = settings(words)
    for word in words:
        if word.startswith("hydra.mode="):  # a sweep behind our back: unchecked, its failures not gathered
            raise UserError(f"{word} has no effect.", "Write -m to run one job for each of a=1,2.")
    with extra_dir(folder):
        jobs = _checked_jobs(words) if multirun else []
        task = _Task(work, command, jobs, fail_fast, folder)
        with tempfile.TemporaryDirectory(prefix="posbench-") as scratch:
            _hydra(task, [f"hydra.job.name={command}", f"hydra.sweep.dir='{scratch}'", *words], multirun, flags)
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


def _checked_jobs(words: Sequence[str]) -> list[str]:
    """The jobs of a sweep, each as its overrides; the first one that cannot be composed is a `UserError`."""
    from posbench.compose import compose

    jobs = [shlex.join(job) for job in combinations(words)]
    if not jobs:
        raise UserError(
            f"{shlex.join(words)} makes no job.", "A sweep over nothing; posbench train --help lists choices."
        )
    for job in combinations(words):
        try:
            compose(job)
        except UserError as error:
            own = " ".join(word for word in job if word not in words)
            raise UserError(f"In the job {own}: {error.message}" if own else error.message, error.hint) from error
    return jobs


def combinations(words: Sequence[str]) -> list[list[str]]:
    """Every job of a sweep in Hydra's order: `a=1,2 b=3` gives [[a=1, b=3], [a=2, b=3]]."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from posbench.errors import explain

    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()  # for `encoding=glob(*)`
        try:
            parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(words))
            for one in parsed:
                if one.is_sweep_override() and not one.is_discrete_sweep():
                    raise UserError(
                        f"{one.input_line} gives no list of values.", "Write for example a=1,2 or a=range(1,5)."
                    )
            choices = [
                [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
                if one.is_discrete_sweep()
                else [str(one.input_line)]
                for one in parsed
            ]
        except Exception as error:
            raise explain(error, words) or error from error
    return [list(job) for job in itertools.product(*choices)]


class _Task:
    """Hydra's task function: it keeps what goes wrong, so that Hydra neither stops the sweep nor prints over us."""

    def __init__(self, work: Work, command: str, jobs: Sequence[str], fail_fast: bool, folder: str | None) -> None:
        self.work, self.command, self.jobs, self.fail_fast, self.folder = work, command, jobs, fail_fast, folder
        self.process, self.debugging = os.getpid(), debugging()
        self.errors: list[tuple[str, Exception]] = []
        self.left_out = 0
        # hydra.main reads the name and module of a function.
        self.__name__, self.__qualname__ = command, command

    def __call__(self, cfg: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        from posbench.compose import from_hydra
        from posbench.errors import explain

        if self.fail_fast and self.errors:  # Hydra itself stops for nothing less than the end of the process
            self.left_out += 1
            return
        hydra = HydraConfig.get()
        words = list(hydra.overrides.task)
        if len(self.jobs) > 1:
            say(f"[{hydra.job.num + 1}/{len(self.jobs)}] {shlex.join(words)}")
        try:
            config = from_hydra(cfg, hydra.runtime.choices, hydra.runtime.config_sources, words)
            extra = ["--config-dir", self.folder] if self.folder else []
            self.work(config, shlex.join(["posbench", self.command, *words, *extra]))
        except Exception as error:
            if os.getpid() != self.process:
                raise  # in a launcher's worker: Hydra carries it to the main process
            error = explain(error, words) or error
            self.errors.append((shlex.join(words), error))
            if self.jobs:
                tell(error, self.debugging)

    def finish(self) -> None:
        """Raise what the one job raised, or sum the sweep up and exit with 1 when a job failed."""
        if not self.errors:
            return
        if not self.jobs:
            raise self.errors[0][1]
        left_out = f", {self.left_out} not begun" if self.left_out else ""
        say(f"{len(self.errors)} of {len(self.jobs)} jobs failed{left_out}:")
        for job, error in self.errors:
            say(f"  {job}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        raise typer.Exit(1)


def tell(error: Exception, debugging: bool) -> None:
    """An error on stderr: one or two lines for a `UserError` and for what the operating system refuses, a traceback
    for a fault of ours and when debugging."""
    error = refused(error) or error
    if isinstance(error, UserError) and not debugging:
        say(f"error: {error}")
    else:
        traceback.print_exception(error)


def debugging() -> bool:
    """Whether a traceback is wanted for every error."""
    return "1" in (os.environ.get("POSBENCH_DEBUG"), os.environ.get("HYDRA_FULL_ERROR"))
