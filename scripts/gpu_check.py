"""The parts of scripts/gpu_check.sh that no command of posbench is; it needs no pytest.

    missing TOKENS     what the script needs and does not find
    tests              tests/on_gpu.py
    warm SETTINGS...   compile what `bench encodings` will time
    window LENGTH SETTINGS...
                       read one window of that length with each run that is done, or with initial weights
    summary RESULTS    all results against their goals

Nothing but Python's own modules is imported at the top: what is missing has to be said first.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
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

GOALS = (
    ("none", "peak_share", "training at base, of the card's bf16 matmul peak", 0.45),
    ("alibi", "ratio", "alibi, training speed against none", 0.9),
    ("t5", "ratio", "t5, training speed against none", 0.8),
)
"""Row of `bench encodings`, its number, what that is, and how much of it there should be."""

WINDOW = 131_072
"""Tokens to be read in one window."""

TRIAL_SECONDS = 60
"""Of one training cell that is compiled beforehand."""

TINY = 64
"""Tokens of the longest test of a rehearsal."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["missing", "tests", "warm", "window", "summary"])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--tiny", action="store_true")
    asked, more = parser.parse_known_args()
    part, words = asked.part, asked.words
    settings = [word for word in [*words, *more] if "=" in word]
    if part == "missing":
        return missing(Path(words[0]), asked.tiny)
    if part == "tests":
        return tests(asked.tiny)
    if part == "warm":
        return warm(settings)
    if part == "window":
        return window(int(words[0]), asked.tiny, settings)
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
    card = "CPU" if tiny else f"{torch.cuda.get_device_name()}, driver {_driver()}"
    where = f"commit {commit[0][:12]}{' with changes' * commit[1]}" if commit else "no checkout"
    return f"{card}; torch {torch.__version__}, Python {sys.version.split()[0]}; posbench {where}."


def _driver() -> str:
    """Its release; many a container has a card, and no nvidia-smi."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=5).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        said = []
    return said[0] if said else "unknown"


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
    driver = tiny or _driver_there()
    if not driver:
        yield "an NVIDIA driver (libcuda.so.1)"
    if not tokens.is_dir():
        yield f"the folder of prepared token files {tokens}"
    elif not lacking:
        yield from _missing_tokens(tokens)
    if right and not lacking:
        yield from _missing_beneath()
    if right and driver and not tiny:
        yield from _missing_on_cuda()


def _driver_there() -> bool:
    """Torch loads the same, but is seconds in doing so."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _missing_beneath() -> Iterator[str]:
    """What the modules themselves need shows in a command alone: some import it late."""
    with tempfile.TemporaryDirectory() as empty:
        words = [sys.executable, "-m", "posbench", "runs", "--format", "csv"]
        said = subprocess.run(
            words, env=os.environ | {"POSBENCH_RUNS": empty}, capture_output=True, text=True, check=False
        ).stderr
    if "Traceback" in said:
        yield f"what `posbench runs` needs of {sys.executable}: {said.strip().splitlines()[-1]}"


def _missing_on_cuda() -> Iterator[str]:
    import torch

    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        yield f"an NVIDIA card that torch can use; torch {torch.__version__} is {build}"
        return
    try:
        torch.ones(1, device="cuda").add(1).item()
    except RuntimeError as error:  # as of a card that this build has no code for, or one with no memory left
        yield f"an NVIDIA card that torch can use; {torch.cuda.get_device_name()}: {str(error).strip().splitlines()[0]}"
        return
    if torch.cuda.get_device_capability() < (8, 0):
        print(f"note: {torch.cuda.get_device_name()} has no bf16 of its own", file=sys.stderr)
    if why := _no_kernel():
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
    of_it = [h for h in headers if (h["corpus"]["name"], h["tokenizer"]["kind"]) == ("sotu_books", "bpe")]
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
    without = "a CPU has no FlexAttention" if tiny else _no_kernel()
    failed = passed = 0
    for name, check in on_gpu.checks((32, TINY) if tiny else on_gpu.LENGTHS):
        if without and (check is on_gpu.compiled_once or (not tiny and on_gpu.COMPILED in name)):
            print(f"left out  {name}: {without}")
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
    # What a shell starts in the background ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from posbench.bench import entries, trial
    from posbench.compose import compose

    configs = {name: compose([*settings, f"encoding={name}"]) for name in ENCODINGS}
    of_training = [e for e in entries.of_encodings(configs, entries.Work(2048, [])) if e.task == "train"]
    pool = ThreadPoolExecutor(len(of_training))
    try:
        for entry, found in zip(of_training, pool.map(_trial, of_training), strict=True):
            print(entry.label, found.reason or f"{found.seconds:.3f} s a step")
    except KeyboardInterrupt:
        trial.stop()
        os._exit(130)  # at once: a thread may be about to begin another, which then ends with this process
    return 0


