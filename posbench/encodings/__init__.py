"""How an encoding is found: its YAML names its class, and nothing else does.

    class: posbench.encodings.rope.Rope      # importable
    class: /home/me/mine.py:Mine             # a file; in a YAML the path is relative to it

The other keys of the YAML are the class's own parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from posbench import classes
from posbench.compose import load_group
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.wrapper import Inner, Wrapper
from posbench.errors import UserError
from posbench.search_path import choices


def build(encoding: Mapping[str, Any], shape: Shape) -> Encoding:
    """The encoding that a YAML describes, for a model of `shape`, with freshly drawn weights.

    `encoding` holds `class`, the class's parameters, and `name`, used in messages; what a wrapper holds is described in
    the same way. Raises UserError for a class that cannot be found, a parameter it does not have or lacks, and a value
    it refuses.
    """
    own = {key: value for key, value in encoding.items() if key not in ("name", "class")}
    name = str(encoding.get("name", "?"))
    if "class" not in encoding:
        raise UserError(f"The encoding '{name}' names no class.", "Its YAML needs a line like class: mine.py:Mine")
    cls = find_class(str(encoding["class"]))
    parameters, hints = classes.signature(cls)
    if not parameters:
        raise UserError(f"The encoding '{name}' cannot be built.", f"{cls.__name__}.__init__ must take (self, shape).")
    parameters.pop(next(iter(parameters)))  # the shape
    classes.check("encoding", name, own, parameters, hints)
    given = {
        key: partial(build, value) if hints.get(key) == Inner else value
        for key, value in classes.typed(own, parameters, hints).items()
    }
    try:
        built = cls(shape, **given)
    except ValueError as error:
        raise UserError(f"The encoding '{name}' cannot be built: {error}.") from error
    except (AttributeError, TypeError) as error:
        if not _base_not_called(error):
            raise
        built = None
    if built is None or "shape" not in vars(built):
        needed = "super().__init__(shape, inner)" if issubclass(cls, Wrapper) else "super().__init__(shape)"
        raise UserError(f"The encoding '{name}' cannot be built.", f"{cls.__name__}.__init__ must first call {needed}.")
    return built


def _base_not_called(error: Exception) -> bool:
    """Whether a constructor failed because it did not call that of its base, or not with what that needs."""
    said = str(error)
    return "before Module.__init__() call" in said or bool(re.match(r"(Encoding|Wrapper)\.__init__\(\) missing", said))


def catalogue() -> list[tuple[str, dict[str, Any]]]:
    """(name, YAML) of every encoding that can be asked for, shipped and the user's own, by name."""
    return [(name, load_group("encoding", name)) for name in choices("encoding")]


def find_class(where: str) -> type[Encoding]:
    """The class at "package.module.Class" or "path/mine.py:Mine". Raises UserError when it is not there."""
    return classes.find_class(where, Encoding, "encoding")
