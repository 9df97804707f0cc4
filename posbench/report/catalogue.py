"""The catalogue of encodings and extensions: its tables, and the page made of them and of the docstrings."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from posbench import encodings, extensions
from posbench.compose import load_group
from posbench.config import build_encoding
from posbench.encodings.base import Shape
from posbench.identity import label
from posbench.report.docstrings import markdown
from posbench.report.tables import Column, Table, render, table


class Absent(NamedTuple):
    """A method that is compared elsewhere and is not there."""

    name: str
    paper: str
    why: str


ABSENT = (
    Absent(
        "CARoPE",
        "https://arxiv.org/abs/2507.23083",
        "its angles are sums over the tokens before, which `rotate` is not told; the formula alone was read, no code "
        "to hold it against",
    ),
    Absent(
        "DAPE V2",
        "https://arxiv.org/abs/2410.04798",
        "as published its scores depend on how many keys there are: the second convolution reads hidden numbers to the "
        "right of the diagonal, which a shorter input does not have",
    ),
    Absent(
        "HoPE",
        "https://arxiv.org/abs/2410.21216",
        "at which frequency the pairs that turn end was not read in the paper",
    ),
    Absent(
        "NoPE with scaled scores",
        "https://arxiv.org/abs/2404.12224",
        "a factor on the scores of a trained `none`: the uniform one is the extension `temperature` with `coefficient` "
        "(factor - 1) / ln s; one for each head is a tuning of its own",
    ),
    Absent(
        "PaTH, PaTH-FoX",
        "https://arxiv.org/abs/2505.16381",
        "between a query and a key stands a product of one matrix for each token between them, for which no hook is "
        "made; the copy of the paper at hand lacks the formula's image",
    ),
)
"""By name. What keeps a method out: a formula that could not be pinned down, or none of its own."""


def shape(model: str, length: int) -> Shape:
    """What an encoding of `model` trained at `length` is built for."""
    size = load_group("model", model)
    return Shape(size["layers"], size["width"], size["heads"], length)


def facts(entry: Mapping[str, Any], at: Shape) -> dict[str, Any]:
    """What the encoding of a YAML says of itself, built for `at`."""
    encoding = build_encoding(entry, at)
    return {
        "acts_on": encoding.acts_on,
        "parameters": sum(parameter.numel() for parameter in encoding.parameters()),
        "max_length": encoding.max_length,
        "shift_invariant": encoding.shift_invariant,
        "cacheable": encoding.cacheable,
        "paper": encoding.paper or None,
        "reported": _reported(encodings.find_class(entry["class"])),
        "caveat": encoding.caveat,
    }


def applying(entry: Mapping[str, Any], at: Shape) -> list[str]:
    """The extensions that apply to the encoding of a YAML."""
    return [name for name in extensions.applicable(build_encoding(entry, at)) if name != "none"]


def _reported(cls: type) -> str | None:
    """Of the class itself: what is printed of an encoding says nothing of one that grew from it."""
    return vars(cls).get("reported")


def overview(model: str, length: int) -> Table:
    """Every encoding, shipped and the user's own: what it does and learns, and which methods are not there."""
    columns = [
        Column("encoding", "encoding", right=False),
        Column("acts_on", "acts on", right=False),
        Column("parameters", "learned"),
        Column("max_length", "longest"),
        Column("paper", "paper", right=False),
    ]
    rows = [{"encoding": name} | facts(entry, shape(model, length)) for name, entry in encodings.catalogue()]
    note = f"Not there: {', '.join(one.name for one in ABSENT)}; docs/encodings.md says why."
    return table(f"Encodings ({model}, trained at {length})", columns, rows, [note])


# The page --------------------------------------------------------------------------------------------------------

_HEAD = """\
# Encodings

<!-- Made from the docstrings by `posbench encodings --page > docs/encodings.md`; edit those. -->

What each encoding and extension is, where it acts, and where it differs from its paper. `posbench encodings NAME`
prints one of them, `posbench check NAME` what is true of its code, and [add-an-encoding](add-an-encoding.md) tells how
to compare one of your own.

How the numbers were made:

- *learned* is counted on the encoding itself, built for the model `{model}` with a training length of {length}.
- *reported* is what a paper prints past the training length: other models, texts and tokens in each line, so that a
  number compares with those of its own line only. Where nothing else is said, windows do not overlap, and part of any
  fall is that of fewer early targets ([footguns](footguns.md#a-falling-curve-taken-for-extrapolation)). "Not read"
  says that we have not read a number, not that there is none. Nothing in this page was measured by posbench.
- *extensions* is what each extension itself says of the encoding with its defaults.
- The worked numbers are run by the tests. Names such as `Shape` are those that the class's file imports.

Shapes: B batch, T new tokens, Q queries of one block, S keys, H heads, D head width, C model width.
"""

