"""A run is one directory: its name, its record, its lock, its state.

    <root>/<encoding>-L<length>-<model>-s<seed>-<hash8>/
        run.json                 the record, written at step 0 and never again: config, identity, digests, decisions
        config.yaml              the same config, to read
        tokenizer.json           the tokenizer, so that a run can be evaluated without its corpus
        status.json              how far it is, replaced at every checkpoint
        metrics.jsonl, log.txt   one line a step; what was said
        checkpoint.safetensors   while it trains
        model.safetensors        once it is done
        rows/                    what was evaluated
        .lock                    who works on it, while somebody does (posbench/lock.py)

Nothing here imports torch before weights are asked for, so that listing runs is quick.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from posbench import files, lock
from posbench.compose import settled
from posbench.config import Config
from posbench.errors import UserError, closest, refused
from posbench.identity import FORMAT, edited_sources, flat, from_dict, hash8, identity, label, newer_format, to_dict
from posbench.stored import REMOVE, Metrics, NoMetrics, damaged, is_number, read_json, read_metrics

if TYPE_CHECKING:
    from posbench.data.tokenizer import Tokenizer
    from posbench.model import Decoder

RECORD_KEYS: dict[str, set[str] | None] = {
    **dict.fromkeys(("hash", "format", "ids_digest", "steps")),
    **{key: set() for key in ("identity", "config", "decisions")},
    "corpus": {"name", "fingerprint"},
    "tokenizer": {"fingerprint", "vocab_size"},
    "versions": {"torch"},
}
"""What a record holds, and what an entry of several parts holds in turn."""

HAVE = ("run.json", "status.json")
"""A folder that has one of them is a run: until step 0 it can have the second alone, which says why it failed."""

FILES = (
    *("run.json", "config.yaml", "tokenizer.json", "status.json", "metrics.jsonl", "log.txt", "tracker.json"),
    *("checkpoint.safetensors", "model.safetensors", "rows/*.json", "rows/*.npz", "searches/*.json"),
    *(".lock", ".lock.*", ".*.tmp", "rows/.*.tmp", "searches/.*.tmp"),
)
"""All that is ever in a run."""

_GRAVE = ".removed-"
"""What a folder is called into which a run is moved to be deleted."""

STATUS_NUMBERS = ("step", "steps", "tokens", "epochs", "loss", "valid", "seconds", "peak_memory")


def root() -> Path:
    """The folder of all runs: $POSBENCH_RUNS, or ./runs. Raises UserError where that is a file, or lies below one."""
    found = Path(os.environ.get("POSBENCH_RUNS") or "runs")
    there = next((place for place in (found, *found.parents) if os.path.lexists(place)), found)
    if os.path.lexists(there) and not there.is_dir():
        raise UserError(f"{there}, where the runs are to be, is a file.", "Name a folder with POSBENCH_RUNS.")
    return found


def name(config: Config) -> str:
    """The name of a config's run: what a reader looks for, then the hash of all that decides its weights."""
    encoding = re.sub(r"[^A-Za-z0-9_.+]+", "-", label(config.encoding, config.extension)).strip("-")
    hashed = hash8(identity(settled(config)))
    return f"{encoding}-L{config.train.length}-{config.model.name}-s{config.seed}-{hashed}"


def directory(config: Config) -> Path:
    """Where the run of a config lies, or will lie."""
    return root() / name(config)


def all_runs() -> list[Run]:
    """Every run under the root by name, finished or not. A damaged one is among them, and says so when it is read; and
    one that failed before step 0, which has no record."""
    return [
        Run(folder)
        for folder in sorted({file.parent for name in HAVE for file in root().glob(f"*/{name}")})
        if _is_run(folder)
    ]


