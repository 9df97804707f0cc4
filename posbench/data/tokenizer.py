"""Text <-> ids, with the UTF-8 bytes that every id stands for.

Three kinds, one class: bytes; a byte-level BPE trained on the training split; any tokenizer.json. Text is always
encoded as mere text: a document that happens to contain "<|end|>" gets no end id from it. What defines a tokenizer is
plain data (`definition`), saved as one JSON file that a run keeps, and its fingerprint is that of this data, not of a
library's object (huggingface/datasets#3847).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from posbench import data, files
from posbench.data.corpus import Corpus, fingerprint
from posbench.errors import UserError, closest, reason, unknown

FORMAT = 1
"""Raised whenever the same text and settings would give another BPE or other ids."""

END = "<|end|>"
"""How an end id of our own is written."""

KINDS: dict[str, dict[str, Any]] = {
    "bytes": {},
    "bpe": {"vocab_size": 2048},
    "file": {"path": None, "end": None},
}
"""The settings of each kind, with their defaults."""

PLACES = ("path",)
"""Settings that say where a tokenizer of the user's own is; its content, not these, names a run."""

LARGEST = 1 << 22
"""Ids of a BPE of ours: its trainer takes memory for all of them at once, and ends the process when there is none."""

_LONGEST = {"bpe": 1 << 11, "file": 1 << 22}
"""Characters encoded at once. Our BPE never joins across the cut of `pieces`; a foreign one might, so only a document
that would not fit in memory is cut for it."""

_AT_ONCE = 1 << 20
"""Characters, in one piece or many, that the cores share."""