_DROPE = """\
## DroPE

[DroPE](https://arxiv.org/abs/2512.12167) is no encoding but a course of training: rotary first, then no positions at
all for the rest. So it is two runs and, at longer inputs, a temperature:

- `posbench train encoding=rope` and its settings;
- `posbench train init_from=RUN encoding=none`, with a budget (`train.tokens`), rate (`optim.lr`) and warm-up
  (`optim.warmup`) of its own: the paper takes 2B of 16B tokens, a rate of 1e-3 and 70 steps, at the same length;
- `posbench eval RUN --lengths 1024,2048 --extension none,temperature`.

Reported at the trained 1,024, FineWeb: perplexity 21.73 with positions dropped at step 14K of 16K, 21.72 never dropped,
23.77 without positions from the start (Gelberg et al. 2025, Table 6). Perplexity past the training length: not read.
"""


def page(model: str, length: int) -> str:
    """The whole catalogue in Markdown, one section an encoding and extension."""
    at, entries = shape(model, length), dict(encodings.catalogue())
    found = {name: facts(entry, at) | {"extensions": applying(entry, at)} for name, entry in entries.items()}
    extending = {name: entry for name, entry in extensions.catalogue() if "class" in entry}
    parts = [
        _HEAD.format(model=model, length=f"{length:,}"),
        "## All encodings\n",
        render(_encodings(found, f"Learned parameters of {model}, trained at {length:,}"), "md"),
        "## All extensions\n",
        "They change a trained encoding for longer inputs, at evaluation or with some more training.\n",
        render(_extensions(extending, found), "md"),
        "## Not there\n",
        render(_absent(), "md"),
        _DROPE,
        "## Each encoding\n",
        *(_encoding(name, entry, found[name]) for name, entry in entries.items()),
        "## Each extension\n",
        *(_extension(name, entry) for name, entry in extending.items()),
    ]
    return "\n".join(parts)


def _encodings(found: Mapping[str, dict[str, Any]], title: str) -> Table:
    columns = [
        Column("name", "encoding", right=False),
        Column("acts_on", "acts on", right=False),
        Column("parameters", "learned"),
        Column("reported", "reported past the training length", right=False),
        Column("extensions", "extensions", right=False),
    ]
    rows = [
        fact | {"name": f"[{name}](#{name})", "extensions": ", ".join(fact["extensions"]) or "none"}
        for name, fact in found.items()
    ]
    return table(title, columns, rows)


def _extensions(extending: Mapping[str, dict[str, Any]], found: Mapping[str, dict[str, Any]]) -> Table:
    columns = [
        Column("name", "extension", right=False),
        Column("acts_on", "changes", right=False),
        Column("reported", "reported past the training length", right=False),
        Column("encodings", "applies to", right=False),
    ]
    rows = []
    for name, entry in extending.items():
        cls = extensions.find_class(entry["class"])
        applies = [encoding for encoding, fact in found.items() if name in fact["extensions"]]
        rows.append(
            {
                "name": f"[{name}](#{name})",
                "acts_on": cls.acts_on,
                "reported": _reported(cls),
                "encodings": "all" if len(applies) == len(found) else ", ".join(applies),
            }
        )
    return table("With their defaults", columns, rows)


def _absent() -> Table:
    columns = [Column("name", "method", right=False), Column("why", "why", right=False)]
    return table(
        "Compared elsewhere", columns, [{"name": f"[{one.name}]({one.paper})", "why": one.why} for one in ABSENT]
    )


def _encoding(name: str, entry: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    longest = "any length" if said["max_length"] is None else f"at most {said['max_length']:,} tokens"
    lines = [
        f"- {_choice('encoding', name, entry)}",
        f"- acts on {said['acts_on']}; {said['parameters']:,} learned parameters; windows of {longest}",
        f"- {'' if said['shift_invariant'] else 'not '}shift invariant; "
        f"{'keys stay valid in a cache' if said['cacheable'] else 'decodes without a cache'}",
        f"- reported: {said['reported'] or 'not said'}",
        *([f"- at this training length: {said['caveat']}"] if said["caveat"] else []),
    ]
    return _section(name, lines, encodings.find_class(entry["class"]))


def _extension(name: str, entry: Mapping[str, Any]) -> str:
    cls = extensions.find_class(entry["class"])
    lines = [
        f"- {_choice('extension', name, entry)}",
        f"- changes {cls.acts_on}",
        f"- reported: {_reported(cls) or 'not said'}",
    ]
    return _section(name, lines, cls)


def _section(name: str, lines: list[str], cls: type) -> str:
    bullets = "\n".join(lines)
    return f"### {name}\n\n{bullets}\n\n{markdown(inspect.getdoc(cls) or '')}\n"


def _choice(group: str, name: str, entry: Mapping[str, Any]) -> str:
    """How it is asked for: its name, class and settings, those at their defaults."""
    own = {key: value for key, value in entry.items() if key not in ("name", "class")}
    words = [f"`{group}.{key}={_word(value)}`" for key, value in own.items()]
    settings = f", with {', '.join(words)}" if words else ""
    return f"`{group}={name}`: `{entry['class']}`{settings}"


def _word(value: Any) -> str:
    """A setting as it is written on a command line; what a wrapper holds by its name."""
    if isinstance(value, Mapping):
        return label(value)
    return value if isinstance(value, str) else json.dumps(value)
