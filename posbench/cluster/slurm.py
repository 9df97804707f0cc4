"""Jobs as a Slurm array, through submitit: the package below hydra-submitit-launcher, whose settings these are.

Two signals end a job early, and each time it writes a checkpoint first and its run goes on from there:

SIGUSR2    Slurm sends it `signal_delay_s` before the time is up. submitit's handler puts the job into the queue again,
           at most `max_num_timeout` times; here the checkpoint is written before that is called.
SIGTERM    a preemption, `scontrol requeue` or `scancel`. Whether the job comes back is Slurm's to say.

A job that Slurm kills without either (a node that is lost) goes on from its last regular checkpoint when it is requeued
or the command is given again.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from posbench import lock
from posbench.cluster import NETWORK_SECONDS, Engine, Lost, Task
from posbench.errors import UserError, reason
from posbench.launch import SAID
from posbench.run import root

if TYPE_CHECKING:
    from posbench.job import Job, Result

LOOK_SECONDS = 10.0
"""Between two questions to Slurm's controller, which answers a whole cluster."""


class Slurm(Engine):
    """Slurm, with the settings of configs/hydra/launcher/slurm.yaml."""

    name, at_a_time = "slurm", "hydra.launcher.array_parallelism"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self.threads = self.settings["cpus_per_task"]
        self.missing: Counter[str] = Counter()
        """How often in a row a job was not in the queue."""
        self.looked = 0.0

    def submit(self, jobs: Sequence[Job]) -> list[SlurmTask]:
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        if shutil.which("sbatch") is None:
            raise UserError("This machine has no sbatch.", "Give the command where you submit jobs to Slurm.")
        minutes, delay = self.settings["timeout_min"], self.settings["signal_delay_s"]
        if minutes * 60 <= delay:
            raise UserError(
                f"hydra.launcher.timeout_min={minutes} ends before the {delay} s that are left for a checkpoint.",
                f"Write timeout_min={delay // 60 + 1} or more, or a smaller hydra.launcher.signal_delay_s.",
            )
        try:
            executor = submitit.AutoExecutor(cluster="slurm", **self._of_executor())
            executor.update_parameters(**self._of_jobs())
            found = executor.map_array(Attempt(self.threads), [job.to_json() for job in jobs])
        except (FailedJobError, FailedSubmissionError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise UserError(f"Slurm does not take the jobs: {lines[-1] if lines else reason(error)}") from error
        self.missing.update({job.job_id: 0 for job in found})
        return [SlurmTask(self, job.task(0)) for job in found]

    def _of_executor(self) -> dict[str, Any]:
        # Absolute, since it names the logs; %j stays for submitit to fill in.
        folder = Path(self.settings["submitit_folder"] or root() / ".slurm" / "%j").absolute()
        return {"folder": folder, "slurm_max_num_timeout": self.settings["max_num_timeout"]}

    def _of_jobs(self) -> dict[str, Any]:
        """As submitit's executor for any cluster names them: what is Slurm's alone says so."""
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        shared = {one.name for one in fields(BaseQueueConf)}
        given = {key: value for key, value in self.settings.items() if value is not None}
        for key in ("submitit_folder", "max_num_timeout", "_target_"):
            given.pop(key, None)
        return {key if key in shared else f"slurm_{key}": value for key, value in given.items()}

    def look(self) -> None:
        """Ask Slurm's controller what is in the queue. (`sacct`, which submitit asks, needs a database that not every
        cluster has: without it a job that was cancelled would be waited for without end.)"""
        if time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if asked.returncode:  # it is busy, or restarts
            return
        queue = set(asked.stdout.split())
        for one in self.missing:
            self.missing[one] = 0 if one in queue else self.missing[one] + 1

    def gone(self, number: str) -> bool:
        """Whether a job is no longer in the queue, and so long that a result would be seen here."""
        return (self.missing[number] - 1) * LOOK_SECONDS >= NETWORK_SECONDS


class SlurmTask(Task):
    """One job of an array."""

    def __init__(self, engine: Slurm, job: Any) -> None:
        self.engine, self.job = engine, job
        self.place = f"Slurm job {job.job_id}, its log: {job.paths.stderr}"

    def end(self) -> Result | Lost | None:
        from posbench.job import Result

        if not self.job.paths.result_pickle.exists():
            return self._lost(f"{self._ended()} without a result") if self.engine.gone(self.job.job_id) else None
        if (error := self.job.exception()) is not None:
            trace = re.search(r"^-+\n(.*?)\s*^-+$", str(error), re.DOTALL | re.MULTILINE)
            return self._lost(f"{self._ended()}: {trace[1].splitlines()[-1] if trace else reason(error)}")
        return Result.from_json(self.job.results()[0])

    def _ended(self) -> str:
        state = self.job.watcher.get_state(self.job.job_id, mode="force")  # of sacct, where there is one
        said = "" if state == "UNKNOWN" else f" ({state})"
        return f"Slurm job {self.job.job_id} ended{said}"

    def _lost(self, message: str) -> Lost:
        log = self.job.paths.stderr
        said = log.read_text(errors="replace").splitlines()[-SAID:] if log.is_file() else []
        return Lost(message, [*said, f"Its Slurm log: {log}"])

    def stop(self) -> None:
        self.job.cancel(check=False)


class Attempt:
    """What runs in the Slurm job: submitit pickles it, calls it, and before a requeue calls its `checkpoint`."""

    def __init__(self, threads: int | None) -> None:
        self.threads = threads

    def __call__(self, text: str) -> str:
        if self.threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(self.threads)  # before torch is imported

        requeue: list[partial[None]] = []

        def time_is_up(handler: Any, number: int, frame: FrameType | None) -> None:
            if not requeue:
                requeue.append(partial(handler, number, frame))
                signal.raise_signal(signal.SIGTERM)

        # submitit has its handler on one of them, by default SIGUSR2.
        for number in _USER:
            if callable(handler := signal.getsignal(number)):
                signal.signal(number, partial(time_is_up, handler))
        try:
            with _children_deaf():
                return _carried_out(text)
        except SystemExit as end:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends one more with the requeue: it is ending already
            with suppress(SystemExit):
                for submitits in requeue:
                    submitits()
            _end(end.code)
            raise

    def checkpoint(self, *words: Any) -> Any:
        """How submitit goes on after a requeue: the same again. The run's folder knows how far it was."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *words)


def _outwait(text: str) -> None:
    """After a requeue, until the lock is free that this very job held on a node that was lost: from here it cannot be
    seen that its process is gone, only that it is silent."""
    if not os.environ.get("SLURM_RESTART_COUNT") or os.environ.get("SLURM_PROCID", "0") != "0":
        return
    from posbench.job import Job
    from posbench.stop import leave_on_sigterm

    leave_on_sigterm()
    run, until = Job.from_json(text).run, time.monotonic() + lock.SILENT + lock.BEAT
    while lock.owner(run.path) is not None and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def _carried_out(text: str) -> str:
    """`carry_out`; where Slurm has started several tasks for the job (`nodes`, `tasks_per_node`), they train its run
    together, as under torchrun, and the result is that of the first."""
    from posbench.job import carry_out

    _outwait(text)
    if int(os.environ.get("SLURM_NTASKS") or 1) == 1:
        return carry_out(text)
    from submitit.helpers import TorchDistributedEnvironment

    from posbench import processes

    TorchDistributedEnvironment().export(set_cuda_visible_devices=False)  # each takes the one of its number
    result = ""

    def lead() -> int:
        nonlocal result
        result = carry_out(text)
        return 0

    processes.command(lead)
    return result


def _end(status: Any) -> None:
    """End this process at once: all is on disk, and taking torch apart may take longer than Slurm waits before it
    kills, and the node counts as occupied so long."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


_USER = (signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def _children_deaf() -> Iterator[None]:
    """Within it, processes that are started (nproc=N, a compiler's) have these signals blocked: Slurm sends them to
    every process of the job, and they end one that knows nothing of them.

    A process has the mask of the thread that starts it. So this thread blocks them too, and another one lets them in
    for it: Python's handlers are called in the main thread whichever thread a signal comes to.
    """
    ready, over = threading.Event(), threading.Event()

    def let_in() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _USER)
        ready.set()
        over.wait()

    threading.Thread(target=let_in, daemon=True).start()
    ready.wait()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _USER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        over.set()
