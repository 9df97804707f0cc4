"""A config is composed, refused when it is wrong, and named by what decides the weights and by nothing else."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from posbench import compose as composing
from posbench import config as settings
from posbench import encodings
from posbench import identity as identities
from posbench.compose import compose, load_group
from posbench.config import Config, check
from posbench.errors import UserError
from posbench.identity import extension_identity, from_dict, hash8, identity, label, to_dict
from posbench.search_path import choices, config_dir, user_dirs

GROUPS = ("encoding", "model", "data", "tokenizer", "optim", "train", "eval")

OWN = """
from posbench.encodings.base import Encoding, Shape


class Mine(Encoding):
    def __init__(self, shape: Shape, slope: float = 1.0) -> None:
        super().__init__(shape)
"""


def named(*overrides: str) -> str:
    return hash8(identity(compose(overrides)))


@pytest.fixture(scope="module")
def default() -> Config:
    return compose()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with encoding/mine.yaml and encoding/mine.py, known through POSBENCH_CONFIGS."""
    folder = tmp_path / "my"
    (folder / "encoding").mkdir(parents=True)
    (folder / "encoding" / "mine.yaml").write_text("class: mine.py:Mine\nslope: 1.0\n")
    (folder / "encoding" / "mine.py").write_text(OWN)
    monkeypatch.setenv("POSBENCH_CONFIGS", str(folder))
    return folder


# Composing ------------------------------------------------------------------------------------------------------------


NEEDS = {"data=files": "data=files needs a text", "tokenizer=file": "tokenizer=file needs tokenizer.path"}
"""Choices that are nothing without a path, and what is said then."""

ALONE = [choice for group in GROUPS for name in choices(group) if (choice := f"{group}={name}") not in NEEDS]


@pytest.mark.parametrize("choice", NEEDS)
def test_a_choice_that_needs_a_path_asks_for_it(choice: str):
    with pytest.raises(UserError, match=NEEDS[choice]):
        compose([choice])


@pytest.mark.parametrize("choice", ALONE)
def test_every_other_shipped_choice_composes(choice: str):
    config = compose([choice])
    group, name = choice.split("=")
    value = getattr(config, group)
    assert (value["name"] if isinstance(value, dict) else getattr(value, "name", name)) == name


def test_the_defaults_are_a_rope_run_on_the_state_of_the_union(default: Config):
    assert (default.encoding["name"], default.data["name"], default.tokenizer["name"]) == ("rope", "sotu", "bpe")
    assert (default.model.name, default.train.length, default.seed) == ("nano", 512, 1)


def test_composing_leaves_no_global_state_of_hydra_behind():
    compose(["encoding=alibi"])
    with pytest.raises(UserError):
        compose(["encoding=alibii"])
    assert not GlobalHydra.instance().is_initialized()


def test_one_choice_of_a_group_is_plain_data_with_its_name():
    assert load_group("model", "micro")["layers"] == 6
    assert load_group("encoding", "t5") == {
        "class": "posbench.encodings.t5.T5", "buckets": 32, "max_distance": 128, "name": "t5"
    }  # fmt: skip
    with pytest.raises(UserError, match=r"There is no encoding 'rop'. Did you mean 'rope'?"):
        load_group("encoding", "rop")


@pytest.mark.parametrize(
    "choice", [f"{group}={name}" for group in ("encoding", "data", "tokenizer") for name in choices(group)]
)
def test_a_choice_read_from_its_file_alone_is_what_hydra_composes(choice: str, monkeypatch: pytest.MonkeyPatch):
    group, name = choice.split("=")
    read = load_group(group, name)
    monkeypatch.setattr(composing, "_read_plain", lambda group, file: None)
    assert read == load_group(group, name)


def test_a_plain_choice_is_read_without_composing_all_the_others(mine: Path, monkeypatch: pytest.MonkeyPatch):
    """So that a catalogue of a hundred encodings is not a hundred compositions."""
    monkeypatch.setattr(composing, "_composed", lambda overrides: pytest.fail("it composes"))
    assert load_group("encoding", "mine")["slope"] == 1.0
    assert load_group("data", "sotu")["attend"] == "stream"


