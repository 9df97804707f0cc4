"""The pages of docs/ are held to what they say: what is generated is current, commands run, names exist."""

import csv
import re
import shlex

import pytest
from pages import ROOT, TINY, block, commands

from posbench import cli, cluster
from posbench.check.properties import PROPERTIES
from posbench.compose import combinations, compose
from posbench.encodings.base import HOOKS, Encoding
from posbench.report import catalogue

DOCS = ROOT / "docs"
OWN = DOCS / "add-an-encoding.md"
SWEEPS = DOCS / "sweeps.md"
FOOTGUNS = (DOCS / "footguns.md").read_text(encoding="utf-8")

SMALLEST = {
    "posbench check my/encoding/root.py:Root": "",
    "posbench encodings root --config-dir my": "",
    "posbench train -m encoding=root,alibi,none train.length=128 train.tokens=200000 --config-dir my": TINY,
    "posbench eval --lengths 128,512,2048 --targets 16384": "",
    "posbench eval --lengths 128,512,2048 --protocol same-targets": "--targets 64",
    "posbench table": "",
    "posbench check capped --config-dir my": "",
}
"""The commands of the page on one's own encoding, with what is added so that they take a moment."""


SEVERAL = {
    "posbench sweep encoding=rope,alibi 'seed=range(1,3)' train.length=128": TINY,
    "posbench status": "",
    "posbench status --format json": "",
    "posbench sweep encoding=rope,alibi seed=3 train.length=128 on_error=stop": TINY,
    "posbench sweep encoding=rope,alibi seed=4 train.length=128 on_error=retry=2": TINY,
    "posbench study run mine.yaml": TINY,
    "posbench study run mine.yaml --budget long device=cpu": TINY.replace("device=cpu", ""),
    "posbench status mine.yaml": TINY,
    "posbench rm none-L64 --yes": "",
    "posbench sweep encoding=rope,alibi seed=5 train.length=128 workers=2": TINY,
    "posbench study run mine.yaml workers=2": TINY,
    "posbench train encoding=rope seed=7 train.length=128 nproc=2": TINY,
    "posbench train encoding=alibi train.length=128 seed=6": TINY,
}
"""Those of the page on sweeps. The first stands there twice."""

ELSEWHERE = {
    "pip install 'posbench[slurm]'": "the tests install nothing",
    "posbench sweep encoding=rope,alibi seed=1,2,3 hydra/launcher=slurm hydra.launcher.partition=gpu "
    "hydra.launcher.gpus_per_node=1": "needs a Slurm with GPUs; tests/cluster/test_on_slurm.py has sweeps on another",
    "posbench study run mine.yaml hydra/launcher=slurm hydra.launcher.timeout_min=60 hydra.launcher.cpus_per_task=8": (
        "needs a Slurm; tests/cluster/test_on_slurm.py has a study on one"
    ),
    "pip install 'posbench[ray]'": "the tests install nothing",
    "posbench sweep encoding=rope,alibi seed=1,2,3 hydra/launcher=ray": "needs Ray: tests/cluster/test_on_ray.py",
    "posbench sweep encoding=rope,alibi seed=1,2,3 hydra/launcher=ray hydra.launcher.init.address=auto "
    "hydra.launcher.remote.num_gpus=1": "needs a Ray that is there, with GPUs",
    "posbench train encoding=rope tracker=tensorboard": "needs tensorboard; stand-ins are in tests/test_trackers.py",
    "posbench sweep encoding=rope,alibi seed=1,2,3 tracker=trackio": "needs trackio",
    "posbench train encoding=rope tracker=wandb tracker.mode=online": "needs wandb, and an account",
}
"""Those of it that cannot be run here, and why."""


@pytest.fixture(scope="module")
def faults():
    """Of the small broken encodings: which property finds which."""
    with (ROOT / "tests" / "check" / "broken.csv").open(newline="") as file:
        return {row.pop("encoding"): row for row in csv.DictReader(file)}


def test_the_page_of_the_encodings_is_current(monkeypatch):
    monkeypatch.delenv("POSBENCH_CONFIGS", raising=False)
    current = (DOCS / "encodings.md").read_text(encoding="utf-8")
    made = catalogue.page("nano", 512) + "\n"
    assert current == made, "A docstring or fact has changed. Type: posbench encodings --page > docs/encodings.md"


def test_the_commands_of_the_docs_are_those_that_are_run():
    written = {page.name: list(dict.fromkeys(commands(page))) for page in DOCS.glob("*.md") if commands(page)}
    written[SWEEPS.name] = [command for command in written[SWEEPS.name] if command not in ELSEWHERE]
    assert written == {OWN.name: list(SMALLEST), SWEEPS.name: list(SEVERAL)}


