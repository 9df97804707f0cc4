"""The user's own files: which documents they are, in which split, and what is said when they are broken."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from texts import files_of, jsonl, shipped, splits_of, texts_of

from posbench.data import local
from posbench.data.corpus import cut_in_three, open_corpus
from posbench.errors import UserError


def test_documents_are_files_lines_and_rows_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """Line ends become one form, a byte order mark and blank documents go, names are paths below the folder."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "._b.txt").write_bytes(b"\xff")  # what a Mac leaves beside b.txt
    (tmp_path / "notes.md").write_text("not a text of the corpus")
    jsonl(tmp_path / "a.jsonl", {"text": "first"}, {"text": None}, {"text": "2020-01-01"})
    pq.write_table(pa.table({"id": [7, 8], "text": ["row 0", "row 1"]}), tmp_path / "sub" / "c.parquet")
    (tmp_path / "sub" / "d.txt").write_text("last")
    corpus = open_corpus(shipped("data", "files", train=str(tmp_path)))
    assert [(d.name, d.text) for d in corpus.documents("train")] == [
        ("a.jsonl:1", "first"),
        ("a.jsonl:3", "2020-01-01"),
        ("b", "one\ntwo\n"),
        ("sub/c.parquet:0", "row 0"),
        ("sub/c.parquet:1", "row 1"),
        ("sub/d", "last"),
    ]


def test_a_glob_names_its_files(tmp_path: Path) -> None:
    for name in ("1.txt", "2.txt", "x.txt"):
        (tmp_path / name).write_text(name)
    corpus = open_corpus(shipped("data", "files", test=str(tmp_path / "[0-9].txt")))
    assert texts_of(corpus) == ["1.txt", "2.txt"]


@pytest.mark.parametrize("name", ["a[1].txt", "what?.txt", "50% #1.txt", "star*.txt", "é ü.txt"])
def test_any_file_name_is_a_name(tmp_path: Path, name: str) -> None:
    """`datasets` takes paths for patterns: unescaped, the first of these is silently an empty corpus."""
    folder = tmp_path / ".hidden" / "__x"
    folder.mkdir(parents=True)
    (folder / name).write_text("text")
    assert texts_of(open_corpus(shipped("data", "files", test=str(folder)))) == ["text"]


def test_fields_of_other_types_do_not_disturb_a_jsonl(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"body": "a", "n": 1}, {"body": "b", "n": "x"}, {"body": "c", "n": {"k": [1]}})
    assert texts_of(open_corpus(shipped("data", "files", test=str(path), field="body"))) == ["a", "b", "c"]


