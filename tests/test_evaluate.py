"""From a run to its rows: what is asked, what is kept, what is marked, and that nothing depends on what ran before."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import made
import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F

from posbench import evaluate, lock, records
from posbench.config import Eval
from posbench.data.tokenizer import Tokenizer
from posbench.data.windows import generators, nonoverlapping, sliding
from posbench.encodings.rope import Rope
from posbench.errors import UserError
from posbench.evaluate import Request
from posbench.lock import HeldError
from posbench.records import KINDS
from posbench.run import Run, directory


@pytest.fixture(autouse=True)
def _roots(folders: None, monkeypatch: pytest.MonkeyPatch):
    # Bits and messages are those of the CPU, also where `auto` would find a GPU.
    monkeypatch.setattr(evaluate.system, "device", lambda name: torch.device("cpu"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return made.text(tmp_path / "text")


@pytest.fixture
def rope(text: Path) -> Run:
    """A run of training length 16 with random weights: no number here depends on training."""
    return made.finished_run(text, "rope", length=16)


def asked(run: Run, lengths: list[int], **settings) -> list[Request]:
    return evaluate.requests(run.config, Eval(lengths=lengths, **settings))


def results(row: records.Row) -> dict:
    """Everything that must be the same when a row is computed again."""
    return {name: getattr(row, name) for kind in ("key", "about", "result") for name in KINDS[kind].__annotations__}


# requests -------------------------------------------------------------------------------------------------------------


def test_a_runs_own_length_is_always_measured(rope):
    assert [request.length for request in asked(rope, [64, 32])] == [16, 32, 64]
    assert [request.length for request in asked(rope, [])] == [16]


def test_a_request_names_only_what_its_protocol_has(rope):
    assert asked(rope, [], stride=4)[0] == Request("nonoverlapping", 16)
    assert asked(rope, [], protocol="sliding", stride=4)[0] == Request("sliding", 16, stride=4)
    same = Request("same-targets", 16, block=8, min_context=64, targets=4096)
    assert asked(rope, [64], protocol="same-targets", block=8)[0] == same


def test_the_default_of_min_context_is_the_longest_length_the_runs_own_among_them(rope):
    assert {request.min_context for request in asked(rope, [8], protocol="same-targets")} == {16}
    assert {request.min_context for request in asked(rope, [64], protocol="same-targets")} == {64}


def test_the_default_stride_is_half_of_each_length(rope):
    assert [request.stride for request in asked(rope, [33, 64], protocol="sliding")] == [8, 16, 32]


def test_an_unknown_protocol_is_answered_with_the_nearest(rope):
    with pytest.raises(UserError, match="Did you mean 'sliding'"):
        asked(rope, [], protocol="slide")


def test_a_row_says_what_of_its_run_is_not_the_default(text, rope):
    """Without a label and lengths, which it says elsewhere."""
    scaled = made.finished_run(text, "rope", length=16, embed_scale=True)
    plain, other = (evaluate.evaluate(run, [Request("nonoverlapping", 16, targets=64)])[0] for run in (rope, scaled))
    assert plain.settings == "train.batch_tokens=16"
    assert other.settings == "encoding.embed_scale=true train.batch_tokens=16"


# numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"protocol": "sliding", "stride": 5}])
def test_a_row_is_the_mean_over_all_targets_of_naive_windows(rope, settings):
    """Window after window through plain logits, on the test split: the same loss to 1e-6."""
    (row,) = evaluate.evaluate(rope, asked(rope, [16], **settings))
    ids = made.prepared(rope).stream("test").ids
    windows = nonoverlapping(len(ids), 16) if not settings else sliding(len(ids), 16, 5)
    model, losses = rope.model(), []
    for begin, end, scored in zip(windows.begin, windows.end, windows.scored, strict=True):
        piece = torch.from_numpy(ids[begin : end + 1].astype(np.int64))[None]
        logits = tiny.logits(model, piece[:, :-1])
        losses += F.cross_entropy(logits[0], piece[0, 1:], reduction="none")[-scored:].tolist()
    assert row.targets == len(losses) == len(ids) - 1
    assert row.loss == pytest.approx(np.mean(losses), abs=1e-6)
    assert row.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-6)


def test_a_row_of_same_targets_is_what_the_protocol_says(rope):
    """In plain Python: 12 blocks of 8 targets, floor(i G / 12) of all G whole ones after the first 64 ids of each
    document, each read with the 16 ids before its last target."""
    (row,) = evaluate.evaluate(rope, asked(rope, [], protocol="same-targets", block=8, min_context=64, targets=96))
    stream = made.prepared(rope).stream("test")
    starts = [start for a, b in pairwise(stream.documents.tolist()) for start in range(a + 64, b, 8) if start + 8 <= b]
    assert len(starts) > 24
    model, losses = rope.model(), []
    for i in range(12):
        last = starts[i * len(starts) // 12] + 7
        piece = torch.from_numpy(stream.ids[last - 16 : last + 1].astype(np.int64))[None]
        losses += F.cross_entropy(tiny.logits(model, piece[:, :-1])[0], piece[0, 1:], reduction="none")[-8:].tolist()
    assert row.targets == len(losses) == 96
    assert row.loss == pytest.approx(np.mean(losses), abs=1e-6)
    assert row.documents == len(made.TEST), "a document with several blocks counts once"


def test_the_training_loss_counts_the_same_targets(rope):
    """PPL-3: on the windows of one length `Decoder.loss` is the mean of what evaluation counts."""
    model, ids = rope.model(), tiny.ids(17, batch=3, vocab=256)
    with torch.no_grad():
        mean = model.loss(ids[:, :-1], ids[:, 1:])
    assert mean == pytest.approx(model.token_losses(ids[:, :-1], ids[:, 1:]).mean().item(), abs=1e-6)


def test_a_row_holds_all_that_a_table_needs(rope):
    (row,) = evaluate.evaluate(rope, asked(rope, []))
    assert (row.kind, row.encoding, row.train_length, row.model, row.seed) == ("run", "rope", 16, "toy", 1)
    assert (row.run, row.run_hash, row.step) == (rope.name, rope.hash, 4)
    assert row.corpus == row.trained_on == made.prepared(rope).corpus
    assert (row.tokenizer, row.vocab_size) == ("bytes", made.prepared(rope).tokenizer.vocab_size)
    assert (row.status, row.reason, row.dtype, row.device) == ("ok", None, "float32", "cpu")
    assert row.kernel == "causal"
    assert row.tokens_per_second > 0
    assert row.peak_memory > 0
    assert row.standard_error > 0


def test_word_perplexity_is_of_whole_documents_alone(rope):
    """All of the test split's documents are N words; its first 100 targets end inside a document."""
    (whole,) = evaluate.evaluate(rope, asked(rope, []))
    (part,) = evaluate.evaluate(rope, asked(rope, [], targets=100))
    words = sum(len(made.document(number).split()) for number in made.TEST)
    assert whole.words == words
    assert whole.word_perplexity == pytest.approx(math.exp(whole.nats / words))
    assert (part.words, part.word_perplexity) == (None, None)


