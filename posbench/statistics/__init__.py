"""How sure a number is. Everything is in nats a token; a ratio of perplexities is exp of a paired difference.

Which interval answers what:

    how well one row's loss is known on text like this     `contrast` of it alone: its blocks, resampled as below.
                                                           (`standard_error`, stored with a row, takes blocks as
                                                           independent: too small where neighbours are alike.)
    one checkpoint, two lengths, protocols or extensions   `contrast`: the same blocks, paired; its interval, of blocks
                                                           resampled within documents (bootstrap.py)
    one or two encodings, three seeds or more              `over_seeds`: Student's t on the paired means of the seeds;
                                                           `with_text` widens it by what another text would change:
                                                           other passages, or by more (`by_documents`) other documents
    two encodings, fewer seeds                             none: which training run came out better says little of the
                                                           next, and nothing here turns that into a verdict

The second holds for one checkpoint and for these documents: it says how the number would move with other passages of
them, not with another seed, nor with documents that are unlike these.
What is then said of a statement (one-sided tests, two of them for `equal`, Holm's correction) is in estimate.py and
holm.py; how many seeds and how much text the next study needs in planning.py. `python scripts/coverage_check.py` shows
how often each interval covers the truth on losses made like the stored ones.
"""

from posbench.statistics.blocks import Blocks, by_documents, contrast, exp, mean, paired_error, standard_error
from posbench.statistics.estimate import Estimate, over_seeds, with_text
from posbench.statistics.holm import holm

__all__ = [
    "Blocks",
    "Estimate",
    "by_documents",
    "contrast",
    "exp",
    "holm",
    "mean",
    "over_seeds",
    "paired_error",
    "standard_error",
    "with_text",
]
