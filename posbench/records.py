"""The row: one result in one file, and all of them as one table.

    <run>/rows/<protocol>-<length>...-<hash8 of the key>.json    key, about, result, cost
    <run>/rows/                     same name               .npz the losses behind it: by block of text, by position

The arrays are written first and the row holds their SHA-256, so a row that can be read is a complete one. Nothing is
ever appended to. `read` checks every row and leaves out, with a warning that names it, whatever is not one.

`posbench.records()` is this module called: the rows of all runs as a DataFrame.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import types
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import numpy as np

from posbench import files
from posbench.errors import UserError, reason
from posbench.files import parse_json
from posbench.run import root

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
"""Raised whenever a row of the same key would hold another number, beyond rounding, or another field."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """What was measured. Rows of equal keys are one row: it is computed once."""

    run_hash: str  # the run's hash; of a reference: its method and the text and tokenizer it was counted with
    step: int  # of the checkpoint; 0 for a reference
    extension: str | None = None  # the change to the trained encoding, as JSON; None: read as it was trained
    protocol: str  # nonoverlapping | sliding | same-targets
    length: int  # inputs of one window
    stride: int | None = None  # sliding: targets a window adds
    block: int | None = None  # same-targets: targets one window scores
    min_context: int | None = None  # same-targets: ids of its document before any target
    split: str  # train | validation | test
    targets_digest: str  # of the set of targets and the ids of the split; rows compare only where it is equal
    corpus_hash: str  # of the text that was read
    tokenizer_hash: str
    dtype: str  # of the forward pass: float32 | bfloat16
    format: int = FORMAT

    @cached_property
    def _digest(self) -> str:
        return _sha256(_part(Key, self))


READING = ("protocol", "length", "stride", "block", "min_context", "split")
"""How a row was read, as a request says it too; its number of targets may be smaller than what was asked for."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What follows from the key, written out so that a row can be read alone."""

    kind: Literal["run", "reference"]  # a reference is counted on the training split, not trained
    run: str  # name of the run's directory
    encoding: str  # its label; of a reference: unigram | bigram
    extended: bool = False  # whether it was trained under an extension: its label names which
    init_from: str | None = None  # the run whose weights its training started from
    recipe: str | None = None  # 8 hex digits of the run's identity without its seed: its seeds have equal ones
    setup: str | None = None  # the same without its encoding either: equal for all encodings trained alike
    settings: str | None = None  # of encoding and recipe what is not the default, as one would type it
    heads: int | None = None  # of the model: ALiBi's slopes and RoPE's pairs depend on both
    head_dim: int | None = None
    model: str | None  # name of the size; None for a reference, as for the three below
    seed: int | None
    train_length: int | None
    train_tokens: int | None
    trained_on: str  # corpus of the training split
    corpus: str  # corpus that was read here: another one when evaluated with --on
    tokenizer: str  # name of the choice
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out: a function of the key on the CPU. A number is None where it does not exist."""

    status: Literal["ok", "n/a"]
    reason: str | None = None  # why it is n/a, one sentence
    targets: int  # tokens scored (of an n/a row: that would have been)
    documents: int  # that they come from
    bytes: int | None = None  # of UTF-8 text they stand for
    words: int | None = None  # between white space; only where the targets are whole documents
    nats: float | None = None  # sum of all losses
    loss: float | None = None  # nats a token
    standard_error: float | None = None  # of `loss`, from blocks of text (statistics.standard_error)
    perplexity: float | None = None  # exp(loss)
    bits_per_byte: float | None = None
    word_perplexity: float | None = None  # exp(nats / words)
    arrays_sha256: str | None = None  # of the .npz beside the row


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What it took, here and then."""

    seconds: float | None = None
    tokens_per_second: float | None = None  # inputs read
    peak_memory: int | None = None  # bytes, of this row alone
    device: str
    threads: int
    kernel: str | None = None
    kernel_reason: str | None = None
    commit: str | None = None  # of posbench, where it runs from a checkout
    dirty: bool | None = None  # with changes not committed
    time: str  # UTC, ISO 8601


@dataclass(frozen=True, kw_only=True)
class Row(Cost, Result, About, Key):
    """One result, flat: `row.perplexity`, `row.length`. `path` is its file once it has one."""

    path: Path | None = field(default=None, compare=False)


KINDS: dict[str, type] = {"key": Key, "about": About, "result": Result, "cost": Cost}


