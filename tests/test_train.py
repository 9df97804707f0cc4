"""The loop's parts: batches, gradients in parts, validation, what is written, and the plan of a dry run."""

from __future__ import annotations

import errno
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import toys

from posbench import model, train
from posbench import run as runs
from posbench.checkpoint import State
from posbench.config import Config, Optim
from posbench.data import tokens
from posbench.decisions import Decisions
from posbench.errors import UserError

pytestmark = pytest.mark.usefixtures("folders")

CPU = torch.device("cpu")


def decided(micro_tokens: int, precision: str = "fp32", at_once: int = 1) -> Decisions:
    return Decisions("cpu", 1, precision, False, "causal", micro_tokens, at_once)


def stream(config: Config, split: str = "train") -> tokens.Stream:
    return tokens.prepare(config.data, config.tokenizer).stream(split)


def gradients(
    config: Config, batch: torch.Tensor, micro_tokens: int, at_once: int = 1
) -> tuple[float, dict[str, torch.Tensor]]:
    decoder = model.build(config, 257, 256)
    loss = train.gradient(decoder, decoder.loss, batch, None, decided(micro_tokens, at_once=at_once))
    return loss.item(), {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("micro_windows", [1, 2, 3, 5, 8])
def test_a_batch_in_parts_has_the_gradient_of_the_whole(data: dict, micro_windows: int):
    """TRAIN-1: 8 windows at once against 8 x 1, 4 x 2, and 3 + 3 + 2 and 5 + 3, whose last part is shorter."""
    config = toys.config(data)
    batch = tiny.ids(17, batch=8, vocab=257)
    loss, whole = gradients(config, batch, 8 * 16)
    part_loss, parts = gradients(config, batch, micro_windows * 16)
    assert part_loss == pytest.approx(loss, abs=1e-6)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("at_once", [2, 3, 5])
def test_how_many_parts_are_computed_at_once_changes_no_bit(data: dict, at_once: int):
    """5 parts of 2 windows, the last of 1, are added up in their order, whichever is done first."""
    config, batch = toys.config(data), tiny.ids(17, batch=9, vocab=257)
    loss, one_by_one = gradients(config, batch, 2 * 16)
    for _ in range(3):
        again, found = gradients(config, batch, 2 * 16, at_once)
        assert again == loss
        assert all(torch.equal(found[name], gradient) for name, gradient in one_by_one.items())


def test_the_loss_is_of_the_next_token(data: dict):
    """PPL-3 in training: the targets are the inputs shifted by one, once. By hand: -log softmax at each next id."""
    config = toys.config(data)
    decoder = model.build(config, 257, 256)
    batch = tiny.ids(17, batch=2, vocab=257)
    loss = train.gradient(decoder, decoder.loss, batch, None, decided(32)).item()
    scores = tiny.logits(decoder, batch[:, :-1]).double()
    by_hand = [-scores[b, t].log_softmax(-1)[batch[b, t + 1]].item() for b in range(2) for t in range(16)]
    assert loss == pytest.approx(sum(by_hand) / 32, abs=1e-5)


def test_an_epoch_reads_every_window_once_and_a_batch_crosses_its_end(data: dict):
    """641 ids, L = 16, 4 windows a batch: 39 windows in the first epoch, whose end falls inside a batch. No batch is
    short, and the windows of the epoch come once each, in the order that `windows.training` draws."""
    config = toys.config(data, batch_tokens=64)
    source = stream(config)
    batches, state = train.Batches(source, config), State()
    decoder = model.build(config, 257, 256)
    rows = []
    while state.epoch < 3:
        batch, positions = batches.next(state, decoder, CPU)
        assert batch.shape == (4, 17)
        assert positions is None
        rows += list(batch.numpy())
    assert state.read == len(rows)
    cut = train.windows.training(len(source.ids), 16, config.seed, 0)
    assert len(cut) == 39
    for row, begin in zip(rows, cut.begin, strict=False):
        assert row.tolist() == source.ids[begin : begin + 17].tolist()


def test_batches_go_on_from_their_counters(data: dict):
    """CKPT-1: the counters alone place the next batch, also in a later epoch."""
    config = toys.config(data, batch_tokens=48)
    decoder = model.build(config, 257, 256)
    batches, state = train.Batches(stream(config), config), State()
    for _ in range(17):
        batches.next(state, decoder, CPU)
    resumed, copy = train.Batches(stream(config), config), replace(state)
    assert state.epoch == 1
    for _ in range(20):
        expected = batches.next(state, decoder, CPU)[0]
        assert torch.equal(resumed.next(copy, decoder, CPU)[0], expected)
    assert copy == state


def test_two_encodings_see_the_same_batches_from_the_same_shared_weights(data: dict):
    """What differs between them is the encoding alone."""
    rope, t5 = toys.config(data, "rope"), toys.config(data, "t5")
    one, other = model.build(rope, 257, 256), model.build(t5, 257, 256)
    for name, tensor in one.named_parameters():
        assert torch.equal(tensor, dict(other.named_parameters())[name])
    first, second = train.Batches(stream(rope), rope), train.Batches(stream(t5), t5)
    a, b = State(), State()
    for _ in range(25):
        assert torch.equal(first.next(a, one, CPU)[0], second.next(b, other, CPU)[0])


def test_validation_is_the_mean_over_targets_not_over_windows(data: dict):
    """201 targets at L = 16: twelve windows of 16 and one of 9, each target once (PPL-1, PPL-2). Dropout is off."""
    config = toys.config(data, dropout=0.5)
    decoder = model.build(config, 257, 256).train()
    source = stream(config, "validation")
    ids = torch.from_numpy(source.ids.astype(np.int64))
    total = 0.0
    for begin in range(0, source.targets, 16):
        end = min(begin + 16, source.targets)
        losses = decoder.eval().token_losses(ids[None, begin:end], ids[None, begin + 1 : end + 1])
        total += losses.double().sum().item()
    decoder.train()
    assert source.targets == 201
    for micro in (16, 64):
        valid = train.validate(decoder, source, config, decided(micro))
        assert valid == pytest.approx(total / 201, abs=1e-7)
    assert decoder.training


def test_a_run_writes_what_it_did(data: dict):
    """60 steps of 32 tokens: a validation at 15, 30, 45 and 60; one line a step; the record of step 0; no leftovers."""
    said: list[str] = []
    config = toys.config(data)
    run = train.train(config, "posbench train ...", said.append)
    lines = run.metrics()
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 61))
    assert [line["tokens"] for line in steps] == [32 * step for step in range(1, 61)]
    assert all({"loss", "lr", "norm", "tokens_per_second", "seconds"} < line.keys() for line in steps)
    assert [line["step"] for line in lines if "valid" in line] == [15, 30, 45, 60]
    assert steps[-1]["loss"] < steps[0]["loss"] - 1
    status = run.status()
    assert (status["state"], status["step"], status["steps"], status["tokens"]) == ("done", 60, 60, 1920)
    assert status["epochs"] == pytest.approx(60 / 20, abs=0.1)
    assert status["loss"] == steps[-1]["loss"]
    assert status["valid"] == lines[-1]["valid"]
    assert status["peak_memory"] > 2**20
    assert run.record["command"] == "posbench train ..."
    assert run.record["ids_digest"] == stream(config).digest
    assert run.record["decisions"]["kernel"] == "causal"
    stored = {"run.json", "config.yaml", "tokenizer.json", "status.json", "metrics.jsonl", "log.txt"}
    assert {file.name for file in run.path.iterdir()} == {*stored, "model.safetensors"}
    run.check_whole()
    log = (run.path / "log.txt").read_text()
    first = next(number for number, line in enumerate(said) if line.startswith(run.name))
    assert len(said[first:]) > 4
    # Half a minute apart at least, and the last: a log grows with time, not with steps.
    assert [line.split(":")[0] for line in said if line.startswith("step")] == ["step 15 of 60", "step 60 of 60"]
    assert all(line in log for line in said[first:])


