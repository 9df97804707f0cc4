"""One run, from a config to finished weights.

    1. prepare   the text as ids; the model with the initial weights of (seed, tensor name)
    2. lock      the run's directory; a finished run is returned, another run's directory refused
    3. decide    device, threads, precision, compilation, micro-batch: once, at step 0, and kept from there on
    4. resume    weights, optimizer, counters and random numbers from the checkpoint, if there is one
    5. steps     a batch, its gradient in parts, one update; now and then a validation or a checkpoint
    6. finish    model.safetensors, status "done"; the checkpoint is removed

With nproc the steps are made by several processes, one of which does all the rest (posbench/processes.py): from 4 on
all of them are here, and what is asked of their `group` does nothing in a training alone.

The batches follow from the seed and the counters of `checkpoint.State`, dropout from a generator whose state is in the
checkpoint, and nothing from the clock but the moments of checkpoints. So on a CPU the weights are a function of the
config, however often the training was killed: the same command again goes on from the last checkpoint.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posbench
from posbench import checkpoint, elastic, initial, model, optim, processes, shards, system, trackers
from posbench.batches import Batches, Part, parts
from posbench.checkpoint import State
from posbench.config import Config, check
from posbench.data import tokens, windows
from posbench.data.tokens import Prepared, Stream
from posbench.decisions import Decisions, decide, obey, refuse_oversized
from posbench.errors import UserError, reason, refused
from posbench.group import ALONE, Group, most
from posbench.identity import label, to_dict
from posbench.journal import Journal
from posbench.lock import HeldError
from posbench.model import Decoder
from posbench.progress import LINE_SECONDS, duration, progress
from posbench.run import Run, directory
from posbench.side_by_side import each
from posbench.statistics import exp
from posbench.stop import Stop
from posbench.stored import damaged

VALIDATION_TARGETS = 32_768
"""The first so many targets of the validation split are read during training."""

CUDA_FETCH = 20
"""Steps whose losses stay on the GPU before they are fetched, which waits for all that is queued there."""

Say = Callable[[str], None]


def train(config: Config, command: str = "", say: Say = lambda text: None) -> Run:
    """Train the run of `config`, or go on with it, or return it when it is done; `say` is told in whole lines.

    Raises UserError when the config cannot be trained, when the directory holds another run, when another process is
    training this one, and when the loss is no longer finite (status "failed", the last checkpoint kept). On SIGINT and
    SIGTERM a checkpoint is written before KeyboardInterrupt or SystemExit (status "interrupted").

    With `config.nproc` it is trained by processes of their own, which tell stderr instead of `say`; ProcessError when
    one of them has ended.
    """
    config = processes.counted(config)
    check(config)
    device = system.device(config.device)
    processes.refuse(config, device)
    told = (lambda text: None) if elastic.said() else say
    run = Run(directory(config))
    prepared = tokens.prepare(config.data, initial.tokenizer(config), say=told)
    batches, valid = Batches(prepared.stream("train"), config), validation(prepared)
    if _trained(run, config, batches.stream.digest, say):
        return run
    refuse_oversized(config, prepared.tokenizer.vocab_size)
    if config.nproc > processes.started():
        elastic.start(run, config, command)
        return Run(run.path)
    decoder = _decoder(config, prepared).to(device)
    with run.lock():
        if _trained(run, config, batches.stream.digest, say):  # by another process, meanwhile
            return run

        def tell(text: str) -> None:
            run.log(text)
            say(text)

        decisions = decide(config, decoder, device)
        if run.started and (run.checkpoint.is_file() or run.status()["state"] != "failed"):
            try:
                decisions, remarks = obey(decisions, run.record)
            except ValueError as error:
                raise damaged(run.path / "run.json", str(error)) from error
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
        with processes.together(run, config, decisions) as group:
            decoder.to(group.place(device))
            optimizer, state = _resume(run, config, decisions, decoder, batches, group, tell)
            try:
                with trackers.following(config.tracker, run, to_dict(config), tell):
                    _loop(run, config, decisions, decoder, optimizer, state, batches, valid, group, tell)
            except HeldError:  # it is another process's now, and so is its status
                raise
            except Exception as error:
                full = system.out_of_memory(error)
                with suppress(OSError, UserError):  # on a full disk, say, the error itself must not be lost for this
                    run.fail("out of memory" if full else reason(refused(error) or error))
                if not full:
                    raise
                windows_a_part = max(1, decisions.micro_tokens // config.train.length // 2)
                hint = f"Ask for smaller parts: train.micro_tokens={windows_a_part * config.train.length}."
                raise UserError(f"{run.name}: a pass of {decisions.micro_tokens} tokens does not fit.", hint) from error
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


def _decoder(config: Config, prepared: Prepared) -> Decoder:
    """The model with the weights its training starts from, on the CPU."""
    decoder = model.build(config, prepared.tokenizer.vocab_size, prepared.tokenizer.end)
    initial.take_over(config, decoder)
    return decoder


def take_part(run: Run, config: Config, decisions: Decisions, group: Group) -> None:
    """Train together with the process that leads, which has decided all and writes all."""
    prepared = tokens.prepare(config.data, initial.tokenizer(config))
    batches, valid = Batches(prepared.stream("train"), config), validation(prepared)
    decoder = _decoder(config, prepared).to(group.place(torch.device(decisions.device)))

    def silent(text: str) -> None:
        pass

    optimizer, state = _resume(run, config, decisions, decoder, batches, group, silent)
    _loop(run, config, decisions, decoder, optimizer, state, batches, valid, group, silent)


def _resume(
    run: Run, config: Config, decisions: Decisions, decoder: Decoder, batches: Batches, group: Group, tell: Say
) -> tuple[optim.Optimizer, State]:
    """Step 4, in each process of `group`; `decoder` is whole and on its device."""
    device = decoder.embed.weight.device
    system.set_threads(decisions.threads)
    torch.manual_seed(group.seed(config.seed))
    if decisions.shard:
        shards.shard(decoder, device)
    optimizer = optim.build(decoder.train(), config.optim, steps_of(config))
    batches.own = group.share(batches.rows)
    state = State()
    if run.checkpoint.is_file():
        state = checkpoint.load(run.checkpoint, run.hash, decoder, optimizer, device, group)
        tell(f"going on from step {state.step} of {steps_of(config)}")
    group.refuse_apart(state.step)
    return optimizer, state


def _loop(
    run: Run,
    config: Config,
    decisions: Decisions,
    decoder: Decoder,
    optimizer: optim.Optimizer,
    state: State,
    batches: Batches,
    valid: Stream | None,
    group: Group,
    tell: Say,
) -> None:
    """Steps 5 and 6."""
    settings, steps, device = config.train, steps_of(config), decoder.embed.weight.device
    loss_of = compiled(decoder.loss) if decisions.compile else decoder.loss
    saved = time.monotonic()
    begun, told = saved - state.seconds, -math.inf
    run.write_status("running", **_status(config, batches, state))

    with (
        run.open_metrics(state.step) as metrics,
        Stop() as stop,
        progress(steps, run.name, shown=group.leads) as bar,
        system.peak_memory(device) as peak,
    ):
        journal = Journal(metrics, state, settings.batch_tokens, fetch=CUDA_FETCH if device.type == "cuda" else 1)
        while state.step < steps:
            batch, positions = batches.next(state, decoder, device)
            loss = gradient(decoder, loss_of, batch, positions, decisions, batches.rows)
            group.add_up([loss, *shards.whole_gradients(decoder)])
            norm, rate = optimizer.step(state.step)
            decoder.constrain()
            state.step += 1
            state.seconds = time.monotonic() - begun
            journal.add(loss, norm, rate)
            last = state.step == steps
            if valid and (last or _crosses(settings.validate_tokens, state.step, settings.batch_tokens)):
                journal.add_validation(validate(decoder, valid, config, decisions, group))
                if last or time.monotonic() - told >= LINE_SECONDS:
                    told = time.monotonic()
                    tell(f"step {state.step} of {steps}: {_valid(state)}, {journal.text}")
            asked, due = group.agree(stop, time.monotonic() - saved >= settings.checkpoint_seconds)
            if not last and (asked or due):
                journal.fetch()
                checkpoint.save(run.checkpoint, run.hash, state, decoder, optimizer, device, group)
                run.write_status("interrupted" if asked else "running", **_status(config, batches, state))
                saved = time.monotonic()
                if asked:
                    with suppress(OSError):  # a full disk, say: all that has to be kept is
                        tell(f"interrupted at step {state.step} of {steps}, with a checkpoint")
                    stop.leave()
            bar.update(state.step, journal.text)
        journal.fetch()

    checkpoint.save_weights(run.weights, run.hash, state.step, decoder, group)
    run.finish(**_status(config, batches, state), peak_memory=peak.bytes)
    tell(f"done in {duration(state.seconds)}: {_valid(state)}")
    stop.leave()


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` compiled for the shapes it is called with.

    Models of one class share their code, and each is one more entry of its cache: at the default limit of 8 the ninth
    would run eager and say nothing. For the same reason the shapes are static: otherwise a second length would make all
    that is compiled later general, and slower.
    """
    import torch._dynamo

    fast = torch.compile(function, dynamic=False)

    def run(*batch: Any) -> Tensor:
        # Torch keeps these by thread, and parts of a batch are computed by threads of their own.
        torch._dynamo.config.recompile_limit = 1024
        torch._dynamo.config.accumulated_recompile_limit = 1024
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        return fast(*batch)

    return run


