"""scripts/gpu_check.sh, as far as it goes without a GPU: it names what is missing, and sums up what it finds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import scripted

from posbench.bench import trial
from posbench.compose import compose
from posbench.data import tokens

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    """scripts/gpu_check.py as a module."""
    return scripted.load("gpu_check")


def script(*words: str, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), *words]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )


STAND_IN = """\
#!/bin/sh
# Writes down what it is asked to bound, and runs nothing.
echo "$@" >>"$CALLS"
"""


def test_it_is_over_within_345_seconds_at_the_latest(tmp_path):
    """Each limit with the seconds after which it is enforced; `warm` runs beside the tests and ends with them, and what
    shows a part's output is bounded as that part is. Of a stand-in for `timeout` that notes what it is given."""
    (tmp_path / "timeout").write_text(STAND_IN)
    (tmp_path / "timeout").chmod(0o755)
    done = script(
        str(tmp_path),
        str(tmp_path / "results"),
        PYTHON=sys.executable,
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        CALLS=str(tmp_path / "calls"),
    )
    assert done.returncode == 0, done.stderr
    parts, shown, total = {}, [], 0
    for call in (tmp_path / "calls").read_text().splitlines():
        *options, seconds, command = re.match(r"((?:--\S+ )*)(\d+) (.*)", call).groups()
        after = re.search(r"--kill-after=(\d+)", options[0])
        if command.startswith("tee"):
            shown.append(int(seconds))
            continue
        assert after, f"nothing ends for certain what has no --kill-after: {call}"
        name = re.search(r"gpu_check.py (\w+)|-m posbench (\w+)", command)
        parts[name[1] or name[2]] = int(seconds) + int(after[1])
    assert parts.keys() == {"missing", "warm", "tests", "bench", "study", "window", "table", "summary"}
    assert sorted(shown) == sorted(parts[name] for name in ("tests", "bench", "study", "window", "summary"))
    assert parts["warm"] <= parts["tests"]
    total = sum(parts.values()) - parts["warm"]
    assert total <= 345


def test_modules_and_python_named_from_where_it_is_called_are_found_from_the_checkout(tmp_path):
    """The parts work in another folder."""
    (tmp_path / "python").write_text('#!/bin/sh\necho "$0|$PYTHONPATH" >&2\nexit 2\n')
    (tmp_path / "python").chmod(0o755)
    done = script("tokens", PYTHON="./python", PYTHONPATH="deps:/more", folder=tmp_path)
    assert done.stderr == f"{tmp_path}/./python|{ROOT}:{tmp_path}/deps:/more\n"


