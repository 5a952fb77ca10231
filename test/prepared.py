"""Running data/prepare.py and reading what it wrote."""

import contextlib
import hashlib
import io
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "data" / "prepare.py"
sys.path[:0] = [str(SCRIPT.parent), str(SCRIPT.parent.parent / "scripts")]

import console  # noqa: E402
import prepare as program  # noqa: E402

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
    (folder / "vocab.bpe").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8"
    )
    (folder / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    return folder


@pytest.fixture(scope="session")
def byte_ids(tiny):
    ids = json.loads((tiny / "encoder.json").read_text())
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    assert ids["the"] == 257
    return {b: i for i, b in enumerate(printable + [b for b in range(256) if b not in printable])}


@contextlib.contextmanager
def as_in_a_process_of_its_own(stdin, cwd):
    """Standard input from bytes, another folder; afterwards all is as before, signals and environment too."""
    handlers = {stop: signal.getsignal(stop) for stop in console.STOPS}
    environment, folder, descriptor = dict(os.environ), os.getcwd(), os.dup(0)
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        try:
            os.dup2(file.fileno(), 0)
            os.chdir(cwd or folder)
            yield
        finally:
            os.dup2(descriptor, 0)
            os.close(descriptor)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            for stop, handler in handlers.items():
                signal.signal(stop, handler)


def prepare(*words, code=0, stdin=b"", cwd=None, notes=0, lines=None):
    """Runs prepare.py, in this process; returns what it printed. A failure is one line on stderr alone, but
    for so many notes before it; or there are so many `lines`."""
    out, error = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2)
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        with as_in_a_process_of_its_own(stdin, cwd):
            returned = program.main([str(word) for word in words])
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, error))
    assert returned == code, printed + said
    assert len(said.splitlines()) == (notes + (code != 0) if lines is None else lines)
    assert code == 0 or printed == ""
    assert said.count("prepare.py: note: ") == notes
    return printed + said


def make_set(out, *words, vocabulary=None, **how):
    """prepare.py text: shards of bytes, or of GPT-2 tokens with the vocabulary in a folder."""
    tokenizer = ["bytes"] if vocabulary is None else ["gpt2", "--tokenizer-dir", vocabulary]
    return prepare("text", "--out", out, "--tokenizer", *tokenizer, *words, **how)


def write_shard(path, tokens, magic=20240520, version=1, count=None):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    Path(path).write_bytes(header.tobytes() + np.asarray(tokens, "<u2").tobytes())


def shard(path):
    """The tokens of a shard, after checking its header."""
    data = Path(path).read_bytes()
    header = np.frombuffer(data[:1024], "<i4")
    wide = header[0] == 20240801
    tokens = np.frombuffer(data[1024:], "<u4" if wide else "<u2")
    assert header[:3].tolist() == [*((20240801, 7) if wide else (20240520, 1)), len(tokens)]
    assert not header[3:].any()
    return tokens


def contents(folder):
    """Every file of a folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stream(folder):
    """All tokens of a set, training shards first, and its meta.json, after checking one against the other."""
    meta = json.loads((folder / "meta.json").read_text())
    listed = meta["shards"] + meta["tokenizer_files"]
    assert sorted(contents(folder)) == sorted(["meta.json"] + [entry["file"] for entry in listed])
    for entry in listed:
        assert hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
    for entry in meta["tokenizer_files"]:
        assert (folder / entry["file"]).stat().st_size == entry["bytes"]
    shards = [shard(folder / entry["file"]) for entry in meta["shards"]]
    assert [len(tokens) for tokens in shards] == [entry["tokens"] for entry in meta["shards"]]
    assert sum(map(len, shards)) == meta["train_tokens"] + meta["val_tokens"]
    return np.concatenate(shards), meta


def nothing_left(folder):
    return not folder.exists() or not list(folder.iterdir())
