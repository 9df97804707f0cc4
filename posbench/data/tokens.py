"""A corpus x a tokenizer on disk: made once, memory-mapped afterwards, checked before it is believed.

A split becomes one stream: an end token, then each document's ids and one end token, N ids in all.

    <root>/<corpus>-<tokenizer>-<hash8>/
        header.json              what it was made from, type of the ids, and per split counts and SHA-256 of each file
        tokenizer.json           as `Tokenizer.save` writes it
        <split>.ids.npy          N ids, uint16 or uint32
        <split>.bytes.npy        N, UTF-8 bytes of each id (end tokens 0)
        <split>.documents.npy    D + 1 offsets into the ids: document d is ids[documents[d] : documents[d + 1]]
        <split>.names.json       D names

The hash is made from the fingerprints of corpus and tokenizer and from what applies the tokenizer, the version of
`tokenizers` among it, which need no tokenizing: a second start finds the directory and does nothing. Documents are
streamed to disk, so a corpus need not fit in memory, and the directory appears in one rename. Copied to another machine
as $POSBENCH_DATA it stands for itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from posbench import data as posbench_data
from posbench import files
from posbench.data.corpus import SPLITS, Corpus, Document, fingerprint, open_corpus
from posbench.data.tokenizer import Tokenizer, encoder, find_tokenizer, ids_dtype, open_tokenizer
from posbench.errors import UserError, reason
from posbench.files import parse_json
from posbench.progress import waiting

FORMAT = 2
"""Raised whenever the files of the directory change their meaning."""

_BATCH = 1 << 20
"""Characters of text given to the tokenizer at once."""

_COLUMNS = {"ids": None, "bytes": np.uint32, "documents": np.int64}


@dataclass(frozen=True)
class Stream:
    """One split as one sequence of ids; target t (1 <= t < N) is ids[t], so there are N - 1 targets."""

    ids: np.ndarray
    """(N,) uint16 or uint32, memory-mapped; ids[0] is an end token."""
    nbytes: np.ndarray
    """(N,) uint32, UTF-8 bytes of text of each id; 0 for end tokens."""
    documents: np.ndarray
    """(D + 1,) int64: document d is ids[documents[d] : documents[d + 1]], its end token last; from 1 to N."""
    names: list[str]
    """Names of the D documents."""
    digest: str
    """SHA-256 (hex) of the ids as stored."""

    @property
    def targets(self) -> int:
        return len(self.ids) - 1


@dataclass(frozen=True)
class Prepared:
    """A directory of token files."""

    path: Path
    corpus: str
    corpus_fingerprint: str
    tokenizer: Tokenizer
    header: dict[str, Any]

    @property
    def splits(self) -> list[str]:
        return [split for split in SPLITS if split in self.header["splits"]]

    def stream(self, split: str) -> Stream:
        """A split, after its sizes, types and SHA-256 were held against the header; `UserError` for a damaged file."""
        if split not in self.header["splits"]:
            raise UserError(f"The corpus '{self.corpus}' has no split '{split}'.", f"It has: {', '.join(self.splits)}.")
        facts = self.header["splits"][split]
        columns = {}
        for column, dtype in _COLUMNS.items():
            file = self.path / f"{split}.{column}.npy"
            want = (np.dtype(dtype or self.header["dtype"]), (facts[column],))
            try:
                read = np.load(file, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise _unread(file, "it is missing or cut short", error) from error
            if not isinstance(read, np.ndarray):  # numpy opens any zip
                raise damaged(file, "it is no array")
            if (read.dtype, read.shape) != want:
                raise damaged(file, f"it holds {read.shape} of {read.dtype}, not {want[1]} of {want[0]}")
            if hashlib.sha256(read.data).hexdigest() != facts["sha256"][column]:
                raise damaged(file, "its content has changed")
            columns[column] = read
        file = self.path / f"{split}.names.json"
        try:
            names = parse_json(file.read_bytes())
        except (OSError, ValueError) as error:
            raise _unread(file, "it is missing or cut short", error) from error
        if not isinstance(names, list) or len(names) != facts["documents"] - 1:
            raise damaged(file, "it does not name every document")
        return Stream(columns["ids"], columns["bytes"], columns["documents"], names, facts["sha256"]["ids"])


def prepare(
    data: Mapping[str, Any],
    tokenizer: Mapping[str, Any] | Tokenizer,
    *,
    root: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Prepared:
    """The tokens of a corpus, found or made; `say` tells which.

    `data` and `tokenizer` are the config's groups; a run's own tokenizer may be given as it is. `root` is the folder
    that holds the directories (default: `posbench.data.root()`). Raises `UserError` when the text cannot be had.
    """
    root = Path(root) if root else posbench_data.root()
    try:
        corpus = open_corpus(data)
        known = tokenizer if isinstance(tokenizer, Tokenizer) else find_tokenizer(tokenizer, corpus, root)
        found = _find(corpus, known, root)
    except OSError as error:  # a folder that may not be looked into
        raise UserError(f"{error.filename or root} cannot be read: {reason(error)}.") from error
    if found is None:
        with waiting(f"{corpus.name}: preparing the text"), _only_one(corpus, root):
            if known is None:
                assert not isinstance(tokenizer, Tokenizer)
                known = open_tokenizer(tokenizer, corpus, root, say)
            found = _find(corpus, known, root) or _make(corpus, known, root, data, say)
    say(f"{corpus.name} x {found.tokenizer.name}: ready in {found.path}.")
    return found


def _find(corpus: Corpus, tokenizer: Tokenizer | None, root: Path) -> Prepared | None:
    if tokenizer is None:
        return None
    path = _directory(corpus, tokenizer, root)
    return _open(path, corpus, tokenizer) if path.exists() else None


@contextmanager
def _only_one(corpus: Corpus, root: Path) -> Iterator[None]:
    """Several processes that need the same tokens: the first makes them, the others wait and then find them.

    `UserError` for what cannot be written within; what cannot be read is one already.
    """
    elsewhere = "POSBENCH_DATA=DIR names another place."
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {error.filename or root} cannot be made: {reason(error)}.", elsewhere) from error
    try:
        with FileLock(root / f".{_safe(corpus.name)}.lock"):
            yield
    except OSError as error:
        raise UserError(f"{error.filename or root} cannot be written: {reason(error)}.", elsewhere) from error


def _make(
    corpus: Corpus, tokenizer: Tokenizer, root: Path, data: Mapping[str, Any], say: Callable[[str], None]
) -> Prepared:
    say(f"{corpus.name}: tokenizing with {tokenizer.name}.")
    path = _directory(corpus, tokenizer, root)
    for unfinished in root.glob(f".{path.name}.*.tmp"):  # of a process that was killed: we hold the lock
        shutil.rmtree(unfinished)
    with files.publish_directory(path) as folder:
        _build(folder, corpus, tokenizer, data)
    if corpus.notice:
        say(corpus.notice)
    made = _open(path, corpus, tokenizer)
    for split in made.splits:
        facts = made.header["splits"][split]
        say(f"  {split}: {facts['documents'] - 1:,} documents, {facts['text_bytes']:,} bytes, {facts['ids']:,} ids")
    return made


def damaged(file: Path, what: str) -> UserError:
    """The one way to say that a token file must not be read."""
    return UserError(f"{file} is damaged: {what}.", f"Delete {file.parent} and repeat: it is made again.")


def _unread(file: Path, what: str, error: Exception) -> UserError:
    """`damaged`, or why the operating system does not let a file be read that may be whole."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return UserError(f"{file} cannot be read: {reason(error)}.")
    return damaged(file, what)