def test_a_choice_with_defaults_or_an_interpolation_is_composed(mine: Path):
    """What stands elsewhere is filled in: slope from the other file, the name from a setting of another group."""
    (mine / "encoding" / "steep.yaml").write_text("defaults: [mine]\nclass: mine.py:Mine\nslope: 3.0\n")
    (mine / "encoding" / "wide.yaml").write_text("class: mine.py:Mine\nslope: ${model.width}\n")
    (mine / "encoding" / "low.yaml").write_text("defaults:\n  - mine\n")
    source = f"{mine / 'encoding' / 'mine.py'}:Mine"
    assert load_group("encoding", "steep") == {"class": source, "slope": 3.0, "name": "steep"}
    assert load_group("encoding", "wide") == {"class": source, "slope": 128, "name": "wide"}
    assert load_group("encoding", "low") == {"class": source, "slope": 1.0, "name": "low"}
    (mine / "encoding" / "torn.yaml").write_text("class: [\n")
    with pytest.raises(Exception, match=r"torn\.yaml"):
        load_group("encoding", "torn")


def test_a_config_survives_storage_as_json(default: Config):
    assert from_dict(json.loads(json.dumps(to_dict(default)))) == default


def test_what_an_older_posbench_did_not_store_has_its_default(default: Config):
    stored = to_dict(default)
    del stored["train"]["dropout"]
    assert from_dict(stored) == default


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: d.pop("model"), "has no 'model'"),
        (lambda d: d["model"].update(layres=4), "layres"),
        (lambda d: d["model"].update(layers="four"), "model.layers"),
        (lambda d: d.update(colour="red"), "colour"),
    ],
)
def test_a_stored_config_that_is_odd_is_refused(default: Config, damage, said: str):
    stored = to_dict(default)
    damage(stored)
    with pytest.raises(UserError, match="stored config") as caught:
        from_dict(stored)
    assert said in str(caught.value)


# The user's own folders -----------------------------------------------------------------------------------------------


def test_a_class_is_found_beside_the_yaml_that_names_it(mine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    config = compose(["encoding=mine", "encoding.slope=2"])
    assert config.encoding == {"class": f"{mine / 'encoding' / 'mine.py'}:Mine", "slope": 2, "name": "mine"}


def test_a_class_given_on_the_command_line_is_found_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "here.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    config = compose(["encoding=none", "encoding.class=here.py:Mine"])
    assert config.encoding["class"] == f"{tmp_path / 'here.py'}:Mine"
    with pytest.raises(UserError, match="there is no such file"):
        compose(["encoding=none", "encoding.class=there.py:Mine"])


def test_several_folders_are_searched_and_one_that_is_missing_is_named(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = tmp_path / "other"
    (other / "model").mkdir(parents=True)
    (other / "model" / "tall.yaml").write_text("layers: 20\n")
    monkeypatch.setenv("POSBENCH_CONFIGS", f"{mine}:{other}")
    config = compose(["encoding=mine", "model=tall"])
    assert (config.model.name, config.model.layers, config.model.width) == ("tall", 20, 128)
    assert "mine" in choices("encoding")
    monkeypatch.setenv("POSBENCH_CONFIGS", f"{mine}:{tmp_path / 'gone'}")
    with pytest.raises(UserError, match=r"There is no config folder .*gone"):
        user_dirs()
    with pytest.raises(UserError, match=r"There is no config folder .*gone"):
        compose()


def test_a_wrong_key_in_a_users_yaml_names_the_file_and_the_key(mine: Path):
    (mine / "model").mkdir()
    (mine / "model" / "tall.yaml").write_text("layres: 20\n")
    with pytest.raises(UserError, match=r"In 'model/tall': There is no setting 'model.layres'.*'model.layers'"):
        compose(["model=tall"])


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("model.heads=7", "model.heads=7 does not divide model.width=128.\nmodel.heads=8 does."),
        ("model.layers=0", "model.layers=0 must be 1 or more."),
        ("model.norm=rmsnrm", "There is no model.norm 'rmsnrm'. Did you mean 'rmsnorm'?"),
        ("optim.lr=nan", "optim.lr=nan must be 0 or more."),
        ("optim.method=adam", "There is no optim.method 'adam'. Did you mean 'adamw'?"),
        ("train.dropout=1", "train.dropout=1.0 must be below 1."),
        ("train.length=1000", "Write train.batch_tokens=2000 or 3000."),
        ("train.length=8192", "Write train.batch_tokens=8192."),
        ("train.micro_tokens=700", "Write train.micro_tokens=512 or 1024."),
        ("train.tokens=100", "train.tokens=100 is less than one batch"),
        ("seed=-1", "seed=-1 must be 0 or more."),
        ("seed=9223372036854775808", "seed=9223372036854775808 must be 9,223,372,036,854,775,807 or less."),
        ("optim.warmup=inf", "optim.warmup=inf must be 1 or less."),
        ("optim.lr=inf", "optim.lr=inf must be a finite number."),
        ("train.threads=100000", "train.threads=100000 must be 1,024 or less."),
        ("device=cuda:x", "There is no device 'cuda:x'."),
        ("device=gpu", "There is no device 'gpu'."),
        ("eval.lengths=[512,0]", "eval.lengths: 0 is not a positive whole number."),
        ("eval.protocol=slidin", "Did you mean 'sliding'?"),
        ("eval.stride=0", "eval.stride=0 must be 1 or more."),
        ("eval.stride=99999999999999999999", "eval.stride=99999999999999999999 must be 1,099,511,627,776 or less."),
        (
            "eval.lengths=[99999999999999999999]",
            "eval.lengths: 99999999999999999999 must be 1,099,511,627,776 or less.",
        ),
        ("data.attend=page", "There is no data.attend 'page'."),
        ("encoding.layout=pairs", "encoding.layout=pairs does not fit 'rope'."),
        ("model.heads=128", "pairs need an even head width"),
        ("model.name=big", "model.name=big has no effect."),
        ("~encoding", "The group encoding needs one choice."),
        ("data=files +data.pth=x", "There is no setting 'data.pth'. Did you mean 'data.path'?"),
        ("+tokenizer.vocab=5", "There is no setting 'tokenizer.vocab'. Did you mean 'tokenizer.vocab_size'?"),
        ("+encoding.bsae=5", "There is no setting 'encoding.bsae'. Did you mean 'encoding.base'?"),
        ("+model.n_haeds=4", "There is no setting 'model.n_haeds'. Did you mean 'model.heads'?"),
        ("+colour=red", "There is no setting 'colour'."),
    ],
)
def test_what_could_not_be_trained_is_refused_in_one_sentence(overrides: str, said: str):
    with pytest.raises(UserError) as caught:
        compose(overrides.split())
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12800000000000 bytes."),
        RuntimeError("Storage size calculation overflowed with sizes=[1000000000000000000, 128]"),
        TypeError("empty(): argument 'size' failed to unpack the object at pos 1: Overflow when unpacking long long"),
        OverflowError("int too big to convert"),
    ],
)
def test_an_encoding_that_no_memory_holds_is_refused(
    default: Config, monkeypatch: pytest.MonkeyPatch, raised: Exception
):
    """What torch raises on the CPU is a RuntimeError like any other; one that is not about memory stays what it is."""
    from posbench import encodings

    def build(*of: object) -> None:
        raise raised

    monkeypatch.setattr(encodings, "build", build)
    with pytest.raises(UserError, match="'rope' does not fit in memory at a training length of 512 and a width"):
        check(default)


