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
from typing import Any

import torch

from posbench import system
from posbench.config import Config
from posbench.data import windows
from posbench.errors import UserError
from posbench.model import Decoder
from posbench.search_path import choices

LEAST_TOKENS = 512
"""Of a pass that has a thread to itself: with fewer, adding up the gradients of all weights takes too much of it."""


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
    reasons: dict[str, str] = field(default_factory=dict, compare=False)

    def explained(self) -> list[str]:
        """ "threads 2 (the machine's cores)", ..."""
        values = {key: value for key, value in asdict(self).items() if key != "reasons"}
        values["compile"] = "on" if self.compile else "off"
        return [
            f"{key} {value}" + (f" ({self.reasons[key]})" if key in self.reasons else "")
            for key, value in values.items()
        ]

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")


def decide(config: Config, decoder: Decoder, device: torch.device) -> Decisions:
    """The decisions for a run of `config` that starts now on `device`, where `decoder` already is."""
    settings = config.train
    compiled, why_compiled = compile_decision(config, device)
    threads = system.set_threads(settings.threads)
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    length = settings.length
    positions = decoder.positions([0], length, windows.generators(config.seed, "train", [0]))
    kernel, why_kernel = decoder.picks(length, positions)
    at_once, why_at_once = _at_once(config, threads, device)
    micro, why_micro = _micro_tokens(config, kernel, precision, device, at_once)
    reasons = {
        "threads": "asked for" if settings.threads else "the machine's cores",
        "precision": "asked for" if settings.precision != "auto" else f"auto on {device.type}",
        "compile": why_compiled,
        "kernel": why_kernel,
        "micro_tokens": why_micro,
        "at_once": why_at_once,
    }
    return Decisions(device.type, threads, precision, compiled, kernel, micro, at_once, reasons)


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


def compile_decision(config: Config, device: torch.device) -> tuple[bool, str]:
    """Whether `torch.compile` is used, and why. Raises UserError when it is asked for and cannot work."""
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
    and a kernel that is no longer picked cannot be had back, and then the bits may differ from an undisturbed run's.
    """
    stored = Decisions(**record["decisions"])
    remarks, differs = [], "its bits may differ from an undisturbed run's"
    if record["versions"]["torch"] != torch.__version__:
        remarks.append(f"begun with torch {record['versions']['torch']}, goes on with {torch.__version__}: {differs}")
    if stored.device != asked.device:
        try:
            system.device(stored.device)
        except UserError:
            stored = replace(stored, device=asked.device)
            remarks.append(f"begun on {record['decisions']['device']}, goes on on {asked.device}: {differs}")
    if stored.device == asked.device and stored.kernel != asked.kernel:
        remarks.append(f"begun with the kernel {stored.kernel}, goes on with {asked.kernel}: {differs}")
        stored = replace(stored, kernel=asked.kernel)
    for key in ("device", "threads", "precision", "compile", "micro_tokens", "at_once"):
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


def _at_once(config: Config, threads: int, device: torch.device) -> tuple[int, str]:
    """Passes at the same time: one for each thread of a CPU, as far as each has enough to do."""
    batch, length = config.train.batch_tokens, config.train.length
    if device.type != "cpu":
        return 1, f"always on {device.type}"
    if config.train.dropout > 0:
        return 1, "what dropout draws depends on the order of the passes"
    least = max(length, LEAST_TOKENS)
    return max(1, min(threads, batch // least)), f"as many as have {least} tokens and a thread"


def _micro_tokens(config: Config, kernel: str, precision: str, device: torch.device, at_once: int) -> tuple[int, str]:
    """Tokens of one pass: an equal share of whole windows for each of the passes at once, or of more passes where the
    activations of these would take more than half the memory."""
    batch, length = config.train.batch_tokens, config.train.length
    if config.train.micro_tokens:
        return max(1, min(config.train.micro_tokens, batch) // length) * length, "asked for"
    needed = batch * activation_bytes(config, kernel, precision)
    parts = math.ceil(needed / (_memory(device) / 2))
    micro = math.ceil(batch / length / parts / at_once) * length
    if parts > 1:
        return micro, f"a pass of the whole batch would take {needed / 2**30:.1f} GiB"
    return micro, "the whole batch" if at_once == 1 else "an equal share of the batch"


def _memory(device: torch.device) -> int:
    """Bytes of the device's memory, in use or not."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
