"""What a training needs to go on as if it had never stopped, in one safetensors file; and the finished weights.

    checkpoint.safetensors   model.* and optim.* tensors, rng.* byte tensors, and one metadata key holding JSON
    model.safetensors        the weights under their own names, and the same key

Both hold whole tensors, whatever the number of processes that train: pieces are gathered, tensor by tensor, and the
leader writes them. So a run goes on with another number. Of the other processes only the generators are kept beside
that, rng.cpu.1 and so on.

One file is one rename, so a kill leaves the old checkpoint or the new one. One metadata key, since safetensors writes
several in an order that changes from process to process, and equal weights must give equal bytes. No pickle is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from posbench import files, shards
from posbench.errors import UserError, reason, refused
from posbench.files import parse_json
from posbench.group import ALONE, Group
from posbench.optim import Optimizer

KEY = "posbench"


@dataclass
class State:
    """Every counter of a training."""

    step: int = 0
    """Updates made."""
    epoch: int = 0
    window: int = 0
    """Windows of this epoch already read."""
    read: int = 0
    """Windows read in all: the number of the next one, which seeds what is drawn for it."""
    loss: float | None = None
    """Nats a token of the last batch."""
    valid: float | None = None
    """Nats a token of the last validation."""
    seconds: float = 0.0
    """Time spent training, over all resumes."""


def save(
    path: Path,
    run_hash: str,
    state: State,
    model: nn.Module,
    optimizer: Optimizer,
    device: torch.device,
    group: Group = ALONE,
) -> None:
    """Replace the checkpoint at `path`. All processes of `group` must come here; its leader writes."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"optim.{name}": tensor for name, tensor in optimizer.tensors().items()}
    for name, tensor in _rng(device).items():
        tensors |= {f"rng.{name}{_of(rank)}": own for rank, own in enumerate(group.each(tensor))}
    _write(path, tensors, {"kind": "checkpoint", "hash": run_hash, "state": asdict(state)}, group)


def load(
    path: Path, run_hash: str, model: nn.Module, optimizer: Optimizer, device: torch.device, group: Group = ALONE
) -> State:
    """Take up the checkpoint at `path`: weights, optimizer, random numbers; returns the counters.

    A process of `group` that the checkpoint has no random numbers of keeps its own.

    Raises UserError naming the file when it is truncated, garbage, or another run's.
    """
    tensors, header = _read(path, "checkpoint", run_hash)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optim": {}, "rng": {}}
    try:
        for name, tensor in tensors.items():
            part, rest = name.split(".", 1)
            parts[part][rest] = tensor
        _fill(path, model, parts["model"])
        optimizer.load(parts["optim"])
        rng, own = parts["rng"], _of(group.rank)
        if group.leads or f"cpu{own}" in rng:
            torch.set_rng_state(rng[f"cpu{own}"].clone())
        if device.type == "cuda" and f"cuda{own}" in rng:
            torch.cuda.set_rng_state(rng[f"cuda{own}"].clone(), device)
        state = State(**header["state"])
        if min(state.step, state.epoch, state.window, state.read) < 0:
            raise ValueError("a counter is below 0")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} holds no whole training: {reason(error)}.", _remove(path)) from error
    return state


def save_weights(path: Path, run_hash: str, step: int, model: nn.Module, group: Group = ALONE) -> None:
    """Publish the weights after `step` updates. Equal weights of one run give equal bytes. `group` as in `save`."""
    _write(path, dict(model.state_dict()), {"kind": "weights", "hash": run_hash, "step": step}, group)


def load_weights(path: Path, run_hash: str, model: nn.Module, but: tuple[str, ...] = ()) -> int:
    """Fill `model` with the weights at `path`; returns the step they were saved at. UserError as in `load`.

    What has a name that begins with one of `but` stays as it is in the model.
    """
    tensors, header = _read(path, "weights", run_hash)
    kept = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(but)}
    _fill(path, model, {name: tensor for name, tensor in tensors.items() if not name.startswith(but)} | kept)
    return header["step"]


def _write(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], group: Group) -> None:
    whole = {}
    for name, tensor in tensors.items():
        gathered = shards.whole(tensor)
        if group.leads:  # off the GPU, where all pieces may be more than fits
            whole[name] = (gathered.cpu() if shards.sharded(tensor) else gathered).contiguous()
    if not group.leads:
        return
    metadata = {KEY: json.dumps(header, sort_keys=True)}
    files.write_file(path, lambda temporary: save_file(whole, temporary, metadata))


def read_header(path: Path, kind: str, run_hash: str) -> dict[str, Any]:
    """What `path` says of itself. Raises UserError naming the file when it is cut short, garbage or another run's."""
    hint = _remove(path)
    try:
        # Opening holds the file's size against its header.
        with safe_open(path, framework="pt") as file:
            header = parse_json((file.metadata() or {}).get(KEY, "null"))
    except (SafetensorError, OSError, ValueError) as error:
        if refused(error):
            raise UserError(f"{path} cannot be read: {reason(error)}.") from error
        raise UserError(f"{path} is damaged: {reason(error)}.", hint) from error
    if not isinstance(header, dict) or header.get("kind") != kind:
        raise UserError(f"{path} is a safetensors file, but no {kind} written by posbench.", hint)
    if header.get("hash") != run_hash:
        raise UserError(f"{path} belongs to the run {header.get('hash')}, not to {run_hash}.", hint)
    return header


def _remove(path: Path) -> str:
    return f"Remove {path.parent} to train the run again."


def _read(path: Path, kind: str, run_hash: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    header = read_header(path, kind, run_hash)
    return load_file(path), header


def _fill(path: Path, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into the model, name by name."""
    own = model.state_dict()
    for name in sorted({*own, *tensors}):
        here, there = own.get(name), tensors.get(name)
        # What a module keeps beside its tensors it judges itself, while it is loaded; its size is free.
        free = name.endswith("_extra_state")
        if (
            here is None
            or there is None
            or here.dtype != there.dtype  # which loading would cast without a word
            or (here.shape != there.shape and not free)
        ):
            raise UserError(
                f"{path} does not fit its run: {name} is {_described(there)} in the file and {_described(here)} in the "
                "model.",
                _remove(path),
            )
    model.load_state_dict({name: shards.cut(tensor, own[name]) for name, tensor in tensors.items()})


def _described(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _of(rank: int) -> str:
    """What the names of a process's own tensors end with."""
    return f".{rank}" if rank else ""


def _rng(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
