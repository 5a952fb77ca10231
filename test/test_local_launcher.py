"""Copies of a command as the ranks of this host: exit codes, output, signals, and that nothing is left."""

import os
import re
import signal
import subprocess
import time

import pytest

from test_ranks import PROGRAM


def launch(ranks, script, **options):
    """The launcher, with copies of a shell script."""
    return subprocess.Popen(
        [PROGRAM, "launch", str(ranks), "/bin/sh", "-c", script],
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def run(ranks, script, timeout=20, **options):
    process = launch(ranks, script, **options)
    output, errors = process.communicate(timeout=timeout)
    return process.returncode, output, errors


def exists(pid):
    """Whether a process is there, be it as a zombie."""
    return os.path.exists(f"/proc/{pid}")


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def pids_in(lines, count):
    """The pids that `count` ranks print first."""
    return [int(lines.readline()) for _ in range(count)]


def test_each_copy_gets_its_place_and_one_port():
    code, output, errors = run(
        3, "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $GOAT_JOB"
    )
    lines = sorted(output.splitlines())
    assert (code, errors) == (0, "")
    assert [line.split()[:2] for line in lines] == [[f"{rank}/3", f"{rank}/3"] for rank in range(3)]
    assert len({tuple(line.split()[2:]) for line in lines}) == 1


def test_cores_are_shared_unless_the_user_says_otherwise():
    def threads(ranks, **variables):
        rest = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        return set(run(ranks, "echo $OMP_NUM_THREADS", env=rest | variables)[1].split())

    assert threads(2) == {str(max(1, len(os.sched_getaffinity(0)) // 2))}
    assert threads(64) == {"1"}
    assert threads(2, OMP_NUM_THREADS="5") == {"5"}


def test_variables_of_another_launcher_do_not_reach_the_copies():
    outer = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    code, output, _ = run(2, "env", env=os.environ | outer)
    assert code == 0
    assert "OMPI_" not in output and "TORCHELASTIC" not in output


def test_inside_another_launcher_it_refuses():
    outer = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "MASTER_ADDR": "a"}
    code, output, errors = run(2, "echo never", env=os.environ | outer)
    assert (code, output) == (2, "")
    assert "--ranks 2 inside mpirun" in errors


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", 0),
        ("[ $RANK = 1 ] && exit 3; exit 0", 3),
        ("[ $RANK = 1 ] && kill -9 $$; exit 0", 137),
        ("exit 4", 4),  # stopped after saving is no failure
        ("[ $RANK = 1 ] && exit 4; sleep 1.2", 4),  # nobody is hurried
        ("[ $RANK = 1 ] && exit 4; sleep 0.3; exit 3", 3),
        ("[ $RANK = 1 ] && exit 3; sleep 0.3; exit 5", 3),  # the first
    ],
)
def test_the_exit_code_is_that_of_the_first_that_failed(script, expected):
    code, _, errors = run(2, script)
    assert code == expected
    if expected == 137:
        assert re.search(r"^rank 1 \(pid \d+\) was killed by signal 9 \(Killed\)$", errors, re.MULTILINE)
    elif expected == 3:
        assert re.search(r"^rank \d \(pid \d+\) ended with exit code 3$", errors, re.MULTILINE)
    else:
        assert errors == ""


def test_a_command_that_does_not_exist_is_named():
    process = subprocess.run(
        [PROGRAM, "launch", "2", "/nowhere/program"], capture_output=True, text=True, timeout=20, check=False
    )
    assert process.returncode == 127
    assert "[1] /nowhere/program: cannot be started: No such file or directory" in process.stderr


def test_after_a_failure_the_others_are_ended_first_kindly_then_by_force():
    began = time.monotonic()
    script = """
        [ $RANK = 0 ] && exit 7
        [ $RANK = 1 ] && trap 'echo bye >&2; exit 0' TERM
        [ $RANK = 2 ] && trap '' TERM
        while :; do sleep 0.05; done"""
    code, _, errors = run(3, script)
    assert code == 7
    assert "[1] bye" in errors
    assert re.search(r"rank 2 \(pid \d+\) was killed by signal 9", errors)
    assert 1.3 < time.monotonic() - began < 8  # 0.7 s of patience, 0.7 s after SIGTERM


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signals_are_passed_on_to_all(name):
    script = f"trap 'echo got >&2; exit 4' {name[3:]}; echo $$; while :; do sleep 0.02; done"
    process = launch(2, script)
    pids_in(process.stdout, 2)
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 4
    assert sorted(errors.splitlines()) == ["[0] got", "[1] got"]


def test_an_ignored_signal_stays_ignored():
    script = "echo $$; sleep 0.5"
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", PROGRAM, "launch", "1", "/bin/sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    )
    (pid,) = pids_in(process.stdout, 1)
    process.send_signal(signal.SIGHUP)
    os.kill(pid, signal.SIGHUP)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_lines_keep_their_order_and_their_rank_and_are_not_mixed():
    script = """
        i=0
        while [ $i -lt 300 ]; do echo line $i of $RANK >&2; i=$((i + 1)); done
        printf 'no end' >&2"""
    code, _, errors = run(4, script)
    assert code == 0
    for rank in range(4):
        own = [line for line in errors.splitlines() if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] line {i} of {rank}" for i in range(300)] + [f"[{rank}] no end"]
    assert len(errors.splitlines()) == 4 * 301