def ids_dtype(vocab_size: int) -> np.dtype[Any]:
    """The type in which ids are kept: two bytes as long as every id fits."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def encoder(kind: str) -> dict[str, Any]:
    """What else decides the ids than a tokenizer's definition: ours and the library's way with it."""
    if kind == "bytes":
        return {}
    return {"format": FORMAT, "longest": _LONGEST[kind], "tokenizers": metadata.version("tokenizers")}


class Tokenizer:
    """Made by `open_tokenizer` or `Tokenizer.load`.

    `definition`: {"kind": "bytes"}, or {"kind": "bpe" | "file", "end": id, "tokenizer": a tokenizer.json as data}.
    """

    def __init__(self, name: str, definition: Mapping[str, Any]) -> None:
        self.name = name
        self.definition = dict(definition)
        if self.kind == "bytes":
            self.end, self.vocab_size = 256, 257
        else:
            self.end = int(definition["end"])
            self.vocab_size = max(self.end, *self._hf.get_vocab(with_added_tokens=True).values()) + 1
        self.dtype = ids_dtype(self.vocab_size)

    @property
    def kind(self) -> str:
        return str(self.definition["kind"])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the definition; the name is no part of it."""
        return fingerprint(**self.definition)

    @cached_property
    def _hf(self) -> Any:
        from tokenizers import Tokenizer as HFTokenizer

        made = HFTokenizer.from_str(json.dumps(self.definition["tokenizer"]))
        made.encode_special_tokens = True  # "<s>" in a text is three characters of text
        return made

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, nbytes) of one text without an end token; nbytes sums to the text's UTF-8 bytes."""
        return next(self.encode_all([text]))

    def encode_all(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`encode` of each text; together they use every core."""
        if self.kind == "bytes":
            for text in texts:
                content = np.frombuffer(text.encode(), dtype=np.uint8)
                yield content.astype(self.dtype), np.ones(len(content), dtype=np.uint32)
            return
        cut = [list(pieces(text, _LONGEST[self.kind])) for text in texts]
        encoded = self._encoded(piece for parts in cut for piece in parts)
        for text, parts in zip(texts, cut, strict=True):
            found = [self._arrays(piece, *next(encoded)) for piece in parts]
            ids, nbytes = (np.concatenate(column) for column in zip(*found, strict=True))
            if (ids == self.end).any():
                raise UserError(f"The tokenizer '{self.name}' makes its end token of a text that contains its name.")
            if len(text) and not len(ids):
                raise UserError(f"The tokenizer '{self.name}' makes no token of a text of {len(text)} characters.")
            yield ids, nbytes

    def _arrays(self, piece: str, ids: list[int], ends: list[int]) -> tuple[np.ndarray, np.ndarray]:
        return np.array(ids, dtype=self.dtype), bytes_of(piece, ends)

    def _encoded(self, parts: Iterable[str]) -> Iterator[tuple[list[int], list[int]]]:
        for together in _of_size(parts, _AT_ONCE):
            try:
                found = self._hf.encode_batch(together, add_special_tokens=False)
            except Exception as error:  # the library raises bare Exception, for one when a word has no unknown token
                raise UserError(f"The tokenizer '{self.name}' cannot encode the text: {error}.") from error
            for each in found:
                yield each.ids, [end for _, end in each.offsets]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; an end token is written as its name. Bytes that are no UTF-8 become U+FFFD."""
        ids = [int(i) for i in ids]
        if self.kind == "bytes":
            parts = [bytes(part).decode(errors="replace") for part in _split(ids, self.end)]
        else:
            parts = [self._hf.decode(part, skip_special_tokens=False) for part in _split(ids, self.end)]
        return self.end_name.join(parts)

    @property
    def end_name(self) -> str:
        """How the end token is written."""
        return (None if self.kind == "bytes" else self._hf.id_to_token(self.end)) or END

    def save(self, path: Path) -> None:
        """Write the one file that `load` reads."""
        files.write_json(Path(path), {"name": self.name, "definition": self.definition})

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read what `save` wrote; `UserError` for anything else."""
        try:
            stored = json.loads(Path(path).read_text())
            return cls(stored["name"], stored["definition"])
        except OSError as error:
            raise UserError(f"{path} cannot be read: {reason(error)}.") from error
        except Exception as error:  # `tokenizers` raises bare Exception for a definition it does not understand
            raise UserError(f"{path} is not a tokenizer that posbench saved: {reason(error)}.") from error


def _split(ids: list[int], end: int) -> Iterator[list[int]]:
    part: list[int] = []
    for i in ids:
        if i == end:
            yield part
            part = []
        else:
            part.append(i)
    yield part


_SINGLE_BLANK = re.compile(r"(?<=\S)[ \n](?=\S)")


def pieces(text: str, longest: int) -> Iterator[str]:
    r"""`text` in consecutive pieces of about `longest` characters, each cut before a single blank.

    Byte-level BPE first splits text into words, and a word begins at a single space or line break: cut there, the ids
    are those of the whole. Only where no such place comes for 64 times as long the cut falls anywhere.

    >>> list(pieces("one two\n\nthree four", 5))
    ['one two\n\nthree', ' four']
    """
    start = 0
    while len(text) - start > longest:
        last = start + 64 * longest
        found = _SINGLE_BLANK.search(text, start + longest, last)
        cut = found.start() if found else min(last, len(text))
        yield text[start:cut]
        start = cut
    if start < len(text) or not text:
        yield text[start:]


def _of_size(parts: Iterable[str], size: int) -> Iterator[list[str]]:
    """`parts` in order, as many together as reach `size` characters.

    >>> list(_of_size(["ab", "c", "def", "g"], 3))
    [['ab', 'c'], ['def'], ['g']]
    """
    together: list[str] = []
    reached = 0
    for part in parts:
        together.append(part)
        reached += len(part)
        if reached >= size:
            yield together
            together, reached = [], 0
    if together:
        yield together


def bytes_of(text: str, ends: Sequence[int]) -> np.ndarray:
    """UTF-8 bytes of each token of a text from the characters at which tokens end, (N,) uint32, summing to the text.

    A token has the bytes from the furthest end before it to its own end. So text that no token covers counts with the
    next one (at the end: with the last), and a character that several tokens share counts with the first of them.
    """
    if not len(ends):
        return np.zeros(0, dtype=np.uint32)
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    before = np.concatenate([[0], np.cumsum(sizes)])
    reached = before[np.maximum.accumulate(np.asarray(ends))]
    reached[-1] = before[-1]
    return np.diff(reached, prepend=0).astype(np.uint32)


# --- Which tokenizer a config asks for ---------------------------------------------------------------------------


def open_tokenizer(
    tokenizer: Mapping[str, Any],
    corpus: Corpus,
    root: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Tokenizer:
    """The tokenizer of a config. A BPE is trained on `corpus` the first time and kept under `root`.

    `UserError` for an unknown kind or setting, a file that is no tokenizer, a vocabulary too small.
    """
    found = find_tokenizer(tokenizer, corpus, root)
    if found is not None:
        return found
    settings = _settings(tokenizer)
    say(f"{corpus.name}: training a byte-level BPE of {settings['vocab_size']:,} ids on the training split.")
    made = train_bpe((document.text for document in corpus.documents("train")), settings["vocab_size"])
    path = _kept(corpus, settings, root)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(path)
    return made


def find_tokenizer(tokenizer: Mapping[str, Any], corpus: Corpus, root: Path | None = None) -> Tokenizer | None:
    """As `open_tokenizer`, but None where a BPE would have to be trained."""
    settings = _settings(tokenizer)
    if settings["kind"] == "bytes":
        return Tokenizer("bytes", {"kind": "bytes"})
    if settings["kind"] == "file":
        return _from_file(settings["path"], settings["end"], tokenizer.get("fingerprint"))
    path = _kept(corpus, settings, root)
    try:
        return Tokenizer.load(path) if path.exists() else None
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise UserError(error.message, "Delete it and repeat: it is trained again.") from error


def _settings(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(tokenizer.get("kind"))
    if kind not in KINDS:
        raise unknown("kind of tokenizer", kind, KINDS)
    given = {key: value for key, value in tokenizer.items() if key not in ("name", "kind", "note", "fingerprint")}
    for key in given:
        if key not in KINDS[kind]:
            raise unknown(f"setting of tokenizer={tokenizer.get('name')}", key, KINDS[kind])
    for key in ("path", "end"):
        if isinstance(value := given.get(key), (list, dict)):
            raise UserError(f"tokenizer.{key} takes one value, not {value}.")
        if value is not None:
            given[key] = str(value)  # a name that the command line took for a number
    settings = {"kind": kind, **KINDS[kind], **given}
    if kind == "file" and settings["path"] is None:
        raise UserError("tokenizer=file needs tokenizer.path=FILE, a tokenizer.json.")
    if kind == "bpe":
        size = settings["vocab_size"]
        if not isinstance(size, int) or size < 257:
            raise UserError(
                f"tokenizer.vocab_size={size} is not a whole number of at least 257.", "256 bytes and the end token."
            )
        if size > LARGEST:
            raise UserError(f"tokenizer.vocab_size={size} must be {LARGEST:,} or less.")
    return settings


def _kept(corpus: Corpus, settings: Mapping[str, Any], root: Path | None) -> Path:
    """Where the BPE of a corpus and a size is: the name is made from all that decides it, so nothing else finds it."""
    untrained, trainer = _untrained(settings["vocab_size"])
    recipe = {"untrained": json.loads(untrained.to_str()), "trainer": trainer, **encoder("bpe")}
    key = fingerprint(corpus=corpus.fingerprint, kind="bpe", **recipe)
    return (root or data.root()) / "tokenizers" / f"bpe{settings['vocab_size']}-{corpus.name}-{key[:8]}.json"


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE (GPT-2's split into words) of at most `vocab_size` ids, the last of them the end token.

    The same texts give the same merges, whatever the threads. Pairs that occur once are not merged, so a short text
    gives fewer ids.
    """
    from tokenizers import trainers

    made, trainer = _untrained(vocab_size)
    parts = (piece for text in texts for piece in pieces(text, _LONGEST["bpe"]))
    made.train_from_iterator(parts, trainers.BpeTrainer(**trainer, show_progress=False))
    definition = {"kind": "bpe", "end": made.get_vocab_size(), "tokenizer": json.loads(made.to_str())}
    return Tokenizer(f"bpe{vocab_size}", definition)


def _untrained(vocab_size: int) -> tuple[Any, dict[str, Any]]:
    """The library's tokenizer before it has seen a text, and the settings of its trainer."""
    from tokenizers import Tokenizer as HFTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    made = HFTokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return made, {"vocab_size": vocab_size - 1, "initial_alphabet": alphabet, "min_frequency": 2}


def with_fingerprint(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """A config's `tokenizer`, and of one at a path the `fingerprint` of its bytes, by which a run is named."""
    path = _settings(tokenizer).get(PLACES[0])
    if path is None or "fingerprint" in tokenizer:
        return dict(tokenizer)
    return {**tokenizer, "fingerprint": hashlib.sha256(_content(Path(path).expanduser())).hexdigest()}


def _content(file: Path) -> bytes:
    try:
        if file.is_file():
            return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {reason(error)}.") from error
    near = closest(file.name, [other.name for other in file.parent.glob("*.json")])
    raise UserError(f"There is no file {file}.", near and f"Did you mean {file.parent / near}?")


def _from_file(path: str, end: str | None, known: str | None) -> Tokenizer:
    """The tokenizer of a file, which must still have the fingerprint that is `known`."""
    file = Path(path).expanduser()
    content = _content(file)
    if known not in (None, hashlib.sha256(content).hexdigest()):
        raise UserError(f"{path} is not the tokenizer this run is of: it has changed.", "Bring the old file back.")
    try:
        # Files often ask for texts to be cut or filled to a model's length.
        made = json.loads(content) | {"truncation": None, "padding": None}
        vocabulary = Tokenizer(file.stem, {"kind": "file", "end": 0, "tokenizer": made})._hf.get_vocab()
    except Exception as error:  # `tokenizers` raises bare Exception
        raise UserError(f"{path} is not a tokenizer.json: {reason(error)}.") from error
    if end is None:
        number = max(vocabulary.values()) + 1
    elif end in vocabulary:
        number = vocabulary[end]
        for token in made.get("added_tokens", []):
            token["special"] = token["special"] or token["content"] == end  # else its name in a text would be its id
    else:
        names = [token["content"] for token in made.get("added_tokens", [])]
        near = closest(end, names or vocabulary)
        raise UserError(f"{path} has no token '{end}'.", f"Did you mean tokenizer.end='{near}'?" if near else None)
    name = file.stem if file.stem != "tokenizer" else file.resolve().parent.name
    return Tokenizer(name, {"kind": "file", "end": number, "tokenizer": made})
