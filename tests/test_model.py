"""The decoder: Llama as the oracle of the whole, decoding = one pass, and what all encodings share."""

import math
from dataclasses import replace

import pytest
import torch
import yaml
from tiny import CASES, DEFAULTS, FILES, SHAPE, chosen, decoder, described, encoding, ids, logits, part
from transformers import LlamaConfig, LlamaForCausalLM

from posbench import head
from posbench import model as models
from posbench.config import Config, Model, Train
from posbench.encodings.base import Encoding
from posbench.encodings.window import Sliding
from posbench.model import Cache, Decoder
from posbench.search_path import config_dir

NANO = Config(encoding=described("rope"), train=Train(length=128))


def build(config: Config, vocab: int) -> Decoder:
    """With id 0 as the end token."""
    return models.build(config, vocab, 0)


def llama(ours: Decoder, config: Config, vocab: int) -> LlamaForCausalLM:
    """A Llama of Hugging Face's with the same weights, eager attention."""
    m = config.model
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=m.width,
            intermediate_size=m.hidden,
            num_hidden_layers=m.layers,
            num_attention_heads=m.heads,
            num_key_value_heads=m.heads,
            max_position_embeddings=1024,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            attn_implementation="eager",
        )
    )
    renamed = {"model.embed_tokens.weight": ours.embed.weight, "model.norm.weight": ours.norm.weight}
    for i, block in enumerate(ours.blocks):
        attention, feed = block.attention, block.feed_forward
        renamed |= {
            f"model.layers.{i}.{name}.weight": module.weight
            for name, module in {
                "self_attn.q_proj": attention.query,
                "self_attn.k_proj": attention.key,
                "self_attn.v_proj": attention.value,
                "self_attn.o_proj": attention.out,
                "mlp.gate_proj": feed.gate,
                "mlp.up_proj": feed.up,
                "mlp.down_proj": feed.down,
                "input_layernorm": block.attention_norm,
                "post_attention_layernorm": block.feed_forward_norm,
            }.items()
        }
    missing, unexpected = theirs.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert missing in ([], ["lm_head.weight"])  # tied to the embedding
    return theirs


def test_a_rope_run_is_a_llama_checkpoint():
    """The whole default model, same weights: the same logits to 1e-5, at the training length and past it."""
    ours = build(NANO, 512).eval()
    theirs = llama(ours, NANO, 512).eval()
    tokens = ids(200, batch=2, vocab=512)
    with torch.no_grad():
        assert (logits(ours, tokens) - theirs(tokens).logits).abs().max() < 1e-5


@pytest.mark.slow
def test_fifty_steps_of_training_stay_within_1e4_of_llamas():
    """Same weights, same batches, AdamW on both: every gradient and the tied head must be right for that.

    The text is a walk over 64 ids in random steps of 0, 1 or 2: from ln 64 = 4.16 there is ln 3 = 1.10 to be reached.
    """
    ours = build(NANO, 64)
    theirs = llama(ours, NANO, 64)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1) for m in (ours, theirs)]
    for step in range(50):
        tokens = ids(65, batch=4, vocab=3, seed=step).cumsum(1) % 64
        losses = [ours.loss(tokens[:, :-1], tokens[:, 1:]), theirs(tokens, labels=tokens).loss]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert abs(losses[0].item() - losses[1].item()) < 1e-4
    assert losses[0].item() < 2


@pytest.mark.parametrize("case", CASES)
def test_positions_that_do_not_count_stay_so_in_a_cache(case):
    """The first part read at positions of its own, the second with none given: it goes on counting at its place, unless
    the encoding chooses positions, which must then be given."""
    model, tokens = decoder(case), ids(8)
    at = torch.tensor([[0, 2, 5, 9, 40, 5, 6, 7]])
    rest = at[:, 5:] if "positions" in model.encoding.hooks else None
    cache = Cache(SHAPE.layers)
    parts = [
        logits(model, piece, positions=own, cache=cache)
        for piece, own in ((tokens[:, :5], at[:, :5]), (tokens[:, 5:], rest))
    ]
    assert (torch.cat(parts, dim=1) - logits(model, tokens, positions=at)).abs().max() < 1e-5


def test_a_cache_is_refused_where_earlier_keys_do_not_stay_valid():
    """STATE-3: no shipped encoding is of this kind, so one is made so here."""
    model = decoder(CASES[0].values[0])
    model.encoding.cacheable = False
    with pytest.raises(ValueError, match="cannot decode with a cache"):
        logits(model, ids(4), cache=Cache(SHAPE.layers))