def test_of_every_20_documents_the_first_is_test_and_the_second_validation(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", *({"text": f"document {i}"} for i in range(45)))
    splits = splits_of(open_corpus(shipped("data", "files", path=str(path))))
    assert splits["test"] == ["a.jsonl:1", "a.jsonl:21", "a.jsonl:41"]
    assert splits["validation"] == ["a.jsonl:2", "a.jsonl:22", "a.jsonl:42"]
    assert len(splits["train"]) == 39


def test_three_documents_are_one_for_each_split(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", *({"text": f"document {i}"} for i in range(3)))
    corpus = open_corpus(shipped("data", "files", path=str(path)))
    assert splits_of(corpus) == {"test": ["a.jsonl:1"], "validation": ["a.jsonl:2"], "train": ["a.jsonl:3"]}
    assert corpus.notice == ""


def test_one_document_is_cut_in_contiguous_parts_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("x" * 180 + "y" * 10 + "z" * 10)
    corpus = open_corpus(shipped("data", "files", path=str(tmp_path / "book.txt")))
    documents = dict(corpus.labelled())
    assert {split: document.text for split, document in documents.items()} == {
        "train": "x" * 180,
        "validation": "y" * 10,
        "test": "z" * 10,
    }
    assert documents["test"].name == "book:test"
    assert corpus.notice.startswith("files-book has 1 document(s): each was cut")


def test_a_cut_never_parts_a_character() -> None:
    """Ten characters of two bytes: 3/5 of 20 bytes is 12, 4/5 is 16; with an "a" before, 12 falls into a character."""
    assert cut_in_three("é" * 10, 5) == ["é" * 6, "é" * 2, "é" * 2]
    assert cut_in_three("a" + "é" * 10, 5) == ["a" + "é" * 6, "é" * 2, "é" * 2]
    for text in ("aé😀b" * 7, "", "é"):
        assert "".join(cut_in_three(text, 5)) == text


def test_a_split_that_is_not_named_does_not_exist(tmp_path: Path) -> None:
    corpus = open_corpus(files_of(tmp_path, train="a", test="b"))
    assert corpus.splits == ("train", "test")
    with pytest.raises(UserError, match=r"no split 'validation'[\s\S]*train, test"):
        corpus.documents("validation")


def test_no_file_is_in_two_splits(tmp_path: Path) -> None:
    data = files_of(tmp_path, train="a", test="b")
    with pytest.raises(UserError, match=r"train.txt is in both data.train and data.test"):
        open_corpus(data | {"test": str(tmp_path)})


def test_caps_keep_the_first_documents(tmp_path: Path) -> None:
    """Four documents of 4 bytes of UTF-8: two fit into 11 bytes."""
    path = jsonl(tmp_path / "a.jsonl", *({"text": text} for text in ("éé", "bbbb", "cccc", "dddd")))
    data = shipped("data", "files", test=str(path))
    assert texts_of(open_corpus(data | {"max_documents": 3})) == ["éé", "bbbb", "cccc"]
    assert texts_of(open_corpus(data | {"max_bytes": 11})) == ["éé", "bbbb"]
    assert texts_of(open_corpus(data | {"max_bytes": 16})) == ["éé", "bbbb", "cccc", "dddd"]
    with pytest.raises(UserError, match="is empty"):
        texts_of(open_corpus(data | {"max_bytes": 3}))


def test_the_fingerprint_is_of_the_content_and_the_settings(tmp_path: Path) -> None:
    """DATA-2: another text, limit or rule is another corpus; another place, name or date is not."""
    data = files_of(tmp_path / "a", train="one", test="two")
    same = files_of(tmp_path / "b", train="one", test="two")
    os.utime(tmp_path / "b" / "train.txt", (0, 0))
    first = open_corpus(data).fingerprint
    assert first == open_corpus(same).fingerprint
    (tmp_path / "b" / "train.txt").rename(tmp_path / "b" / "other name.txt")
    assert first == open_corpus(same | {"train": str(tmp_path / "b" / "other name.txt")}).fingerprint
    others = [
        files_of(tmp_path / "c", train="One", test="two"),
        files_of(tmp_path / "d", train="two", test="one"),
        data | {"max_documents": 5},
        data | {"max_bytes": 5},
        data | {"holdout": 10},
    ]
    assert len({first, *(open_corpus(other).fingerprint for other in others)}) == 6


def test_a_file_is_hashed_once_and_again_when_it_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same size and mtime as before: its ctime tells; and a file that changed just now is not remembered at all."""
    file = tmp_path / "a.txt"
    file.write_text("one")
    hashed: list[Path] = []
    monkeypatch.setattr(local, "_hash", lambda file: hashed.append(file) or file.read_text())
    assert [local.digest_of(file) for _ in range(2)] == ["one", "one"]
    assert len(hashed) == 2
    monkeypatch.setattr(local, "_SETTLED", -1)
    assert [local.digest_of(file) for _ in range(3)] == ["one"] * 3
    assert len(hashed) == 3
    times = file.stat()
    while file.stat().st_ctime_ns == times.st_ctime_ns:  # a tick of the clock, some milliseconds
        file.write_text("two")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert local.digest_of(file) == "two"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "café".encode("latin1"), r"a\.txt is not UTF-8 text \(byte 3\)"),
        ("a.jsonl", '{"text": "café"}'.encode("latin1"), r"a\.jsonl is not UTF-8 text"),
        ("a.txt", "é".encode()[:1], r"a\.txt is not UTF-8 text"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": ', r"a\.jsonl, line 3 is not JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1 is not JSON: it is nested too deeply"),
        ("a.jsonl", b'["a"]', r"a\.jsonl, line 1 is not an object"),
        ("a.jsonl", b'{"body": "a", "id": 1}', r"a\.jsonl, line 1 has no 'text'\.\ndata\.field: body, id"),
        ("a.jsonl", b'{"text": 5}', r"a\.jsonl, line 1: the text is of type int"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"a\.jsonl, line 1: the text holds half of a surrogate pair"),
        ("a.parquet", b"PAR1 and then garbage", r"a\.parquet is not a parquet file"),
        ("a.parquet", b"", r"a\.parquet is not a parquet file"),
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n\t\n", "is empty"),
        ("a.jsonl", b"\n", "is empty"),
        ("a.doc", b"text", r"a\.doc is not a kind of text file posbench reads: \.txt, \.jsonl, \.parquet"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        open_and_read(tmp_path / name)


def open_and_read(path: Path) -> list[str]:
    corpus = open_corpus(shipped("data", "files", test=str(path)))
    assert corpus.fingerprint
    return texts_of(corpus)


def test_a_bad_byte_is_placed_beyond_the_first_block(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * (3 << 20) + b"\xff")
    with pytest.raises(UserError, match=rf"byte {3 << 20}\)"):
        assert open_corpus(shipped("data", "files", test=str(tmp_path / "a.txt"))).fingerprint


def test_a_parquet_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"has no column 'text'\.\ndata\.field: body, id"):
        list(open_corpus(shipped("data", "files", test=str(tmp_path))).labelled())


def test_a_path_that_is_not_there_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "alice.txt").write_text("text")
    with pytest.raises(UserError, match=r"no file .*alise\.txt\.\nDid you mean .*alice\.txt"):
        open_corpus(shipped("data", "files", path=str(tmp_path / "alise.txt")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no text file"):
        open_corpus(shipped("data", "files", path=str(tmp_path / "empty")))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "data=files needs a text"),
        ("{}/a**.txt", "a\\*\\*.txt cannot be read: Invalid pattern"),
        ("~nobody-of-that-name/a.txt", "cannot be read: Could not determine home directory"),
        ("{}/pipe.txt", "pipe.txt is neither a file nor a folder"),
        ("{}/" + "x" * 300, "cannot be read: File name too long"),
    ],
)
def test_what_is_no_path_of_a_text_is_one_sentence(tmp_path: Path, path: str, message: str) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(UserError, match=message):
        open_corpus(shipped("data", "files", path=path.format(tmp_path)))


def test_a_text_too_short_for_three_splits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    with pytest.raises(UserError, match="has no text in its split 'validation'"):
        list(open_corpus(shipped("data", "files", path=str(tmp_path / "a.txt"))).labelled())


def test_nothing_is_left_in_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So an older load of a file of this name can never be read in its place, and a home that is read-only will do."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    list(open_corpus(files_of(tmp_path / "text", train="a", test="b")).labelled())
    assert not (tmp_path / "cache").exists()
