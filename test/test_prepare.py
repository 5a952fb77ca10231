"""data/prepare.py: text to token shards."""

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPT = REPOSITORY / "data" / "prepare.py"
GPT2 = REPOSITORY.parent / "shared" / "data" / "gpt2"  # present on some machines only
sys.path.insert(0, str(SCRIPT.parent))

import prepare_shards  # noqa: E402
import prepare_text  # noqa: E402
import prepare_tokenizers  # noqa: E402

END = 262  # of the tiny vocabulary


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a vocabulary of 256 bytes, six merges and the end of text."""
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    symbols = {b: chr(b) for b in printable}
    symbols |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in symbols)}
    space, newline = symbols[ord(" ")], symbols[ord("\n")]
    merges = [("t", "h"), ("th", "e"), (space, "the"), ("a", "a"), (space, space), (newline, newline)]
    ordered = printable + [b for b in range(256) if b not in printable]
    tokens = [symbols[b] for b in ordered] + [a + b for a, b in merges] + ["<|endoftext|>"]
    folder = tmp_path_factory.mktemp("tiny_bpe")
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    (folder / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    return folder


@pytest.fixture(scope="session")
def byte_ids(tiny):
    ids = json.loads((tiny / "encoder.json").read_text())
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    return {b: i for i, b in enumerate(printable + [b for b in range(256) if b not in printable])} if ids["the"] == 257 else None


def prepare(*words, code=0, stdin=b""):
    result = subprocess.run([sys.executable, SCRIPT, *map(str, words)], input=stdin, capture_output=True, timeout=120)
    output = result.stdout.decode() + result.stderr.decode()
    assert result.returncode == code, output
    assert "Traceback" not in output
    return output


def shard(path):
    """The tokens of a shard, after checking its header."""
    data = Path(path).read_bytes()
    header = np.frombuffer(data[:1024], "<i4")
    tokens = np.frombuffer(data[1024:], "<u2")
    assert header[:3].tolist() == [20240520, 1, len(tokens)] and not header[3:].any()
    return tokens


def stream(folder):
    """All tokens of a set, training shards first, and its meta.json, after checking one against the other."""
    meta = json.loads((folder / "meta.json").read_text())
    assert sorted(p.name for p in folder.iterdir()) == sorted(["meta.json"] + [s["file"] for s in meta["shards"]])
    shards = [shard(folder / s["file"]) for s in meta["shards"]]
    for tokens, described in zip(shards, meta["shards"], strict=True):
        assert len(tokens) == described["tokens"]
        assert hashlib.sha256((folder / described["file"]).read_bytes()).hexdigest() == described["sha256"]
    assert sum(map(len, shards)) == meta["train_tokens"] + meta["val_tokens"]
    return np.concatenate(shards), meta


def nothing_left(folder):
    return not folder.exists() or not list(folder.iterdir())


# ------------------------------------------------------------------------------------------------------------------- bytes


def test_bytes_are_tokens_and_the_end_of_the_text_is_validation(tmp_path):
    text = bytes(range(256)) * 3 + b"end"
    (tmp_path / "a.txt").write_bytes(text)
    output = prepare("text", "--out", tmp_path / "out", "--tokenizer", "bytes", tmp_path / "a.txt")
    tokens, meta = stream(tmp_path / "out")
    assert tokens.tolist() == list(text)
    assert (meta["train_tokens"], meta["val_tokens"]) == (693, 78)  # floor(0.9 * 771)
    assert meta["vocab"] == 256 and meta["tokenizer"] == "bytes"
    assert meta["sources"] == [{"name": str(tmp_path / "a.txt"), "bytes": 771, "sha256": hashlib.sha256(text).hexdigest()}]
    assert f"data.train={tmp_path}/out/train_*.bin" in output and "model.vocab=256" in output and "data.block=window" in output


@pytest.mark.parametrize(("value", "train"), [("0", 1000), ("1", 0), ("0.1", 900), ("0.3", 700), ("0.0005", 999)])
def test_validation_fraction_is_exact(tmp_path, value, train):
    prepare("text", "--out", tmp_path, "--tokenizer", "bytes", "--val-fraction", value, "-", stdin=b"x" * 1000)
    _, meta = stream(tmp_path)
    assert meta["train_tokens"] == train
    assert (tmp_path / "train_000000.bin").exists() == (train > 0)
    assert (tmp_path / "val_000000.bin").exists() == (train < 1000)


def test_shards_hold_the_tokens_asked_for_and_join_to_the_stream(tmp_path):
    text = random.Random(1).randbytes(1003)
    prepare("text", "--out", tmp_path, "--tokenizer", "bytes", "--shard-tokens", 100, "-", stdin=text)
    tokens, meta = stream(tmp_path)
    assert tokens.tolist() == list(text)
    assert [s["tokens"] for s in meta["shards"]] == [100] * 9 + [2] + [100, 1]
    assert [s["file"] for s in meta["shards"][8:]] == ["train_000008.bin", "train_000009.bin", "val_000000.bin", "val_000001.bin"]


def test_files_gz_and_standard_input_are_joined_in_the_order_given(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"first ")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"second ") + gzip.compress(b"member "))
    prepare("text", "--out", tmp_path / "o", "--tokenizer", "bytes", tmp_path / "a.txt", "-", tmp_path / "b.gz", stdin=b"piped ")
    tokens, meta = stream(tmp_path / "o")
    assert bytes(tokens.astype(np.uint8)) == b"first piped second member "
    assert [s["bytes"] for s in meta["sources"]] == [6, 6, 14]


def test_named_pipes_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", f"printf text > '{tmp_path}/pipe'"])
    prepare("text", "--out", tmp_path / "o", "--tokenizer", "bytes", tmp_path / "pipe")
    assert writer.wait(timeout=10) == 0
    assert bytes(stream(tmp_path / "o")[0].astype(np.uint8)) == b"text"


# -------------------------------------------------------------------------------------------------------------------- gpt2


def test_end_of_text_stands_before_each_document(tmp_path, tiny, byte_ids):
    (tmp_path / "a.txt").write_text("the the")
    (tmp_path / "b.txt").write_text("aaab<|endoftext|>")
    prepare("text", "--out", tmp_path / "o", "--tokenizer", "gpt2", "--tokenizer-dir", tiny, tmp_path / "a.txt", tmp_path / "b.txt")
    tokens, meta = stream(tmp_path / "o")
    spelled = [byte_ids[b] for b in b"<|endoftext|>"]  # in the text it is text
    assert tokens.tolist() == [END, 257, 258, END, 259, byte_ids[ord("a")], byte_ids[ord("b")], *spelled]
    assert meta["documents"] == 2 and meta["vocab"] == 263 and meta["end_of_text"] == END


def test_separator_splits_a_file_into_documents(tmp_path, tiny, byte_ids):
    a, b, c, newline = (byte_ids[x] for x in b"abc\n")
    for separator, text in [("<|endoftext|>", b"a<|endoftext|>b\n<|endoftext|><|endoftext|>c<|endoftext|>"), (r"\n\n", b"a\n\nb\n\n\n\n\nc\n\n")]:
        options = ["--tokenizer", "gpt2", "--tokenizer-dir", tiny, "--document-separator", separator, "--overwrite"]
        output = prepare("text", "--out", tmp_path, *options, "-", stdin=text)
        tokens, meta = stream(tmp_path)
        want = [END, a, END, b, newline, END, c] if separator != r"\n\n" else [END, a, END, b, END, newline, c]
        assert tokens.tolist() == want
        assert meta["documents"] == 3
        assert "skipped: 1 empty document" in output


def test_pieces_of_any_size_give_the_same_documents():
    chosen = random.Random(2)
    for _ in range(300):
        text = "".join(chosen.choices("ab-", k=chosen.randrange(0, 30)))
        separator = chosen.choice(["-", "--", "-a-"])
        want = text.split(separator)
        if not want[-1] and len(want) > 1:
            want.pop()
        pieces = []
        while text:
            size = chosen.randrange(1, 6)
            pieces.append(text[:size])
            text = text[size:]
        documents = [""]
        for piece in prepare_text.split_documents(pieces, separator):
            if piece is None:
                documents.append("")
            else:
                documents[-1] += piece
        assert documents.pop() == ""
        assert documents == want


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
        texts = [part for start in range(0, len(text), 50) for part in cutter.add(text[start : start + 50])] + list(cutter.finish())
        assert "".join(texts) == text
        assert max(map(len, texts)) <= 24
        compared += cutter.forced_cuts == 0
        if cutter.forced_cuts == 0:
            assert sum(tokenizer.encode_batch(texts), []) == tokenizer.encode_batch([text])[0]
    assert compared > 20
    other = prepare_tokenizers.TextCutter()
    assert list(other.add(text)) + list(other.finish()) == texts


def test_published_gpt2_tokens(tmp_path):
    if not GPT2.is_dir():
        pytest.skip("GPT-2's vocabulary is not on this machine")
    golden = json.loads((GPT2 / "golden.json").read_text())
    tokenizer = prepare_tokenizers.Gpt2Tokenizer(GPT2)
    assert (tokenizer.vocabulary, tokenizer.end_of_text) == (50257, 50256)
    assert tokenizer.encode_batch([case["text"] for case in golden]) == [case["tokens"] for case in golden]
    for i, case in enumerate(golden):
        (tmp_path / f"{i:03}.txt").write_bytes(case["text"].encode())
    prepare("text", "--out", tmp_path / "o", "--tokenizer", "gpt2", "--tokenizer-dir", GPT2, *sorted(tmp_path.glob("*.txt")))
    assert stream(tmp_path / "o")[0].tolist() == [t for case in golden if case["tokens"] for t in [50256, *case["tokens"]]]


# -------------------------------------------------------------------------------------------------------------- odd input


def test_invalid_utf8_is_replaced_counted_and_located(tmp_path):
    name = str(tmp_path / "a.txt")
    ok = b"x" * (prepare_text.READ_BYTES - 1)
    for bad, sequences in [(b"\xff\xfe", 2), (b"\xe2\x82", 1), (b"\xc0\x80", 2), (b"\xed\xa0\x80", 3), (b"\xf0\x9f\x98", 1), ("é".encode(), 0)]:
        for data in (b"ab" + bad + b"cd", ok + bad + b"cd", b"ab" + bad, ok + bad):  # within a block, across two, at the end
            Path(name).write_bytes(data)
            findings = prepare_text.Findings()
            with prepare_text.progress_bar([name]) as bar:
                text = "".join(prepare_text.decoded(name, bar, findings))
            assert text == data.decode(errors="replace")
            assert findings.invalid == sequences
            assert findings.first_invalid == (f"{name} at byte {data.index(bad)}" if sequences else "")


def test_invalid_utf8_is_reported(tmp_path, tiny, byte_ids):
    (tmp_path / "a.txt").write_bytes(b"good")
    (tmp_path / "b.txt").write_bytes(b"b\xffb\xff")
    output = prepare("text", "--out", tmp_path / "o", "--tokenizer", "gpt2", "--tokenizer-dir", tiny, tmp_path / "a.txt", tmp_path / "b.txt")
    assert f"2 invalid UTF-8 sequences, the first in {tmp_path / 'b.txt'} at byte 1" in output
    b, replacement = byte_ids[ord("b")], [byte_ids[x] for x in "\ufffd".encode()]
    assert stream(tmp_path / "o")[0].tolist()[5:] == [END, b, *replacement, b, *replacement]


def test_bytes_keep_what_is_no_utf8(tmp_path):
    prepare("text", "--out", tmp_path, "--tokenizer", "bytes", "-", stdin=b"a\xff\x00\r\nb")
    assert stream(tmp_path)[0].tolist() == list(b"a\xff\x00\r\nb")


def test_nul_crlf_and_empty_files_are_kept_or_skipped_and_counted(tmp_path, tiny, byte_ids):
    text = b"a\0\0\r\nb\r\nc\r"
    edge = b"y" * (prepare_text.READ_BYTES - 1) + b"\r\n"  # CRLF across two blocks
    for name, data in [("a", text), ("empty1", b""), ("edge", edge), ("empty2", b"")]:
        (tmp_path / name).write_bytes(data)
    files = [tmp_path / name for name in ("a", "empty1", "edge", "empty2")]
    for options in (["bytes"], ["gpt2", "--tokenizer-dir", tiny]):
        output = prepare("text", "--out", tmp_path / "o", "--overwrite", *files, "--tokenizer", *options)
        tokens, meta = stream(tmp_path / "o")
        assert "kept: 2 NUL bytes" in output and "kept: 3 CRLF line ends" in output and "skipped: 2 empty documents" in output
        assert meta["documents"] == 2
    assert tokens[: len(text) + 2].tolist() == [END, *(byte_ids[b] for b in text), END]


def test_one_line_of_50_mb_is_fast_and_needs_little_memory(tmp_path, tiny):
    with open(tmp_path / "line.txt", "wb") as file:
        for _ in range(25):
            file.write(b"the th " * 142_857 + b"x" * 1_000_000)
    script = f"""if True:
        import resource, sys
        sys.argv = ["prepare.py", "text", "--out", {str(tmp_path / "o")!r}, "--tokenizer", "gpt2", "--tokenizer-dir", {str(tiny)!r},
                    {str(tmp_path / "line.txt")!r}]
        sys.path.insert(0, {str(SCRIPT.parent)!r})
        import prepare
        code = prepare.main()
        print("peak MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        sys.exit(code)"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    tokens, _ = stream(tmp_path / "o")
    assert "cut: " in result.stdout
    # "the" " th" "the": 257, then " " "th" " the"
    assert len(tokens) == 1 + 25 * (1 + 3 * 142_857 - 1 + 1_000_000 + 1)
    assert int(result.stdout.split("peak MB")[1]) < 600


@pytest.mark.parametrize("damage", ["short", "empty", "no gzip", "flipped"])
def test_damaged_gz_is_refused_and_leaves_nothing(tmp_path, damage):
    data = gzip.compress(random.Random(4).randbytes(3_000_000))
    (tmp_path / "a.txt").write_bytes(b"whole")
    damaged = {"short": data[:-9], "empty": b"", "no gzip": b"plain text", "flipped": data[:50_000] + bytes([data[50_000] ^ 255]) + data[50_001:]}
    (tmp_path / "b.txt.gz").write_bytes(damaged[damage])
    output = prepare("text", "--out", tmp_path / "o", "--tokenizer", "bytes", tmp_path / "a.txt", tmp_path / "b.txt.gz", code=3)
    assert "b.txt.gz" in output and "compressed data" in output
    assert nothing_left(tmp_path / "o")


def test_files_that_cannot_be_read_are_refused_before_anything_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    for name, part in [("missing", "no such file"), ("folder", "is a folder"), ("empty", "no text")]:
        output = prepare("text", "--out", tmp_path / "o", "--tokenizer", "bytes", tmp_path / name, code=3)
        assert str(tmp_path / name) in output and part in output
        assert nothing_left(tmp_path / "o")


def test_vocabularies_that_cannot_be_used_are_refused(tmp_path, tiny):
    merges, ids = (tiny / "vocab.bpe").read_text(encoding="utf-8"), json.loads((tiny / "encoder.json").read_text())
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
        output = prepare("text", "--out", tmp_path / "o", "--tokenizer", "gpt2", "--tokenizer-dir", folder, "-", stdin=b"x", code=3)
        assert part in output
        assert nothing_left(tmp_path / "o")


# ------------------------------------------------------------------------------------------------------- use and interruption


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
    ]:
        assert part in prepare(*words, code=2, stdin=b"text")
        assert nothing_left(tmp_path / "o")
    assert "Exit codes" in prepare("--help")
    assert "--val-fraction" in prepare("text", "--help")


