"""What the tests of README.md and docs/ read out of a page, and settings with which its commands take a moment."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

TINY = (
    "model.layers=1 model.width=32 model.heads=2 model.hidden=48 tokenizer=bytes "
    "train.tokens=8192 train.compile=off train.threads=1 device=cpu"
)


def commands(page: Path) -> list[str]:
    """The lines after "$" in its console blocks, without their comments."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line.split("  #")[0].strip() for line in lines]


def block(page: Path, name: str) -> str:
    """The code that stands under the name of a file."""
    found = re.search(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert found, f"{page.name} shows no {name}"
    return found[1]


def anchors(page: Path) -> set[str]:
    """Where a link may lead inside a page: its headings as GitHub writes them in an address."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
