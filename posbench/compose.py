"""From a command line to a `Config`: configs/ and the user's own folders, read through Hydra.

`compose` is for a command line in words; `from_hydra` turns what Hydra composed itself, in a sweep, into the same
checked `Config` of plain data.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from posbench.config import GROUPS, Config, check
from posbench.errors import UserError, explain, no_setting, unknown
from posbench.search_path import choices, config_dir, files, no_choice, user_dirs

MOST_JOBS = 10_000
"""Of one sweep or study."""

MANY = 100
"""Jobs that take half a minute to compose: from so many on their number is said before."""


def register() -> None:
    """Tell Hydra the typed settings and the user's folders."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    ConfigStore.instance().store("base_config", Config)
    folders = [folder.as_uri() for folder in user_dirs()]  # here, since Hydra would wrap what this raises
    OmegaConf.register_new_resolver("posbench.user_dirs", lambda: folders, replace=True)


def compose(overrides: Sequence[str] = ()) -> Config:
    """The checked config of a command line such as ["encoding=alibi", "seed=2"]; `UserError` for a bad one."""
    with _composed(overrides) as cfg:
        return from_hydra(cfg, cfg.hydra.runtime.choices, cfg.hydra.runtime.config_sources, overrides)


def load_group(group: str, name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """One choice of a group as plain data with its `name`; what the user must still give reads "???".

    `overrides` are settings of that group, such as "extension.factor=8".
    """
    from omegaconf import OmegaConf

    file = files(group).get(name)
    if file is None:
        raise no_choice(group, name, choices(group))
    value: Any = None if overrides else _read_plain(group, file)
    if value is None:
        with _composed([f"{group}={name}", *overrides]) as cfg:
            value = OmegaConf.to_container(cfg[group], resolve=True)
    return _named(group, name, {str(key): entry for key, entry in value.items()}, file)


def _read_plain(group: str, file: Path) -> Any:
    """What Hydra would compose from one file, in a hundredth of its time; None where there is something to compose: a
    list of defaults, a package, an interpolation, a group with typed settings, a file that Hydra has to complain of.
    """
    from omegaconf import OmegaConf
    from yaml import YAMLError

    try:
        text = file.read_text(encoding="utf-8")
        typed = getattr(Config(), group, None)
        if not isinstance(typed, dict) or "${" in text or "@package" in text:
            return None
        value = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, YAMLError):
        return None
    return {**typed, **value} if isinstance(value, dict) and "defaults" not in value else None


def corpus(word: str, split: str) -> dict[str, Any]:
    """The settings of another text to read: a choice of the group `data`, or the user's own file, folder or glob, all
    of which is then that split."""
    if word in choices("data"):
        return load_group("data", word)
    path = Path(word).expanduser()
    if word and (path.exists() or any(mark in word for mark in "*?[")):
        return {"name": "files", "kind": "files", split: str(path)}
    if {*"./~"} & {*word}:
        raise UserError(f"There is no file or folder '{word}'.", f"Or name a corpus: {', '.join(choices('data'))}")
    raise unknown("corpus", word, choices("data"))


def launcher(words: Sequence[str]) -> Any:
    """What starts the jobs of a sweep under words as "hydra/launcher=slurm", None where it is not one of posbench's
    own; `UserError` for bad ones."""
    from hydra.utils import instantiate

    with _composed(words) as cfg:
        found = cfg.hydra.launcher
        return instantiate(found) if found._target_.startswith("hydra_plugins.posbench_launcher.") else None


@contextmanager
def _composed(overrides: Sequence[str]) -> Iterator[Any]:
    """What Hydra composes, its own settings under `hydra`; its errors as `UserError`."""
    import hydra

    register()
    try:
        with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
            yield hydra.compose("config", overrides=list(overrides), return_hydra_config=True)
    except Exception as error:
        explained = explain(error, overrides)
        if explained is None or explained is error:
            raise
        raise explained from error


def from_hydra(cfg: Any, chosen: Mapping[str, Any], sources: Sequence[Any], overrides: Sequence[str] = ()) -> Config:
    """A composed DictConfig as plain typed data, each group with the name of its choice, checked and settled.

    `chosen` and `sources` are Hydra's `runtime.choices` and `runtime.config_sources`: a class given as `mine.py:Mine`
    is looked for beside the YAML that names it. `overrides` tell what was asked for from what is a default. Raises
    `UserError` for a setting that does not exist.
    """
    from omegaconf import OmegaConf, open_dict

    with open_dict(cfg):
        if "hydra" in cfg:
            del cfg["hydra"]
    _refuse_dead_keys(cfg, chosen, sources)
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    for group in GROUPS:
        if chosen.get(group) is None:  # taken away, or a list, which Hydra would merge
            raise UserError(f"The group {group} needs one choice.", f"{group}: {', '.join(choices(group))}")
        value, name = getattr(config, group), str(chosen[group]).removesuffix(".yaml")
        if "/" in name:  # Hydra takes a path as well, but it makes no run's name
            raise unknown(group, name, choices(group))
        if isinstance(value, dict):
            setattr(config, group, _named(group, name, value, _yaml(group, name, sources)))
        elif hasattr(value, "name"):
            if value.name not in (name, type(value).name):
                raise UserError(f"{group}.name={value.name} has no effect.", f"Choose a {group} by {group}=NAME.")
            value.name = name
    if config.init_from is not None:
        from posbench import initial

        config = initial.settled(config, overrides)
    check(config)
    return settled(config)


