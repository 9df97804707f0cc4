"""What `posbench data` lists: every corpus that can be asked for, and what of it is prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posbench import data
from posbench.compose import load_group
from posbench.data.corpus import open_corpus
from posbench.data.tokens import is_current, read_header
from posbench.errors import UserError
from posbench.search_path import choices


def overview(root: Path | None = None) -> list[dict[str, Any]]:
    """One entry a YAML of the group `data`, by name; imports no package and asks no network.

    name, note; documents and bytes (None where only reading would tell); prepared: of each text and tokenizer its name,
    path, documents, bytes and per split the documents, bytes and tokens (end tokens included), and `text`, the user's
    own path (None: the corpus is one text).
    """
    headers = _headers(Path(root) if root else data.root())
    entries = []
    for name in choices("data"):
        settings = load_group("data", name)
        prepared = [
            {
                "tokenizer": header["tokenizer"]["name"],
                "path": str(path),
                "text": header["corpus"]["data"].get("path") or header["corpus"]["data"].get("train"),
                "splits": {split: _counts(facts) for split, facts in header["splits"].items()},
            }
            for path, header in headers
            if header["corpus"]["data"].get("name") == name and _is_current(settings, header)
        ]
        for one in prepared:
            one |= _total(one)
        own = settings.get("kind") == "files"  # each of them is another text
        size = settings.get("size") or (prepared[0] if prepared and not own else {})
        entries.append(
            {
                "name": name,
                "note": settings.get("note", ""),
                "documents": size.get("documents"),
                "bytes": size.get("bytes"),
                "prepared": prepared,
            }
        )
    return entries


def _counts(facts: dict[str, Any]) -> dict[str, int]:
    return {"documents": facts["documents"] - 1, "bytes": facts["text_bytes"], "tokens": facts["ids"] - 1}


def _total(prepared: dict[str, Any]) -> dict[str, int]:
    splits = prepared["splits"].values()
    return {key: sum(split[key] for split in splits) for key in ("documents", "bytes")}


def _is_current(settings: dict[str, Any], header: dict[str, Any]) -> bool:
    """Whether tokens are of the corpus as its YAML stands now, and would be the same if they were made again. The
    user's own files are as they were given."""
    if not is_current(header):
        return False
    if settings.get("kind") == "files":
        return True
    try:
        return open_corpus(settings).fingerprint == header["corpus"]["fingerprint"]
    except UserError:
        return False


def _headers(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in sorted(root.glob("*/header.json")):
        try:
            found.append((path.parent, read_header(path.parent)))
        except UserError:
            continue  # whoever asks for it is told
    return found
