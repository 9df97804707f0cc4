"""What stands beside a measurement, so that it can be repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import works

from posbench import system
from posbench.bench import machine


def test_a_time_is_kept_with_the_commit_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(system, "commit", lambda: ("0123456789abcdef", True))
    machine.keep(tmp_path / "start.json", "posbench table", [1.234, 2.0])
    found = json.loads((tmp_path / "start.json").read_text())
    assert (found["seconds"], found["command"]) == ([1.23, 2.0], "posbench table")
    assert (found["commit"], found["torch"]) == ("0123456789ab with changes", torch.__version__)


def test_the_precision_is_that_of_the_steps():
    asked = works.config()
    asked = replace(asked, train=replace(asked.train, precision="bf16"))
    assert [machine.facts(config, 64, "")["precision"] for config in (works.config(), asked)] == ["fp32", "bf16"]
