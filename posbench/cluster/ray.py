"""Jobs as tasks of Ray: on this machine, or on a cluster of Ray's that sees the same folder of runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.cluster import Engine, Lost, Task
from posbench.errors import UserError, reason

if TYPE_CHECKING:
    from posbench.job import Job, Result


class Ray(Engine):
    """Ray, with the settings of configs/hydra/launcher/ray.yaml."""

    name, at_a_time = "ray", "hydra.launcher.init.num_cpus"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.init, self.remote = settings["init"], settings["remote"]
        cpus = self.remote.get("num_cpus")
        self.threads = max(1, int(cpus)) if cpus is not None else None

    def submit(self, jobs: Sequence[Job]) -> list[RayTask]:
        import ray

        if not ray.is_initialized():
            try:
                ray.init(**self.init)
            except Exception as error:  # of any kind, and none of them is ours
                raise UserError(
                    f"Ray does not start: {reason(error)}.", "hydra.launcher.init.* is what it is given."
                ) from error
        attempt, here = ray.remote(**self.remote)(_attempt), (str(Path.cwd()), _own(os.environ))
        return [RayTask(attempt.remote(job.to_json(), self.threads, *here)) for job in jobs]


class RayTask(Task):
    """One task."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.place = f"Ray task {reference.hex()[:16]}"

    def end(self) -> Result | Lost | None:
        import ray

        from posbench.job import Result

        ended, _ = ray.wait([self.reference], timeout=0)
        if not ended:
            return None
        try:
            text = ray.get(self.reference)
        except Exception as error:  # a worker that was killed or cancelled, a machine that is gone
            return Lost(f"{self.place} ended without a result: {type(error).__name__}, {reason(error)}")
        return Result.from_json(text)

    def stop(self) -> None:
        import ray

        ray.cancel(self.reference)


def _own(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment is posbench's: where runs, texts and configs are."""
    return {key: value for key, value in environment.items() if key.startswith("POSBENCH_")}


def _attempt(text: str, threads: int | None, folder: str, settings: Mapping[str, str]) -> str:
    """Carry a job out in `folder` under the settings of whoever submitted it: a worker of a Ray that was there before
    has those of the command that brought it up."""
    os.chdir(folder)
    for key in _own(os.environ).keys() - settings.keys():
        del os.environ[key]
    os.environ.update(settings)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is imported
    from posbench.job import carry_out

    return carry_out(text)
