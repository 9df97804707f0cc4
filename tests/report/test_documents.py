"""The loss of each document, from the blocks behind a row."""

from __future__ import annotations

import json

import pytest
from made import arrays, row

from posbench import records
from posbench.data.tokens import FORMAT
from posbench.report.documents import alike, document_tables, names
from posbench.report.parts import parts


def kept(folder, nats, document, **own):
    behind = arrays(nats, document=document)
    return records.write(folder, row(behind, setup="5e", heads=4, head_dim=32, **own), behind)


def test_each_document_has_its_own_mean(tmp_path):
    """128 and 384 nats of 256 targets are 2 nats a token, 128 of 128 one."""
    one = kept(tmp_path, [128.0, 384.0, 128.0], [0, 0, 4])
    (part,) = parts([one])
    (table,) = document_tables(part, {0: "Polk 1845"})
    assert [(entry["document"], entry["targets"], entry["loss"]) for entry in table.records] == [
        ("Polk 1845", 256, 2.0),
        ("document 4", 128, 1.0),
    ]


def test_a_document_has_the_error_of_its_own_blocks_and_over_seeds_theirs(tmp_path):
    """1 and 3 nats a token say how far 2 is known, one block says nothing; 2 and 4 of two seeds are sqrt(2) apart."""
    one = kept(tmp_path, [128.0, 384.0, 128.0], [0, 0, 4])
    first, second = document_tables(parts([one])[0], {})[0].records
    assert first["loss_error"] > 0.5
    assert second["loss_error"] is None
    two = [
        kept(tmp_path, [256.0, 128.0], [0, 4], recipe="r"),
        kept(tmp_path, [512.0, 128.0], [0, 4], recipe="r", seed=2, run_hash="2"),
    ]
    first, second = document_tables(parts(two)[0], {})[0].records
    assert (first["loss"], first["loss_error"], first["seeds"]) == (3.0, pytest.approx(2**0.5), 2)
    assert second["loss_error"] == 0


def test_a_single_document_needs_no_table(tmp_path):
    (part,) = parts([kept(tmp_path, [128.0, 128.0], [0, 0])])
    assert document_tables(part, {}) == []


def test_what_cannot_be_read_at_the_longest_length_stands_at_its_own(tmp_path):
    """Rope trained at 512 is read at 512 and 1,024; learned positions end at 512."""
    rope = [kept(tmp_path / str(n), [128.0, 256.0], [0, 4], length=n, recipe="r") for n in (512, 1024)]
    learned = kept(tmp_path / "l", [128.0, 384.0], [0, 4], encoding="learned", recipe="l", run_hash="2")
    at_home, longest = document_tables(parts([*rope, learned])[0], {})
    assert {entry["label"] for entry in at_home.records} == {"rope", "learned"}
    assert {(entry["label"], entry["length"]) for entry in longest.records} == {("rope", 1024)}


@pytest.mark.parametrize(("corpus", "found"), [("c" * 64, {0: "Polk", 1: "Taft"}), ("d" * 64, {})])
def test_names_come_from_prepared_text_of_the_same_corpus_where_there_is_any(tmp_path, monkeypatch, corpus, found):
    """A folder that is none of ours, or damaged, is passed over."""
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path))
    for name, header in {"a": "{", "b": json.dumps({"kind": "posbench tokens", "format": FORMAT})}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "header.json").write_text(header)
    prepared = {"kind": "posbench tokens", "format": FORMAT, "corpus": {"fingerprint": corpus}}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "header.json").write_text(json.dumps(prepared))
    (tmp_path / "c" / "test.names.json").write_text('["Polk", "Taft"]')
    assert names(row(corpus_hash="c" * 64)) == found


def prepared(folder, settings, named):
    folder.mkdir()
    corpus = {"fingerprint": "c" * 64, "data": settings}
    (folder / "header.json").write_text(json.dumps({"kind": "posbench tokens", "format": FORMAT, "corpus": corpus}))
    (folder / "test.names.json").write_text(json.dumps(named))


def test_what_one_pattern_of_the_split_took_in_belongs_together(tmp_path, monkeypatch):
    """The messages of a president; what stands by itself is alone, and so is all that has no name."""
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path))
    one = row(corpus_hash="c" * 64)
    assert alike(one, [0, 1]) == {"document 0": [0], "document 1": [1]}
    prepared(
        tmp_path / "a",
        {"test": ["*-Taft-*", "*-Polk-*"]},
        ["1845-Polk-1", "1846-Polk-1", "1909-Taft-1", "homer/Odyssey"],
    )
    assert alike(one, [3, 2, 1, 0]) == {"Polk": [0, 1], "Taft": [2], "homer/Odyssey": [3]}


def test_a_corpus_of_several_has_the_patterns_of_each(tmp_path, monkeypatch):
    """sotu_books: Taft and Polk of sotu, each book by itself."""
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path))
    prepared(tmp_path / "a", {"parts": ["sotu", "books"]}, ["1845-Polk-1", "1848-Polk-1", "homer/Odyssey"])
    assert alike(row(corpus_hash="c" * 64), [0, 1, 2]) == {"Polk": [0, 1], "homer/Odyssey": [2]}
