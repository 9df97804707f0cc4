"""What a model computes depends on no other model that was asked before it in the process (STATE-2)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import FILES, Case, Shape, decoder, described, ids, logits

LENGTH = 48


def variants() -> Iterator[tuple[str, Case, int, torch.dtype]]:
    """Every encoding thrice, or four times, at one length: other heads, another dtype, another base."""
    for name in FILES:
        yield f"{name}", (name, {}), 4, torch.float32
        yield f"{name}, 2 heads", (name, {}), 2, torch.float32
        yield f"{name}, bf16", (name, {}), 4, torch.bfloat16
        if "base" in described(name):
            yield f"{name}, base", (name, {"base": 500_000.0}), 4, torch.float32


def digests(backwards: bool) -> dict[str, str]:
    """SHA-256 of the logits of each variant, asked in order or from the last to the first."""
    asked = list(variants())
    found = {}
    for label, case, heads, dtype in reversed(asked) if backwards else asked:
        model = decoder(case, Shape(2, 32, heads, train_length=64)).to(dtype)
        found[label] = hashlib.sha256(logits(model, ids(LENGTH)).float().numpy().tobytes()).hexdigest()
    return found


@pytest.mark.process
def test_other_heads_bases_and_dtypes_in_one_process_change_nothing():
    """A table that is kept by length alone is right for whoever asks first: here, and in a process of its own that asks
    in the other order, each variant once comes before the others of its encoding."""
    code = "import json, test_state; print(json.dumps(test_state.digests(backwards=True)))"
    folder = Path(__file__).parent
    path = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(folder.parent)!r}, {str(folder.parents[1])!r}]; "
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=True)
    here, there = digests(backwards=False), json.loads(done.stdout)
    assert {label for label in here if here[label] != there[label]} == set()
    assert len(set(here.values())) == len(here), "no variant is another's"