def read_header(path: Path) -> dict[str, Any]:
    """The header of a token directory; `UserError` when it is none, or of another posbench."""
    file = path / "header.json"
    try:
        header = parse_json(file.read_bytes())
        kind, version = header["kind"], header["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unread(file, "it is missing or no header of posbench", error) from error
    if (kind, version) != ("posbench tokens", FORMAT):
        raise damaged(file, f"it is of format {version!r} and this posbench reads {FORMAT}")
    return header


def is_current(header: Mapping[str, Any]) -> bool:
    """Whether the ids would be the same if they were made again now."""
    tokenizer = header["tokenizer"]
    return bool(tokenizer["encoder"] == encoder(tokenizer["kind"]))


def _directory(corpus: Corpus, tokenizer: Tokenizer, root: Path) -> Path:
    facts = {"tokenizer": tokenizer.fingerprint, "encoder": encoder(tokenizer.kind), "tokens": FORMAT}
    key = fingerprint(corpus=corpus.fingerprint, **facts)
    return root / f"{_safe(corpus.name)}-{_safe(tokenizer.name)}-{key[:8]}"


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def _open(path: Path, corpus: Corpus, tokenizer: Tokenizer) -> Prepared:
    header = read_header(path)
    for what, mine in (("corpus", corpus), ("tokenizer", tokenizer)):
        if header[what]["fingerprint"] != mine.fingerprint:
            raise damaged(path / "header.json", f"it is of another {what} than {mine.name}")
    if not is_current(header):
        raise damaged(path / "header.json", "its ids are of another version of posbench or `tokenizers`")
    if header["dtype"] != ids_dtype(tokenizer.vocab_size).name:
        raise damaged(path / "header.json", f"its ids are {header['dtype']}")
    return Prepared(path, corpus.name, corpus.fingerprint, tokenizer, header)


class _Column:
    """A .npy file that grows: its header is written first and again, as long as before, when the length is known."""

    def __init__(self, file: Path, dtype: np.dtype[Any]) -> None:
        self.dtype, self.length, self.hasher = dtype, 0, hashlib.sha256()
        self._file = file.open("wb")
        self._start = self._header()

    def _header(self) -> int:
        described = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, described)
        return self._file.tell()

    def append(self, values: np.ndarray) -> None:
        content = np.ascontiguousarray(values, dtype=self.dtype).tobytes()
        self.hasher.update(content)
        self._file.write(content)
        self.length += len(values)

    def close(self) -> None:
        self._file.seek(0)
        assert self._header() == self._start
        self._file.close()


