"""Runs of several ranks that are stopped, and go on by other numbers of ranks."""

import contextlib
import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from many_ranks import (
    SMALL,
    by_hand,
    command,
    end,
    endings,
    metrics,
    ranks_under,
    result,
    start,
    steps_done,
    wait_until,
)

# A line a step in all runs, held or not: a checkpoint keeps the setting, and a held run may save one.
LONG = SMALL | {"train.steps": 60, "checkpoint.interval": 25, "eval.interval": 20, "log.interval": 1}


def run_unbroken(binary, folder, settings):
    """A run by one rank that nothing stopped."""
    words = [str(word) for word in [binary, *command(folder, 1, settings)]]
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def unbroken(binary, tmp_path_factory):
    return run_unbroken(binary, tmp_path_factory.mktemp("unbroken") / "run", LONG)


def require_continued(folder, unbroken):
    """The stops have only left more checkpoints."""
    ours, theirs = result(folder), result(unbroken)
    assert ours["metrics"] == theirs["metrics"]
    assert ours["config"] == theirs["config"]
    for kind in ("states", "files"):
        assert {name: ours[kind].get(name) for name in theirs[kind]} == theirs[kind]


def hold(binary, folder, ranks, *words, settings=LONG):
    """Starts a run that waits after less than 50 steps, until somebody reads what it prints: a line a step,
    into a pipe of 4,096 bytes."""
    return start(binary, command(folder, ranks, settings, *words), pipesize=4096)


def newest(folder):
    return max((folder / "checkpoints").iterdir()).name


def stop_after(binary, folder, settings, ranks, steps, *words):
    """Stops a run by SIGUSR1 to its launcher, after at least so many steps."""
    process = hold(binary, folder, ranks, *words, settings=settings)
    try:
        wait_until(lambda: steps_done(folder) >= steps, [process])
        process.send_signal(signal.SIGUSR1)
        [(code, _, errors)] = endings([process])
    finally:
        end(process)
    assert code == 4, errors
    assert newest(folder) == f"step_{len(metrics(folder)):08d}"


def test_resumed_by_other_numbers_of_ranks_it_is_the_unbroken_run(run_binary, binary, tmp_path):
    settings = LONG | {"train.steps": 160}  # three runs that are held end before
    folder = tmp_path / "run"
    stop_after(binary, folder, settings, 4, 2)
    stop_after(binary, folder, settings, 2, len(metrics(folder)) + 2, "--resume")
    stop_after(binary, folder, settings, 1, len(metrics(folder)) + 2, "--resume")
    told = run_binary(*command(folder, 4, settings, "--resume")).stdout
    assert "resuming    after step" in told
    require_continued(folder, run_unbroken(binary, tmp_path / "unbroken", settings))


def test_without_a_config_other_numbers_of_ranks_keep_the_runs_own_leaves(run_binary, tmp_path):
    settings = SMALL | {"train.min_lr": 0.01, "train.steps": 24, "train.batch": 8}
    run_binary(*command(tmp_path / "unbroken", 1, settings))
    folder = tmp_path / "run"
    run_binary(*command(folder, 4, settings, train__steps=6, distributed__leaves=0))
    for ranks, steps in ((2, 12), (1, 18), (4, 24)):
        words = ["--out", folder, "--resume", "--ranks", ranks, "--set", f"train.steps={steps}"]
        run_binary(*words)
    ours, theirs = result(folder), result(tmp_path / "unbroken")
    every = range(24)
    for run in (ours, theirs):  # the stops have validated the model too
        for line in run["metrics"]:
            line.pop("val_loss", None)
    assert [ours["metrics"][i] for i in every] == [theirs["metrics"][i] for i in every]
    assert ours["config"] == theirs["config"]
    shared = ours["files"].keys() & theirs["files"].keys()
    assert "step_00000024/model" in shared and len(shared) >= 6
    assert {name: ours["files"][name] for name in shared} == {name: theirs["files"][name] for name in shared}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
@pytest.mark.parametrize("whom", ["rank 0", "rank 1", "all", "the launcher"])
def test_a_signal_stops_all_ranks_after_the_same_step(run_binary, binary, tmp_path, unbroken, name, whom):
    folder, number = tmp_path / "run", getattr(signal, name)
    process = hold(binary, folder, 2)
    try:
        wait_until(lambda: steps_done(folder) >= 1, [process])
        if whom == "the launcher":
            process.send_signal(number)
        else:
            ranks = ranks_under(process.pid)
            for rank in [int(whom[5:])] if whom.startswith("rank") else random.sample([0, 1], 2):
                with contextlib.suppress(ProcessLookupError):  # both have stopped for the first signal
                    os.kill(ranks[rank], number)
                time.sleep(random.uniform(0, 0.05))
        [(code, output, errors)] = endings([process])
    finally:
        end(process)
    assert code == 4, errors
    done = len(metrics(folder))
    assert newest(folder) == f"step_{done:08d}" and done < 60
    place = " at rank 1" if whom == "rank 1" else "( at rank 1)?" if whom in ("all", "the launcher") else ""
    said = rf"stopped after step {done} of 60 by signal {number.value} \([\w ]+\){place}; continue with"
    assert re.search(said, errors), errors
    told = run_binary(*command(folder, 2, LONG, "--resume")).stdout
    assert f"resuming    after step {done}, from {folder}/checkpoints/step_{done:08d}" in told
    require_continued(folder, unbroken)