def find(word: str) -> Run:
    """The run that `word` means: a path, a name, or the beginning of one run's name or hash.

    Raises UserError when it means no run or several.
    """
    if word and _is_run(Path(word)):
        return Run(Path(word))
    runs = all_runs()
    hits = [run for run in runs if run.name == word]
    if word and not hits:
        hits = [run for run in runs if word in (run.name[: len(word)], run.hash[: len(word)])]
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise UserError(
            f"'{word}' is the beginning of {len(hits)} runs.", "run: " + ", ".join(run.name for run in hits)
        )
    if not runs:
        raise UserError(
            f"There is no run '{word}': {root()} holds none yet.", "Train one: posbench train encoding=rope"
        )
    near = closest(word, [run.name for run in runs])
    question = f" Did you mean '{near}'?" if near else ""
    raise UserError(f"There is no run '{word}' in {root()}.{question}", f"posbench runs lists all {len(runs)}.")


def _is_run(folder: Path) -> bool:
    """Whether a folder anywhere is a run, be it a damaged one: other programs have a status.json too."""
    if not any((folder / name).is_file() for name in HAVE):
        return False
    if (folder / "run.json").is_file() and folder.resolve().parent == root().resolve():
        return True
    with suppress(UserError):
        return bool(Run(folder).record)
    with suppress(UserError):
        return {"state", "step", "host"} <= read_json(folder / "status.json").keys()
    return False


