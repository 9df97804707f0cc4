"""The contract of an extension: a change to a *trained* encoding, so that it can be asked for longer inputs.

An extension is one small class in one file. It asks an encoding for what it can do (it turns queries and keys, it has
slopes), never for its name, so that it works for every encoding built on one of these, and inside of wrappers.

    new = extension.extend(encoding, trained_length, length, factor)

`new` shares the parameters of `encoding`, which itself stays as it was. How far it is stretched is its `factor` s: a
number, or `auto` for max(1, length / trained_length). s = 1 changes nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor

from posbench.encodings.base import Encoding
from posbench.encodings.rope import Rope

Factor = float | Literal["auto"]

Part = TypeVar("Part", bound=Encoding)

SEARCH_LOSSES = 64
"""Losses a search may ask for."""


class Extension:
    """Base of all extensions. A subclass takes the parameters of its YAML, and raises `ValueError` for a bad one.

    It overrides `applies_to` and `extend`. One whose settings are to be found by trial also overrides `search`.
    """

    paper: str = ""
    """Address of the paper."""

    acts_on: str = ""
    """What of the encoding it changes."""

    reported: str = ""
    """What the literature prints past the training length, numbers as printed, with paper and table; or "not read"."""

    takes_factor: bool = True
    """Whether a factor means anything to it."""

    foreign: ClassVar[dict[str, str]] = {}
    """Parameters of other tools that look like its own: name -> what to write here, one sentence."""

    def applies_to(self, encoding: Encoding) -> bool:
        """Whether it can change this encoding."""
        raise NotImplementedError

    def extend(self, encoding: Encoding, trained_length: int, length: int, factor: Factor = "auto") -> Encoding:
        """A new encoding for inputs of `length` that shares the parameters of `encoding`, trained at `trained_length`.

        Raises ValueError for a factor below 1, and for an encoding whose sizes it cannot work with.
        """
        raise NotImplementedError

    def resolve(self, factor: Factor, trained_length: int, length: int) -> float:
        """The factor s: itself, or what `auto` means. Raises ValueError for one below 1."""
        if isinstance(factor, str):
            return max(1.0, length / trained_length)
        if not 1 <= factor < math.inf:
            raise ValueError(f"factor must be auto or a number of 1 or more, not {factor}")
        return float(factor)

    @property
    def searches(self) -> bool:
        """Whether `search` must find its settings before it can extend."""
        return False

    def search(
        self,
        encoding: Encoding,
        trained_length: int,
        length: int,
        factor: Factor,
        loss: Callable[[Encoding], float],
    ) -> dict[str, Any]:
        """Settings with which `loss` of the extended encoding is low: parameters of this class.

        `loss` reads validation text, never test; it is asked `SEARCH_LOSSES` times at most. The same losses give the
        same settings.
        """
        raise NotImplementedError


def stretchable(encoding: Encoding, kind: type[Part]) -> list[Part]:
    """The parts of a kind in an encoding, itself among them, that meet positions or distances in long windows that they
    were not trained on: those in a `bounded` one do not."""
    bounded = {
        id(part) for one in encoding.modules() if isinstance(one, Encoding) and one.bounded for part in one.modules()
    }
    return [part for part in encoding.modules() if isinstance(part, kind) and id(part) not in bounded]


def shared(encoding: Encoding) -> Encoding:
    """A copy of an encoding, and of all it holds, with the very same parameters."""
    return copy.deepcopy(encoding, {id(parameter): parameter for parameter in encoding.parameters()})


# Frequencies -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """The rotation of a trained encoding."""

    frequencies: Tensor
    """float64 (D/2,), radians a position, fastest first."""
    base: float
    """They are base^(-2m/D); an encoding may have set some of them to 0."""
    length: int
    """Inputs of a training window."""

    @property
    def dim(self) -> int:
        """D."""
        return 2 * len(self.frequencies)


class Frequencies(Extension):
    """Base of extensions that turn queries and keys at other frequencies: for every encoding that is a `Rope`, by
    itself, in a wrapper, or in some layers only, where long windows hold distances that it was not trained on.
    """

    acts_on = "rotation frequencies"

    dynamic: bool = False
    """Whether the frequencies depend on the current length. Then keys that were turned for a shorter one do not stay
    valid, and the encoding is not cacheable."""

    def angles(self, trained: Trained, factor: float, length: int) -> tuple[Tensor, float]:
        """Frequencies, float64 (D/2,), and the number that multiplies cos and sin, with `length` keys in sight."""
        raise NotImplementedError

    def applies_to(self, encoding: Encoding) -> bool:
        return bool(stretchable(encoding, Rope))

    def extend(self, encoding: Encoding, trained_length: int, length: int, factor: Factor = "auto") -> Encoding:
        stretched = self.resolve(factor, trained_length, length)
        new = shared(encoding)
        for rope in stretchable(new, Rope):
            trained = Trained(rope.frequencies, rope.base, trained_length)
            self.angles(trained, stretched, length)  # what it cannot work with is said now, not in the first pass
            rope.stretch = partial(self.angles, trained, stretched)
        for part in new.modules():
            if isinstance(part, Encoding) and self.dynamic:
                part.cacheable = False
        return new


# Temperature -----------------------------------------------------------------------------------------------------

Temperature = Callable[[Tensor], "float | Tensor"]
"""From how many keys each query sees, (1 or B, T), a factor on its scores: a number, or float32 (1, 1 or B, T)."""


class _Scaled(Encoding):
    """Mixed in before the class of an encoding: its scale is multiplied by a temperature.

    A class of its own rather than a module around it, so that the parameters keep their names.
    """

    temperature: Temperature
    hooks_with_scale: frozenset[str]

    @property
    def hooks(self) -> frozenset[str]:
        # Kept from before, since torch.compile cannot follow `super().hooks`.
        return self.hooks_with_scale

    def scale(self, n_keys: Tensor, length: int) -> float | Tensor:
        return super().scale(n_keys, length) * self.temperature(n_keys)


def scaled(encoding: Encoding, temperature: Temperature) -> Encoding:
    """An encoding that shares the parameters of `encoding` and whose queries are multiplied by `temperature`."""
    new = shared(encoding)
    _mix(new, temperature)
    for layer in range(new.shape.layers):
        own = new.for_layer(layer)  # a wrapper's is a copy of itself, and scaled already
        if not isinstance(own, _Scaled):
            _mix(own, temperature)
    return new


def _mix(encoding: Encoding, temperature: Temperature) -> None:
    cls, hooks = type(encoding), encoding.hooks | {"scale"}
    encoding.__class__ = type(cls.__name__, (_Scaled, cls), {"__doc__": cls.__doc__})
    assert isinstance(encoding, _Scaled)
    encoding.temperature, encoding.hooks_with_scale = temperature, hooks