def test_a_line_without_end_is_passed_on_in_pieces():
    _, _, errors = run(1, "head -c 100000 /dev/zero | tr '\\0' x >&2")
    assert all(line.startswith("[0] x") for line in errors.splitlines())
    assert errors.count("x") == 100_000


def test_a_reader_that_does_not_read_or_is_gone_stops_nobody():
    process = launch(1, "echo $$; while :; do echo much >&2; done")
    pids_in(process.stdout, 1)
    time.sleep(0.3)  # its pipe is full now
    process.terminate()
    assert wait_until(lambda: process.poll() is not None)
    process.communicate()
    gone = launch(1, "i=0; while [ $i -lt 3000 ]; do echo $i >&2; i=$((i + 1)); done; echo end")
    gone.stderr.close()
    assert gone.stdout.read() == "end\n"
    assert gone.wait(timeout=20) == 0


def test_only_rank_0_reads_from_stdin():
    reading, writing = os.pipe()
    os.write(writing, b"words\n")
    os.close(writing)
    _, output, _ = run(2, 'read -r line; echo "$RANK:$line"', stdin=reading)
    os.close(reading)
    assert sorted(output.splitlines()) == ["0:words", "1:"]


def test_a_killed_launcher_takes_its_ranks_along():
    process = launch(3, "echo $$; exec sleep 100")
    pids = pids_in(process.stdout, 3)
    process.kill()
    process.wait()
    assert wait_until(lambda: not any(running(pid) for pid in pids))


def running(pid):
    """Whether it is there and no zombie that only waits for this machine's init."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_rank_that_has_ended_is_no_zombie():
    process = launch(2, "echo $$; [ $RANK = 1 ] && exit 0; sleep 1.5")
    pids = pids_in(process.stdout, 2)
    assert wait_until(lambda: sum(map(exists, pids)) == 1, seconds=1.2)
    process.communicate(timeout=20)


def test_ranks_meet_and_a_failure_ends_them_all():
    whole = subprocess.run(
        [PROGRAM, "launch", "4", PROGRAM, "take"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (whole.returncode, whole.stderr) == (0, "")
    assert sorted(whole.stdout.split("\n")) == sorted(
        ["", *(f"met {rank} of 4" for rank in range(4)), *(f"done {rank}" for rank in range(4))]
    )
    words = ["take", "fault=throw", "fault_rank=2", "place=step"]
    failed = subprocess.run(
        [PROGRAM, "launch", "4", PROGRAM, *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert failed.returncode == 3
    for rank in range(4):
        line = rf"^\[{rank}\] rank {rank} .*shard_7.bin: row 12 is damaged$"
        assert re.search(line, failed.stderr, re.MULTILINE)