def seconds_computed(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("ranks", "threads"), [(1, 1), (1, 2), (2, 1)])
def test_signals_in_the_middle_of_matrix_products_spoil_nothing(
    run_command, binary, tmp_path, monkeypatch, ranks, threads
):
    """Some products of oneDNN have no stack on which a handler could run."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    settings = SMALL | {"train.batch": 1600, "train.steps": 2, "train.warmup": 1, "eval.tokens": 0}
    process = start(binary, command(tmp_path / "run", ranks, settings))
    try:
        ready = "\nrun  "
        told = ""
        while ready not in told:
            told += process.stdout.read(1)
        pids = list(ranks_under(process.pid).values()) if ranks > 1 else [process.pid]
        begun = {pid: seconds_computed(pid) for pid in pids}
        wait_until(lambda: all(seconds_computed(pid) > begun[pid] + 0.1 for pid in pids), [process])
        for _ in range(150):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it has stopped for an earlier one
                    os.kill(pid, signal.SIGHUP)  # the one signal that may come as often as it likes
            time.sleep(0.002)
        [(code, _, errors)] = endings([process])
    finally:
        end(process)
    assert code == 4 and "stopped after step 1 of 2 by signal 1" in errors, errors


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_were_started_by_hand_all_end_with_4(binary, run_binary, tmp_path, unbroken, ranks):
    folder = tmp_path / "run"
    words = command(folder, 1, LONG)
    processes = by_hand(binary, [words] * ranks, pipesize=[4096] * ranks)
    try:
        wait_until(lambda: steps_done(folder) >= 3, processes)
        for process in random.sample(processes, ranks):
            process.send_signal(signal.SIGUSR1)
            time.sleep(random.uniform(0, 0.05))
        told = endings(processes)
    finally:
        for process in processes:
            end(process)
    assert [code for code, _, _ in told] == [4] * ranks, told
    assert [errors for _, _, errors in told[1:]] == [""] * (ranks - 1)
    run_binary(*command(folder, 1, LONG, "--resume"))
    require_continued(folder, unbroken)


def test_checkpoints_by_the_clock_of_rank_0_change_nothing(run_binary, tmp_path, unbroken):
    folder = tmp_path / "run"
    run_binary(*command(folder, 2, LONG, checkpoint__minutes=1e-4))
    ours, theirs = result(folder), result(unbroken)
    assert ours["metrics"] == theirs["metrics"]
    assert {name: ours["files"][name] for name in theirs["files"]} == theirs["files"]
    assert len(ours["files"]) > len(theirs["files"])


def writable_regions(pid):
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, rights, *_, inode = line.split()[:5]
        if rights.startswith("rw") and inode == "0":
            yield [int(address, 16) for address in addresses.split("-")]


def flip_a_bit(pid, needle):
    """Flips the lowest bit in the middle of every place in a process's memory that holds these bytes."""
    found = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for first, last in writable_regions(pid):
            memory.seek(first)
            try:
                content = memory.read(last - first)
            except OSError:  # a region that the kernel keeps to itself
                continue
            at = content.find(needle)
            while at >= 0:
                place = at + len(needle) // 2
                memory.seek(first + place)
                memory.write(bytes([content[place] ^ 1]))
                found += 1
                at = content.find(needle, at + 1)
    return found


def unread(pipe):
    """Number of bytes that wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def wait_until_it_stands_still(process, progress):
    """Waits until this has not changed for 20 times as long as it ever took to change: rank 0 prints a line
    for which there is no room."""
    longest, seen, since = 0.05, progress(), time.monotonic()

    def still():
        nonlocal longest, seen, since
        now, was = time.monotonic(), seen
        seen = progress()
        if seen != was:
            longest, since = max(longest, now - since), now
        return now - since > 20 * longest

    wait_until(still, [process])


def test_a_flipped_bit_in_the_weights_of_a_rank_ends_all_and_nothing_is_saved(run_binary, binary, tmp_path):
    """With a learning rate of nearly 0 weights stay as they are, so that those of a checkpoint can be found
    in memory. Rank 0 waits for its output to be read after it has gathered the weights of a step and before
    it compares them: what is flipped then is not overwritten by the weights of the next step."""
    folder = tmp_path / "run"
    still = {
        "train.lr": 1e-30,
        "train.min_lr": 0,
        "train.batch": 6,
        "eval.tokens": 0,
        "log.interval": 1,
        "distributed.check_interval": 1,
        "distributed.leaves": 3,
        "checkpoint.interval": 0,
    }
    run_binary(*command(folder, 3, SMALL | still, train__steps=3))
    saved = load_file(folder / "checkpoints" / "step_00000003" / "model.safetensors")
    name = "blocks.0.attn.o.weight"
    words = command(folder, 3, SMALL | still, "--resume", train__steps=1000)
    process = start(binary, words, pipesize=4096)
    try:
        wait_until(lambda: unread(process.stdout) > 3800, [process])
        wait_until_it_stands_still(process, lambda: (steps_done(folder), unread(process.stdout)))
        held = steps_done(folder)
        pid = ranks_under(process.pid)[0]
        assert flip_a_bit(pid, saved[name].tobytes()) > 0
        [(code, _, errors)] = endings([process])
    finally:
        end(process)
    assert code == 1, errors
    step = held + 1  # it is logged when its line has been printed
    assert len(metrics(folder)) == step
    assert errors.count("have different weights") == 1
    odd = rf"the ranks have different weights: rank 0 \(host \S+, pid {pid}\) in {name};"
    assert re.search(f"error: after step {step} {odd}", errors), errors
    assert f"Newest checkpoint: {folder}/checkpoints/step_00000003; --resume continues from it" in errors
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_00000003"]
