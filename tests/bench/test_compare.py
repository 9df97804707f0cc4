"""A comparison from entries to rows, with times that are given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import works

from posbench.bench import compare, entries, peers, variants
from posbench.bench.cells import OURS, Cell, Prepared, Variant
from posbench.bench.compare import Limit, Outcome
from posbench.bench.entries import Contender, Entry, Work
from posbench.bench.products import Factor, Product, Step
from posbench.bench.rounds import Turn
from posbench.bench.rows import limit_records, records
from posbench.bench.trial import Trial
from posbench.bench.variants import Budget
from posbench.errors import UserError

BUDGET = Budget(rounds=6, memory=2**30, trial_seconds=10, seconds=float("inf"))


def configs(*names: str) -> dict:
    return {name: works.config(name) for name in names}


def test_encodings_are_each_compared_with_none_at_every_task():
    found = entries.of_encodings(configs("none", "alibi", "rope"), Work(works.VOCAB, [16, 64]))
    assert [(one.task, one.length, one.windows, one.name) for one in found] == [
        (*task, name)
        for task in (("train", 16, 2), ("eval", 16, 2), ("eval", 64, 1))
        for name in ("none", "alibi", "rope")
    ]
    for one in found:
        if one.name == "none":
            assert one.against is None
        else:
            assert one.against is not None
            assert (one.against.name, one.against.task, one.against.length) == ("none", one.task, one.length)


def test_the_windows_of_an_evaluation_can_be_chosen():
    found = entries.of_encodings(configs("none"), Work(works.VOCAB, [16, 64, 256], eval_tokens=128))
    assert [one.windows for one in found] == [2, 8, 2, 1]


def test_an_encoding_without_positions_that_far_is_marked():
    found = entries.of_encodings(configs("none", "learned"), Work(works.VOCAB, [16, 64]))
    marked = {(one.name, one.length): one.reason for one in found if one.reason}
    assert marked == {("learned", 64): "learned has positions for 16 inputs and no more"}


def test_a_peer_is_tried_with_every_attention_in_both_modes_and_compared_with_its_own_block():
    found = entries.of_peers(configs("rope"), [peers.find("llama")], Work(works.VOCAB, [64]), compile=True)
    ours, llama, ours_eval, llama_eval = found
    assert [one.name for one in found] == [OURS, "llama", OURS, "llama"]
    assert llama.against is ours
    assert llama_eval.against is ours_eval
    assert [cell.variant for cell in ours.cells] == [Variant(), Variant(compiled=True)]
    assert [cell.variant for cell in ours_eval.cells] == [Variant()]
    assert [(cell.variant.attention, cell.variant.compiled) for cell in llama.cells] == [
        ("sdpa", False),
        ("sdpa", True),
        ("eager", False),
        ("eager", True),
    ]
    assert abs(llama.loss_difference or 0) < 1e-4


def test_bloom_is_compared_with_posbench_at_its_block():
    """And x-transformers beside it with posbench as it is."""
    chosen = [peers.find("bloom"), peers.find("x-transformers alibi")]
    config = works.config("alibi", width=128, hidden=344)
    found = entries.of_peers({"alibi": config}, chosen, Work(works.VOCAB, []), compile=False)
    by_name = {one.name: one for one in found}
    assert list(by_name) == ["posbench, bloom's block", OURS, "bloom", "x-transformers alibi"]
    assert by_name["bloom"].against is by_name["posbench, bloom's block"]
    assert by_name["x-transformers alibi"].against is by_name[OURS]
    block = by_name["posbench, bloom's block"].cells[0].config.model
    assert (block.norm, block.activation, block.hidden) == ("layernorm", "relu", 512)


def test_a_peer_that_does_other_work_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(entries.equal, "difference", lambda *args: 3e-4)
    found = entries.of_peers(configs("rope"), [peers.find("llama")], Work(works.VOCAB, []), compile=False)
    assert found[1].reason == "with the same weights its loss differs by 3.0e-04 nats: it does other work"


def test_a_peer_that_cannot_read_so_far_is_marked():
    work = Work(works.VOCAB, [64])
    found = entries.of_peers(configs("learned"), [peers.find("gpt-2")], work, compile=False)
    assert [one.reason for one in found] == [
        None,
        None,
        "learned has positions for 16 inputs and no more",
        "it has positions for 16 inputs and no more",
    ]


@pytest.mark.parametrize("name", ["gpt-2", "llama"])
def test_a_missing_peer_is_marked_and_not_imported(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setitem(sys.modules, "transformers", None)  # so that to import it raises
    peer = peers.find(name)
    ours, theirs = entries.of_peers(configs(peer.encoding), [peer], Work(works.VOCAB, []), compile=False)
    assert (ours.name, ours.reason, theirs.against) == (OURS, None, ours)
    assert theirs.reason == "transformers is not installed (pip install 'posbench[peers]')"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TypeError("no argument rope_parameters"), "TypeError: no argument rope_parameters"),
        (AssertionError("llama names its weights otherwise"), "AssertionError: llama names its weights otherwise"),
        (RuntimeError("can't allocate memory: you tried"), "out of memory"),
    ],
)
@pytest.mark.parametrize("where", ["ours", "difference"])
def test_a_peer_of_a_foreign_version_is_marked(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, where: str
):
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(*((peers.Peer, "ours") if where == "ours" else (entries.equal, "difference")), fail)
    found = entries.of_peers(configs("rope"), [peers.find("llama")], Work(works.VOCAB, []), compile=False)
    assert [one.reason for one in found] == [None, reason]


def entry(name: str, maker: str = OURS, against: Entry | None = None, variants: int = 1) -> Entry:
    kinds = [Variant(), Variant(compiled=True)][:variants]
    return Entry(name, "none", [works.cell(maker=maker, variant=kind) for kind in kinds], against)


def test_a_marked_row_leaves_the_others_standing(monkeypatch: pytest.MonkeyPatch):
    def run(cell: Cell, memory: int, seconds: float) -> Trial:
        return Trial("out of memory (1 GiB)") if cell.maker == "bloom" else Trial(None, 0.1, 30, 10, 100)

    monkeypatch.setattr(variants, "run", run)
    ours = entry("posbench")
    outcome = compare.compare([ours, entry("bloom", "bloom", ours)], BUDGET)
    first, second = records(outcome)
    assert (first["status"], first["rounds"], first["extra_bytes"], first["parameters"]) == ("ok", 6, 20, 100)
    assert len(first["seconds"]) == 6
    assert first["gflop_products"] == pytest.approx(0.020054016)
    assert first["kernel"] == "causal"
    assert (second["status"], second["reason"]) == ("n/a", "out of memory (1 GiB)")
    assert second["tokens_per_second"] is None
    assert second["ratio"] is None
    assert [one["unit"] for one in limit_records(outcome)] == ["GF/s", "tokens/s"]


def test_what_fits_alone_and_not_beside_the_others_is_marked(monkeypatch: pytest.MonkeyPatch):
    def prepare(cell: Cell) -> Prepared:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(variants, "run", lambda *args: Trial(None, 0.1, 30, 10, 100))
    monkeypatch.setattr(compare, "prepare", prepare)
    [row] = records(compare.compare([entry("posbench")], BUDGET))
    assert (row["status"], row["reason"]) == ("n/a", "not beside the other cells: out of memory")


def called(monkeypatch: pytest.MonkeyPatch, calls: dict[str, Callable[[], object]]) -> None:
    """Cells of these makers work in trials, and do this when they are called; there are no limits of the machine."""
    monkeypatch.setattr(variants, "run", lambda *args: Trial(None, 0.2, 30, 10, 100))
    monkeypatch.setattr(compare, "prepare", lambda cell: Prepared(calls[cell.maker], 100))
    monkeypatch.setattr(compare, "_add_limits", lambda *args: None)


def test_a_cell_that_fails_in_the_rounds_is_marked_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    """It works when it is built and in the first round, not in the second."""
    left = iter([1, 2])
    called(monkeypatch, {OURS: lambda: None, "llama": lambda: next(left)})
    ours, said = entry("posbench"), list[str]()
    outcome = compare.compare([ours, entry("llama", "llama", ours)], BUDGET, said.append)
    first, second = records(outcome)
    assert (first["status"], first["rounds"], second["status"]) == ("ok", 6, "n/a")
    assert second["reason"] == "it failed in the rounds: StopIteration: StopIteration"
    assert second["reason"] in said[-1]


def test_what_is_found_is_handed_out_between_rounds(monkeypatch: pytest.MonkeyPatch):
    """After every round but the last, whose rounds are what is returned."""
    monkeypatch.setattr(compare, "KEEP_SECONDS", 0.0)
    called(monkeypatch, {OURS: lambda: None})
    kept: list[int] = []
    compare.compare([entry("posbench")], BUDGET, keep=lambda outcome: kept.append(records(outcome)[0]["rounds"]))
    assert kept == [1, 2, 3, 4, 5]


def test_a_sigterm_leaves_the_rounds_that_are_whole(monkeypatch: pytest.MonkeyPatch):
    left, said = iter([1, 2, 3]), list[str]()  # one of them to build it

    def call() -> None:
        if next(left, None) is None:
            raise SystemExit(143)

    called(monkeypatch, {OURS: call})
    [row] = records(compare.compare([entry("posbench")], BUDGET, said.append))
    assert (row["status"], row["rounds"], said[-1]) == ("ok", 2, "ended after 2 of 6 rounds")


def test_of_several_variants_the_one_with_the_best_median_counts():
    """Eager is faster at first, and in five rounds of six slower."""
    one = entry("posbench", variants=2)
    eager, compiled = one.contenders = [Contender(cell, Trial(None, 0.1, 30, 10, 100)) for cell in one.cells]
    outcome = Outcome([one])
    outcome.take({eager: [0.1], compiled: [0.2]})
    assert [records(outcome)[0][key] for key in ("variant", "rounds")] == ["eager", 1]
    outcome.take({eager: [0.1] + [0.3] * 5, compiled: [0.2] * 6})
    assert [records(outcome)[0][key] for key in ("variant", "rounds")] == ["compiled", 6]
    outcome.take({eager: [0.3] * 6})  # the other one has failed
    assert records(outcome)[0]["variant"] == "eager"


def timed(*pairs: tuple[Entry, list[float]]) -> Outcome:
    for one, _ in pairs:
        one.best = Contender(one.cells[0], Trial())
    return Outcome([one for one, _ in pairs], dict(pairs))


def test_an_encoding_is_shown_as_its_speed_over_that_of_none():
    """32 tokens in 0.2 s are 160 a second; none takes half as long, so alibi runs at half its speed."""
    none = entry("none")
    alibi = entry("alibi", against=none)
    base, row = records(timed((none, [0.1] * 6), (alibi, [0.2] * 5 + [0.4])))
    assert row["tokens_per_second"] == pytest.approx(160.0)
    assert (row["lowest"], row["highest"]) == pytest.approx((80.0, 160.0))
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == pytest.approx((0.5, 0.25, 0.5))
    assert row["against"] == "none"
    assert base["ratio"] is None


def test_a_peer_is_shown_as_posbenchs_speed_over_its():
    ours = entry("posbench")
    theirs = entry("llama", "llama", ours)
    _, row = records(timed((ours, [0.1] * 6), (theirs, [0.15] * 6)))
    assert (row["ratio"], row["ratio_low"]) == pytest.approx((1.5, 1.5))


def test_a_step_is_held_against_its_products_and_the_peak_of_the_machine():
    """The products alone take 0.08 s of a step of 0.1 s, in the faster of their ways. They are 6e9 operations, and the
    machine does 100 GF/s: a step that did nothing else would take 0.06 s."""
    left = Factor((1000, 1500), (1500, 1), torch.float32)
    product = Product(left, Factor((1500, 2000), (2000, 1), torch.float32), torch.float32)
    assert product.flops == 6e9
    ours, step = entry("posbench"), Step(((product,),), at_once=2)
    outcome = timed((ours, [0.1] * 6))
    ways = [Limit("GEMM bound", 32, "tokens/s", step, at_once) for at_once in (1, 2)]
    peak = Limit("matmul peak", 2.0, "GF/s")
    outcome.steps[ours] = step
    outcome.limits = {ways[0]: [0.09] * 5 + [0.01], ways[1]: [0.08] * 6, peak: [0.02] * 6}
    [row] = records(outcome)
    assert (row["gemm_share"], row["gemm_share_low"]) == pytest.approx((0.8, 0.8))
    assert row["peak_share"] == pytest.approx(0.6)
    in_turn, at_once, of_peak = limit_records(outcome)
    assert in_turn["limit"] == "GEMM bound, all threads in turn (slower): posbench (none)"
    assert (at_once["limit"], at_once["median"]) == (
        "GEMM bound, 2 parts at once: posbench (none)",
        pytest.approx(400.0),
    )
    assert (of_peak["limit"], of_peak["median"]) == ("matmul peak", pytest.approx(100.0))


def test_peers_are_not_timed_with_muon():
    with pytest.raises(UserError, match="AdamW on both sides"):
        entries.plain_adamw(works.config(method="muon"))


def test_a_turn_is_so_many_calls_as_fill_its_time():
    turns = [compare._turn(print, seconds) for seconds in (1.0, 0.05, 0.001)]
    assert turns == [Turn(print, 1, 1.0), Turn(print, 4, 0.05), Turn(print, 200, 0.001)]


def test_what_there_is_no_time_for_is_marked():
    """Trials end after 0.6 of the time of it all; the table stands, and says why it is empty."""
    found = entries.of_encodings(configs("none"), Work(works.VOCAB, [16]))
    outcome = compare.compare(found, replace(BUDGET, within=0))
    assert [(one["status"], one["reason"]) for one in records(outcome)] == [("n/a", "not tried: 0 s were over")] * 2