def test_checking_draws_from_no_global_generator(default: Config):
    import torch

    before = torch.random.get_rng_state()
    check(dataclasses.replace(default, encoding=load_group("encoding", "learned")))
    assert torch.equal(before, torch.random.get_rng_state())


# Identity -------------------------------------------------------------------------------------------------------------

INERT = {
    "model": {"name"},
    "optim": {"name"},
    "train": {"micro_tokens", "compile", "shard", "threads", "validate_tokens", "checkpoint_seconds"},
}


@pytest.mark.parametrize("group", INERT)
def test_each_setting_either_names_another_run_or_is_known_to_be_inert(default: Config, group: str):
    """A new setting fails here until somebody decides which of the two it is."""
    value = getattr(default, group)
    for setting in dataclasses.fields(value):
        entry = getattr(value, setting.name)
        other = entry + 1 if isinstance(entry, int | float) else entry + "x"
        changed = dataclasses.replace(default, **{group: dataclasses.replace(value, **{setting.name: other})})
        renamed = identity(changed) != identity(default)
        assert renamed is (setting.name not in INERT[group]), f"{group}.{setting.name}"


def test_the_name_of_a_run_knows_nothing_of_its_processes(default: Config):
    assert identity(dataclasses.replace(default, nproc=8)) == identity(default)


def test_the_name_of_a_run_knows_nothing_of_evaluation_device_or_study(default: Config):
    other = dataclasses.replace(default, study="mine", device="cuda:3", eval=settings.Eval(lengths=[7], targets=3))
    assert identity(other) == identity(default)
    assert identity(dataclasses.replace(default, seed=2)) != identity(default)


def test_what_is_at_its_default_is_left_out(default: Config):
    """So that a setting added later, at its default, renames no run."""
    assert identity(default) == {
        "format": 5,
        "seed": 1,
        "encoding": {"class": "posbench.encodings.rope.Rope"},
        "model": {},
        "optim": {},
        "train": {},
        "data": {
            "kind": "sotu",
            "digest": "25baabf61c4692dae5f8d4e84aa55d617232584f31f795ddb3dd1277d76be89e",
            "validation": ["*-Cleveland-*"],
            "test": ["*-Taft-*", "*-Polk-*"],
        },
        "tokenizer": {"kind": "bpe", "vocab_size": 2048},
    }


