"""data/prepare.py: a set of shards appears whole, and an older one goes only then, whatever ends the run."""

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from console import DataError, ScriptError, UsageError
from prepared import SCRIPT, contents, nothing_left, prepare, shard, stream

import prepare_encoding
import prepare_reading
import prepare_shards

WORDS = ["--tokenizer", "bytes", "--shard-tokens", "10", "-"]
TOKENIZER = {"tokenizer/vocab.bpe": b"merges", "tokenizer/encoder.json": b"{}"}
# Sets by what they hold: (first token, training tokens, validation tokens, tokenizer files).
SETS = {
    "large with tokenizer": (100, 25, 5, TOKENIZER),
    "other tokenizer": (200, 12, 12, {**TOKENIZER, "tokenizer/vocab.bpe": b"other merges"}),
    "small": (300, 10, 3, {}),
    "no validation": (400, 25, 0, {}),
}


def publish(path, name, overwrite=True, claim=None):
    """Also as a run that can be continued, which saves what it has done after each step."""
    first, train, val, files = SETS[name]
    tokens = np.arange(first, first + train + val, dtype=np.uint16)
    with prepare_shards.ShardFolder(path, overwrite, files, shard_tokens=10, claim=claim) as folder:
        if folder.done:
            return
        done = folder.state or 0
        assert claim or not done
        for start in range(done, tokens.size, 12):
            folder.append("train", tokens[start : start + 12])
            folder.save(start + 12)
        folder.publish({"name": name}, tail=val)


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """The machine does not lose its power here, so nothing needs to wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The files of each set where nothing was in its way."""
    folder = tmp_path_factory.mktemp("published")
    for name in SETS:
        publish(folder / name, name, overwrite=False)
    return {name: contents(folder / name) for name in SETS} | {None: {}}


def test_a_set_holds_what_was_given(tmp_path):
    publish(tmp_path, "large with tokenizer")
    tokens, meta = stream(tmp_path)
    assert tokens.tolist() == list(range(100, 130))
    assert [entry["tokens"] for entry in meta["shards"]] == [10, 10, 5, 5]
    assert contents(tmp_path)["tokenizer/vocab.bpe"] == b"merges"
    assert [entry["file"] for entry in meta["tokenizer_files"]] == list(TOKENIZER)


PAIRS = [pair for pair in itertools.product([None, *SETS], SETS) if pair[0] != pair[1]]


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_one_set_replaces_another_without_leftovers(tmp_path, published, old, new):
    if old:
        publish(tmp_path, old)
    publish(tmp_path, new)
    assert contents(tmp_path) == published[new]
    assert (tmp_path / "tokenizer").exists() == bool(SETS[new][3])


# Faults, one at each step


class Steps:
    """Counts the calls that change the disk; `act` happens in place of number `stop`."""

    def __init__(self, monkeypatch, stop, act):
        self.count, self.stop, self.act = 0, stop, act
        for owner, name in [
            (os, "rename"),
            (os, "fsync"),
            (Path, "unlink"),
            (Path, "rmdir"),
            (Path, "mkdir"),
        ]:
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, function):
        def call(*words, **options):
            self.count += 1
            if self.count == self.stop:
                self.act()
            return function(*words, **options)

        return call


def number_of_steps(monkeypatch, path, new, claim=None):
    with monkeypatch.context() as patch:
        steps = Steps(patch, 0, None)
        publish(path, new, claim=claim)
        return steps.count