def test_same_input_gives_the_same_bytes(tmp_path, tiny):
    (tmp_path / "a.txt").write_bytes(random.Random(5).randbytes(300_000))
    (tmp_path / "b.txt").write_text("the end")
    options = ["--tokenizer", "gpt2", "--tokenizer-dir", tiny, "--shard-tokens", 50_000, tmp_path / "a.txt", tmp_path / "b.txt"]
    contents = []
    for out in ("o1", "o2"):
        prepare("text", "--out", tmp_path / out, *options)
        contents.append({p.name: p.read_bytes() for p in (tmp_path / out).iterdir()})
    assert contents[0] == contents[1]


def test_shards_that_are_there_are_replaced_only_if_asked(tmp_path):
    words = ["text", "--out", tmp_path, "--tokenizer", "bytes", "--shard-tokens", "10", "-"]
    prepare(*words, stdin=b"x" * 100)
    (tmp_path / "notes.txt").write_text("mine")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert "--overwrite" in prepare(*words, stdin=b"y" * 50, code=2)
    prepare(*words[:-1], "--overwrite", "-", tmp_path / "missing", stdin=b"y" * 50, code=3)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    prepare(*words, "--overwrite", stdin=b"y" * 50)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "notes.txt").unlink()
    assert stream(tmp_path)[0].tolist() == list(b"y" * 50)


