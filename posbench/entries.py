"""What a user has written into a file: text, YAML, and the entries of that, each held against what it must be.

YAML is read as Hydra reads a command line: a number is decimal (PyYAML takes 0100 for 64 and 1:30 for 90), a date is
text. What would be lost or could be anything is refused: a key that is there twice, a tag, an alias within itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import yaml

from posbench.errors import UserError, reason

DEEPEST = 32
"""Levels of lists and mappings in one another."""

NUMBER = r"[0-9](?:_?[0-9])*"
"""Digits, of which any may be parted by an underscore."""

SCALARS = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    "int": (r"[-+]?(?:0|[1-9](?:_?[0-9])*)", "-+0123456789"),
    "float": (
        rf"[-+]?(?:(?:{NUMBER}\.(?:{NUMBER})?|\.{NUMBER})(?:[eE][-+]?[0-9]+)?|{NUMBER}[eE][-+]?[0-9]+"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "merge": (r"<<", "<"),
}
"""What is no text: its form, and the characters it may begin with (NUL: nothing)."""


class Loader(yaml.SafeLoader):
    """Raises YAMLError for all that is refused, with the place of it."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = 0
        self.open: list[str] = []
        """Anchors of what is being read."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        problem = None
        if isinstance(event, yaml.AliasEvent):
            problem = f"*{event.anchor} stands within itself" if event.anchor in self.open else None
        elif event.tag is not None:
            problem = f"the tag {event.tag} has no meaning here"
        elif isinstance(event, yaml.ScalarEvent) and re.search("[\ud800-\udfff]", event.value):
            problem = "half a character"  # which nothing can print
        elif isinstance(event, yaml.ScalarEvent) and re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", event.value):
            problem = "a control character"  # which a terminal would obey
        elif self.depth == DEEPEST and not isinstance(event, yaml.ScalarEvent):
            problem = f"more than {DEEPEST} lists or mappings in one another"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_sequence_node(self, anchor: Any) -> Any:
        with self._within(anchor):
            return super().compose_sequence_node(anchor)

    def compose_mapping_node(self, anchor: Any) -> Any:
        with self._within(anchor):
            node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                value = key.value if key.tag.endswith(":merge") else self.construct_object(key)
                if (type(value), value) in seen:
                    problem = f"the key '{key.value}' is there twice"
                    raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
                seen.add((type(value), value))
        return node

    @contextmanager
    def _within(self, anchor: str | None) -> Any:
        self.open += [anchor] if anchor else []
        yield
        if anchor:
            self.open.remove(anchor)


for _kind, (_form, _first) in SCALARS.items():
    Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_form})\\Z"), [c.strip("\0") for c in _first]
    )


def read_text(file: Path) -> str:
    """UTF-8, without the mark that some editors begin it with. Raises OSError and ValueError."""
    return file.read_text(encoding="utf-8-sig")


def read_yaml(file: Path, what: str) -> Any:
    """What a YAML file says; `UserError` where it cannot be read, in which it is called `what`."""
    try:
        return yaml.load(read_text(file), Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = f"{reason(error)}." if isinstance(error, OSError) else " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            why = f"Line {mark.line + 1}, column {mark.column + 1}: {error.problem}."
        raise UserError(f"{what} {file} cannot be read.", why) from error


def listed(entry: Any) -> list[Any]:
    """What stands in a list or alone; an empty entry is an empty list."""
    return entry if isinstance(entry, list) else [] if entry is None else [entry]


def text(where: str, key: str, entry: Any) -> str | None:
    """A text; None of an empty entry. `where` names what it is in, for the `UserError` of anything else."""
    if entry is None or isinstance(entry, str):
        return entry or None
    raise UserError(f"{where} has a '{key}' that is no text: {entry}.", f'Text is quoted, as in {key}: "2026".')


def mapping(where: str, what: str, entry: Any) -> dict[str, Any]:
    """The keys and values of an entry; an empty one has none."""
    if entry is None:
        return {}
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} has {what} that is no mapping of keys: {entry}.", "As in name: {key: value}")
    for key in entry:
        if not isinstance(key, str):
            raise UserError(f"{where} has {what} with a key that is no text: {key}.", f'Quote it: "{key}".')
    return dict(entry)


def words(where: str, what: str, entry: Any) -> list[str]:
    """Overrides: a list of them, or a line as after `posbench train`; an empty entry is an empty list."""
    try:
        found = shlex.split(entry) if isinstance(entry, str) else [] if entry is None else entry
    except ValueError as error:
        raise UserError(f"{where} has {what} that cannot be read, {entry}: {reason(error)}.") from error
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise UserError(f"{where} has {what} that is no list of settings: {entry}.", "As in [encoding=rope, seed=2]")
    return found