def run_killed(monkeypatch, path, new, stop, claim=None):
    """Publishes in a process of its own that dies at a step, as by kill -9."""
    child = os.fork()
    if child == 0:
        try:
            Steps(monkeypatch, stop, lambda: os._exit(9))
            publish(path, new, claim=claim)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def stands(path, files):
    """Whether all of a set is on the disk, by its names or as *.partial."""
    now = contents(path)
    return all(data in (now.get(name), now.get(f"{name}.partial")) for name, data in files.items())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, "large with tokenizer"), ("large with tokenizer", "small"), ("small", "large with tokenizer"),
        ("large with tokenizer", "other tokenizer"), ("large with tokenizer", "no validation"),
    ],
)  # fmt: skip
def test_a_run_killed_at_any_step_leaves_all_of_one_set(tmp_path, published, monkeypatch, old, new):
    start = tmp_path / "start"
    start.mkdir()
    (start / "notes.txt").write_text("mine")
    if old:
        publish(start, old)
    mine = {"notes.txt": b"mine"}
    total = number_of_steps(monkeypatch, shutil.copytree(start, tmp_path / "counted"), new)
    outcomes = []
    for stop in range(1, total + 1):
        path = shutil.copytree(start, tmp_path / str(stop))
        run_killed(monkeypatch, path, new, stop)
        is_in_place = contents(path).get("meta.json") == published[new]["meta.json"]
        sealed = is_in_place or (path / "meta.json.partial").exists()
        assert stands(path, published[new] if sealed else published[old]), stop
        # The next run on the folder, whatever it is for, finishes or clears up.
        with pytest.raises((UsageError, KeyError)):
            with prepare_shards.ShardFolder(path, False, shard_tokens=10):
                raise KeyError
        assert contents(path) == published[new if sealed else old] | mine, stop
        outcomes.append(sealed)
    assert outcomes == sorted(outcomes) and not outcomes[0] and outcomes[-1]
    assert outcomes.count(True) > 5 and outcomes.count(False) > 5


def test_a_run_that_is_killed_and_repeated_ends_as_if_nothing_had_happened(tmp_path, published, monkeypatch):
    """The same command, without --overwrite, at every step; also where a recovery is killed in turn."""
    total = number_of_steps(monkeypatch, tmp_path / "counted", "large with tokenizer")
    for stop in range(2, total + 1):
        path = tmp_path / str(stop)
        run_killed(monkeypatch, path, "large with tokenizer", stop)
        for again in sorted({1 + stop % 3, 3 + stop % 3}):
            run_killed(monkeypatch, path, "other tokenizer", again)
        if not (path / "meta.json").exists():
            publish(path, "small", overwrite=False)
            assert contents(path) == published["small"]
    assert contents(tmp_path / "counted") == published["large with tokenizer"]


CLAIM = {"options": "these"}


