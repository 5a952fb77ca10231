"""data/prepare.py: datasets of the hub, read from a hub on this machine."""

import contextlib
import gzip
import importlib
import io
import json
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub_server import Hub
from prepared import nothing_left, prepare, stream

import prepare_hub
import prepare_pipeline

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def c4_file(*texts):
    """A file as C4 has them: gzip, a line for each document."""
    keys = {"timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/"}
    return gzip.compress("".join(json.dumps({"text": text} | keys) + "\n" for text in texts).encode())


def fineweb_file(*texts):
    """A file as FineWeb has them: snappy, row groups of 1,000, the text beside other columns."""
    columns = {"text": texts, "id": [f"<urn:uuid:{i}>" for i in range(len(texts))]}
    columns |= {"language_score": [0.9] * len(texts), "token_count": [len(text) // 4 for text in texts]}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=1000, compression="snappy")
    return file.getvalue()


C4 = {
    "README.md": b"# C4",
    "en/c4-train.00000-of-00003.json.gz": c4_file("first ", "second "),
    "en/c4-train.00001-of-00003.json.gz": c4_file("third ") + c4_file("fourth "),
    "en/c4-train.00002-of-00003.json.gz": c4_file("fifth "),
    "en/c4-validation.00000-of-00002.json.gz": c4_file("held out"),
    "en/c4-validation.00001-of-00002.json.gz": c4_file("more"),
    "realnewslike/c4-train.00000-of-00001.json.gz": c4_file("news"),
}
BYTES = ["--tokenizer", "bytes"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """No wait between two tries, and nothing said of them."""
    monkeypatch.setattr(prepare_hub, "RETRIES", {"max_retries": 2, "base_wait_time": 0, "max_wait_time": 0})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    prepare_hub.hub()
    importlib.import_module("huggingface_hub.utils").logging.set_verbosity_error()


@contextlib.contextmanager
def serving(monkeypatch, dataset, files, commit=COMMIT):
    with Hub(dataset, files, commit) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def hub(monkeypatch):
    with serving(monkeypatch, "allenai/c4", C4) as server:
        yield server


def texts(folder):
    """(training text, validation text, meta.json) of a set of bytes."""
    tokens, meta = stream(folder)
    data = bytes(tokens.astype(np.uint8)).decode()
    return data[: meta["train_tokens"]], data[meta["train_tokens"] :], meta


def refused(folder, *words, code=1):
    said = prepare(*words, "--out", folder / "o", *BYTES, code=code)
    assert nothing_left(folder / "o")
    return said


def test_c4_comes_from_the_hub_at_the_present_commit(tmp_path, hub):
    prepare("c4", "--out", tmp_path, *BYTES)
    train, val, meta = texts(tmp_path)
    assert (train, val) == ("first second third fourth fifth ", "held out")
    assert meta["source"]["dataset"] == "allenai/c4" and meta["source"]["revision"] == COMMIT
    assert meta["sources"][0]["name"] == "hf://datasets/allenai/c4/en/c4-train.00000-of-00003.json.gz"
    assert meta["sources"][0]["bytes"] == len(C4["en/c4-train.00000-of-00003.json.gz"])
    assert all(COMMIT in path for path in hub.requests[1:] if not path.startswith("/cdn/"))


def test_the_preset_for_c4_is_named(tmp_path, hub):
    hub.files = {path: c4_file("word " * 1000) for path in C4}
    output = prepare("c4", "--out", tmp_path, *BYTES)
    assert "train_gpt_goat --config c4_125m --out runs/" in output.splitlines()[-1]


def test_tokens_end_where_enough_are_taken(tmp_path, hub):
    prepare("c4", "--out", tmp_path, *BYTES, "--max-tokens", 8)
    train, val, meta = texts(tmp_path)
    assert (train, val, meta["documents"]) == ("first se", "held out", 3)


def test_another_subset_revision_or_validation_is_taken(tmp_path, hub):
    hub.revisions["v1"] = "b" * 40
    hub.revisions["b" * 40] = "b" * 40
    prepare(
        "c4",
        "--out",
        tmp_path,
        *BYTES,
        "--subset",
        "realnewslike",
        "--revision",
        "v1",
        "--val-fraction",
        "0.5",
    )
    train, val, meta = texts(tmp_path)
    assert (train, val, meta["source"]["revision"]) == ("ne", "ws", "b" * 40)


@pytest.mark.parametrize("block", [1 << 24, 50])
def test_a_connection_that_is_cut_is_taken_up_again(tmp_path, hub, monkeypatch, block):
    monkeypatch.setattr(prepare_hub, "BLOCK_BYTES", block)
    hub.cuts = 2
    prepare("c4", "--out", tmp_path, *BYTES)
    assert texts(tmp_path)[0] == "first second third fourth fifth "
    assert hub.cuts == 0


def test_a_connection_that_is_always_cut_is_given_up(tmp_path, hub):
    hub.cuts = 100
    said = refused(tmp_path, "c4")
    assert f"c4-train.00000-of-00003.json.gz: cannot be read from {hub.url} (" in said
    assert "If the network is away, come back with the same command" in said
    assert hub.cuts == 100 - 3


def test_an_interrupted_run_goes_on_at_its_commit(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(prepare_pipeline, "SAVE_SECONDS", 0)
    hub.broken = "en/c4-validation.00000-of-00002.json.gz"
    said = prepare("c4", "--out", tmp_path, *BYTES, code=1)
    assert "what was done is kept: the same command goes on from there" in said
    hub.broken, moved = None, "b" * 40
    hub.revisions |= {"main": moved, moved: moved}
    hub.requests.clear()
    said = prepare("c4", "--out", tmp_path, *BYTES, notes=1)
    assert "going on after the 32 tokens of an earlier run" in said
    train, val, meta = texts(tmp_path)
    assert (train, val) == ("first second third fourth fifth ", "held out")
    assert meta["source"]["revision"] == COMMIT and len(meta["sources"]) == 4
    assert hub.requests and not any(moved in path or "/revision/" in path for path in hub.requests)
    assert not any("c4-train.00000" in path for path in hub.requests)  # has been read
    prepare("c4", "--out", tmp_path, *BYTES, "--overwrite")
    assert texts(tmp_path)[2]["source"]["revision"] == moved


def test_another_revision_than_that_of_an_interrupted_run_is_refused(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(prepare_pipeline, "SAVE_SECONDS", 0)
    hub.broken = "en/c4-validation.00000-of-00002.json.gz"
    prepare("c4", "--out", tmp_path, *BYTES, code=1)
    hub.broken, hub.revisions["v1"] = None, "b" * 40
    hub.revisions["b" * 40] = "b" * 40
    words = ["c4", "--out", tmp_path, *BYTES, "--revision", "v1"]
    assert "holds the unfinished work of another command: prepare.py c4" in prepare(*words, code=2)
    prepare(*words, "--restart")
    assert texts(tmp_path)[2]["source"]["revision"] == "b" * 40


def test_json_lines_of_any_dataset(tmp_path, hub):
    words = ["--dataset", "allenai/c4", "--files", "*/c4-train.0000[12]*", "--val-files", "en/c4-val*.gz"]
    prepare("jsonl", "--out", tmp_path, *BYTES, *words)
    assert texts(tmp_path)[:2] == ("third fourth fifth ", "held outmore")


def test_fineweb_comes_by_row_groups(tmp_path, monkeypatch):
    documents = [f"document {i} of the web. " for i in range(2300)]
    files = {
        "sample/10BT/000_00000.parquet": fineweb_file(*documents[:1500]),
        "sample/10BT/001_00000.parquet": fineweb_file(*documents[1500:]),
        "data/CC-MAIN-2013-20/000_00000.parquet": fineweb_file("other"),
    }
    monkeypatch.setattr(prepare_hub, "BLOCK_BYTES", 1 << 14)
    with serving(monkeypatch, "HuggingFaceFW/fineweb", files) as server:
        server.cuts = 1
        prepare("fineweb", "--out", tmp_path, *BYTES, "--val-documents", 100)
        assert texts(tmp_path)[:2] == ("".join(documents[100:]), "".join(documents[:100]))


def test_a_file_is_read_from_any_place(hub, monkeypatch, rng):
    monkeypatch.setattr(prepare_hub, "BLOCK_BYTES", 100)
    data = rng.bytes(1000)
    hub.files = {"a/b.bin": data}
    (file,) = prepare_hub.Dataset("allenai/c4").files("a/*.bin")
    read = []
    with io.BufferedReader(file.open(read.append), 10) as reader:
        for _ in range(50):
            start, size = rng.integers(0, 1100), rng.integers(1, 300)
            reader.seek(start)
            assert reader.read(size) == data[start : start + size]
        assert reader.seek(-7, io.SEEK_END) == 993 and reader.seek(3, io.SEEK_CUR) == 996
        assert reader.read() == data[996:]
    read.clear()
    assert file.open(read.append).read() == data and sum(read) == 1000


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["c4", "--revision", "v9"],
            "dataset allenai/c4: has no revision 'v9': give a branch, a tag or a whole",
        ),
        (
            ["jsonl", "--dataset", "no/such", "--files", "*"],
            "dataset no/such: does not exist at http://127.0.0.1",
        ),
        (["c4", "--subset", "xx"], f"dataset allenai/c4: has no folder 'xx' at revision {COMMIT}"),
    ],
)
def test_what_the_hub_does_not_have_is_named(tmp_path, hub, words, problem):
    assert problem in refused(tmp_path, *words)


def test_a_pattern_without_files_is_named(tmp_path, hub):
    words = ["jsonl", "--dataset", "allenai/c4", "--files", "en/part-*"]
    said = refused(tmp_path, *words, code=3)
    assert "dataset allenai/c4: no file en/part-*; en holds en/c4-train.00000-of-00003.json.gz, " in said
    words = ["jsonl", "--dataset", "allenai/c4", "--files", "en/*.gz", "--val-files", "en/c4-validation*"]
    said = refused(tmp_path, *words, code=2)
    assert "hf://datasets/allenai/c4/en/c4-validation.00000-of-00002.json.gz is among both" in said
    words = ["jsonl", "--dataset", "not a name", "--files", "*"]
    assert "dataset not a name: not a name of the hub" in refused(tmp_path, *words, code=2)


@pytest.mark.parametrize(
    ("status", "code", "problem"),
    [
        (403, "GatedRepo", "is gated: accept its terms"),
        (401, "", "refuses access (status 401); is the token"),
        (403, "", "refuses access (status 403); is the token"),
        (500, "", "(status 500)"),
        (404, "EntryNotFound", "has no such file at revision"),
    ],
)
def test_a_refusal_is_explained(tmp_path, hub, status, code, problem):
    hub.refusals["allenai/c4"] = (status, code)
    assert problem in refused(tmp_path, "c4")


def test_a_mirror_that_sends_whole_files_is_refused(tmp_path, hub):
    hub.ignores_ranges = True
    hub.files = {"a.parquet": fineweb_file(*["word " * 40] * 30_000)}
    words = ["parquet", "--dataset", "allenai/c4", "--files", "a.parquet"]
    said = refused(tmp_path, *words)
    assert "(status 200) where 65,536 from byte" in said and "is $HF_ENDPOINT a mirror" in said


def test_a_network_that_is_away_is_named(tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        said = refused(tmp_path, "c4")
    assert "dataset allenai/c4: cannot be read from http://127.0.0.1" in said and "--input FILE" in said


def test_a_damaged_line_of_the_hub_is_named(tmp_path, hub):
    hub.files = C4 | {"en/c4-train.00001-of-00003.json.gz": c4_file("third ") + gzip.compress(b"{\n")}
    said = refused(tmp_path, "c4", code=3)
    assert "hf://datasets/allenai/c4/en/c4-train.00001-of-00003.json.gz, line 2: is not JSON" in said
