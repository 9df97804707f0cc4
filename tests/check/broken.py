"""Small encodings, each with one fault that others have made: what the test of `posbench check` is tested with.

Each is ALiBi's or RoPE's in all but its fault. `cacheable = False` where the fault would show in a cache as well.
"""

import torch

from posbench.encodings.alibi import Alibi
from posbench.encodings.angles import cos_sin, frequencies
from posbench.encodings.base import Encoding
from posbench.encodings.fox import _Gates
from posbench.encodings.rope import Rope
from posbench.encodings.rotation import tables, turn
from posbench.encodings.wrapper import Inner, Wrapper


class LeakingNorm(Rope):
    """Divides the keys by their spread over the whole window, later keys among them."""

    cacheable = False
    shift_invariant = False  # the spread of turned keys

    def rotate(self, q, k, ctx):
        q, k = super().rotate(q, k, ctx)
        return q, k / k.std(dim=2, keepdim=True, unbiased=False).clamp(min=1e-3) if k.shape[2] > 1 else k


class BiasAfterSoftmax(Alibi):
    """Adds its bias to the weights, and so takes a softmax over keys that the mask has yet to remove."""

    cacheable = False

    @property
    def hooks(self):
        return frozenset({"scores"})

    def scores(self, s, q, k, q_pos, k_pos, state, rows):
        return s.softmax(-1) + self.bias(q_pos[:, :, None] - k_pos[:, None, :]).transpose(0, 1)


class RestartingKeys(Rope):
    """Counts the positions of every pass from 0, the second part behind a cache too."""

    def begin(self, positions, length):
        return super().begin(positions - positions[:, :1], length)


class HalfPositions(Rope):
    """Forms its angles in the dtype of a buffer, which follows the model into 16 bits."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("steps", self.frequencies.float())

    def begin(self, positions, length):
        angles = positions[..., None].to(self.steps.dtype) * self.steps
        return tables(angles.cos().float(), angles.sin().float(), self.shape.heads, self.layout)

    shift_invariant = False  # in float32 it is so only to 1e-3


class HalfBias(Alibi):
    """Stores its slopes, and forms the bias in their dtype (PREC-2): in 16 bits distances above 256 share values."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("slope_H", torch.tensor(self.slopes))

    def bias(self, distance):
        return -self.slope_H.view(-1, *[1] * distance.ndim) * distance.to(self.slope_H.dtype)


class CappedAlibi(Alibi):
    """ALiBi up to a distance of 64, and says that all of its bias is in proportion, of which a GPU then makes it."""

    proportional = True

    def bias(self, distance):
        return super().bias(distance.clamp(max=64))


class HalfLayer(Encoding):
    """ALiBi in all layers; in the last one its bias follows the model into 16 bits."""

    acts_on = "scores"
    shift_invariant = True

    def __init__(self, shape):
        super().__init__(shape)
        self.early, self.late = Alibi(shape), HalfBias(shape)

    @property
    def hooks(self):
        return frozenset({"bias", "for_layer"})

    def for_layer(self, layer):
        return self.early if layer < self.shape.layers - 1 else self.late


class KeptTable(Alibi):
    """Stretches its bias by the longest input it has seen."""

    longest = 1

    def bias(self, distance):
        self.longest = max(self.longest, int(distance.max()))
        return super().bias(distance) * 100 / self.longest


class MixedRows(Alibi):
    """Centres its scores over the batch: a text is read by what lies beside it."""

    @property
    def hooks(self):
        return frozenset({"bias", "scores"})

    def scores(self, s, q, k, q_pos, k_pos, state, rows):
        return s - 0.3 * s.mean(0, keepdim=True) if len(s) > 1 else s


class OnePosition(Rope):
    """Takes the positions of the first text in a batch for those of all."""

    def begin(self, positions, length):
        return super().begin(positions[:1], length)


class LostGates(_Gates):
    """Forgetting attention that behind a cache forgets the gates of tokens more than 50 back: where a gate is half shut
    nothing is left of their keys anyway."""

    acts_on = "scores"
    shift_invariant = True
    reads_positions = False

    def scores(self, s, q, k, q_pos, k_pos, state, rows):
        gates = state["log_forget"]
        if 50 < rows.start < 200:  # neither the first block of a pass nor one behind it
            gates = gates * (torch.arange(gates.shape[1]) >= rows.start - 50)[:, None]
        return super().scores(s, q, k, q_pos, k_pos, {"log_forget": gates}, rows)


