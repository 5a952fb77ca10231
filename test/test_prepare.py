"""data/prepare.py: text to token shards."""

import gzip
import hashlib
import json
import os
import random
import subprocess

import numpy as np
import pytest

from conftest import REPOSITORY
from console import ScriptError
from prepared import make_set, END, contents, nothing_left, prepare, stream

import prepare_sources
import prepare_text
import prepare_tokenizers

GPT2 = REPOSITORY.parent / "shared" / "data" / "gpt2"  # present on some machines only


# Bytes


def test_bytes_are_tokens_and_the_end_of_the_text_is_validation(tmp_path):
    text = bytes(range(256)) * 3 + b"end"
    (tmp_path / "a.txt").write_bytes(text)
    output = make_set(tmp_path / "out", tmp_path / "a.txt")
    tokens, meta = stream(tmp_path / "out")
    assert tokens.tolist() == list(text)
    assert (meta["train_tokens"], meta["val_tokens"]) == (693, 78)  # floor(0.9 * 771)
    assert meta["vocab"] == 256 and meta["tokenizer"] == "bytes"
    assert meta["sources"] == [
        {"name": str(tmp_path / "a.txt"), "bytes": 771, "sha256": hashlib.sha256(text).hexdigest()}
    ]
    assert "1 file, 771 bytes, 1 document -> 771 tokens (vocabulary 256)" in output


@pytest.mark.parametrize(
    ("value", "train"), [("0", 1000), ("1", 0), ("0.1", 900), ("0.3", 700), ("0.0005", 999)]
)
def test_validation_fraction_is_exact(tmp_path, value, train):
    make_set(tmp_path, "--val-fraction", value, "-", stdin=b"x" * 1000)
    _, meta = stream(tmp_path)
    assert meta["train_tokens"] == train
    assert (tmp_path / "train_000000.bin").exists() == (train > 0)
    assert (tmp_path / "val_000000.bin").exists() == (train < 1000)


def test_shards_hold_the_tokens_asked_for_and_join_to_the_stream(tmp_path):
    text = random.Random(1).randbytes(1003)
    make_set(tmp_path, "--shard-tokens", 100, "-", stdin=text)
    tokens, meta = stream(tmp_path)
    assert tokens.tolist() == list(text)
    assert [s["tokens"] for s in meta["shards"]] == [100] * 9 + [2] + [100, 1]
    assert [s["file"] for s in meta["shards"][8:]] == [
        "train_000008.bin",
        "train_000009.bin",
        "val_000000.bin",
        "val_000001.bin",
    ]


def test_files_gz_and_standard_input_are_joined_in_the_order_given(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"first ")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"second ") + gzip.compress(b"member "))
    make_set(tmp_path / "o", tmp_path / "a.txt", "-", tmp_path / "b.gz", stdin=b"piped ")
    tokens, meta = stream(tmp_path / "o")
    assert bytes(tokens.astype(np.uint8)) == b"first piped second member "
    assert [s["bytes"] for s in meta["sources"]] == [6, 6, 14]


@pytest.mark.parametrize(("name", "compress"), [("pipe", "cat"), ("pipe.gz", "gzip")])
def test_named_pipes_are_read(tmp_path, name, compress):
    os.mkfifo(tmp_path / name)
    writer = subprocess.Popen(["sh", "-c", f"printf text | {compress} > '{tmp_path}/{name}'"])
    make_set(tmp_path / "o", tmp_path / name)
    assert writer.wait(timeout=300) == 0
    assert bytes(stream(tmp_path / "o")[0].astype(np.uint8)) == b"text"


# GPT-2


def tokens(tokenizer, *texts):
    """Of texts that follow each other within a document."""
    return tokenizer.encode([(text, False) for text in texts]).tolist()


def test_end_of_text_stands_before_each_document(tmp_path, tiny, byte_ids):
    (tmp_path / "a.txt").write_text("the the")
    (tmp_path / "b.txt").write_text("aaab<|endoftext|>")
    make_set(tmp_path / "o", tmp_path / "a.txt", tmp_path / "b.txt", vocabulary=tiny)
    tokens, meta = stream(tmp_path / "o")
    spelled = [byte_ids[b] for b in b"<|endoftext|>"]  # in the text it is text
    assert tokens.tolist() == [END, 257, 258, END, 259, byte_ids[ord("a")], byte_ids[ord("b")], *spelled]
    assert meta["documents"] == 2 and meta["vocab"] == 263 and meta["end_of_text"] == END


