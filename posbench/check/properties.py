"""What must be true of every encoding, each as one function of a `Subject`.

A property returns what it measured, in a few words; it raises `Failed` with the number that is too large, or
`DoesNotApply` with the reason. Tolerances are for float32 and numbers of about 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from posbench import attention as kernels
from posbench import optim
from posbench.check import reference
from posbench.check.subject import SHAPE, VOCABULARY, Subject, ids, logits, positions
from posbench.config import Optim
from posbench.encodings.base import Encoding
from posbench.encodings.wrapper import Wrapper
from posbench.model import Cache, Decoder

LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 1025)
"""Around the sizes of blocks, and odd ones."""

FAR = 100_000


class Failed(Exception):  # noqa: N818 - an outcome, not an error
    """The property does not hold."""


class DoesNotApply(Exception):  # noqa: N818
    """The encoding says that it cannot have this property, or has nothing it is about."""


def _within(measured: float, limit: float, what: str) -> str:
    """Raise Failed above the limit, and where there is no number at all."""
    if not measured <= limit:
        raise Failed(f"{what}: off by {measured:.1e}, at most {limit:.0e} is allowed")
    return f"{what}: {measured:.1e}"


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def causal(subject: Subject) -> str:
    """A token changes no logit before its own, and neither does the number of tokens that follow.

    300 tokens are more than one block of queries of every kernel.
    """
    decoder, tokens = subject.model(), ids(300)
    at = positions(decoder.encoding, 300)
    before = logits(decoder, tokens, at)
    for place in (25, 280):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % VOCABULARY
        after = logits(decoder, changed, at)
        if not torch.equal(before[:, :place], after[:, :place]):
            moved = _apart(before[:, :place], after[:, :place])
            raise Failed(f"token {place} of 300 changes logits before it by {moved:.1e}")
        if torch.equal(before[:, place], after[:, place]):
            raise Failed(f"token {place} of 300 does not change its own logits")
    if not decoder.encoding.cacheable:
        return "no logit before a changed token moves (more tokens may change the keys)"
    short = logits(decoder, tokens[:, :150], at[:, :150])
    return _within(_apart(before[:, :150], short), 1e-4, "the first 150 of 300 tokens alone")


def shift_invariant(subject: Subject) -> str:
    """Where it says so: positions 100,000 further on give the same attention."""
    decoder = subject.model()
    if not decoder.encoding.shift_invariant:
        raise DoesNotApply("it tells absolute positions")
    tokens = ids(48)
    at = positions(decoder.encoding, 48)
    here = logits(decoder, tokens, at)
    far = [_apart(here, logits(decoder, tokens, at + by)) / max(1, float(here.abs().max())) for by in (1, 4096, FAR)]
    return _within(max(far), 1e-5, f"positions up to {FAR:,} further on")


def cached(subject: Subject) -> str:
    """96 tokens in one pass, as 64 + 32 through a cache, and one by one: the same logits."""
    decoder, tokens = subject.model(), ids(96)
    if not decoder.encoding.cacheable:
        try:
            logits(decoder, tokens, cache=Cache(SHAPE.layers))
        except ValueError:
            raise DoesNotApply("it changes earlier keys, and refuses a cache") from None
        raise Failed("it says that a cache is not valid, and takes one")
    at = positions(decoder.encoding, 96)
    whole, worst = logits(decoder, tokens, at), 0.0
    for sizes in ([64, 32], [1] * 96, [95, 1]):
        cache, done, parts = Cache(SHAPE.layers), 0, []
        for size in sizes:
            own = at[:, done : done + size] if "positions" in decoder.encoding.hooks else None
            parts.append(logits(decoder, tokens[:, done : done + size], own, cache=cache))
            done += size
        worst = max(worst, _apart(whole, torch.cat(parts, dim=1)))
    return _within(worst, 1e-4, "in chunks of a cache")


def kernels_agree(subject: Subject) -> str:
    """Every kernel that can serve it equals attention written out in float32, at lengths around block sizes."""
    e, seen, worst = subject.encoding(), set(), 0.0
    lengths = [length for length in LENGTHS if e.max_length is None or length <= e.max_length]
    for layer in range(SHAPE.layers):
        own = e.for_layer(layer)
        for length in lengths:
            at = positions(e, length)
            q, k, v, state = _layer(own, at, length)
            expected = reference.attention(own, q, k, v, at, at, state, window=own.window(layer))
            for name, how in _passes(own, at, layer, "positions" not in e.hooks):
                with torch.no_grad():
                    worst = max(worst, _apart(kernels.attend(q, k, v, state, how), expected))
                seen.add(name)
        if all(e.for_layer(i) is e and e.window(i) == e.window(0) for i in range(SHAPE.layers)):
            break  # the other layers are this one
    return _within(worst, 1e-4, f"{', '.join(sorted(seen))} at {len(lengths)} lengths to {lengths[-1]:,}")


@torch.no_grad()
def _layer(e: Encoding, at: Tensor, length: int, seed: int = 5) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Rotated q, k (1, H, T, D), v and state of one layer over drawn vectors."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, length, e.shape.width, generator=generator)
    q, k, v = (torch.randn(1, e.shape.heads, length, e.shape.head_dim, generator=generator) for _ in range(3))
    q, k = e.rotate(q, k, e.begin(at, length))
    return q, k, v, e.state(x)


def _passes(e: Encoding, at: Tensor, layer: int, consecutive: bool) -> Iterator[tuple[str, kernels.Pass]]:
    """Every kernel that can serve it, the one that is picked first."""
    how = kernels.begin(e, at, at, consecutive, layer)
    yield how.kernel, how
    if how.kernel == "strided" and "bias" in e.hooks:
        yield "dense", replace(how, kernel="dense", vector=None)
    if how.kernel != "blocks":
        yield "blocks", replace(how, kernel="blocks", vector=None)
    if how.kernel == "causal":
        yield "strided", replace(how, kernel="strided", vector=None)


def in_proportion(subject: Subject) -> str:
    """Where it says so: bias(r) = r bias(1), of which alone a GPU forms it; no kernel of a CPU would show another."""
    e = subject.encoding()
    layers = [own for own in map(e.for_layer, range(SHAPE.layers)) if own.proportional and "bias" in own.hooks]
    if not layers:
        raise DoesNotApply("it does not say that its bias grows in proportion to the distance")
    distance = torch.cat([torch.arange(1025), torch.tensor([4096, 32_768, FAR])])
    distance = distance[distance < (e.max_length or math.inf)]
    worst = 0.0
    with torch.no_grad():
        for own in layers:
            expected = own.bias(torch.ones(1, dtype=torch.int64)).float() * distance
            off = (own.bias(distance).float() - expected).abs() / expected.abs().clamp(min=1)
            worst = max(worst, float(off.max()))
    return _within(worst, 1e-5, f"bias(r) = r bias(1) to r = {int(distance[-1]):,}")


def survives_16_bits(subject: Subject) -> str:
    """A model in bfloat16 keeps its positions, angles, biases and states in float32, in every layer.

    Asked near 0 and, where windows may be long, at positions to 100,000 and with every key some 4,000 before the query:
    up to 256 bfloat16 still holds each whole number, so that close by nothing would show.
    """
    exact = subject.encoding()
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16())
    half = copy.deepcopy(exact).bfloat16()
    worst, rounded, length = 0.0, 0.0, min(200, exact.max_length or 200)
    at = positions(exact, length)
    places = [(at, at)]  # of the queries, of the keys
    if exact.max_length is None:
        places += [(at + FAR - length, at + FAR - length), (at + 4000, at)]
    x = torch.randn(1, length, SHAPE.width, generator=torch.Generator().manual_seed(6)).bfloat16()
    # The vectors of such a model are bfloat16 numbers; no encoding has touched them yet.
    raw = [y.bfloat16() for y in _layer(Encoding(exact.shape), at, length)[:3]]
    with torch.no_grad():
        for q_pos, k_pos in places:
            embedded = [e.embed(x.float(), q_pos) for e in (exact, half)]
            worst = max(worst, _apart(*embedded) / max(1, float(embedded[0].abs().max())))
            for layer in range(SHAPE.layers):
                outs = []
                for e, dtype in ((exact, torch.float32), (half, torch.float32), (half, torch.bfloat16)):
                    own = e.for_layer(layer)
                    q, k, v = (y.to(dtype) for y in raw)
                    q, _ = own.rotate(q, k, own.begin(q_pos, length))
                    _, k = own.rotate(q, k, own.begin(k_pos, length))
                    consecutive = q_pos is k_pos and "positions" not in e.hooks
                    how = kernels.begin(own, q_pos, k_pos, consecutive, layer)
                    outs.append(kernels.attend(q, k, v, own.state(x.float()), how).float())
                worst, rounded = max(worst, _apart(*outs[:2])), max(rounded, _apart(*outs[1:]))
    _within(rounded, 0.1, "on vectors of bfloat16")
    return _within(worst, 1e-4, "a bfloat16 copy on the same vectors")


def learns(subject: Subject) -> str:
    """Every learned tensor has a gradient after one step of training at 128 tokens."""
    shape = replace(SHAPE, train_length=128)
    decoder = subject.model(shape, wide=False).train()
    names = [name for name, _ in decoder.encoding.named_parameters()]
    if not names:
        raise DoesNotApply("it learns nothing")
    optimizer = optim.build(decoder, Optim(), 10)
    tokens = ids(129, batch=3)
    for step in range(2):
        decoder.zero_grad()
        _loss(decoder, tokens).backward()
        if step == 0:
            optimizer.step(0)
            decoder.constrain()
    excused = decoder.encoding.without_gradient
    if unknown := excused.keys() - set(names):
        raise Failed(f"without_gradient names {', '.join(sorted(unknown))}, and it has no such tensor")
    still = [
        name
        for name, parameter in decoder.encoding.named_parameters()
        if (parameter.grad is None or not parameter.grad.abs().max() > 0) and name not in excused
    ]
    if still:
        raise Failed(f"no gradient reaches {', '.join(still)}")
    said = "; ".join(f"{name} not: {reason}" for name, reason in excused.items())
    return f"{len(names)} learned tensors" + (f" ({said})" if said else "")


def _loss(decoder: Decoder, tokens: Tensor) -> Tensor:
    e, batch, length = decoder.encoding, tokens.shape[0], tokens.shape[1] - 1
    at = positions(e, length, batch) if "positions" in e.hooks else None
    return decoder.loss(tokens[:, :-1], tokens[:, 1:], at)


def leaves_no_trace(subject: Subject) -> str:
    """60 tokens give the same bits before and after a longer input, and after a model of another shape; and the same
    numbers beside another text in a batch, also where each has positions of its own."""
    decoder, short = subject.model(), ids(60)
    first = logits(decoder, short)
    logits(decoder, ids(min(250, decoder.encoding.max_length or 250)))
    logits(subject.model(replace(SHAPE, width=64, heads=2)), short)
    again, fresh = logits(decoder, short), logits(subject.model(), short)
    for what, other in {"after a longer input": again, "in another model of the same kind": fresh}.items():
        if not torch.equal(first, other):
            raise Failed(f"the same 60 tokens {what}: off by {_apart(first, other):.1e}, no bit may change")
    two = torch.cat([short, ids(60, seed=7)])
    beside = logits(decoder, two)[:1]
    _within(_apart(first, beside), 1e-4, "the same 60 tokens beside another text in a batch")
    two = two[:, : min(60, (decoder.encoding.max_length or 120) // 2)]
    at = torch.arange(two.shape[1]) * torch.tensor([[1], [2]])
    alone = torch.cat([logits(decoder, two[[row]], at[[row]]) for row in (0, 1)])
    _within(_apart(alone, logits(decoder, two, at)), 1e-4, "two texts in a batch, each at positions of its own")
    return "the same bits before and after a longer input"


def stores_no_length(subject: Subject) -> str:
    """The tensors of a checkpoint have the same shapes at any training length, and after any input."""
    sizes = []
    for length in (64, 128):
        decoder = subject.model(replace(SHAPE, train_length=length))
        logits(decoder, ids(min(250, decoder.encoding.max_length or 250)))
        sizes.append({name: tuple(tensor.shape) for name, tensor in decoder.encoding.state_dict().items()})
    fresh = {name: tuple(tensor.shape) for name, tensor in subject.encoding().state_dict().items()}
    if sizes[0].keys() != fresh.keys():
        raise Failed(f"an input adds {', '.join(sizes[0].keys() ^ fresh.keys())} to what is stored")
    different = [name for name in sizes[0] if sizes[0][name] != sizes[1].get(name)]
    reason = subject.encoding().length_sized
    if different and reason:
        raise DoesNotApply(reason)
    if different:
        raise Failed(f"{different[0]} is {sizes[0][different[0]]} at 64 tokens and {sizes[1][different[0]]} at 128")
    return f"{len(fresh)} stored tensors" if fresh else "nothing is stored"


def obeys_max_length(subject: Subject) -> str:
    """Where it says how long a window can be: that one is read, one more is refused with the number."""
    decoder = subject.model(replace(SHAPE, train_length=16))
    longest = decoder.encoding.max_length
    if longest is None:
        if not logits(decoder, ids(400)).isfinite().all():
            raise Failed("it names no longest window, and at 400 tokens its logits are not finite")
        raise DoesNotApply("windows of any length")
    logits(decoder, ids(longest))
    try:
        logits(decoder, ids(longest + 1))
    except ValueError as error:
        if str(longest) not in str(error):
            raise Failed(f"the refusal does not name the longest window, {longest}: {error}") from error
        return f"{longest} tokens are read, {longest + 1} refused"
    raise Failed(f"it says {longest}, and reads {longest + 1}")


def finite_under_autocast(subject: Subject) -> str:
    """A training step in bfloat16 autocast has a finite loss and finite gradients."""
    decoder, tokens = subject.model(wide=False).train(), ids(129, batch=3)
    with torch.autocast("cpu", torch.bfloat16):
        loss = _loss(decoder, tokens)
    loss.backward()
    bad = [name for name, p in decoder.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if not loss.isfinite() or bad:
        raise Failed(f"the loss is {loss.item():.3g}" + (f", no finite gradient in {', '.join(bad)}" if bad else ""))
    return f"a loss of {loss.item():.2f}"


def tells_order(subject: Subject) -> str:
    """The order of the keys before it changes what the last query reads; without an encoding it does not."""
    e = subject.encoding()
    if not e.hooks - {"scale"}:
        raise DoesNotApply("it tells nothing of the order")
    length = 24
    at = positions(e, length)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, length, SHAPE.width, generator=generator)
    weights = torch.randn(3, SHAPE.width, SHAPE.width, generator=generator) * SHAPE.width**-0.5
    order = torch.cat([torch.randperm(length - 1, generator=generator), torch.tensor([length - 1])])
    moved = max(
        _apart(_read_by_last(e, layer, x, at, weights), _read_by_last(e, layer, x[:, order], at, weights))
        for layer in range(SHAPE.layers)
    )
    if not moved > 1e-3:
        raise Failed(f"23 keys in another order change what the last query reads by {moved:.1e}")
    return f"keys in another order: {moved:.1e}"


@torch.no_grad()
def _read_by_last(e: Encoding, layer: int, x: Tensor, at: Tensor, weights: Tensor) -> Tensor:
    """One layer of attention over x (1, T, C): what the last query reads."""
    x = e.embed(x, at)
    own = e.for_layer(layer)
    q, k, v = ((x @ w).unflatten(2, (SHAPE.heads, -1)).transpose(1, 2) for w in weights)
    q, k = own.rotate(q, k, own.begin(at, x.shape[1]))
    return reference.attention(own, q, k, v, at, at, own.state(x), window=own.window(layer))[:, :, -1]


def not_inert(subject: Subject) -> str:
    """Its logits differ from those without an encoding, and from those of what it holds or grew from."""
    decoder, tokens = subject.model(), ids(200)
    e = decoder.encoding
    if not e.hooks:
        raise DoesNotApply("it is the one the others are held against")
    own = logits(decoder, tokens)
    others = {"none": Encoding(e.shape)}
    if isinstance(e, Wrapper):
        others["what it holds"] = e.inner
    if e.neutral:
        plain = subject.other(**e.neutral).encoding()
        with torch.no_grad():
            for name, parameter in plain.named_parameters():
                parameter.copy_(dict(e.named_parameters()).get(name, parameter))
        others[", ".join(f"{key}={value}" for key, value in e.neutral.items())] = plain
    said = []
    for name, other in others.items():
        decoder.encoding = other
        apart = _apart(own, logits(decoder, tokens))
        if not apart > 1e-3:
            raise Failed(f"its logits are those of {name}, to {apart:.1e}")
        said.append(f"{name} {apart:.1e}")
    return f"apart from {', '.join(said)}"


PROPERTIES: dict[str, Callable[[Subject], str]] = {
    "causal": causal,
    "shift invariant": shift_invariant,
    "cached = one pass": cached,
    "kernels = reference": kernels_agree,
    "bias in proportion": in_proportion,
    "float32 in 16 bits": survives_16_bits,
    "learns": learns,
    "leaves no trace": leaves_no_trace,
    "stores no length": stores_no_length,
    "obeys max_length": obeys_max_length,
    "finite under autocast": finite_under_autocast,
    "tells order": tells_order,
    "not inert": not_inert,
}
