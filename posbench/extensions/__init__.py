"""How an extension is found and applied: its YAML names its class, as that of an encoding does.

    class: posbench.extensions.yarn.Yarn     # importable, or mine.py:Mine
    factor: auto                             # how far it stretches, where that means anything to it

The other keys of the YAML are the class's own parameters. The choice `none` names no class: no extension.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from posbench import classes
from posbench.compose import load_group
from posbench.encodings.base import Encoding
from posbench.errors import UserError, no_setting
from posbench.extensions.base import Extension, Factor
from posbench.identity import extension_identity
from posbench.search_path import choices


def build(extension: Mapping[str, Any]) -> Extension | None:
    """The extension that a YAML describes; None for one that names no class.

    Raises UserError for a class that cannot be found, a parameter it does not have, and a value it refuses.
    """
    name, own = _own(extension)
    if "class" not in extension:
        if own:
            raise no_setting(f"extension.{next(iter(own))}", {})
        return None
    cls = find_class(str(extension["class"]))
    for setting in own:
        if setting in cls.foreign:
            raise UserError(f"The extension '{name}' has no setting '{setting}'.", cls.foreign[setting])
    parameters, hints = signature(cls)
    classes.check("extension", name, own, parameters, hints)
    try:
        built = cls(**{key: value for key, value in classes.typed(own, parameters, hints).items() if key != "factor"})
        built.resolve(own.get("factor", "auto"), trained_length=1, length=1)  # whatever the lengths: is it one?
        return built
    except ValueError as error:
        raise UserError(f"The extension '{name}' cannot be built: {error}.") from error


def extend(extension: Mapping[str, Any], encoding: Encoding, label: str, trained_length: int, length: int) -> Encoding:
    """The encoding under an extension, for inputs of `length`; itself without one. `label` names it in messages.

    Raises UserError when the extension does not apply to it, with those that do.
    """
    built = applied(extension, encoding, label)
    if built is None:
        return encoding
    try:
        return built.extend(encoding, trained_length, length, extension.get("factor", "auto"))
    except ValueError as error:
        raise UserError(f"The extension '{extension['name']}' cannot extend {label}: {error}.") from error


def applied(extension: Mapping[str, Any], encoding: Encoding, label: str) -> Extension | None:
    """`build`, for this encoding: a UserError when the extension does not apply to it, with those that do."""
    built = build(extension)
    if built is not None and not built.applies_to(encoding):
        raise UserError(
            f"The extension '{extension['name']}' does not apply to {label}.",
            f"extension: {', '.join(applicable(encoding))}",
        )
    return built


def foreign(setting: str) -> str | None:
    """What to write here for a setting of that name in other tools; None where no shipped extension knows of it."""
    shipped = [find_class(described["class"]) for _, described in catalogue() if "class" in described]
    return next((cls.foreign[setting] for cls in shipped if setting in cls.foreign), None)


def catalogue() -> list[tuple[str, dict[str, Any]]]:
    """(name, YAML) of every extension that can be asked for, shipped and the user's own, by name."""
    return [(name, load_group("extension", name)) for name in choices("extension")]


def applicable(encoding: Encoding) -> list[str]:
    """The names of the extensions that apply to an encoding, `none` among them."""
    found = [(name, build(described)) for name, described in catalogue()]
    return [name for name, one in found if one is None or one.applies_to(encoding)]


def find_class(where: str) -> type[Extension]:
    """The class at "package.module.Class" or "path/mine.py:Mine". Raises UserError when it is not there."""
    return classes.find_class(where, Extension, "extension")


def signature(cls: type[Extension]) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """The settings of a class, its factor among them where it takes one, and the annotations of those that have one."""
    parameters, hints = classes.signature(cls)
    if cls.takes_factor:
        parameters |= {"factor": inspect.Parameter("factor", inspect.Parameter.KEYWORD_ONLY, default="auto")}
        hints |= {"factor": Factor}
    return parameters, hints


# In a request and in the key of a row ------------------------------------------------------------------------------


def write(extension: Mapping[str, Any]) -> str:
    """A described extension as one line of JSON, for `read`: equal ones are equal text."""
    return json.dumps(extension, sort_keys=True)


def read(text: str) -> dict[str, Any]:
    """What `write` was given."""
    return dict(json.loads(text))


def key(extension: Mapping[str, Any], found: Mapping[str, Any] | None = None) -> str:
    """What of an extension stands in the key of a row, as JSON: its name, its class, the settings that differ from
    their defaults, the SHA-256 of its source unless posbench ships it; under `found`, what a search found.
    """
    identity = extension_identity(extension) if "class" in extension else {}
    return write({"name": extension["name"], **identity, **({"found": dict(found)} if found else {})})


def _own(extension: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a described extension, for messages, and its settings."""
    own = {key: value for key, value in extension.items() if key not in ("name", "class")}
    return str(extension.get("name", "?")), own
