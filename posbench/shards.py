"""Weights, gradients and optimizer state in pieces, one for each process: FSDP2, torch's `fully_shard`.

A sharded tensor is a `DTensor` cut along its rows. A block's weights are gathered when it computes and let go of
afterwards; their gradients are added up and cut again. What an encoding owns is left whole in every process, since its
formula may do anything with it; its gradient is added up like that of a model which is not sharded.

Of a tensor that is not sharded all functions give what they are given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from posbench.model import Decoder

FROM = 64_000_000
"""Parameters of attention and feed-forward from which `train.shard=auto` shards: `base` (85M) and above, not `small`
(32M), whose weights and optimizer state take half a gigabyte."""


def shard(decoder: Decoder, device: torch.device) -> None:
    """Cut the weights of `decoder`, which are the same in all processes, into one piece a process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    encoding = set(decoder.encoding.parameters())
    for module in (*decoder.blocks, decoder):
        fully_shard(module, mesh=mesh, ignored_params=encoding)
        # The loss of each process is weighed by its share already: the gradient is a sum and no mean. (A mean of the
        # processes would be right for equal shares alone.)
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    for method in ("loss", "token_losses"):
        register_fsdp_forward_method(decoder, method)


def whole_gradients(decoder: nn.Module) -> list[Tensor]:
    """The gradients that this process has of its own share of the batch; those of pieces are added up already."""
    return [p.grad for p in decoder.parameters() if p.grad is not None and not sharded(p)]


def sharded(tensor: Tensor) -> bool:
    """Whether this process has only a piece of it."""
    return hasattr(tensor, "full_tensor")


def apart(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """The parameters that are not sharded and those that are, which no operation takes together; empty lists left
    out."""
    kinds: dict[bool, list[Tensor]] = {False: [], True: []}
    for parameter in parameters:
        kinds[sharded(parameter)].append(parameter)
    return [kind for kind in kinds.values() if kind]


def piece(tensor: Tensor) -> Tensor:
    """The piece of a tensor that lies here, to be changed in place."""
    return tensor.to_local() if sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor. Every process must ask for it."""
    return tensor.full_tensor() if sharded(tensor) else tensor  # type: ignore[attr-defined]


def joined(own: Tensor, like: Tensor) -> Tensor:
    """The tensor of which every process has a piece `own`, cut as `like` is. Every process must ask for it."""
    if not sharded(like):
        return own
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    cut = DTensor.from_local(own, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
    return cut.full_tensor()


def cut(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, cut as `like` is."""
    if not sharded(like):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