def gradient(
    decoder: Decoder,
    loss_of: Callable[..., Tensor],
    batch: Tensor,
    positions: Tensor | None,
    decisions: Decisions,
    rows: int = 0,
) -> Tensor:
    """Add the gradient of the mean nats a token of `batch` (B, L + 1) and return that mean, a scalar.

    `loss_of` is the decoder's loss, compiled or not. The batch is cut into parts of `micro_tokens`, of which `at_once`
    are computed at the same time; each counts by its share of the tokens, so that the cut, and a shorter last part,
    change nothing but rounding. They are added up in their order, whichever is done first.

    Of a batch that is one process's share of `rows` windows it is the share of the mean over all of them: the sum over
    the processes is that mean. Weights in pieces are gathered for each part, so all processes have the same number.
    """
    parameters, rows = list(decoder.parameters()), rows or len(batch)
    of_a_pass = max(1, decisions.micro_tokens // (batch.shape[1] - 1))
    passes = math.ceil(most(rows, decisions.nproc) / of_a_pass) if decisions.shard else 0

    def of_part(part: Part) -> tuple[Tensor, Sequence[Tensor | None]]:
        with decisions.autocast():
            loss = loss_of(part.ids[:, :-1], part.ids[:, 1:], part.positions) * part.weight
        if decisions.shard:  # which leaves its own pieces of the gradient
            loss.backward()
            return loss.detach(), [None] * len(parameters)
        return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

    total = batch.new_zeros((), dtype=torch.float32)
    for loss, found in each(of_part, parts(batch, positions, of_a_pass, rows, passes), decisions.at_once):
        total += loss
        for parameter, grad in zip(parameters, found, strict=True):
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
    return total


def validate(decoder: Decoder, stream: Stream, config: Config, decisions: Decisions, group: Group = ALONE) -> float:
    """Nats a token at the training length, over the first targets of the validation split, nonoverlapping.

    Each process of `group` reads every so many of them.
    """
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
    batches = list(windows.batches(cut, max(length, decisions.micro_tokens)))
    total = sum(each(nats, batches[group.rank :: group.count], decisions.at_once))
    if decisions.shard and 0 < len(batches) % group.count <= group.rank:
        nats(batches[-1])  # the others gather the weights once more, for which all are needed
    decoder.train()
    return group.total(total) / cut.targets


def parameters(decoder: Decoder) -> dict[str, int]:
    """Parameters in the blocks (the final norm with them), the embedding, which is the head too, and the encoding."""
    embedding = decoder.embed.weight.numel()
    encoding = sum(p.numel() for p in decoder.encoding.parameters())
    total = sum(p.numel() for p in decoder.parameters())
    return {"blocks": total - embedding - encoding, "embedding": embedding, "encoding": encoding, "total": total}


def steps_of(config: Config) -> int:
    """Updates of a whole training."""
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
        "steps": steps_of(config),
        "decisions": asdict(decisions),
        "caveat": initial.caveat(config, decoder.encoding),
        "command": command,
        "versions": {"posbench": posbench.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": system.commit(),
    }


def _status(config: Config, batches: Batches, state: State) -> dict[str, Any]:
    return {
        "step": state.step,
        "steps": steps_of(config),
        "tokens": state.step * config.train.batch_tokens,
        "epochs": batches.epochs(state),
        "loss": state.loss,
        "valid": state.valid,
        "seconds": state.seconds,
    }


def _outline(config: Config, prepared: Prepared, stream: Stream, decoder: Decoder) -> str:
    """One line on what is about to be trained."""
    sizes, steps = parameters(decoder), steps_of(config)
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


def validation(prepared: Prepared) -> Stream | None:
    """The split that is read during training, if the corpus has one with text in it."""
    stream = prepared.stream("validation") if "validation" in prepared.splits else None
    return stream if stream and stream.targets else None
