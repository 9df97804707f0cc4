"""Corpora from the network, through `datasets`: sets of the Hugging Face hub, and one file at an address.

Rows are streamed, so a cap on the text is a cap on what is fetched. A set is pinned by its revision, so its fingerprint
needs no network, and neither does a corpus that was prepared elsewhere. A folder laid out like a set of the hub
(parquet files, a README.md with its configs) can stand in for one; it is fingerprinted by content.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from posbench.data.corpus import (
    HOLDOUT,
    SPLITS,
    Corpus,
    Document,
    check_digest,
    fingerprint,
    kept,
    loaded,
)
from posbench.data.local import digest_of
from posbench.errors import UserError, reason

PATIENCE = 8.0
"""Seconds without an answer after which the network counts as out of reach."""


@dataclass(kw_only=True)
class Hub(Corpus):
    """A data set of the hub, or a folder laid out like one."""

    places = ("repo", "revision")

    repo: str
    """owner/name, or a folder."""
    revision: str | None = None
    """The commit that is read; a folder has none."""
    config: str | None = None
    split: str | None = None
    """The one split that is shared out by document; None: the set has train, validation and test."""
    field: str = "text"
    title: str | None = None
    """The column with a document's name."""
    articles: bool = False
    """Rows are the lines of WikiText: see `articles`."""
    holdout: int = HOLDOUT
    max_documents: int | None = None
    max_bytes: int | None = None
    """Caps on each split that is read."""

    def __post_init__(self) -> None:
        if not self._is_folder and self.revision is None:
            raise UserError(f"data={self.name} needs data.revision, the commit of {self.repo} to read.")

    @property
    def is_own(self) -> bool:
        return self._is_folder

    @property
    def _is_folder(self) -> bool:
        return Path(self.repo).expanduser().is_dir()

    @cached_property
    def fingerprint(self) -> str:
        facts = {key: value for key, value in vars(self).items() if key not in ("name", "notice", "repo", "revision")}
        if not self._is_folder:
            return fingerprint(kind="hub", repo=self.repo, revision=self.revision, **facts)
        folder = Path(self.repo).expanduser()
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        content = [[file.relative_to(folder).as_posix(), digest_of(file)] for file in files]
        return fingerprint(kind="hub", content=content, **facts)

    def read(self) -> Iterator[tuple[str, Document]]:
        ask = self._asker()
        for split in (self.split,) if self.split else SPLITS:
            rows = reachable(self, self.repo, ask, self._rows(split))
            named = articles(text for _, text in rows) if self.articles else rows
            documents = kept((Document(*each) for each in named), self.max_documents, self.max_bytes)
            if self.split:
                yield from self._hold_out(documents, self.holdout)
            else:
                yield from ((split, document) for document in documents)

    def _asker(self) -> Callable[[], object]:
        """What asks the hub for the set, without the set's text and without waiting for the import of `datasets`."""
        if self._is_folder:
            return lambda: None
        from huggingface_hub import HfApi, constants

        def ask() -> object:
            if constants.HF_HUB_OFFLINE or os.environ.get("HF_DATASETS_OFFLINE", "0").lower() not in ("0", "false", ""):
                raise ConnectionError("HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set")
            return HfApi().dataset_info(self.repo, revision=self.revision, timeout=PATIENCE)

        return ask

    def _rows(self, split: str) -> Iterator[tuple[str, str]]:
        where = str(Path(self.repo).expanduser().resolve()) if self._is_folder else self.repo
        revision = None if self._is_folder else self.revision
        with loaded(where, name=self.config, revision=revision, split=split, streaming=True) as rows:
            for number, row in enumerate(rows):
                for column in filter(None, (self.field, self.title)):
                    if column not in row:
                        raise UserError(f"{self.repo} has no column '{column}'.", f"It has: {', '.join(sorted(row))}.")
                text = row[self.field] or ""
                if not isinstance(text, str):
                    raise UserError(f"{self.repo}: the column '{self.field}' holds no text.")
                yield str(row[self.title]) if self.title else f"{split}:{number}", text


@dataclass(kw_only=True)
class Url(Corpus):
    """One text at an address, packed or not, pinned by the SHA-256 of its bytes and cut in three contiguous parts."""

    url: str
    digest: str
    holdout: int = HOLDOUT

    @property
    def fingerprint(self) -> str:
        return fingerprint(kind="url", digest=self.digest, holdout=self.holdout)

    def read(self) -> Iterator[tuple[str, Document]]:
        texts = [text for _, text in reachable(self, self.url, self._ask, self._rows())]
        check_digest(texts, self.digest, self.url, "Another text needs a YAML of its own with its digest.")
        yield from self._hold_out((Document(self.name, text) for text in texts), self.holdout)

    def _ask(self) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url, method="HEAD"), timeout=PATIENCE).close()

    def _rows(self) -> Iterator[tuple[str, str]]:
        # `datasets` would fetch it itself, but only with aiohttp, which it does not bring.
        with tempfile.TemporaryDirectory(prefix="posbench-") as folder:
            archive = Path(folder) / Path(self.url).name
            with urllib.request.urlopen(self.url, timeout=PATIENCE) as remote, archive.open("wb") as local:
                shutil.copyfileobj(remote, local)
            how = {"sample_by": "document", "split": "train", "streaming": True}
            with loaded("text", data_files=[str(archive)], **how) as rows:
                for row in rows:
                    yield self.name, row["text"]


def reachable(
    corpus: Corpus, source: str, ask: Callable[[], object], rows: Iterator[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """The rows, after `ask` did not raise within `PATIENCE`; what goes wrong is one sentence of a `UserError`.

    `datasets` alone tries for half a minute, and a name server that is out of reach does not heed its time-outs.
    """
    found: list[BaseException] = [TimeoutError(f"no answer within {PATIENCE:.0f} s")]

    def try_it() -> None:
        try:
            ask()
            found.clear()
        except Exception as error:
            found[:] = [error]

    thread = threading.Thread(target=try_it, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    try:
        if found:
            raise found[0]
        yield from rows
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise  # this machine's, where it is fetched to
        raise UserError(
            f"The corpus '{corpus.name}' is not prepared here and {source} cannot be had: {reason(error)}",
            f"Where it can be had: posbench data prepare {corpus.name} --out DIR; then here, with DIR copied: "
            "POSBENCH_DATA=DIR.",
        ) from error


def articles(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    r"""(title, text) of the articles of WikiText, each from its level-1 heading on.

    The hub's rows are the lines of the original files, blank ones emptied: the original's " \n" is put back, so that
    bytes and words are those of the published set. A heading stands after a blank line, which tells it from a line of
    mathematics.

    >>> list(articles(["", " = One = \n", "", " Text . \n", " = = Part = = \n", "", " = Two = \n", ""]))
    [('One', ' = One = \n \n Text . \n = = Part = = \n \n'), ('Two', ' = Two = \n \n')]
    """
    title, blank = "", True
    text: list[str] = []
    for line in lines:
        heading = re.fullmatch(r" = (?!= )(.+) = \n?", line)
        if blank and heading and not heading[1].endswith(" ="):
            if title:
                yield title, "".join(text)
            title, text = heading[1], []
        blank = not line.strip()
        text.append(" \n" if blank else line)
    if title or "".join(text).strip():
        yield title or "text", "".join(text)
