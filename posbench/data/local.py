"""The user's own text: .txt, .jsonl and .parquet files, one file, a folder or a glob.

Files are read in the order of their paths and streamed, so that a corpus need not fit in memory. The fingerprint is of
their bytes: two texts never share tokens, whatever their names and dates (huggingface/datasets#2775).
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from posbench.data.corpus import HOLDOUT, SPLITS, Corpus, Document, fingerprint, kept, loaded
from posbench.errors import UserError, closest, reason
from posbench.files import parse_json

SUFFIXES = (".txt", ".jsonl", ".parquet")


@dataclass(kw_only=True)
class Files(Corpus):
    """Text files: a document is a .txt file, a line of a .jsonl file or a row of a .parquet file."""

    places = ("path", *SPLITS)

    path: str | None = None
    """A file, folder or glob, shared out among the splits by document."""
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    """In place of `path`: the files of each split; a split that is not named does not exist."""
    field: str = "text"
    """Where .jsonl and .parquet keep the text."""
    holdout: int = HOLDOUT
    max_documents: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        own = {split: path for split in SPLITS if (path := getattr(self, split))}
        if self.path and own:
            raise UserError(f"data.path and data.{next(iter(own))} exclude each other.", "Give the one or the other.")
        if not self.path and not own:
            raise UserError(
                f"data={self.name} needs a text.",
                'Give data.path=FILE, FOLDER or "GLOB", or data.train=..., data.validation=... and data.test=... .',
            )
        self._files = {split: find_files(path) for split, path in (own or {"": str(self.path)}).items()}
        seen: dict[Path, str] = {}
        for split, files in self._files.items():
            for _, file in files:
                if seen.setdefault(file, split) != split:
                    raise UserError(f"{file} is in both data.{seen[file]} and data.{split}.")
        if self.name == "files":
            self.name = f"files-{Path(self.path or next(iter(own.values()))).stem.strip('*') or 'text'}"

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS if "" in self._files else tuple(self._files)

    @property
    def is_own(self) -> bool:
        return True

    @cached_property
    def fingerprint(self) -> str:
        # The suffix says how a file is read. Its name only put it in its place.
        files = {split: [[file.suffix, digest_of(file)] for _, file in files] for split, files in self._files.items()}
        caps = {"max_documents": self.max_documents, "max_bytes": self.max_bytes}
        return fingerprint(kind="files", files=files, field=self.field, holdout=self.holdout, **caps)

    def read(self) -> Iterator[tuple[str, Document]]:
        for split, files in self._files.items():
            documents = kept(read_files(files, self.field), self.max_documents, self.max_bytes)
            if split:
                yield from ((split, document) for document in documents)
            else:
                yield from self._hold_out(documents, self.holdout)


def find_files(path: str) -> list[tuple[str, Path]]:
    """(name, absolute path) of the text files of a path, sorted by name: the path below the folder that was given
    or that a glob starts from."""
    try:
        return _found(path)
    except (OSError, RuntimeError, ValueError) as error:  # gone meanwhile; ~ of nobody; "a**" in a glob
        raise UserError(f"{path} cannot be read: {reason(error)}.") from error


def _found(path: str) -> list[tuple[str, Path]]:
    given = Path(path).expanduser()
    if given.is_dir():
        root, found = given, [file for file in given.rglob("*") if _is_text(file.relative_to(given))]
        if not found:
            raise UserError(f"The folder {path} holds no text file.", f"Text files end in {', '.join(SUFFIXES)}.")
    elif given.is_file():
        root, found = given.parent, [given]
    else:
        fixed = list(takewhile(lambda part: not glob.has_magic(part), given.parts))
        root, pattern = Path(*fixed), "/".join(given.parts[len(fixed) :])
        found = list(root.glob(pattern)) if pattern else []
        if given.exists():
            raise UserError(f"{path} is neither a file nor a folder.")
        if not found:
            near = closest(given.name, [file.name for file in given.parent.glob("*")])
            raise UserError(f"There is no file {path}.", near and f"Did you mean {given.parent / near}?")
    files = sorted((file.relative_to(root).as_posix(), file.resolve()) for file in found if file.is_file())
    for _, file in files:
        if file.suffix not in SUFFIXES:
            raise UserError(f"{file.name} is not a kind of text file posbench reads: {', '.join(SUFFIXES)}.")
        if "::" in str(file):
            raise UserError(f"{file}: '::' in a path means a chained address to `datasets`.", "Rename it.")
    return files


def _is_text(below: Path) -> bool:
    """Whether a file of a folder belongs to the corpus: of a known kind and nowhere hidden."""
    return below.suffix in SUFFIXES and not any(part.startswith(".") for part in below.parts)


_digests: dict[tuple[Path, int, int, int, int, int], str] = {}
"""What this process has hashed, by all that changes when a file does."""

_SETTLED = 2_000_000_000
"""Nanoseconds after which a further change to a file is sure to have another time: more than any clock's tick."""


