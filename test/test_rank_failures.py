"""A run of several ranks, one of which fails at an exact moment: all others end within the limit and name it,
nothing is left, and a resume with another number of ranks is bitwise the run that nothing interrupted.
Mostly the ranks are started side by side, so that no launcher ends them."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from many_ranks import wait_until
from prepared import write_shard
from rank_runs import (
    LIBRARY,
    SETTINGS,
    checkpoints,
    exists,
    half_checkpoints,
    hidden,
    losses,
    named,
    same_end,
    start_by_hand,
    start_by_launcher,
    words,
)
from test_ranks import in_space, two_hosts  # noqa: F401  a fixture
from test_train import changed, flags

REACTION = 10  # seconds in which all are gone once one is known to have failed; it usually takes one or two
HEARTBEAT, START = SETTINGS["distributed.heartbeat_timeout"], SETTINGS["distributed.start_timeout"]
SPARE_STEP = 6  # a step without a save or a validation


def traced(binary, folder, device="cpu"):
    """A run that nothing interrupts: its folder, and on the cpu the wakes until each step was done."""
    with start_by_hand(binary, 2, words(folder, device=device), trace=True) as run:
        run.wait()
    assert [outcome[0] for outcome in run.outcome.values()] == [0, 0], run.outcome
    if device != "cpu":
        return folder, []
    wakes, at_saves = 0, []
    for call in run.lines(0, "call"):
        wakes += call.startswith("wake")
        if call.startswith("rename") and re.search(r"/step_\d+$", call):
            at_saves.append(wakes)
    interval, steps = SETTINGS["checkpoint.interval"], SETTINGS["train.steps"]
    a_step = (at_saves[1] - at_saves[0]) // interval
    assert at_saves == [at_saves[0] + k * interval * a_step for k in range(steps // interval)] and a_step > 3
    return folder, [at_saves[0] + (step - interval) * a_step for step in range(steps + 1)]


@pytest.fixture(scope="module")
def unbroken_on(binary, tmp_path_factory):
    if not LIBRARY.is_file():
        pytest.fail(f"{LIBRARY} is missing: make tests builds it")
    devices = ["cpu"]
    if "simt" in subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout:
        devices.append("simt")
    return {device: traced(binary, tmp_path_factory.mktemp(device) / "run", device) for device in devices}


@pytest.fixture
def unbroken(unbroken_on):
    return unbroken_on["cpu"]


@dataclass
class Case:
    fault: str
    moment: str
    ranks: int
    rank: int  # of the fault
    device: str = "cpu"
    resumed_by: int = 1  # ranks

    def __str__(self):
        return f"{self.fault} at {self.moment} in rank {self.rank} of {self.ranks} on {self.device}"


ACTIONS = {
    "kill": f"signal:{int(signal.SIGKILL)}",
    "stop": f"signal:{int(signal.SIGSTOP)}",
    "exit": "exit:5",
    "exception": "bad_alloc",
}
# The newest checkpoint that must be there after a fault at this moment; "": none.
NEWEST = {
    "rendezvous": "",
    "first collective": "",
    "gradients": "step_00000004",
    "report": "step_00000004",
    "update": "step_00000004",
    "pieces of a save": "step_00000004",
    "before the rename": "step_00000004",
    "after the rename": "step_00000008",
}
IN_A_STEP = "a step after the first save"


def cases():
    count = itertools.cycle((1, 2, 4))
    for (ranks, rank), fault, moment in itertools.product(((2, 0), (2, 1), (4, 2)), ACTIONS, NEWEST):
        # An exception in a save is a save that fails; at the rendezvous nothing can be out of memory alone.
        if fault == "exception" and moment in ("rendezvous", "pieces of a save", "before the rename"):
            continue
        if moment == "before the rename" and rank != 0:
            continue  # rank 0 alone renames
        if (ranks, fault) == (4, "exit") or (fault == "stop" and moment in ("report", "first collective")):
            continue
        yield Case(fault, moment, ranks, rank, resumed_by=next(count))
    for fault, moment in (("kill", IN_A_STEP), ("stop", IN_A_STEP), ("kill", "pieces of a save")):
        yield Case(fault, moment, 2, 1, device="simt", resumed_by=2)


def place_of(case, before):
    """Where the library strikes."""
    saved = ".step_00000008/"
    if case.moment == "rendezvous":
        return "call=accept" if case.rank == 0 else "call=send"
    if case.moment == "pieces of a save":
        return f"call=pwrite;path={saved}model.safetensors"
    if case.moment == "before the rename":
        return "call=rename;path=/step_00000008$"
    if case.moment == "after the rename" and case.rank == 0 and case.fault != "exception":
        return "call=fsync;count=2;path=/checkpoints$"
    first, last = before[SPARE_STEP - 1] + 1, before[SPARE_STEP]
    return "call=wake;count=" + str(
        {
            "first collective": 1,
            "gradients": first + 1,
            "report": last - 2,
            "update": last,
            "after the rename": before[8] + 1,
        }[case.moment]
    )


def limit_of(case):
    """Seconds until all are gone."""
    if case.moment == "rendezvous":  # the others wait for it; if it is rank 0, it may seem to be there
        return START + 5 + REACTION
    return HEARTBEAT + REACTION if case.fault == "stop" else REACTION


def strike_in_a_step(case, binary, folder):
    """On the simulated GPU, whose exchange is slow here: the library knows no moment of it."""
    slowly = [["env", "GOAT_SIMT_NCCL_DELAY=100"]] * case.ranks
    with start_by_hand(binary, case.ranks, words(folder, device=case.device), prefixes=slowly) as run:
        wait_until((folder / "checkpoints/step_00000004").exists, run.processes.values())
        time.sleep(0.3)
        struck = time.monotonic()
        run.processes[case.rank].send_signal({"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[case.fault])
        run.wait(case.rank)
        run.processes[case.rank].kill()
        run.take(case.rank)
    return run, run.ended - struck


def run_case(case, binary, before, folder):
    if case.moment == IN_A_STEP:
        return strike_in_a_step(case, binary, folder)
    arguments = words(folder, device=case.device)
    fault = f"rank={case.rank};{place_of(case, before)};do={ACTIONS[case.fault]}"
    with start_by_hand(binary, case.ranks, arguments, fault) as run:
        run.wait(case.rank)
        if case.fault == "stop":
            run.processes[case.rank].kill()
        run.take(case.rank)
    return run, run.seconds()


def resume(binary, folder, ranks, device="cpu"):
    command = words(folder, "--resume", device=device)
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    return subprocess.run([binary, *command], capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def outcomes(binary, unbroken_on, tmp_path_factory):
    """Several cases at once, and more of those that only wait for a limit."""
    root = tmp_path_factory.mktemp("cases")

    def one(item):
        number, case = item
        folder = root / str(number)
        run, taken = run_case(case, binary, unbroken_on[case.device][1], folder)
        there = (half_checkpoints(folder), checkpoints(folder)) if folder.exists() else ([], [])
        return run, taken, there, resume(binary, folder, case.resumed_by, case.device), folder

    everything = [case for case in cases() if case.device in unbroken_on]
    everything.sort(key=limit_of, reverse=True)
    with ThreadPoolExecutor(16) as waiting, ThreadPoolExecutor(3) as working:
        pools = [waiting if limit_of(case) > REACTION else working for case in everything]
        futures = [pool.submit(one, item) for pool, item in zip(pools, enumerate(everything), strict=True)]
        return {str(case): future.result() for case, future in zip(everything, futures, strict=True)}


def outcome_of(outcomes, case):
    if str(case) not in outcomes:
        pytest.skip(f"there is no {case.device} device in this build")
    return outcomes[str(case)]


def reason_of(case):
    """What each of the others says."""
    if case.moment == "rendezvous":
        late = rf"rank {case.rank} of {case.ranks} at port \d+ did not come"
        gone = r"rank 0 at 127\.0\.0\.1.* (did not answer|ended while the ranks were starting)"
        return late if case.rank else gone
    if case.fault == "exception":
        return named(case.rank) + ": out of memory on the host"
    if case.fault == "stop":
        return named(case.rank) + f" has given no sign of life for {HEARTBEAT} s"
    return named(case.rank) + " has ended"


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_the_others_end_in_time_and_name_the_rank_that_failed(outcomes, case):
    run, taken, *_ = outcome_of(outcomes, case)
    assert taken < limit_of(case), run.outcome
    assert not [pid for pid in run.pids() if exists(pid)]
    for rank, (code, _, errors) in run.outcome.items():
        if rank == case.rank and case.fault != "exception":
            continue
        assert code == 1, (rank, errors)
        lines = [line for line in errors.splitlines() if re.search(reason_of(case), line)]
        assert len(lines) == 1, (rank, errors)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_one_rank_tells_the_newest_checkpoint_and_nothing_half_done_is_left(outcomes, case):
    run, _, (half, there), _, folder = outcome_of(outcomes, case)
    newest = NEWEST.get(case.moment, "step_00000004")
    assert half == [] and run.segments_left() == []
    assert max(there, default="") == newest
    lines = "".join(errors for *_, errors in run.outcome.values()).splitlines()
    told = [line for line in lines if str(folder) in line]
    if case.moment == "rendezvous":
        return  # the run has not begun
    assert len(told) == 1, run.outcome
    if newest:
        assert f"{folder}/checkpoints/{newest}" in told[0] and "--resume" in told[0]
    else:
        assert "has no checkpoint" in told[0]


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_a_resume_is_bitwise_the_run_that_nothing_interrupted(outcomes, unbroken_on, case):
    *_, resumed, folder = outcome_of(outcomes, case)
    assert resumed.returncode == 0, resumed.stderr
    assert hidden(folder) == []
    assert same_end(folder, unbroken_on[case.device][0]) == ""


def require_device(device, unbroken_on):
    if device not in unbroken_on:
        pytest.skip(f"there is no {device} device in this build")


# The simulated NCCL has two names.
@pytest.mark.parametrize(
    ("device", "rank", "call"),
    [
        ("cpu", 0, "fallocate"),
        ("cpu", 1, "shm_open"),
        ("cpu", 1, "wake"),
        ("simt", 0, "fallocate"),
        ("simt", 0, "fallocate;count=2"),
        ("simt", 1, "shm_open"),
    ],
)
def test_a_rank_that_dies_while_the_memory_is_shared_leaves_none_of_it(
    binary, unbroken_on, tmp_path, device, rank, call
):
    require_device(device, unbroken_on)
    fault = f"rank={rank};call={call};do={ACTIONS['kill']}"
    if call == "shm_open":  # rank 0 is to have made it
        fault = f"rank={rank};call={call};do=pause:0.2|" + fault
    with start_by_hand(binary, 4, words(tmp_path / "run", device=device), fault) as run:
        run.wait()
        assert run.seconds() < REACTION, run.outcome
    assert len(run.lines(0, "shm")) >= 1 and run.segments_left() == []
    for other in set(range(4)) - {rank}:
        assert re.search(named(rank) + " has ended", run.outcome[other][2]), run.outcome


@pytest.mark.parametrize("device", ["cpu", "simt"])
def test_a_signal_to_all_while_the_memory_is_shared_leaves_none_of_it(binary, unbroken_on, tmp_path, device):
    require_device(device, unbroken_on)
    fault = f"rank=0;call=fallocate;do=signal_parent:{int(signal.SIGTERM)}|rank=0;call=fallocate;do=pause:20"
    with start_by_launcher(binary, 4, words(tmp_path / "run", device=device), fault) as run:
        run.wait()
    assert run.outcome[-1][0] == 128 + signal.SIGTERM  # nothing was there to be saved
    assert len(run.lines(0, "shm")) >= 1 and run.segments_left() == []


@pytest.mark.parametrize(("ranks", "rank"), [(2, 0), (4, 3)])
def test_a_rank_that_hangs_is_found_to_be_behind(binary, unbroken, tmp_path, ranks, rank):
    """The limit is six times as long if rank 0 has not heard yet that all train."""
    settings = SETTINGS | {"distributed.progress_timeout": 10}
    fault = f"rank={rank};{place_of(Case('hang', 'gradients', ranks, rank), unbroken[1])};do=hang"
    with start_by_hand(binary, ranks, words(tmp_path / "run", settings=settings), fault) as run:
        run.wait()
        assert run.seconds() < 6 * 10 + REACTION, run.outcome
    for code, _, errors in run.outcome.values():
        assert code == 1 and re.search("no rank has got on for (10|60) s", errors), run.outcome
        assert re.search(named(rank) + f" step {SPARE_STEP}, train, collective", errors)
    assert resume(binary, tmp_path / "run", 1).returncode == 0
    assert same_end(tmp_path / "run", unbroken[0]) == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_in_a_save_is_named(binary, tmp_path, rank):
    settings = SETTINGS | {"distributed.progress_timeout": 1}  # six times as much in a save
    fault = f"rank={rank};call=pwrite;path=.step_00000008/model;do=hang"
    with start_by_hand(binary, 2, words(tmp_path / "run", settings=settings), fault) as run:
        run.wait()
        assert run.seconds() < 6 + 2 + REACTION, run.outcome
    for code, _, errors in run.outcome.values():
        assert code == 1 and "no rank has got on for 6 s" in errors, run.outcome
        assert re.search(f"; rank {rank} has not come to '[^']+' of the others", errors), errors


def test_a_run_removes_the_memory_that_a_killed_one_has_left(binary, tmp_path):
    left = Path(f"/dev/shm/goat-{time.time_ns()}")
    left.write_bytes(bytes(64))
    os.utime(left, (time.time() - 70,) * 2)
    with start_by_hand(binary, 2, words(tmp_path / "run", settings=SETTINGS | {"train.steps": 4})) as run:
        run.wait()
    assert [outcome[0] for outcome in run.outcome.values()] == [0, 0], run.outcome
    assert not left.exists()


# ---------------------------------------------------------------------------------------- with the launcher
@pytest.mark.parametrize("fault", ["kill", "stop", "exit"])
def test_the_launcher_ends_with_the_ranks_in_time(binary, unbroken, tmp_path, fault):
    place = f"call=wake;count={unbroken[1][SPARE_STEP]}"
    with start_by_launcher(binary, 2, words(tmp_path / "run"), f"rank=1;{place};do={ACTIONS[fault]}") as run:
        run.wait()
        assert not [pid for pid in run.pids() if exists(pid)]
        code, _, errors = run.outcome[-1]
        assert run.seconds() < HEARTBEAT * (fault == "stop") + REACTION, errors
    assert code in {"kill": (137, 1), "stop": (1,), "exit": (5, 1)}[fault]
    assert re.search(named(1) + f" has (ended|given no sign of life for {HEARTBEAT} s)", errors)
    assert "checkpoints/step_00000004; the same command with --resume" in errors
    assert resume(binary, tmp_path / "run", 4).returncode == 0
    assert same_end(tmp_path / "run", unbroken[0]) == ""


@pytest.mark.parametrize("moment", ["start", "step", "save"])
def test_a_killed_launcher_takes_the_ranks_with_it(binary, unbroken, tmp_path, moment):
    place = {
        "start": "call=wake",
        "step": f"call=wake;count={unbroken[1][SPARE_STEP]}",
        "save": "call=pwrite;path=.step_00000008/model",
    }[moment]
    fault = f"rank=2;{place};do=signal_parent:{int(signal.SIGKILL)}|rank=2;{place};do=hang"
    with start_by_launcher(binary, 4, words(tmp_path / "run"), fault) as run:
        run.wait()
        assert run.outcome[-1][0] == -signal.SIGKILL
        while [pid for pid in run.pids() if exists(pid)]:
            assert time.monotonic() < run.fault_times()[0] + REACTION
            time.sleep(0.01)
        assert run.segments_left() == []
    assert half_checkpoints(tmp_path / "run") == []
    assert resume(binary, tmp_path / "run", 2).returncode == 0
    assert same_end(tmp_path / "run", unbroken[0]) == ""


# ------------------------------------------------------------------------------------ saves that cannot be
@dataclass
class BadSave:
    rank: int
    place: str
    error: str
    says: str

    def __str__(self):
        return f"{self.error} at {self.place} in rank {self.rank}"


BAD_SAVES = [
    BadSave(1, "call=pwrite;path=.step_00000008/model", "ENOSPC", "No space left on device"),
    BadSave(0, "call=pwrite;path=.step_00000008/optimizer;count=20", "ENOSPC", "No space left on device"),
    BadSave(1, "call=open;path=.step_00000008/optimizer", "EROFS", "Read-only file system"),
    BadSave(0, "call=open;path=.step_00000008/model", "EROFS", "Read-only file system"),
    BadSave(1, "call=fsync;path=.step_00000008/model", "EIO", "Input/output error"),
    BadSave(0, "call=ftruncate;path=.step_00000008/model", "ENOSPC", "No space left on device"),
    BadSave(0, "call=write;path=.step_00000008/state.json", "ENOSPC", "No space left on device"),
    BadSave(0, "call=rename;path=/step_00000008$", "EIO", "Input/output error"),
]


@pytest.mark.parametrize("bad", BAD_SAVES, ids=str)
def test_a_save_that_one_rank_cannot_write_is_dropped_by_all_and_training_goes_on(
    binary, unbroken, tmp_path, bad
):
    folder = tmp_path / "run"
    fault = f"rank={bad.rank};{bad.place};do=error:{bad.error}"
    with start_by_hand(binary, 2, words(folder), fault) as run:
        run.wait()
    assert [outcome[0] for outcome in run.outcome.values()] == [0, 0], run.outcome
    assert len(run.fault_times()) == 1
    errors = run.outcome[0][2]
    assert re.search(
        rf"WARNING: checkpoint of step 8 NOT saved: {named(bad.rank)}: .*{bad.says}.* Training goes on. The "
        rf"newest checkpoint is {folder}/checkpoints/step_00000004",
        errors,
    ), errors
    assert run.outcome[1][2] == ""
    assert checkpoints(folder) == ["step_00000004", "step_00000012"] and hidden(folder) == []
    assert same_end(folder, unbroken[0]) == ""


def test_a_last_save_that_one_rank_cannot_write_is_a_failure(binary, unbroken, tmp_path):
    folder = tmp_path / "run"
    fault = "rank=1;call=pwrite;path=.step_00000012/model;times=9;do=error:ENOSPC"
    with start_by_hand(binary, 2, words(folder), fault) as run:
        run.wait()
    assert [outcome[0] for outcome in run.outcome.values()] == [1, 1], run.outcome
    assert re.search(f"step 12 NOT saved: {named(1)}: .*No space left", run.outcome[0][2])
    assert checkpoints(folder)[-1] == "step_00000008" and hidden(folder) == []
    assert resume(binary, folder, 4).returncode == 0
    assert same_end(folder, unbroken[0]) == ""


def test_a_rank_that_dies_while_rank_0_writes_the_state_leaves_no_checkpoint(binary, unbroken, tmp_path):
    folder = tmp_path / "run"
    fault = "rank=0;call=write;path=.step_00000008/state.json;do=kill_rank:1"
    with start_by_hand(binary, 2, words(folder), fault) as run:
        run.wait()
        assert run.seconds() < REACTION
    assert run.outcome[0][0] == 1 and re.search(named(1) + " has ended", run.outcome[0][2])
    assert half_checkpoints(folder) == [] and run.segments_left() == []
    assert resume(binary, folder, 2).returncode == 0
    assert same_end(folder, unbroken[0]) == "" and hidden(folder) == []


# ------------------------------------------------------------------------------------------------- signals
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("SIGTERM", "call=pwrite;path=.step_00000008/model"),
        ("SIGUSR1", "call=fsync;path=.step_00000008/optimizer"),
        ("SIGUSR1", "gradients"),
        ("SIGTERM", "update"),
    ],
)
@pytest.mark.parametrize("launcher", [False, True], ids=["one rank", "all ranks"])
def test_after_a_signal_all_stop_after_the_same_step_and_save(
    binary, unbroken, tmp_path, name, place, launcher
):
    folder, number = tmp_path / "run", int(getattr(signal, name))
    if "=" not in place:
        place = place_of(Case("kill", place, 2, 1), unbroken[1])
    start, action = (start_by_launcher, "signal_parent") if launcher else (start_by_hand, "signal")
    with start(binary, 2, words(folder), f"rank=1;{place};do={action}:{number}") as run:
        run.wait()
    assert {outcome[0] for outcome in run.outcome.values()} == {4}, run.outcome
    done = losses(folder)[-1][0]
    assert SPARE_STEP <= done < 12 and checkpoints(folder)[-1] == f"step_{done:08d}"
    assert half_checkpoints(folder) == [] and hidden(folder) == []
    errors = "".join(outcome[2] for outcome in run.outcome.values())
    assert len(re.findall(f"stopped after step {done} of 12 by signal {number}", errors)) == 1
    assert resume(binary, folder, 4).returncode == 0
    assert same_end(folder, unbroken[0]) == ""


# ---------------------------------------------------------------------------------------------------- data
TOKENS = np.arange(40_000) % 16
ON_SHARDS = SETTINGS | {
    "data.source": "shards",
    "data.block": "window",
    "model.width": 16,
    "train.steps": 300,
    "checkpoint.interval": 50,
    "eval.interval": 0,
    "eval.tokens": 0,
}


def shards(folder, first, second):
    folder.mkdir()
    write_shard(folder / "train_0.bin", first)
    write_shard(folder / "train_1.bin", second)
    return ON_SHARDS | {"data.train": f"{folder}/train_*.bin"}


def damaged(tokens, *places):
    return np.where(np.isin(np.arange(len(tokens)), places), 16, tokens)


def all_saved_the_same_step(run, folder, pattern):
    """Exit code 3 on all ranks, which have saved after the step that was logged last; that step."""
    assert {outcome[0] for outcome in run.outcome.values()} == {3}, run.outcome
    errors = run.outcome[0][2]
    assert len(re.findall(f"error: {pattern}", errors)) == 1, errors
    done = losses(folder)[-1][0] if (folder / "metrics.jsonl").exists() else 0
    if done:
        assert f"What step {done} had reached is saved." in errors
        assert checkpoints(folder)[-1] == f"step_{done:08d}"
    assert half_checkpoints(folder) == [] and run.segments_left() == []
    return done


def test_damage_that_one_rank_finds_in_its_share_of_the_check_ends_all_with_3(binary, tmp_path):
    settings = shards(tmp_path / "data", TOKENS, damaged(TOKENS, 39_990))
    folder = tmp_path / "run"
    with start_by_hand(binary, 2, words(folder, settings=settings)) as run:
        run.wait()
    done = all_saved_the_same_step(run, folder, named(1) + r": .*/train_1\.bin.*39990")
    assert done < 300


@pytest.mark.parametrize("cut", [False, True], ids=["a token", "cut short"])
def test_damage_that_one_rank_reads_ends_all_after_the_same_step_and_a_resume_is_bitwise_the_same(
    binary, tmp_path, cut
):
    """The file is damaged while rank 0 stands still, after the check of all data."""
    settings = shards(tmp_path / "data", TOKENS, TOKENS)
    unbroken = words(tmp_path / "unbroken", settings=settings)
    subprocess.run([binary, *unbroken], check=True, capture_output=True, timeout=200)
    folder, file = tmp_path / "run", tmp_path / "data/train_1.bin"
    good = file.read_bytes()
    fault = f"rank=0;call=write;path=metrics.jsonl;count=20;do=signal:{int(signal.SIGSTOP)}"
    patient = settings | {"distributed.heartbeat_timeout": 30}
    with start_by_hand(binary, 2, words(folder, settings=patient), fault) as run:
        while not run.fault_times():
            assert run.processes[0].poll() is None
            time.sleep(0.005)
        if cut:
            os.truncate(file, 20_000)
        else:
            with file.open("r+b") as data:
                for place in range(1000, 40_000, 4000):
                    data.seek(1024 + 2 * place)
                    data.write(b"\x10\0")
        run.processes[0].send_signal(signal.SIGCONT)
        run.wait()
    done = all_saved_the_same_step(run, folder, r"rank \d \(host \S+, pid \d+\): .*/train_1\.bin")
    assert 20 <= done < 300
    file.write_bytes(good)
    command = words(folder, "--resume", "--ranks", "4", settings=settings)
    subprocess.run([binary, *command], check=True, capture_output=True, timeout=200)
    assert same_end(folder, tmp_path / "unbroken") == ""


def test_a_shard_that_is_cut_short_before_the_start_is_named_by_all(binary, tmp_path):
    settings = shards(tmp_path / "data", TOKENS, TOKENS)
    os.truncate(tmp_path / "data/train_1.bin", 20_000)
    with start_by_hand(binary, 2, words(tmp_path / "run", settings=settings)) as run:
        run.wait()
    assert [outcome[0] for outcome in run.outcome.values()] == [3, 3], run.outcome
    assert "train_1.bin" in run.outcome[0][2]
    assert not (tmp_path / "run").exists() and run.segments_left() == []


# --------------------------------------------------------------------------------------------------- hosts
def test_cpu_ranks_on_two_hosts_are_refused_by_all(binary, tmp_path, two_hosts):  # noqa: F811
    prefixes = [in_space(name, f"host{rank}") for rank, name in enumerate(two_hosts)]
    place = dict(prefixes=prefixes, address="10.213.7.1", port=29_512)
    with start_by_hand(binary, 2, words(tmp_path / "run"), **place) as run:
        run.wait()
    for code, _, errors in run.outcome.values():
        assert code == 2 and "several hosts (host0, host1)" in errors and "--ranks N" in errors, run.outcome
    assert not (tmp_path / "run").exists()


def test_ranks_with_different_configs_are_refused_by_all(binary, tmp_path):
    def arguments(rank):
        return words(tmp_path / "run", settings=SETTINGS | {"train.lr": 0.01 + 0.01 * rank})

    with start_by_hand(binary, 2, arguments) as run:
        run.wait()
    for code, _, errors in run.outcome.values():
        assert code == 2 and re.search(r"train\.lr.*rank [01]|rank [01].*lr", errors), run.outcome
    assert not (tmp_path / "run").exists()