def test_separator_splits_a_file_into_documents(tmp_path, tiny, byte_ids):
    a, b, c, newline = (byte_ids[x] for x in b"abc\n")
    for separator, text in [
        ("<|endoftext|>", b"a<|endoftext|>b\n<|endoftext|><|endoftext|>c<|endoftext|>"),
        (r"\n\n", b"a\n\nb\n\n\n\n\nc\n\n"),
    ]:
        options = [
            "--tokenizer",
            "gpt2",
            "--tokenizer-dir",
            tiny,
            "--document-separator",
            separator,
            "--overwrite",
        ]
        output = prepare("text", "--out", tmp_path, *options, "-", stdin=text)
        tokens, meta = stream(tmp_path)
        want = (
            [END, a, END, b, newline, END, c] if separator != r"\n\n" else [END, a, END, b, END, newline, c]
        )
        assert tokens.tolist() == want
        assert meta["documents"] == 3
        assert "skipped: 1 empty document" in output


def test_pieces_of_any_size_give_the_same_documents():
    chosen = random.Random(2)
    for _ in range(300):
        text = "".join(chosen.choices("ab-", k=chosen.randrange(0, 30)))
        separator = chosen.choice(["-", "--", "-a-"])
        want = text.split(separator)
        separators = len(want) - 1
        if not want[-1] and len(want) > 1:
            want.pop()
        pieces = []
        while text:
            size = chosen.randrange(1, 6)
            pieces.append(text[:size])
            text = text[size:]
        documents = [""]
        findings = prepare_sources.Findings()
        for piece in prepare_text.split_documents(pieces, separator, findings):
            if piece is None:
                documents.append("")
            else:
                documents[-1] += piece
        assert documents.pop() == ""
        assert documents == want and findings.separators == separators


def test_cut_text_has_the_tokens_of_the_whole(tiny, monkeypatch):
    monkeypatch.setattr(prepare_tokenizers, "CUT_CHARACTERS", 24)
    tokenizer = prepare_tokenizers.Gpt2Tokenizer(GPT2 if GPT2.is_dir() else tiny)
    chosen = random.Random(3)
    words = [
        "the",
        " the",
        "  ",
        "\n",
        "\n\n",
        "\t",
        " ",
        "don't",
        "we'll",
        "naïve",
        "日本",
        "\u00a0",
        "\u2003",
        "\x1c",
        "3.14",
        "--",
        "\r\n",
        "'",
        "👩‍👧",
    ]
    compared = 0
    for _ in range(200):
        text = "".join(chosen.choices(words, k=30))
        cutter = prepare_tokenizers.TextCutter()
        texts = [
            part for start in range(0, len(text), 50) for part in cutter.add(text[start : start + 50])
        ] + list(cutter.finish())
        assert "".join(texts) == text
        assert max(map(len, texts)) <= 24
        compared += cutter.forced_cuts == 0
        if cutter.forced_cuts == 0:
            assert tokens(tokenizer, *texts) == tokens(tokenizer, text)
    assert compared > 20
    other = prepare_tokenizers.TextCutter()
    assert list(other.add(text)) + list(other.finish()) == texts


def test_published_gpt2_tokens(tmp_path):
    if not GPT2.is_dir():
        pytest.skip("GPT-2's vocabulary is not on this machine")
    golden = json.loads((GPT2 / "golden.json").read_text())
    tokenizer = prepare_tokenizers.Gpt2Tokenizer(GPT2)
    assert (tokenizer.vocabulary, tokenizer.end_of_text) == (50257, 50256)
    assert [tokens(tokenizer, case["text"]) for case in golden] == [case["tokens"] for case in golden]
    for i, case in enumerate(golden):
        (tmp_path / f"{i:03}.txt").write_bytes(case["text"].encode())
    make_set(tmp_path / "o", *sorted(tmp_path.glob("*.txt")), vocabulary=GPT2)
    assert stream(tmp_path / "o")[0].tolist() == [
        t for case in golden if case["tokens"] for t in [50256, *case["tokens"]]
    ]


def test_vocabularies_that_cannot_be_used_are_refused(tmp_path, tiny):
    merges, ids = (
        (tiny / "vocab.bpe").read_text(encoding="utf-8"),
        json.loads((tiny / "encoder.json").read_text()),
    )
    wide = {"merges": merges, "ids": ids | {"<|endoftext|>": 70_000}}
    other = {"merges": merges.replace("a a", "a b"), "ids": ids}
    for case, part in [
        (wide, "65536"),
        (other, "do not belong together"),
        ({"merges": merges, "ids": [1]}, "not a GPT-2 vocabulary"),
        ({}, "vocab.bpe"),
    ]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        if case:
            (folder / "vocab.bpe").write_text(case["merges"], encoding="utf-8")
            (folder / "encoder.json").write_text(json.dumps(case["ids"]))
        output = make_set(tmp_path / "o", "-", stdin=b"x", code=3, vocabulary=folder)
        assert part in output
        assert nothing_left(tmp_path / "o")


