"""The README is held to what it says: its commands are run, its example encoding is trained, its names exist.

Each command has a smallest form here: what is added so that it takes a moment. A command without one fails, and so does
a form whose command is gone.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import PAGES, ROOT, TINY, anchors, block, commands

from posbench import cli
from posbench.search_path import choices

PAGE = ROOT / "README.md"
README = PAGE.read_text(encoding="utf-8")

SMALLEST = {
    "posbench train encoding=rope": TINY,
    "posbench eval --lengths 512,1024,4096": "--targets 4096",
    "posbench train encoding=alibi train.length=128 seed=2": TINY,
    "posbench train encoding=alibi model=micro --dry-run": TINY,
    "posbench train -m encoding=none,alibi seed=1,2,3": TINY,
    "posbench sweep encoding=none,alibi seed=1,2,3 workers=2": TINY,
    "posbench status": "",
    "posbench train --cfg job": "",
    "posbench eval rope-L512 --lengths 512,4096 --protocol same-targets": "--targets 64",
    "posbench eval rope-L512 --lengths 512,1024 --protocol sliding --stride 256": "--targets 2048",
    "posbench eval rope-L512 --lengths 512,4096 --on books": "--targets 4096",
    "posbench eval rope-L512 --lengths 1024,2048 --extension none,pi,ntk,yarn": "--targets 2048",
    "posbench train init_from=rope-L512 extension=pi train.length=2048 train.tokens=80_000": (
        "train.tokens=8192 train.compile=off train.threads=1 device=cpu"
    ),
    "posbench check alibi": "",
    "posbench table": "",
    "posbench table --format csv": "",
    "posbench table rope-L512 --by-position": "",
    "posbench table --against rope": "",
    "posbench plot": "",
    "posbench report": "",
    "posbench runs": "",
    "posbench show rope-L512": "",
    'posbench generate rope-L512 "My fellow citizens"': "--tokens 5",
    "posbench encodings": "",
    "posbench encodings t5": "",
    "posbench data": "",
    "posbench data prepare sotu": "tokenizer=bytes",
    "posbench doctor": "",
    "posbench train encoding=log encoding.strength=0.5 --config-dir my": TINY,
    "posbench train encoding=alibi data=books": TINY,
    "posbench train encoding=alibi data=files data.path=texts tokenizer=bytes": TINY.replace("tokenizer=bytes", ""),
}

BENCH = "bench/test_bench_commands.py, without processes of their own"

ELSEWHERE = {
    "bash scripts/reproduce.sh": "test_the_whole_comparison_in_its_smallest_form and test_scripts.py",
    "bash scripts/test.sh": "it runs this",
    "source .venv/bin/activate": "the scripts make it",
    'pip install -e ".[books]"': "test_the_extras_that_are_named_exist",
    'pip install -e ".[report]"': "test_the_extras_that_are_named_exist",
    "posbench report train_short_test_long": "test_the_whole_comparison_in_its_smallest_form",
    "posbench bench encodings model=nano train.length=128 --lengths 1024,8192": BENCH,
    "posbench bench peers model=nano train.length=128 --lengths 4096,8192": BENCH,
    "posbench bench time-to-loss train.length=128 train.tokens=800_000": BENCH,
    "posbench --install-completion": "it would change the shell of whoever runs the tests",
}


def test_every_command_has_a_smallest_form_and_every_form_a_command():
    """Those of docs/ are in test_pages.py."""
    written = {command for page in (PAGE, ROOT / "CONTRIBUTING.md") for command in commands(page)}
    assert written == SMALLEST.keys() | ELSEWHERE.keys()


@pytest.mark.slow
@pytest.mark.process
def test_the_commands_of_the_readme_run(place, capfd):
    """In the README's order and one folder: what a command reads is what those before it made."""
    for name in ("my/encoding/log.py", "my/encoding/log.yaml"):
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block(PAGE, name), encoding="utf-8")
    (place / "texts").mkdir()
    for number in range(4):
        (place / "texts" / f"{number}.txt").write_text(f"The {number} cats sat on the mat. " * 200, encoding="utf-8")
    for command in commands(PAGE):
        if command in ELSEWHERE:
            continue
        words = [*shlex.split(command)[1:], *SMALLEST[command].split()]
        status = cli.run(words)
        printed = capfd.readouterr()
        assert status == 0, f"{command}: {printed.err}"
        # What a command is for goes to stdout; preparing and a sweep have nothing to show.
        assert printed.out or words[0] in ("data", "train"), command

    (run,) = (place / "runs").glob("rope-L512-nano-s1-*")
    kept = re.search(r"## How results are kept\n\n```\n(.*?)```", README, re.S)
    assert kept
    names = re.findall(r"(?:rows/\*|\b[a-z]+)\.(?:jsonl?|yaml|safetensors|txt|npz)", kept[1])
    assert len(names) == 9
    assert [name for name in names if not any(run.glob(name))] == []

    code = re.search(r"From Python:\n\n```python\n(.*?)```", README, re.S)
    assert code
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code[1]], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "rope" in done.stdout


@pytest.mark.slow
def test_the_whole_comparison_in_its_smallest_form(place, capfd):
    """Its numbers mean nothing, and it has to say so."""
    assert cli.run(["reproduce", "--smoke"]) == 0
    printed = capfd.readouterr()
    assert "mean nothing" in printed.out
    for word in ("none", "sinusoidal", "learned", "rope", "alibi", "t5", "unigram", "bigram", "Table 5"):
        assert word in printed.out
    (page,) = re.findall(r"^Report: (.*)$", printed.err, re.M)
    assert "mean nothing" in Path(page).read_text()
    made = Path(page).read_bytes()
    assert cli.run(["report", "train_short_test_long", "--budget", "smoke"]) == 0
    assert capfd.readouterr().out.strip() == page
    assert Path(page).read_bytes() == made


def test_the_extras_that_are_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\.\[(\w+)\]", README)) <= extras.keys()


def test_every_corpus_and_tokenizer_is_in_the_readme():
    """A new YAML is a new thing to offer."""
    text = re.search(r"## Other text\n(.*?)\n## ", README, re.S)
    assert text
    assert [name for name in choices("data") if f"`{name}`" not in text[1]] == []
    assert [name for name in choices("tokenizer") if f"tokenizer={name}" not in text[1]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_is_named_exists(page):
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    paths = re.findall(r"`((?:posbench|configs|scripts|docs|tests)/[\w./-]+)(?:::\w+)?`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_test_named_in_the_docs_exists():
    """A footgun whose test was renamed away is guarded by nothing."""
    named = {pair for page in PAGES for pair in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())}
    assert len(named) > 20
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not (ROOT / file).is_file() or not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.M)
    ]
    assert missing == []