@pytest.mark.parametrize(("old", "new"), [(None, "large with tokenizer"), ("no validation", "small")])
def test_a_run_that_is_killed_at_any_step_is_continued(tmp_path, published, monkeypatch, old, new):
    """Killed, killed again at an early step of the continuation, then left alone: as if nothing had been."""
    start = tmp_path / "start"
    start.mkdir()
    if old:
        publish(start, old)
    total = number_of_steps(monkeypatch, shutil.copytree(start, tmp_path / "counted"), new, CLAIM)
    assert contents(tmp_path / "counted") == published[new]
    gone_on = 0
    for stop in range(1, total + 1):
        path = shutil.copytree(start, tmp_path / str(stop))
        run_killed(monkeypatch, path, new, stop, CLAIM)
        now = contents(path)
        sealed = "meta.json.partial" in now or now.get("meta.json") == published[new]["meta.json"]
        assert stands(path, published[new] if sealed else published[old]), stop
        if "progress.partial" in now:
            with pytest.raises(UsageError, match="another command|holds shards already"):
                publish(shutil.copytree(path, tmp_path / f"{stop}other"), new, False, {"options": "others"})
            with monkeypatch.context() as patch:
                steps = Steps(patch, 1 + stop % 4, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
                with contextlib.suppress(KeyboardInterrupt):
                    publish(path, new, claim=CLAIM)
            gone_on += 1
        publish(path, new, claim=CLAIM)
        assert contents(path) == published[new], stop
    assert gone_on > 20


def test_a_run_goes_on_from_what_was_saved(tmp_path, published):
    """What came after it is cut off, whole shards too; and it needs what it counts on."""
    arguments = dict(overwrite=False, shard_tokens=10, claim=CLAIM)

    def interrupted(path):
        with pytest.raises(KeyboardInterrupt), prepare_shards.ShardFolder(path, **arguments) as folder:
            folder.append("train", np.arange(100, 112, dtype=np.uint16))
            folder.save({"there": 12})
            folder.append("train", np.zeros(30, np.uint16))
            raise KeyboardInterrupt

    interrupted(tmp_path / "o")
    with prepare_shards.ShardFolder(tmp_path / "o", **arguments) as folder:
        assert folder.state == {"there": 12} and folder.tokens == {"train": 12, "val": 0}
        folder.append("train", np.arange(112, 130, dtype=np.uint16))
        folder.publish({"name": "large with tokenizer"}, tail=5)
    shards = {name: data for name, data in published["large with tokenizer"].items() if name.endswith(".bin")}
    assert {name: data for name, data in contents(tmp_path / "o").items() if name.endswith(".bin")} == shards
    for name, size in [("train_000000.bin", 1043), ("train_000001.bin", 1027)]:
        interrupted(tmp_path / name)
        os.truncate(tmp_path / name / f"{name}.partial", size)
        with pytest.raises(DataError, match=f"{name}.partial: is missing or damaged.*--restart"):
            with prepare_shards.ShardFolder(tmp_path / name, **arguments):
                pass
        with prepare_shards.ShardFolder(tmp_path / name, **arguments, restart=True) as folder:
            assert folder.state is None and folder.tokens == {"train": 0, "val": 0}
        assert nothing_left(tmp_path / name)


@pytest.mark.parametrize(("old", "new"), [(None, "large with tokenizer"), ("large with tokenizer", "small")])
def test_a_disk_that_fails_at_any_step_loses_nothing(tmp_path, published, monkeypatch, old, new):
    def fail():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    total = number_of_steps(monkeypatch, tmp_path / "counted", new)
    messages = set()
    for stop in range(2, total + 1):
        path = tmp_path / str(stop)
        if old:
            publish(path, old)
        path.mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            Steps(patch, stop, fail)
            try:
                publish(path, new)
            except ScriptError as error:
                assert str(path) in str(error) and "No space left" in str(error)
                messages.add(str(error).rpartition("; ")[2])
            except OSError:
                pass  # while it cleans up
        if (path / "meta.json.partial").exists():
            assert stands(path, published[new])
            publish(path, new)
        if contents(path) != published[new]:
            assert contents(path) == published[old]
    assert messages == {
        "no shards were written",
        "the new set is complete but not all in place: prepare.py on this folder finishes it",
    }


def test_a_set_that_no_run_reported_may_be_replaced_by_the_repeated_one(
    tmp_path, published, monkeypatch, capsys
):
    total = number_of_steps(monkeypatch, tmp_path / "counted", "small")
    run_killed(monkeypatch, tmp_path / "o", "small", total - 2)
    assert (tmp_path / "o" / "meta.json.partial").exists()
    publish(tmp_path / "o", "no validation", overwrite=False)
    said = (
        f"prepare.py: note: {tmp_path / 'o'}: the set of an interrupted run was ready; it is in place now\n"
    )
    assert capsys.readouterr().err == said
    assert contents(tmp_path / "o") == published["no validation"]
    with pytest.raises(UsageError, match="holds shards already"):
        publish(tmp_path / "o", "small", overwrite=False)


@pytest.mark.parametrize("harm", ["missing", "short"])
def test_a_sealed_set_that_lost_a_file_is_not_completed(tmp_path, monkeypatch, harm):
    total = number_of_steps(monkeypatch, tmp_path / "counted", "small")
    path = tmp_path / "o"
    publish(path, "no validation")
    run_killed(monkeypatch, path, "small", total - 4)
    before = contents(path)
    victim = (
        path / "val_000000.bin.partial" if "val_000000.bin.partial" in before else path / "val_000000.bin"
    )
    victim.unlink() if harm == "missing" else os.truncate(victim, 1025)
    with pytest.raises(DataError, match="val_000000.bin, which it lists, is missing or damaged"):
        publish(path, "small")
    assert (path / "meta.json.partial").exists() and set(contents(path)) >= set(before) - {victim.name}


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[1]", b"{}", b'{"shards": 3}', b'{"shards": [{"file": "../x", "tokens": 1}]}', b"\xff"],
)
def test_a_damaged_list_of_an_interrupted_run_is_cleared(tmp_path, published, text):
    publish(tmp_path / "o", "small")
    (tmp_path / "o" / "meta.json.partial").write_bytes(text)
    (tmp_path / "o" / "train_000001.bin.partial").write_bytes(b"x")
    (tmp_path / "o" / "notes.partial").write_bytes(b"mine")
    with pytest.raises(UsageError):
        publish(tmp_path / "o", "small", overwrite=False)
    assert contents(tmp_path / "o") == published["small"] | {"notes.partial": b"mine"}