@dataclass(frozen=True)
class Arrays:
    """The losses behind a row, summed by block and by position. Blocks come in the order of the text."""

    document: np.ndarray
    """(blocks,) number of the document in its split, int32"""
    first: np.ndarray
    """(blocks,) first scored target of the block, int64"""
    count: np.ndarray
    """(blocks,) targets scored in it, at most 128, int16"""
    bytes: np.ndarray
    """(blocks,) UTF-8 bytes they stand for, int32"""
    nats: np.ndarray
    """(blocks,) sum of their losses, float64"""
    position: np.ndarray
    """(bins,) largest context of a position bin, int32"""
    position_count: np.ndarray
    """(bins,) targets scored in it, int64"""
    position_nats: np.ndarray
    """(bins,) sum of their losses, float64"""


class BadRow(UserWarning):
    """A file among the rows that is not a row, and was left out."""


def extension_label(row: Row) -> str:
    """The extension of a row as tables name it: "yarn", or with what was set, "yarn factor=4".

    Without one a row is of the trained encoding: "none", or where that was trained under an extension "as trained".
    """
    if row.extension is None:
        return "as trained" if row.extended else "none"
    own = json.loads(row.extension)
    settings = [
        f"{key}={_typed(value)}" for key, value in own.items() if key not in ("name", "class", "source", "found")
    ]
    return " ".join([own["name"], *settings])


