"""A checkpoint comes back whole or not at all; weights of one run are the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from posbench import checkpoint, optim
from posbench.checkpoint import State
from posbench.config import Optim
from posbench.errors import UserError
from posbench.model import Decoder

CPU = torch.device("cpu")
HASH = "0123abcd"
STATE = State(step=3, epoch=1, window=2, read=18, loss=0.1 + 0.2, valid=None, seconds=1.5)


def trained(seed: int = 1, steps: int = 3) -> tuple[Decoder, optim.Optimizer]:
    """A model with dropout, a few updates old, and its optimizer."""
    torch.manual_seed(seed)
    decoder = tiny.decoder(("learned", {}), dropout=0.1, seed=seed).train()
    optimizer = optim.build(decoder, Optim(), steps=10)
    ids = tiny.ids(9, batch=2)
    for step in range(steps):
        decoder.loss(ids[:, :-1], ids[:, 1:]).backward()
        optimizer.step(step)
    return decoder, optimizer


def test_everything_comes_back_bit_for_bit(tmp_path: Path):
    """Weights, momentum, counters (a float with all its digits) and the next random number."""
    file = tmp_path / "checkpoint.safetensors"
    decoder, optimizer = trained()
    checkpoint.save(file, HASH, STATE, decoder, optimizer, CPU)
    expected = torch.rand(3)
    other, fresh = trained(seed=7, steps=0)
    torch.manual_seed(99)
    assert checkpoint.load(file, HASH, other, fresh, CPU) == STATE
    assert torch.equal(torch.rand(3), expected)
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    assert fresh.tensors().keys() == optimizer.tensors().keys()
    for name, tensor in optimizer.tensors().items():
        assert torch.equal(fresh.tensors()[name], tensor), name


@pytest.mark.process
def test_equal_weights_are_equal_bytes_in_any_process(tmp_path: Path):
    """safetensors orders several metadata keys by a hash that changes from process to process; one cannot differ."""
    decoder, _ = trained()
    checkpoint.save_weights(tmp_path / "here", HASH, 3, decoder)
    code = (
        "import sys; sys.path.insert(0, 'tests'); from pathlib import Path; from test_checkpoint import *;"
        "checkpoint.save_weights(Path(sys.argv[1]), HASH, 3, trained()[0])"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "there")], check=True, cwd=Path(__file__).parent.parent)
    here, there = (hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("here", "there"))
    assert here == there


def test_the_weights_are_plain_safetensors_under_their_own_names(tmp_path: Path):
    """CKPT-2: nothing but tensors and JSON; any reader of safetensors can have them."""
    decoder, _ = trained()
    checkpoint.save_weights(tmp_path / "model.safetensors", HASH, 3, decoder)
    plain = load_file(tmp_path / "model.safetensors")
    assert plain.keys() == decoder.state_dict().keys()
    other, _ = trained(seed=7, steps=0)
    assert checkpoint.load_weights(tmp_path / "model.safetensors", HASH, other) == 3
    assert torch.equal(other.embed.weight, plain["embed.weight"])


def _damage(whole: bytes, how: str) -> bytes:
    return {
        "empty": b"",
        "cut in the header": whole[:40],
        "cut in the tensors": whole[:-100],
        "longer": whole + b"more",
        "garbage": bytes(range(256)) * 20,
        "a pickle": b"\x80\x04\x95" + whole[3:],
    }[how]


@pytest.mark.parametrize("how", ["empty", "cut in the header", "cut in the tensors", "longer", "garbage", "a pickle"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, how: str):
    file = tmp_path / "checkpoint.safetensors"
    decoder, optimizer = trained()
    checkpoint.save(file, HASH, STATE, decoder, optimizer, CPU)
    file.write_bytes(_damage(file.read_bytes(), how))
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged"):
        checkpoint.load(file, HASH, decoder, optimizer, CPU)


def test_a_foreign_file_is_named(tmp_path: Path):
    """Another program's safetensors; weights where a checkpoint belongs; another run's checkpoint."""
    file = tmp_path / "checkpoint.safetensors"
    decoder, optimizer = trained()
    save_file({"x": torch.zeros(2)}, file)
    with pytest.raises(UserError, match="but no checkpoint written by posbench"):
        checkpoint.load(file, HASH, decoder, optimizer, CPU)
    checkpoint.save_weights(file, HASH, 3, decoder)
    with pytest.raises(UserError, match="but no checkpoint written by posbench"):
        checkpoint.load(file, HASH, decoder, optimizer, CPU)
    checkpoint.save(file, "ffffffff", STATE, decoder, optimizer, CPU)
    with pytest.raises(UserError, match="belongs to the run ffffffff, not to 0123abcd"):
        checkpoint.load(file, HASH, decoder, optimizer, CPU)


def test_weights_of_another_shape_are_refused_by_name(tmp_path: Path):
    file = tmp_path / "model.safetensors"
    checkpoint.save_weights(file, HASH, 3, tiny.decoder(("rope", {}), vocab=64))
    with pytest.raises(UserError, match=r"embed\.weight is float32 \(64, 32\) in the file and float32 \(65,"):
        checkpoint.load_weights(file, HASH, tiny.decoder(("rope", {}), vocab=65))
    checkpoint.save_weights(file, HASH, 3, tiny.decoder(("none", {}), vocab=64))
    with pytest.raises(UserError, match=r"encoding\.table is nothing in the file and float32 \(256, 32\)"):
        checkpoint.load_weights(file, HASH, tiny.decoder(("learned", {}), vocab=64))


def test_weights_of_another_precision_are_refused(tmp_path: Path):
    """Loading would cast them, and the run would be evaluated with rounded weights."""
    file = tmp_path / "model.safetensors"
    checkpoint.save_weights(file, HASH, 3, tiny.decoder(("none", {})).half())
    with pytest.raises(UserError, match=r"is float16 \(\d+, \d+\) in the file and float32"):
        checkpoint.load_weights(file, HASH, tiny.decoder(("none", {})))


COUNTERS = {"step": 3, "epoch": 1, "window": 2, "read": 18}


@pytest.mark.parametrize(
    ("tensors", "header"),
    [
        ({}, {}),
        ({}, {"state": [1]}),
        ({}, {"state": COUNTERS | {"steps": 3}}),
        ({}, {"state": COUNTERS | {"step": "3"}}),
        ({}, {"state": COUNTERS | {"step": -3}}),
        ({"rng.cpu": torch.zeros(2)}, {"state": COUNTERS}),
        ({"loose": torch.zeros(2)}, {"state": COUNTERS}),
        ({"other.x": torch.zeros(2)}, {"state": COUNTERS}),
        ({"optim.nowhere.exp_avg": torch.zeros(2)}, {"state": COUNTERS}),
    ],
    ids=["no counters", "a list", "a strange one", "a word", "below 0", "rng", "no part", "a strange part", "optim"],
)
def test_a_checkpoint_that_is_not_whole_is_named(tmp_path: Path, tensors: dict, header: dict):
    """Good safetensors of this very run: something in it is missing, or is not what it must be."""
    file = tmp_path / "checkpoint.safetensors"
    decoder, optimizer = trained()
    checkpoint.save(file, HASH, STATE, decoder, optimizer, CPU)
    metadata = json.dumps({"kind": "checkpoint", "hash": HASH} | header)
    save_file(load_file(file) | tensors, file, {"posbench": metadata})
    with pytest.raises(UserError, match=r"checkpoint\.safetensors holds no whole training"):
        checkpoint.load(file, HASH, decoder, optimizer, CPU)


def test_a_module_judges_its_own_state(tmp_path: Path):
    """Weights of one RoPE layout are refused by the other: every shape would fit."""
    file = tmp_path / "model.safetensors"
    checkpoint.save_weights(file, HASH, 3, tiny.decoder(("rope", {"layout": "half"})))
    with pytest.raises(UserError, match="layout 'half'"):
        checkpoint.load_weights(file, HASH, tiny.decoder(("rope", {"layout": "interleaved"})))


def test_no_stored_shape_depends_on_a_length(tmp_path: Path):
    """LEN-3: weights trained at 32 load strictly into a model built for 4,096, unless the encoding says why not."""
    for name in tiny.FILES:
        short = tiny.decoder((name, {}), tiny.Shape(layers=1, width=32, heads=4, train_length=32))
        long = tiny.decoder((name, {}), tiny.Shape(layers=1, width=32, heads=4, train_length=4096))
        checkpoint.save_weights(tmp_path / name, HASH, 0, short)
        if not short.encoding.length_sized:
            checkpoint.load_weights(tmp_path / name, HASH, long)


def test_a_write_that_is_killed_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever happens before the rename, the file under the name is the old one, whole."""
    file = tmp_path / "checkpoint.safetensors"
    decoder, optimizer = trained()
    checkpoint.save(file, HASH, STATE, decoder, optimizer, CPU)
    old = file.read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for place in ("chmod", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, place, killed)
            with pytest.raises(KeyboardInterrupt):
                checkpoint.save(file, HASH, State(step=4), decoder, optimizer, CPU)
        assert file.read_bytes() == old
        assert os.listdir(tmp_path) == [file.name]  # noqa: PTH208 - the names, hidden ones too
