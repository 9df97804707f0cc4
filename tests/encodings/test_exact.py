"""Float64 is asked for in one place, which knows the devices that have none."""

import ast
import math
from pathlib import Path

import pytest
import torch

import posbench
from posbench.encodings.exact import log_ratio

FOLDERS = ("encodings", "extensions")


@pytest.mark.parametrize("file", [file for f in FOLDERS for file in (Path(posbench.__file__).parent / f).glob("*.py")])
def test_no_other_file_makes_float64_of_a_tensor_that_lies_on_a_device(file):
    """MPS has none. (A table that is made as float64 is made on the CPU.)"""
    calls = [
        n.func.attr for n in ast.walk(ast.parse(file.read_text())) if isinstance(getattr(n, "func", 0), ast.Attribute)
    ]
    assert ("double" in calls) == (file.name == "exact.py")


@pytest.mark.parametrize("length", [2, 3, 127, 128, 1000, 4096])
def test_the_growth_is_1_up_to_the_length_and_the_ratio_of_logarithms_past_it(length):
    n = torch.tensor([[1, length, length**2, 100_000_000]])
    expected = [[1.0, 1.0, 2.0, max(1.0, math.log(100_000_000) / math.log(length))]]
    assert log_ratio(n, length).tolist() == torch.tensor(expected).tolist()
    assert log_ratio(n, length).dtype == torch.float32
