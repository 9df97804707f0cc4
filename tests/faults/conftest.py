"""The small study that all faults of this folder happen to, and what it is undisturbed: made once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory):
    """Three runs, undisturbed."""
    import kills
    import sweeps

    folder = tmp_path_factory.mktemp("small")
    return kills.undisturbed(sweeps.planned(folder, seeds=1), sweeps.Place(folder / "undisturbed"))


@pytest.fixture
def place(tmp_path: Path):
    import sweeps

    return sweeps.Place(tmp_path / "study")