def test_a_word_of_thousands_of_nats_has_no_perplexity():
    """A text without blanks is one word: exp(900) is no float, and JSON has no infinity."""
    found = evaluate.summary(made.arrays([600.0, 300.0]), words=1)
    assert found["word_perplexity"] is None
    assert found["perplexity"] == pytest.approx(math.exp(900 / 256))


def test_a_tokenizer_that_loses_text_gives_no_word_perplexity(rope, monkeypatch):
    """Words are counted in what the ids decode to, which is the text only when it has the text's bytes."""
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: decode(self, ids).replace("é", "e"))
    (row,) = evaluate.evaluate(rope, asked(rope, []))
    assert (row.status, row.words, row.word_perplexity) == ("ok", None, None)


def test_targets_that_end_with_a_document_are_whole_documents(rope):
    stream = made.prepared(rope).stream("test")
    (row,) = evaluate.evaluate(rope, asked(rope, [], targets=int(stream.documents[1]) - 1))
    assert row.words == len(made.document(made.TEST[0]).split())
    assert row.documents == 1


def test_targets_that_begin_inside_a_document_are_no_whole_documents(rope):
    """Though they end with one."""
    text = evaluate.Text(made.prepared(rope), "test")
    first, end = text.stream.documents[:2]
    assert text.words(np.array([[first, end]])) == len(made.document(made.TEST[0]).split())
    assert text.words(np.array([[first + 8, end]])) is None


