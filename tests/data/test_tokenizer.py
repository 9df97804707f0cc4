"""Tokenizers: ids that give the text back, bytes that add up, and an end token that no text can write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from texts import files_of, shipped
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from posbench.data import tokenizer as tokenizers
from posbench.data.corpus import open_corpus
from posbench.data.tokenizer import (
    END,
    Tokenizer,
    bytes_of,
    find_tokenizer,
    ids_dtype,
    open_tokenizer,
    pieces,
    train_bpe,
)
from posbench.errors import UserError

TEXTS = [
    "",
    "a",
    "Fellow-Citizens of the Senate\nand House:\n\n  It is 1845.\t«Señor» naïve 😀👩‍👧 日本語\r\n end ",
    "<|end|> and <s> are text, " * 3,
    "\x00\u2028\ufeff odd",
]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    """Trained on a few sentences, so that it has merges of its own."""
    return train_bpe(["the cat sat on the mat, the dog sat on the log\n" * 20, "naïve señor 😀 " * 20], 280)


def word_level(path: Path, words: dict[str, int], **added: bool) -> str:
    """A tokenizer.json of whole words between blanks, with added tokens name=special."""
    made = HFTokenizer(models.WordLevel(words, unk_token="?" if "?" in words else None))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    stored = json.loads(made.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for number, (name, special) in enumerate(added.items(), start=max(words.values()) + 1):
        stored["added_tokens"].append({"id": number, "content": f"<{name}>", "special": special, **flags})
    path.write_text(json.dumps(stored))
    return str(path)


def of(tokenizer: str, **own: Any) -> Tokenizer:
    """The tokenizer of a config that needs no corpus."""
    return open_tokenizer(shipped("tokenizer", tokenizer, **own), corpus=None)  # type: ignore[arg-type]


def test_bytes_are_their_own_ids() -> None:
    """257 ids: the bytes and the end token; "é" is 0xC3 0xA9."""
    made = of("bytes")
    ids, nbytes = made.encode("aé")
    assert ids.tolist() == [97, 0xC3, 0xA9]
    assert nbytes.tolist() == [1, 1, 1]
    assert (made.vocab_size, made.end, made.dtype) == (257, 256, np.uint16)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_ids_give_the_text_back_and_bytes_add_up(kind: str, text: str, bpe: Tokenizer) -> None:
    made = bpe if kind == "bpe" else of("bytes")
    ids, nbytes = made.encode(text)
    assert made.decode(ids) == text
    assert len(ids) == len(nbytes)
    assert nbytes.sum() == len(text.encode())
    assert ids.dtype == np.uint16
    assert made.end not in ids


def test_an_end_token_is_written_as_its_name(bpe: Tokenizer) -> None:
    for made in (bpe, of("bytes")):
        ids = made.encode("a b")[0].tolist()
        assert made.decode([made.end, *ids, made.end]) == f"{END}a b{END}"
        assert made.end == made.vocab_size - 1


def test_vocab_size_counts_the_end_token(bpe: Tokenizer) -> None:
    assert (bpe.vocab_size, bpe.end) == (280, 279)
    assert bpe.name == "bpe280"
    assert train_bpe(["ab"], 300).vocab_size == 257  # no pair occurs twice: 256 bytes and the end token


def test_bytes_of_a_token_reach_from_the_furthest_end_before_it() -> None:
    """By hand, ends counted in characters. "a é 😀 b" has 1, 2, 4, 1 bytes."""
    assert bytes_of("aé😀b", [1, 2, 3, 4]).tolist() == [1, 2, 4, 1]
    assert bytes_of("aé😀b", [1, 2, 3, 3, 3, 4]).tolist() == [1, 2, 4, 0, 0, 1]  # three tokens share the face
    assert bytes_of("aé😀b", [1, 4]).tolist() == [1, 7]  # text that no token covers counts with the next
    assert bytes_of("aé😀b", [1, 3]).tolist() == [1, 7]  # and at the end with the last
    assert bytes_of("aé", [2, 1]).tolist() == [3, 0]  # ends that go back
    assert bytes_of("aé😀b", [3, 1, 4]).tolist() == [7, 0, 1]
    assert bytes_of("", []).tolist() == []


def test_a_known_merge_has_the_bytes_of_its_letters() -> None:
    """ "the " occurs most: " the" is one token of four bytes, and "the" at the start one of three."""
    made = train_bpe(["the the the the the the"], 300)
    ids, nbytes = made.encode("the the")
    assert nbytes.tolist() == [3, 4]
    assert len(ids) == 2


# --- Pieces ------------------------------------------------------------------------------------------------------


def test_pieces_begin_at_single_blanks() -> None:
    """By hand. A blank beside another blank is no place to cut; 64 x 2 characters without one are."""
    assert list(pieces("one two\n\nthree four", 5)) == ["one two\n\nthree", " four"]
    assert list(pieces("one\ntwo  three\nfour five", 1)) == ["one", "\ntwo  three", "\nfour", " five"]
    assert list(pieces("", 5)) == [""]
    assert [len(piece) for piece in pieces("x" * 300, 2)] == [128, 128, 44]


def test_ids_in_pieces_are_those_of_the_whole(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The cat's mat\n\n  sat on 12 logs. \n on  the dog\tnaïve\n" * 40
    want = bpe._hf.encode(text).ids
    for longest in (1, 7, 100, 10**6):
        monkeypatch.setitem(tokenizers._LONGEST, "bpe", longest)
        assert bpe.encode(text)[0].tolist() == want


def test_many_texts_at_once_are_each_their_own(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tokenizers._LONGEST, "bpe", 3)
    for text, (ids, nbytes) in zip(TEXTS, bpe.encode_all(TEXTS), strict=True):
        assert ids.tolist() == bpe.encode(text)[0].tolist()
        assert nbytes.sum() == len(text.encode())


def test_short_texts_go_to_the_cores_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the kind: 5 texts of 3 characters, at least 7 characters at once."""
    made = of("file", path=word_level(tmp_path / "words.json", {"a": 0, "b": 1}))
    library, met = made._hf, []

    class Spy:
        def encode_batch(self, texts: list[str], **how: Any) -> Any:
            met.append(len(texts))
            return library.encode_batch(texts, **how)

    monkeypatch.setitem(vars(made), "_hf", Spy())
    monkeypatch.setattr(tokenizers, "_AT_ONCE", 7)
    assert [ids.tolist() for ids, _ in made.encode_all(["a b"] * 5)] == [[0, 1]] * 5
    assert met == [3, 2]