@pytest.mark.parametrize("case", CASES)
def test_training_mode_and_evaluation_mode_agree_without_dropout(case):
    """BIAS-3: a bias that only one of them has would show here."""
    model, tokens = decoder(case), ids(50)
    evaluated = logits(model, tokens)
    trained = model.train().logits(model.hidden(tokens, chosen(model, tokens)))
    assert trained.requires_grad
    assert (trained - evaluated).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_a_window_reads_the_same_alone_and_in_a_batch(case):
    model, tokens = decoder(case), ids(30, batch=3)
    together, at = logits(model, tokens), chosen(model, tokens)
    for i in range(3):
        row = slice(i, i + 1)
        alone = logits(model, tokens[row], positions=part(at, row, slice(30)))
        assert (alone - together[i]).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_the_last_positions_alone_are_the_last_of_all(case):
    model, tokens = decoder(case), ids(50, batch=2)
    at = chosen(model, tokens)
    with torch.no_grad():
        whole, last = model.hidden(tokens, at), model.hidden(tokens, at, last=7)
    assert last.shape == (2, 7, 32)
    assert (last - whole[:, -7:]).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_positions_that_count_equal_none_given(case):
    """Two kernels for a bias (a view of one vector, or a matrix): one answer. Where the encoding chooses positions,
    none given is an error."""
    model, tokens = decoder(case), ids(40)
    given = logits(model, tokens, positions=torch.arange(40)[None])
    if "positions" in model.encoding.hooks:
        with pytest.raises(ValueError, match="chooses its positions"):
            logits(model, tokens, positions=None)
        return
    assert (given - logits(model, tokens)).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_every_learned_number_of_the_encoding_can_learn(case):
    """TRAIN-2: through the kernel of training, each parameter gets a finite gradient that is not zero."""
    model, tokens = decoder(case).train(), ids(41)
    model.loss(tokens[:, :-1], tokens[:, 1:], chosen(model, tokens[:, :-1])).backward()
    for name, parameter in model.encoding.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_one_length_is_read_at_another(case):
    """LEN-3: weights trained at 64 load strictly at 128, but for a table of positions; at 32 the same logits.

    Further on a formula may count with the training length (xpos's blocks, swan's window)."""
    name, own = case
    configs = [Config(encoding=described(name, **own), train=Train(length=length)) for length in (64, 128)]
    trained, longer = (build(config, 64).eval() for config in configs)
    if trained.encoding.length_sized:
        with pytest.raises(RuntimeError, match="size mismatch"):
            longer.load_state_dict(trained.state_dict())
        return
    longer.load_state_dict(trained.state_dict())
    at = chosen(trained, ids(32))
    assert torch.equal(logits(trained, ids(32), positions=at), logits(longer, ids(32), positions=at))


@pytest.mark.slow
@pytest.mark.parametrize("case", DEFAULTS)
def test_training_compiles_into_one_graph(case):
    """A number read back from a tensor would cut it in parts, with a warning. No C compiler is needed to see that."""
    torch.compiler.reset()
    whole = encoding(case, SHAPE)
    kinds = {type(whole.for_layer(layer)) for layer in range(SHAPE.layers)}  # a second layer of one is traced alike
    model, tokens = decoder(case, replace(SHAPE, layers=len(kinds))).train(), ids(33)
    batch = tokens[:, :-1], tokens[:, 1:], chosen(model, tokens[:, :-1])
    compiled = torch.compile(model.loss, backend="eager", fullgraph=True)
    assert compiled(*batch).item() == pytest.approx(model.loss(*batch).item(), abs=1e-5)


def test_losses_in_chunks_equal_losses_in_one_piece(monkeypatch):
    """LEN-2: 2 x 50 rows in pieces of 7, the same floats to 1e-6; with `last` only those targets."""
    model, tokens = decoder(("alibi", {})), ids(51, batch=2)
    whole = model.token_losses(tokens[:, :-1], tokens[:, 1:])
    assert whole.shape == (2, 50)
    monkeypatch.setattr(head, "chunk_rows", lambda vocab_size, device_type: 7)
    assert (model.token_losses(tokens[:, :-1], tokens[:, 1:]) - whole).abs().max() < 1e-6
    last = model.token_losses(tokens[:, :-1], tokens[:, -9:], last=9)
    assert (last - whole[:, -9:]).abs().max() < 1e-5
    assert model.loss(tokens[:, :-1], tokens[:, 1:]).item() == pytest.approx(whole.mean().item(), abs=1e-6)


