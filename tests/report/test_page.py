"""The page of a report: it needs nothing beside it, every number is in it and leads to where it is from."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from made import arrays, claim, row

from posbench import files, records
from posbench.errors import UserError
from posbench.records import digest
from posbench.report import claims
from posbench.report.basis import basis, recorded
from posbench.report.lengths import length_tables
from posbench.report.page import Report, content, html, write


class Seen(HTMLParser):
    """The addresses, ids and texts of a page, and whether its elements are closed in order."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def page(rows, drawn=(), **more) -> str:
    report = Report("A study", rows, "posbench report a", **more)
    return html(report, content(report), drawn)


def two(make):
    return [make("alibi", 128, 43.4), make("alibi", 256, 42.4), make("rope", 128, 45.0), make("rope", 256, None)]


def test_the_page_is_whole_and_takes_nothing_from_anywhere(make, tmp_path):
    """An address is only ever a link that a reader may follow; there is nothing that a browser fetches by itself."""
    file = write(Report("A study", two(make), "posbench report a"), tmp_path / "out")
    text = file.read_text()
    seen = Seen(text)
    assert seen.open == []
    assert not re.search(r"<(script|link|iframe|img|object|embed)\b|@import|url\((?!#)", text)
    fetching = [value for tag, name, value in seen.attributes if name in ("src", "srcset", "action") or tag == "use"]
    assert not [value for value in fetching if "//" in value]
    links = [value for tag, name, value in seen.attributes if (tag, name) == ("a", "href")]
    beside = [link for link in links if not link.startswith(("#", "http"))]
    assert beside
    assert [link for link in beside if not (file.parent / link).is_file()] == []
    ids = [value for _, name, value in seen.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    inside = [link[1:] for link in links if link.startswith("#")]
    inside += re.findall(r"url\(#([^)]+)\)", text)
    assert [target for target in inside if target not in ids] == []


def test_the_same_rows_give_the_same_page_and_tables_beside_it(make, tmp_path):
    rows = [make("alibi", 128, 43.4)]
    first, second = (write(Report("A study", rows, "x"), tmp_path / name) for name in "ab")
    files = sorted(file.relative_to(first.parent) for file in first.parent.rglob("*") if file.is_file())
    assert {"tables.md", "tables.csv", "tables.json", "tables.tex", "index.html"} <= {str(file) for file in files}
    for file in files:
        assert (first.parent / file).read_bytes() == (second.parent / file).read_bytes(), file


def test_images_and_digits_are_as_asked_for(make, tmp_path):
    """ln 43.4 = 3.770459...; a figure that is not there has no link."""
    rows = [make("alibi", 128, 43.4), make("alibi", 256, 43.4)]
    file = write(Report("A study", rows, "x", images=["svg"], digits=3), tmp_path)
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg"}
    assert ".png" not in file.read_text()
    assert '"loss": 3.77,' in (tmp_path / "tables.json").read_text()
    assert ",3.77," in (tmp_path / "tables.csv").read_text()


def test_every_number_of_the_table_is_in_the_page_and_leads_to_its_row(make):
    rows = two(make)
    text = page(rows)
    (table,) = length_tables(rows)
    for section in table.sections:
        for line in section.rows:
            for entry in line:
                assert entry.text.strip() in text
    for one in rows:
        assert f'id="row-{digest(one)[:8]}"' in text
        assert f'href="#row-{digest(one)[:8]}"' in text
        assert f'href="#run-{one.run}"' in text
    assert "n/a: it does not fit" in text


def test_a_row_leads_to_its_run_with_command_and_hash(make, tmp_path):
    record = {key: {} for key in ("identity", "config", "decisions")} | {"format": 2, "ids_digest": "", "steps": 1}
    record |= {"corpus": {"name": "", "fingerprint": ""}, "tokenizer": {"fingerprint": "", "vocab_size": 1}}
    record |= {"versions": {"torch": "2.13.0"}}
    run = tmp_path / "rope-L512-nano-s1-0a1b2c3d"
    behind = arrays([256.0])
    kept = records.write(run / "rows", row(behind, setup="5e", recipe="a", heads=4, head_dim=32), behind)
    (run / "run.json").write_text(
        records.json.dumps(record | {"hash": "0a1b2c3d", "command": "posbench train encoding=rope seed=1"})
    )
    (run / "status.json").write_text('{"state": "done", "step": 1, "epochs": 1.234}')
    text = page([kept])
    assert "<dt>epochs</dt><dd>1.23</dd>" in text
    assert "posbench train encoding=rope seed=1" in text
    assert "<dt>hash</dt><dd>0a1b2c3d</dd>" in text


def test_what_a_name_holds_is_text(make):
    hostile = "<script>alert(1)</script>\"'&"
    text = page([make(hostile, 128, 40.0), make(hostile, 256, 41.0), make("alibi", 128, 40.0, reason=hostile)])
    assert "<script" not in text
    assert "alert(1)" in "".join(Seen(text).texts)


def test_a_figure_with_a_hostile_name_is_whole(make, tmp_path):
    rows = [make("</svg><script>alert(1)</script>", length, 40.0) for length in (128, 256)]
    text = write(Report("<b>", rows, "x"), tmp_path / "out").read_text()
    assert "<script" not in text
    assert Seen(text).open == []


def test_claims_stand_with_their_verdict_their_source_and_their_rows(make):
    rows = two(make)
    text = page(rows, claims=claims.parse([claim(primary=True)]))
    assert '<span class="verdict seen">seen</span> ALiBi at 2 L' in text
    assert "Press et al. 2022, Table 5" in text
    assert f'<a href="#row-{digest(rows[1])[:8]}">alibi-L128-s1 at 256</a>' in text


def test_what_the_words_of_a_verdict_mean_stands_before_the_first(make):
    text = page(two(make), claims=claims.parse([claim(primary=True)]))
    section = text[text.index('id="claims"') :]
    assert section.index('<ul class="notes">') < section.index('<details class="claim"')


def test_what_the_numbers_rest_on_is_told_from_the_rows(make):
    """Two seeds of one recipe and one of another; the longest reading is of 5 documents."""
    rows = [make("alibi", 128, 40.0, seed=seed) for seed in (1, 2)] + [make("rope", 256, 41.0, train_length=256)]
    found = basis(rows, {row.run: recorded(row) for row in rows})
    assert found["seeds"] == "1 to 2 of each recipe"
    assert found["models"] == "nano, 4 heads x 32"
    assert found["trained at"] == "128 to 256 tokens"
    assert found["documents behind a number"] == "5"
    assert found["targets behind a number"] == "98,304"
    assert found["read at"] == "128 to 256 tokens at once"
    assert "epochs" not in found
    assert "<dt>training tokens</dt><dd>1,000,000</dd>" in page(rows)


def test_references_alone_rest_on_no_run(reference):
    assert basis([reference("bigram", 128, 60.0)], {}) == {}
    assert 'id="basis"' not in page([reference("bigram", 128, 60.0)])


def test_the_commands_that_measured_stand_beside_that_of_the_page(make):
    text = page([make("alibi", 128, 40.0)], measured_by=["posbench study run a", "posbench study run a seed=2"])
    assert "<pre>posbench study run a\nposbench study run a seed=2</pre>" in text


def test_what_each_encoding_costs_is_a_table_of_the_page(make):
    """Memory in MiB of 2^20 bytes; `none` is held against nothing."""
    shared = {"task": "train", "length": 128, "windows": 32, "reason": None, "device": "cpu"}
    shared |= {
        "processor": "a processor",
        "threads": 2,
        "model": "nano: 4 x 128",
        "command": "posbench bench encodings",
        "status": "ok",
    }
    shared |= {"variant": "eager", "kernel": "causal", "commit": "0a1b2c3d", "tokens_per_second": 9000.0}
    shared |= {"against": None, "ratio": None, "ratio_low": None, "ratio_high": None, "extra_bytes": 2**28}
    rope = {"encoding": "rope", "ratio": 0.9, "ratio_low": 0.8, "ratio_high": 1.0, "extra_bytes": 2**29}
    once = {"encoding": "alibi", "ratio": 0.7}  # of a single round, which has no interval
    absent = {"encoding": "t5", "status": "n/a", "reason": "out of memory", "tokens_per_second": None, "variant": None}
    speeds = [shared | one for one in ({"encoding": "none"}, rope, once, absent)]
    text = page([make("rope", 128, 40.0)], bench=speeds)
    section = text[text.index('id="tables-cost"') :]
    assert "training at 128, 32 windows a step" in section
    assert ">0.900 [0.800, 1.000]<" in section
    assert (">256<" in section, ">512<" in section) == (True, True)
    assert ">0.700<" in section
    assert ">n/a: out of memory<" in section
    assert ">eager, causal<" in section
    assert "Commit 0a1b2c3d." in section


def test_what_must_be_known_first_stands_at_the_top(make):
    text = page([make("alibi", 128, 40.0)], note="Its numbers mean nothing.")
    assert text.index("Its numbers mean nothing.") < text.index("<main>")


def test_both_grounds_have_their_colours(make):
    text = page([make("alibi", 128, 40.0)])
    assert "prefers-color-scheme: dark" in text
    assert text.count("--c0: ") == 3  # light, dark, and light again in print


@pytest.mark.parametrize("name", ["tables.csv", "figures/perplexity.svg", "figures/perplexity.png", "index.html"])
def test_what_no_report_has_written_is_not_written_over(make, tmp_path, name):
    report = Report("A study", two(make), "x")
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    (out / "figures" / "other.svg").parent.mkdir(exist_ok=True)
    (out / "figures" / "other.svg").write_text("mine, and of no name that is written")
    with pytest.raises(UserError, match=rf"out/{name} was not written by posbench report\.\nName another folder"):
        write(report, out)
    assert (out / name).read_text() == "mine"
    assert len([file for file in out.rglob("*") if file.is_file()]) == 2
    (out / name).unlink()
    write(report, out)
    (out / name).write_bytes((out / name).read_bytes() + b" ")
    write(report, out)  # beside a page of its own all is its own
    assert not (out / name).read_bytes().endswith(b" ")


def test_a_report_that_was_killed_is_written_anew(make, tmp_path, monkeypatch):
    """What it has written until then is known by its page."""
    report = Report("A study", [make("alibi", 128, 40.0)], "x")
    write_bytes = files.write_bytes

    def killed(path, content):
        if path.name == "tables.tex":
            raise KeyboardInterrupt
        write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            write(report, tmp_path)
    assert (tmp_path / "tables.csv").is_file()
    write(report, tmp_path)
    assert (tmp_path / "tables.tex").is_file()


@pytest.mark.parametrize("name", ["tables.csv", "figures/perplexity.svg", "index.html"])
def test_a_folder_in_the_place_of_a_file_is_named_before_anything_is_written(make, tmp_path, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(UserError, match=rf"out/{name} is a folder, and a file of the report goes there"):
        write(Report("A study", two(make), "x"), tmp_path / "out")
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file()]


def test_a_folder_that_is_a_file_is_refused(make, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match="is a file"):
        write(Report("A study", [make("alibi", 128, 40.0)], "x"), tmp_path / "out")
