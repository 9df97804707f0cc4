"""What is decided at step 0 follows from a rule, and is obeyed."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import tiny
import torch
import toys

from posbench import decisions, encodings, shards, system
from posbench.config import Config, Model
from posbench.decisions import Decisions
from posbench.encodings.base import Shape
from posbench.errors import UserError
from posbench.model import Decoder

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STORED = Decisions("cpu", 2, "fp32", False, "causal", 4096, reasons={"threads": "asked for"})


def config(**train) -> Config:
    return toys.config({"name": "sotu", "attend": "stream"}, **train)


def record(stored: Decisions = STORED, torch_version: str = torch.__version__) -> dict:
    return {"decisions": asdict(stored), "versions": {"torch": torch_version}}


def test_the_cpu_runs_eager_in_float32_on_the_whole_batch():
    decoder = tiny.decoder(("t5", {}))
    made = decisions.decide(config(threads=1), decoder, CPU)
    assert made == Decisions("cpu", 1, "fp32", False, "strided", 32)
    assert made.reasons["kernel"] == "a learned bias by distance"
    assert "compile off (auto on cpu" in "; ".join(made.explained())


@pytest.mark.parametrize(
    ("threads", "batch_tokens", "dropout", "at_once", "micro_tokens"),
    [
        (2, 2048, 0.0, 2, 1024),
        (3, 2048, 0.0, 3, 688),  # 128 windows of 16: 43 + 43 + 42
        (8, 2048, 0.0, 4, 512),  # with less than 512 tokens a pass is not worth a thread
        (2, 512, 0.0, 1, 512),
        (2, 2048, 0.1, 1, 2048),
    ],
)
def test_each_thread_takes_a_share_of_the_batch(threads, batch_tokens, dropout, at_once, micro_tokens, monkeypatch):
    """TRAIN-1: the cut is stored, so that a resume adds the same parts in the same order."""
    monkeypatch.setattr(system, "set_threads", lambda count: count)
    asked = config(threads=threads, batch_tokens=batch_tokens, dropout=dropout)
    made = decisions.decide(asked, tiny.decoder(("rope", {})), CPU)
    assert (made.at_once, made.micro_tokens) == (at_once, micro_tokens)


def test_settings_that_were_asked_for_are_taken():
    made = decisions.decide(config(threads=1, precision="bf16", micro_tokens=16), tiny.decoder(("rope", {})), CPU)
    assert (made.precision, made.micro_tokens) == ("bf16", 16)


@pytest.mark.parametrize(
    ("asked", "device", "compiler", "expected"),
    [
        ("auto", CPU, True, False),
        ("on", CPU, True, True),
        ("off", CUDA, True, False),
        ("auto", CUDA, False, False),
    ],
)
def test_compilation_is_a_rule(monkeypatch, asked: str, device: torch.device, compiler: bool, expected: bool):
    monkeypatch.setattr(system, "has_compiler", lambda: compiler)
    assert decisions.compile_decision(config(compile=asked), device)[0] is expected


def test_compilation_without_a_compiler_is_refused(monkeypatch):
    monkeypatch.setattr(system, "has_compiler", lambda: False)
    with pytest.raises(UserError, match="needs a C compiler"):
        decisions.compile_decision(config(compile="on"), CPU)


def test_a_batch_that_does_not_fit_is_cut_into_equal_parts_of_whole_windows(monkeypatch):
    """100 tokens' worth of memory, half of it used: 160 tokens need four parts, of 48 tokens (3 of 10 windows)."""
    a_token = decisions.activation_bytes(config(), "causal", "fp32")
    monkeypatch.setattr(decisions, "_memory", lambda device: 100 * a_token)
    made = decisions.decide(config(batch_tokens=160, threads=1), tiny.decoder(("rope", {})), CPU)
    assert made.micro_tokens == 48


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("encoding", "activation"), [("none", "swiglu"), ("none", "relu"), ("t5", "swiglu")])
def test_the_memory_of_a_token_is_what_a_pass_really_keeps(encoding: str, activation: str, precision: str):
    """Bytes of all tensors saved for the backward pass, at two batches: what is kept of each token, within a sixth."""
    asked = config(length=32)
    asked.model = Model("toy", layers=3, width=64, heads=2, hidden=160, activation=activation)
    shape = Shape(3, 64, 2, 32)
    decoder = Decoder(asked.model, 500, encodings.build(tiny.described(encoding), shape))
    weights = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}

    def kept(windows: int) -> int:
        saved: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        ids = tiny.ids(32, windows, vocab=500)
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
        ):
            loss = decoder.loss(ids, ids)
        assert loss.requires_grad
        return sum(storage.nbytes() for at, storage in saved.items() if at not in weights)

    a_token = (kept(24) - kept(8)) / (16 * 32)
    expected = decisions.activation_bytes(asked, decoder.kernel, precision)
    assert expected == pytest.approx(a_token, rel=1 / 6)


def test_scores_held_by_a_kernel_count_as_memory():
    """One row of keys a head: (2 layers + 1 that is going back) x 2 heads x 16 keys x 4 bytes = 384."""
    dense, causal = (decisions.activation_bytes(config(), kernel, "fp32") for kernel in ("dense", "causal"))
    assert dense - causal == 384


def test_a_resume_as_it_began_has_nothing_to_remark():
    assert decisions.obey(STORED, record()) == (STORED, [])