def digest_of(file: Path) -> str:
    """SHA-256 (hex) of a file's bytes; `UserError` when it cannot be read or a text file is not UTF-8.

    A file is hashed once a process, and again when it may have changed since.
    """
    try:
        now, found = time.time_ns(), file.stat()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {reason(error)}.") from error
    times = found.st_mtime_ns, found.st_ctime_ns
    state = (file, found.st_dev, found.st_ino, found.st_size, *times)
    if state in _digests:
        return _digests[state]
    digest = _hash(file)
    if now - max(times) > _SETTLED:
        _digests[state] = digest
    return digest


def _hash(file: Path) -> str:
    hasher, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
    is_text = file.suffix in (".txt", ".jsonl")
    read = 0
    try:
        with file.open("rb") as opened:
            while True:
                chunk = opened.read(1 << 20)
                pending = len(decoder.getstate()[0])  # bytes of a character that the last block began
                if is_text:
                    decoder.decode(chunk, final=not chunk)
                if not chunk:
                    return hasher.hexdigest()
                hasher.update(chunk)
                read += len(chunk)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8 text (byte {read - pending + error.start}).",
            "Convert it, for example: iconv -f latin1 -t utf-8",
        ) from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {reason(error)}.") from error


def read_files(files: list[tuple[str, Path]], field: str) -> Iterator[Document]:
    """The documents of files, in order. Many .txt files are one load, since a load costs more than a file."""
    for suffix, run in groupby(files, key=lambda each: each[1].suffix):
        if suffix == ".txt":
            yield from _whole_files(list(run))
        else:
            for name, file in run:
                yield from _lines(name, file, field) if suffix == ".jsonl" else _rows(name, file, field)


def _whole_files(files: list[tuple[str, Path]]) -> Iterator[Document]:
    # utf-8-sig: a byte order mark is no part of the text. The paths are patterns to `datasets`.
    paths = [glob.escape(str(file)) for _, file in files]
    how = {"sample_by": "document", "encoding": "utf-8-sig", "split": "train", "streaming": True}
    with loaded("text", data_files=paths, **how) as rows:
        for (name, _), row in zip(files, rows, strict=True):
            yield Document(name.removesuffix(".txt"), row["text"])


def _lines(name: str, file: Path, field: str) -> Iterator[Document]:
    # Not the builder "json": it turns a text that looks like a date into one, and stops where the type of any other
    # field changes between two of its chunks.
    how = {"sample_by": "line", "encoding": "utf-8-sig", "split": "train", "streaming": True}
    with loaded("text", data_files=[glob.escape(str(file))], **how) as rows:
        for number, row in enumerate(rows, start=1):
            if not row["text"].strip():
                continue
            where = f"{file}, line {number}"
            try:
                value = parse_json(row["text"])
            except ValueError as error:
                raise UserError(
                    f"{where} is not JSON: {error}.", "Each line of a .jsonl file is one object."
                ) from error
            if not isinstance(value, dict):
                raise UserError(f"{where} is not an object.", f'It should look like {{"{field}": "..."}}.')
            if field not in value:
                raise UserError(f"{where} has no '{field}'.", f"data.field: {', '.join(sorted(value))}")
            yield _checked(f"{name}:{number}", value[field], where)


def _rows(name: str, file: Path, field: str) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = pq.read_schema(file).names
        if field not in columns:
            raise UserError(f"{file} has no column '{field}'.", f"data.field: {', '.join(sorted(columns))}")
        how = {"columns": [field], "split": "train", "streaming": True}
        with loaded("parquet", data_files=[glob.escape(str(file))], **how) as rows:
            for number, row in enumerate(rows):
                yield _checked(f"{name}:{number}", row[field], f"{file}, row {number}")
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's, not the format's
            raise
        raise UserError(f"{file} is not a parquet file that can be read: {reason(error)}.") from error


def _checked(name: str, text: Any, where: str) -> Document:
    """A document whose text is indeed text; null is a blank one."""
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise UserError(f"{where}: the text is of type {type(text).__name__}, not a string.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: the text holds half of a surrogate pair, which UTF-8 cannot write.") from error
    return Document(name, text)
