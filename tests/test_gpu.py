"""The checks of on_gpu.py. On a CPU, where the same must hold, those that are quick run too."""

import on_gpu
import pytest
import torch

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


def test_a_bias_that_is_rounded_is_found(monkeypatch):
    """The check must fail when a kernel takes the bias in 16 bits."""
    on_gpu.bias_stays_exact(CPU)
    real = on_gpu._Rough.bias
    monkeypatch.setattr(on_gpu._Rough, "bias", lambda e, r: real(e, r).bfloat16() if r.ndim == 1 else real(e, r))
    with pytest.raises(AssertionError, match="the bias is off"):
        on_gpu.bias_stays_exact(CPU)
