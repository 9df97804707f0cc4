"""Sets of the hub, folders laid out like them, and one text at an address; all without a network."""

from __future__ import annotations

import errno
import functools
import hashlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from texts import jsonl, shipped, splits_of

from posbench.data import hub
from posbench.data.corpus import Document, open_corpus
from posbench.data.tokens import prepare
from posbench.errors import UserError
from posbench.search_path import config_dir

LINES = {
    "train": ["", " = One = \n", "", " Text . \n", " = = Part = = \n", "", " a = b = \n", " = Two = \n", ""],
    "validation": [" = Valid = \n", "", " v \n"],
    "test": ["", " = = Lost = = \n", "", " = Test = \n", " t \n"],
}


Columns = dict[str, list[Any]]


def laid_out(folder: Path, configs: dict[str, dict[str, tuple[str, Columns]]]) -> Path:
    """A folder like a set of the hub: a README.md that gives each config's splits their files. {split: (path, rows)}"""
    readme = ["---", "configs:"]
    for config, splits in configs.items():
        readme += [f"- config_name: {config}", "  data_files:"]
        for split, (path, columns) in splits.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), file)
            readme += [f"  - split: {split}", f"    path: {path.replace('00000-of-00001.parquet', '*')}"]
    (folder / "README.md").write_text("\n".join([*readme, "---", ""]))
    return folder


def wikitext103(folder: Path) -> Path:
    """As Salesforce/wikitext: a folder a config, rows that are lines."""
    configs = {"wikitext-103-raw-v1": LINES, "wikitext-2-raw-v1": {"train": ["wrong"]}}
    return laid_out(
        folder,
        {
            config: {
                split: (f"{config}/{split}-00000-of-00001.parquet", {"text": lines}) for split, lines in splits.items()
            }
            for config, splits in configs.items()
        },
    )


def pg19(folder: Path) -> Path:
    """As emozilla/pg19: one config, a row a book, two of them in train."""
    books = {"train": ["Emma", "Ruth"], "validation": ["Silas"], "test": ["Lucile"]}
    rows = {
        split: {
            "short_book_title": titles,
            "publication_date": [1815] * len(titles),
            "url": ["an address"] * len(titles),
            "text": [f"{title}, a novel" for title in titles],
        }
        for split, titles in books.items()
    }
    files = {split: (f"data/{split}-00000-of-00001.parquet", columns) for split, columns in rows.items()}
    return laid_out(folder, {"default": files})


def fineweb_edu(folder: Path) -> Path:
    """As HuggingFaceFW/fineweb-edu: samples beside the whole, each with a split train alone."""

    def pages(numbers: range, word: str = "page") -> Columns:
        return {
            "text": [f"{word} {i}" for i in numbers],
            "id": [f"<urn:{i}>" for i in numbers],
            "dump": ["CC-MAIN-2013-20"] * len(numbers),
            "score": [2.5] * len(numbers),
        }

    configs = {
        "default": {"train": ("data/CC-MAIN-2013-20/train-00000-of-00001.parquet", pages(range(2), "wrong"))},
        "sample-10BT": {"train": ("sample/10BT/000_00000.parquet", pages(range(101)))},
    }
    return laid_out(folder, configs)