def test_everything_is_on_the_disk_before_the_set_is_sealed(tmp_path, monkeypatch):
    """An fsync of each file, then of the folders, then the rename that seals; one after the last rename."""
    calls, rename = [], os.rename
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: calls.append(os.readlink(f"/proc/self/fd/{file}")))
        patch.setattr(os, "rename", lambda a, b: (calls.append(("rename", Path(b).name)), rename(a, b)))
        publish(tmp_path, "large with tokenizer")
    seal = calls.index(("rename", "meta.json.partial"))
    before = {Path(path).name for path in calls[:seal]}
    shards = {f"train_00000{n}.bin.partial" for n in range(3)} | {"val_000000.bin.partial"}
    written = shards | {"vocab.bpe.partial", "encoder.json.partial", "unsealed.partial"}
    assert before == written | {"tokenizer", tmp_path.name}
    assert set(calls[seal - 2 : seal]) == {str(tmp_path), str(tmp_path / "tokenizer")}
    assert calls[seal + 1] == str(tmp_path / "tokenizer") and calls[seal + 2] == str(tmp_path)
    assert calls[-3:] == [("rename", "meta.json"), str(tmp_path / "tokenizer"), str(tmp_path)]
    assert calls[-4] == str(tmp_path)


def test_what_a_run_goes_on_from_is_on_the_disk_before_it_is_counted_on(tmp_path, monkeypatch):
    calls, rename = [], os.rename
    path = "/proc/self/fd/{}".format
    monkeypatch.setattr(os, "fsync", lambda file: calls.append(Path(os.readlink(path(file))).name))
    monkeypatch.setattr(os, "rename", lambda a, b: (calls.append(f"-> {Path(b).name}"), rename(a, b)))
    with prepare_shards.ShardFolder(tmp_path, False, shard_tokens=10, claim=CLAIM) as folder:
        folder.append("train", np.arange(25, dtype=np.uint16))
        folder.save(1)
    shards = [f"train_00000{n}.bin.partial" for n in range(3)]
    assert calls == [*shards, "progress.new.partial", "-> progress.partial", tmp_path.name]


