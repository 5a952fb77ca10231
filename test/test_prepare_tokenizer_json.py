"""data/prepare.py with a tokenizer.json."""

import json
import random
import re

import numpy as np
import pytest

from conftest import REPOSITORY
from prepared import contents, nothing_left, prepare, stream

import prepare_tokenizer_json
from prepare_tokenizer_json import LLAMA_3, QWEN_2, JsonTokenizer

tokenizers = pytest.importorskip("tokenizers")

TEXT = "the cat and the dog's\n\n  hat 1234567 --- <|endoftext|> naïve 日本!\n\nthe end </s>"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def split_by(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}


def byte_level(folder, pre_tokenizer=BYTE_LEVEL, end="<|endoftext|>", end_id=None, **changes):
    """A small byte-level BPE in folder/tokenizer.json, with merges across and within words."""
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("!", "Ċ"), ("Ċ", "Ċ"), ("Ġ", "Ġ"), ("d", "Ġ")]
    merges += [("1", "2")]
    vocab = {token: i for i, token in enumerate(symbols + [a + b for a, b in merges])}
    vocab[end] = end_id or len(vocab)
    settings = {
        "version": "1.0", "truncation": {"max_length": 5, "stride": 0, "strategy": "LongestFirst",
                                         "direction": "Right"},
        "padding": None, "normalizer": None, "pre_tokenizer": pre_tokenizer, "post_processor": None,
        "decoder": None,
        "added_tokens": [{"id": vocab[end], "content": end, "special": True, "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False}],
        "model": {"type": "BPE", "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges], "dropout": 0.5},
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(settings | changes))
    return folder / "tokenizer.json"


def plain(path, text):
    """The tokens of a text by the package alone."""
    settings = json.loads(path.read_text())
    settings["truncation"], settings["model"]["dropout"], settings["added_tokens"] = None, None, []
    return tokenizers.Tokenizer.from_str(json.dumps(settings)).encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("by_folder", [True, False])
def test_documents_are_encoded_by_it_and_it_is_kept(tmp_path, by_folder):
    path = byte_level(tmp_path / "t")
    (tmp_path / "a").write_text(TEXT)
    (tmp_path / "b").write_text("the other")
    words = ["text", "--out", tmp_path / "o", "--tokenizer", tmp_path / "t" if by_folder else path]
    prepare(*words, "--val-fraction", 0, tmp_path / "a", tmp_path / "b")
    tokens, meta = stream(tmp_path / "o")
    end = meta["end_of_text"]
    assert tokens.tolist() == [end, *plain(path, TEXT), end, *plain(path, "the other")]
    assert (meta["tokenizer"], end, meta["vocab"], meta["token_bytes"]) == ("tokenizer.json", 264, 265, 2)
    assert contents(tmp_path / "o")["tokenizer/tokenizer.json"] == path.read_bytes()
    # It serves in place.
    words = ["--tokenizer", tmp_path / "o" / "tokenizer", "--overwrite", "--val-fraction", 0, tmp_path / "b"]
    prepare("text", "--out", tmp_path / "o", *words)
    assert len(stream(tmp_path / "o")[0]) == 1 + len(plain(path, "the other"))


def test_large_vocabularies_are_written_in_32_bits(tmp_path):
    (tmp_path / "a").write_text(TEXT * 40)
    for end, magic, size in [(65_535, 20240520, 2), (65_536, 20240801, 4), (128_001, 20240801, 4)]:
        path = byte_level(tmp_path / "t", end_id=end)
        words = ["--tokenizer", path, "--shard-tokens", 1000, "--overwrite", "--val-fraction", "0.25"]
        prepare("text", "--out", tmp_path / "o", *words, tmp_path / "a")
        tokens, meta = stream(tmp_path / "o")
        assert tokens.tolist() == [end, *plain(path, TEXT * 40)]
        data = (tmp_path / "o" / "train_000000.bin").read_bytes()
        assert len(data) == 1024 + 1000 * size and int.from_bytes(data[:4], "little") == magic
        assert (meta["vocab"], meta["token_bytes"]) == (end + 1, size) and meta["val_tokens"] > 500


def test_gpt2_as_a_tokenizer_json_gives_the_shards_of_gpt2(tmp_path):
    """The two packages agree, on English and on what prepare.py is not asked to read."""
    gpt2 = REPOSITORY.parent / "shared" / "data" / "gpt2"  # present on some machines only
    if not gpt2.is_dir():
        pytest.skip("GPT-2's vocabulary is not on this machine")
    merges = (gpt2 / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    ids = json.loads((gpt2 / "encoder.json").read_text())
    whole = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [tuple(line.split()) for line in merges]))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.add_special_tokens(["<|endoftext|>"])
    whole.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a").write_text((REPOSITORY / "README.md").read_text() * 4 + TEXT)
    (tmp_path / "b").write_bytes(random.Random(6).randbytes(200_000))
    files = [tmp_path / "a", tmp_path / "b"]
    prepare("text", "--out", tmp_path / "json", "--tokenizer", tmp_path, *files)
    prepare("text", "--out", tmp_path / "gpt2", "--tokenizer", "gpt2", "--tokenizer-dir", gpt2, *files)
    assert np.array_equal(stream(tmp_path / "json")[0], stream(tmp_path / "gpt2")[0])


def cut_and_whole(path, monkeypatch, limit=64):
    """Whether the texts that random documents are cut into give the tokens of the whole, of those that can
    be cut."""
    monkeypatch.setattr("prepare_tokenizers.CUT_CHARACTERS", limit)
    tokenizer, chosen, equal = JsonTokenizer(path), random.Random(4), []
    words = ["the", " the", "  ", "!", "\n", "\n\n", "!\n", "\t", "and ", "don't", "日本", "\u00a0", "12345"]
    for _ in range(150):
        text = "".join(chosen.choices(words, k=60))
        cutter = tokenizer.new_cutter()
        texts = [*cutter.add(text), *cutter.finish()]
        if cutter.forced_cuts == 0:
            parts = tokenizer.encode([(part, False) for part in texts])
            equal.append(np.array_equal(parts, tokenizer.encode([(text, False)])))
        assert "".join(texts) == text
    assert len(equal) > 100
    return tokenizer, all(equal), texts


@pytest.mark.parametrize("pattern", [None, LLAMA_3, QWEN_2], ids=["GPT-2", "Llama 3", "Qwen 2"])
def test_a_document_may_be_cut_where_no_token_changes(tmp_path, monkeypatch, pattern):
    path = byte_level(tmp_path / "t", split_by(pattern) if pattern else BYTE_LEVEL)
    tokenizer, equal, texts = cut_and_whole(path, monkeypatch)
    assert tokenizer.cuts_are_safe and equal and len(texts) > 1


UNSAFE = [
    (None, {}), (BYTE_LEVEL | {"use_regex": False}, {}), (BYTE_LEVEL | {"add_prefix_space": True}, {}),
    (METASPACE, {}), (split_by(r"\w+ ?"), {}), (split_by(LLAMA_3) | {"type": "Sequence"}, {"normalizer":
     {"type": "Prepend", "prepend": "x"}}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(UNSAFE)))
def test_a_document_is_encoded_as_a_whole_where_a_cut_could_change_tokens(tmp_path, monkeypatch, case):
    pre_tokenizer, changes = UNSAFE[case]
    path = byte_level(tmp_path / "t", pre_tokenizer, **changes)
    tokenizer, _, texts = cut_and_whole(path, monkeypatch)
    assert not tokenizer.cuts_are_safe and len(texts) == 1
    monkeypatch.setattr(prepare_tokenizer_json, "WHOLE_CHARACTERS", 1000)
    (tmp_path / "a").write_text("and the " * 124 + "the")
    (tmp_path / "b").write_text("x" * 2500)
    words = ["text", "--out", tmp_path / "o", "--overwrite", "--tokenizer", path, tmp_path / "a"]
    assert "cut:" not in prepare(*words)
    output = prepare(*words, tmp_path / "b")
    assert "  cut: 2 times, in documents of more than 1,000 characters; the tokens at the cut may" in output


def test_the_end_of_text_is_found_or_named(tmp_path):
    (tmp_path / "a").write_text("the")
    words = ["text", "--out", tmp_path / "o", "--overwrite", tmp_path / "a", "--tokenizer"]
    for end in ("<|end_of_text|>", "</s>", "<eos>"):
        prepare(*words, byte_level(tmp_path / "t", end=end))
        assert stream(tmp_path / "o")[1]["end_of_text"] == 264
    path = byte_level(tmp_path / "t", end="<stop>")
    error = prepare(*words, path, code=2)
    assert "none of the usual" in error and "--end-of-text; it may be one of these: <stop>" in error
    prepare(*words, path, "--end-of-text", "<stop>")
    assert stream(tmp_path / "o")[0].tolist()[0] == 264
    assert "--end-of-text <halt>: " in prepare(*words, path, "--end-of-text", "<halt>", code=2)
    for other in ("bytes", "gpt2"):
        assert "--end-of-text: is for" in prepare(*words, other, "--end-of-text", "x", code=2)


def test_an_end_of_text_that_text_can_spell_is_refused(tmp_path):
    vocab = {"[UNK]": 0, "the": 1, "</s>": 2}
    settings = json.loads(byte_level(tmp_path / "t", None).read_text())
    settings |= {"model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}, "added_tokens": []}
    settings["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    (tmp_path / "t" / "tokenizer.json").write_text(json.dumps(settings))
    words = ["text", "--out", tmp_path / "o", "--tokenizer", tmp_path / "t", "-"]
    prepare(*words, stdin=b"the cat the")
    assert stream(tmp_path / "o")[0].tolist() == [2, 1, 0, 1]
    error = prepare(*words, "--overwrite", stdin=b"the </s>", code=3)
    assert "makes the end-of-text token itself out of text that spells it" in error


def test_what_is_no_tokenizer_json_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text('{"model": 3}')
    (tmp_path / "bin").write_bytes(b"\xff\xfe")
    for name, part, code in [
        ("missing", "is neither gpt2 nor bytes", 2), ("empty", "is neither gpt2 nor bytes", 2),
        ("bad.json", "is no tokenizer.json", 3), ("bin", "is no tokenizer.json", 3),
    ]:  # fmt: skip
        words = ["text", "--out", tmp_path / "o", "--tokenizer", tmp_path / name, "-"]
        error = prepare(*words, stdin=b"x", code=code)
        assert part in error and re.search(re.escape(str(tmp_path / name)), error)
        assert nothing_left(tmp_path / "o")
