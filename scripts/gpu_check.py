"""The parts of scripts/gpu_check.sh that no command of posbench is; it needs no pytest.

    missing TOKENS     what the script needs and does not find
    tests              tests/on_gpu.py
    warm SETTINGS...   compile what `bench encodings` will time
    window LENGTH      read one window of that length with each run there is
    summary RESULTS    all results against their goals

Nothing but Python's own modules is imported at the top: what is missing has to be said first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "typer", "hydra", "omegaconf", "yaml", "rich", "pandas", "tokenizers", "safetensors", "filelock")
"""What prepared text needs of posbench's own dependencies, as modules; `datasets` reads text and is not among them."""

OLDEST = (2, 11)
"""Of torch."""

ENCODINGS = ("none", "alibi", "t5")

GOALS = {
    "peak_share": ("training at base, of the card's bf16 matmul peak", 0.45),
    "alibi": ("alibi, training speed against none", 0.9),
    "t5": ("t5, training speed against none", 0.8),
}

TINY = 64
"""Tokens of the longest test of a rehearsal."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["missing", "tests", "warm", "window", "summary"])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--tiny", action="store_true")
    asked, more = parser.parse_known_args()
    part, words = asked.part, asked.words
    if part == "missing":
        return missing(Path(words[0]), asked.tiny)
    if part == "tests":
        return tests(asked.tiny)
    if part == "warm":
        return warm([word for word in [*words, *more] if "=" in word])
    if part == "window":
        return window(int(words[0]), asked.tiny)
    return summary(Path(words[0]), asked.tiny)


# missing --------------------------------------------------------------------------------------------------------------


def missing(tokens: Path, tiny: bool) -> int:
    """Say all that is missing, what needs no torch first; 2 if something is."""
    found = 0
    for line in _missing(tokens, tiny):
        found += 1
        print(f"missing: {line}", file=sys.stderr, flush=True)
    if found:
        return 2
    print(_machine(tiny))
    return 0


def _machine(tiny: bool) -> str:
    """Card, versions and commit."""
    import torch

    from posbench import system

    commit = system.commit()
    card = "CPU" if tiny else torch.cuda.get_device_name()
    if not tiny:
        driver = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        card += f", driver {driver.stdout.strip().splitlines()[0] if driver.stdout.strip() else 'unknown'}"
    where = f"commit {commit[0][:12]}{' with changes' * commit[1]}" if commit else "no checkout"
    return f"{card}; torch {torch.__version__}, Python {sys.version.split()[0]}; posbench {where}."


def _missing(tokens: Path, tiny: bool) -> Iterator[str]:
    if sys.version_info < (3, 11):  # noqa: UP036 (whoever names another one is told)
        yield f"Python {sys.version.split()[0]} is too old; name a later one: PYTHON=python3.12"
    lacking = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        yield f"the modules {', '.join(lacking)} of {sys.executable}; name a folder with them: PYTHONPATH=FOLDER"
    torch_there = importlib.util.find_spec("torch") is not None
    version = metadata.version("torch") if torch_there else None
    numbers = tuple(int(number) for number in re.findall(r"\d+", version or "")[:2])
    right = version is not None and numbers >= OLDEST
    if not right:
        yield f"torch {'.'.join(map(str, OLDEST))} or later; there is {version or 'none'}"
    if not tokens.is_dir():
        yield f"the folder of prepared token files {tokens}"
    elif not lacking:
        yield from _missing_tokens(tokens)
    if right and not tiny:
        yield from _missing_on_cuda()


def _missing_on_cuda() -> Iterator[str]:
    import torch

    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        yield f"an NVIDIA card that torch can use; torch {torch.__version__} is {build}"
    elif why := _no_kernel():
        # Everything else still works, and the numbers say what it costs.
        print(f"note: no FlexAttention and nothing compiled: {why}", file=sys.stderr)


def _no_kernel() -> str:
    from posbench import flex

    return flex.lacking(flex.LEAST_WIDTH)


def _missing_tokens(tokens: Path) -> Iterator[str]:
    from posbench.data.tokens import is_current, read_header
    from posbench.errors import UserError

    headers = []
    for file in sorted(tokens.glob("*/header.json")):
        try:
            headers.append(read_header(file.parent))
        except UserError as error:
            print(f"note: {error.message}", file=sys.stderr)
    of_it = [h for h in headers if (h["corpus"]["name"], h["tokenizer"]["name"]) == ("sotu_books", "bpe")]
    if not of_it:
        yield f"sotu_books in {tokens}; elsewhere: posbench data prepare sotu_books --out {tokens}"
    elif not any(is_current(header) for header in of_it):
        theirs = of_it[0]["tokenizer"]["encoder"].get("tokenizers")
        yield f"sotu_books in {tokens} as tokenizers {metadata.version('tokenizers')} makes it; it is from {theirs}"


# tests ----------------------------------------------------------------------------------------------------------------


def tests(tiny: bool) -> int:
    """Run the checks one after the other and say of each how it went, as soon as it did."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import on_gpu
    import torch

    device = torch.device("cpu" if tiny else "cuda")
    failed = passed = 0
    for name, check in on_gpu.checks((32, TINY) if tiny else on_gpu.LENGTHS):
        if tiny and "compiled" in name:
            print(f"left out  {name}: a CPU takes too long over it")
            continue
        start = time.perf_counter()
        try:
            check(device)
        except Exception as error:  # a failure of any kind is what is looked for
            failed += 1
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            print(f"FAILED    {name}: {kind}{str(error).strip().splitlines()[0] if str(error).strip() else ''}")
        else:
            passed += 1
            print(f"ok        {name} ({time.perf_counter() - start:.1f} s)")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


