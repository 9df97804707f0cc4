"""Where the YAMLs are: the shipped folder and the user's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from posbench.errors import UserError, closest, unknown


def config_dir() -> Path:
    """The folder of the shipped YAMLs: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError("posbench was installed without its configs folder")


def user_dirs() -> list[Path]:
    """The user's own config folders: POSBENCH_CONFIGS, separated as in PATH.

    `UserError` when one is missing, and for a file with the name of another, which would be read in its place.
    """
    words = os.environ.get("POSBENCH_CONFIGS", "").split(os.pathsep)
    folders = list(dict.fromkeys(Path(word).expanduser().resolve() for word in words if word))
    for number, folder in enumerate(folders):
        if not folder.is_dir():
            raise UserError(f"There is no config folder {folder}.", "It is named in POSBENCH_CONFIGS or --config-dir.")
        for before in (config_dir(), *folders[:number]):
            _refuse_same_names(folder, before)
    return folders


def _refuse_same_names(folder: Path, before: Path) -> None:
    """Of two files of one name Hydra reads the one in the folder that comes first, and says nothing of the other."""
    if folder == before:
        return
    for file in (*before.glob("*.yaml"), *before.glob("*/*.yaml")):
        mine = folder / file.relative_to(before)
        if mine.is_file():
            raise UserError(
                f"{mine} is never read, since {file} has the same name.",
                f"Give it another name, such as my_{mine.name}.",
            )


@contextmanager
def extra_dir(folder: str | None) -> Iterator[None]:
    """Within it, `folder` is one of the user's config folders, for worker processes too."""
    before = os.environ.get("POSBENCH_CONFIGS")
    if folder is not None:
        os.environ["POSBENCH_CONFIGS"] = os.pathsep.join([folder, before] if before else [folder])
    try:
        user_dirs()
        yield
    finally:
        if folder is not None:
            os.environ.pop("POSBENCH_CONFIGS")
            os.environ.update({} if before is None else {"POSBENCH_CONFIGS": before})


def files(group: str) -> dict[str, Path]:
    """The YAMLs of a group by the names it can take, shipped and the user's own, sorted."""
    found = [file for folder in (config_dir(), *user_dirs()) for file in (folder / group).glob("*.yaml")]
    return {file.stem: file for file in sorted(found, key=lambda file: file.stem)}


def choices(group: str) -> list[str]:
    """The names a group can take, shipped and the user's own, sorted."""
    return list(files(group))


def no_choice(group: str, name: str, names: Iterable[str]) -> UserError:
    """What to say of a choice that a group does not have: what it has, and where nothing comes near and no folder of
    the user's own is looked into, how to name one."""
    names = list(names)
    error = unknown(group, name, names)
    if closest(name, names) is None and not user_dirs():
        return UserError(error.message, f"{error.hint}; those of your own: --config-dir DIR")
    return error