def test_on_the_cpu_a_run_is_read_in_float32_however_it_was_trained(rope):
    rope.record["decisions"]["precision"] = "bf16"
    (bf16,) = evaluate.evaluate(rope, asked(rope, []), device="cpu")
    rope.record["decisions"]["precision"] = "fp32"
    (fp32,) = evaluate.evaluate(rope, asked(rope, []), device="cpu", force=True)
    assert bf16.dtype == "float32"
    assert results(bf16) == results(fp32)


def test_every_byte_of_the_split_is_counted_once(rope):
    """Bits per byte stand on the text's own bytes; an end token has none."""
    (row,) = evaluate.evaluate(rope, asked(rope, []))
    assert row.bytes == sum(len(made.document(number).encode()) for number in made.TEST)
    assert row.targets == row.bytes + len(made.TEST), "with a byte tokenizer, and one end token a document"
    assert row.bits_per_byte == pytest.approx(row.nats / math.log(2) / row.bytes)
    assert row.documents == len(made.TEST)


def test_rows_of_one_protocol_score_the_same_targets_at_every_length(rope):
    """PPL-6, by digest; and each protocol says how many there were."""
    for protocol in evaluate.PROTOCOLS:
        rows = evaluate.evaluate(rope, asked(rope, [32, 64], protocol=protocol, block=8, targets=96))
        assert {row.targets_digest for row in rows} == {rows[0].targets_digest}
        assert {row.targets for row in rows} == {96}


# state ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(tiny.FILES))
def test_a_long_window_changes_no_later_short_one(text, name):
    """STATE-1: lengths 16, 128, 16 in one process give bit-equal first and third rows, in whatever order."""
    run = made.finished_run(text, name, length=16)

    def measured(*lengths: int) -> list[dict]:
        wanted = [Request("nonoverlapping", length, targets=512) for length in lengths]
        return [results(row) for row in evaluate.evaluate(run, wanted, force=True)]

    first, long, third = measured(16, 128, 16)
    assert first == third
    assert measured(128, 16) == [long, first]


def test_a_run_is_read_as_it_was_trained(text):
    """CKPT-3: the base comes from the run. Another base gives another number."""
    near, far = (made.finished_run(text, "rope", length=16, base=base) for base in (100.0, 10000.0))
    (one,), (other,) = (evaluate.evaluate(run, asked(run, [])) for run in (near, far))
    assert one.loss != other.loss


@pytest.mark.parametrize("budget", [16, 64, 8192])
def test_drawn_positions_do_not_depend_on_the_batch(rope, monkeypatch, budget):
    """A window's positions follow from (run seed, split, window number), so the row is the same in any batch."""

    def positions(self, windows, length, rng):
        drawn = [np.sort(generator.choice(10 * length, length, replace=False)) for generator in rng]
        return torch.from_numpy(np.stack(drawn))

    def nats() -> np.ndarray:
        (row,) = evaluate.evaluate(rope, asked(rope, [], targets=256), force=True)
        return records.arrays(row).nats

    plain = nats()
    monkeypatch.setattr(Rope, "positions", positions)
    drawn = nats()
    assert np.abs(drawn - plain).max() > 0.01
    monkeypatch.setitem(evaluate.TOKEN_BUDGET, "cpu", budget)
    assert nats() == pytest.approx(drawn, abs=1e-4)


def test_positions_are_drawn_from_the_runs_seed_the_split_and_the_window(rope, monkeypatch):
    drawn = []

    def positions(self, windows, length, rng):
        drawn.extend(zip(windows, (generator.random() for generator in rng), strict=True))
        return torch.arange(length)[None]

    monkeypatch.setattr(Rope, "positions", positions)
    (row,) = evaluate.evaluate(rope, asked(rope, [], targets=100))
    assert row.status == "ok"
    expected = generators(rope.config.seed, "test", range(7))
    assert drawn == [(number, generator.random()) for number, generator in enumerate(expected)]


@pytest.mark.parametrize("budget", [16, 50, 10**6])
def test_the_batch_does_not_matter(rope, monkeypatch, budget):
    """LEN-2: the budget only decides how many windows are read at once."""
    wanted = asked(rope, [64], protocol="sliding", stride=7, targets=300)
    rows = evaluate.evaluate(rope, wanted)
    monkeypatch.setitem(evaluate.TOKEN_BUDGET, "cpu", budget)
    for row, again in zip(rows, evaluate.evaluate(rope, wanted, force=True), strict=True):
        assert again.loss == pytest.approx(row.loss, abs=1e-6)


