"""A claim is data: two measured values, the relation between them, and where a paper printed it, if one did.

    name: ALiBi at 2 L is not above its value at L
    primary: true                   # at most 6 of a study, named before it is run; the others are exploratory
    left: {encoding: alibi, train_length: 128, at: 2L}      # `at`: a multiple of L, a sum such as L+64, or tokens
    relation: not-above             # less | not-above | equal
    right: {at: 1L}                 # what it does not say is as on the left, but for an extension: none
    margin: 0.01                    # a share of the right perplexity; `equal` has 0.01 unless it is given, `less` none
    protocol: nonoverlapping
    paper: {table: Table 5, left: [alibi, 128, 256], right: [alibi, 128, 128]}   # encoding, trained at, read at;
                                    # `paper: haviv` and so on where it is not Press et al. (published.csv);
                                    # no `paper` at all: a question of one's own
    nearest: {...}                  # the cells at the training length nearest to this one's, where it is seen elsewhere
    note: what else a reader should know of it              # optional

A side may name an `extension`, a `protocol`, a `stride` and a `block` of its own, and `minus`, another reading that is
taken off: `minus: {protocol: sliding}`, on both sides, makes it the gap between two protocols. In `paper`, `minus` is
the table whose same cells are taken off.

    relation: fails-by              # fails-by | holds-to: whether a method fails by that length (failure.py)
    left: {encoding: rope, train_length: 128}
    right: {at: 2L}
    paper: {table: Table 2, left: [rope, 512]}              # all lengths that were printed of that model

    left: {encoding: rope, train_length: 128, at: 1L}
    relation: less                  # slower; not-above and equal as above
    right: {encoding: sinusoidal}
    protocol: training              # training | evaluation: speeds at that length, of `posbench bench` (speed.py)
    paper: {table: Table 1 (training), left: [rope, 512, 512], right: [sinusoidal, 512, 512]}

Every verdict is reached on rows of the same targets; of a gap either protocol may have targets of its own, and is held
against itself on them. With three seeds or more a claim is *supported*, *contradicted* or *undecided*; with fewer
*seen* or *not seen*, and no more: another seed may turn it round. (Where all is of one checkpoint and its text alone
might turn it round, it is *undecided* as well.) What no row answers is *not measured*, with what is missing.

    claim.py        the YAML, read and checked; source.py: the cells of a paper that it names
    comparison.py   a difference over seeds, and how sure it is
    failure.py      where a method fails, of each method also as a table
    speed.py        speeds of two encodings against each other
    verdict.py      claims against rows
    table.py        verdicts for a reader; left_out.py: the primary ones with documents left out
"""

from posbench.report.claims.claim import Claim, parse
from posbench.report.claims.failure import failure_table
from posbench.report.claims.left_out import left_out_table
from posbench.report.claims.table import claims_table, in_order, short_table
from posbench.report.claims.verdict import Verdict, judge

__all__ = [
    "Claim",
    "Verdict",
    "claims_table",
    "failure_table",
    "in_order",
    "judge",
    "left_out_table",
    "parse",
    "short_table",
]
