"""What must hold of a GPU: attention against a naive float32 one, training in bf16, compilation, updates.

No pytest in here: tests/test_gpu.py runs these checks with it, scripts/gpu_check.py where there is none. A check is a
function of a device that raises AssertionError with its numbers; on a CPU they hold too, for the kernels there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from posbench import attention, model, optim
from posbench.check import reference
from posbench.check.subject import Subject, positions
from posbench.compose import load_group
from posbench.config import Config, Model, Optim, Train
from posbench.encodings.base import Encoding, Shape
from posbench.model import Decoder
from posbench.train import compiled

COMPILED = "compiled"
"""In the name of a check that needs a compiler."""

Check = Callable[[torch.device], None]

LENGTHS = (32, 64, 127, 128, 129, 512, 1025, 2048, 4096)
"""Below, at and above a block of 128, and beside a block of 1,024."""

SHAPE = Shape(layers=1, width=128, heads=4, train_length=4096)

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Of outputs; of gradients, of their norm. In bf16 the weights themselves have three digits."""

HALF_LOSS, HALF_GRADIENT = 1e-2, 5e-2
"""How far bf16 may take the loss of a small model, in nats, and a gradient, of its norm: on a CPU it is 1.5e-3 and
2.1e-2, and without its encoding a gradient is another one altogether."""


def described(label: str) -> dict[str, Any]:
    """An encoding by its label: alibi, randomized(alibi)."""
    name, _, inner = label.removesuffix(")").partition("(")
    return load_group("encoding", name) | ({"inner": load_group("encoding", inner)} if inner else {})


def encoding(label: str) -> Encoding:
    """A layer's encoding with its learned parameters drawn wide."""
    return Subject(described(label)).encoding(SHAPE).for_layer(0)


def attends(label: str, length: int, dtype: torch.dtype, device: torch.device, queries: int | None = None) -> None:
    """Output and gradients of the last `queries` (None: all) of `length` tokens are those of the naive attention, which
    is given the same rounded q, k and v in float32. Positions are counted, or drawn for each row of the batch."""
    e = encoding(label)
    counted = "positions" not in e.hooks
    at = positions(e, length, 1 if counted else 2).to(device)
    e = e.to(device)
    q, k, v, weight = _drawn(length, queries or length, dtype, device)
    x = torch.randn(2, length, SHAPE.width, generator=torch.Generator().manual_seed(5)).to(device)
    how = attention.begin(e, at[:, -q.shape[2] :], at, consecutive=counted)
    out = attention.attend(q, k, v, e.state(x), how)
    assert out.dtype == dtype
    exact = [x.detach().float().requires_grad_() for x in (q, k, v)]
    expected = reference.attention(e, *exact, at[:, -q.shape[2] :], at, e.state(x), window=e.window(0))
    _near(f"{how.kernel}: output", out, expected, TOLERANCE[dtype], norm=False)
    learned = dict(e.named_parameters())
    found = torch.autograd.grad((out.float() * weight).sum(), [q, k, v, *learned.values()])
    wanted = torch.autograd.grad((expected * weight).sum(), [*exact, *learned.values()])
    for key, got, want in zip(["q", "k", "v", *learned], found, wanted, strict=True):
        _near(f"{how.kernel}: gradient of {key}", got, want, TOLERANCE[dtype], norm=True)


