"""The table and its renderer: nothing measured is cut, rounded away or lost on the way to the reader."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from posbench.errors import UserError
from posbench.report.tables import FORMATS, Cell, Column, Section, Table, cell, html, render, show, table

LENGTHS = (128, 256, 512, 1024, 2048, 4096)


@pytest.fixture
def wide() -> Table:
    """Seven columns of eleven characters: 4 + 6 x (11 + 2) = 82 wide, more than 80 and more than 60."""
    columns = [Column("encoding", "encoding", right=False), *(Column(str(n), str(n)) for n in LENGTHS)]
    rows = [[cell(name), *(cell(40 + i / 7, f"{40 + i / 7:.2f} ±0.52") for i in range(6))] for name in ("rope", "[t5]")]
    return Table("Perplexity", columns, [Section("", rows)], ["n/a: see the notes"])


@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_piped_table_shows_every_number_in_full(wide, columns, monkeypatch, capsys):
    """OUT-2. COLUMNS is what rich and shutil would believe; a pipe has no width, so each row stays one line."""
    monkeypatch.setenv("COLUMNS", columns)
    show(wide)
    lines = capsys.readouterr().out.splitlines()
    assert [re.findall(r"\d+\.\d\d ±0\.52", line) for line in lines if line.startswith("rope")] == [
        ["40.00 ±0.52", "40.14 ±0.52", "40.29 ±0.52", "40.43 ±0.52", "40.57 ±0.52", "40.71 ±0.52"]
    ]
    assert any(line.startswith("[t5]") for line in lines), "square brackets are text, not markup"


@pytest.mark.parametrize("width", [60, 25, 1])
def test_a_narrow_terminal_gets_bands_of_columns_with_whole_numbers(wide, width):
    """Every band begins with the encoding; a band of one number may exceed the width, a number is never cut."""
    text = render(wide, width=width)
    bands = [line for line in text.splitlines() if line.startswith("rope")]
    numbers = [number for band in bands for number in re.findall(r"\d+\.\d\d ±0\.52", band)]
    assert len(numbers) == 6
    # First column 8 + gap 2 + 11 = 21; each further column adds 13.
    assert len(bands) == {60: 2, 25: 6, 1: 6}[width]
    if width >= 25:
        assert max(map(len, text.splitlines())) <= width


def test_json_and_csv_hold_the_unrounded_value_of_every_printed_number(wide):
    rows = json.loads(render(wide, "json"))[0]["rows"]
    lines = list(csv.DictReader(io.StringIO(render(wide, "csv"))))
    assert rows[0]["256"] == 40 + 1 / 7
    assert float(lines[0]["256"]) == 40 + 1 / 7
    assert [row["encoding"] for row in rows] == [line["encoding"] for line in lines] == ["rope", "[t5]"]


def test_a_list_is_no_list_of_python_in_csv():
    one = Table("t", [Column("runs", "runs")], [], records=[{"runs": ["a", "b"]}])
    assert render(one, "csv") == "runs\na b\n"
    assert json.loads(render(one, "json"))[0]["rows"] == [{"runs": ["a", "b"]}]


def test_records_take_the_place_of_cells_in_csv_and_json(wide):
    wide.records = [{"encoding": "rope", "length": 128, "nats": 3.123456789012345}]
    assert json.loads(render(wide, "json"))[0]["rows"] == wide.records
    assert render(wide, "csv") == "encoding,length,nats\nrope,128,3.123456789012345\n"


def test_several_tables_make_one_csv_with_one_header():
    first = table("A", [Column("x", "x")], [{"x": 1}])
    second = table("B", [Column("y", "y")], [{"y": 2}])
    assert render([first, second], "csv") == "table,x,y\nA,1,\nB,,2\n"


def test_json_is_strict_json_also_for_infinite_values():
    text = render(table("A", [Column("x", "x")], [{"x": float("inf")}, {"x": float("nan")}]), "json")
    assert [row["x"] for row in json.loads(text, parse_constant=pytest.fail)[0]["rows"]] == [None, None]


def test_markdown_is_one_table_a_headed_section_and_escapes_bars():
    columns = [Column("a", "a", right=False), Column("b", "b")]
    sections = [Section("first", [[cell("x|y"), cell(1)]]), Section("", [[cell("z"), cell(2)]])]
    assert render(Table("T", columns, sections, ["note"]), "md") == (
        "**T**\n\n*first*\n\n| a | b |\n| :--- | ---: |\n| x\\|y | 1 |\n| z | 2 |\n\n- note\n"
    )


def test_latex_escapes_what_latex_would_read():
    text = render(table("50 % of a_b", [Column("a", "a", right=False)], [{"a": "1.0 ±0.1 & more"}]), "latex")
    assert text.startswith("% needs \\usepackage{booktabs}\n\\begin{table}\n")
    assert r"\caption{50 \% of a\_b}" in text
    assert r"1.0 $\pm$0.1 \& more \\" in text
    assert text.count(r"\begin") == text.count(r"\end") == 2


def test_whole_numbers_have_their_thousands_separated_and_missing_ones_a_dash():
    text = render(table("T", [Column("n", "n"), Column("m", "m")], [{"n": 98304}, {"n": 1, "m": 0.123456}]))
    assert "98,304  -" in re.sub(" +-", "  -", text)
    assert "0.1235" in text


def test_an_unknown_format_names_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'json'"):
        render([], "jsn")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_takes_an_empty_table(format):
    assert isinstance(render(table("nothing yet", [Column("a", "a")], []), format), str)


def best_of_two(label: str = "alibi") -> Table:
    columns = [Column("encoding", "encoding", right=False), Column("128", "128")]
    rows = [[cell(label), Cell(40.0, "40.00*", best=True, source="1a2b3c4d")], [cell("rope"), Cell(41.0, "41.00 ")]]
    return Table("Perplexity", columns, [Section("", rows)])


def test_the_best_of_a_column_is_bold_where_a_form_has_that():
    """In plain text nothing is added, so that a number stays a number."""
    one = best_of_two()
    assert "| alibi | **40.00*** |" in render(one, "md")
    assert r"alibi & \textbf{40.00*} \\" in render(one, "latex")
    assert "\x1b[1m40.00*\x1b[0m" in render(one, bold=True)
    assert all("Bold: the best of its column." in text for text in (render(one, "md"), render(one, bold=True)))
    assert not re.search(r"Bold|\x1b|\*\*", render(one))


def test_a_table_of_a_page_escapes_what_it_holds_and_leads_to_its_rows():
    text = html(best_of_two("<script>alert(1)</script>"), rows={"1a2b3c4d"})
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert '<a href="#row-1a2b3c4d"><strong>40.00*</strong></a>' in text
    assert "<a " not in html(best_of_two())