def _trial(entry: Any) -> Any:
    from posbench.bench import trial

    return trial.run(entry.cells[0], 2**36, TRIAL_SECONDS)


# window ---------------------------------------------------------------------------------------------------------------


def window(length: int, tiny: bool, settings: list[str]) -> int:
    """Evaluate every run that is done over the first `length` targets of its test text, in one window; where none is,
    a model with its initial weights."""
    from posbench import evaluate, run
    from posbench.evaluate import Request
    from posbench.records import sentence

    device = "cpu" if tiny else "cuda"
    done = [one for one in run.all_runs() if one.done]
    if not done:
        print("no run of the study is done")
        return _initial_window(length, device, ["data=sotu_books", *(settings or ["tokenizer=bpe", "model=small"])])
    request = Request("nonoverlapping", length, targets=length)
    good = True
    for one in done:
        for row in evaluate.evaluate(one, [request], device=device):
            good = good and row.status == "ok"
            print(sentence(row) + (_took(row.seconds, row.peak_memory or 0, row.kernel) if row.seconds else ""))
    return int(not good)


def _took(seconds: float, memory: int, kernel: str | None) -> str:
    return f"; {seconds:.1f} s, {memory / 2**30:.1f} GiB, {kernel}"


def _initial_window(length: int, device: str, settings: list[str]) -> int:
    """The same of a model that has learned nothing: its time and memory are those of any."""
    import numpy as np
    import torch

    from posbench import model, system
    from posbench.compose import compose
    from posbench.data import tokens

    config = compose(["encoding=alibi", *settings])
    prepared = tokens.prepare(config.data, config.tokenizer)
    place = torch.device(device)
    decoder = model.build(config, prepared.tokenizer.vocab_size, prepared.tokenizer.end).to(place).eval()
    ids = torch.from_numpy(prepared.stream("test").ids[: length + 1].astype(np.int64))[None].to(place)
    start = time.perf_counter()
    with (
        torch.inference_mode(),
        torch.autocast(device, torch.bfloat16, enabled=device == "cuda"),
        system.peak_memory(place) as peak,
    ):
        loss = float(decoder.token_losses(ids[:, :-1], ids[:, 1:]).double().mean())
    took = _took(time.perf_counter() - start, peak.bytes, decoder.kernel)
    read = ids.shape[1] - 1
    print(
        f"alibi-{config.model.name}, initial weights, nonoverlapping at {read:,}: perplexity {math.exp(loss):.3f}{took}"
    )
    return int(read < length or not math.isfinite(loss))


# summary --------------------------------------------------------------------------------------------------------------


def summary(results: Path, tiny: bool) -> int:
    """Write RESULTS/summary.md and show it; what was not measured is said to be so."""
    lines = [f"# GPU check{', rehearsed on a CPU: its numbers mean nothing' if tiny else ''}", ""]
    lines += ["| what | measured | goal | |", "| :--- | ---: | ---: | :--- |"]
    from goals import held

    trained = {row["name"]: row for row in _bench(results / "encodings.json") if row["task"] == "train"}
    for name, key, what, goal in GOALS:
        lines.append(held(what, goal, trained.get(name), key).line())
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


def _of_tests(log: Path) -> str:
    said = log.read_text() if log.is_file() else ""
    found = re.findall(r"^(\d+) passed, (\d+) failed$", said, re.MULTILINE)
    if not found:
        return f"| tests | cut after {len(re.findall('^ok ', said, re.MULTILINE))} passed | all | |"
    passed, failed = map(int, found[-1])
    return f"| tests | {passed} passed, {failed} failed | all | {'met' if not failed else 'missed'} |"


def _windows(log: Path) -> list[str]:
    """The goal, and under it what `window` printed, a line each."""
    found = re.findall(
        r"^(.+?),? nonoverlapping at ([\d,]+): (.*)$", log.read_text() if log.is_file() else "", re.MULTILINE
    )
    lengths = [int(length.replace(",", "")) for _, length, said in found if re.match(r"perplexity [\d.e+]+(;|$)", said)]
    measured, verdict = "not measured", ""
    if found:
        measured = f"{len(lengths)} of {len(found)} models"
        verdict = "met" if len(lengths) == len(found) and min(lengths) >= WINDOW else "missed"
    rows = [f"| {WINDOW:,} tokens in one window | {measured} | all | {verdict} |"]
    return rows + [f"| one window: {name} | {length}: {said} | | |" for name, length, said in found]


def _lines(file: Path, before: str = "") -> list[str]:
    return [before + line for line in (file.read_text().splitlines() if file.is_file() else [])]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # its time is over, and what it found is printed already
        sys.exit(130)
