"""posbench/launch.py as a Hydra launcher, `hydra/launcher=local`: what -m takes unless another one is named; and the
engines of posbench/cluster, `slurm` and `ray`.

Hydra looks for launchers in the package `hydra_plugins` alone, which belongs to nobody and so has no __init__.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

if TYPE_CHECKING:
    from posbench.cluster import Engine


class LocalLauncher(Launcher):
    """Hands the jobs of a sweep to the task all at once (posbench/cli/bridge.py), instead of one by one."""

    engine: Engine | None = None
    """Where they are carried out; None: here."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config
        self.task: Any = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        def compose(number: int) -> DictConfig:
            config: DictConfig = self.loader.load_sweep_config(self.config, list(job_overrides[number]))
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = initial_job_idx + number
            return config

        setup_globals()
        returned = []
        # Hydra raises what a job is said to have failed with, and stops: of failures the task keeps account itself.
        results = self.task.launch(job_overrides, compose, self.engine)
        for overrides, result in zip(job_overrides, results, strict=True):
            returned.append(JobReturn(overrides=overrides, status=JobStatus.COMPLETED))
            returned[-1].return_value = result
        return returned


class SlurmLauncher(LocalLauncher):
    """The same on Slurm."""

    def __init__(self, **settings: Any) -> None:
        from posbench.cluster.slurm import Slurm

        self.engine = Slurm(_plain(settings))


class RayLauncher(LocalLauncher):
    """The same on Ray."""

    def __init__(self, **settings: Any) -> None:
        from posbench.cluster.ray import Ray

        self.engine = Ray(_plain(settings))


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in settings.items()
    }