def test_a_card_without_nvidia_smi_has_an_unknown_driver(gpu_check, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu_check._driver() == "unknown"


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
    assert str(tmp_path / "tokens") in missing[-1]
    assert not (tmp_path / "results").exists()


@pytest.mark.process
def test_a_module_that_another_one_needs_is_named_before_anything_runs(gpu_check, tmp_path, monkeypatch):
    assert list(gpu_check._missing_beneath()) == []
    (tmp_path / "typer.py").write_text("import nothing_of_that_name\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [line] = gpu_check._missing_beneath()
    assert line.endswith("ModuleNotFoundError: No module named 'nothing_of_that_name'")


def test_a_folder_without_the_corpus_is_named_with_the_command_that_makes_it(gpu_check, tmp_path):
    [line] = gpu_check._missing_tokens(tmp_path)
    assert f"posbench data prepare sotu_books --out {tmp_path}" in line


def test_a_folder_that_posbench_has_prepared_is_taken(gpu_check, tmp_path):
    """Of a text that stands in for the corpus, by the header that is written of one; and not of another tokenizer's."""
    (tmp_path / "text").mkdir()
    for split in ("train", "validation", "test"):
        (tmp_path / "text" / f"{split}.txt").write_text(f"All work and no play, {split}. " * 20)
    words = ["data=files", f"data.path={tmp_path / 'text'}"]
    for words_of_it, good in ((["tokenizer=bytes"], False), (["tokenizer=bpe", "tokenizer.vocab_size=260"], True)):
        config = compose([*words, *words_of_it])
        header = tokens.prepare(config.data, config.tokenizer, root=tmp_path / "tokens").path / "header.json"
        found = json.loads(header.read_text())
        header.write_text(json.dumps(found | {"corpus": found["corpus"] | {"name": "sotu_books"}}))
        assert (list(gpu_check._missing_tokens(tmp_path / "tokens")) == []) is good


def test_what_compiles_beforehand_ends_its_trials_when_its_time_is_over(gpu_check, monkeypatch):
    """And waits for none of them."""
    ended = []

    def interrupted(entry):
        raise KeyboardInterrupt

    def leave(status):
        ended.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(gpu_check, "_trial", interrupted)
    monkeypatch.setattr(gpu_check.os, "_exit", leave)
    monkeypatch.setattr(trial, "stop", lambda: ended.append("stopped"))
    with pytest.raises(SystemExit):
        gpu_check.warm(["model=nano"])
    assert ended == ["stopped", 130]
    assert gpu_check.TRIAL_SECONDS <= 60


def bench(folder: Path, **own: float) -> None:
    """What `bench encodings --out` leaves."""
    rows = [
        {"task": "train", "name": "none", "peak_share": 0.5, "peak_share_low": 0.5, "ratio": None, "ratio_low": None},
        {"task": "train", "name": "alibi", "peak_share": 0.4, "ratio": 0.95, "ratio_low": 0.88} | own,
        {"task": "eval", "name": "t5", "peak_share": None, "ratio": 0.9, "ratio_low": 0.9},
    ]
    rows = [{"status": "ok", "reason": None, "rounds": 20} | row for row in rows]
    (folder / "encodings.json").write_text(json.dumps([{"title": "", "rows": rows, "notes": []}]))


def test_a_goal_is_met_by_the_lower_end_of_its_interval(gpu_check, tmp_path, capsys):
    bench(tmp_path)
    assert gpu_check.summary(tmp_path, tiny=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| training at base, of the card's bf16 matmul peak | 0.50 | ≥ 0.45 | met |" in lines
    assert "| alibi, training speed against none | 0.95 (from 0.88) | ≥ 0.90 | missed by 0.02 |" in lines
    assert "| t5, training speed against none | not measured | ≥ 0.80 |  |" in lines  # its evaluation is another row


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
    assert "| 131,072 tokens in one window | 1 of 1 models | all | met |" in text
    assert "| one window: alibi-L512-small-s1-0a | 131,072: perplexity 40.1; 9.0 s, flex | | |" in text
    assert "- tests: cut after 95 s" in text
    assert text.endswith("A card; torch 2.13\n")


@pytest.mark.parametrize(("failed", "verdict"), [(0, "met"), (2, "missed")])
def test_finished_tests_are_counted(gpu_check, tmp_path, failed, verdict):
    (tmp_path / "tests.log").write_text(f"ok        one (0.1 s)\n61 passed, {failed} failed\n")
    assert gpu_check._of_tests(tmp_path / "tests.log") == f"| tests | 61 passed, {failed} failed | all | {verdict} |"


@pytest.mark.parametrize(
    ("said", "measured", "verdict"),
    [
        ("a nonoverlapping at 131,072: perplexity 40.1; 9.0 s\nb nonoverlapping at 131,072: perplexity inf",
          "1 of 2", "missed"),
        ("a nonoverlapping at 131,072: n/a: a window of 131072 does not fit in the memory of cuda", "0 of 1", "missed"),
        ("alibi-small, initial weights, nonoverlapping at 131,072: perplexity 2049.3; 1.0 s", "1 of 1", "met"),
        ("alibi-small, initial weights, nonoverlapping at 8,192: perplexity 2049.3; 1.0 s", "1 of 1", "missed"),
    ],
)  # fmt: skip
def test_one_window_has_a_verdict(gpu_check, tmp_path, said, measured, verdict):
    (tmp_path / "window.log").write_text(f"no run of the study is done\n{said}\n")
    line = gpu_check._windows(tmp_path / "window.log")[0]
    assert line == f"| 131,072 tokens in one window | {measured} models | all | {verdict} |"


def test_a_window_is_read_with_initial_weights_where_no_run_is_done(gpu_check, tmp_path, monkeypatch, capsys):
    """What it prints is what the summary reads."""
    (tmp_path / "text").mkdir()
    for split in ("train", "validation", "test"):
        (tmp_path / "text" / f"{split}.txt").write_text("All work and no play. " * 20)
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    settings = ["data=files", f"data.path={tmp_path / 'text'}", "tokenizer=bytes", "model=nano", "model.layers=1"]
    assert gpu_check._initial_window(300, "cpu", settings) == 0
    (tmp_path / "window.log").write_text(capsys.readouterr().out)
    [_, line] = gpu_check._windows(tmp_path / "window.log")
    assert re.match(r"\| one window: alibi-nano, initial weights \| 300: perplexity [\d.]+; .* GiB, strided \|", line)
    assert gpu_check._initial_window(1000, "cpu", settings) == 1  # the text is shorter
