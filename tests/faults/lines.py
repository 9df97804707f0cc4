"""Command lines that a hand, a script or a paste may produce, and what each must be answered: made, not collected, by
putting every kind of mistake where it can stand. The same on every machine; a misspelling is drawn from the word alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import NamedTuple, TypeVar

from posbench.config import Config, Eval, Model, Optim, Train
from posbench.search_path import choices


class Line(NamedTuple):
    """A command line: its kind, its words, what must be said (on stderr; of a valid one on stdout), its status."""

    kind: str
    words: tuple[str, ...]
    said: str
    status: int = 2


COMMANDS = [
    *("train", "sweep", "eval", "table", "plot", "report", "runs", "show", "encodings", "data", "data prepare"),
    *("study", "study run", "study plan", "reproduce", "status", "rm", "check", "bench", "bench encodings"),
    *("bench peers", "bench time-to-loss", "generate", "doctor"),
]
OPTIONS = {
    "--format": [
        *("train", "sweep", "eval", "table", "runs", "show", "encodings", "data", "study run", "study plan", "check"),
        *("reproduce", "status", "bench encodings", "bench peers", "bench time-to-loss", "doctor"),
    ],
    "--config-dir": [
        *("train", "sweep", "eval", "encodings", "data", "data prepare", "study run", "study plan", "status", "rm"),
        *("check", "bench encodings", "bench peers", "bench time-to-loss"),
    ],
    "--lengths": ["eval", "bench encodings", "bench peers"],
    "--out": ["report", "data prepare", "bench encodings", "bench peers", "bench time-to-loss"],
    "--budget": ["report", "study run", "study plan", "status"],
}
TYPED: dict[str, type] = {"model": Model, "optim": Optim, "train": Train, "eval": Eval}
KINDS = {"int": "whole number", "float": "number"}
SETTINGS = {
    f"{group}.{field.name}": str(field.type).removesuffix(" | None")
    for group, cls in TYPED.items()
    for field in fields(cls)
    if field.name != "name"
}
"""Every typed setting and its type."""

ONE_OF = {
    "data.attend": ("stream", "document"),
    "model.norm": ("rmsnorm", "layernorm"),
    "model.activation": ("swiglu", "relu"),
    "optim.method": ("muon", "adamw"),
    "optim.schedule": ("linear", "cosine"),
    "train.precision": ("fp32", "bf16"),
    "train.compile": ("auto", "off"),
    "train.shard": ("auto", "off"),
    "eval.protocol": ("nonoverlapping", "sliding", "same-targets"),
    "eval.split": ("train", "validation", "test"),
    "device": ("auto", "cpu", "cuda"),
}
RANGES = {
    "model.layers model.width model.heads model.hidden train.length train.tokens train.batch_tokens": ("0", "-1"),
    "train.validate_tokens eval.stride eval.block eval.targets eval.min_context nproc": ("0", "-3"),
    "optim.lr optim.matrix_lr optim.weight_decay": ("-0.1", "nan", "inf"),
    "optim.beta1 optim.beta2 optim.momentum train.dropout": ("-0.5", "1", "1.5"),
    "optim.warmup": ("-1", "1.01"),
    "optim.clip train.micro_tokens train.threads train.checkpoint_seconds seed": ("-1",),
    "train.length eval.stride eval.block eval.targets eval.min_context": (str(2**41),),
    "seed": (str(2**63), "9" * 40),
    "train.threads": ("1025",),
}

ODD = {
    "accent": "été",
    "emoji": "\N{SLICE OF PIZZA}",
    "control": "a\x01b",
    "bell": "\x07",
    "escape": "\x1b[31mred",
    "delete": "\x7f",
    "zero as text": "\\0",
    "zero in a URL": "%00",
    "line separator": "a\u2028b",
    "lines": "a\nb\nc\nd\ne",
    "no break": "\u00a0",
    "no width": "ro\u200bpe",
    "right to left": "\u202eepor",
    "half a pair": "a\udc80b",
    "long": "x" * 5000,
    "longer": "é" * 20_000,
    "format": "%s%n{0}",
    "shell": "$(id)",
}
"""What no name of anything is."""

UNFIT = {
    "model.heads=7": "model.heads=7 does not divide model.width=128.",
    "model.width=130": "model.heads=4 does not divide model.width=130.",
    "train.batch_tokens=1000": "train.batch_tokens=1000 is not a whole number of windows of train.length=512.",
    "train.micro_tokens=100": "train.micro_tokens=100 is not a whole number of windows of train.length=512.",
    "train.length=100": "train.batch_tokens=2048 is not a whole number of windows of train.length=100.",
    "train.tokens=100": "train.tokens=100 is less than one batch",
    "nproc=5": "nproc=5 is more than the windows of a batch",
    "extension=yarn": "extension=yarn changes a trained run.",
    "init_from=nonsense": "There is no run 'nonsense'",
    "tokenizer=file": "tokenizer=file needs tokenizer.path=FILE, a tokenizer.json.",
    "encoding.base=-1": "The encoding 'rope' cannot be built: base must be above 0",
    "encoding.layout=quarter": "encoding.layout=quarter does not fit 'rope'.",
    "data=files": "data=files needs a text.",
    "encoding=alibi encoding.base=3": "There is no setting 'encoding.base'.",
    "encoding=randomized encoding.inner=alibii": "There is no encoding 'alibii'. Did you mean 'alibi'?",
    "tokenizer.vocab_size=many": "tokenizer.vocab_size=many is not a whole number of at least 257.",
    "tokenizer=file tokenizer.path=nowhere.json": "There is no file nowhere.json.",
    "encoding=randomized encoding.inner=randomized": "The encoding 'randomized' cannot be built: ",
}
"""Settings that do not fit each other, or need more; in a sweep they are said before the first job."""

UNTOLD = {
    "train encoding.class=torch.nn.Linear": "torch.nn.Linear",
    "train encoding.class=nowhere.py:Mine": "there is no such file.",
    "train data=files data.path=nowhere.txt": "nowhere.txt",
    "sweep seed=1,2 data=files data.path=nowhere.txt": "nowhere.txt",
    "study run train_short_test_long data=files": "data=files needs a text.",
}

LENGTHS = {
    "0": "0", "-1": "-1", "512,0": "0", "abc": "abc", "": "", ",": "", "512,,1024": "", "1.5": "1.5", "1e3": "1e3",
    "512;1024": "512;1024", "٥١٢": "٥١٢", "0x10": "0x10", "None": "None", "[512,a]": "a", "512 1024": "512 1024",
}  # fmt: skip
"""What --lengths does not take, and which of its words is named."""

NUMBERS = {
    "generate x --tokens 0": "'--tokens'", "generate x --tokens many": "'--tokens'",
    "generate x --temperature -1": "'--temperature'", "generate x --temperature hot": "'--temperature'",
    "generate x --seed -1": "'--seed'", "encodings --length 0": "'--length'", "encodings --length long": "'--length'",
    "eval --targets 0": "eval.targets=0 must be 1 or more.", "eval --targets all": "'--targets'",
    "bench encodings --rounds 0": "'--rounds'", "bench encodings --vocab 1": "'--vocab'",
    "bench peers --memory 0": "'--memory'", "bench time-to-loss --validations 0": "'--validations'",
    "bench time-to-loss --rates fast": "--rates fast is not a list of positive numbers.",
    "bench time-to-loss --shares 0": "--shares 0 is not a list of positive numbers.",
    "bench time-to-loss --seeds 1,1": "--seeds 1,1 names one twice.",
    "study plan train_short_test_long --effect 0": "--effect 0 is no share of the perplexity.",
    "study plan train_short_test_long --effect big": "'--effect'",
    "study run train_short_test_long --budget larg": "There is no budget 'larg'.",
    "train --info plugin": "'--info'", "train --cfg yaml": "'--cfg'", "train --cfg job --package modle": "'modle'",
}  # fmt: skip

WITHOUT_EFFECT = {
    "train --cfg job --info all": "Only one of --cfg, --info and -m can be given.",
    "train --cfg job -m": "Only one of --cfg, --info and -m can be given.",
    "train --info all -m": "Only one of --cfg, --info and -m can be given.",
    "train --package model": "--package and --resolve say how --cfg prints.",
    "reproduce --full --smoke": "Only one of --full and --smoke can be given.",
    "table --against rope --by-position": "--against and --by-position are two tables.",
    "encodings rope --page": "--page is Markdown, and of all encodings.",
    "status --watch --format json": "--watch is for a terminal, and for people.",
    "train workers=2": "workers=2 has no effect here.",
    "train on_error=stop": "on_error=stop has no effect here.",
    "sweep seed=1,2 on_error=stop --dry-run": "workers= and on_error= have no effect on --dry-run.",
    "train study=train_short_test_long": "A study has runs, and a run no study.",
    "train hydra.mode=MULTIRUN": "hydra.mode=MULTIRUN has no effect.",
    "eval extension=yarn": "Write --extension yarn.",
    "eval extension.factor=4": "extension.factor=4 has no effect here.",
    "eval seed=2": "seed=2: a run is evaluated as it was trained",
    "check all encoding.base=3": "Parameters belong to one encoding.",
    "check rope model=nano": "'model=nano' is no parameter of an encoding.",
    "bench encodings encoding=rope": "encoding= has no place here.",
    "bench time-to-loss optim=adamw": "AdamW is what the recipe is held against.",
    "data prepare sotu data=books": "data=books and sotu exclude each other.",
}

NOTHING = {
    "eval": "There is no finished run in", "table": "There are no rows in", "plot": "There are no rows in",
    "runs": "There is no run in", "status": "There is no run in", "show": "Missing argument 'RUN'",
    "rm": "Missing argument 'RUN'", "generate": "Missing argument 'RUN'", "report": "There are no rows in",
    "data prepare": "Missing argument 'name'", "study run": "Missing argument", "study plan": "Missing argument",
}  # fmt: skip

PATHS = {
    "study run nowhere.yaml": "The study nowhere.yaml cannot be read.",
    "study run ./nowhere.yml": "The study nowhere.yml cannot be read.",
    "study plan nowhere.yaml": "The study nowhere.yaml cannot be read.",
    "status nowhere.yaml": "The study nowhere.yaml cannot be read.",
    "report nowhere.yaml": "The study nowhere.yaml cannot be read.",
    "report --bench nowhere.json": "nowhere.json",
    "check nowhere.py:Mine": "nowhere.py",
    "check nowhere.py": "nowhere.py",
    "eval --on ./nowhere": "There is no file or folder './nowhere'.",
    "eval --on nowhere/*.txt": "There is no finished run in",
    "data prepare files data.path=nowhere": "nowhere",
    "data prepare files": "data.path",
}

Many = TypeVar("Many")


def few(number: int, of: Iterable[Many]) -> list[Many]:
    """That many of them, drawn: what is composed by Hydra takes its time."""
    return random.Random(1).sample(list(of), number)


def slip(word: str, valid: Iterable[str] = ()) -> str:
    """A misspelling: two neighbours changed, or one letter twice. None of `valid`."""
    ways = [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(1, len(word) - 1)] if len(word) > 4 else []
    ways += [word[: i + 1] + word[i:] for i in range(1, len(word))]
    return random.Random(word).choice([way for way in ways if way not in (word, *valid)])


def line(kind: str, command: str, *words: str, said: str, status: int = 2) -> Line:
    """`command` is split at blanks, `words` are as they are."""
    return Line(kind, (*command.split(), *words), said, status)


def turns(*commands: str) -> Callable[[str], str]:
    """For settings of any group one of these commands after the other, `eval` for those of an evaluation."""
    count = itertools.cycle(commands)
    return lambda key: "eval" if key.startswith("eval.") else next(count)


STUDY = "study run train_short_test_long --budget smoke"


def misspelt() -> Iterator[Line]:
    """Commands, groups, choices, keys and named values."""
    for command in COMMANDS:
        above, _, last = command.rpartition(" ")
        yield line("command", above, slip(last, COMMANDS), said=f"No such command '{slip(last, COMMANDS)}'")
    ways = {
        "encoding": ("encodings", "check"), "data": ("eval --on", "data prepare"), "extension": ("eval --extension",),
        "study": ("study run", "study plan", "status", "report"),
    }  # fmt: skip
    for group in ("encoding", "data", "model", "optim", "tokenizer", "extension", "tracker", "study"):
        for name in (names := choices(group)):
            wrong = slip(name, names)
            said = f"'{wrong}'. Did you mean '{name}'?"
            for way in ways.get(group, ()):
                kind = "corpus" if way == "eval --on" else group
                yield line("choice", way, wrong, said=f"There is no {kind} {said}")
            if group not in ways or (group == "encoding" and name in few(5, names)):
                yield line("choice", "train", f"{group}={wrong}", said=f"There is no {group} {said}")
    train = turns("train", "sweep", "data prepare sotu", STUDY, "reproduce --smoke", "bench encodings")
    for field in fields(Config):
        said = f"There is no setting '{slip(field.name)}'. Did you mean '{field.name}'?"
        yield line("key", train(""), f"{slip(field.name)}=1", said=said)
    for key in few(18, SETTINGS):
        group, _, name = key.partition(".")
        plus = random.Random(key).choice(["", "+", "++"]) if group != "eval" else ""
        said = f"There is no setting '{group}.{slip(name)}'. Did you mean '{key}'?"
        yield line("key", train(key), f"{plus}{group}.{slip(name)}=1", said=said)
    for key, values in ONE_OF.items():
        value = random.Random(key).choice(values)
        said = f"There is no {key} '{slip(value, values)}'. Did you mean '{value}'?"
        yield line("named value", train(key), f"{key}={slip(value, values)}", said=said)


def valued() -> Iterator[Line]:
    """Settings given what they do not take, or what does not fit the others."""
    train = turns("train", "train -m", "data prepare sotu", STUDY, "bench time-to-loss")
    for key, kind in few(22, (one for one in SETTINGS.items() if one[1] in KINDS)):
        word, shown = random.Random(key).choice([("fast", "fast"), ("[1,2]", "[1, 2]"), ("", "")])
        yield line("kind of value", train(key), f"{key}={word}", said=f"{key}: '{shown}' is no {KINDS[kind]}.")
    ranges = [(key, words) for keys, words in RANGES.items() for key in keys.split()]
    for key, words in few(30, ranges):
        word = random.Random(key).choice(words)
        shown = f"{float(word)}" if SETTINGS.get(key) == "float" else word
        yield line("range", train(key), f"{key}={word}", said=f"{key}={shown} must be ")
    for number, (words, said) in enumerate(UNFIT.items()):
        yield line("do not fit", "train", *words.split(), said=said)
        if number % 3 == 0:
            yield line("do not fit", "train -m seed=1,2", *words.split(), said=f"In the job seed=1: {said}")
    for command, told in UNTOLD.items():
        yield line("do not fit", command, said=told)


def given() -> Iterator[Line]:
    """Options: unknown, twice, alone, with what they do not take, and where they have no effect."""
    for command in COMMANDS:
        yield line("unknown option", command, "--nonsense", said="No such option: --nonsense")
        yield line("unknown option", command, "-Z", said="No such option: -Z")
    for option, commands in OPTIONS.items():
        for command in commands:
            yield line("option twice", command, option, "a", option, "b", said=f"{option} is given twice.")
            yield line("option alone", command, option, said=f"Option '{option}' requires an argument.")
    for key in ("encoding", "model", "train.length", "seed", "optim.lr", "data"):
        yield line("dashes", "train", f"--{key}=1", said=f"A setting has no dashes: {key}=...")
    for command in OPTIONS["--format"]:
        word = random.Random(command).choice(["xlsx", "JSON", "", "tables", "é"])
        yield line("format", command, f"--format={word}", said="Invalid value for '--format'")
    for command in OPTIONS["--lengths"]:
        for word, wrong in LENGTHS.items():
            said = f"'{wrong}' is not a positive whole number; write for example 512,1024,4096"
            yield line("lengths", command, f"--lengths={word}", said=said)
    for option, of in {"--stride": "sliding", "--block": "same-targets", "--min-context": "same-targets"}.items():
        key = f"eval.{option[2:].replace('-', '_')}"
        yield line("number", "eval", option, "x", said=f"Invalid value for '{option}'")
        yield line("number", "eval", option, "1.5", said=f"Invalid value for '{option}'")
        yield line("number", f"eval --protocol {of}", option, "0", said=f"{key}=0 must be 1 or more.")
        said = f"{option} has no effect here.\nIt belongs to --protocol {of}."
        yield line("no effect", "eval", option, "5", said=said)
        for protocol in {"nonoverlapping", "sliding", "same-targets", "slidign"} - {of}:
            yield line("no effect", f"eval --protocol {protocol}", option, "5", said=said)
    for kind, lines in (("number", NUMBERS), ("no effect", WITHOUT_EFFECT)):
        for command, said in lines.items():
            yield line(kind, command, said=said)
    several = itertools.cycle(("sweep seed=1,2", "reproduce", STUDY))
    for word in ("0", "-1", "two", "1.5", "2000", "", "٢"):
        said = f"workers={word} is no number of jobs from 1 to 1024."
        yield line("jobs", next(several), f"workers={word}", said=said)
    for word in ("retry", "retry=0", "retry=-1", "stpo", "", "continue,stop"):
        yield line("jobs", next(several), f"on_error={word}", said=f"There is no on_error '{word}'.")


def written() -> Iterator[Line]:
    """Commas, brackets and quotes; words that are no settings; odd characters."""
    for word in ("encoding.base=1,2", "encoding.base=range(1,3)", "encoding.base=choice(1,2)", "+encoding.base=1,2"):
        yield line("comma", "check rope", word, said=f"{word.lstrip('+')} gives several values.")
    for word in ("seed=1,2", "model=nano,micro", "train.length=128,256", "optim.lr=1e-3,2e-3", "seed=range(1,3)"):
        for command in ("train", "data prepare sotu", "bench encodings"):
            said = f"{word} gives several values.\nposbench train -m runs one job for each"
            yield line("comma", command, word, said=said)
    train = turns("train", "sweep", "data prepare sotu", STUDY, "bench encodings")
    for key in ("eval.lengths", "encoding.base", "seed"):
        for value in ("[512,", "[", "{a:", "(1", "[[1]"):
            said = f"The list in {key}={value} is cut short or not readable."
            yield line("bracket", train(key), f"{key}={value}", said=said)
        for value in ("'abc", '"abc', "1]", "a}", "a'b"):
            said = f"The value in {key}={value} is not readable as it stands."
            yield line("quote", train(key), f"{key}={value}", said=said)
    for word in ("", " ", ".", "..", "/", "=", "==", "=x", "~", "+", "++", "a b", "a b=c", "{}", "[]", "*", "~modle"):
        key = "" if word in ("=", "=x", "~") else "modle"
        said = f"There is no setting '{key}'." if word in ("=", "=x", "~", "~modle") else f"'{word}' is no setting."
        yield line("no setting", train(""), word, said=said)
    for name, word in ODD.items():
        yield line(f"odd: {name}", train(""), word, said="' is no setting.")
        own = random.Random(name).choice(("encoding", "seed"))
        yield line(f"odd: {name}", "train", f"{own}={word}", said=own)
        plain = word.isascii() and word.isalnum()  # Hydra looks for a folder of that name
        yield line(f"odd: {name}", "train", f"{word}=1", said="File name too long" if plain else "=1' is no setting.")


def named() -> Iterator[Line]:
    """Runs, folders and files that there are not."""
    for command in ("eval", "table", "show", "plot", "rm", "generate"):
        for name, word in {"": "", "root": "/no", "name": "rope", "path": "runs/rope", "glob": "rope*", **ODD}.items():
            said = "File name too long: " if len(word) > 1000 else "There is no run '"
            yield line(f"run: {name}", command, word, said=said)
    for command, said in NOTHING.items():
        yield line("nothing there", command, said=said)
    argument = {"study run": "extensions", "study plan": "extensions", "data prepare": "sotu"}
    for command in OPTIONS["--config-dir"]:
        for word in ("nowhere", "a/b/c", *random.Random(command).sample(list(ODD.values()), 2)):
            said = "File name too long: " if len(word) > 1000 else "There is no config folder "
            said = said if command != "rm" else "There is no run 'x'"
            full = f"{command} {argument.get(command, 'x' if command == 'rm' else '')}"
            yield line("folder", full, f"--config-dir={word}", said=said)
    for command, said in PATHS.items():
        yield line("path", command, said=said)


def valid() -> Iterator[Line]:
    """What asks only for words."""
    for command in ("", *COMMANDS):
        for flag in ("--help", "-h"):
            yield line("help", command, flag, said=f"Usage: posbench {command}".rstrip(), status=0)
    yield line("help", "", said="Usage: posbench", status=0)
    yield line("version", "--version", said=".", status=0)
    for group, number in {"encoding": 5, "model": 2, "optim": 2, "tokenizer": 2}.items():
        for name in few(number, choices(group)):
            yield line("--cfg", "train --cfg job", f"{group}={name}", said=f"{group}:\n", status=0)
    yield line("--cfg", "train --cfg hydra", said="hydra:", status=0)
    yield line("--cfg", "train --cfg job --package model", said="# @package model\n", status=0)
    yield line("--info", "train --info searchpath", said="", status=0)
    yield line("--info", "train --info defaults-tree", said="", status=0)
    for form in ("md", "json"):
        yield line("encodings", f"encodings --format {form}", said="rope", status=0)
    for name in few(5, choices("encoding")):
        yield line("encodings", "encodings", name, said="class", status=0)
    for form in ("table", "json"):
        yield line("data", f"data --format {form}", said="sotu", status=0)


def all_lines() -> list[Line]:
    return [line for made in (misspelt, valued, given, written, named, valid) for line in made()]
