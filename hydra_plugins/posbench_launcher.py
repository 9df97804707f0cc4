"""posbench/launch.py as a Hydra launcher, `hydra/launcher=local`: what -m takes unless another one is named.

Hydra looks for launchers in the package `hydra_plugins` alone, which belongs to nobody and so has no __init__.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class LocalLauncher(Launcher):
    """Hands the jobs of a sweep to the task all at once (posbench/cli/bridge.py), instead of one by one."""

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
        for overrides, result in zip(job_overrides, self.task.launch(job_overrides, compose), strict=True):
            returned.append(JobReturn(overrides=overrides, status=JobStatus.COMPLETED))
            returned[-1].return_value = result
        return returned
