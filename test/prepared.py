"""Running data/prepare.py and reading what it wrote."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "data" / "prepare.py"
sys.path.insert(0, str(SCRIPT.parent))
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


def prepare(*words, code=0, stdin=b"", cwd=None):
    """Runs prepare.py; returns what it printed, and then what it said on stderr. A failure is one line."""
    command = [sys.executable, SCRIPT, *map(str, words)]
    result = subprocess.run(command, input=stdin, capture_output=True, timeout=120, cwd=cwd)
    out, error = result.stdout.decode(), result.stderr.decode()
    assert result.returncode == code, out + error
    assert len(error.splitlines()) == (code != 0) and (code == 0 or out == "")
    return out + error


def shard(path):
    """The tokens of a shard, after checking its header."""
    data = Path(path).read_bytes()
    header = np.frombuffer(data[:1024], "<i4")
    tokens = np.frombuffer(data[1024:], "<u2")
    assert header[:3].tolist() == [20240520, 1, len(tokens)] and not header[3:].any()
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