def test_what_the_docs_have_and_no_test_runs_is_understood_all_the_same(monkeypatch):
    """Each stands on the page; of those that are ours each word is one that posbench knows."""
    monkeypatch.setattr("posbench.trackers.require", lambda *words: None)
    monkeypatch.setattr("posbench.cluster.require", lambda *words: None)
    assert set(ELSEWHERE) <= set(commands(SWEEPS))
    for command in ELSEWHERE:
        program, verb, *words = shlex.split(command)
        if program == "posbench":
            settings = [word for word in words if "=" in word]
            cluster.chosen(settings)
            compose(combinations([word for word in settings if not word.startswith("hydra")])[0])
        else:
            assert (program, verb) == ("pip", "install")
            assert words in (["posbench[slurm]"], ["posbench[ray]"])


@pytest.mark.slow
def test_an_encoding_of_ones_own_gets_check_and_table(place, capfd):
    """Its files are written and its commands given as the page has them, in one empty folder."""
    (place / "my" / "encoding").mkdir(parents=True)
    for name in re.findall(r"`(my/encoding/\w+\.(?:py|yaml))`:\n\n```", OWN.read_text(encoding="utf-8")):
        (place / name).write_text(block(OWN, name), encoding="utf-8")
    printed = ""
    for command in commands(OWN):
        status = cli.run([*shlex.split(command)[1:], *SMALLEST[command].split()])
        out, err = capfd.readouterr()
        assert status == 0, f"{command}: {err}"
        if "check" in command:
            assert out.count(" passed ") >= 10
            assert " failed " not in out
        printed = out if command == "posbench table" else printed
    for name in ("root", "alibi", "none"):
        assert re.search(rf"^{name}( †)? +128 ", printed, re.M)
    assert cli.run(shlex.split("check capped encoding.inner=rope --config-dir my")) == 2
    assert "it caps the distances of a bias" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.process
def test_sweeps_and_a_study_of_ones_own_run_as_the_page_has_them(place, capfd):
    """In one folder: what is done is found again, a run that was removed is made again, in a process of its own."""
    for name in ("mine.yaml", "more.txt"):
        (place / name).write_text(block(SWEEPS, name), encoding="utf-8")
    out, err = {}, {}
    for command in (command for command in commands(SWEEPS) if command not in ELSEWHERE):
        status = cli.run([*shlex.split(command)[1:], *SEVERAL[command].split()])
        out[command], err[command] = capfd.readouterr()
        assert status == 0, f"{command}: {err[command]}"
    first, *_ = SEVERAL
    assert err[first].count("is trained already") == 4  # the second time
    assert "6 runs: 6 done" in out["posbench status mine.yaml"]
    last = err["posbench study run mine.yaml workers=2"]
    assert last.count("is trained already") == 5
    assert "[6/6] done in" in last


def test_the_page_tells_every_hook_and_property():
    text = OWN.read_text(encoding="utf-8")
    hooks = re.findall(r"^\| `(\w+)\(", text, re.M)
    properties = re.findall(r"^\| `([^`]+)` \|", text[text.index("## What check prints") :], re.M)
    assert sorted(hooks) == sorted(HOOKS)
    assert properties == list(PROPERTIES)


def test_the_page_tells_every_fact():
    """Those of the base class that are public and plain: what a subclass declares."""
    text = OWN.read_text(encoding="utf-8")
    facts = text[text.index("## Facts to declare") : text.index("## What check prints")]
    told = {word for line in re.findall(r"^\| (`.*?) \|", facts, re.M) for word in re.findall(r"\w+", line)}
    assert told == Encoding.__annotations__.keys()


def test_every_property_that_a_footgun_names_finds_it(faults):
    named = re.findall(r"property `([^`]+)`(?: \(finds `(\w+)`\))?", FOOTGUNS)
    assert [name for name, _ in named if name not in PROPERTIES] == []
    assert [(name, fault) for name, fault in named if fault and faults[fault][name] != "failed"] == []
    assert {fault for _, fault in named if fault} == faults.keys()


def test_every_footgun_says_wrong_right_and_check():
    """Every section, each with a test (those exist: test_readme.py) or a property."""
    sections = re.split(r"^### ", FOOTGUNS, flags=re.M)[1:]
    assert len(sections) > 40
    for section in sections:
        wrong, right, check = (section.find(f"- **{word}:** ") for word in ("Wrong", "Right", "Check"))
        assert 0 < wrong < right < check, section
        assert re.search(r"`tests/\S+::test_\w+`|property `", section[check:]), section


def test_what_is_not_there_is_not_there():
    """A method that came in is no longer named as missing."""
    text = (DOCS / "encodings.md").read_text(encoding="utf-8")
    for one in catalogue.ABSENT:
        assert f"[{one.name}]({one.paper})" in text
        assert f"### {one.name.lower().replace(' ', '_')}\n" not in text
