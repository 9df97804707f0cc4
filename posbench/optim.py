"""The recipe: which tensor is updated by what, and how fast at which step.

    adamw   AdamW everywhere
    muon    Muon on the matrices of attention and feed-forward, AdamW elsewhere

Weight decay acts on the matrices of attention and feed-forward only. Embeddings, norms and whatever an encoding owns go
to AdamW without decay, whatever the method: one recipe for all encodings.

Of sharded weights (posbench/shards.py) a process updates its pieces. AdamW and the momentum work number by number, the
norm for clipping is of all pieces, and Muon's step, which needs whole matrices, is computed from gathered ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from posbench import shards
from posbench.config import Optim

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def rate_factor(step: int, steps: int, warmup: float, schedule: str) -> float:
    """The share of the peak rate that update number `step` (0 ... steps - 1) runs at.

    It rises in equal parts over the first W = round(warmup x steps) updates, the last of which is at 1, and falls from
    1 at update W along a line or half a cosine towards 0 at update `steps`, the first that is not made: no update is
    spent at rate 0.

    >>> [rate_factor(i, 6, 1 / 3, "linear") for i in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    progress = (step - rising) / (steps - rising)
    return 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

        m <- momentum m + (1 - momentum) g         u = g + momentum (m - g)
        p <- (1 - lr decay) p - lr sqrt(max(1, rows / columns)) orthogonal(u)

    The scale is the original one, not the 0.2 sqrt(max(rows, columns)) that matches AdamW's. This is `torch.optim.Muon`
    with matrices of one shape taken together, and in float32 on the CPU: there torch's runs matrix by matrix in
    bfloat16, which takes some twenty times as long on a processor without bfloat16 arithmetic.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for p in group["params"]:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                grad, momentum = shards.piece(p.grad), shards.piece(self.state[p]["momentum"])
                momentum.lerp_(grad, 1 - group["momentum"])
                # In place, here and below: the gradient is dropped after this, and new memory is had page by page.
                update = shards.joined(grad.lerp_(momentum, group["momentum"]), like=p)
                rows, columns = p.shape
                alike.setdefault((min(rows, columns), max(rows, columns)), []).append((p, update))
            for members in alike.values():
                wide = torch.stack([update if p.shape[0] <= p.shape[1] else update.mT for p, update in members])
                for (p, _), direction in zip(members, orthogonal(wide), strict=True):
                    rows, columns = p.shape
                    oriented = direction if rows <= columns else direction.mT
                    own, change = shards.piece(p), shards.piece(shards.cut(oriented, like=p))
                    own.mul_(1 - group["lr"] * group["weight_decay"])
                    own.add_(change, alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))


def orthogonal(x_NAB: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows to each of N matrices (A <= B), roughly: singular values 0.7 to 1.2.

    Five Newton-Schulz steps with Jordan's coefficients, x <- p x with p = a + b g + c g g and g = x x^T; bfloat16 on
    CUDA, where it is exact enough and much faster. Elsewhere `x_NAB` is scaled in place.
    """
    x = x_NAB.bfloat16() if x_NAB.is_cuda else x_NAB
    x /= x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    # Products of A A A numbers in all: 17 + 2 B/A if x is left alone until the last step, else 5 + 10 B/A. In bfloat16
    # x has to be looked at in between: the errors of g add up.
    alone = not x.is_cuda and 2 * x.shape[2] > 3 * x.shape[1]
    return (_orthogonal_by_gram(x) if alone else _orthogonal(x)).to(x_NAB.dtype)


def _orthogonal(x: Tensor) -> Tensor:
    for _ in range(NEWTON_SCHULZ_STEPS):
        x = _polynomial(x @ x.mT) @ x
    return x


def _orthogonal_by_gram(x: Tensor) -> Tensor:
    """As `_orthogonal`: all p are polynomials of one matrix, so that g becomes p g p, and x the product of all p x."""
    g = x @ x.mT
    product = p = _polynomial(g)
    for _ in range(NEWTON_SCHULZ_STEPS - 1):
        g = p @ g @ p
        p = _polynomial(g)
        product = p @ product
    return product @ x


def _polynomial(g: Tensor) -> Tensor:
    """a + b g + c g g."""
    a, b, c = NEWTON_SCHULZ
    p = torch.baddbmm(g, g, g, beta=b, alpha=c)
    p.diagonal(dim1=1, dim2=2).add_(a)
    return p


class Optimizer:
    """All updates of a decoder: one call a step."""

    def __init__(self, model: nn.Module, settings: Optim, steps: int) -> None:
        self.settings, self.steps = settings, steps
        matrices, others = split(model)
        self.names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
        betas = (settings.beta1, settings.beta2)
        kinds = [{"params": kind} for kind in shards.apart(others.values())]
        rest = torch.optim.AdamW(kinds, settings.lr, betas, weight_decay=0.0, fused=True)
        self.parts: list[torch.optim.Optimizer] = [rest]
        if settings.method == "muon":
            muon = Muon(matrices.values(), settings.matrix_lr, settings.momentum, settings.weight_decay)
            self.parts.append(muon)
        else:
            decay = {"params": list(matrices.values()), "weight_decay": settings.weight_decay}
            rest.add_param_group(decay)
        for group in self._groups():
            group["peak"] = group["lr"]

    def _groups(self) -> list[dict]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self, step: int) -> tuple[Tensor, float]:
        """Make update number `step` from the gradients, clipped, and drop them.

        Returns the norm of the gradient before clipping, a scalar on the device, and AdamW's rate.
        """
        factor = rate_factor(step, self.steps, self.settings.warmup, self.settings.schedule)
        for group in self._groups():
            group["lr"] = factor * group["peak"]
        norm = self._clip()
        for part in self.parts:
            part.step()
            part.zero_grad()
        return norm, factor * self.settings.lr

    def _clip(self) -> Tensor:
        """Bring the gradient down to its largest norm; returns its own."""
        kinds = shards.apart(self.names)
        norms = [shards.whole(nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None])) for kind in kinds]
        norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, self.settings.clip, norm)
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, by name: `<parameter>.<what>`."""
        return {
            f"{self.names[p]}.{what}": tensor
            for part in self.parts
            for p, state in part.state.items()
            for what, tensor in state.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state that `tensors` gave, bit for bit."""
        parameters = {name: p for p, name in self.names.items()}
        owner = {p: part for part in self.parts for group in part.param_groups for p in group["params"]}
        for name, tensor in tensors.items():
            parameter, what = name.rsplit(".", 1)
            p = parameters[parameter]
            # A copy: memory mapped from a file is aligned otherwise, and the order of sums can depend on that.
            here = tensor.to(p.device, copy=True)
            owner[p].state[p][what] = shards.cut(here, like=p) if here.shape == p.shape else here


def split(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """The matrices of attention and feed-forward, and all other parameters, by name."""
    named = dict(model.named_parameters())
    matrices = {name: p for name, p in named.items() if name.startswith("blocks.") and p.ndim == 2}
    return matrices, {name: p for name, p in named.items() if name not in matrices}


def build(model: nn.Module, settings: Optim, steps: int) -> Optimizer:
    """The optimizer of a run of `steps` updates."""
    return Optimizer(model, settings, steps)
