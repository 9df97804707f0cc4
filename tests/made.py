"""Rows made by hand, small enough for a calculator; and a finished run on a small text, without training one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch

from posbench import checkpoint, records, run
from posbench.config import Config, Model, Train
from posbench.data import tokens
from posbench.data.tokens import Prepared
from posbench.encodings.base import Shape
from posbench.evaluate import summary
from posbench.records import Arrays, Row
from posbench.run import Run

WORDS = ("the", "of", "and", "to", "in", "we", "congress", "état", "union", "nation", "people", "law", "peace", "land")

DOCUMENTS = 12
HOLDOUT = 5
TEST = [0, 5, 10]
"""Numbers of the documents of the test split: the first of every five."""


def document(number: int) -> str:
    """A text of 80 words that repeat, some 380 bytes."""
    rng = np.random.default_rng(number)
    return " ".join(WORDS[int(i)] for i in rng.zipf(1.5, 80) % len(WORDS)) + "."


def text(folder: Path, first: int = 0) -> Path:
    """A folder of documents, numbered from `first`."""
    folder.mkdir()
    for number in range(DOCUMENTS):
        (folder / f"{number:03}.txt").write_text(document(first + number), encoding="utf-8")
    return folder


def data(folder: Path) -> dict[str, Any]:
    return {"name": "files", "kind": "files", "path": str(folder), "holdout": HOLDOUT}


def config(folder: Path, encoding: str, length: int, **own: Any) -> Config:
    return Config(
        encoding=tiny.described(encoding, **own),
        model=Model("toy", layers=2, width=32, heads=4, hidden=48),
        data=data(folder),
        tokenizer={"name": "bytes", "kind": "bytes"},
        train=Train(length=length, tokens=4 * length, batch_tokens=length),
    )


def finished_run(folder: Path, encoding: str, length: int, **own: Any) -> Run:
    """A run on the text of `folder` that counts as trained."""
    return finished(config(folder, encoding, length, **own))


def finished(made: Config) -> Run:
    """A run that counts as trained: its weights are drawn wide, far from uniform."""
    prepared = tokens.prepare(made.data, made.tokenizer)
    vocab_size = prepared.tokenizer.vocab_size
    shape = Shape(made.model.layers, made.model.width, made.model.heads, made.train.length)
    own = {key: value for key, value in made.encoding.items() if key not in ("name", "class")}
    decoder = tiny.decoder((made.encoding["name"], own), shape, vocab_size)
    record = {
        "ids_digest": prepared.stream("train").digest,
        "corpus": {"name": prepared.corpus, "fingerprint": prepared.corpus_fingerprint},
        "tokenizer": {"fingerprint": prepared.tokenizer.fingerprint, "vocab_size": vocab_size},
        "steps": 4,
        "decisions": {"precision": "fp32"},
        "versions": {"torch": torch.__version__},
    }
    trained = Run(run.directory(made))
    with trained.lock():
        trained.begin(made, prepared.tokenizer, record)
        checkpoint.save_weights(trained.weights, trained.hash, 4, decoder)
        trained.write_status("done", step=4, steps=4)
    return Run(trained.path)


def prepared(finished: Run) -> Prepared:
    """The text of a run in its own tokenizer."""
    return tokens.prepare(finished.config.data, finished.tokenizer())


def arrays(
    nats: list[float], count: list[int] | None = None, document: list[int] | None = None, bytes_each: int = 4
) -> Arrays:
    """One block for each number of `nats`, of 128 targets unless said otherwise."""
    count_B = np.array(count or [128] * len(nats), np.int16)
    return Arrays(
        document=np.array(document or [0] * len(nats), np.int32),
        first=1 + np.append(0, np.cumsum(count_B[:-1], dtype=np.int64)),
        count=count_B,
        bytes=count_B.astype(np.int32) * bytes_each,
        nats=np.array(nats, np.float64),
        position=np.array([1, 2], np.int32),
        position_count=np.array([1, int(count_B.sum()) - 1], np.int64),
        position_nats=np.array([0.5, float(sum(nats)) - 0.5]),
    )


def row(behind: Arrays | None = None, **changes: Any) -> Row:
    """A row of a rope run, with the numbers of `behind` (None: n/a)."""
    numbers = {"status": "n/a", "reason": "not measured"} if behind is None else summary(behind, words=None)
    fields: dict[str, Any] = {
        "run_hash": "0a1b2c3d",
        "step": 4,
        "protocol": "nonoverlapping",
        "length": 512,
        "split": "test",
        "targets_digest": "d" * 16,
        "corpus_hash": "c" * 64,
        "tokenizer_hash": "t" * 64,
        "dtype": "float32",
        "kind": "run",
        "run": "rope-L512-nano-s1-0a1b2c3d",
        "encoding": "rope",
        "model": "nano",
        "seed": 1,
        "train_length": 512,
        "train_tokens": 1_000_000,
        "trained_on": "sotu",
        "corpus": "sotu",
        "tokenizer": "bpe",
        "vocab_size": 2048,
        "targets": 0 if behind is None else int(behind.count.sum()),
        "documents": 1,
        "device": "cpu",
        "threads": 2,
        "time": "2026-01-02T03:04:05+00:00",
    }
    return Row(**fields | numbers | changes)


def claim(**changes: Any) -> dict[str, Any]:
    """A study's entry: ALiBi trained at 128 is better at 256 than at 128."""
    return {
        "name": "ALiBi at 2 L",
        "left": {"encoding": "alibi", "train_length": 128, "at": "2L"},
        "relation": "less",
        "right": {"at": "1L"},
        "protocol": "nonoverlapping",
        "paper": {"table": "Table 5", "left": ["alibi", 128, 256], "right": ["alibi", 128, 128]},
    } | changes


def alibi_row(folder: Path, seed: int, length: int, behind: Arrays, **changes: Any) -> Row:
    """A kept row of ALiBi trained at 128, of one recipe in all seeds."""
    own = {"encoding": "alibi", "train_length": 128, "seed": seed, "recipe": "a", "run_hash": str(seed)}
    return records.write(folder, row(behind, length=length, **own | changes), behind)