# what is kept ---------------------------------------------------------------------------------------------------------


def test_rows_that_are_there_are_not_computed_again(rope, monkeypatch):
    new: list[records.Row] = []
    rows = evaluate.evaluate(rope, asked(rope, [32]), on_row=new.append)
    assert new == rows
    assert all(row.path.is_file() for row in rows)
    monkeypatch.setattr(Run, "model", lambda self: pytest.fail("the model was loaded"))
    assert evaluate.evaluate(rope, asked(rope, [32]), on_row=lambda row: pytest.fail("a new row")) == rows


def test_force_computes_a_row_again_to_the_same_result(rope):
    (row,) = evaluate.evaluate(rope, asked(rope, []))
    new: list[records.Row] = []
    (again,) = evaluate.evaluate(rope, asked(rope, []), force=True, on_row=new.append)
    assert new == [again]
    assert results(again) == results(row), "bit-equal, the arrays' checksum too"


def test_a_damaged_row_is_computed_again(rope):
    (row,) = evaluate.evaluate(rope, asked(rope, []))
    row.path.write_text("{")
    (again,) = evaluate.evaluate(rope, asked(rope, []))
    assert results(again) == results(row)
    assert records.read([rope.path]) == [again]


def test_missing_says_what_is_to_do_and_how_much_it_reads(rope):
    wanted = asked(rope, [32, 10**6])
    targets = made.prepared(rope).stream("test").targets
    assert [inputs for _, inputs in evaluate.missing(rope, wanted)] == [targets, targets, 0]
    evaluate.evaluate(rope, wanted[:1])
    assert [request.length for request, _ in evaluate.missing(rope, wanted)] == [32, 10**6]


def test_what_is_there_is_read_while_another_process_works_on_the_run(rope):
    """Reading takes no lock, as in a folder that cannot be written; what is missing is that process's to measure."""
    wanted = asked(rope, [32])
    rows = evaluate.evaluate(rope, wanted)
    with rope.lock():
        assert evaluate.evaluate(rope, wanted) == rows
        with pytest.raises(HeldError, match="is being worked on by another process"):
            evaluate.evaluate(rope, asked(rope, [64]))
    assert len(evaluate.evaluate(rope, asked(rope, [64]))) == 2


def test_what_another_process_measured_in_between_is_not_measured_again(rope, monkeypatch):
    """It was missing before the lock was had, and is there after."""
    wanted, real, new = asked(rope, [32]), lock.hold, list[records.Row]()

    def hold(folder: Path, name: str):
        with monkeypatch.context() as patch:
            patch.setattr(evaluate.lock, "hold", real)
            evaluate.evaluate(rope, wanted[:1])
        return real(folder, name)

    monkeypatch.setattr(evaluate.lock, "hold", hold)
    assert [row.length for row in evaluate.evaluate(rope, wanted, on_row=new.append)] == [16, 32]
    assert [row.length for row in new] == [32]