class IdleParameter(Alibi):
    """Has a parameter that nothing uses."""

    def __init__(self, shape):
        super().__init__(shape)
        self.idle = torch.nn.Parameter(torch.ones(3))


class BlindToOrder(Encoding):
    """Scales all scores alike."""

    acts_on = "scores"
    shift_invariant = True

    def scores(self, s, q, k, q_pos, k_pos, state, rows):
        return 1.5 * s


class MixedLayout(Rope):
    """Turns halves of the head by the frequencies of neighbours (PAIR-1)."""

    def begin(self, positions, length):
        pairs = frequencies(self.shape.head_dim, 10_000.0)
        cos, sin = cos_sin(positions, pairs.repeat_interleave(2))
        return cos[:, None], sin[:, None]

    def rotate(self, q, k, ctx):
        cos, sin = ctx

        def turn(x):
            first, second = x.chunk(2, dim=-1)
            return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)

        return turn(q), turn(k)


class GainAfterTurning(Rope):
    """Has a gain for each number of a head after the rotation, as a norm of queries and keys may."""

    def rotate(self, q, k, ctx):
        q, k = super().rotate(q, k, ctx)
        gain = torch.linspace(0.5, 1.5, q.shape[-1])
        return (q * gain).to(q.dtype), (k * gain).to(k.dtype)


class TurnedVectors(Encoding):
    """Turns the token vectors once, before the first layer, in place of queries and keys."""

    acts_on = "token vectors"
    shift_invariant = True

    def embed(self, x, positions):
        cos, sin = tables(*cos_sin(positions, frequencies(x.shape[-1], 10_000.0)), 1, "half")
        return turn(x, cos[:, 0], sin[:, 0], "half")


class OddOff(Alibi):
    """Leaves out the first key when their number is odd."""

    cacheable = False

    @property
    def hooks(self):
        return frozenset({"bias", "scores"})

    def scores(self, s, q, k, q_pos, k_pos, state, rows):
        return torch.cat([s[..., :1] - 5, s[..., 1:]], dim=-1) if s.shape[-1] % 2 else s


class SquareTable(Alibi):
    """Stores a mask of the training length."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("mask", torch.zeros(shape.train_length, shape.train_length))


class Inert(Wrapper):
    """Changes nothing of what it holds."""

    def __init__(self, shape, inner: Inner):
        super().__init__(shape, inner)


class FromTheEnd(Encoding):
    """Tells each token how far it is from the end of the window."""

    acts_on = "token vectors"

    def embed(self, x, positions):
        left = positions.shape[-1] - 1 - (positions - positions[:, :1])
        cos, _ = cos_sin(left, frequencies(2 * x.shape[-1], 10_000.0))
        return x + cos


class SilentEnd(Alibi):
    """Says that it ends at its training length, and reads on."""

    def __init__(self, shape):
        super().__init__(shape)
        self.max_length = shape.train_length


class InfiniteSlope(Alibi):
    """A learned power of the distance, whose gradient at distance 0 is 0 x ln 0."""

    def __init__(self, shape):
        super().__init__(shape)
        self.power = torch.nn.Parameter(torch.ones(shape.heads))

    def constrain(self):
        with torch.no_grad():
            self.power.clamp_(0.5, 1.0)

    def bias(self, distance):
        return -0.1 * (self.power.view(-1, *[1] * distance.ndim) * distance.float().log()).exp()


class OneTensor(Rope):
    """Turns the queries and gives no keys back: of a batch of two, each text would be one of the two."""

    def rotate(self, q, k, ctx):
        return super().rotate(q, k, ctx)[0]


class Demanding(Alibi):
    """Takes training lengths of 64 or more."""

    def __init__(self, shape):
        super().__init__(shape)
        if shape.train_length < 64:
            raise ValueError(f"it needs a training length of 64, not {shape.train_length}")


BROKEN = (
    LeakingNorm, BiasAfterSoftmax, RestartingKeys, HalfPositions, HalfBias, CappedAlibi, HalfLayer, KeptTable,
    MixedRows, OnePosition, LostGates, IdleParameter, BlindToOrder, MixedLayout, GainAfterTurning, TurnedVectors,
    OddOff, SquareTable, Inert, FromTheEnd, SilentEnd, InfiniteSlope,
)  # fmt: skip