class _Writer:
    """The files of one split."""

    def __init__(self, folder: Path, split: str, tokenizer: Tokenizer) -> None:
        self.names: list[str] = []
        self.text_bytes = 0
        self._file = folder / f"{split}.names.json"
        self._end = np.array([tokenizer.end], dtype=tokenizer.dtype)
        self._columns = {
            column: _Column(folder / f"{split}.{column}.npy", np.dtype(dtype or tokenizer.dtype))
            for column, dtype in _COLUMNS.items()
        }
        self._add(self._end, np.zeros(1))

    def _add(self, ids: np.ndarray, nbytes: np.ndarray) -> None:
        self._columns["ids"].append(ids)
        self._columns["bytes"].append(nbytes)

    def add(self, document: Document, ids: np.ndarray, nbytes: np.ndarray) -> None:
        self._columns["documents"].append(np.array([self._columns["ids"].length]))
        self._add(ids, nbytes)
        self._add(self._end, np.zeros(1))
        self.names.append(document.name)
        self.text_bytes += int(nbytes.sum())

    def close(self) -> dict[str, Any]:
        """What the header says of the split."""
        self._columns["documents"].append(np.array([self._columns["ids"].length]))
        for column in self._columns.values():
            column.close()
        self._file.write_text(json.dumps(self.names))
        lengths = {name: column.length for name, column in self._columns.items()}
        digests = {name: column.hasher.hexdigest() for name, column in self._columns.items()}
        return {**lengths, "text_bytes": self.text_bytes, "sha256": digests}


def _batches(corpus: Corpus) -> Iterator[list[tuple[str, Document]]]:
    batch: list[tuple[str, Document]] = []
    size = 0
    for split, document in corpus.labelled():
        batch.append((split, document))
        size += len(document.text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _build(folder: Path, corpus: Corpus, tokenizer: Tokenizer, data: Mapping[str, Any]) -> None:
    writers = {split: _Writer(folder, split, tokenizer) for split in corpus.splits}
    for batch in _batches(corpus):
        encoded = tokenizer.encode_all([document.text for _, document in batch])
        for (split, document), (ids, nbytes) in zip(batch, encoded, strict=True):
            writers[split].add(document, ids, nbytes)
    tokenizer.save(folder / "tokenizer.json")
    header = {
        "kind": "posbench tokens",
        "format": FORMAT,
        "dtype": tokenizer.dtype.name,
        "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint, "data": dict(data), "notice": corpus.notice},
        "tokenizer": {
            "name": tokenizer.name,
            "kind": tokenizer.kind,
            "encoder": encoder(tokenizer.kind),
            "fingerprint": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "end": tokenizer.end,
        },
        "splits": {split: writer.close() for split, writer in writers.items()},
    }
    files.write_json(folder / "header.json", header)
