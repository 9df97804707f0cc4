"""One run, from a config to finished weights.

    1. prepare   the text as ids; the model with the initial weights of (seed, tensor name)
    2. lock      the run's directory; a finished run is returned, another run's directory refused
    3. decide    device, threads, precision, compilation, micro-batch: once, at step 0, and kept from there on
    4. resume    weights, optimizer, counters and random numbers from the checkpoint, if there is one
    5. steps     a batch, its gradient in parts, one update; now and then a validation or a checkpoint
    6. finish    model.safetensors, status "done"; the checkpoint is removed

The batches follow from the seed and the counters of `checkpoint.State`, dropout from a generator whose state is in the
checkpoint, and nothing from the clock but the moments of checkpoints. So on a CPU the weights are a function of the
config, however often the training was killed: the same command again goes on from the last checkpoint.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posbench
from posbench import checkpoint, head, initial, model, optim, system, trackers
from posbench.checkpoint import State
from posbench.config import Config, check
from posbench.data import tokens, windows
from posbench.data.tokens import Prepared, Stream
from posbench.decisions import Decisions, activation_bytes, decide, obey, refuse_oversized
from posbench.errors import UserError
from posbench.identity import label, to_dict
from posbench.journal import Journal
from posbench.lock import HeldError
from posbench.model import Decoder
from posbench.progress import LINE_SECONDS, duration, progress
from posbench.run import Run, directory
from posbench.side_by_side import each
from posbench.statistics import exp
from posbench.stop import Stop

VALIDATION_TARGETS = 32_768
"""The first so many targets of the validation split are read during training."""

PLAN_STEPS = 3
"""Real steps that `plan` times; the fastest counts."""

CUDA_FETCH = 20
"""Steps whose losses stay on the GPU before they are fetched, which waits for all that is queued there."""

Say = Callable[[str], None]


def train(config: Config, command: str = "", say: Say = lambda text: None) -> Run:
    """Train the run of `config`, or go on with it, or return it when it is done; `say` is told in whole lines.

    Raises UserError when the config cannot be trained, when the directory holds another run, when another process is
    training this one, and when the loss is no longer finite (status "failed", the last checkpoint kept). On SIGINT and
    SIGTERM a checkpoint is written before KeyboardInterrupt or SystemExit (status "interrupted").
    """
    check(config)
    device = system.device(config.device)
    prepared = tokens.prepare(config.data, initial.tokenizer(config), say=say)
    batches, valid = Batches(prepared.stream("train"), config), _validation(prepared)
    run = Run(directory(config))
    if _trained(run, config, batches.stream.digest, say):
        return run
    refuse_oversized(config, prepared.tokenizer.vocab_size)
    decoder = model.build(config, prepared.tokenizer.vocab_size, prepared.tokenizer.end)
    initial.take_over(config, decoder)
    decoder.to(device)
    with run.lock():
        if _trained(run, config, batches.stream.digest, say):  # by another process, meanwhile
            return run

        def tell(text: str) -> None:
            run.log(text)
            say(text)

        decisions = decide(config, decoder, device)
        if run.started and (run.checkpoint.is_file() or run.status()["state"] != "failed"):
            decisions, remarks = obey(decisions, run.record)
        else:
            run.begin(
                config, prepared.tokenizer, _record(config, prepared, batches.stream, decoder, decisions, command)
            )
            remarks = [_outline(config, prepared, batches.stream, decoder), "; ".join(decisions.explained())]
            if caveat := run.record["caveat"]:
                remarks.append(f"{label(config.encoding)} at L = {config.train.length:,}: {caveat}")
        for remark in remarks:
            tell(remark)

        if decisions.device != device.type:
            device = torch.device(decisions.device)
        system.set_threads(decisions.threads)
        torch.manual_seed(config.seed)
        decoder.to(device).train()
        optimizer = optim.build(decoder, config.optim, _steps(config))
        state = State()
        if run.checkpoint.is_file():
            state = checkpoint.load(run.checkpoint, run.hash, decoder, optimizer, device)
            tell(f"going on from step {state.step} of {_steps(config)}")
        try:
            with trackers.following(config.tracker, run, to_dict(config), tell):
                _loop(run, config, decisions, decoder, optimizer, state, batches, valid, tell)
        except HeldError:  # it is another process's now, and so is its status
            raise
        except torch.OutOfMemoryError as error:
            run.fail("out of memory")
            windows_a_part = max(1, decisions.micro_tokens // config.train.length // 2)
            hint = f"Ask for smaller parts: train.micro_tokens={windows_a_part * config.train.length}."
            raise UserError(f"{run.name}: a pass of {decisions.micro_tokens} tokens does not fit.", hint) from error
        except Exception as error:
            run.fail(str(error))
            raise
    return run


def _trained(run: Run, config: Config, ids_digest: str, say: Say) -> bool:
    """Whether the run is finished. Raises UserError when another one lies in its place, or its weights are damaged."""
    if run.started:
        run.refuse_other(config, ids_digest)
    if not run.started or not run.done:
        return False
    checkpoint.read_header(run.weights, "weights", run.hash)
    run.checkpoint.unlink(missing_ok=True)
    say(f"{run.name} is trained already")
    return True


def _loop(
    run: Run,
    config: Config,
    decisions: Decisions,
    decoder: Decoder,
    optimizer: optim.Optimizer,
    state: State,
    batches: Batches,
    valid: Stream | None,
    tell: Say,
) -> None:
    """Steps 5 and 6."""
    settings, steps, device = config.train, _steps(config), decoder.embed.weight.device
    loss_of = torch.compile(decoder.loss) if decisions.compile else decoder.loss
    saved = time.monotonic()
    begun, told = saved - state.seconds, -math.inf
    run.write_status("running", **_status(config, batches, state))

    with (
        run.open_metrics(state.step) as metrics,
        Stop() as stop,
        progress(steps, run.name) as bar,
        system.peak_memory(device) as peak,
    ):
        journal = Journal(metrics, state, settings.batch_tokens, fetch=CUDA_FETCH if device.type == "cuda" else 1)
        while state.step < steps:
            batch, positions = batches.next(state, decoder, device)
            loss = gradient(decoder, loss_of, batch, positions, decisions)
            norm, rate = optimizer.step(state.step)
            decoder.constrain()
            state.step += 1
            state.seconds = time.monotonic() - begun
            journal.add(loss, norm, rate)
            last = state.step == steps
            if valid and (last or _crosses(settings.validate_tokens, state.step, settings.batch_tokens)):
                journal.add_validation(validate(decoder, valid, config, decisions))
                if last or time.monotonic() - told >= LINE_SECONDS:
                    told = time.monotonic()
                    tell(f"step {state.step} of {steps}: {_valid(state)}, {journal.text}")
            if not last and (stop.asked or time.monotonic() - saved >= settings.checkpoint_seconds):
                journal.fetch()
                checkpoint.save(run.checkpoint, run.hash, state, decoder, optimizer, device)
                run.write_status("interrupted" if stop.asked else "running", **_status(config, batches, state))
                saved = time.monotonic()
                stop.leave()
            bar.update(state.step, journal.text)
        journal.fetch()

    checkpoint.save_weights(run.weights, run.hash, state.step, decoder)
    run.write_status("done", **_status(config, batches, state), peak_memory=peak.bytes)
    run.checkpoint.unlink(missing_ok=True)
    tell(f"done in {duration(state.seconds)}: {_valid(state)}")
    stop.leave()


class Batches:
    """The windows of the training stream in the order of their epochs, a batch across an epoch's end included."""

    def __init__(self, stream: Stream, config: Config) -> None:
        self.stream, self.length, self.seed = stream, config.train.length, config.seed
        self.rows = config.train.batch_tokens // config.train.length
        self.epoch = 0
        self.windows = self._windows(0)

    def _windows(self, epoch: int) -> windows.Windows:
        return windows.training(len(self.stream.ids), self.length, self.seed, epoch)

    def next(self, state: State, decoder: Decoder, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Ids (rows, length + 1) of the next batch and its position ids, None where they count; moves `state` on."""
        parts: list[np.ndarray] = []
        wanted = self.rows
        while wanted:
            if self.epoch != state.epoch:
                self.epoch, self.windows = state.epoch, self._windows(state.epoch)
            chosen = np.arange(state.window, min(state.window + wanted, len(self.windows)))
            inputs, targets = windows.gather(self.stream.ids, self.windows, chosen)
            parts.append(np.concatenate([inputs, targets[:, -1:]], axis=1))
            wanted -= len(chosen)
            state.window += len(chosen)
            if state.window == len(self.windows):
                state.epoch, state.window = state.epoch + 1, 0
        numbers = list(range(state.read, state.read + self.rows))
        state.read += self.rows
        positions = decoder.positions(numbers, self.length, windows.generators(self.seed, "train", numbers))
        return torch.from_numpy(np.concatenate(parts)).to(device), positions

    def epochs(self, state: State) -> float:
        """Passes over the training text so far."""
        return state.epoch + state.window / len(self.windows)


def gradient(
    decoder: Decoder,
    loss_of: Callable[..., Tensor],
    batch: Tensor,
    positions: Tensor | None,
    decisions: Decisions,
) -> Tensor:
    """Add the gradient of the mean nats a token of `batch` (B, L + 1) and return that mean, a scalar.

    `loss_of` is the decoder's loss, compiled or not. The batch is cut into parts of `micro_tokens`, of which `at_once`
    are computed at the same time; each counts by its share of the tokens, so that the cut, and a shorter last part,
    change nothing but rounding. They are added up in their order, whichever is done first.
    """
    parameters = list(decoder.parameters())
    rows = max(1, decisions.micro_tokens // (batch.shape[1] - 1))

    def of_part(first: int) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        part = batch[first : first + rows]
        own = positions if positions is None or len(positions) == 1 else positions[first : first + rows]
        with decisions.autocast():
            loss = loss_of(part[:, :-1], part[:, 1:], own) * (len(part) / len(batch))
        return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

    total = batch.new_zeros((), dtype=torch.float32)
    for loss, found in each(of_part, range(0, len(batch), rows), decisions.at_once):
        total += loss
        for parameter, grad in zip(parameters, found, strict=True):
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
    return total


def validate(decoder: Decoder, stream: Stream, config: Config, decisions: Decisions) -> float:
    """Nats a token at the training length, over the first targets of the validation split, nonoverlapping."""
    length, device = config.train.length, decoder.embed.weight.device
    cut = windows.nonoverlapping(len(stream.ids), length, VALIDATION_TARGETS)

    def nats(numbers: np.ndarray) -> float:
        inputs, targets = (torch.from_numpy(a).to(device) for a in windows.gather(stream.ids, cut, numbers))
        rng = windows.generators(config.seed, "validation", numbers)
        positions = decoder.positions(numbers.tolist(), inputs.shape[1], rng)
        with decisions.autocast():
            losses = decoder.token_losses(inputs, targets, positions)
        return losses.cpu().sum(dtype=torch.float64).item()

    decoder.eval()
    total = sum(each(nats, windows.batches(cut, max(length, decisions.micro_tokens)), decisions.at_once))
    decoder.train()
    return total / cut.targets


def parameters(decoder: Decoder) -> dict[str, int]:
    """Parameters in the blocks (the final norm with them), the embedding, which is the head too, and the encoding."""
    embedding = decoder.embed.weight.numel()
    encoding = sum(p.numel() for p in decoder.encoding.parameters())
    total = sum(p.numel() for p in decoder.parameters())
    return {"blocks": total - embedding - encoding, "embedding": embedding, "encoding": encoding, "total": total}


def plan(config: Config, say: Say = lambda text: None) -> dict[str, Any]:
    """What training `config` would be, without a trace in the runs folder: parameters, steps, tokens, epochs; from a
    few timed steps of the real model the estimated `seconds`, and from its shape the estimated `memory` in bytes.
    """
    check(config)
    device = system.device(config.device)
    prepared = tokens.prepare(config.data, initial.tokenizer(config), say=say)
    batches, valid = Batches(prepared.stream("train"), config), _validation(prepared)
    refuse_oversized(config, prepared.tokenizer.vocab_size)
    decoder = model.build(config, prepared.tokenizer.vocab_size, prepared.tokenizer.end).to(device).train()
    decisions, steps = decide(config, decoder, device), _steps(config)
    optimizer = optim.build(decoder, config.optim, steps)
    state = State()
    times = []
    for step in range(PLAN_STEPS):
        start = time.perf_counter()
        gradient(decoder, decoder.loss, *batches.next(state, decoder, device), decisions)
        optimizer.step(min(step, steps - 1))[0].item()
        times.append(time.perf_counter() - start)
    sizes, read = parameters(decoder), steps * config.train.batch_tokens
    # Weights and gradients in float32, the optimizer's state, what one pass keeps, and its head.
    stored = 8 * sizes["total"] + sum(t.numel() * t.element_size() for t in optimizer.tensors().values())
    kept = decisions.micro_tokens * activation_bytes(config, decisions.kernel, decisions.precision)
    vocab_size, width = decoder.embed.weight.shape
    kept += head.peak_bytes(decisions.micro_tokens, vocab_size, width, device.type)
    if decisions.at_once > 1:  # each with a gradient of its own
        kept = decisions.at_once * (kept + 4 * sizes["total"])
    # A validation is forward passes alone: a third of a training step's work for each token.
    targets = min(VALIDATION_TARGETS, valid.targets) if valid else 0
    validations = 1 + (read - 1) // config.train.validate_tokens
    return {
        "name": directory(config).name,
        "parameters": sizes,
        "steps": steps,
        "tokens": read,
        "epochs": read / batches.stream.targets,
        "seconds": min(times) * (steps + validations * targets / config.train.batch_tokens / 3),
        "memory": stored + kept,
        "decisions": decisions.explained(),
    }


def _steps(config: Config) -> int:
    return math.ceil(config.train.tokens / config.train.batch_tokens)


def _crosses(interval: int, step: int, batch_tokens: int) -> bool:
    """Whether a multiple of `interval` tokens was passed in this step."""
    return step * batch_tokens // interval > (step - 1) * batch_tokens // interval


def _record(
    config: Config, prepared: Prepared, stream: Stream, decoder: Decoder, decisions: Decisions, command: str
) -> dict[str, Any]:
    return {
        "ids_digest": stream.digest,
        "corpus": {"name": prepared.corpus, "fingerprint": prepared.corpus_fingerprint},
        "tokenizer": {"fingerprint": prepared.tokenizer.fingerprint, "vocab_size": prepared.tokenizer.vocab_size},
        "parameters": parameters(decoder),
        "steps": _steps(config),
        "decisions": asdict(decisions),
        "caveat": initial.caveat(config, decoder.encoding),
        "command": command,
        "versions": {"posbench": posbench.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": system.commit(),
    }


def _status(config: Config, batches: Batches, state: State) -> dict[str, Any]:
    return {
        "step": state.step,
        "steps": _steps(config),
        "tokens": state.step * config.train.batch_tokens,
        "epochs": batches.epochs(state),
        "loss": state.loss,
        "valid": state.valid,
        "seconds": state.seconds,
    }


def _outline(config: Config, prepared: Prepared, stream: Stream, decoder: Decoder) -> str:
    """One line on what is about to be trained."""
    sizes, steps = parameters(decoder), _steps(config)
    read = steps * config.train.batch_tokens
    places = ", ".join(f"{sizes[key]:,} in {key}" for key in ("blocks", "embedding", "encoding") if sizes[key])
    return (
        f"{directory(config).name}: parameters {places}; {steps:,} steps of {config.train.batch_tokens:,} tokens, "
        f"{read:,} in all: {read / stream.targets:.2f} epochs of {prepared.corpus}"
        + (f"; from the weights of {config.init_from['name']}" if config.init_from else "")
    )


def _valid(state: State) -> str:
    if state.valid is None:
        return "the corpus has no validation text"
    return f"{state.valid:.4f} nats a token of validation text (perplexity {exp(state.valid):.5g})"


def _validation(prepared: Prepared) -> Stream | None:
    """The split that is read during training, if the corpus has one with text in it."""
    stream = prepared.stream("validation") if "validation" in prepared.splits else None
    return stream if stream and stream.targets else None