@dataclass
class Run:
    """One trained or half-trained model. Every reader gives a UserError that names the file when it is damaged."""

    path: Path

    def __post_init__(self) -> None:
        # Resolved, so that a run found as "." still has its name.
        self.path = Path(self.path).resolve()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def hash(self) -> str:
        """Eight hex digits: the record's, however the folder was renamed; of a damaged run those in its name."""
        with suppress(UserError):
            return str(self.record["hash"])
        return self.name.rsplit("-", 1)[-1]

    @property
    def rows_dir(self) -> Path:
        return self.path / "rows"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def started(self) -> bool:
        """True from the moment the record of step 0 is on disk."""
        return (self.path / "run.json").is_file()

    @property
    def done(self) -> bool:
        return self.status()["state"] == "done"

    # What is stored -----------------------------------------------------------------------------------------------

    @cached_property
    def record(self) -> dict[str, Any]:
        """run.json: what was decided at step 0."""
        file = self.path / "run.json"
        record = read_json(file)
        for key, keys in RECORD_KEYS.items():
            if key not in record:
                raise damaged(file, f"it has no {key}")
            if keys is not None and not (isinstance(record[key], dict) and keys <= record[key].keys()):
                raise damaged(file, f"its {key} is not whole")
        return record

    @cached_property
    def config(self) -> Config:
        """The config of step 0, never completed from today's defaults.

        Raises UserError when the stored config no longer gives the stored hash: a field was changed or lost, or the
        source file of an encoding that is not posbench's own was edited.
        """
        record, file = self.record, self.path / "run.json"
        if record["format"] != FORMAT:
            raise UserError(
                f"{self.name} was trained by format {record['format']} of posbench, and this is format {FORMAT}.",
                "This posbench is older than the run: use a newer one."
                if newer_format(record["format"])
                else "The same config gives other weights now. Train it again, or use that version.",
            )
        try:
            config = from_dict(record["config"])
        except UserError as error:
            raise damaged(file, str(error).replace(".\n", ": ").rstrip(".")) from error
        who = identity(config)
        if hash8(who) != record["hash"] or who != record["identity"]:
            if edited := edited_sources(config, record["identity"]):
                raise UserError(
                    f"{edited[0]} was changed after {self.name} was trained with it.",
                    "Bring its content back to read that run; training the edited one makes a run of its own.",
                )
            raise UserError(
                f"The config of {self.name} gives the hash {hash8(who)}, where {record['hash']} is stored.",
                f"{file} was changed after the training.",
            )
        return config

    def status(self) -> dict[str, Any]:
        """Where the run stands: state (new, running, stopped, interrupted, failed, done), step, steps, tokens, epochs,
        loss and valid (nats a token), reason, seconds, peak_memory (bytes).

        A run that says "running" while nobody holds its lock was killed: its state is "stopped". One that was trained
        and evaluated and has lost its weights since is "rows only".
        """
        file = self.path / "status.json"
        if not file.is_file():
            return {"state": "new", "step": 0}
        status = read_json(file)
        if self.started or status.get("state") != "failed":  # which it may have before step 0
            _ = self.record  # without a record it is the status of nothing
        if not isinstance(status.get("state"), str) or not isinstance(status.get("step"), int):
            raise damaged(file, "it names no state and step")
        for key, value in status.items():
            if key in STATUS_NUMBERS and not (value is None or is_number(value)):
                raise damaged(file, f"its {key} is no number")
        if status["state"] == "done" and not self.weights.is_file():
            if not any(self.rows_dir.glob("*.json")):
                raise UserError(f"{self.name} is marked done, but {self.weights} is missing.", REMOVE)
            status["state"] = "rows only"
        if status["state"] == "running" and lock.owner(self.path) is None:
            status["state"] = "stopped"
        return status

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: step, tokens, loss, lr, norm, rate, seconds; or step, tokens, valid."""
        return read_metrics(self.path / "metrics.jsonl")

    def tokenizer(self) -> Tokenizer:
        """The tokenizer the run was trained with.

        Where only the rows of a run were kept, its text has it too. Raises UserError when that has another one.
        """
        file = self.path / "tokenizer.json"
        if file.exists() or self.status()["state"] != "rows only":
            return self._stored_tokenizer()
        from posbench import initial
        from posbench.data import tokens

        tokenizer = tokens.prepare(self.config.data, initial.tokenizer(self.config)).tokenizer
        if tokenizer.fingerprint != self.record["tokenizer"]["fingerprint"]:
            raise UserError(
                f"{self.name} was trained with another tokenizer than its text has here, and {file} is missing.",
                "Bring it back, or the text of the training. " + REMOVE,
            )
        return tokenizer

    def _stored_tokenizer(self) -> Tokenizer:
        from posbench.data.tokenizer import Tokenizer

        try:
            tokenizer = Tokenizer.load(self.path / "tokenizer.json")
        except UserError as error:
            # What may not be read is whole for all we know; what is gone or nonsense is not.
            raise UserError(error.message, None if refused(error.__cause__) else REMOVE) from error
        if tokenizer.fingerprint != self.record["tokenizer"]["fingerprint"]:
            raise damaged(self.path / "tokenizer.json", "it is not the tokenizer of the training")
        return tokenizer

    def refuse_unfinished(self) -> None:
        """Raise UserError unless the training is done."""
        status = self.status()
        if status["state"] == "rows only":
            raise UserError(
                f"{self.name} has only its rows left: {self.weights} is missing.",
                "The command that made it trains it again (posbench show says which).",
            )
        if status["state"] != "done":
            command = self.record.get("command") if self.started else None
            raise UserError(
                f"{self.name} is not finished: {status['state']} at step {status['step']}.",
                f"Go on with the command that began it: {command}" if command else "Give its command again.",
            )

    def model(self, extended: bool = True) -> Decoder:
        """The trained decoder, in eval mode on the CPU. Encoding, sizes and base are the stored ones.

        Without `extended`, the encoding of a run that was trained under an extension is as it was before that.
        """
        from posbench import checkpoint, model

        self.refuse_unfinished()
        tokenizer = self.tokenizer()
        decoder = model.build(self.config, tokenizer.vocab_size, tokenizer.end, extended)
        checkpoint.load_weights(self.weights, self.record["hash"], decoder)
        return decoder.eval()

    # What a training writes ---------------------------------------------------------------------------------------

    def lock(self) -> AbstractContextManager[None]:
        """Be the only process that writes it. Raises `lock.HeldError` at once when another one is at it."""
        return lock.hold(self.path, self.name)

    def begin(self, config: Config, tokenizer: Tokenizer, record: Mapping[str, Any]) -> None:
        """Write the record of step 0. run.json comes last: where it stands, all of it stands.

        Raises UserError when there are weights without a record: nobody can say what they were trained on.
        """
        for file in (self.weights, self.checkpoint):
            if file.exists() and not self.started:
                raise UserError(f"There is {file}, but no run.json beside it that says what it is of.", REMOVE)
        config = settled(config)
        who = identity(config)
        tokenizer.save(self.path / "tokenizer.json")
        plain = to_dict(config)
        files.write_bytes(self.path / "config.yaml", yaml.safe_dump(plain, sort_keys=False).encode())
        self.record = {**record, "format": FORMAT, "hash": hash8(who), "identity": who, "config": plain}
        files.write_json(self.path / "run.json", self.record)

    def refuse_other(self, config: Config, ids_digest: str) -> None:
        """Raise UserError when what is stored here is not the run of `config` on the ids of `ids_digest`.

        Such a run is neither continued nor counted as done; nor is one that lost its tokenizer, since no finished run
        could be evaluated without: unless its rows alone were kept, for which its text gives it back.
        """
        stored, asked = self.config, identity(settled(config))
        if self.record["identity"] != asked or identity(stored) != asked:
            there, here = flat(self.record["identity"]), flat(asked)
            key = next((k for k in sorted({*there, *here}) if there.get(k) != here.get(k)), "its identity")
            raise UserError(
                f"{self.path} holds another run: {key} is {there.get(key)} there, and {here.get(key)} was asked for.",
                REMOVE,
            )
        if self.record["ids_digest"] != ids_digest:
            raise UserError(
                f"{self.name} was trained on ids with the digest {self.record['ids_digest'][:12]}, and the text now "
                f"gives {ids_digest[:12]}.",
                "The text or its tokenizer has changed. " + REMOVE,
            )
        tokenizer = self.tokenizer()
        if not (file := self.path / "tokenizer.json").exists():
            tokenizer.save(file)

    def write_status(self, state: str, **fields: Any) -> None:
        here = {"host": socket.gethostname(), "time": _now()}
        files.write_json(self.path / "status.json", {**fields, **here, "state": state})

    def fail(self, reason: str) -> None:
        """Mark the run failed at the step of its last checkpoint."""
        self.write_status(**{**self.status(), "state": "failed", "reason": reason})

    def open_metrics(self, step: int) -> Metrics:
        """metrics.jsonl, cut to the lines up to `step` and open for more."""
        return Metrics(self.path / "metrics.jsonl", step)

    def finish(self, **fields: Any) -> None:
        """Mark the run done, whose weights are there."""
        self.write_status("done", **fields)
        self.checkpoint.unlink(missing_ok=True)

    def log(self, text: str) -> None:
        """Add a line to log.txt."""
        files.check(self.path / "log.txt")
        with (self.path / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{_now()} {text}\n")

    def remove(self) -> None:
        """Delete it, rows and all: in one rename, so that a kill leaves the whole run or none.

        Raises as `lock` and as `check_whole`.
        """
        with self.lock():
            self.check_whole()
            grave = Path(tempfile.mkdtemp(prefix=_GRAVE, dir=self.path.parent))
            self.path.rename(grave / self.name)
        with suppress(FileNotFoundError):  # another removal is at it as well
            shutil.rmtree(grave)
        if self.path.parent == root().resolve():
            for left in self.path.parent.glob(f"{_GRAVE}*"):  # of a removal that was killed
                if any(left.glob("*")):  # else it is one that another process is about to fill
                    shutil.rmtree(left, ignore_errors=True)

    def check_whole(self) -> None:
        """Raise UserError where there is more in the folder than a run has."""
        inside = (path for path in self.path.rglob("*") if not path.is_dir())
        for path in sorted(str(one.relative_to(self.path)) for one in inside):
            if not any(fnmatch(path, known) and path.count("/") == known.count("/") for known in FILES):
                raise UserError(
                    f"{self.path} holds {path}, which is of no run.", "Nothing was removed. Take it out first."
                )


class Followed(Run):
    """A run as the processes see it that train it and leave the writing to another one."""

    def write_status(self, state: str, **fields: Any) -> None:
        pass

    def open_metrics(self, step: int) -> Metrics:
        return NoMetrics()

    def finish(self, **fields: Any) -> None:
        pass


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