def _drawn(length: int, queries: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """q, k, v, which want a gradient, and the weights of a sum of the output."""
    generator = torch.Generator().manual_seed(length)
    sizes = (queries, length, length, queries)
    drawn = [torch.randn(2, SHAPE.heads, n, SHAPE.head_dim, generator=generator).to(device) for n in sizes]
    return [*(x.to(dtype).requires_grad_() for x in drawn[:3]), drawn[3]]


def _near(what: str, got: Tensor, want: Tensor, tolerance: float, norm: bool) -> None:
    assert got.isfinite().all(), f"{what} is not finite"
    difference = (got.float() - want).detach()
    error = float(difference.norm() / want.norm().clamp(min=1.0) if norm else difference.abs().max())
    assert error < tolerance, f"{what} is {error:.1e} off, {tolerance:.0e} is allowed"


def documents_apart(length: int, dtype: torch.dtype, device: torch.device) -> None:
    """A query sees no other document: the output is that of each document alone."""
    e = encoding("alibi").to(device)
    q, k, v, _ = (x.detach() for x in _drawn(length, length, dtype, device))
    ends = [0, length // 3, length // 3 + 1, length]
    documents = torch.zeros(2, length, dtype=torch.int64, device=device)
    for end in ends[1:-1]:
        documents[:, end:] += 1
    at = torch.arange(length, device=device)[None]
    how = attention.begin(e, at, at, consecutive=True, documents=documents)
    out = attention.attend(q, k, v, {}, how)
    for a, b in pairwise(ends):
        alone = (x[:, :, a:b].float() for x in (q, k, v))
        expected = reference.attention(e, *alone, at[:, a:b], at[:, a:b])
        _near(f"{how.kernel}: document {a}-{b}", out[:, :, a:b], expected, TOLERANCE[dtype], norm=False)


class _Rough(Encoding):
    """A bias that is another number in bf16 at nearly every distance."""

    def bias(self, distance: Tensor) -> Tensor:
        return (3 + torch.sin(distance.float())).expand(self.shape.heads, *distance.shape)


def bias_stays_exact(device: torch.device, length: int = 1024) -> None:
    """Beside bf16 queries and keys a bias is added in float32.

    All scores are zero, and v is +1 where bf16 would raise the bias of the last query and -1 where it would lower it: a
    rounded bias moves the output by the mean rounding, about 4e-3; an exact one leaves it where it is.
    """
    e = _Rough(SHAPE)
    at = torch.arange(length, device=device)[None]
    exact = e.bias(at[0].flip(0))  # of the last query, by key
    up = torch.where(exact.bfloat16().float() > exact, 1.0, -1.0)
    v = up[None, :, :, None].expand(1, -1, -1, SHAPE.head_dim).bfloat16().contiguous()
    zero = torch.zeros_like(v)
    with torch.no_grad():
        out = attention.attend(zero, zero, v, {}, attention.begin(e, at, at, consecutive=True))[0, :, -1, 0]
    expected = (exact.softmax(-1) * up).sum(-1)
    rounded = (exact.bfloat16().float().softmax(-1) * up).sum(-1)
    error, apart = float((out.float() - expected).abs().max()), float((rounded - expected).abs().min())
    assert error < apart / 4, f"the bias is off: the output moved by {error:.1e}, with a rounded one by {apart:.1e}"


def compiled_once(device: torch.device) -> None:
    """Ten lengths of two windows are served by one kernel."""
    import torch._dynamo.utils

    e = encoding("kerple").to(device)
    graphs = torch._dynamo.utils.counters["stats"]

    def call(length: int) -> int:
        before = graphs["unique_graphs"]
        q, k, v, _ = (x.detach().bfloat16() for x in _drawn(length, length, torch.float32, device))
        at = torch.arange(length, device=device)[None]
        with torch.no_grad():
            attention.attend(q, k, v, {}, attention.begin(e, at, at, consecutive=True))
        return graphs["unique_graphs"] - before

    call(200), call(300)  # the second length tells which sizes vary
    made = {length: call(length) for length in (256, 257, 384, 500, 512, 640, 1000, 1024, 1500, 2000)}
    assert not any(made.values()), f"compiled anew at some of these lengths: {made}"


def _config(name: str, length: int, **train: Any) -> Config:
    return Config(
        encoding=load_group("encoding", name),
        model=Model("toy", layers=2, width=128, heads=4, hidden=256),
        data={"name": "none"},
        tokenizer={"name": "bytes", "kind": "bytes"},
        optim=Optim(),
        train=replace(Train(length=length, batch_tokens=2 * length), **train),
    )


def _decoder(name: str, length: int, device: torch.device) -> Decoder:
    return model.build(_config(name, length), 257, 256).to(device)


def _ids(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    ids = torch.randint(257, (2, length + 1), generator=torch.Generator().manual_seed(1)).to(device)
    return ids[:, :-1], ids[:, 1:]


def _half(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16)


def trains_in_bf16(name: str, device: torch.device, length: int = 256) -> None:
    """Two steps under autocast end in finite losses, and the logits of evaluation are those of float32 to 2e-2."""
    decoder, (inputs, targets) = _decoder(name, length, device), _ids(length, device)
    optimizer = optim.build(decoder, Optim(), 4)
    for step in range(2):
        with _half(device):
            loss = decoder.loss(inputs, targets)
        assert loss.isfinite(), f"the loss of step {step} is {loss}"
        loss.backward()
        missing = [key for key, p in decoder.encoding.named_parameters() if p.grad is None or not p.grad.any()]
        assert not missing, f"no gradient reached {missing}"
        optimizer.step(step)
        decoder.constrain()
    with torch.no_grad():
        exact = decoder.logits(decoder.hidden(inputs))
        with _half(device):
            half = decoder.logits(decoder.hidden(inputs))
    _near("logits", half, exact, 2e-2, norm=False)


def compiled_loss(name: str, device: torch.device, length: int = 256) -> None:
    """The compiled loss of a model and its gradients are those of the model run step by step, in float32."""
    decoder, batch = _decoder(name, length, device), _ids(length, device)
    eager, wanted = _with_gradients(decoder, decoder.loss, batch)
    kernel = decoder.kernel
    whole, found = _with_gradients(decoder, _compiled(decoder, device), batch)
    assert decoder.kernel == kernel, f"compiled it took {decoder.kernel}, else {kernel}"
    _same(whole, eager, 1e-4, found, wanted, 1e-3)


def compiled_in_bf16(name: str, device: torch.device, length: int = 256) -> None:
    """What training runs, the compiled loss under bf16 autocast, and its gradients are those of float32, uncompiled:
    the loss to `HALF_LOSS`, the gradient of each tensor to `HALF_GRADIENT` of its norm."""
    decoder, batch = _wide(_decoder(name, length, device)), _ids(length, device)
    eager, wanted = _with_gradients(decoder, decoder.loss, batch)
    fast = _compiled(decoder, device)

    def half(inputs: Tensor, targets: Tensor) -> Tensor:
        with _half(device):
            return fast(inputs, targets)

    whole, found = _with_gradients(decoder, half, batch)
    _same(whole, eager, HALF_LOSS, found, wanted, HALF_GRADIENT)


def _compiled(decoder: Decoder, device: torch.device) -> Callable[..., Tensor]:
    """Its loss as training compiles it; on a CPU, whose compiler takes long, the graph it would be given."""
    if device.type == "cpu":
        return torch.compile(decoder.loss, dynamic=False, backend="eager")
    return compiled(decoder.loss)


def _wide(decoder: Decoder) -> Decoder:
    """With queries, keys and the encoding drawn so that where a key is counts: at first all attend nearly evenly."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for key, p in decoder.named_parameters():
            if key.startswith("encoding."):
                p.copy_(torch.randn(p.shape, generator=generator))
            elif p.ndim > 1 and not key.startswith("embed"):
                p.copy_(torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5)
    return decoder


def _with_gradients(
    decoder: Decoder, loss_of: Callable[..., Tensor], batch: tuple[Tensor, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    loss = loss_of(*batch)
    parameters = dict(decoder.named_parameters())
    return float(loss.detach()), dict(
        zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)
    )


def _same(
    loss: float, exact: float, off: float, found: dict[str, Tensor], wanted: dict[str, Tensor], apart: float
) -> None:
    assert abs(loss - exact) < off, f"a loss of {loss}, where {exact} to {off:.0e} is right"
    for key, want in wanted.items():
        error = float((found[key] - want).norm() / want.norm().clamp(min=1e-6))
        assert error < apart, f"the gradient of {key} is {error:.1e} off, {apart:.0e} is allowed"


def bf16_does_not_drift(name: str, longest: int, device: torch.device) -> None:
    """What bf16 costs at 8 L is not above what it costs at L: positions keep their meaning (PREC-2)."""
    gaps = []
    for length in (longest // 8, longest):
        decoder, (inputs, targets) = _decoder(name, longest // 8, device).eval(), _ids(length, device)
        exact = decoder.token_losses(inputs, targets)
        with _half(device):
            half = decoder.token_losses(inputs, targets)
        gaps.append(float((half - exact).mean().abs() / exact.mean()))
    assert gaps[1] < max(2 * gaps[0], 1e-3), f"relative gap {gaps[0]:.1e} at L, {gaps[1]:.1e} at {longest}"


def updates(method: str, device: torch.device) -> None:
    """An update on the device is that of the CPU; Muon's directions come from bf16 products there."""
    moved: list[Tensor] = []
    for place in (torch.device("cpu"), device):
        decoder = _decoder("t5", 64, place)
        before = [p.detach().clone() for p in decoder.parameters()]
        generator = torch.Generator().manual_seed(3)
        for p in decoder.parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(place)
        optim.build(decoder, Optim(method=method), 1).step(0)
        steps = [(p.detach() - old).flatten().cpu() for p, old in zip(decoder.parameters(), before, strict=True)]
        moved.append(torch.cat(steps))
    error = float((moved[1] - moved[0]).norm() / moved[0].norm())
    assert math.isfinite(error), "an update is not finite"
    assert error < (0.1 if method == "muon" else 1e-4), f"the update is {error:.1e} off"


BLOCKS = ("shaw", "fire", "fox")
"""They rewrite scores, by tables, by a network of the distance, and by what tokens say."""

APART = ("randomized(alibi)", "randomized(t5)")
"""A fixed and a learned bias over positions that leave gaps."""


def checks(lengths: tuple[int, ...] = LENGTHS) -> Iterator[tuple[str, Check]]:
    """(name, check), by worth: what is cut off at the end is the least of it."""
    half, full = torch.bfloat16, torch.float32
    yield "a bias stays float32 beside bf16", bias_stays_exact
    for method in ("adamw", "muon"):
        yield f"an update by {method}", partial(updates, method)
    for dtype in (half, full):
        for name in ("alibi", "t5"):
            for length in lengths:
                called = f"{name} at {length}, {str(dtype).removeprefix('torch.')}"
                yield called, partial(attends, name, length, dtype)
        if dtype == half:  # what training uses
            for name in ("alibi", "t5"):
                yield f"{name} trains in bf16", partial(trains_in_bf16, name)
            for name in (*BLOCKS, *APART):  # which nothing is compiled for, so that they take no time
                for length, own in ((lengths[0], half), (min(lengths[-1], 1025), half), (min(lengths[-1], 512), full)):
                    called = f"{name} at {length}, {str(own).removeprefix('torch.')}"
                    yield called, partial(attends, name, length, own)
            for name in ("alibi", "rope", "t5", "none"):
                yield f"{name} {COMPILED} in bf16", partial(compiled_in_bf16, name)
            yield f"t5 {COMPILED} in bf16, too short for flex", partial(compiled_in_bf16, "t5", length=64)
            yield f"{COMPILED} once for all lengths", compiled_once
    for name in ("none", "kerple", "rope", "swan", "sandwich"):
        for length in (lengths[0], lengths[-1]):
            yield f"{name} at {length}, bfloat16", partial(attends, name, length, half)
    last = lengths[-1]
    for name in ("alibi", "none", "swan"):
        for queries in (1, last // 2):
            yield f"{name}: the last {queries} of {last}", partial(attends, name, last, half, queries=queries)
    for dtype in (half, full):
        yield f"documents apart, {str(dtype).removeprefix('torch.')}", partial(documents_apart, last // 2 + 1, dtype)
    for name in ("alibi", "t5", "rope"):
        yield f"{name} does not drift in bf16", partial(bf16_does_not_drift, name, last)
    for name in ("alibi", "t5"):
        yield f"{name} {COMPILED} in float32", partial(compiled_loss, name)