FROZEN = {
    "model": {
        "layers": 4, "width": 128, "heads": 4, "hidden": 344, "norm": "rmsnorm", "activation": "swiglu",
    },
    "optim": {
        "method": "muon", "lr": 0.02, "matrix_lr": 0.03, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95,
        "momentum": 0.95, "warmup": 0.05, "schedule": "linear", "clip": 1.0,
    },
    "train": {
        "length": 512, "tokens": 1_500_000, "batch_tokens": 2048, "dropout": 0.0, "precision": "auto",
    },
    "encoding": {
        "alibi": {},
        "cable": {"slopes": True, "kernelized": False},
        "cope": {"npos": None},
        "dape": {"inner": "alibi", "hidden": 32},
        "fire": {"hidden": 32, "threshold": None, "c": 0.1, "shared": False},
        "fox": {},
        "kerple": {"variant": "log"},
        "learned": {"length": None},
        "none": {},
        "prope": {"p": 0.75, "layout": "half", "base": 10000.0},
        "randomized": {"inner": "alibi", "span": None},
        "rope": {"layout": "half", "base": 10000.0, "embed_scale": False},
        "sandwich": {"width": None, "base": 10000.0},
        "scale_invariant": {"inner": "prope", "tau": 10.0},
        "shaw": {"clip": 16, "values": False},
        "sinusoidal": {"base": 10000.0},
        "ssmax": {"inner": "rope"},
        "swan": {"period": 4, "window": None, "scaling": True, "layout": "half", "base": 10000.0},
        "t5": {"buckets": 32, "max_distance": 128},
        "transformer_xl": {"base": 10000.0},
        "wavelet": {"scales": 8, "mother": "ricker"},
        "xpos": {"layout": "half", "base": 10000.0, "gamma": 0.4, "scale_base": 512.0, "blockwise": True},
    },
}  # fmt: skip


def test_defaults_are_frozen():
    """Changing one would give the runs that were made with it another config under the same name.

    When it must be: raise FORMAT, and then change it here.
    """
    assert identities.FORMAT == 5
    for group, kind in (("model", settings.Model), ("optim", settings.Optim), ("train", settings.Train)):
        found = {key: value for key, value in dataclasses.asdict(kind()).items() if key not in INERT[group]}
        assert found == FROZEN[group], group
    shipped = {file.stem for file in (config_dir() / "encoding").glob("*.yaml")}
    assert shipped >= set(FROZEN["encoding"])  # a new one is frozen when it is released
    for name, defaults in FROZEN["encoding"].items():
        described = load_group("encoding", name)
        parameters = list(inspect.signature(encodings.find_class(described["class"])).parameters.values())[1:]
        found = {one.name: one.default for one in parameters}
        if "inner" in described:
            found["inner"] = described["inner"]["name"]
        assert found == defaults, name


@pytest.mark.parametrize("name", FROZEN["encoding"])
def test_a_shipped_yaml_says_what_the_class_has_as_defaults(name: str):
    described = load_group("encoding", name)
    expected = {"class": described["class"]}
    if "inner" in described:  # which has no default but the YAML's
        expected["inner"] = {"class": described["inner"]["class"]}
    assert identity(compose([f"encoding={name}"]))["encoding"] == expected


def test_a_hash_is_the_same_on_every_machine():
    """What `printf TEXT | sha256sum` begins with, TEXT the JSON with sorted keys and no blanks."""
    assert hash8({"b": "x", "a": [1, 2.5]}) == "5cefae54"
    assert named() == "b79d1e51"


def own_text(folder: Path, text: str = "some text", name: str = "text.txt") -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return ["data=files", f"data.path='{folder / name}'", "tokenizer=bytes"]


def test_a_users_text_names_a_run_by_its_content_not_by_its_path(tmp_path: Path):
    first = named(*own_text(tmp_path / "a"))
    assert named(*own_text(tmp_path / "b")) == named(*own_text(tmp_path / "b", name="other.txt")) == first
    assert named(*own_text(tmp_path / "a", "Some text")) != first
    assert named(*own_text(tmp_path / "a")) == first
    words = own_text(tmp_path / "a")
    assert named(*words, "data.holdout=10") != first
    assert identity(compose(words))["data"] == {
        "kind": "files", "field": "text", "holdout": 20, "fingerprint": compose(words).data["fingerprint"]
    }  # fmt: skip


