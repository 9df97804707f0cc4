"""One checkpoint under extensions: what is asked, which encoding reads, what stands in the key of a row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import made
import numpy as np
import pytest
import torch

from posbench import baselines, evaluate, extensions, reader, records
from posbench.compose import compose, load_group
from posbench.config import Eval
from posbench.data.windows import nonoverlapping
from posbench.errors import UserError
from posbench.evaluate import Request
from posbench.extensions import longrope
from posbench.records import Row, extension_label
from posbench.run import Run
from posbench.train import train


@pytest.fixture(autouse=True)
def _roots(folders: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluate.system, "device", lambda name: torch.device("cpu"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return made.text(tmp_path / "text")


@pytest.fixture
def rope(text: Path) -> Run:
    return made.finished_run(text, "rope", length=16)


def rows(run: Run, *names: str, lengths: tuple[int, ...] = (64,), targets: int = 128, **settings) -> list[Row]:
    wanted = evaluate.requests(
        run.config, Eval(lengths=list(lengths), targets=targets, extensions=list(names), **settings)
    )
    return evaluate.evaluate(run, wanted)


def at(found: list[Row], length: int) -> dict[str, Row]:
    return {extension_label(row): row for row in found if row.length == length}


def loss(run: Run, length: int, targets: int, **how) -> float:
    """Nats a token of the first targets of the test split, by hand, with the encoding of `how`."""
    decoder = run.model(extended=False)
    if how:
        built = extensions.build(load_group("extension", how.pop("name")) | how.pop("own", {}))
        decoder.encoding = built.extend(decoder.encoding, how.pop("trained"), length, **how)
    ids = made.prepared(run).stream("test").ids
    cut = nonoverlapping(len(ids), length, targets)
    nats = 0.0
    for a, b in zip(cut.begin, cut.end, strict=True):
        inputs, aims = (torch.tensor(np.array(ids[x:y], np.int64))[None] for x, y in ((a, b), (a + 1, b + 1)))
        nats += decoder.token_losses(inputs, aims).sum().item()
    return nats / targets


# What is asked --------------------------------------------------------------------------------------------------------


def test_each_extension_is_asked_at_every_length_and_none_of_a_plain_run_is_the_run_itself(rope: Run):
    wanted = evaluate.requests(rope.config, Eval(lengths=[64], extensions=["none", "pi", "pi"]))
    pi = extensions.write(load_group("extension", "pi"))
    assert [(one.extension, one.length) for one in wanted] == [(None, 16), (None, 64), (pi, 16), (pi, 64)]
    assert evaluate.requests(rope.config, Eval(lengths=[64])) == wanted[:2]


def test_an_unknown_extension_is_named_with_those_there_are(rope: Run):
    with pytest.raises(UserError, match=r"There is no extension 'yarm'\. Did you mean 'yarn'\?"):
        evaluate.requests(rope.config, Eval(extensions=["yarm"]))


def test_a_description_comes_back_as_it_was_written():
    for name, described in extensions.catalogue():
        assert extensions.read(extensions.write(described)) == described == load_group("extension", name)


# Which encoding reads -------------------------------------------------------------------------------------------------


def test_a_row_is_the_loss_of_the_extended_encoding(rope: Run):
    """Factor auto at 64 of 16 is 4. Short windows too: the last one here holds 8 inputs."""
    found = at(rows(rope, "none", "pi", "yarn", "dynamic_ntk", "logn", targets=136), 64)
    assert found["none"].loss == pytest.approx(loss(rope, 64, 136), rel=1e-6)
    for name in ("pi", "yarn", "dynamic_ntk", "logn"):
        expected = loss(rope, 64, 136, name=name, trained=16)
        assert found[name].loss == pytest.approx(expected, rel=1e-6), name
    assert len({round(row.loss, 6) for row in found.values()}) == 5


def test_at_the_trained_length_they_are_the_run_itself(rope: Run):
    found = at(rows(rope, "none", "pi", "ntk", "dynamic_ntk", "ntk_by_parts", "yarn", "llama3", "logn"), 16)
    assert len(found) == 8
    for row in found.values():
        assert row.loss == pytest.approx(found["none"].loss, rel=1e-6)


def test_rows_do_not_depend_on_what_was_read_before(rope: Run):
    """Encodings are changed anew for each cell: in another order the same bits."""
    there = at(rows(rope, "yarn", "none", "pi", lengths=(128, 64)), 64)
    for row in rope.rows_dir.iterdir():
        row.unlink()
    here = at(rows(rope, "pi", lengths=(64,)), 64) | at(rows(rope, "none", lengths=(64,)), 64)
    assert here["pi"].loss == there["pi"].loss
    assert here["none"].loss == there["none"].loss


def test_what_was_measured_is_not_measured_again(rope: Run):
    new: list[Row] = []
    wanted = evaluate.requests(rope.config, Eval(lengths=[64], targets=128, extensions=["none", "pi"]))
    assert len(evaluate.missing(rope, wanted)) == 4
    first = evaluate.evaluate(rope, wanted)
    assert evaluate.missing(rope, wanted) == []
    assert evaluate.evaluate(rope, wanted, on_row=new.append) == first
    assert new == []
    assert {row.path for row in first} == set(rope.rows_dir.glob("*.json"))


# Trained under an extension -------------------------------------------------------------------------------------------


@pytest.fixture
def stretched(rope: Run) -> Run:
    """The rope run trained on at 64 with its positions divided by 4, for one window."""
    words = [f"init_from={rope.name}", "extension=pi", "train.length=64", "train.tokens=64", "train.batch_tokens=64"]
    return train(compose([*words, "device=cpu"]))


def test_it_is_read_as_it_was_trained_unless_another_extension_is_named(stretched: Run):
    """As trained: factor 4 at every length. Another one: from the original frequencies and the original length, 16."""
    found = rows(stretched, lengths=(128,))
    assert [row.extension for row in found] == [None, None]
    assert {row.encoding for row in found} == {"rope+pi"}
    assert {extension_label(row) for row in found} == {"as trained"}
    assert at(found, 128)["as trained"].loss == pytest.approx(
        loss(stretched, 128, 128, name="pi", trained=16, factor=4.0), rel=1e-6
    )
    other = at(rows(stretched, "none", "yarn", "pi", lengths=(128,)), 128)
    assert other["none"].loss == pytest.approx(loss(stretched, 128, 128), rel=1e-6)
    assert other["yarn"].loss == pytest.approx(loss(stretched, 128, 128, name="yarn", trained=16, factor=8.0), rel=1e-6)
    assert other["pi"].loss == pytest.approx(loss(stretched, 128, 128, name="pi", trained=16, factor=8.0), rel=1e-6)
    assert len({row.path for row in [*found, *other.values()]}) == 5


def test_its_rows_say_where_it_started(stretched: Run, rope: Run):
    row = rows(stretched)[0]
    assert (row.extended, row.init_from, row.train_length) == (True, rope.name, 64)
    assert (rows(rope)[0].extended, rows(rope)[0].init_from) == (False, None)


# The key --------------------------------------------------------------------------------------------------------------


def test_the_key_holds_the_settings_that_differ_from_the_defaults(rope: Run):
    described = load_group("extension", "yarn")
    cls = "posbench.extensions.yarn.Yarn"
    assert json.loads(extensions.key(described)) == {"name": "yarn", "class": cls}
    other = described | {"factor": 4, "ramp": "paper"}
    assert json.loads(extensions.key(other)) == {"name": "yarn", "class": cls, "factor": 4, "ramp": "paper"}
    found = evaluate.evaluate(
        rope, evaluate.requests(rope.config, Eval(lengths=[64], targets=128), extended=[described, other])
    )
    assert len({records.digest(row) for row in found}) == 4
    assert [extension_label(row) for row in found] == ["yarn"] * 2 + ["yarn factor=4 ramp=paper"] * 2
    assert records.load(found[3].path) == found[3]


def test_a_class_of_the_users_own_is_known_by_its_source(tmp_path: Path):
    """Edited, it is another extension: its old rows must not pass for its own."""
    file = tmp_path / "mine.py"
    keys = []
    for share in (2, 3):
        file.write_text(
            "from posbench.extensions.base import Frequencies\n"
            f"class Mine(Frequencies):\n    def angles(self, trained, factor, length):\n"
            f"        return trained.frequencies / {share}, 1.0\n"
        )
        keys.append(json.loads(extensions.key({"name": "mine", "class": f"{file}:Mine"})))
    assert keys[0]["class"] == "mine.py:Mine"
    assert keys[0]["source"] != keys[1]["source"]


def test_a_row_without_the_newer_fields_is_still_read(rope: Run):
    row = rows(rope)[0]
    assert row.path is not None
    record = json.loads(row.path.read_bytes())
    del record["sha256"], record["about"]["extended"], record["about"]["init_from"]
    row.path.write_text(json.dumps(record | {"sha256": records._sha256(record)}))
    assert records.load(row.path) == row


# Where it does not apply ----------------------------------------------------------------------------------------------


def test_an_extension_that_does_not_apply_is_a_marked_row_and_the_others_stand(text: Path):
    alibi = made.finished_run(text, "alibi", 16)
    found = at(rows(alibi, "none", "pi", "yarn"), 64)
    assert [found[name].status for name in ("none", "pi", "yarn")] == ["ok", "ok", "n/a"]
    assert found["yarn"].reason == "The extension 'yarn' does not apply to alibi (extension: logn, none, pi)"


def test_of_one_run_it_can_be_refused_before_anything_is_read(text: Path):
    alibi = made.finished_run(text, "alibi", 16)
    evaluate.refuse_inapplicable(alibi, evaluate.requests(alibi.config, Eval(extensions=["none", "pi"])))
    with pytest.raises(UserError, match="'yarn' does not apply to alibi"):
        evaluate.refuse_inapplicable(alibi, evaluate.requests(alibi.config, Eval(extensions=["pi", "yarn"])))


def test_positions_that_end_are_said_under_an_extension_too(text: Path):
    learned = made.finished_run(text, "learned", 16)
    found = at(rows(learned, "none", "logn"), 64)
    assert {row.reason for row in found.values()} == {"learned has positions for 16 inputs and no more"}


def test_what_an_extension_cannot_work_with_is_a_marked_row(rope: Run):
    short = load_group("extension", "longrope") | {"factors": [2.0]}
    wanted = evaluate.requests(rope.config, Eval(lengths=[64], targets=128), extended=[short])
    (row,) = [row for row in evaluate.evaluate(rope, wanted) if row.length == 64]
    assert (
        row.reason == "The extension 'longrope' cannot extend rope: factors needs one number for each of 4 pairs, not 1"
    )


def test_references_are_counted_once_whatever_the_extensions(rope: Run):
    wanted = evaluate.requests(rope.config, Eval(lengths=[64], targets=128, extensions=["none", "pi"]))
    assert [row.length for row in baselines.evaluate("bigram", rope.config, wanted)] == [16, 64]


# Searches -------------------------------------------------------------------------------------------------------------


def test_factors_are_searched_on_validation_text_and_stand_in_the_key(rope: Run, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    monkeypatch.setattr(
        reader,
        "measure",
        lambda stream, *how, measure=reader.measure, **more: (
            read.append(stream.digest) or measure(stream, *how, **more)
        ),
    )
    prepared = made.prepared(rope)
    found = at(rows(rope, "none", "longrope", targets=64), 64)
    assert set(read) == {prepared.stream("validation").digest}
    assert len(read) == 64  # at the trained length there is nothing to search
    factors = json.loads(found["longrope"].extension)["found"]["factors"]
    assert len(factors) == 4
    expected = loss(rope, 64, 64, name="longrope", own={"factors": factors}, trained=16)
    assert found["longrope"].loss == pytest.approx(expected, rel=1e-6)


def test_a_search_is_made_once(rope: Run, monkeypatch: pytest.MonkeyPatch):
    wanted = evaluate.requests(rope.config, Eval(lengths=[64], targets=64, extensions=["longrope"]))
    assert len(evaluate.missing(rope, wanted)) == 2
    first = evaluate.evaluate(rope, wanted)
    monkeypatch.setattr(longrope, "find_factors", lambda *how: pytest.fail("searched again"))
    assert evaluate.missing(rope, wanted) == []
    assert evaluate.evaluate(rope, wanted) == first
    rope.check_whole()  # what was found lies in the run, which can be removed with it
    assert [row.loss for row in evaluate.evaluate(rope, wanted, force=True)] == [row.loss for row in first]
    # Damaged, it is made again.
    for file in (rope.path / "searches").iterdir():
        file.write_text("{")
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        evaluate.evaluate(rope, wanted)


def test_other_settings_are_another_search(rope: Run):
    described = load_group("extension", "longrope")
    wanted = evaluate.requests(
        rope.config, Eval(lengths=[64], targets=64), extended=[described, described | {"magnitude": 1.0}]
    )
    evaluate.evaluate(rope, [one for one in wanted if one.length == 64])
    assert len(list((rope.path / "searches").iterdir())) == 2


def test_a_window_that_cannot_be_read_is_not_searched_on(text: Path):
    """Randomized positions end at 16 x 16 inputs; a head of width 2 has no slowest pair to start from."""
    ends = made.finished_run(text, "randomized", 16, inner=load_group("encoding", "rope"))
    found = at(rows(ends, "none", "longrope", lengths=(257,), targets=514), 257)
    assert {row.reason for row in found.values()} == {"randomized(rope) has positions for 256 inputs and no more"}
    narrow = train(replace(made.config(text, "rope", 16), model=replace(ends.config.model, heads=16)))
    row = at(rows(narrow, "longrope"), 64)["longrope"]
    assert row.reason == "The extension 'longrope' cannot extend rope: a changed base needs a head width above 2"


def test_without_validation_text_of_that_length_it_is_a_marked_row(rope: Run):
    """The validation split of this text has some 1,100 ids."""
    targets = made.prepared(rope).stream("validation").targets
    longer = replace(
        Request("nonoverlapping", targets + 1), extension=extensions.write(load_group("extension", "longrope"))
    )
    reason = reader.of_run(rope, torch.device("cpu")).under(longer.extension, longer.length).limit(longer.length)
    assert reason is not None
    assert reason.startswith(f"The validation text has {targets} targets, fewer than one window of {targets + 1}")


def test_a_run_that_is_damaged_is_told_so_and_no_search_of_it_is_a_row(rope: Run):
    """A row would say n/a for good."""
    rope.weights.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        rows(rope, "longrope")
    assert not rope.rows_dir.exists() or not list(rope.rows_dir.iterdir())
