"""What an encoding costs, and what others take for the same work: `posbench bench`.

    rounds.py        cells timed in turns, so that a noisy machine hits all alike; medians and intervals of ratios
    cells.py         one thing to time: a training step or an evaluation call, of posbench or of a peer
    peers.py         the same shape in transformers and x-transformers; equal.py: the same weights, the same loss
    trial.py         a cell in a process of its own: its memory under a limit, and whether it works at all;
                     tensors.py: those alive at once
    products.py      the matrix products of a step, recorded from it, and run alone: the GEMM bound
    limits.py        what the machine itself can do
    entries.py       the rows of `bench encodings` and `bench peers`; variants.py: which variants of one are timed
    compare.py       trials, then rounds; rows.py: the numbers that follow
    race.py          `bench time-to-loss`
    tables.py        rows as tables; machine.py: what is needed to repeat them

No timing decides anything outside this folder: a run's kernel and compilation follow fixed rules
(posbench/decisions.py).
"""