def test_each_stored_decision_holds_and_gets_one_line():
    asked = replace(STORED, threads=16, micro_tokens=512, compile=True, precision="bf16")
    kept, remarks = decisions.obey(asked, record())
    assert kept == STORED
    assert remarks == [
        "threads stays 2 as at step 0, though it would now be 16",
        "precision stays fp32 as at step 0, though it would now be bf16",
        "compile stays False as at step 0, though it would now be True",
        "micro_tokens stays 4096 as at step 0, though it would now be 512",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", "abc"),
        ("precision", "fp8"),
        ("device", "tpu"),
        ("compile", 1),
        ("kernel", None),
        ("at_once", 0),
        ("nproc", -1),
    ],
)
def test_a_stored_decision_that_is_none_is_named(name, value):
    """Obeyed, it would end in a traceback, or train on in another precision without a word."""
    damaged = record()
    damaged["decisions"][name] = value
    with pytest.raises(ValueError, match=f"of its decisions {name} is {value!r}"):
        decisions.obey(STORED, damaged)
    del damaged["decisions"][name]
    with pytest.raises(ValueError, match=f"{name} is None"):
        decisions.obey(STORED, damaged)


def test_another_number_of_processes_decides_anew_what_it_shares_out():
    """And nothing else; each of two has half of the threads, windows and memory."""
    asked = replace(STORED, nproc=2, threads=1, micro_tokens=2048, precision="bf16")
    kept, remarks = decisions.obey(asked, record())
    assert kept == replace(asked, precision="fp32")
    assert remarks == [
        "begun with nproc=1, goes on with nproc=2, each process with 1 threads and 2048 tokens a pass: its bits may "
        "differ from an undisturbed run's",
        "precision stays fp32 as at step 0, though it would now be bf16",
    ]
    assert decisions.obey(STORED, record(asked))[0] == replace(STORED, precision="bf16")


@pytest.mark.parametrize(("nproc", "threads", "windows"), [(1, 8, 5), (2, 4, 3), (4, 2, 2)])
def test_each_process_has_its_share_of_threads_and_windows(nproc, threads, windows, monkeypatch):
    """Of 5 windows and 8 cores; the largest share counts, so that all cut theirs alike."""
    monkeypatch.setattr(system, "DEFAULT_THREADS", 8)
    monkeypatch.setattr(system, "set_threads", lambda count: count)
    asked = replace(config(batch_tokens=80), nproc=nproc)
    made = decisions.decide(asked, tiny.decoder(("rope", {})), CPU)
    assert (made.nproc, made.threads, made.micro_tokens, made.at_once) == (nproc, threads, 16 * windows, 1)
    asked = replace(asked, train=replace(asked.train, threads=3))
    assert decisions.decide(asked, tiny.decoder(("rope", {})), CPU).threads == 3


def test_large_models_are_cut_into_pieces_where_there_are_several_processes(monkeypatch):
    """`base` has 85M parameters in blocks and `small` 32M; here the line is drawn at what a toy has."""
    several = replace(config(), nproc=2)

    def made(asked: Config, shard: str) -> Decisions:
        asked = replace(asked, train=replace(asked.train, shard=shard))
        return decisions.decide(asked, tiny.decoder(("rope", {})), CPU)

    assert 32e6 < shards.FROM < 85e6
    assert not made(several, "auto").shard
    assert made(several, "on").shard
    assert made(several, "on").reasons["shard"] == "asked for"
    monkeypatch.setattr(shards, "FROM", 1000)
    assert made(several, "auto").shard
    assert not made(several, "off").shard
    assert not made(config(), "on").shard


def test_weights_in_pieces_are_not_compiled(monkeypatch):
    monkeypatch.setattr(system, "has_compiler", lambda: True)
    assert decisions.compile_decision(config(), CUDA, shard=False)[0]
    assert not decisions.compile_decision(config(), CUDA, shard=True)[0]
    with pytest.raises(UserError, match=r"train\.compile=on does not go with weights in pieces"):
        decisions.compile_decision(config(compile="on"), CUDA, shard=True)


def test_what_cannot_be_had_back_is_said():
    """Another torch, another kernel, a device that is not here."""
    _, remarks = decisions.obey(STORED, record(torch_version="2.11.0"))
    assert remarks == [
        f"begun with torch 2.11.0, goes on with {torch.__version__}: its bits may differ from an undisturbed run's"
    ]
    kept, remarks = decisions.obey(replace(STORED, kernel="strided"), record())
    assert kept.kernel == "strided"
    assert remarks == [
        "begun with the kernel causal, goes on with strided: its bits may differ from an undisturbed run's"
    ]


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="needs a device that is not here")
def test_a_device_that_is_not_here_is_replaced():
    kept, remarks = decisions.obey(STORED, record(replace(STORED, device="mps")))
    assert kept.device == "cpu"
    assert remarks == ["begun on mps, goes on on cpu: its bits may differ from an undisturbed run's"]


def test_a_model_that_no_memory_holds_is_refused_before_it_is_made():
    """4 x 10^6 x 10^6 numbers in each layer's attention alone."""
    asked = config()
    decisions.refuse_oversized(asked, 257)
    asked.model.width = 10**6
    with pytest.raises(UserError, match=r"A model of [\d,]+ parameters takes [\d,]+ GiB, and this machine has"):
        decisions.refuse_oversized(asked, 257)