def test_a_set_that_is_given_up_loses_its_list_first(tmp_path, published, monkeypatch):
    """Without its files, the list would mean the old ones of the same names."""
    publish(tmp_path, "large with tokenizer")
    rename, unlink, removed = os.rename, Path.unlink, []

    def seal_and_stop(source, target):
        rename(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", seal_and_stop)
        patch.setattr(
            Path, "unlink", lambda path, **options: (removed.append(path.name), unlink(path, **options))
        )
        publish(tmp_path, "other tokenizer")
    assert removed[0] == "meta.json.partial" and len(removed) > 5
    assert contents(tmp_path) == published["large with tokenizer"]


# What is in the way


def test_shards_that_are_there_are_replaced_only_if_asked(tmp_path):
    words = ["text", "--out", tmp_path, *WORDS]
    prepare(*words, stdin=b"x" * 100)
    (tmp_path / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    error = prepare(*words, stdin=b"y" * 50, code=2)
    assert "--overwrite" in error and "train_000000.bin, 11 files" in error
    prepare(*words[:-1], "--overwrite", "-", tmp_path / "missing", stdin=b"y" * 50, code=3)
    assert contents(tmp_path) == before
    prepare(*words, "--overwrite", stdin=b"y" * 50)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "notes.txt").unlink()
    assert stream(tmp_path)[0].tolist() == list(b"y" * 50)


def test_a_single_leftover_shard_is_in_the_way(tmp_path, published):
    for name in ("train_000000.bin", "val_1234567.bin", "meta.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(b"old")
        with pytest.raises(UsageError, match=f"{name}, 1 file\\)"):
            publish(folder, "small", overwrite=False)
        publish(folder, "small")
        assert contents(folder) == published["small"]
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "train_1.bin").write_bytes(b"not a name of ours")
    publish(tmp_path / "o", "small", overwrite=False)


def test_tokenizer_files_of_somebody_else_are_not_lost(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    vocabulary = tmp_path / "tokenizer" / "vocab.bpe"
    vocabulary.write_bytes(b"merges")
    publish(tmp_path, "small", overwrite=False)  # bytes: nothing to do with it
    publish(tmp_path, "no validation")
    assert vocabulary.read_bytes() == b"merges"
    vocabulary.write_bytes(b"of somebody else")
    for name in ("meta.json", *(path.name for path in tmp_path.glob("*.bin"))):
        (tmp_path / name).unlink()
    with pytest.raises(UsageError, match="tokenizer/vocab.bpe, 1 file\\)"):
        publish(tmp_path, "large with tokenizer", overwrite=False)
    vocabulary.write_bytes(b"merges")  # the same
    publish(tmp_path, "large with tokenizer", overwrite=False)


def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    names = [
        "train_000000.bin",
        "train_000000.bin.partial",
        "meta.json",
        "meta.json.partial",
        "progress.partial",
    ]
    for n, name in enumerate([*names, "tokenizer/vocab.bpe"]):
        for kind in ("link", "pipe", "folder"):
            path = tmp_path / f"{n}{kind}" / name
            path.parent.mkdir(parents=True)
            if kind == "link":
                path.symlink_to(elsewhere)
            elif kind == "pipe":
                os.mkfifo(path)
            else:
                path.mkdir()
            with pytest.raises(UsageError, match="is not a regular file"):
                publish(tmp_path / f"{n}{kind}", "large with tokenizer")
            assert path.is_symlink() or path.is_fifo() or path.is_dir()
    assert elsewhere.read_bytes() == b"mine"


def test_out_must_be_a_folder_or_become_one(tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer").touch()
    for name, part in [
        ("file", "is not a folder"),
        ("pipe", "is not a folder"),
        ("/dev/null", "is not a folder"),
        ("nowhere", "leads nowhere"),
        ("loop", "leads nowhere"),
    ]:
        assert part in prepare("text", "--out", tmp_path / name, *WORDS, stdin=b"x", code=2)
    with pytest.raises(UsageError, match="tokenizer is not a folder"):
        publish(tmp_path / "broken", "large with tokenizer")
    prepare("text", "--out", tmp_path / "file" / "x", *WORDS, stdin=b"x", code=1)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    prepare("text", "--out", tmp_path / "link", *WORDS, stdin=b"x" * 20)
    assert (tmp_path / "link").is_symlink() and len(stream(tmp_path / "real")[0]) == 20


def test_a_failed_run_leaves_no_folder_that_was_not_there(tmp_path):
    prepare("text", "--out", tmp_path / "new", *WORDS, stdin=b"", code=3)
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    prepare("text", "--out", tmp_path / "old", *WORDS, stdin=b"", code=3)
    assert (tmp_path / "old").exists()


# The whole program


def wait_until(condition):
    limit = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_shard_and_the_next_one_starts_afresh(tmp_path, stop):
    words = ["text", "--out", tmp_path / "o", "--tokenizer", "bytes", "-"]
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, words)], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=stop != signal.SIGKILL and (lambda: signal.signal(stop, signal.SIG_DFL)) or None,
    )  # fmt: skip
    batches = 2 + prepare_encoding.BATCHES_AHEAD + len(os.sched_getaffinity(0))
    process.stdin.write(b"x" * (batches * prepare_reading.BATCH_CHARACTERS + 1))
    process.stdin.flush()
    started = tmp_path / "o" / "train_000000.bin.partial"
    wait_until(lambda: started.exists() and started.stat().st_size > 0)
    assert "another prepare.py" in prepare(*words, stdin=b"y", code=2)
    process.send_signal(stop)
    _, error = process.communicate(timeout=300)
    assert not list(tmp_path.glob("o/*.bin"))
    if stop != signal.SIGKILL:
        said = "interrupted; no shards were written; standard input and pipes cannot be continued"
        assert (process.returncode, error.decode()) == (1, f"prepare.py: {said}\n")
        assert not (tmp_path / "o").exists()
    prepare(*words, stdin=b"again")
    assert stream(tmp_path / "o")[0].tolist() == list(b"again")