def _typed(value: Any) -> Any:
    """A setting as one would type it: 4 for 4.0."""
    if isinstance(value, list):
        return [_typed(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sentence(row: Row) -> str:
    """What was measured and what came out, in one line.

    `rope-L512-nano-s1-0a1b2c3d + yarn sliding at 1,024: perplexity 42.9`
    """
    under = "" if row.extension is None else f" + {extension_label(row)}"
    value = f"n/a: {row.reason}"
    if row.loss is not None:  # its exp may be past the largest float
        value = f"perplexity {math.inf if row.perplexity is None else row.perplexity:.3f}"
    return f"{row.run}{under} {row.protocol} at {row.length:,}: {value}"


def digest(key: Key) -> str:
    """64 hex digits that stand for a key."""
    return key._digest


def digest8(key: Key) -> str:
    """The first 8 of them, which are in its file's name and by which a table and a page call the row."""
    return digest(key)[:8]


def file_name(row: Key) -> str:
    """Such as `sliding-512-stride256-test-0a1b2c3d`, without a suffix."""
    parts = [row.protocol, str(row.length)]
    named = {"stride": row.stride, "block": row.block, "from": row.min_context}
    parts += [f"{name}{value}" for name, value in named.items() if value is not None]
    return "-".join([*parts, row.split, digest8(row)])


def write(folder: Path, row: Row, arrays: Arrays | None) -> Row:
    """Keep a row in `folder`, its arrays first; returns it with its path and their checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name(row)}.json"
    values = _values(row)
    if arrays is not None:
        with_suffix = path.with_suffix(".npz")
        files.write_file(with_suffix, lambda temporary: _save(temporary, arrays))
        values["arrays_sha256"] = hashlib.sha256(with_suffix.read_bytes()).hexdigest()
    row = Row(**values, path=path)
    record = {name: _part(kind, row) for name, kind in KINDS.items()}
    files.write_json(path, record | {"sha256": _sha256(record)})
    return row


def load(path: Path) -> Row:
    """The row of one file. Raises `UserError` for anything but a complete row whose arrays lie beside it."""
    path = Path(path)
    try:
        record = parse_json(path.read_bytes())
        checksum = record.pop("sha256")
        if record["key"]["format"] != FORMAT:
            raise UserError(f"{path} is a row of format {record['key']['format']}; this posbench reads {FORMAT}.")
        row = Row(**{name: value for kind in KINDS for name, value in record[kind].items()}, path=path)
        complete = checksum == _sha256(record) and path.stem == file_name(row)
        if complete and not _sound(row):
            raise ValueError(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a row of posbench.") from error
    if not complete:
        raise UserError(f"{path} was changed after it was written.")
    if row.arrays_sha256 is not None:
        beside = path.with_suffix(".npz")
        if not beside.is_file() or hashlib.sha256(beside.read_bytes()).hexdigest() != row.arrays_sha256:
            raise UserError(f"{beside} is missing, or is not the one that {path.name} was written with.")
    return row


def arrays(row: Row) -> Arrays | None:
    """The losses behind a row that was read or written; None for an n/a row.

    Raises `UserError` where the file beside the row holds anything else: `load` does not open it, which takes longer
    than all the rest of it.
    """
    if row.arrays_sha256 is None:
        return None
    assert row.path is not None
    return _arrays(row.path.with_suffix(".npz"), row.arrays_sha256, row.targets)


@lru_cache(maxsize=64)
def _arrays(file: Path, sha256: str, targets: int) -> Arrays:
    """Kept for a while, since a table holds one row against many. `sha256` tells those of a row measured anew."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            found = Arrays(**{name: stored[name] for name in stored.files})
        if not _behind(found, targets):
            raise ValueError(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {reason(error)}.") from error
    except (ValueError, TypeError, AttributeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{file} does not hold the losses of a row of posbench.") from error
    for array in vars(found).values():
        array.setflags(write=False)
    return found


def _behind(found: Arrays, targets: int) -> bool:
    """Whether arrays are those behind a row of so many targets."""
    blocks = [found.document, found.first, found.count, found.bytes, found.nats]
    bins = [found.position, found.position_count, found.position_nats]
    if any(array.ndim != 1 or len(array) != len(of[0]) for of in (blocks, bins) for array in of):
        return False
    if any(array.dtype.kind not in "iu" for of in (blocks, bins) for array in of[:-1]):
        return False
    if any(nats.dtype.kind != "f" or not np.isfinite(nats).all() for nats in (found.nats, found.position_nats)):
        return False
    return len(found.count) > 0 and int(found.count.sum()) == targets


@cache
def _allowed() -> dict[str, tuple[Any, ...]]:
    """Of each stored field the types it may be of, or the words it may be."""
    hints = get_type_hints(Row)
    return {name: get_args(hints[name]) or (hints[name],) for kind in KINDS.values() for name in kind.__annotations__}


def _sound(row: Row) -> bool:
    """Whether each field of a row is of its type, every number one that can be reckoned with, and what came out whole.

    Raises `ValueError`, `KeyError` or `TypeError` for a text that does not say what it has to.
    """
    if not all(_fits(value, _allowed()[name]) for name, value in _values(row).items()):
        return False
    datetime.fromisoformat(row.time)
    if row.extension is not None:
        _ = parse_json(row.extension)["name"]
    if row.status == "n/a":
        return bool(row.reason) and row.arrays_sha256 is None
    return None not in (row.nats, row.loss, row.arrays_sha256)


def _fits(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether a value that was JSON is of one of these types, or one of these words. A float may have no fraction."""
    if isinstance(value, str):
        return str in allowed or value in allowed
    if isinstance(value, float):
        return float in allowed and math.isfinite(value)
    if type(value) is int:
        return (int in allowed or float in allowed) and abs(value) < 2**63
    return type(value) in allowed


def read(paths: Iterable[Path | str] | None = None) -> list[Row]:
    """The rows at `paths`: row files, folders of rows, runs, or folders of runs; None: every run there is.

    What is not a complete row is left out with a `BadRow` warning that names it. A path that does not exist is a
    `UserError`, as is a row file named itself that cannot be read.
    """
    if paths is None:
        return _read_folder(root()) if root().is_dir() else []
    rows: dict[Path, Row] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(
                f"There is nothing at {path}.", "Rows are read from a run, a folder of runs, or a row file."
            )
        found = _read_folder(path) if path.is_dir() else [load(path)]
        rows |= {row.path.resolve(): row for row in found if row.path is not None}
    return list(rows.values())


def _read_folder(folder: Path) -> list[Row]:
    pattern = "*.json" if folder.name == "rows" else "rows/*.json" if (folder / "rows").is_dir() else "*/rows/*.json"
    rows = []
    for path in sorted(folder.glob(pattern)):
        try:
            rows.append(load(path))
        except UserError as error:
            warnings.warn(f"{error.message} It is left out.", BadRow, stacklevel=3)
    return rows


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One line a row, one column a field, typed: text, Int64 or float64 with missing values, `time` in UTC."""
    import pandas as pd

    dtypes = {"int": "int64", "int | None": "Int64", "bool | None": "boolean"}
    dtypes |= {"float": "float64", "float | None": "float64"}
    columns: dict[str, Any] = {f.name: dtypes.get(str(f.type), "string") for f in fields(Row)}
    values = [_values(row) | {"path": row.path and str(row.path)} for row in rows]
    table = pd.DataFrame(values, columns=list(columns)).astype(columns)
    return table.assign(time=pd.to_datetime(table["time"], utc=True).dt.as_unit("ns"))


def _values(row: Row) -> dict[str, Any]:
    """The fields of a row that are stored."""
    return {f.name: getattr(row, f.name) for kind in KINDS.values() for f in fields(kind)}


def _part(kind: type, row: Key) -> dict[str, Any]:
    return {f.name: getattr(row, f.name) for f in fields(kind)}


def _sha256(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _save(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **asdict(arrays))


class _Callable(types.ModuleType):
    def __call__(self, paths: Iterable[Path | str] | None = None) -> pd.DataFrame:
        """`posbench.records()`: the rows at `paths` (None: of every run) as a DataFrame."""
        return frame(read(paths))


# The module and the function of the design share one name, `posbench.records`.
sys.modules[__name__].__class__ = _Callable
