"""A figure as bytes: SVG with fixed ids and no date, so that the same rows give the same file, and PNG."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from posbench.report.figures.style import COLOURS, DARK, RC, SALT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PNG_DPI = 160


@dataclass(frozen=True)
class Drawing:
    """One figure of a report."""

    name: str
    """Of its files."""
    title: str
    """What it answers, as a reader would ask."""
    notes: list[str]
    """How to read it, and what it does not show."""
    figure: Figure = field(repr=False)

    def svg(self) -> bytes:
        """The figure on white, text as text."""
        return self._svg

    @cached_property
    def _svg(self) -> bytes:
        return self._saved("svg", metadata={"Date": None, "Creator": None})

    def png(self) -> bytes:
        return self._saved("png", metadata={"Software": None}, dpi=PNG_DPI)

    def inline(self) -> str:
        """The SVG for a page: without a prolog, its ids its own there, its colours the page's (--c0, --ink, ...)."""
        text = self.svg().decode()
        text = text[text.index("<svg ") :]
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{self.name}-", text)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        text = re.sub(r'^<svg ([^>]*?)\bwidth="[^"]*"', r"<svg \1", text)
        text = re.sub(r'^<svg ([^>]*?)\bheight="[^"]*"', r"<svg \1", text)
        for name, colour in variables().items():
            text = text.replace(colour, f"var(--{name})")
        wide = round(self.figure.get_size_inches()[0] * 96)
        size = f'style="min-width: {wide * 3 // 5}px; max-width: {wide}px"'
        return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(self.title)}" {size} ', 1)

    def _saved(self, form: str, **more: Any) -> bytes:
        import matplotlib

        out = io.BytesIO()
        # A salt of its own: what two figures define under one name may differ.
        with matplotlib.rc_context({**RC, "svg.hashsalt": f"{SALT} {self.name}"}):
            self.figure.savefig(out, format=form, **more)
        return out.getvalue()


def variables(dark: bool = False) -> dict[str, str]:
    """The page's names of the colours, and what they are on its light or dark ground."""
    named = {f"c{number}": pair for number, pair in enumerate(COLOURS.items())}
    named |= dict(zip(("ink", "muted", "grid", "ground"), DARK.items(), strict=True))
    return {name: pair[dark] for name, pair in named.items()}


@contextmanager
def panels(count: int, height: float = 4.2, width: float = 5.6) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of so many panels, two a row, drawn in our style; sizes in inches."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(count, 2)
    rows = -(-count // columns)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(width * columns, height * rows), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for spare in axes[count:]:
            spare.remove()
        yield figure, axes[:count]
        # Laid out once: each further drawing would move it by a hair, and its file would be another.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def height(lines: int) -> float:
    """Of a panel with the names of so many lines beside it, in inches."""
    return max(4.2, 1.4 + 0.19 * lines)
