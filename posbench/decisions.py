"""What is decided once for a run, at step 0, because it can change the last bits of its weights: device, threads,
precision, compilation, attention kernel, micro-batch.

Every decision is a rule, never a timing, so that one machine decides the same each time. It is stored in the record
with its reason and obeyed by every resume, also where the command line or another machine would now decide otherwise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_origin, get_type_hints

import torch

from posbench import attention, processes, shards, system
from posbench.config import Config
from posbench.data import windows
from posbench.errors import UserError
from posbench.group import most
from posbench.model import Decoder
from posbench.search_path import choices

OF_PROCESSES = ("nproc", "shard", "compile", "threads", "at_once", "micro_tokens")
"""Decisions that follow from the number of processes."""

LEAST_TOKENS = 512
"""Of a pass that has a thread to itself: with fewer, adding up the gradients of all weights takes too much of it."""


_ALLOWED = {"device": ("cpu", "cuda", "mps"), "precision": ("fp32", "bf16"), "kernel": attention.KERNELS}
_COUNT = range(1, 2**40)


@dataclass(frozen=True)
class Decisions:
    device: str
    """cpu | cuda | mps"""
    threads: int
    precision: str
    """fp32 | bf16 (autocast)"""
    compile: bool
    kernel: str
    micro_tokens: int
    """Tokens of one forward and backward pass."""
    at_once: int = 1
    """Passes computed at the same time, each on its share of the threads."""
    nproc: int = 1
    """Processes; what is said of threads, passes and tokens is of each."""
    shard: bool = False
    """Whether each keeps only a piece of the weights (posbench/shards.py)."""
    reasons: dict[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> Decisions:
        """Those of a run's record. Raises ValueError for what cannot be one."""
        kinds = get_type_hints(cls)
        for name, kind in kinds.items():
            value = values.get(name)
            allowed = _ALLOWED.get(name, _COUNT if kind is int else [value])
            if type(value) is not (get_origin(kind) or kind) or value not in allowed:
                raise ValueError(f"of its decisions {name} is {value!r}")
        return cls(**{name: values[name] for name in kinds})

    def explained(self) -> list[str]:
        """ "threads 2 (the machine's cores)", ..."""
        values = {key: value for key, value in asdict(self).items() if key != "reasons"}
        for key in ("compile", "shard"):
            values[key] = "on" if values[key] else "off"
        if self.nproc == 1:
            del values["nproc"], values["shard"]
        return [
            f"{key} {value}" + (f" ({self.reasons[key]})" if key in self.reasons else "")
            for key, value in values.items()
        ]

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")


def precision_of(config: Config, device: torch.device) -> str:
    """fp32 | bf16: of the passes of a training; what is stored, and the optimizer, are float32 always."""
    asked = config.train.precision
    return ("bf16" if device.type == "cuda" else "fp32") if asked == "auto" else asked


