"""Peers have posbench's shape, and where they can have its weights they give its loss."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import tiny
import torch
import works

from posbench.bench import cells, equal, peers
from posbench.bench.cells import Variant
from posbench.bench.peers import PEERS, Peer
from posbench.config import Model, Train
from posbench.encodings.base import Shape
from posbench.errors import UserError

pytest.importorskip("transformers")

THERE = [pytest.param(peer, id=peer.name) for peer in PEERS if not peer.missing]


MODELS = {"nano": Model(), "micro": Model("micro", 6, 256, 8, 688)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("peer", THERE)
def test_a_peer_has_as_many_parameters_within_two_percent(peer: Peer, model: str):
    config = replace(works.config(peer.encoding), model=MODELS[model], train=Train(length=128))
    with torch.device("meta"):
        built = peer.model(config, 2048, peer.attentions[0])
    count = sum(p.numel() for p in built.parameters())
    # 4 x (4 x 128 x 128 + 3 x 128 x 344 + 2 x 128) + 128 + 2048 x 128; and the same of 6 x 256.
    wanted = {"nano": 1_053_824, "micro": 5_270_784}[model]
    # learned: 128 positions of the width; t5: 32 numbers a head.
    wanted += {"learned": 128 * MODELS[model].width, "t5": 32 * MODELS[model].heads}.get(peer.encoding, 0)
    assert peers.wanted_parameters(config, 2048) == wanted
    assert abs(count / wanted - 1) <= 0.02


def test_a_table_of_positions_is_not_paid_for_with_the_feed_forward():
    """GPT-2 and posbench have the same one, so the width of its feed-forward does not depend on its rows."""
    short = works.config("learned")
    long = replace(short, train=replace(short.train, length=128))
    gpt2 = peers.find("gpt-2")
    assert gpt2.hidden(short, 64) == gpt2.hidden(long, 64)


def test_a_peer_that_cannot_have_the_size_says_so():
    """Bloom's feed-forward is four widths, posbench's here an eighth of that."""
    with pytest.raises(UserError, match=r"bloom has [\d,]+ parameters at this shape, and posbench [\d,]+\."):
        peers.find("bloom").model(works.config("alibi", hidden=32), works.VOCAB, "eager")


@pytest.mark.parametrize("peer", THERE)
def test_every_attention_of_a_peer_gives_the_same_losses(peer: Peer):
    config, ids = works.config(peer.encoding), torch.randint(works.VOCAB, (2, 17))
    found = []
    for attention in peer.attentions:
        torch.manual_seed(0)
        built = peer.model(config, works.VOCAB, attention).eval()
        found.append(peers.token_losses(built, ids[:, :-1], ids[:, 1:]))
        assert peers.loss(built, ids[:, :-1], ids[:, 1:]).item() == pytest.approx(found[-1].mean().item(), abs=1e-5)
    for other in found[1:]:
        assert (other - found[0]).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["llama", "bloom"])
@pytest.mark.parametrize("heads", [4, 6])
def test_the_same_weights_give_posbenchs_loss(name: str, heads: int):
    peer = peers.find(name)
    config = works.config(peer.encoding, width=96, heads=heads, hidden=260)
    for attention in peer.attentions:
        difference = equal.difference(peer, config, works.VOCAB, attention)
        assert difference is not None
        assert abs(difference) < equal.CLOSE


@pytest.mark.parametrize(("name", "other"), [("llama", "alibi"), ("bloom", "rope")])
def test_another_encoding_would_show(name: str, other: str):
    difference = equal.difference(peers.find(name), works.config(other), works.VOCAB, "eager")
    assert difference is not None
    assert abs(difference) > 10 * equal.CLOSE


def test_a_peer_without_posbenchs_tensors_has_no_such_check():
    assert equal.difference(peers.find("gpt-2"), works.config("learned"), works.VOCAB, "eager") is None


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert peers.find("llama").missing == "transformers is not installed (pip install 'posbench[peers]')"
    assert "x-transformers is not installed" in (peers.find("x-transformers t5").missing or "")


def test_a_peer_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(UserError, match=r"There is no peer 'lama'\. Did you mean 'llama'\?"):
        peers.find("lama")


def test_every_peer_is_of_an_encoding_that_posbench_has():
    for peer in PEERS:
        tiny.encoding((peer.encoding, {}), Shape(2, 32, 4, 16))


@pytest.mark.parametrize("task", ["train", "eval"])
def test_a_peer_is_timed_at_posbenchs_size(task: str):
    cell = works.cell(works.config("rope"), maker="llama", task=task, variant=Variant("sdpa"))
    prepared = cells.prepare(cell)
    prepared.call()
    assert prepared.parameters == peers.wanted_parameters(cell.config, works.VOCAB)
    assert (prepared.short is None) == (task == "train")
