"""From a YAML's words to a class: how encodings and extensions are found, and what may be written beside `class`.

class: posbench.encodings.rope.Rope      # importable
class: /home/me/mine.py:Mine             # a file; in a YAML the path is relative to it
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from posbench.errors import UserError, closest, no_setting, unknown

T = TypeVar("T")


def find_class(where: str, base: type[T], kind: str) -> type[T]:
    """The subclass of `base` at "package.module.Class" or "path/mine.py:Mine"; `kind` is what to call one.

    Raises UserError when it is not there, and for a file alone, with the classes that are in it.
    """
    file, _, name = (where, "", "") if where.endswith(".py") else where.rpartition(":")
    if file:
        module = _load(Path(file))
    else:
        dotted, _, name = where.rpartition(".")
        module = _import(dotted, where)

    def fits(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, base) and value is not base

    found = getattr(module, name, None)
    if found is None:
        prefix = f"{file}:" if file else where.removesuffix(name)
        own = [key for key, value in vars(module).items() if fits(value) and value.__module__ == module.__name__]
        if not name:
            raise UserError(f"'{where}' names a file and no class.", f"class: {', '.join(prefix + key for key in own)}")
        raise unknown("class", where, [prefix + key for key in own])
    if not fits(found):
        raise UserError(
            f"'{where}' is not an {kind}.", f"It must be a subclass of {base.__module__}.{base.__qualname__}."
        )
    return found


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
    try:
        code = compile(content, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise UserError(f"Line {error.lineno} of {path} is not Python: {error.msg}.", line or None) from error
    sys.modules[name] = module  # annotations and dataclasses of the file are looked up there
    exec(code, vars(module))
    return module


def signature(cls: type[Any]) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """The parameters of a class, and the annotations of those that have one."""
    return dict(inspect.signature(cls).parameters), typing.get_type_hints(cls.__init__)


def check(
    group: str, name: str, own: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> None:
    """Hold the settings of `group`=`name` against the parameters of its class. Raises UserError for one that the class
    does not have or does not get, and for a value of another kind."""
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for key, value in own.items():
        if key not in parameters:
            raise no_setting(f"{group}.{key}", dict.fromkeys(parameters))
        if not fits(value, hints.get(key, Any)):
            raise UserError(f"{group}.{key}={value} does not fit '{name}'.", f"It must be {words(hints[key])}.")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in own:
            raise UserError(f"The {group} '{name}' needs a value for '{key}'.", f"Write {group}.{key}=...")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of a YAML may be given where `hint` is annotated; of numbers, a finite one.

    Unusual annotations are left to the class.
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(fits(entry, typing.get_args(hint)[0]) for entry in value)
    if origin is Callable:  # what makes the encoding that a wrapper holds: in the YAML its description
        return isinstance(value, Mapping)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    if hint in (int, float):
        number = isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max  # neither nan nor infinite: no formula means anything then
    return True


def typed(
    own: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings as their class means them (see `as_annotated`): those that are equal then are one setting.

    A parameter without an annotation is of the kind of its default.
    """
    defaults = {key: type(parameters[key].default) for key in own if key in parameters}
    return {key: as_annotated(value, hints.get(key, defaults.get(key))) for key, value in own.items()}


def as_annotated(value: Any, hint: Any) -> Any:
    """A value that fits `hint`, a whole number as a float where the annotation is of floats: in a YAML 2 is a way to
    write 2.0, and to torch it is not.

    >>> as_annotated(2, float | None), as_annotated(2, int | float), as_annotated(True, bool)
    (2.0, 2, True)
    >>> as_annotated([1, 2.5], list[float] | None)
    [1.0, 2.5]
    """
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if isinstance(value, list):
        of = [typing.get_args(part)[0] for part in parts if typing.get_origin(part) is list]
        return [as_annotated(entry, of[0]) for entry in value] if of else value
    return float(value) if type(value) is int and float in parts and int not in parts else value


def words(hint: Any) -> str:
    """An annotation as a reader would say it.

    >>> from typing import Literal
    >>> words(list[float] | Literal["search"])
    'a list, each a number, or search'
    """
    origin = typing.get_origin(hint)
    if origin is list:
        return f"a list, each {words(typing.get_args(hint)[0])},"
    if origin is Callable:
        return "the name of an encoding"
    if typing.get_args(hint):
        return " or ".join(words(part) for part in typing.get_args(hint))
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", type(None): "null"}
    return plain.get(hint, str(hint))