# warm -----------------------------------------------------------------------------------------------------------------


def warm(settings: list[str]) -> int:
    """Run the trial of each training cell in a process of its own, all at once: what they compile is kept."""
    from posbench.bench import entries
    from posbench.compose import compose

    configs = {name: compose([*settings, f"encoding={name}"]) for name in ENCODINGS}
    of_training = [e for e in entries.of_encodings(configs, entries.Work(2048, [])) if e.task == "train"]
    with ThreadPoolExecutor(len(of_training)) as pool:
        for entry, found in zip(of_training, pool.map(_trial, of_training), strict=True):
            print(entry.label, found.reason or f"{found.seconds:.3f} s a step")
    return 0


def _trial(entry: Any) -> Any:
    from posbench.bench import trial

    return trial.run(entry.cells[0], 2**36, 80)


# window ---------------------------------------------------------------------------------------------------------------


def window(length: int, tiny: bool) -> int:
    """Evaluate every run that is done over the first `length` targets of its test text, in one window."""
    from posbench import evaluate, run
    from posbench.evaluate import Request
    from posbench.records import sentence

    done = [one for one in run.all_runs() if one.done]
    if not done:
        print("no run of the study is done")
        return 1
    request = Request("nonoverlapping", length, targets=length)
    good = True
    for one in done:
        for row in evaluate.evaluate(one, [request], device="cpu" if tiny else "cuda"):
            good = good and row.status == "ok"
            took = (
                f"; {row.seconds:.1f} s, {(row.peak_memory or 0) / 2**30:.1f} GiB, {row.kernel}" if row.seconds else ""
            )
            print(sentence(row) + took)
    return int(not good)


# summary --------------------------------------------------------------------------------------------------------------


def summary(results: Path, tiny: bool) -> int:
    """Write RESULTS/summary.md and show it; what was not measured is said to be so."""
    lines = [f"# GPU check{', rehearsed on a CPU: its numbers mean nothing' if tiny else ''}", ""]
    lines += ["| what | measured | goal | |", "| :--- | ---: | ---: | :--- |"]
    rows = _bench(results / "encodings.json")
    for key, (what, goal) in GOALS.items():
        lines.append(_against(what, goal, *_measured(rows, key)))
    lines.append(_of_tests(results / "tests.log"))
    lines += _windows(results / "window.log")
    lines += ["", *_lines(results / "parts.txt", "- "), "", *_lines(results / "machine.txt")]
    text = "\n".join(lines) + "\n"
    (results / "summary.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _bench(file: Path) -> list[dict[str, Any]]:
    """The rows of `bench encodings`, none where it wrote none."""
    if not file.is_file():
        return []
    return json.loads(file.read_text())[0]["rows"]


def _measured(rows: list[dict[str, Any]], key: str) -> tuple[float | None, float | None]:
    """A goal's number and the lower end of its interval."""
    name = "none" if key == "peak_share" else key
    row = next((row for row in rows if row["task"] == "train" and row["name"] == name), {})
    field = "peak_share" if key == "peak_share" else "ratio"
    return row.get(field), row.get(f"{field}_low")


def _against(what: str, goal: float, value: float | None, low: float | None) -> str:
    if value is None:
        return f"| {what} | not measured | {goal:.2f} | |"
    least = value if low is None else low
    shown = f"{value:.3f}" if low in (None, value) else f"{value:.3f} (from {low:.3f})"
    return f"| {what} | {shown} | {goal:.2f} | {'met' if least >= goal else f'missed by {goal - least:.3f}'} |"


def _of_tests(log: Path) -> str:
    said = log.read_text() if log.is_file() else ""
    found = re.findall(r"^(\d+) passed, (\d+) failed$", said, re.MULTILINE)
    if not found:
        return f"| tests | cut after {len(re.findall('^ok ', said, re.MULTILINE))} passed | all | |"
    passed, failed = map(int, found[-1])
    return f"| tests | {passed} passed, {failed} failed | all | {'met' if not failed else 'missed'} |"


def _windows(log: Path) -> list[str]:
    """What `window` printed, a line each."""
    said = [line for line in (log.read_text().splitlines() if log.is_file() else []) if " nonoverlapping at " in line]
    if not said:
        return ["| 131,072 tokens in one window | not measured | | |"]
    return [f"| one window: {line.split(' nonoverlapping at ')[0]} | {line.split(' at ')[-1]} | | |" for line in said]


def _lines(file: Path, before: str = "") -> list[str]:
    return [before + line for line in (file.read_text().splitlines() if file.is_file() else [])]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # its time is over, and what it found is printed already
        sys.exit(130)
