"""Makes the helpers beside it (tiny.py) importable from every test folder, and gives each test process one thread.

The tests' tensors are small: more threads would only wait for each other, and for those of pytest-xdist's workers.
"""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs and prepared text in a folder of the test's own."""
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def place(tmp_path: Path, folders: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, for the commands of a page, which train some twenty times."""
    from posbench import train

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POSBENCH_CONFIGS", raising=False)
    monkeypatch.setattr(train, "VALIDATION_TARGETS", 2048)
    return tmp_path


@pytest.fixture
def data(tmp_path: Path) -> dict:
    """`config.data` of the text of toys.py."""
    import toys

    return toys.text(tmp_path / "text")
