"""The part of `--help` that names the config groups and their choices."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from posbench.search_path import choices, config_dir, user_dirs


def listing() -> list[tuple[str, str]]:
    """(group, its choices) of everything that `group=choice` can set."""
    folders = {path.name for top in (config_dir(), *user_dirs()) for path in top.iterdir() if path.is_dir()}
    names = sorted(folders - {"hydra", "study"})
    return [(name, ", ".join(choices(name))) for name in names if choices(name)]


class WithGroups(TyperCommand):
    """A command whose help ends with the config groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        with formatter.section("Config groups (group=choice)"):
            formatter.write_dl(listing())
