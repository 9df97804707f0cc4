"""scripts/gpu_check.sh, as far as it goes without a GPU: it names what is missing, and sums up what it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import scripted

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    """scripts/gpu_check.py as a module."""
    return scripted.load("gpu_check")


def script(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), *words]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_without_a_folder_it_says_how_it_is_called():
    done = script()
    assert done.returncode == 2
    assert "bash scripts/gpu_check.sh TOKENS [RESULTS]" in done.stderr


def test_a_python_that_is_not_there_is_named(tmp_path):
    done = script(str(tmp_path), PYTHON="/nowhere/python")
    assert done.returncode == 2
    assert "missing: PYTHON=/nowhere/python" in done.stderr


def test_all_that_is_missing_is_named_at_once(tmp_path):
    """A Python without posbench's dependencies, and no folder of tokens; nothing is written."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys._base_executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = script(str(tmp_path / "tokens"), str(tmp_path / "results"), PYTHON=str(bare))
    assert done.returncode == 2
    missing = [line for line in done.stderr.splitlines() if line.startswith("missing: ")]
    assert "the modules numpy, typer, hydra" in missing[0]
    assert "torch 2.11 or later; there is none" in missing[1]
    assert str(tmp_path / "tokens") in missing[2]
    assert not (tmp_path / "results").exists()


def test_a_folder_without_the_corpus_is_named_with_the_command_that_makes_it(gpu_check, tmp_path):
    [line] = gpu_check._missing_tokens(tmp_path)
    assert f"posbench data prepare sotu_books --out {tmp_path}" in line


def bench(folder: Path, **own: float) -> None:
    """What `bench encodings --out` leaves."""
    rows = [
        {"task": "train", "name": "none", "peak_share": 0.5, "ratio": None, "ratio_low": None},
        {"task": "train", "name": "alibi", "peak_share": 0.4, "ratio": 0.95, "ratio_low": 0.88} | own,
        {"task": "eval", "name": "t5", "peak_share": None, "ratio": 0.9, "ratio_low": 0.9},
    ]
    (folder / "encodings.json").write_text(json.dumps([{"title": "", "rows": rows, "notes": []}]))


def test_a_goal_is_met_by_the_lower_end_of_its_interval(gpu_check, tmp_path, capsys):
    bench(tmp_path)
    assert gpu_check.summary(tmp_path, tiny=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| training at base, of the card's bf16 matmul peak | 0.500 | 0.45 | met |" in lines
    assert "| alibi, training speed against none | 0.950 (from 0.880) | 0.90 | missed by 0.020 |" in lines
    assert "| t5, training speed against none | not measured | 0.80 | |" in lines  # its evaluation is another row


def test_what_was_cut_is_summed_up_as_far_as_it_went(gpu_check, tmp_path):
    (tmp_path / "tests.log").write_text("ok        one (0.1 s)\nok        two (0.1 s)\nok        three (0.2 s)\n")
    (tmp_path / "parts.txt").write_text("tests: cut after 95 s\n")
    (tmp_path / "window.log").write_text(
        "alibi-L512-small-s1-0a nonoverlapping at 131,072: perplexity 40.1; 9.0 s, flex\n"
    )
    (tmp_path / "machine.txt").write_text("A card; torch 2.13\n")
    gpu_check.summary(tmp_path, tiny=False)
    text = (tmp_path / "summary.md").read_text()
    assert "| tests | cut after 3 passed | all | |" in text
    assert "| one window: alibi-L512-small-s1-0a | 131,072: perplexity 40.1; 9.0 s, flex | | |" in text
    assert "- tests: cut after 95 s" in text
    assert text.endswith("A card; torch 2.13\n")


@pytest.mark.parametrize(("failed", "verdict"), [(0, "met"), (2, "missed")])
def test_finished_tests_are_counted(gpu_check, tmp_path, failed, verdict):
    (tmp_path / "tests.log").write_text(f"ok        one (0.1 s)\n61 passed, {failed} failed\n")
    assert gpu_check._of_tests(tmp_path / "tests.log") == f"| tests | 61 passed, {failed} failed | all | {verdict} |"
