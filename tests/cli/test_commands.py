"""The public command line, frozen: a command or flag is added, renamed or removed on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Posbench
from typer.main import get_command

from posbench import __version__
from posbench.cli import app
from posbench.cli.options import Format
from posbench.report.tables import FORMATS
from posbench.search_path import choices

COMMANDS = {
    "": ["--help/-h", "--install-completion", "--show-completion", "--version"],
    "bench": ["--help/-h"],
    "bench encodings": [
        "OVERRIDES...", "--config-dir", "--encodings", "--eval-tokens", "--format/-f", "--help/-h", "--lengths",
        "--memory", "--out", "--rounds", "--seconds", "--trial-seconds", "--vocab", "--within",
    ],
    "bench peers": [
        "OVERRIDES...", "--compile", "--config-dir", "--encodings", "--eval-tokens", "--format/-f", "--help/-h",
        "--lengths", "--memory", "--out", "--peers", "--rounds", "--seconds", "--trial-seconds", "--vocab", "--within",
    ],
    "bench time-to-loss": [
        "OVERRIDES...", "--config-dir", "--format/-f", "--help/-h", "--out", "--rates", "--seeds", "--shares",
        "--validations",
    ],
    "check": ["[ENCODING]", "OVERRIDES...", "--config-dir", "--format/-f", "--help/-h"],
    "data": ["--config-dir", "--format/-f", "--help/-h"],
    "data prepare": ["NAME", "OVERRIDES...", "--config-dir", "--help/-h", "--out"],
    "doctor": ["--format/-f", "--help/-h"],
    "encodings": ["[NAME]", "--config-dir", "--format/-f", "--help/-h", "--length", "--model", "--page"],
    "eval": [
        "WORDS...", "--block", "--config-dir", "--device", "--extension", "--force", "--format/-f", "--help/-h",
        "--lengths", "--min-context", "--on", "--protocol", "--references", "--split", "--stride", "--targets",
    ],
    "generate": ["RUN", "[TEXT]", "--device", "--help/-h", "--seed", "--temperature", "--tokens"],
    "plot": ["RUNS...", "--help/-h"],
    "report": ["[STUDY]", "OVERRIDES...", "--bench", "--budget", "--config-dir", "--help/-h", "--out"],
    "reproduce": ["OVERRIDES...", "--format/-f", "--full", "--help/-h", "--smoke"],
    "rm": ["RUNS...", "--config-dir", "--force", "--help/-h", "--yes/-y"],
    "runs": ["--format/-f", "--help/-h"],
    "show": ["RUN", "--format/-f", "--help/-h"],
    "status": ["[NAME]", "OVERRIDES...", "--budget", "--config-dir", "--format/-f", "--help/-h", "--watch"],
    "study": ["--help/-h"],
    "study plan": ["NAME", "OVERRIDES...", "--budget", "--config-dir", "--effect", "--format/-f", "--help/-h"],
    "study run": ["NAME", "OVERRIDES...", "--budget", "--config-dir", "--format/-f", "--help/-h"],
    "sweep": ["OVERRIDES...", "--config-dir", "--dry-run", "--format/-f", "--help/-h"],
    "table": ["RUNS...", "--against", "--by-position", "--format/-f", "--help/-h"],
    "train": [
        "OVERRIDES...", "--cfg/-c", "--config-dir", "--dry-run", "--format/-f", "--help/-h",
        "--info/-i", "--multirun/-m", "--package/-p", "--resolve",
    ],
}  # fmt: skip


def parameters(command: Any, context: Any) -> list[str]:
    """Arguments as they are written, then options, sorted."""
    arguments, options = [], []
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            name = parameter.name.upper()
            arguments.append(f"{name}..." if parameter.nargs == -1 else name if parameter.required else f"[{name}]")
        else:
            options.append("/".join(sorted(parameter.opts, key=len, reverse=True)))
    return arguments + sorted(options)


def walk(command: Any, name: str = "", parent: Any = None) -> dict[str, list[str]]:
    context = command.make_context(name or "posbench", [], parent=parent, resilient_parsing=True)
    found = {name: parameters(command, context)}
    for word, inner in getattr(command, "commands", {}).items():
        found |= walk(inner, f"{name} {word}".strip(), context)
    return found


def test_the_public_command_line_is_frozen():
    """Whoever changes it on purpose changes this list, the README and the changelog with it."""
    found = walk(get_command(app))
    assert sorted(found) == sorted(COMMANDS)
    for name, words in COMMANDS.items():
        assert found[name] == words, name


def test_every_form_of_a_table_can_be_asked_for():
    assert [form.value for form in Format] == list(FORMATS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(posbench: Posbench, name: str):
    done = posbench(f"{name} --help")
    assert done.status == 0
    assert done.out.startswith(f"Usage: posbench {name}".rstrip())
    for word in COMMANDS[name]:
        if word.startswith("--"):
            assert word.split("/")[0] in done.out


def test_a_summary_of_a_command_is_not_cut(posbench: Posbench):
    assert "..." not in posbench("--help").out.replace("COMMAND [ARGS]...", "")


def test_help_of_train_lists_the_groups_and_their_choices(posbench: Posbench, tmp_path: Path, monkeypatch):
    text = " ".join(posbench("train --help").out.split())
    for group in ("encoding", "model"):
        assert f"{group} {', '.join(choices(group))}" in text
    (tmp_path / "my" / "encoding").mkdir(parents=True)
    (tmp_path / "my" / "encoding" / "mine.yaml").touch()
    monkeypatch.setenv("POSBENCH_CONFIGS", str(tmp_path / "my"))
    assert f"encoding {', '.join(choices('encoding'))}" in " ".join(posbench("train --help").out.split())
    assert "mine" in choices("encoding")


def test_without_a_word_the_help_is_shown(posbench: Posbench):
    assert posbench("") == posbench("--help")
    assert posbench("--version").out == f"{__version__}\n"


HEAVY = ("torch", "numpy", "pandas", "datasets", "hydra", "omegaconf", "tokenizers", "transformers", "rich.table")


@pytest.mark.process
@pytest.mark.parametrize("words", [["--help"], ["eval", "--help"], ["runs"], ["status"], ["encodings", "--help"]])
def test_nothing_heavy_is_imported_to_help(tmp_path: Path, words: list[str]):
    """Help must come at once: torch alone takes 2 s to import, typer 0.2 s."""
    code = (
        f"import sys; sys.argv[1:] = {words!r}\n"
        "from posbench import cli\n"
        "cli.run(sys.argv[1:])\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


@pytest.mark.process
def test_python_dash_m_is_the_command(tmp_path: Path):
    """And its exit status is the command's."""
    root = Path(__file__).parents[2]
    words = [sys.executable, "-m", "posbench", "trian"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=root)
    assert done.returncode == 2
    assert (
        done.stderr == "error: No such command 'trian'. Did you mean 'train'?\nposbench --help lists what there is.\n"
    )
