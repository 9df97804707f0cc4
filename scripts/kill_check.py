"""SIGKILL a training at steps drawn beforehand, give the same command again, and compare the weights.

    python scripts/kill_check.py                            20 kills, two of them inside a checkpoint write
    python scripts/kill_check.py --kills 5 encoding=t5      fewer, and settings for the run

The undisturbed run, each killed run and its resume are `posbench train` in processes of their own, with dropout 0.1, on
a text whose epoch ends every 60 steps. A killed process kills itself, so that it dies exactly there: at the start of a
step, with a checkpoint half written, or with one written and not yet renamed. At last `posbench eval` is killed while
it writes its third row. Exit status 1 when a SHA-256 differs, a kill did not happen, or a finished row changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, EPOCH = 150, 60
BATCH, LENGTH = 128, 32
LENGTHS = "16,32,64,128"

SETTINGS = [
    "tokenizer=bytes", f"train.length={LENGTH}", f"train.batch_tokens={BATCH}", f"train.tokens={STEPS * BATCH}",
    "train.dropout=0.1", "train.checkpoint_seconds=0.15", f"train.validate_tokens={40 * BATCH}", "device=cpu",
    "model.layers=2", "model.width=64", "model.heads=2", "model.hidden=96",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill trainings and compare their weights.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="draws the steps")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="for posbench train")
    asked = parser.parse_args()

    draw = random.Random(asked.seed)
    steps = sorted(draw.sample(range(1, STEPS - 20), asked.kills))
    inside = dict(zip(draw.sample(steps, min(2, len(steps))), ("write", "rename"), strict=False))
    print("kills at steps", ", ".join(f"{step} ({inside[step]})" if step in inside else str(step) for step in steps))
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        words = ["train", *SETTINGS, *write_text(here / "text", draw), *asked.settings]
        whole = one_run(here, "whole", words)
        expected = sha(whole / "model.safetensors")
        print(f"undisturbed  {expected[:16]}  {whole.name}\n\n{'step':>4}  {'killed':<18} {'goes on':>7}  weights")
        wrong = sum(not killed_and_resumed(here, words, step, inside.get(step, "step"), expected) for step in steps)
        rows = rows_survive(here, whole)
    print(f"\n{asked.kills - wrong} of {asked.kills} ended in the weights of the undisturbed run; eval: {rows}")
    return int(wrong > 0 or rows != "no finished row lost")


def write_text(folder: Path, draw: random.Random) -> list[str]:
    """Three files; the training stream has EPOCH batches. Returns the settings that name them."""
    folder.mkdir()
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "the", "dog", "ran", "far", "away", "then", "it", "slept"]
    sizes = {"train": EPOCH * BATCH - 1, "validation": 2000, "test": 2000}
    for split, size in sizes.items():
        (folder / f"{split}.txt").write_text(" ".join(draw.choices(words, k=size))[:size])
    return ["data=files", *(f"data.{split}={folder / split}.txt" for split in sizes)]


def posbench(here: Path, runs: str, words: list[str], kill: str | None = None) -> int:
    """One `posbench` command as a process, with its runs in a folder of their own; returns its exit status."""
    environment = {**os.environ, "POSBENCH_RUNS": str(here / runs), "POSBENCH_DATA": str(here / "data")}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-m", "posbench"] if kill is None else [sys.executable, __file__, "--die", kill]
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"posbench {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.returncode


def one_run(here: Path, runs: str, words: list[str], kill: str | None = None) -> Path:
    """The directory of the only run in a folder, after one more command on it."""
    status = posbench(here, runs, words, kill)
    if kill is not None and status == 0:
        sys.exit(f"the kill at {kill} did not happen")
    return next((here / runs).glob("*/run.json")).parent


def killed_and_resumed(here: Path, words: list[str], step: int, where: str, expected: str) -> bool:
    run = one_run(here, f"killed-{step}", words, f"{where}:{step}")
    stored = run / "checkpoint.safetensors"
    # The safetensors header is JSON after 8 bytes of length.
    header = stored.read_bytes() if stored.is_file() else b""
    size = int.from_bytes(header[:8], "little")
    at = json.loads(json.loads(header[8 : 8 + size])["__metadata__"]["posbench"])["state"]["step"] if header else 0
    one_run(here, f"killed-{step}", words)
    found = sha(run / "model.safetensors")
    said = {"step": "in the step", "write": "half written", "rename": "before the rename"}[where]
    print(f"{step:>4}  {said:<18} {at:>7}  {found[:16]} {'same' if found == expected else 'DIFFERENT'}", flush=True)
    return found == expected


def rows_survive(here: Path, run: Path) -> str:
    """Kill an evaluation at its third row, repeat it, and hold the rows of before against those of after."""
    words = ["eval", str(run), "--lengths", LENGTHS]
    one_run(here, "whole", words, "row:3")
    before = {file: (file.stat().st_mtime_ns, sha(file)) for file in (run / "rows").glob("[!.]*.json")}
    posbench(here, "whole", words)
    after = {file: (file.stat().st_mtime_ns, sha(file)) for file in (run / "rows").glob("[!.]*.json")}
    print(f"\neval killed at its third row: {len(before)} rows there, {len(after)} after the same command again")
    complete = len(before) == 2 and len(after) == 4
    return "no finished row lost" if complete and before.items() <= after.items() else "ROWS LOST OR CHANGED"


def sha(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# In the process that is to die -------------------------------------------------------------------------------------


def die(kill: str, words: list[str]) -> None:
    """Carry out `posbench WORDS` in this process until the moment of `kill`: step:N, write:N, rename:N or row:N."""
    from posbench import checkpoint, cli, train

    where, number = kill.split(":")
    count = {"steps": 0, "rows": 0}
    gradient, save_file, replace = train.gradient, checkpoint.save_file, Path.replace

    def step(*how: Any) -> Any:
        count["steps"] += 1
        if where == "step" and count["steps"] == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return gradient(*how)

    def half(tensors: Any, path: Path, metadata: Any) -> None:
        save_file(tensors, path, metadata)
        if where == "write" and count["steps"] >= int(number):
            os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def rename(self: Path, target: Path) -> Path:
        count["rows"] += target.parent.name == "rows" and target.suffix == ".json"
        due = where == "rename" and target.name == "checkpoint.safetensors" and count["steps"] >= int(number)
        if due or (where == "row" and count["rows"] == int(number)):
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    train.gradient, checkpoint.save_file, Path.replace = step, half, rename  # type: ignore[assignment,method-assign]
    sys.exit(cli.run(words))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--die"]:
        die(sys.argv[2], sys.argv[3:])
    sys.exit(main())
