"""The figures of a report, from rows and the losses kept beside them.

    perplexity.py   against the length of the window, a panel a protocol; under extensions in a figure of its own
    positions.py    loss by the context that a target sees
    context.py      whether the same targets lose less with more context
    cost.py         speed and memory against perplexity
    paper.py        the paper's curves beside ours
    style.py        one colour an encoding; axes.py, drawing.py: what they have in common

Whoever draws needs the extra `report`; `style.need` says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from posbench.records import Row
from posbench.report.curves import texts
from posbench.report.figures.context import by_context
from posbench.report.figures.cost import Bench, by_cost, read_bench
from posbench.report.figures.drawing import Drawing
from posbench.report.figures.paper import beside_the_paper
from posbench.report.figures.perplexity import by_length
from posbench.report.figures.positions import by_position
from posbench.report.figures.style import need

__all__ = ["Drawing", "drawings", "need", "read_bench"]


def drawings(rows: Sequence[Row], bench: Bench = ()) -> list[Drawing]:
    """Every figure that these rows give, those of each text after one another."""
    found: list[Drawing | None] = []
    groups = texts(rows)
    for number, group in enumerate(groups, start=1):
        row = group[0].one
        suffix, of = (f"-{number}", f" ({row.split} of {row.corpus}, {row.tokenizer})") if len(groups) > 1 else ("", "")
        found += [
            by_length(group, f"perplexity{suffix}", f"Does it still work past the training length?{of}"),
            by_context(group, f"context{suffix}", f"Does it use the longer context?{of}"),
            by_position(group, f"positions{suffix}", f"Where in a window does it fail?{of}"),
            by_length(group, f"extensions{suffix}", f"What does an extension of the trained model change?{of}", True),
            by_cost(group, f"cost{suffix}", f"What does it cost?{of}", bench),
            beside_the_paper(group, f"paper{suffix}", f"Is it as the paper printed it?{of}"),
        ]
    return [drawing for drawing in found if drawing is not None]