def test_a_signal_after_the_set_is_sealed_changes_nothing(tmp_path):
    script = f"""if True:
        import os, signal, sys
        sys.path.insert(0, {str(SCRIPT.parent)!r})
        import prepare, prepare_shards
        real = os.rename
        def rename(a, b):
            os.kill(os.getpid(), signal.SIGINT)
            real(a, b)
        os.rename = rename
        sys.exit(prepare.main(["text", "--out", {str(tmp_path)!r}, "--tokenizer", "bytes", "-"]))"""
    result = subprocess.run([sys.executable, "-c", script], input=b"text", capture_output=True, timeout=300)
    assert result.returncode == 0 and b"4 tokens" in result.stdout and result.stderr == b""
    assert bytes(stream(tmp_path)[0].astype(np.uint8)) == b"text"


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path):
    limit = """if True:
        import resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        import prepare
        sys.exit(prepare.main())"""
    words = ["text", "--out", str(tmp_path), "--tokenizer", "bytes", "-"]
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parent)}
    command = [sys.executable, "-c", limit, *words]
    result = subprocess.run(command, input=b"x" * 300_000, capture_output=True, env=environment, timeout=300)
    assert result.returncode == 1
    assert result.stderr.decode() == (
        f"prepare.py: {tmp_path}: cannot write: File too large; no shards were written\n"
    )
    assert nothing_left(tmp_path)


def test_a_reader_that_leaves_early_does_no_harm(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    words = f"text --out '{tmp_path}/o' --tokenizer bytes '{tmp_path}/a.txt'"
    command = f"'{sys.executable}' '{SCRIPT}' {words} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, b"")
    stream(tmp_path / "o")


def test_a_summary_that_cannot_be_printed_is_a_failure_and_the_shards_stand(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    words = f"text --out '{tmp_path}/o' --tokenizer bytes '{tmp_path}/a.txt'"
    command = f"'{sys.executable}' '{SCRIPT}' {words} >/dev/full"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=300)
    assert result.returncode == 1
    assert result.stderr == b"prepare.py: cannot write to standard output: No space left on device\n"
    stream(tmp_path / "o")


def test_shards_are_read_as_they_are_written(tmp_path):
    publish(tmp_path, "no validation")
    assert shard(tmp_path / "train_000002.bin").tolist() == list(range(420, 425))
