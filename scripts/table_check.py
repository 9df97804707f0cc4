"""How long `posbench table` takes over finished runs, each with 12 rows.

    python scripts/table_check.py                    100 runs, of 20 recipes and five seeds each; 7 times
    python scripts/table_check.py --recipes 100      the same of one seed each, whose errors are those of the text
    python scripts/table_check.py --times 3 --keep FOLDER
    python scripts/table_check.py --out FILE.json    the seconds by the clock in a file as well

The runs are made, not trained: a record, a status, and rows whose losses are drawn, with as many blocks of text behind
each as 98,304 targets have. The time is that of the whole command in a process of its own, and its CPU time, which a
busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from posbench import records
from posbench.bench import machine
from posbench.evaluate import summary
from posbench.records import Arrays, Row

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
BLOCKS = 768


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--recipes", type=int, default=20)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="make the runs here and leave them")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        if not folder.is_dir() or not any(folder.iterdir()):
            make(folder, asked.runs, asked.recipes)
        wall, cpu = zip(*(timed(folder) for _ in range(asked.times)), strict=True)
    print(f"posbench table over {asked.runs} runs of {asked.recipes} recipes, {asked.times} times:")
    if asked.out:
        machine.keep(asked.out, shlex.join(["python", "scripts/table_check.py", *sys.argv[1:]]), wall)
    for name, seconds in (("by the clock", wall), ("of the processor", cpu)):
        print(f"  {name}: median {statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f}")


def make(folder: Path, runs: int, recipes: int) -> None:
    """That many finished runs, as far as a table reads them."""
    for number in range(runs):
        recipe, seed = number % recipes, 1 + number // recipes
        name = f"toy{recipe}-L128-nano-s{seed}-{number:08x}"
        rows = folder / name / "rows"
        rows.mkdir(parents=True)
        record = {"hash": f"{number:08x}", "format": 2, "ids_digest": "0", "steps": 1, "caveat": ""}
        record |= {"identity": {}, "config": {}, "decisions": {}, "versions": {"torch": "2.13.0"}}
        record |= {
            "corpus": {"name": "made", "fingerprint": "c"},
            "tokenizer": {"fingerprint": "t", "vocab_size": 2048},
        }
        (rows.parent / "run.json").write_text(json.dumps(record))
        (rows.parent / "status.json").write_text(json.dumps({"state": "done", "step": 1, "steps": 1}))
        for protocol in ("nonoverlapping", "same-targets"):
            for length in LENGTHS:
                behind = losses(number * len(LENGTHS) + length)
                records.write(rows, row(name, recipe, seed, protocol, length, behind), behind)


def losses(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    count = np.full(BLOCKS, 128, np.int16)
    bins = np.arange(1, 201, dtype=np.int32)
    return Arrays(
        document=np.repeat(np.arange(12), BLOCKS // 12).astype(np.int32),
        first=1 + 128 * np.arange(BLOCKS, dtype=np.int64),
        count=count,
        bytes=np.full(BLOCKS, 384, np.int32),
        nats=rng.normal(4.0, 0.3, BLOCKS) * 128,
        position=bins,
        position_count=np.full(len(bins), 128 * BLOCKS // len(bins), np.int64),
        position_nats=rng.normal(4.0, 0.3, len(bins)) * 491,
    )


def row(name: str, recipe: int, seed: int, protocol: str, length: int, behind: Arrays) -> Row:
    same = protocol == "same-targets"
    return Row(
        run_hash=name.rsplit("-", 1)[-1],
        step=1,
        protocol=protocol,
        length=length,
        block=32 if same else None,
        min_context=4096 if same else None,
        split="test",
        targets_digest="d" * 16,
        corpus_hash="c" * 64,
        tokenizer_hash="t" * 64,
        dtype="float32",
        kind="run",
        run=name,
        encoding=f"toy{recipe}",
        recipe=f"{recipe:08x}",
        setup="0" * 8,
        heads=4,
        head_dim=32,
        model="nano",
        seed=seed,
        train_length=128,
        train_tokens=800_000,
        trained_on="made",
        corpus="made",
        tokenizer="bpe",
        vocab_size=2048,
        targets=128 * BLOCKS,
        documents=12,
        device="cpu",
        threads=1,
        time="2026-01-02T03:04:05+00:00",
        **summary(behind, None),
    )


def timed(folder: Path) -> tuple[float, float]:
    """Seconds of one command by the clock and of the processor."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "posbench", "table"],
        env=os.environ | {"POSBENCH_RUNS": str(folder)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
