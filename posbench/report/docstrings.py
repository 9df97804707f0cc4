"""A docstring of an encoding or extension as Markdown."""

from __future__ import annotations

import re

_LABEL = re.compile(r"([A-Z][\w ]{,26}(?:\(`\w+`\))?):(?= )")
"""A few words that say what a paragraph is about: Formula, Worked number, Paper, Blocks (`blockwise`), ..."""

_PARTS = re.compile(
    r"(?P<code>`[^`]*`)|(?P<address>https?://[^\s,;)]*[^\s,;).:])|(?P<special>[*<\\]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))"
)

_LIST = re.compile(r"^(?=[-+#>] )", re.MULTILINE)
"""Where a wrapped line begins with what would open a list, a heading or a quotation."""


def markdown(doc: str) -> str:
    r"""The paragraphs of `doc`: what they are about in bold, worked numbers as code, all else as it stands.

    >>> print(markdown("ABC.\n\nFormula: s_ij * B\n- m, as in `a*b`."))
    ABC.
    <BLANKLINE>
    **Formula:** s_ij \* B
    \- m, as in `a*b`.
    """
    title, *rest = re.split(r"\n{2,}", doc.strip())
    return "\n\n".join([_prose(title), *(_paragraph(text) for text in rest)])


def _paragraph(text: str) -> str:
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    label = _LABEL.match(text)
    return f"**{label[1]}:**{_prose(text[label.end() :])}" if label else _prose(text)


def _prose(text: str) -> str:
    return _LIST.sub(r"\\", _PARTS.sub(_part, text))


def _part(found: re.Match[str]) -> str:
    if found["special"]:
        return "\\" + found["special"]
    return f"<{found['address']}>" if found["address"] else found["code"]