def wait_until(condition):
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_shard_and_the_next_one_starts_afresh(tmp_path, stop):
    words = ["text", "--out", tmp_path, "--tokenizer", "bytes", "-"]
    process = subprocess.Popen([sys.executable, SCRIPT, *map(str, words)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"x" * (prepare_text.READ_BYTES + 1))
    process.stdin.flush()
    wait_until(lambda: (tmp_path / "tokens.partial").exists() and (tmp_path / "tokens.partial").stat().st_size > 0)
    assert "another prepare.py" in prepare(*words, stdin=b"y", code=2)
    process.send_signal(stop)
    _, error = process.communicate(timeout=30)
    assert not list(tmp_path.glob("*.bin"))
    if stop != signal.SIGKILL:
        assert process.returncode == 1 and b"interrupted" in error and nothing_left(tmp_path)
    prepare(*words, stdin=b"again")
    assert stream(tmp_path)[0].tolist() == list(b"again")


def test_a_run_killed_between_two_renames_leaves_a_set_that_the_next_run_clears(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    renamed = []

    def rename(source, target):
        if len(renamed) == 2:
            raise Killed
        renamed.append(target)
        os.replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(prepare_shards.os, "rename", rename)
        patch.setattr(prepare_shards.ShardFolder, "__exit__", lambda *_: None)  # a killed process cleans nothing up
        folder = prepare_shards.ShardFolder(tmp_path, overwrite=False)
        with pytest.raises(Killed), folder:
            folder.append(np.arange(100, dtype=np.uint16))
            folder.publish([("train", 90), ("val", 10)], 30, {})
        folder.spool.close()
        os.close(folder.lock)
    assert len(list(tmp_path.glob("*.bin"))) == 2 and not (tmp_path / "meta.json").exists()
    prepare("text", "--out", tmp_path, "--tokenizer", "bytes", "-", stdin=b"again")
    assert stream(tmp_path)[0].tolist() == list(b"again")


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path):
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); import prepare; sys.exit(prepare.main())"
    words = ["text", "--out", str(tmp_path), "--tokenizer", "bytes", "-"]
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parent)}
    result = subprocess.run([sys.executable, "-c", limit, *words], input=b"x" * 300_000, capture_output=True, env=environment, timeout=60)
    assert result.returncode == 1
    assert b"File too large" in result.stderr and str(tmp_path).encode() in result.stderr and b"Traceback" not in result.stderr
    assert nothing_left(tmp_path)


def test_a_reader_that_leaves_early_does_no_harm(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    command = f"'{sys.executable}' '{SCRIPT}' text --out '{tmp_path}/o' --tokenizer bytes '{tmp_path}/a.txt' | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, b"")
    stream(tmp_path / "o")
