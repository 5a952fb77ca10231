"""data/prepare.py: the same shards whatever the number of workers, and whatever has interrupted the run."""

import errno
import gzip
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from console import ScriptError
from prepared import END, SCRIPT, as_in_a_process_of_its_own, contents, make_set, nothing_left
from prepared import prepare, stream

import prepare_arguments
import prepare_documents
import prepare_encoding
import prepare_pipeline
import prepare_reading
import prepare_sources
import prepare_tokenizers

SEPARATOR = "<|endoftext|>"


def random_text(seed, words, separators=0):
    """Words, spaces, lines, other scripts and long runs without a space; separators between."""
    chosen = random.Random(seed)
    parts = ["the", " the", " aaa", "\n", "\n\n", "  ", " naïve", "日本 ", "x" * 90, "3.14", "don't", "\t"]
    text = chosen.choices(parts, k=words)
    for _ in range(separators):
        text.insert(chosen.randrange(words), SEPARATOR)
    return "".join(text).encode()


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(prepare_reading, "BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(prepare_tokenizers, "CUT_CHARACTERS", 700)


@pytest.fixture
def texts(tmp_path):
    """Three files: of many documents, of one long one, and empty."""
    for name, data in [
        ("many.txt", random_text(1, 6000, 300)), ("long.txt", random_text(2, 20_000)), ("empty.txt", b""),
        ("last.txt", random_text(3, 500, 3)),
    ]:  # fmt: skip
        (tmp_path / name).write_bytes(data)
    return [tmp_path / name for name in ("many.txt", "long.txt", "empty.txt", "last.txt")]


def sha256_of_shards(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.bin")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("tokenizer", "want"),
    [
        ("bytes", "b8260e95e4a23aab24630e34701699ae68fa1a3c4e01a2c9af12aa0a5a92d979"),
        ("gpt2", "3486b5e8356a5e77f9fd05e13e5cc8c141bd061d353d8beb4e05cc74e7106910"),
    ],
)
def test_shards_are_those_of_earlier_versions(tmp_path, tiny, texts, tokenizer, want):
    words = ["--shard-tokens", 5000, "--val-fraction", "0.3", *texts]
    if tokenizer == "gpt2":
        words = ["--document-separator", SEPARATOR, *words]
    make_set(tmp_path / "o", *words, vocabulary=tiny if tokenizer == "gpt2" else None)
    assert sha256_of_shards(tmp_path / "o") == want


def test_any_number_of_workers_gives_the_same_bytes(tmp_path, tiny, texts, small_batches):
    sets = []
    for number in (1, 2, 5):
        words = ["--workers", number, "--shard-tokens", 5000, "--document-separator", SEPARATOR, *texts]
        make_set(tmp_path / str(number), *words, vocabulary=tiny)
        sets.append(contents(tmp_path / str(number)))
    assert sets[0] == sets[1] == sets[2] and len(sets[0]) > 20


def test_batches_come_in_order_and_few_are_in_memory():
    read = []

    def batches():
        for number in range(40):
            read.append(number)
            yield prepare_reading.Batch([number], None, None, 0)

    def encode(texts):
        time.sleep(0.002 * (texts[0] % 3))
        return texts[0]

    taken = []
    for batch, tokens in prepare_encoding.encoded(batches(), encode, 3):
        taken.append(tokens)
        assert batch.texts == [tokens]
        assert len(read) - len(taken) < 3 + prepare_encoding.BATCHES_AHEAD
    assert taken == read == list(range(40))


# Documents of other formats


class Documents(prepare_documents.DocumentFile):
    """Documents in memory. `broken`: the first number of one that cannot be read."""

    def __init__(self, name, documents, can_skip=True, broken=None):
        self.name, self.documents, self.can_skip, self.broken = name, documents, can_skip, broken
        self.size = sum(map(len, documents))

    def pieces(self, skip, progress, findings):
        for number, text in enumerate(self.documents[skip:], skip):
            if number == self.broken:
                raise KeyboardInterrupt
            if "odd" in text:
                findings.note("kept: odd documents", f"{self.name} row {number}")
            for start in range(0, len(text), 300):
                yield text[start : start + 300]
            yield prepare_documents.END
            progress(len(text))

    def identity(self):
        return [self.name, self.size]


def documents_of(seed, number):
    chosen = random.Random(seed)
    texts = [random_text(seed + i, chosen.randrange(200)).decode() for i in range(number)]
    texts[3], texts[5], texts[8] = "", "the odd one", random_text(9, 4000).decode() + "odd"
    return texts


def arguments(out, tiny, *words):
    import argparse

    parser = argparse.ArgumentParser()
    prepare_arguments.add_common_arguments(parser)
    tokenizer = ["--tokenizer", "gpt2", "--tokenizer-dir", str(tiny)]
    parsed = parser.parse_args(["--out", str(out), *tokenizer, "--shard-tokens", "3000", *map(str, words)])
    parsed.source = "rows"
    return parsed


def rows(broken=None, can_skip=True):
    sizes = {"a": 40, "b": 30, "val": 20}
    return [
        Documents(name, documents_of(seed, number), can_skip, (broken or {}).get(name))
        for seed, (name, number) in enumerate(sizes.items(), 100)
    ]


def make_rows(out, tiny, files, *words):
    *train, val = files
    extra = {"source": {"kind": "rows", "dataset": "made up"}}
    with as_in_a_process_of_its_own(b"", None):
        return prepare_pipeline.prepare_documents(
            arguments(out, tiny, *words), train, [val], extra_meta=extra
        )


def test_validation_files_become_the_validation_split(tmp_path, tiny):
    make_rows(tmp_path / "o", tiny, rows())
    tokens, meta = stream(tmp_path / "o")
    tokenizer = prepare_tokenizers.Gpt2Tokenizer(tiny)
    want = [
        tokenizer.encode([(text, True) for text in file.documents if text]).tolist() for file in rows()
    ]
    assert tokens.tolist() == sum(want, [])
    assert (meta["train_tokens"], meta["val_tokens"]) == (len(want[0]) + len(want[1]), len(want[2]))
    assert meta["documents"] == sum(map(bool, sum((file.documents for file in rows()), [])))
    assert meta["source"] == {"kind": "rows", "dataset": "made up"} and meta["token_bytes"] == 2
    assert "kept: odd documents: 6, the first in a row 5" in meta["notes"]
    assert [source["name"] for source in meta["sources"]] == ["a", "b", "val"]


@pytest.mark.parametrize("can_skip", [True, False])
def test_an_interrupted_run_goes_on_at_any_document(
    tmp_path, tiny, small_batches, monkeypatch, capsys, can_skip
):
    make_rows(tmp_path / "whole", tiny, rows())
    monkeypatch.setattr(prepare_pipeline, "SAVE_SECONDS", 0)
    want, gone_on = contents(tmp_path / "whole"), 0
    for broken in [{"a": 2}, {"a": 9}, {"a": 20}, {"a": 39}, {"b": 0}, {"b": 9}, {"b": 25}, {"val": 7}]:
        out = tmp_path / f"{broken}"
        with pytest.raises(ScriptError, match="interrupted; no shards were written"):
            make_rows(out, tiny, rows(broken, can_skip))
        gone_on += (out / "progress.partial").exists()
        make_rows(out, tiny, rows(None, can_skip))
        assert contents(out) == want
    assert gone_on >= 6
    said = capsys.readouterr().err.splitlines()
    assert len(said) == gone_on and all("tokens of an earlier run" in line for line in said)


def test_a_limit_takes_the_first_tokens_and_the_validation_files(tmp_path, tiny, small_batches):
    make_rows(tmp_path / "all", tiny, rows())
    tokens, everything = stream(tmp_path / "all")
    for limit in (1, 2999, 3000, 7001, everything["train_tokens"], 10**9):
        make_rows(tmp_path / str(limit), tiny, rows(), "--max-tokens", limit)
        some, meta = stream(tmp_path / str(limit))
        train = min(limit, everything["train_tokens"])
        assert (meta["train_tokens"], meta["val_tokens"]) == (train, everything["val_tokens"])
        assert some.tolist() == np.delete(tokens, range(train, everything["train_tokens"])).tolist()
        assert meta["documents"] == (some == END).sum()
        assert [source["name"] for source in meta["sources"]][-1] == "val"
    words = ["--tokenizer", "bytes", "--max-tokens", 10, "--val-fraction", "0.2"]
    for name, data in (("a", b"one two"), ("b", b"three"), ("c", b"four")):
        (tmp_path / name).write_bytes(data)
    prepare("text", "--out", tmp_path / "bytes", *words, *(tmp_path / name for name in "abc"))
    tokens, meta = stream(tmp_path / "bytes")
    assert bytes(tokens.tolist()) == b"one twothr" and (meta["val_tokens"], meta["documents"]) == (2, 2)


def test_half_of_a_surrogate_pair_is_replaced_and_noted(tmp_path, tiny, byte_ids):
    files = [Documents("a", ["a\ud83d", "b\ud83d\ude00"]), Documents("val", ["c"])]
    lines = make_rows(tmp_path / "o", tiny, files)
    tokens, _ = stream(tmp_path / "o")
    want = [[END, *(byte_ids[b] for b in text.encode())] for text in ("a\ufffd", "b\U0001f600", "c")]
    assert tokens.tolist() == sum(want, [])
    assert "  replaced by U+FFFD: texts with half of a surrogate pair: 2" in lines


# The command


def test_the_work_of_another_command_is_not_lost(tmp_path, tiny, texts, small_batches, monkeypatch):
    monkeypatch.setattr(prepare_pipeline, "SAVE_SECONDS", 0)
    (tmp_path / "damaged.txt.gz").write_bytes(b"no gzip")
    good = [*texts, "--document-separator", SEPARATOR]
    words = [*texts, tmp_path / "damaged.txt.gz", "--document-separator", SEPARATOR]
    error = make_set(tmp_path / "o", *words, vocabulary=tiny, code=3)
    assert "damaged.txt.gz" in error
    assert error.endswith("; what was done is kept: the same command goes on from there\n")
    error = make_set(tmp_path / "o", *good, vocabulary=tiny, code=2)
    assert "unfinished work of another command: prepare.py text --tokenizer gpt2" in error
    assert "--restart" in error and not list(tmp_path.glob("o/*.bin"))
    error = make_set(tmp_path / "o", "-", stdin=b"x", code=2)
    assert "another command" in error
    os.utime(texts[0], (1, 1))
    error = make_set(tmp_path / "o", *words, "--workers", 1, vocabulary=tiny, code=2)
    assert "of this command, but the files (sizes, times) are others now" in error
    make_set(tmp_path / "o", *good, "--restart", vocabulary=tiny)
    make_set(tmp_path / "fresh", *good, vocabulary=tiny)
    assert contents(tmp_path / "o") == contents(tmp_path / "fresh")


def test_a_damaged_note_of_how_far_a_run_was_is_said(tmp_path, tiny, texts, small_batches, monkeypatch):
    monkeypatch.setattr(prepare_pipeline, "SAVE_SECONDS", 0)
    (tmp_path / "damaged.txt.gz").write_bytes(b"no gzip")
    words, note = [*texts, tmp_path / "damaged.txt.gz"], tmp_path / "o" / "progress.partial"
    make_set(tmp_path / "o", *words, vocabulary=tiny, code=3)
    progress = json.loads(note.read_text())
    del progress["state"]["position"]
    note.write_text(json.dumps(progress))
    error = make_set(tmp_path / "o", *words, vocabulary=tiny, code=3)
    assert f"{tmp_path / 'o'}: progress.partial is damaged; --restart begins again" in error
    note.write_text(json.dumps(progress | {"claim": 3}))
    assert "damaged.txt.gz" in make_set(tmp_path / "o", *words, vocabulary=tiny, code=3)  # from its start


def test_the_command_in_the_list_makes_the_set_again(tmp_path, tiny, texts):
    words = ["--workers", 2, "--overwrite", "--max-tokens=500", *texts, "--restart", "--val-fraction", "0.5"]
    make_set(tmp_path / "o", *words, vocabulary=tiny)
    meta = stream(tmp_path / "o")[1]
    names = " ".join(map(str, texts))
    tokenizer = f"--tokenizer gpt2 --tokenizer-dir {tiny}"
    assert meta["command"] == f"prepare.py text {tokenizer} --max-tokens=500 {names} --val-fraction 0.5"
    assert meta["source"] == {"kind": "text", "files": 4} and meta["token_bytes"] == 2


SUICIDAL_PROGRAM = f"""if True:
    import os, sys
    sys.path.insert(0, {str(SCRIPT.parent)!r})
    import prepare, prepare_pipeline, prepare_reading, prepare_tokenizers
    prepare_pipeline.SAVE_SECONDS, prepare_pipeline.SAVE_SHARE = 0, 1e9
    prepare_reading.BATCH_CHARACTERS, prepare_tokenizers.CUT_CHARACTERS = 2000, 700
    save, saves, stop = prepare_pipeline.ShardFolder.save, [], int(sys.argv.pop(1))
    def save_and_stop(*words):
        save(*words)
        saves.append(words)
        if len(saves) == 30:
            os.kill(os.getpid(), stop)
    prepare_pipeline.ShardFolder.save = save_and_stop
    sys.exit(prepare.main())"""


def test_the_program_is_killed_again_and_again_and_ends_as_if_nothing_had_happened(
    tmp_path, tiny, texts, small_batches
):
    words = ["--document-separator", SEPARATOR, "--shard-tokens", 20_000, *texts]
    make_set(tmp_path / "whole", *words, vocabulary=tiny)
    tokenizer = ["--tokenizer", "gpt2", "--tokenizer-dir", tiny]
    command = ["text", "--out", tmp_path / "o", *tokenizer, *words]
    reached = [0]
    for stop in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        program = [sys.executable, "-c", SUICIDAL_PROGRAM, str(int(stop)), *map(str, command)]
        process = subprocess.run(program, capture_output=True, text=True, timeout=300)
        if stop == signal.SIGTERM:
            kept = "what was done is kept: the same command goes on from there"
            assert process.stderr.splitlines()[-1] == (
                f"prepare.py: interrupted; no shards were written; {kept}"
            )
        assert process.returncode == (1 if stop == signal.SIGTERM else -stop)
        reached.append(json.loads((tmp_path / "o" / "progress.partial").read_bytes())["train"]["tokens"])
        assert not list(tmp_path.glob("o/*.bin")) and reached[-1] > reached[-2] + 30_000
    output = prepare(*command, notes=1)
    assert f"note: {tmp_path / 'o'}: going on after the {reached[-1]:,} tokens of an earlier run" in output
    assert contents(tmp_path / "o") == contents(tmp_path / "whole")


@pytest.mark.parametrize("has_limit", [False, True])
def test_the_bar_knows_the_end_and_the_speed(tmp_path, texts, monkeypatch, has_limit):
    shown = []

    class Bar:
        disable = False

        def __init__(self, **settings):
            self.settings, self.n = settings, 0
            self.format_dict = {"elapsed": 2.0}
            shown.append(self)

        def update(self, more):
            self.n += more

        def set_postfix_str(self, text, refresh):
            self.text = text

        def close(self):
            pass

    monkeypatch.setattr("tqdm.tqdm", Bar)
    compressed = tmp_path / "a.gz"
    compressed.write_bytes(gzip.compress(texts[1].read_bytes()))
    make_set(tmp_path / "o", *texts, compressed, *(["--max-tokens", 100_000] if has_limit else []))
    (bar,) = shown
    stored = sum(path.stat().st_size for path in [*texts, compressed])
    want = (100_000, " tokens") if has_limit else (stored, "B")
    assert (bar.settings["total"], bar.settings["unit"]) == want
    assert bar.settings["disable"] and bar.n == bar.settings["total"]
    tokens = sum(stream(tmp_path / "o")[1][f"{split}_tokens"] for split in ("train", "val"))
    assert bar.text == f"{tokens / 2:,.0f} tokens/s"


def test_too_little_space_is_said_before_anything_is_written(tmp_path, texts, monkeypatch):
    import prepare_progress

    usage = prepare_progress.shutil.disk_usage(tmp_path)
    size = sum(path.stat().st_size for path in texts)
    needed = 2 * size + size // 5  # uint16, and a tenth of them twice
    monkeypatch.setattr(prepare_progress.shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    error = make_set(tmp_path / "o", *texts, code=1)
    assert error == (
        f"prepare.py: --out {tmp_path / 'o'}: about {needed / 1000:.1f} kB are needed there, and "
        f"{(needed - 1) / 1000:.1f} kB are free\n"
    )
    assert nothing_left(tmp_path / "o")
    make_set(tmp_path / "o", "--max-tokens", 100, *texts)
    monkeypatch.setattr(prepare_progress.shutil, "disk_usage", lambda path: usage._replace(free=needed))
    make_set(tmp_path / "o", "--overwrite", *texts)


def test_a_disk_that_will_be_full_is_said_and_a_full_one_says_what_is_missing(
    tmp_path, texts, small_batches, monkeypatch
):
    import prepare_progress
    import prepare_stream

    usage = prepare_progress.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(prepare_pipeline, "SAVE_SECONDS", 0)
    monkeypatch.setattr(
        prepare_progress.shutil, "disk_usage", lambda path: usage._replace(free=300_000 * (not path.exists()))
    )
    write_all, left = prepare_stream.write_all, [200_000]

    def write(file, data):
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(file, data)

    monkeypatch.setattr(prepare_stream, "write_all", write)
    monkeypatch.setattr(prepare_progress.Space, "check_before", lambda space: None)
    error = make_set(tmp_path / "o", *texts, code=1, lines=2)
    assert re.search(r"warning: .*about [0-9.]+ kB more are needed, 0 bytes are free\n", error)
    assert re.search(r"cannot write: No space left on device \(about [0-9.]+ kB more are needed, 0 by", error)
    assert error.endswith("what was done is kept: the same command goes on from there\n")
    monkeypatch.setattr(prepare_stream, "write_all", write_all)
    monkeypatch.setattr(prepare_progress.shutil, "disk_usage", lambda path: usage)
    make_set(tmp_path / "o", *texts, notes=1)
    make_set(tmp_path / "fresh", *texts)
    assert contents(tmp_path / "o") == contents(tmp_path / "fresh")
