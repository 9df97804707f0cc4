"""The paper's numbers, digit for digit, and their place beside ours."""

from __future__ import annotations

import pytest

from posbench.report.parts import parts
from posbench.report.published import beside, curve, find, printed
from posbench.report.tables import render


def test_alibi_trained_at_128_is_what_table_5_prints():
    """23.98, 21.70, 20.67, 20.36, 20.31 at 1, 2, 4, 8, 16 x."""
    found = curve("Table 5", "alibi", 128, [1, 2, 4, 8, 16])
    assert [entry.text for entry in found.values()] == ["23.98", "21.70", "20.67", "20.36", "20.31"]


@pytest.mark.parametrize(
    ("encoding", "values"),
    [
        ("sinusoidal", ["20.05", "43.54", "132.41", "209.37", "305.65", "406.01"]),
        ("rope", ["20.07", "21.37", "31.58", "39.15", "54.98", "79.25"]),
        ("t5", ["19.65", "18.79", "20.41", "25.91", "43.08", "OOM"]),
    ],
)
def test_the_others_are_table_2_at_the_nearest_multiple_of_512(encoding, values):
    """512, 1012, 2512, 4512, 8512 and 15512 are the printed lengths nearest to 1, 2, 4, 8, 16, 32 x 512."""
    found = curve("Table 2", encoding, 512, [1, 2, 4, 8, 16, 32])
    assert [entry.length for entry in found.values()] == [512, 1012, 2512, 4512, 8512, 15512]
    assert [entry.text for entry in found.values()] == values


def test_a_multiple_with_nothing_printed_within_a_quarter_is_left_out():
    assert 64 not in curve("Table 2", "rope", 512, [64])
    assert curve("Table 5", "alibi", 128, [24])[24].length == 3072


def test_every_number_names_its_table_and_the_papers_address():
    papers = {
        "press": ("Press et al. 2022", "2108.12409v2"),
        "haviv": ("Haviv et al. 2022", "2203.16634"),
        "wang": ("Wang et al. 2024", "2404.12224"),
        "chen": ("Chen et al. 2023", "2306.15595"),
    }
    for entry in printed():
        name, number = papers[entry.paper]
        assert entry.source.startswith(f"{name}, {entry.table}, https://arxiv.org/abs/{number} (")
        assert entry.value is None or entry.value > 6
        assert entry.model


def test_a_cell_is_one_papers():
    """Three of them have a Table 1 or 2 of their own."""
    cells = [(e.paper, e.table, e.encoding, e.train_length, e.length) for e in printed()]
    assert len(set(cells)) == len(cells)
    assert find("Table 1", "none", 512, 512, paper="haviv").text == "20.97"
    assert find("Table 1", "rope+pi", 8192, 8192, paper="chen").text == "6.95"
    assert find("Table 2", "rope + yarn", 2048, 8192, paper="wang").text == "15.0"


def test_a_cell_the_paper_did_not_print_is_an_error():
    with pytest.raises(KeyError, match="no alibi trained at 128 and read at 129"):
        find("Table 5", "alibi", 128, 129)


def test_our_curves_stand_above_the_papers_as_ratios_and_marked(make):
    rows = [make("rope", 128, 40.0), make("rope", 256, 44.0), make("alibi", 128, 50.0), make("alibi", 256, 45.0)]
    text = render(beside(parts(rows)[0]))
    found = [" ".join(line.split()) for line in text.splitlines()]
    at = found.index("alibi these runs 128 1.000 0.900")
    assert found[at + 1 : at + 4] == [
        "alibi Table 5 128 1.000 0.905",
        "rope these runs 128 1.000 1.100",
        # 21.37 / 20.07, printed at 1012 = 1.98 x 512.
        "rope Table 2 512 1.000 1.065 (1.98 x)",
    ]
    assert "Only the ratios and the shape compare" in text


def test_encodings_the_paper_did_not_print_have_no_place_beside_it(make):
    assert beside(parts([make("none", 128, 60.0)])[0]) is None