LAYOUTS = {"wikitext103": wikitext103, "pg19": pg19, "fineweb_edu": fineweb_edu}
SPLITS = {
    "wikitext103": {"train": ["One"], "validation": ["Valid"], "test": ["Test"]},
    "pg19": {"train": ["Emma", "Ruth"], "validation": ["Silas"], "test": ["Lucile"]},
    "fineweb_edu": {
        "train": [f"<urn:{i}>" for i in range(2, 100)], "validation": ["<urn:1>"], "test": ["<urn:0>", "<urn:100>"],
    },
}  # fmt: skip
"""Documents by split of the three, by hand; of FineWeb-Edu every hundredth page from 0 is test, from 1 validation."""


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any question to the network fails the test."""

    def asked(*what: object, **how: object) -> None:
        pytest.fail(f"it asks the network: {what}")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    monkeypatch.setattr(socket.socket, "connect", asked)


def test_articles_begin_at_level_1_headings_after_a_blank_line() -> None:
    """By hand: the second-level heading and the line of mathematics stay inside; blank lines are " \\n" again."""
    assert list(hub.articles(LINES["train"])) == [
        ("One", " = One = \n \n Text . \n = = Part = = \n \n a = b = \n = Two = \n \n"),
    ]
    assert [title for title, _ in hub.articles(["", " = One = \n", "", " a \n", "", " = Two = \n"])] == ["One", "Two"]
    assert list(hub.articles(LINES["test"])) == [("Test", " = Test = \n t \n")]


def test_every_set_that_is_shipped_is_loaded_here() -> None:
    """DATA-4: a YAML of a set from the network is held against its layout below, or served by a server further on."""
    kinds = {file.stem: yaml.safe_load(file.read_text())["kind"] for file in (config_dir() / "data").glob("*.yaml")}
    assert {name for name, kind in kinds.items() if kind == "hub"} == set(LAYOUTS) == set(SPLITS)
    assert {name for name, kind in kinds.items() if kind == "url"} == {"enwik8"}


@pytest.mark.slow
@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_laid_out_like_a_hub_set_is_read_as_one(tmp_path: Path, name: str) -> None:
    """DATA-4: with the YAML as it is shipped, its config picked by name, its splits and columns by theirs."""
    corpus = open_corpus(shipped("data", name, repo=str(LAYOUTS[name](tmp_path / "set"))))
    assert splits_of(corpus) == SPLITS[name]


def test_a_folder_in_place_of_a_hub_set_has_the_fingerprint_of_its_content(tmp_path: Path) -> None:
    folder = wikitext103(tmp_path / "set")
    before = open_corpus(shipped("data", "wikitext103", repo=str(folder))).fingerprint
    assert open_corpus(shipped("data", "wikitext103", repo=str(wikitext103(tmp_path / "copy")))).fingerprint == before
    pq.write_table(pa.table({"text": ["x"]}), folder / "wikitext-103-raw-v1" / "test-00000-of-00001.parquet")
    assert open_corpus(shipped("data", "wikitext103", repo=str(folder))).fingerprint != before


def test_a_set_with_one_split_is_shared_out_and_capped(tmp_path: Path) -> None:
    """As fineweb_edu: of every 3 rows one is test and one validation, names from a column, only the first 7 rows."""
    rows = {"text": [f"page {i}" for i in range(9)], "id": [f"id{i}" for i in range(9)], "score": [0.5] * 9}
    pq.write_table(pa.table(rows), tmp_path / "train-00000-of-00001.parquet")
    own = {"repo": str(tmp_path), "config": None, "holdout": 3, "max_documents": 7}
    corpus = open_corpus(shipped("data", "fineweb_edu", **own))
    assert splits_of(corpus) == {"test": ["id0", "id3", "id6"], "validation": ["id1", "id4"], "train": ["id2", "id5"]}


def test_a_set_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(UserError, match=r"has no column 'text'\.\nIt has: body"):
        list(open_corpus(shipped("data", "fineweb_edu", repo=str(tmp_path), config=None)).labelled())


def test_a_column_that_is_no_text_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["x"], "text": [[1, 2]]}), tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(UserError, match="the column 'text' holds no text"):
        list(open_corpus(shipped("data", "fineweb_edu", repo=str(tmp_path), config=None)).labelled())


def test_a_set_of_the_hub_is_pinned() -> None:
    with pytest.raises(UserError, match=r"needs data\.revision"):
        open_corpus(shipped("data", "pg19", revision=None))


PREPARE = r"posbench data prepare {name} --out DIR[\s\S]*POSBENCH_DATA=DIR"


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("variable", ["HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_set_that_is_not_to_be_asked_for_says_how_to_prepare_it(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DATA-1, with either offline variable set: nothing is asked of the network."""
    if variable == "HF_DATASETS_OFFLINE":
        monkeypatch.setenv(variable, "1")
    else:  # read once, when the library is imported
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=f"'{name}' .*OFFLINE is set\n.*{PREPARE.format(name=name)}"):
        list(open_corpus(shipped("data", name)).labelled())


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", [*LAYOUTS, "enwik8"])
def test_a_prepared_set_is_found_without_a_question(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA-1: what was prepared with a network is found under the same name without one, offline variables or not."""
    data, text = shipped("data", name), [(split, Document(split, "text")) for split in ("train", "validation", "test")]
    with monkeypatch.context() as online:
        online.setattr(type(open_corpus(data)), "read", lambda self: iter(text))
        made = prepare(data, shipped("tokenizer", "bytes"), root=tmp_path)
    for value in ("0", "1"):
        monkeypatch.setenv("HF_DATASETS_OFFLINE", value)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", value == "1")
        assert prepare(data, shipped("tokenizer", "bytes"), root=tmp_path).path == made.path


@pytest.mark.usefixtures("no_network")
def test_a_text_of_ones_own_never_needs_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA-1: one file of each kind, read through `datasets`, with the offline variable and without."""
    (tmp_path / "a.txt").write_text("a")
    jsonl(tmp_path / "b.jsonl", {"text": "b"})
    pq.write_table(pa.table({"text": ["c"]}), tmp_path / "c.parquet")
    for value in ("0", "1"):
        monkeypatch.setenv("HF_DATASETS_OFFLINE", value)
        corpus = open_corpus(shipped("data", "files", test=str(tmp_path)))
        assert [document.text for document in corpus.documents("test")] == ["a", "b", "c"]


def test_a_full_disk_is_no_lack_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: hub.Hub, split: str) -> Iterator[tuple[str, str]]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cache/part")
        yield

    monkeypatch.setattr(hub.Hub, "_asker", lambda self: lambda: None)
    monkeypatch.setattr(hub.Hub, "_rows", full)
    with pytest.raises(UserError, match=r"^The text of 'pg19' cannot be read: cache/part: No space left on device\.$"):
        list(open_corpus(shipped("data", "pg19")).labelled())


