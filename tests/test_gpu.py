"""The checks of on_gpu.py. On a CPU, where the same must hold, those that are quick run too."""

import on_gpu
import pytest
import torch

from posbench.encodings import rotation

CPU = torch.device("cpu")
CHECKS = list(on_gpu.checks())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in CHECKS])
def test_on_a_gpu(check):
    check(torch.device("cuda"))


@pytest.mark.parametrize("name", ["alibi", "t5", "swan", "none"])
def test_the_naive_attention_and_a_cpu_agree(name):
    """So that a check that fails on a GPU tells of the GPU."""
    on_gpu.attends(name, 65, torch.float32, CPU)
    on_gpu.attends(name, 65, torch.bfloat16, CPU, queries=3)


def test_documents_and_training_are_checked_alike():
    on_gpu.documents_apart(40, torch.float32, CPU)
    on_gpu.trains_in_bf16("t5", CPU, length=32)
    on_gpu.updates("muon", CPU)


@pytest.mark.parametrize("label", [*on_gpu.BLOCKS, *on_gpu.APART])
def test_scores_of_ones_own_and_positions_with_gaps_are_checked_alike(label):
    on_gpu.attends(label, 65, torch.float32, CPU)
    on_gpu.attends(label, 65, torch.bfloat16, CPU)


def test_every_form_of_attention_is_compared_on_a_gpu():
    """Below and above a block, in both dtypes."""
    compared = [name for name, _ in CHECKS if " at " in name]
    for label in ("alibi", "t5", *on_gpu.BLOCKS, *on_gpu.APART):
        of_it = [name.removeprefix(f"{label} at ") for name in compared if name.startswith(f"{label} at ")]
        assert {"float32", "bfloat16"} == {name.split(", ")[1] for name in of_it}
        assert min(int(name.split(",")[0]) for name in of_it) < 128 < max(int(name.split(",")[0]) for name in of_it)


@pytest.mark.parametrize("name", ["alibi", "rope", "t5", "none"])
def test_what_is_compiled_in_bf16_is_checked_as_far_as_the_compiler(name):
    on_gpu.compiled_in_bf16(name, CPU, length=32)


def test_a_rotation_that_only_the_compiler_sees_is_compared(monkeypatch):
    """The check must fail when pairs are turned the other way there."""
    real = rotation._written_out
    monkeypatch.setattr(rotation, "_written_out", lambda x, cos, sin, layout: real(x, cos, -sin, layout))
    with pytest.raises(AssertionError, match=r"is allowed|is right"):
        on_gpu.compiled_in_bf16("rope", CPU, length=32)


def test_a_bias_that_is_rounded_is_found(monkeypatch):
    """The check must fail when a kernel takes the bias in 16 bits."""
    on_gpu.bias_stays_exact(CPU)
    real = on_gpu._Rough.bias
    monkeypatch.setattr(on_gpu._Rough, "bias", lambda e, r: real(e, r).bfloat16() if r.ndim == 1 else real(e, r))
    with pytest.raises(AssertionError, match="the bias is off"):
        on_gpu.bias_stays_exact(CPU)
