"""T5's relative position bias: one learned number for each head and bucket of distances."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.encodings.base import Encoding, Shape


def bucket_starts(buckets: int, max_distance: int) -> list[float]:
    """The smallest distance of each bucket but the first: `buckets` - 1 numbers, ascending. Causal (one-way) rule.

    The first half of the buckets are the distances 0, 1, ... E - 1 themselves, E = buckets / 2; those of the other half
    are equally wide in the logarithm and start at E (max_distance / E)^(n/E), n = 0, 1, ...; the last one has no end.
    """
    exact = buckets // 2
    wide = buckets - exact
    return [float(r) for r in range(1, exact)] + [exact * (max_distance / exact) ** (n / wide) for n in range(wide)]


class T5(Encoding):
    """T5's relative position bias.

    Formula: s_ij = q_i . k_j / sqrt(D) + B[bucket(i - j), h], bucket(r) = r for r < E = buckets / 2, else
    min(buckets - 1, E + floor(E ln(r/E) / ln(max_distance/E))). Acts on the scores of every layer: `bias` gives float32
    (H, *distance.shape). One table for all layers, `buckets` x H learned parameters, which start at zero: at step 0 the
    model is `none`.

    Worked number: by default distance 64 falls in bucket 26 and every distance from 113 on in bucket 31.

    >>> t5 = T5(Shape(layers=1, width=8, heads=2, train_length=8))
    >>> t5.bucket(torch.tensor([15, 16, 18, 19, 64, 112, 113, 4095])).tolist()
    [15, 16, 16, 17, 26, 30, 31, 31]

    A bucket is trained only if its distances occur: a training length of L holds distances to L - 1. With the defaults
    bucket 31 is never trained at L <= 113, and none of 27-31 at L = 64; those keep their initial zero and longer
    windows then use them (`trained_buckets`).

    Paper: Raffel et al. 2020, https://arxiv.org/abs/1910.10683.

    Differences from the paper: the scores are scaled, divided by sqrt(D), and the bias is added after it, as later
    comparisons in decoders do; T5 does not divide the scores, and its table starts at random.
    """

    paper = "https://arxiv.org/abs/1910.10683"
    acts_on = "scores (learned bias)"
    reported = (
        "WikiText-103, trained at 512: perplexity 19.65 there, 18.77 at 1,112, 22.91 at 3,512 "
        "(Press et al. 2022, Table 2)"
    )
    shift_invariant = True

    def __init__(self, shape: Shape, buckets: int = 32, max_distance: int = 128) -> None:
        """`buckets`: rows of the table. `max_distance`: where the rule's last bucket would end; it has no end here."""
        super().__init__(shape)
        if buckets < 2 or buckets % 2:
            raise ValueError(f"buckets must be an even number from 2 on, not {buckets}")
        if max_distance <= buckets // 2:
            raise ValueError(f"max_distance must be above buckets / 2 = {buckets // 2}, not {max_distance}")
        self.starts = bucket_starts(buckets, max_distance)
        self.table = nn.Parameter(torch.zeros(buckets, shape.heads))
        self.caveat = self._untrained(shape.train_length)

    def bucket(self, distance: Tensor) -> Tensor:
        """Bucket numbers (int64) of distances >= 0, same shape."""
        # Float32 rounds a start that should be a whole number to it: 12 x 8^(8/12) is not quite 48 in Python's floats.
        starts = torch.tensor(self.starts, dtype=torch.float32, device=distance.device)
        return torch.bucketize(distance.float(), starts, right=True)

    def trained_buckets(self, length: int) -> int:
        """How many buckets, counted from the first, windows of `length` ever use."""
        return int(self.bucket(torch.tensor(length - 1))) + 1

    def _untrained(self, length: int) -> str:
        """Which buckets windows of `length` leave at their initial zero, a sentence; "" for none."""
        first, last = self.trained_buckets(length), len(self.table) - 1
        if first > last:
            return ""
        which = f"bucket {last} is" if first == last else f"buckets {first}-{last} are"
        return f"{which} never trained, since no distance is that long, and act in longer windows with a bias of zero."

    def bias(self, distance: Tensor) -> Tensor:
        return F.embedding(self.bucket(distance), self.table.float()).movedim(-1, 0)
