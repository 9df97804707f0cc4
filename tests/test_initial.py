"""A run that starts from another one: what comes from it, what may be named beside it, and with which weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import made
import pytest
import torch

from posbench import initial, model
from posbench.compose import compose
from posbench.config import Config
from posbench.errors import UserError
from posbench.identity import from_dict, identity, to_dict
from posbench.run import Run, name
from posbench.train import train

pytestmark = pytest.mark.usefixtures("folders")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return made.text(tmp_path / "text")


@pytest.fixture
def rope(text: Path) -> Run:
    return made.finished_run(text, "rope", length=16)


def asked(run: Run, *words: str, length: int = 64) -> Config:
    """The config of `init_from=RUN` and these words, for two batches of one window each."""
    short = [f"train.length={length}", f"train.tokens={2 * length}", f"train.batch_tokens={length}", "device=cpu"]
    return compose([f"init_from={run.name}", *short, *words])


def weights(decoder: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in decoder.state_dict().items() if not name.startswith("encoding.")}


def test_model_data_tokenizer_encoding_and_seed_are_those_of_the_run(text: Path):
    run = made.finished_run(text, "rope", 16, base=500.0)
    config = asked(run)
    for group in ("model", "data", "tokenizer", "encoding", "seed"):
        assert getattr(config, group) == getattr(run.config, group), group
    assert config.train.length == 64
    assert asked(run, "seed=7").seed == 7
    assert config.init_from["name"] == run.name


def test_the_run_it_starts_from_is_part_of_what_it_is(rope: Run, text: Path):
    other = made.finished_run(text, "rope", 32)
    plain = replace(asked(rope), init_from=None)
    identities = [identity(config) for config in (asked(rope), asked(other), plain)]
    assert identities[0]["init_from"] == rope.hash
    assert len({str(one) for one in identities}) == 3
    # Where it lies does not matter, nor by which word it was found.
    assert identity(compose_by(str(rope.path))) == identity(compose_by(rope.hash)) == identity(compose_by(rope.name))


def compose_by(word: str) -> Config:
    return compose([f"init_from={word}", "train.length=64", "train.batch_tokens=64"])


def test_a_stored_config_is_read_back_without_that_run(rope: Run):
    config = asked(rope, "extension=pi")
    for file in rope.path.iterdir():
        file.unlink()
    assert from_dict(to_dict(config)) == config
    assert identity(from_dict(to_dict(config))) == identity(config)


@pytest.mark.parametrize(
    "word", ["model=micro", "model.heads=2", "data=books", "tokenizer=bpe", "data.attend=document"]
)
def test_another_model_data_or_tokenizer_is_refused(rope: Run, word: str):
    with pytest.raises(UserError) as error:
        asked(rope, word)
    group = word.partition("=")[0].partition(".")[0]
    assert error.value.message == f"{rope.name} brings its own {group}, and another one was asked for."
    assert error.value.hint == f"Leave out {word}."


def test_naming_what_the_run_has_anyway_is_no_error(rope: Run):
    assert asked(rope, "tokenizer=bytes", "encoding=rope") == asked(rope)


def test_a_run_that_is_not_there_or_not_finished_is_refused(rope: Run):
    with pytest.raises(UserError, match="There is no run 'alibi'"):
        compose(["init_from=alibi"])
    rope.write_status("interrupted", step=2, steps=4)
    with pytest.raises(UserError, match="is not finished: interrupted at step 2"):
        asked(rope)


def test_an_extension_is_of_a_run_and_of_its_encoding(rope: Run):
    with pytest.raises(UserError) as error:
        compose(["extension=pi"])
    assert str(error.value) == "extension=pi changes a trained run.\nName it: init_from=RUN"
    with pytest.raises(UserError, match=r"changes the encoding of rope-L16.*\nLeave out encoding=alibi"):
        asked(rope, "extension=pi", "encoding=alibi")
    with pytest.raises(UserError, match="'temperature' does not apply to rope"):
        asked(rope, "extension=temperature")
    with pytest.raises(UserError, match=r"There is no setting 'extension\.rapm'"):
        asked(rope, "extension=yarn", "+extension.rapm=1")
    with pytest.raises(UserError, match="factor must be auto or a number of 1 or more"):
        asked(rope, "extension=pi", "extension.factor=0.5")


def test_factors_that_a_search_would_find_must_be_given_for_a_training(rope: Run):
    with pytest.raises(UserError, match="In a training the factors of 'longrope' must be given"):
        asked(rope, "extension=longrope")
    assert asked(rope, "extension=longrope", "extension.factors=[1,2,3,4]").extension["factors"] == [1, 2, 3, 4]


def test_its_name_says_the_extension_and_its_identity_the_factor(rope: Run):
    config = asked(rope, "extension=pi")
    assert name(config).startswith("rope+pi-L64-toy-s1-")
    assert config.extension["factor"] == 4
    assert identity(config)["extension"] == {"class": "posbench.extensions.pi.Pi", "factor": 4}
    assert identity(asked(rope, "extension=pi", "extension.factor=4")) == identity(config)
    assert identity(asked(rope, "extension=pi", "extension.factor=8")) != identity(config)


def test_an_extension_that_would_stretch_nothing_is_refused(rope: Run):
    """It would be the control under another name. A rule that follows the current length acts in longer inputs yet."""
    own = [f"init_from={rope.name}", "train.batch_tokens=64"]
    for length in (16, 8):
        with pytest.raises(UserError) as error:
            compose([*own, f"train.length={length}", "extension=pi"])
        assert error.value.message == (
            f"extension=pi has nothing to stretch at train.length={length}: {rope.name} was trained at 16."
        )
    for words, factor in ((["extension=pi", "extension.factor=2"], 2), (["extension=dynamic_ntk"], 1)):
        assert compose([*own, "train.length=16", *words]).extension["factor"] == factor


def test_a_run_is_read_with_the_extension_it_was_trained_with(rope: Run):
    """Positions / 4, whatever length is read."""
    run = train(asked(rope, "extension=pi"))
    encoding, original = run.model().encoding, rope.model().encoding
    assert torch.equal(encoding.angles(256)[0], original.frequencies / 4)
    assert torch.equal(run.model(extended=False).encoding.angles(256)[0], original.frequencies)


def test_training_starts_from_the_weights_of_that_run(rope: Run):
    config = asked(rope, "extension=pi")
    decoder = model.build(config, 257, 256)
    fresh = weights(model.build(config, 257, 256))
    initial.take_over(config, decoder)
    assert all(torch.equal(tensor, weights(rope.model())[name]) for name, tensor in weights(decoder).items())
    assert not torch.equal(fresh["embed.weight"], decoder.embed.weight)


def test_another_encoding_takes_the_shared_weights_and_its_own_start_fresh(text: Path):
    """DroPE is `encoding=none`; here the other way round, so that there is something to start fresh."""
    run = made.finished_run(text, "t5", 16)
    config = asked(run, "encoding=shaw")
    decoder, fresh = model.build(config, 257, 256), model.build(config, 257, 256)
    initial.take_over(config, decoder)
    assert all(torch.equal(tensor, weights(run.model())[name]) for name, tensor in weights(decoder).items())
    assert all(
        torch.equal(one, other)
        for one, other in zip(decoder.encoding.parameters(), fresh.encoding.parameters(), strict=True)
    )
    same = asked(run)
    decoder = model.build(same, 257, 256)
    initial.take_over(same, decoder)
    assert torch.equal(decoder.encoding.table, run.model().encoding.table)


def test_positions_can_be_dropped(rope: Run):
    config = asked(rope, "encoding=none", length=16)
    assert config.encoding["name"] == "none"
    run = train(config)
    assert run.model().encoding.hooks == frozenset()
    assert run.config.init_from["built_length"] is None


def test_an_encoding_that_another_run_trained_keeps_what_it_was_built_for(text: Path):
    """A table of 16 positions reads no 64; and one is not made longer by a longer training."""
    run = made.finished_run(text, "learned", 16)
    with pytest.raises(UserError, match=r"learned has positions for 16 inputs and no more, and train\.length=64"):
        asked(run)
    assert model.build(asked(run, length=8), 257, 256).encoding.max_length == 16


def test_an_extension_counts_from_the_length_before_any_extension(rope: Run):
    """16 -> pi at 64 -> yarn at 128 is factor 8; 16 -> control at 64 -> yarn at 128 is factor 2."""
    stretched, control = train(asked(rope, "extension=pi")), train(asked(rope))
    assert asked(stretched, "extension=yarn", length=128).extension["factor"] == 8
    assert asked(control, "extension=yarn", length=128).extension["factor"] == 2
    going_on = asked(stretched, length=128)
    assert (going_on.extension["name"], going_on.extension["factor"]) == ("pi", 4)
    assert asked(stretched, "encoding=none").extension == {"name": "none"}


def test_an_extension_that_is_asked_for_is_never_left_out(rope: Run):
    """`extension=none` takes away what the run has; a setting of it needs its choice."""
    stretched = train(asked(rope, "extension=pi"))
    plain = asked(stretched, "extension=none", length=128)
    assert plain.extension == {"name": "none"}
    assert name(plain).startswith("rope-L128-")
    with pytest.raises(UserError, match=r"There is no setting 'extension\.factor'"):
        asked(stretched, "+extension.factor=8")


def test_what_a_longer_training_has_reached_is_no_longer_called_untrained(text: Path):
    """16 distances leave 16 of T5's buckets alone, 128 none of them; a short training after that unlearns nothing.

    24 reach distance 23, in bucket 16 + floor(16 ln(23/16) / ln 8) = 18."""
    run = made.finished_run(text, "t5", 16)
    longer = train(asked(run, length=128))
    shorter = train(asked(longer, length=16))
    assert run.model().encoding.caveat.startswith("buckets 16-31 are never trained")
    assert longer.record["caveat"] == shorter.record["caveat"] == ""
    assert train(asked(run, length=24)).record["caveat"].startswith("buckets 19-31")


def test_seeds_of_a_run_give_runs_of_one_recipe(text: Path):
    """The hash of where they start differs from seed to seed; what they are made by does not."""
    found = []
    for seed in (1, 2):
        config = made.config(text, "rope", 16)
        run = finished(replace(config, seed=seed))
        child = asked(run, "extension=pi")
        found.append((child.seed, initial.recipe(child, identity(child)), initial.setup(child, identity(child))))
    assert [seed for seed, _, _ in found] == [1, 2]
    assert found[0][1:] == found[1][1:]
    control = asked(run)
    assert initial.recipe(control, identity(control)) != found[1][1]
    assert initial.setup(control, identity(control)) == found[1][2]


def finished(config: Config) -> Run:
    return train(replace(config, train=replace(config.train, tokens=config.train.batch_tokens)))


def test_the_tokenizer_is_the_very_one_of_that_run(rope: Run, text: Path):
    config = asked(rope)
    tokenizer = initial.tokenizer(config)
    assert tokenizer.fingerprint == rope.record["tokenizer"]["fingerprint"]
    assert initial.tokenizer(made.config(text, "rope", 16)) == {"name": "bytes", "kind": "bytes"}


def test_a_run_that_moved_is_found_by_its_hash_and_a_lost_one_is_named(rope: Run, tmp_path: Path):
    config = asked(rope)
    moved = rope.path.rename(tmp_path / "runs" / "elsewhere")
    assert initial.source(config).path == moved
    moved.rename(tmp_path / "gone")
    with pytest.raises(UserError, match=f"There is no run '{rope.hash}'"):
        initial.source(config)


def test_without_an_extension_nothing_of_it_is_in_the_identity(rope: Run):
    """So that no older run is renamed."""
    assert not {"extension", "init_from"} & identity(rope.config).keys()
    assert identity(replace(rope.config, extension={"name": "none"})) == identity(rope.config)