def test_the_tokenizers_files_are_kept_beside_the_shards(tmp_path, tiny):
    options = ["--tokenizer", "gpt2", "--tokenizer-dir", tiny]
    prepare("text", "--out", tmp_path / "o", *options, "-", stdin=b"the")
    files = {f"tokenizer/{name}": (tiny / name).read_bytes() for name in ("vocab.bpe", "encoder.json")}
    _, meta = stream(tmp_path / "o")
    assert {name: data for name, data in contents(tmp_path / "o").items() if "/" in name} == files
    assert [entry["file"] for entry in meta["tokenizer_files"]] == list(files)
    # From there they serve as --tokenizer-dir, also in place.
    words = ["text", "--out", tmp_path / "o", "--overwrite", "--tokenizer", "gpt2"]
    prepare(*words, "--tokenizer-dir", tmp_path / "o" / "tokenizer", "-", stdin=b"the the")
    assert len(stream(tmp_path / "o")[0]) == 3
    prepare("text", "--out", tmp_path / "o", "--overwrite", "--tokenizer", "bytes", "-", stdin=b"the")
    assert stream(tmp_path / "o")[1]["tokenizer_files"] == [] and not (tmp_path / "o" / "tokenizer").exists()


def test_the_published_files_come_with_the_published_encoding(tiny, monkeypatch):
    """Without a network: what is asked for, and what is done with it."""
    asked = {}

    def read_file_cached(url, sha256):
        name = url.rpartition("/")[2]
        asked[name] = (url, sha256)
        return (tiny / name).read_bytes()

    encoding, _ = prepare_tokenizers.load_folder(tiny)
    monkeypatch.setattr("tiktoken.get_encoding", {"gpt2": encoding}.__getitem__)
    monkeypatch.setattr("tiktoken.load.read_file_cached", read_file_cached)
    tokenizer = prepare_tokenizers.Gpt2Tokenizer()
    assert tokenizer.files == {name: (tiny / name).read_bytes() for name in ("vocab.bpe", "encoder.json")}
    assert tokenizer.end_of_text == END
    # tiktoken knows the same addresses and checksums
    import inspect

    import tiktoken_ext.openai_public

    source = inspect.getsource(tiktoken_ext.openai_public.gpt2)
    assert all(f'"{word}"' in source for words in asked.values() for word in words) and len(asked) == 2


def test_no_network_is_said_with_the_way_out(monkeypatch):
    def refuse(*_):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("tiktoken.get_encoding", refuse)
    with pytest.raises(ScriptError, match="cannot download .*no route.* --tokenizer-dir") as error:
        prepare_tokenizers.Gpt2Tokenizer()
    assert error.value.code == 1


# Use


def test_wrong_use_exits_with_2_and_says_what_is_allowed(tmp_path):
    good = ["text", "--out", str(tmp_path / "o"), "--tokenizer", "bytes", "-"]
    for words, part in [
        ([], "SOURCE"),
        (["html"], "html"),
        (good[:3] + ["-"], "--tokenizer"),
        (good[:-1], "FILE"),
        (good + ["-"], "standard input"),
        (good + ["--tokenizer", "words"], "words"),
        (good + ["--val-fraction", "1.5"], "1.5"),
        (good + ["--val-fraction", "nan"], "nan"),
        (good + ["--val-fraction", "1e999999999"], "1e999999999"),
        (good + ["--shard-tokens", "0"], "'0'"),
        (good + ["--shard-tokens", "5k"], "5k"),
        (good + ["--shard-tokens", str(2**31)], str(2**31)),
        (good + ["--document-separator", "x"], "--document-separator"),
        (good + ["--tokenizer-dir", "x"], "--tokenizer-dir"),
        (good + ["--unknown"], "--unknown"),
        (["text", "--out", "", "--tokenizer", "bytes", "-"], "--out: is empty"),
        (good + ["--document-separator", ""], "--document-separator"),
        (good[:-1] + ["x\udcff.txt", "--out", "x\udcff"], "--out x\\udcff: holds what cannot"),
    ]:
        assert part in prepare(*words, code=2, stdin=b"text")
        assert nothing_left(tmp_path / "o")
    assert "Exit codes" in prepare("--help")
    assert "--val-fraction" in prepare("text", "--help")


def test_same_input_gives_the_same_bytes(tmp_path, tiny):
    (tmp_path / "a.txt").write_bytes(random.Random(5).randbytes(300_000))
    (tmp_path / "b.txt").write_text("the end")
    options = [
        "--tokenizer",
        "gpt2",
        "--tokenizer-dir",
        tiny,
        "--shard-tokens",
        50_000,
        tmp_path / "a.txt",
        tmp_path / "b.txt",
    ]
    for out in ("o1", "o2"):
        prepare("text", "--out", tmp_path / out, *options)
    assert contents(tmp_path / "o1") == contents(tmp_path / "o2")