def test_the_finished_model_has_the_validation_loss_that_was_reported(data: dict):
    """Reloaded through the run directory, with its own tokenizer and config: the same number to the last digit."""
    config = toys.config(data, "alibi", dropout=0.1)
    run = runs.find(train.train(config).name)
    decoder = run.model()
    assert not decoder.training
    valid = train.validate(decoder, stream(config, "validation"), run.config, decided(32))
    assert valid == run.status()["valid"]
    assert run.tokenizer().decode(run.tokenizer().encode("the cat")[0]) == "the cat"


def test_another_tokenizer_in_the_folder_is_refused(data: dict):
    """Its ids would mean other words."""
    run = train.train(toys.config(data, steps=2))
    other = tokens.prepare(data, {"name": "bpe", "kind": "bpe", "vocab_size": 300}).tokenizer
    other.save(run.path / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged: it is not the tokenizer of the training"):
        run.model()


def broken(config: Config, error: Exception, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """What a training raises whose first step raises `error`."""

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(train, "gradient", fail)
        with pytest.raises(Exception) as caught:  # noqa: PT011 (each test says which)
            train.train(config)
    return caught.value


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("The loss is nan.", "Try a lower optim.lr."), "The loss is nan"),
        (RuntimeError("it broke\nin forty lines"), "it broke"),
        (AssertionError(), "AssertionError"),
        (OSError(errno.ENOSPC, "No space left on device", "a.txt"), "No space left on device: a.txt"),
    ],
)
def test_why_a_training_failed_is_one_line_in_its_status(data: dict, error: Exception, said: str, monkeypatch):
    config = toys.config(data, steps=2)
    assert broken(config, error, monkeypatch) is error
    status = runs.Run(runs.directory(config)).status()
    assert (status["state"], status["reason"]) == ("failed", said)