@pytest.mark.parametrize("activation", ["swiglu", "relu"])
def test_the_feed_forward_is_the_same_for_some_tokens_at_a_time(activation, monkeypatch):
    """Two windows of 5 tokens as 4, 4 and 2 tokens, where no gradient is kept, against all ten at once."""
    monkeypatch.setitem(models.FEED_FORWARD_TOKENS, "cpu", 4)
    torch.manual_seed(0)
    layer = models.FeedForward(replace(Model(), width=16, heads=2, hidden=24, activation=activation))
    x, seen = torch.randn(2, 5, 16), []
    whole = layer(x)
    layer.up.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    with torch.no_grad():
        parts = layer(x)
    assert seen == [4, 4, 2]
    assert parts.shape == whole.shape
    assert (parts - whole).abs().max() < 1e-6


def test_the_loss_of_a_target_is_its_negative_log_probability():
    """Targets stand one id further on, and nobody shifts them again."""
    model, tokens = decoder(("rope", {})), ids(6)
    logp = logits(model, tokens[:, :-1]).log_softmax(-1)
    losses = model.token_losses(tokens[:, :-1], tokens[:, 1:])
    for t in range(5):
        assert losses[0, t].item() == pytest.approx(-logp[0, t, tokens[0, t + 1]].item(), abs=1e-6)


def test_encodings_at_one_seed_share_every_weight_they_both_have():
    """Each tensor has a generator of its own: a comparison at one seed starts from one model."""
    built = [build(Config(encoding=described(name)), 64).state_dict() for name in FILES]
    shared = [{n: t for n, t in state.items() if not n.startswith("encoding.")} for state in built]
    for other in shared[1:]:
        assert other.keys() == shared[0].keys()
        assert all(torch.equal(other[name], shared[0][name]) for name in other)


def test_weights_are_a_function_of_the_seed():
    """Whatever was drawn before: the encoding's own table too."""
    first, again, other = (build(Config(encoding=described("learned"), seed=seed), 64) for seed in (1, 1, 2))
    for (name, a), b, c in zip(first.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.ndim == 1 or not torch.equal(a, c), name


def test_initial_variances():
    """Token vectors 1/C; matrices 0.02; residual outputs 0.02 / sqrt(2 layers). Samples of 16,384 or more: 3%."""
    model = build(NANO, 512)
    block = model.blocks[0]
    assert model.embed.weight.std().item() == pytest.approx(128**-0.5, rel=0.03)
    assert block.attention.query.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert block.feed_forward.up.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert block.attention.out.weight.std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.03)
    assert block.feed_forward.down.weight.std().item() == pytest.approx(0.02 / math.sqrt(8), rel=0.03)


@pytest.mark.parametrize(
    ("size", "millions"), [("nano", 0.79), ("micro", 4.7), ("small", 32), ("base", 85), ("press", 201)]
)
def test_parameters_in_blocks(size, millions):
    """4 C^2 + 3 C hidden a layer (2 C hidden with ReLU), the norms' numbers beside them."""
    settings = yaml.safe_load((config_dir() / "model" / f"{size}.yaml").read_text())
    with torch.device("meta"):
        model = Decoder(Model(**settings), 10, Encoding(replace(SHAPE, layers=settings["layers"])))
    assert sum(p.numel() for p in model.blocks.parameters()) / 1e6 == pytest.approx(millions, rel=0.012)


def test_the_blocks_of_press_et_al():
    """LayerNorm and ReLU, from the parts: x + out(v), then x + down(relu(up(norm(x)))), with one token to attend to."""
    model = Decoder(
        Model(layers=1, width=8, heads=2, hidden=12, norm="layernorm", activation="relu"), 5, Encoding(SHAPE)
    )
    block = model.blocks[0]
    x = model.embed.weight[3]
    norm = torch.nn.functional.layer_norm
    y = x + block.attention.out.weight @ (block.attention.value.weight @ norm(x, (8,), eps=1e-6))
    z = y + block.feed_forward.down.weight @ (block.feed_forward.up.weight @ norm(y, (8,), eps=1e-6)).relu()
    expected = model.embed.weight @ norm(z, (8,), eps=1e-6)
    assert torch.allclose(logits(model, torch.tensor([[3]]))[0, 0], expected, atol=1e-5)