# --- A BPE of one's own ------------------------------------------------------------------------------------------


def test_training_twice_gives_the_same_tokenizer() -> None:
    """Pairs of equal count are many here: their order must not come from a hash map."""
    texts = [f"{a}{b} {b}{c} {c}{a}\n" * 3 for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwx"]
    assert len({train_bpe(texts, 400).fingerprint for _ in range(3)}) == 1


def test_only_the_training_split_is_learned_from(tmp_path: Path) -> None:
    data = {"train": "cat " * 50, "validation": "dog " * 50, "test": "log " * 50}
    made = open_tokenizer(shipped("tokenizer", "bpe"), open_corpus(files_of(tmp_path / "text", **data)), tmp_path)
    lengths = {word: len(made.encode(f" {word}")[0]) for word in ("cat", "dog", "log")}
    assert lengths == {"cat": 1, "dog": 4, "log": 4}


def test_a_second_start_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA-5; and another text, or another size, is trained anew (DATA-2)."""
    corpus = open_corpus(files_of(tmp_path / "a", train="some text, some text", test="x"))
    other = open_corpus(files_of(tmp_path / "b", train="Some text, some text", test="x"))
    config = shipped("tokenizer", "bpe")
    said: list[str] = []
    first = open_tokenizer(config, corpus, tmp_path, said.append)
    assert len(said) == 1
    trained: list[int] = []
    monkeypatch.setattr(tokenizers, "train_bpe", lambda texts, size: trained.append(size) or first)
    assert open_tokenizer(config, corpus, tmp_path, said.append).fingerprint == first.fingerprint
    assert (trained, len(said)) == ([], 1)
    open_tokenizer(config, other, tmp_path)
    open_tokenizer(config | {"vocab_size": 300}, corpus, tmp_path)
    assert trained == [2048, 300]


def test_a_tokenizer_of_another_recipe_or_library_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever decides the merges is in the name of the file: an older one under the same name would be believed."""
    corpus = open_corpus(files_of(tmp_path / "a", train="some text, some text", test="x"))
    config = shipped("tokenizer", "bpe")
    open_tokenizer(config, corpus, tmp_path)
    assert find_tokenizer(config, corpus, tmp_path) is not None
    untrained = tokenizers._untrained

    def other_split(size: int) -> tuple[Any, dict[str, Any]]:
        made, trainer = untrained(size)
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        return made, trainer

    for target, name, value in (
        (tokenizers, "FORMAT", tokenizers.FORMAT + 1),
        (tokenizers.metadata, "version", lambda package: "0.0.1"),
        (tokenizers, "_LONGEST", {"bpe": 1, "file": 1}),
        (tokenizers, "_untrained", lambda size: (untrained(size)[0], untrained(size)[1] | {"min_frequency": 3})),
        (tokenizers, "_untrained", other_split),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(target, name, value)
            assert find_tokenizer(config, corpus, tmp_path) is None, name
    assert find_tokenizer(config, corpus, tmp_path) is not None


def test_a_tokenizer_that_may_not_be_read_is_not_said_to_be_damaged(
    tmp_path: Path,
) -> None:
    corpus = open_corpus(files_of(tmp_path / "a", train="some text", test="x"))
    open_tokenizer(shipped("tokenizer", "bpe"), corpus, tmp_path)
    (kept,) = (tmp_path / "tokenizers").iterdir()
    kept.unlink()
    kept.mkdir()  # what root, too, may not read as a file
    with pytest.raises(UserError, match=rf"{kept.name} cannot be read: Is a directory\.$"):
        open_tokenizer(shipped("tokenizer", "bpe"), corpus, tmp_path)


def test_a_damaged_trained_tokenizer_is_named(tmp_path: Path) -> None:
    corpus = open_corpus(files_of(tmp_path / "a", train="some text", test="x"))
    open_tokenizer(shipped("tokenizer", "bpe"), corpus, tmp_path)
    (kept,) = (tmp_path / "tokenizers").iterdir()
    kept.write_text(kept.read_text()[:100])
    with pytest.raises(UserError, match=f"{kept.name} is not a tokenizer that posbench saved[\\s\\S]*Delete it"):
        open_tokenizer(shipped("tokenizer", "bpe"), corpus, tmp_path)


@pytest.mark.parametrize(
    ("tokenizer", "own", "message"),
    [
        ("bpe", {"vocab_size": 256}, r"tokenizer\.vocab_size=256 is not a whole number of at least 257"),
        ("bpe", {"vocab_size": 10**11}, r"tokenizer\.vocab_size=100000000000 must be 4,194,304 or less"),
        ("bpe", {"vocab_size": "2k"}, r"tokenizer\.vocab_size=2k"),
        ("bpe", {"vocabsize": 300}, "no setting of tokenizer=bpe 'vocabsize'. Did you mean 'vocab_size'"),
        ("bpe", {"kind": "bp"}, "no kind of tokenizer 'bp'. Did you mean 'bpe'"),
        ("file", {}, r"needs tokenizer\.path=FILE"),
        ("file", {"path": "no/such.json"}, r"no file no/such\.json"),
        ("file", {"path": 3}, "no file 3"),
        ("file", {"path": ["a.json"]}, r"tokenizer\.path takes one value"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tokenizer: str, own: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        of(tokenizer, **own)


# --- Any tokenizer.json ------------------------------------------------------------------------------------------


def test_a_file_without_an_end_token_gets_an_id_of_its_own(tmp_path: Path) -> None:
    """Words 0, 1, 2 and an added token 3: the end is 4."""
    made = of("file", path=word_level(tmp_path / "words.json", {"a": 0, "b": 1, "?": 2}, s=True))
    assert (made.end, made.vocab_size, made.name) == (4, 5, "words")
    assert made.encode("a b a")[0].tolist() == [0, 1, 0]
    assert made.decode([0, 4, 1]) == f"a{END}b"


@pytest.mark.parametrize("special", [True, False])
def test_the_end_token_of_a_file_is_never_made_of_text(tmp_path: Path, special: bool) -> None:
    """Its name in a text is an unknown word, whether or not the file calls it special."""
    path = word_level(tmp_path / "words.json", {"a": 0, "b": 1, "?": 2}, end=special)
    made = of("file", path=path, end="<end>")
    assert (made.end, made.vocab_size) == (3, 4)
    assert made.encode("a <end> b")[0].tolist() == [0, 2, 1]
    assert made.decode([0, 3]) == "a<end>"


def test_an_end_token_that_is_a_common_word_is_refused_when_it_occurs(tmp_path: Path) -> None:
    made = of("file", path=word_level(tmp_path / "words.json", {"a": 0, "b": 1, "?": 2}), end="b")
    with pytest.raises(UserError, match="'words' makes its end token of a text"):
        made.encode("a b")


def test_a_file_that_lacks_the_end_token_names_the_nearest(tmp_path: Path) -> None:
    path = word_level(tmp_path / "words.json", {"a": 0, "?": 1}, endoftext=True)
    with pytest.raises(UserError, match=r"no token '<endoftxt>'\.\nDid you mean tokenizer\.end='<endoftext>'"):
        of("file", path=path, end="<endoftxt>")


def test_a_file_neither_cuts_nor_fills_nor_adds(tmp_path: Path) -> None:
    """A file made for a model of 4 tokens that begins each text with <s>: here the text is all there is."""
    path = Path(word_level(tmp_path / "words.json", {"a": 0, "b": 1, "?": 2, "<s>": 3}))
    made = HFTokenizer.from_file(str(path))
    made.enable_truncation(4)
    made.enable_padding(length=20, pad_id=2)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    made.save(str(path))
    assert of("file", path=str(path)).encode("a b a b a b")[0].tolist() == [0, 1, 0, 1, 0, 1]


def test_bytes_add_up_when_a_file_changes_the_text(tmp_path: Path) -> None:
    """Lower case, accents stripped, blanks dropped, a character shared by three tokens: still the bytes of the text."""
    words = word_level(tmp_path / "words.json", {"é": 0, "eve": 1, "?": 2})
    made = HFTokenizer.from_file(words)
    made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    made.save(words)
    ids, nbytes = of("file", path=words).encode("  Ève  é\n")
    assert ids.tolist() == [1, 2]
    assert nbytes.tolist() == [2 + 4, 2 + 2 + 1]  # blanks before and the word; blanks, "é" and the line end
    level = HFTokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    level.pre_tokenizer, level.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    level.save(str(tmp_path / "level.json"))
    ids, nbytes = of("file", path=str(tmp_path / "level.json")).encode("a日b")
    assert (len(ids), nbytes.tolist()) == (5, [1, 3, 0, 0, 1])


def test_ids_above_65535_are_kept(tmp_path: Path) -> None:
    """DATA-3: as two bytes, 70000 would be 4464."""
    path = word_level(tmp_path / "words.json", {f"w{i}": i for i in range(70000)})
    made = of("file", path=path)
    assert (made.vocab_size, made.end, made.dtype) == (70001, 70000, np.uint32)
    assert made.encode("w69999 w4463 w65536")[0].tolist() == [69999, 4463, 65536]
    assert [ids_dtype(size) for size in (65536, 65537)] == [np.uint16, np.uint32]


def test_a_word_that_a_file_does_not_know_is_said(tmp_path: Path) -> None:
    made = of("file", path=word_level(tmp_path / "words.json", {"a": 0}))
    with pytest.raises(UserError, match="tokenizer 'words' cannot encode the text"):
        made.encode("a b")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 1}', "\xff"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content, encoding="latin1")
    with pytest.raises(UserError, match=r"broken\.json is not a tokenizer\.json"):
        of("file", path=str(path))
    with pytest.raises(UserError, match=r"broken\.json is not a tokenizer that posbench saved"):
        Tokenizer.load(path)


def test_a_file_is_called_by_its_folder_when_its_name_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "gpt2").mkdir()
    assert of("file", path=word_level(tmp_path / "gpt2" / "tokenizer.json", {"a": 0})).name == "gpt2"


# --- Saving ------------------------------------------------------------------------------------------------------


def test_a_saved_tokenizer_is_the_same(tmp_path: Path, bpe: Tokenizer) -> None:
    words = of("file", path=word_level(tmp_path / "words.json", {"a": 0, "b": 1, "?": 2}, s=True), end="<s>")
    for made in (bpe, words, of("bytes")):
        made.save(tmp_path / "saved.json")
        again = Tokenizer.load(tmp_path / "saved.json")
        assert (again.fingerprint, again.name, again.end) == (made.fingerprint, made.name, made.end)
        assert again.encode("a <s> b")[0].tolist() == made.encode("a <s> b")[0].tolist()


def test_the_fingerprint_is_of_what_decides_the_ids(tmp_path: Path, bpe: Tokenizer) -> None:
    path = word_level(tmp_path / "words.json", {"a": 0, "b": 1, "?": 2}, s=True, e=True)
    made = [of("file", path=path), of("file", path=path, end="<s>"), of("file", path=path, end="<e>"), bpe, of("bytes")]
    assert len({each.fingerprint for each in made}) == 5
    (tmp_path / "renamed.json").write_bytes(Path(path).read_bytes())
    assert of("file", path=str(tmp_path / "renamed.json")).fingerprint == made[0].fingerprint
