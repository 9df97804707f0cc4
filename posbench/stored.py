"""The files of a run directory as they are read: whole, or a `UserError` that names the file.

A file that holds nonsense is damaged, and the run can be trained again; one that may not be read is neither.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from posbench import files
from posbench.errors import UserError, reason, refused
from posbench.files import parse_json

REMOVE = "Remove the folder to train it again."


def damaged(file: Path, why: str) -> UserError:
    """What to say of a file that cannot be what a run has written."""
    return UserError(f"{file} is damaged: {why}.", REMOVE)


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a run. Raises UserError naming the file when there is none."""
    try:
        value = parse_json(file.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{file.parent} holds no run: there is no {file.name} in it.") from error
    except (OSError, ValueError) as error:
        if refused(error):
            raise UserError(f"{file} cannot be read: {reason(error)}.") from error
        raise damaged(file, reason(error)) from error
    if not isinstance(value, dict):
        raise damaged(file, "it is no JSON object")
    return value


def is_number(value: Any) -> bool:
    """Whether it is one that fits a table: JSON also has NaN, infinities and integers of any size."""
    return isinstance(value, int | float) and abs(value) < 2**63


class Metrics:
    """A file of JSON lines that only grows, after what lies past the checkpoint's step was cut off."""

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        files.write_bytes(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self.file = path.open("a", encoding="utf-8")

    def add(self, **fields: Any) -> None:
        self.file.write(json.dumps(fields) + "\n")
        self.file.flush()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class NoMetrics(Metrics):
    """In a process that leaves them to another one."""

    def __init__(self) -> None:
        pass

    def add(self, **fields: Any) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, none where there is no file; a last line torn by a kill is left out.

    Raises UserError when any other line cannot be read.
    """
    if not file.is_file():
        return []
    *whole, torn = file.read_bytes().split(b"\n")
    lines = []
    for number, line in enumerate([*whole, torn] if torn else whole, start=1):
        try:
            value = parse_json(line)
            if not (is_number(value["step"]) and is_number(value["loss" if "loss" in value else "valid"])):
                raise ValueError(line)
            lines.append({**value, "step": int(value["step"])})
        except (ValueError, TypeError, KeyError) as error:
            if number > len(whole):
                break
            raise damaged(file, f"line {number} is no metric") from error
    return lines