def settled(config: Config) -> Config:
    """The config with the fingerprints of the text and the tokenizer that are the user's own: from now on it is of
    these, whatever comes to lie at their paths. `UserError` when they cannot be read."""
    from posbench.data import corpus, tokenizer

    data, own = corpus.with_fingerprint(config.data), tokenizer.with_fingerprint(config.tokenizer)
    return replace(config, data=data, tokenizer=own)


def _refuse_dead_keys(cfg: Any, chosen: Mapping[str, Any], sources: Sequence[Any]) -> None:
    """Hydra lets "+key=value" add anything anywhere: a key that nothing reads must not pass for a setting.

    (The parameters of an encoding are held against its class's signature, in `check`.)
    """
    from omegaconf import OmegaConf

    schema = OmegaConf.structured(Config)
    known = {"": schema} | {group: schema[group] for group in GROUPS if schema[group]}
    for group in ("data", "tokenizer"):
        file = _yaml(group, str(chosen.get(group)), sources)
        if file is not None:
            known[group] = dict.fromkeys([*OmegaConf.load(file), *schema[group]])
    for group, allowed in known.items():
        for key in cfg[group] if group else cfg:
            if key not in allowed:
                raise no_setting(f"{group}.{key}" if group else str(key), allowed)


def _yaml(group: str, name: str, sources: Sequence[Any]) -> Path | None:
    """The file Hydra read for a choice: the first on its search path. None: the choice is of another kind."""
    files = (Path(source.path, group, f"{name}.yaml") for source in sources if source.schema == "file")
    return next((file for file in files if file.is_file()), None)


def _named(group: str, name: str, value: dict[str, Any], yaml: Path | None) -> dict[str, Any]:
    """A free group with its choice's name, and a class of the user's own with the absolute path of its file, which is
    looked for beside the YAML."""
    path, _, cls = str(value.get("class", "")).rpartition(":")
    if path.endswith(".py"):
        beside = [yaml.parent] if yaml is not None else []
        # On the command line a path is relative to the current folder.
        found = [folder / path for folder in (*beside, Path.cwd()) if (folder / path).is_file()]
        if not found:
            raise UserError(
                f"{group}={name} names the class {path}:{cls}, but there is no such file.",
                f"Looked in {', '.join(map(str, (*beside, Path.cwd())))}.",
            )
        value = value | {"class": f"{found[0].resolve()}:{cls}"}
    if isinstance(value.get("inner"), str | Mapping):
        value = value | {"inner": _inner(value["inner"])}
    return value | {"name": name}


def _inner(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """What a wrapper holds, from its name or from its name and the parameters that are to differ from its YAML."""
    own = {"name": given} if isinstance(given, str) else dict(given)
    if "name" not in own:
        raise UserError("encoding.inner names no encoding.", "As in encoding.inner='{name: rope, base: 500}'")
    try:
        found = load_group("encoding", own["name"]) | own
    except RecursionError:
        raise UserError(f"The encoding '{own['name']}' holds itself.", "Its inner must be another one.") from None
    if isinstance(own.get("inner"), str | Mapping):
        found["inner"] = _inner(own["inner"])
    return found


def combinations(words: Sequence[str]) -> list[list[str]]:
    """Every job of a sweep in Hydra's order: `a=1,2 b=3` gives [[a=1, b=3], [a=2, b=3]].

    Raises `UserError` for words that are not Hydra's grammar, for a sweep over no list of values, and for one that
    makes no job or more than `MOST_JOBS`.
    """
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()  # for `encoding=glob(*)`
        try:
            parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(words))
            for one in parsed:
                if one.is_sweep_override() and not one.is_discrete_sweep():
                    raise UserError(
                        f"{one.input_line} gives no list of values.", "Write for example a=1,2 or a=range(1,5)."
                    )
            jobs = math.prod(map(_values, parsed))
            if not jobs:
                raise UserError(
                    f"{shlex.join(words)} makes no job.", "A sweep over nothing; posbench train --help lists choices."
                )
            refuse_too_many(shlex.join(words), jobs)
            values = [
                [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
                if one.is_discrete_sweep()
                else [str(one.input_line)]
                for one in parsed
            ]
        except Exception as error:
            raise explain(error, words) or error from error
    return [list(job) for job in itertools.product(*values)]


def tell_many(jobs: int, say: Callable[[str], None]) -> None:
    """Say so before jobs are composed that take long to be."""
    if jobs >= MANY:
        say(f"{jobs:,} jobs are composed and checked first")


def refuse_too_many(what: str, jobs: int) -> None:
    """Raise `UserError` for more jobs than anybody would wait for to be composed."""
    if jobs > MOST_JOBS:
        raise UserError(
            f"{what} makes {jobs:,} jobs, and at most {MOST_JOBS:,} can be made at once.",
            "Give it in parts, as in seed=range(1,1001).",
        )


def _values(one: Any) -> int:
    """How many values a parsed override has, those of a range not made. `UserError` where it has no end."""
    from hydra.core.override_parser.types import ChoiceSweep, Glob, RangeSweep

    found: Any = one.value() if one.is_discrete_sweep() else None
    if isinstance(found, RangeSweep):
        numbers: list[Any] = [found.start, found.stop, found.step]
        start, stop, step = numbers
        count = step and -((start - stop) // step)
        if not step or any(str(number).strip("-") in ("inf", "nan") for number in (*numbers, count)):
            raise UserError(f"{one.input_line} has no end.", "Write for example range(1,5), which is 1 to 4.")
        return max(0, int(count))
    if isinstance(found, Glob):
        return sum(1 for _ in one.sweep_string_iterator())
    return len(found.list) if isinstance(found, ChoiceSweep) else 1