def test_a_folder_in_place_of_a_hub_set_and_a_join_with_own_parts_are_named_by_content(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (mine / "data").mkdir()
    (mine / "data" / "both.yaml").write_text("kind: join\nparts: [sotu, own]\n")
    (mine / "data" / "own.yaml").write_text(f"kind: files\npath: {tmp_path / 'text'}\n")
    for number in range(2):
        (tmp_path / f"hub{number}").mkdir()
        (tmp_path / f"hub{number}" / "train.parquet").write_bytes(b"1")
    own_text(tmp_path / "text")
    hub = [named("data=wikitext103", f"data.repo={tmp_path}/hub{number}") for number in range(2)]
    both, alone = named("data=both"), named("data=own")
    assert hub[0] == hub[1]
    own_text(tmp_path / "text", "Some text")
    (tmp_path / "hub0" / "train.parquet").write_bytes(b"2")
    assert named("data=both") != both
    assert named("data=own") != alone
    assert named("data=wikitext103", f"data.repo={tmp_path}/hub0") != hub[0]


@pytest.mark.parametrize("name", ["books", "sotu", "sotu_books", "wikitext103", "pg19", "fineweb_edu", "enwik8"])
def test_what_a_yaml_pins_is_named_by_the_yaml(name: str):
    assert "fingerprint" not in compose([f"data={name}"]).data


def test_a_users_tokenizer_names_a_run_by_its_content_not_by_its_path(tmp_path: Path):
    def of(folder: str, content: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "tokenizer.json").write_text(content)
        return named("tokenizer=file", f"tokenizer.path={tmp_path / folder / 'tokenizer.json'}")

    assert of("a", "{}") == of("b", "{}") != of("a", "{ }")
    with pytest.raises(UserError, match=r"There is no file .*/tokeniser\.json\.\nDid you mean .*/tokenizer\.json"):
        named("tokenizer=file", f"tokenizer.path={tmp_path}/a/tokeniser.json")


def test_a_stored_config_of_a_users_text_needs_no_file_but_its_fingerprint(tmp_path: Path):
    config = compose(own_text(tmp_path))
    (tmp_path / "text.txt").unlink()
    stored = json.loads(json.dumps(to_dict(config)))
    assert identity(from_dict(stored)) == identity(config)
    del stored["data"]["fingerprint"]
    with pytest.raises(UserError, match=r"The stored config has no data\.fingerprint"):
        from_dict(stored)


def test_a_number_is_one_number_however_it_is_written():
    assert named("encoding.base=500000") == named("encoding.base=5e5") == named("encoding.base=500000.0") != named()
    held = [f"encoding.inner={{name: rope, base: {base}}}" for base in ("16", "16.0", "17")]
    hashes = [named("encoding=ssmax", inner) for inner in held]
    assert hashes[0] == hashes[1] != hashes[2]
    fire = [
        named("encoding=fire", f"encoding.threshold={number}") for number in ("16", "16.0", "17")
    ]  # by default null
    assert fire[0] == fire[1] != fire[2]
    factors = [{"class": "posbench.extensions.longrope.LongRope", "factors": [1, n], "factor": n} for n in (4, 4.0, 5)]
    keys = [hash8(extension_identity(factor)) for factor in factors]
    assert keys[0] == keys[1] != keys[2]


def test_a_whole_number_is_a_float_where_a_default_says_so_and_no_annotation(mine: Path):
    (mine / "encoding" / "mine.py").write_text(OWN.replace("slope: float", "slope"))
    assert named("encoding=mine", "encoding.slope=2") == named("encoding=mine", "encoding.slope=2.0")


def test_a_users_encoding_is_named_by_the_content_of_its_file_not_by_its_folder(mine: Path, tmp_path: Path):
    first = named("encoding=mine")
    (tmp_path / "mine.py").write_text(OWN)
    assert named("encoding=mine", f"encoding.class={tmp_path / 'mine.py'}:Mine") == first
    assert named("encoding=mine", "encoding.slope=2") != first
    (mine / "encoding" / "mine.py").write_text(OWN + "# another thought\n")
    assert named("encoding=mine") != first


def test_notes_on_a_corpus_are_inert(default: Config):
    data: dict[str, Any] = default.data | {"note": "other words", "size": {"documents": 1}}
    assert identity(dataclasses.replace(default, data=data)) == identity(default)
    assert identity(dataclasses.replace(default, data=data | {"attend": "document"})) != identity(default)


def test_a_label_names_what_a_wrapper_holds():
    assert label({"name": "rope"}) == "rope"
    assert label({"name": "randomized", "inner": "alibi"}) == "randomized(alibi)"
    assert label({"name": "outer", "inner": {"name": "randomized", "inner": "t5"}}) == "outer(randomized(t5))"