def test_dropout_is_only_in_training():
    model, tokens = decoder(("rope", {}), dropout=0.5), ids(20)
    assert torch.equal(logits(model, tokens), logits(decoder(("rope", {})), tokens))
    model.train()
    torch.manual_seed(0)
    first = logits(model, tokens)
    assert not torch.equal(first, logits(model, tokens))


@pytest.mark.parametrize("case", CASES)
def test_documents_that_do_not_see_each_other_read_as_if_alone(case):
    """With a boundary id 0, tokens after the second 0 see that 0 and what follows it, nothing before."""
    model, tokens = decoder(case), ids(60) % 63 + 1
    tokens[0, [0, 25]] = 0
    apart = decoder(case)
    apart.boundary = 0
    whole, split = logits(model, tokens), logits(apart, tokens)
    assert (whole[:, :25] - split[:, :25]).abs().max() < 1e-5
    assert (whole[:, 25:] - split[:, 25:]).abs().max() > 1e-2
    at = chosen(model, tokens)
    where = torch.arange(25, 60)[None] if at is None else at[:, 25:]
    alone = logits(model, tokens[:, 25:], positions=where)
    assert (split[:, 25:] - alone).abs().max() < 1e-4
    cache, parts = Cache(SHAPE.layers), []
    for piece in (slice(30), slice(30, 31), slice(31, 60)):
        parts.append(logits(apart, tokens[:, piece], positions=part(at, slice(1), piece), cache=cache))
    assert (torch.cat(parts, dim=1) - split).abs().max() < 1e-4


def test_the_setting_for_documents_reaches_the_model():
    """data.attend=document: the end token's id is the boundary; by default there is none."""
    assert models.build(replace(NANO, data={"attend": "document"}), 64, 7).boundary == 7
    assert models.build(replace(NANO, data={"attend": "stream"}), 64, 7).boundary is None
    assert models.build(NANO, 64, 7).boundary is None


def test_the_kernel_and_its_reason_are_told():
    """What a row stores of a pass."""
    model = decoder(("alibi", {}))
    logits(model, ids(5))
    assert (model.kernel, model.kernel_reason) == ("strided", "a fixed bias by distance")


def test_positions_of_a_window_come_from_the_encoding_only_when_it_has_its_own():
    class Doubled(Encoding):
        def positions(self, windows, length, rng):
            return 2 * torch.arange(length)[None]

    model = decoder(("none", {}))
    assert model.positions([0], 4, []) is None
    model.encoding = Doubled(SHAPE)
    assert model.positions([0], 4, []).tolist() == [[0, 2, 4, 6]]


class Narrow(Encoding):
    """Two keys in sight, in every layer or in the first alone."""

    first_alone = False

    def window(self, layer):
        return None if self.first_alone and layer else Sliding(2)


class Apart(Encoding):
    def for_layer(self, layer):
        return Narrow(self.shape) if layer == 0 else Encoding(self.shape)


def test_a_window_is_asked_for_each_layer():
    """One instance that is narrow in the first layer reads as two instances of which the first is narrow."""
    model, tokens = decoder(("none", {})), ids(12)
    read = {}
    for name, own in {"none": Encoding, "narrow": Narrow, "apart": Apart}.items():
        model.encoding = own(SHAPE)
        read[name] = logits(model, tokens)
    model.encoding = Narrow(SHAPE)
    model.encoding.first_alone = True
    assert torch.allclose(logits(model, tokens), read["apart"], atol=1e-6)
    assert (read["apart"] - read["none"]).abs().max() > 1e-2
    assert (read["apart"] - read["narrow"]).abs().max() > 1e-2


def test_one_encoding_instance_shared_by_layers_begins_once_a_pass():
    """cos and sin are made once, not once a layer; an instance for each layer begins for each."""
    begun = []
    for case in (("rope", {}), ("shaw", {})):
        model = decoder(case)
        before = type(encoding(case).for_layer(0)).begin
        cls = type(model.encoding.for_layer(0))
        try:
            cls.begin = lambda self, *how, of=case[0], then=before: begun.append(of) or then(self, *how)
            logits(model, ids(4))
        finally:
            cls.begin = before
    assert begun == ["rope", "shaw", "shaw"]
