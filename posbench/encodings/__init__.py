"""How an encoding is found: its YAML names its class, and nothing else does.

    class: posbench.encodings.rope.Rope      # importable
    class: /home/me/mine.py:Mine             # a file; in a YAML the path is relative to it

The other keys of the YAML are the class's own parameters.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from posbench import config
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.wrapper import Inner
from posbench.errors import UserError, closest, no_setting, unknown


def build(encoding: Mapping[str, Any], shape: Shape) -> Encoding:
    """The encoding that a YAML describes, for a model of `shape`, with freshly drawn weights.

    `encoding` holds `class`, the class's parameters, and `name`, used in messages; what a wrapper holds is described in
    the same way. Raises UserError for a class that
    cannot be found, a parameter it does not have or lacks, and a value it refuses.
    """
    own = {key: value for key, value in encoding.items() if key not in ("name", "class")}
    name = str(encoding.get("name", "?"))
    if "class" not in encoding:
        raise UserError(f"The encoding '{name}' names no class.", "Its YAML needs a line like class: mine.py:Mine")
    cls = find_class(str(encoding["class"]))
    _check(cls, name, own)
    hints = typing.get_type_hints(cls.__init__)
    held = {key: partial(build, value) for key, value in own.items() if hints.get(key) == Inner}
    try:
        return cls(shape, **own | held)
    except ValueError as error:
        raise UserError(f"The encoding '{name}' cannot be built: {error}.") from error


def catalogue() -> list[tuple[str, dict[str, Any]]]:
    """(name, YAML) of every encoding that can be asked for, shipped and the user's own, by name."""
    return [(name, config.load_group("encoding", name)) for name in config.choices("encoding")]


def find_class(where: str) -> type[Encoding]:
    """The class at "package.module.Class" or "path/mine.py:Mine". Raises UserError when it is not there."""
    file, colon, name = where.rpartition(":")
    if colon:
        module = _load(Path(file))
    else:
        dotted, _, name = where.rpartition(".")
        module = _import(dotted, where)
    found = getattr(module, name, None)
    if found is None:
        prefix = where.removesuffix(name)
        raise unknown("class", where, [prefix + key for key, value in vars(module).items() if _is_encoding(value)])
    if not _is_encoding(found):
        raise UserError(f"'{where}' is not an encoding.", "It must be a subclass of posbench.encodings.base.Encoding.")
    return found


def _is_encoding(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Encoding) and value is not Encoding


def _import(dotted: str, where: str) -> types.ModuleType:
    try:
        return importlib.import_module(dotted)
    except (ModuleNotFoundError, ValueError) as error:
        # A module that is there but itself imports one that is not is the author's to read, with its traceback.
        if isinstance(error, ModuleNotFoundError) and not f"{dotted}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"There is no class '{where}'.", "Write package.module.Class, or path/mine.py:Mine for a file."
        ) from None


def _load(file: Path) -> types.ModuleType:
    """Run a user's file as a module of its own, under a name that no other file has."""
    path = file.resolve()
    if not path.is_file():
        near = closest(path.name, [p.name for p in path.parent.glob("*.py")])
        raise UserError(f"There is no file '{file}'.", f"Did you mean '{near}'?" if near else None)
    return _run(path, path.read_bytes())


@cache
def _run(path: Path, content: bytes) -> types.ModuleType:
    """The module of one file of one content: an encoding is built several times a training, its file run once.

    What runs is `content`, never bytecode of an import: Python takes that for current when size and second agree.
    """
    name = f"{path.stem}_{hashlib.sha256(bytes(path) + content).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations and dataclasses of the file are looked up there
    exec(compile(content, path, "exec", dont_inherit=True), vars(module))
    return module


def _check(cls: type[Encoding], name: str, own: Mapping[str, Any]) -> None:
    """Compare the parameters of the YAML with the signature of the class."""
    parameters = dict(list(inspect.signature(cls).parameters.items())[1:])
    hints = typing.get_type_hints(cls.__init__)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key, value in own.items():
        if key not in parameters:
            raise no_setting(f"encoding.{key}", dict.fromkeys(parameters))
        if not _fits(value, hints.get(key, Any)):
            raise UserError(f"encoding.{key}={value} does not fit '{name}'.", f"It must be {_words(hints[key])}.")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in own:
            raise UserError(f"The encoding '{name}' needs a value for '{key}'.", f"Write encoding.{key}=...")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of a YAML may be given where `hint` is annotated; unusual annotations are left to the class."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if hint == Inner:
        return isinstance(value, Mapping)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    return True


def _words(hint: Any) -> str:
    """An annotation as a reader would say it."""
    if hint == Inner:
        return "the name of an encoding"
    if typing.get_args(hint):
        return " or ".join(_words(part) for part in typing.get_args(hint))
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", type(None): "null"}
    return plain.get(hint, str(hint))