def test_why_a_training_failed_is_not_lost_where_it_cannot_be_written(data: dict, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "status.json")

    monkeypatch.setattr(runs.Run, "fail", full)
    error = RuntimeError("it broke")
    assert broken(toys.config(data, steps=2), error, monkeypatch) is error


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_pass_that_does_not_fit_is_a_sentence_on_every_device(data: dict, error: Exception, monkeypatch):
    config = toys.config(data, steps=2, micro_tokens=32)
    said = broken(config, error, monkeypatch)
    assert isinstance(said, UserError)
    assert said.hint == "Ask for smaller parts: train.micro_tokens=16."
    assert runs.Run(runs.directory(config)).status()["reason"] == "out of memory"


def test_a_text_that_is_too_short_leaves_no_directory(tmp_path: Path):
    config = toys.config(toys.text(tmp_path / "short", size=10))
    with pytest.raises(UserError, match="The training text has 10 targets, fewer than one window of 16"):
        train.train(config)
    assert not runs.root().exists()


def test_a_corpus_without_validation_text_is_trained(data: dict):
    del data["validation"]
    said: list[str] = []
    run = train.train(toys.config(data, steps=3), say=said.append)
    assert run.status()["valid"] is None
    assert said[-1].endswith("the corpus has no validation text")


@pytest.mark.parametrize("encoding", ["alibi", "t5", "shaw"])
def test_bf16_trains_biases(data: dict, encoding: str):
    """MASK-3: two steps under bf16 autocast with a float32 bias, learned or not: no dtype error, a finite loss within
    2 % of float32's."""
    losses = []
    for precision in ("fp32", "bf16"):
        run = train.train(toys.config(data, encoding, steps=2, precision=precision))
        losses.append(run.status()["loss"])
        assert run.record["decisions"]["precision"] == precision
    assert math.isfinite(losses[1])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[0] != losses[1]


def test_every_learned_position_parameter_moves(data: dict):
    """TRAIN-2, through the whole loop: what an encoding owns is not left where it started."""
    for name in tiny.FILES:
        config = toys.config(data, name, steps=3)
        start = dict(model.build(config, 257, 256).named_parameters())
        end = train.train(config).model()
        for key, tensor in end.named_parameters():
            assert not torch.equal(tensor, start[key]), f"{name}: {key}"


def test_a_lower_loss_needs_no_luck(data: dict):
    """Both recipes learn the toy text: below the unigram entropy of its letters, about 2.6 nats, within 60 steps."""
    for method in ("muon", "adamw"):
        config = replace(toys.config(data), optim=Optim(name=method, method=method, lr=1e-2))
        assert train.train(config).status()["loss"] < 2.8


def test_metrics_are_json_without_nan(data: dict):
    run = train.train(toys.config(data, steps=2))
    for line in (run.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(word))


@pytest.mark.parametrize(("valid", "said"), [(3.5, "perplexity 33.115"), (800.0, "perplexity inf")])
def test_a_validation_past_all_perplexities_is_no_other_number(valid: float, said: str):
    """e^3.5 = 33.115; e^800 is past the largest float."""
    assert said in train._valid(State(valid=valid))


def test_what_an_encoding_leaves_untrained_is_said_and_recorded(data: dict):
    """16 distances are T5's 16 exact buckets; the other 16 hold longer ones."""
    said: list[str] = []
    run = train.train(toys.config(data, encoding="t5", steps=1), say=said.append)
    assert any(line.startswith("t5 at L = 16: buckets 16-31 are never trained") for line in said)
    assert run.record["caveat"].startswith("buckets 16-31")
    said.clear()
    assert train.train(toys.config(data, steps=1), say=said.append).record["caveat"] == ""
    assert not any(" at L = " in line for line in said)


def test_the_ninth_model_is_compiled_in_whatever_thread(monkeypatch: pytest.MonkeyPatch):
    """Torch compiles 8 of a class and then computes without a word as if nothing were compiled; what it is told of that
    it keeps by thread, and parts of a batch have threads of their own."""
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    limit = train.compiled(lambda: torch._dynamo.config.recompile_limit)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(limit).result() == 1024
        assert pool.submit(lambda: torch._dynamo.config.recompile_limit).result() == 1024
    assert limit() == 1024