def test_rows_are_kept_without_weights_in_whatever_precision_they_were_measured(rope, monkeypatch):
    """Those of a GPU are in bfloat16; here is none. They are all in one, and that of a device that is named."""
    monkeypatch.setitem(rope.record["decisions"], "precision", "bf16")
    wanted = asked(rope, [32])
    assert evaluate.kept(rope, wanted) is None
    real = evaluate._blank
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "_blank", lambda *how: replace(real(*how), dtype="bfloat16"))
        rows = evaluate.evaluate(rope, wanted)
    evaluate.evaluate(rope, wanted[:1])
    rope.weights.unlink()
    assert evaluate.kept(rope, wanted) == rows
    assert evaluate.kept(rope, wanted, "cuda:1") == rows
    assert evaluate.kept(rope, wanted, "cpu") is None
    with pytest.raises(UserError, match="has only its rows left"):
        evaluate.evaluate(rope, asked(rope, [64]))


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="kills itself")
def test_a_kill_during_the_third_length_keeps_the_first_two(rope):
    """OUT-3, and the same command again computes only what is missing."""
    script = f"""
import os, signal
from posbench import evaluate
from posbench.config import Eval
from posbench.run import Run
run = Run({str(rope.path)!r})
measure = evaluate.measure
def killed(stream, windows, score, *rest):
    if windows.lengths.max() == 64:
        def score(*batch):
            os.kill(os.getpid(), signal.SIGKILL)
    return measure(stream, windows, score, *rest)
evaluate.measure = killed
evaluate.evaluate(run, evaluate.requests(run.config, Eval(lengths=[32, 64, 128])), device="cpu")
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert sorted(row.length for row in records.read([rope.path])) == [16, 32]
    new: list[records.Row] = []
    evaluate.evaluate(rope, asked(rope, [32, 64, 128]), on_row=new.append)
    assert [row.length for row in new] == [64, 128]


# what cannot be measured ----------------------------------------------------------------------------------------------


def test_a_learned_table_that_ends_is_a_marked_row(text):
    """LEN-1: the row past the table says why, and the rows before it are there."""
    run = made.finished_run(text, "learned", length=16)
    rows = evaluate.evaluate(run, asked(run, [8, 32]))
    assert [(row.length, row.status) for row in rows] == [(8, "ok"), (16, "ok"), (32, "n/a")]
    assert rows[2].reason == "learned has positions for 16 inputs and no more"
    assert rows[2].perplexity is None
    assert rows[2].targets_digest == rows[0].targets_digest


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "there are {targets} targets, fewer than one window of 100000"),
        ({"protocol": "sliding"}, "there are {targets} targets, fewer than one window of 100000"),
        (
            {"protocol": "same-targets"},
            "no document is long enough for 100000 ids of context and a block of 32: the longest has",
        ),
        (
            {"protocol": "same-targets", "min_context": 64},
            "the targets have 64 ids of context (min_context), fewer than 100000",
        ),
    ],
)
def test_a_text_that_is_too_short_is_a_marked_row(rope, settings, reason):
    row = evaluate.evaluate(rope, asked(rope, [100_000], **settings))[-1]
    assert row.status == "n/a"
    assert row.reason.startswith(reason.format(targets=made.prepared(rope).stream("test").targets))
    assert records.load(row.path) == row


def test_fewer_targets_than_a_window_are_a_marked_row(rope):
    """Of 20 targets no window of 32 can be full: a perplexity under that length would be another length's."""
    short, long = evaluate.evaluate(rope, asked(rope, [32], targets=20))
    assert (short.status, long.status) == ("ok", "n/a")
    assert long.reason == "there are 20 targets, fewer than one window of 32"


def test_fewer_targets_than_a_block_are_a_marked_row(rope):
    """Whole blocks are taken, and there are documents enough: it is the number of targets that is too small."""
    (row,) = evaluate.evaluate(rope, asked(rope, [], protocol="same-targets", block=8, targets=7))
    assert (row.targets, row.reason) == (0, "7 targets are fewer than one block of 8")


def test_a_stride_or_block_longer_than_the_window_is_a_marked_row(rope):
    """The run's own short length is always added: it must not spoil the lengths that were asked for."""
    short, long = evaluate.evaluate(rope, asked(rope, [64], protocol="sliding", stride=32))
    assert (short.reason, long.status) == ("a stride of 32 is longer than a window of 16", "ok")
    short, long = evaluate.evaluate(rope, asked(rope, [64], protocol="same-targets", block=32))
    assert (short.reason, long.status) == ("a block of 32 targets does not fit a window of 16", "ok")
    assert short.targets_digest == long.targets_digest, "the cell belongs to the table of those lengths"


ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory: you tried to allocate 9"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GiB, max allowed: 9.07 GiB)"),
]


@pytest.mark.parametrize("error", ERRORS, ids=["python", "cuda", "cpu", "mps"])
def test_a_length_that_does_not_fit_in_memory_is_a_marked_row(rope, monkeypatch, error):
    """LEN-2: the other lengths are kept, and only --force tries again."""
    token_losses = tiny.Decoder.token_losses

    def full(self, ids, *rest, **more):
        if ids.shape[1] == 64:
            raise error
        return token_losses(self, ids, *rest, **more)

    monkeypatch.setattr(tiny.Decoder, "token_losses", full)
    rows = evaluate.evaluate(rope, asked(rope, [64, 128]))
    assert [row.status for row in rows] == ["ok", "n/a", "ok"]
    assert rows[1].reason == "a window of 64 does not fit in the memory of cpu"
    monkeypatch.undo()
    assert evaluate.evaluate(rope, asked(rope, [64, 128]))[1].status == "n/a"
    assert evaluate.evaluate(rope, asked(rope, [64, 128]), force=True)[1].status == "ok"