def decide(config: Config, decoder: Decoder, device: torch.device) -> Decisions:
    """The decisions for a run of `config` that starts now on `device`, where `decoder` already is."""
    settings = config.train
    shard, why_shard = _shard(config, decoder)
    compiled, why_compiled = compile_decision(config, device, shard)
    near = processes.here(config)
    threads = system.set_threads(settings.threads or max(1, system.DEFAULT_THREADS // near))
    precision = precision_of(config, device)
    length = settings.length
    positions = decoder.positions([0], length, windows.generators(config.seed, "train", [0]))
    kernel, why_kernel = decoder.picks(length, positions)
    share = most(settings.batch_tokens // length, config.nproc) * length
    at_once, why_at_once = _at_once(config, share, threads, device, shard)
    memory = _memory(device) // (near if device.type == "cpu" else 1)
    micro, why_micro = _micro_tokens(config, share, kernel, precision, memory, at_once)
    reasons = {
        "threads": "given by train.threads, workers or the cluster"
        if settings.threads
        else "the machine's cores" + (f", divided by {near}" if near > 1 else ""),
        "precision": "asked for" if settings.precision != "auto" else f"auto on {device.type}",
        "compile": why_compiled,
        "kernel": why_kernel,
        "micro_tokens": why_micro,
        "at_once": why_at_once,
        "shard": why_shard,
    }
    return Decisions(device.type, threads, precision, compiled, kernel, micro, at_once, config.nproc, shard, reasons)


def refuse_oversized(config: Config, vocab_size: int) -> None:
    """Raise UserError for a model whose weights alone are more than the memory of this machine, where it is made."""
    shape = config.model
    block = 4 * shape.width**2 + (3 if shape.activation == "swiglu" else 2) * shape.width * shape.hidden
    weights = vocab_size * shape.width + shape.layers * block
    if 4 * weights > (there := _memory(torch.device("cpu"))):
        raise UserError(
            f"A model of {weights:,} parameters takes {4 * weights / 2**30:,.0f} GiB, and this machine has "
            f"{there / 2**30:,.0f}.",
            f"model: {', '.join(choices('model'))}",
        )


def compile_decision(config: Config, device: torch.device, shard: bool = False) -> tuple[bool, str]:
    """Whether `torch.compile` is used, and why. Raises UserError when it is asked for and cannot work."""
    if shard and config.train.compile == "on":
        raise UserError(
            "train.compile=on does not go with weights in pieces, which are gathered between the blocks.",
            "Add train.shard=off, or leave compile at auto.",
        )
    if shard:
        return False, "weights in pieces are gathered between the blocks"
    if config.train.compile == "on":
        if not system.has_compiler():
            raise UserError(
                "train.compile=on needs a C compiler, and there is none.", "Leave it at auto, or install gcc."
            )
        return True, "asked for"
    if config.train.compile == "off":
        return False, "asked for"
    if device.type != "cuda":
        return False, f"auto on {device.type}: a short run does not earn the compilation back"
    if not system.has_compiler():
        return False, "auto: there is no C compiler"
    return True, "auto on cuda"


def obey(asked: Decisions, record: Mapping[str, Any]) -> tuple[Decisions, list[str]]:
    """The decisions a resume works under, and a line for everything that is not as it would now be decided.

    `record` is the run's, with `decisions` and `versions`. The stored decisions hold; only a device that is not there
    and a kernel that is no longer picked cannot be had back, and another number of processes decides anew what it
    shares out. Then the bits may differ from an undisturbed run's. Raises as `Decisions.from_record`.
    """
    stored = Decisions.from_record(record["decisions"])
    remarks, differs = [], "its bits may differ from an undisturbed run's"
    begun = record["versions"]["torch"]
    if stored.nproc != asked.nproc:
        remarks.append(
            f"begun with nproc={stored.nproc}, goes on with nproc={asked.nproc}, each process with {asked.threads} "
            f"threads and {asked.micro_tokens} tokens a pass: {differs}"
        )
        stored = replace(stored, **{key: getattr(asked, key) for key in OF_PROCESSES})
    if begun != torch.__version__:
        remarks.append(f"begun with torch {begun}, goes on with {torch.__version__}: {differs}")
    if stored.device != asked.device:
        try:
            system.device(stored.device)
        except UserError:
            stored = replace(stored, device=asked.device)
            remarks.append(f"begun on {record['decisions']['device']}, goes on on {asked.device}: {differs}")
    if stored.device == asked.device and stored.kernel != asked.kernel:
        remarks.append(f"begun with the kernel {stored.kernel}, goes on with {asked.kernel}: {differs}")
        stored = replace(stored, kernel=asked.kernel)
    for key in ("device", "threads", "precision", "compile", "micro_tokens", "at_once", "shard"):
        kept, wanted = getattr(stored, key), getattr(asked, key)
        if kept != wanted:
            remarks.append(f"{key} stays {kept} as at step 0, though it would now be {wanted}")
    return stored, remarks


def activation_bytes(config: Config, kernel: str, precision: str) -> int:
    """The memory that one token of a training pass holds until its backward pass, as counted for the default block.

    Of tensors: a process on a CPU takes about a quarter more, because its allocator keeps what was freed between them.

    Float32 rows: a layer keeps 10 of the model's width and 4 of the feed-forward's (ReLU 1: its output alone), and one
    of the keys for each head where its kernel holds scores; the passes before and after the layers keep 4 of the width,
    and the backward pass of one layer's scores takes their size once more. Autocast keeps half as much of the
    feed-forward and 8.5 of the width.
    """
    shape, half = config.model, precision == "bf16"
    inner = (4 if shape.activation == "swiglu" else 1) * shape.hidden
    scores = shape.heads * config.train.length if kernel in ("dense", "blocks") else 0
    layer = (8.5 * shape.width + inner / 2 if half else 10 * shape.width + inner) + scores
    return int(4 * (shape.layers * layer + 4 * shape.width + scores))


def _shard(config: Config, decoder: Decoder) -> tuple[bool, str]:
    """Whether each process keeps only a piece of the weights."""
    if config.nproc == 1:
        return False, "one process"
    if config.train.shard != "auto":
        return config.train.shard == "on", "asked for"
    size = sum(parameter.numel() for parameter in decoder.blocks.parameters())
    than = "fewer" if size < shards.FROM else "no fewer"
    return size >= shards.FROM, f"auto: {than} than {shards.FROM / 1e6:.0f}M parameters in blocks"


def _at_once(config: Config, share: int, threads: int, device: torch.device, shard: bool) -> tuple[int, str]:
    """Passes at the same time: one for each thread of a CPU, as far as each has enough to do of `share` tokens."""
    length = config.train.length
    if shard:
        return 1, "weights in pieces are gathered for one pass"
    if device.type != "cpu":
        return 1, f"always on {device.type}"
    if config.train.dropout > 0:
        return 1, "what dropout draws depends on the order of the passes"
    least = max(length, LEAST_TOKENS)
    return max(1, min(threads, share // least)), f"as many as have {least} tokens and a thread"


def _micro_tokens(
    config: Config, share: int, kernel: str, precision: str, memory: int, at_once: int
) -> tuple[int, str]:
    """Tokens of one pass, of the `share` of a batch that a process computes: an equal part of whole windows for each of
    the passes at once, or of more passes where the activations of these would take more than half the memory."""
    length, what = config.train.length, "batch" if config.nproc == 1 else "share of a process"
    if config.train.micro_tokens:
        return max(1, min(config.train.micro_tokens, share) // length) * length, "asked for"
    needed = share * activation_bytes(config, kernel, precision)
    parts = math.ceil(needed / (memory / 2))
    micro = math.ceil(share / length / parts / at_once) * length
    if parts > 1:
        return micro, f"a pass of the whole {what} would take {needed / 2**30:.1f} GiB"
    return micro, f"the whole {what}" if at_once == 1 else f"an equal share of the {what}"


def _memory(device: torch.device) -> int:
    """Bytes of the device's memory, in use or not."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
