"""What a user's file says is what was meant, or it is refused by line and name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from posbench import entries
from posbench.errors import UserError
from posbench.search_path import files


def read(folder: Path, text: str) -> object:
    file = folder / "mine.yaml"
    file.write_bytes(text.encode())
    return entries.read_yaml(file, "The study")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0100", "0100"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("0b_", "0b_"),
        ("1__0", "1__0"),
        ("2026-13-45", "2026-13-45"),
        ("2026-01-02", "2026-01-02"),
        ("=", "="),
        ("1_000", 1000),
        ("0", 0),
        ("-3", -3),
        ("+4", 4),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5e-2", -0.015),
        (".inf", float("inf")),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("yes", True),
        ("yesterday", "yesterday"),
    ],
)
def test_numbers_are_decimal_and_what_is_none_is_text(tmp_path: Path, text: str, value: object):
    """PyYAML reads 0100 as 64 and 1:30 as 90, and fails at 0b_ and at dates that there are not."""
    assert read(tmp_path, f"key: {text}") == {"key": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: 1\nevals: 2\nruns: 3", "Line 3, column 1: the key 'runs' is there twice"),
        ("evals:\n  flat: {a: 1}\n  'flat': {a: 2}", "Line 3, column 3: the key 'flat' is there twice"),
        ("runs:\n  10: a\n  1_0: b", "Line 3, column 3: the key '1_0' is there twice"),
        ("lengths: &l [32, *l]", "Line 1, column 18: \\*l stands within itself"),
        ("runs: &r {a: {b: *r}}", "\\*r stands within itself"),
        ("runs: " + "[" * 3000, "more than 32 lists or mappings in one another"),
        ("runs: " + "{a: " * 3000, "more than 32 lists or mappings in one another"),
        ("lengths: [!!int '0100']", "the tag tag:yaml.org,2002:int has no meaning here"),
        ("lengths: !!timestamp x", "the tag .* has no meaning here"),
        ('title: "\\ud83d"', "half a character"),
        ('title: "\\e[31mred"', "a control character"),
        ("targets: 1" + "0" * 5000, "Exceeds the limit"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: [1", "Line 1, column 6: expected"),
        ("a: \0", "unacceptable character"),
    ],
)
def test_what_would_be_lost_or_never_end_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(UserError, match=rf"^The study .*mine\.yaml cannot be read\.\n(.*){message}"):
        read(tmp_path, text)


def test_a_file_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="nowhere"):
        entries.read_yaml(tmp_path / "nowhere.yaml", "The study")
    with pytest.raises(UserError, match="null byte"):
        entries.read_yaml(tmp_path / "a\0.yaml", "The study")


def test_an_alias_and_a_merge_are_no_second_key(tmp_path: Path):
    text = "base: &b {x: 1, y: 2}\nmore: {<<: *b, x: 3}\ntwice: [*b, *b]"
    base = {"x": 1, "y": 2}
    assert read(tmp_path, text) == {"base": base, "more": {"x": 3, "y": 2}, "twice": [base, base]}


@pytest.mark.parametrize("name", files("study"))
def test_shipped_studies_say_what_any_reader_of_yaml_finds_in_them(name: str):
    file = files("study")[name]
    assert entries.read_yaml(file, "The study") == yaml.safe_load(file.read_text())


def test_the_mark_that_some_editors_begin_a_file_with_is_none_of_its_text(tmp_path: Path):
    assert read(tmp_path, "\ufeffa: 1") == {"a": 1}
    file = tmp_path / "list.txt"
    file.write_bytes(b"\xef\xbb\xbfencoding=none")
    assert entries.read_text(file) == "encoding=none"