def test_another_error_is_no_marked_row(rope, monkeypatch):
    """A fault of ours keeps its traceback."""

    def broken(self, *rest, **more):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(tiny.Decoder, "token_losses", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        evaluate.evaluate(rope, asked(rope, []))
    assert records.read([rope.path]) == []


def test_a_loss_that_is_not_finite_is_marked_and_never_averaged(rope, monkeypatch):
    token_losses = tiny.Decoder.token_losses

    def one_nan(self, ids, *rest, **more):
        losses = token_losses(self, ids, *rest, **more)
        if len(ids) > 1:
            losses[0, 0] = math.nan
        return losses

    monkeypatch.setattr(tiny.Decoder, "token_losses", one_nan)
    (row,) = evaluate.evaluate(rope, asked(rope, []))
    assert row.status == "n/a"
    assert row.reason.startswith("the loss is not finite in 1 of")


# other text, and runs that cannot be read -----------------------------------------------------------------------------


def test_another_corpus_is_read_with_the_runs_tokenizer_and_named_in_the_row(rope, tmp_path, monkeypatch):
    other = made.text(tmp_path / "other", first=50)
    data = made.data(other)
    monkeypatch.setattr(evaluate, "corpus", lambda word, split: data)
    own, there = (evaluate.evaluate(rope, evaluate.requests(rope.config, Eval(), on=on))[0] for on in (None, "other"))
    assert own.corpus == own.trained_on == there.trained_on
    assert there.corpus != there.trained_on
    assert there.corpus_hash != own.corpus_hash
    assert there.tokenizer_hash == own.tokenizer_hash
    assert there.targets_digest != own.targets_digest
    assert there.path != own.path


def test_a_text_that_changed_since_the_training_is_refused(rope, text):
    (text / "002.txt").write_text("Another text altogether.")
    with pytest.raises(UserError, match="is not the one"):
        evaluate.evaluate(rope, asked(rope, []))


def test_a_text_that_is_gone_is_missed_only_where_it_is_read(rope, text, tmp_path, monkeypatch):
    """The run is read, named and evaluated on another text: its record knows what it was trained on."""
    (row,) = evaluate.evaluate(rope, asked(rope, []))
    shutil.rmtree(text)
    run = Run(rope.path)
    with monkeypatch.context() as offline:
        offline.setattr("posbench.data.corpus.open_corpus", lambda data: pytest.fail("it looks for the text"))
        assert run.config.data["fingerprint"] == run.record["corpus"]["fingerprint"] == row.corpus_hash
        assert directory(run.config).name == run.name
        assert run.model().encoding.hooks
        assert records.read([run.path])[0].corpus_hash == row.corpus_hash
    (tmp_path / "other.txt").write_text(made.document(50))
    elsewhere = evaluate.requests(run.config, Eval(), on=str(tmp_path / "other.txt"))
    assert evaluate.evaluate(run, elsewhere)[0].status == "ok"
    with pytest.raises(UserError, match=rf"There is no file {text}"):
        evaluate.evaluate(run, asked(run, []))


def test_a_run_that_is_not_finished_is_refused(rope):
    rope.write_status("interrupted", step=2, steps=4)
    with pytest.raises(UserError, match="not finished: interrupted at step 2"):
        evaluate.evaluate(rope, asked(rope, []))
    assert not rope.rows_dir.exists()


def test_the_stored_row_is_plain_json(rope):
    (row,) = evaluate.evaluate(rope, asked(rope, []))
    stored = json.loads(row.path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert replace(row, path=None) == records.Row(**{k: v for kind in KINDS for k, v in stored[kind].items()})


def test_the_text_of_the_training_is_not_tokenized_again(rope, monkeypatch):
    monkeypatch.setattr(Tokenizer, "encode_all", lambda *_: pytest.fail("it tokenizes"))
    assert evaluate.evaluate(rope, asked(rope, []))[0].status == "ok"