def test_an_address_that_refuses_says_how_to_prepare_it() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    corpus = open_corpus(shipped("data", "enwik8", url=f"http://127.0.0.1:{port}/enwik8.zip"))
    with pytest.raises(UserError, match=f"'enwik8' .*refused.*\n.*{PREPARE.format(name='enwik8')}"):
        list(corpus.labelled())


def test_a_network_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` alone tries for half a minute; a name server out of reach blocks for as long."""
    never = threading.Event()
    monkeypatch.setattr(hub, "PATIENCE", 0.01)
    monkeypatch.setattr(hub.Hub, "_asker", lambda self: never.wait)
    with pytest.raises(UserError, match=r"'pg19' .*no answer within"):
        list(open_corpus(shipped("data", "pg19")).labelled())
    never.set()
    assert hub.PATIENCE < 10


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which a local server gives it out."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_packed_text_at_an_address_is_fetched_checked_and_cut(served: tuple[Path, str]) -> None:
    folder, address = served
    text = "A line é\n" * 200
    with zipfile.ZipFile(folder / "text.zip", "w") as packed:
        packed.writestr("text", text)
    data = shipped("data", "enwik8", url=f"{address}/text.zip", digest=hashlib.sha256(text.encode()).hexdigest())
    corpus = open_corpus(data)
    documents = list(corpus.labelled())
    assert [(split, len(document.text.encode())) for split, document in documents] == [
        ("train", 1800),
        ("validation", 100),
        ("test", 100),
    ]
    assert "".join(document.text for _, document in documents) == text
    with pytest.raises(UserError, match=r"text\.zip is not the text this posbench knows"):
        list(open_corpus(data | {"digest": "0" * 64}).labelled())


# --- A hub of our own --------------------------------------------------------------------------------------------

SERVER = """
import hashlib, http.server, json, os, sys, threading
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse

folder, repo, revision = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

class Hub(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def send(self, code, content=b"", **headers):
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
    def send_json(self, value):
        self.send(200, json.dumps(value).encode(), Content_Type="application/json")
    def do_GET(self):
        asked = urlparse(self.path)
        path = unquote(asked.path)
        tree, file = f"/api/datasets/{repo}/tree/{revision}", f"/datasets/{repo}/resolve/{revision}/"
        if path == f"/api/datasets/{repo}/revision/{revision}":
            self.send_json({"_id": "1", "id": repo, "sha": revision, "private": False, "tags": [], "siblings": []})
        elif path.startswith(tree):
            found = sorted((folder / path[len(tree):].strip("/")).iterdir())
            self.send_json([
                {"type": "directory" if each.is_dir() else "file", "oid": "1" * 40, "size": each.stat().st_size,
                 "path": each.relative_to(folder).as_posix()} for each in found
            ])
        elif path.startswith(file) and (folder / path[len(file):]).is_file():
            content, part = (folder / path[len(file):]).read_bytes(), self.headers.get("Range")
            known = {"ETag": hashlib.sha1(content).hexdigest(), "X_Repo_Commit": revision}
            if part:
                first, last = (int(edge) for edge in part.removeprefix("bytes=").split("-"))
                known["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
                content = content[first:last + 1]
            self.send(206 if part else 200, content, **known)
        else:
            self.send(404, X_Error_Code="EntryNotFound")
    do_HEAD = do_GET

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"

from posbench.data.corpus import open_corpus
corpus = open_corpus(json.loads(sys.argv[4]))
print([(split, document.name) for split, document in corpus.labelled()])
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_set_is_streamed_from_a_hub(tmp_path: Path) -> None:
    """The installed `datasets` against a server that answers as the hub does: nothing but parquet and README is asked.

    A process of its own, since the hub's address is read once, at import.
    """
    data = shipped("data", "wikitext103")
    arguments = [str(wikitext103(tmp_path / "set")), data["repo"], data["revision"], json.dumps(data)]
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", SERVER, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "[('train', 'One'), ('validation', 'Valid'), ('test', 'Test')]\n", done.stderr
