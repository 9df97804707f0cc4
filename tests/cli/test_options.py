"""What a command says of a row it has just measured."""

from __future__ import annotations

import pytest
from made import arrays, row

from posbench.cli.options import say_row


@pytest.mark.parametrize(
    ("nats", "said"), [([256.0], "perplexity 7.389"), ([128 * 800.0], "perplexity inf"), (None, "n/a: not measured")]
)
def test_a_row_is_said_with_its_perplexity_or_its_reason(nats, said, capsys):
    """256 nats of 128 targets are e^2 each; e^800 is past the largest float, and no reason for n/a."""
    say_row(row(None if nats is None else arrays(nats)))
    assert capsys.readouterr().err == f"rope-L512-nano-s1-0a1b2c3d nonoverlapping at 512: {said}\n"
