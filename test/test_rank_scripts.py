"""scripts/keep_training.sh, train_nodes.sh and train.slurm, and ranks that other launchers start."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import REPOSITORY
from test_train import metrics_of, tiny_run

SCRIPTS = REPOSITORY / "scripts"
FILES = ("model.safetensors", "optimizer.safetensors")
BOUND = 120  # seconds for whatever a test waits for: the machine may be slow

# A command that does at its n-th start what the n-th word of $PLAN says: its exit code, and before it c to
# make a new checkpoint, r to make the newest one again, s to wait for a signal. It keeps its arguments and
# the signal.
PRETENDED = """#!/bin/bash
mkdir -p run/checkpoints
n=$(($(ls words.* 2>/dev/null | wc -l) + 1))
printf '%s\\n' "$@" > words.$n
set -- $PLAN
step=${!n}
case $step in
  c*) mkdir run/checkpoints/step_0000$((n + 990)) ;;
  r*) newest=$(ls -d run/checkpoints/step_* | tail -n 1); rmdir "$newest"; mkdir "$newest" ;;
  s*)
    for name in TERM INT USR1 HUP; do trap "echo $name >> signals; exit ${step#s}" $name; done
    touch waits
    while :; do sleep 0.02; done ;;
esac
exit ${step#[crs]}
"""


def wait_until(condition):
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def start(words, **options):
    settings = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "stdin": subprocess.DEVNULL,
    }
    return subprocess.Popen([str(word) for word in words], **settings | options)


def ended(process):
    """Exit code and stderr."""
    _, errors = process.communicate(timeout=BOUND)
    return process.returncode, errors


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in found.split()]


def end_with_children(processes):
    """Ends what has stayed, and waits for it."""
    for process in processes:
        if process.poll() is None:
            started = children(process.pid)
            process.kill()
            for child in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        process.communicate(timeout=BOUND)  # to the end of stderr, which the children have open too


def with_variables(**variables):
    return os.environ | {name: str(value) for name, value in variables.items()}


def test_shellcheck_finds_nothing():
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    scripts = [SCRIPTS / name for name in ("keep_training.sh", "train_nodes.sh", "train.slurm")]
    found = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.fixture
def pretended(tmp_path):
    path = tmp_path / "pretended"
    path.write_text(PRETENDED)
    path.chmod(0o755)
    return path


@pytest.fixture
def keep(pretended, tmp_path):
    """keep(plan): keep_training.sh with the pretended command."""

    def call(plan, *words, wait=0):
        words = words or ("--out", "run")
        command = [SCRIPTS / "keep_training.sh", pretended, *words]
        process = start(command, cwd=tmp_path, env=with_variables(PLAN=plan, WAIT=wait))
        processes.append(process)
        return process

    processes = []
    yield call
    end_with_children(processes)


def starts(folder):
    return len(list(folder.glob("words.*")))


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ("0", 0),
        ("c1 0", 0),
        ("1 137 0", 0),
        ("1 134 139", 139),  # three in a row
        ("1 c1 1 1 0", 0),  # a checkpoint begins the count anew
        ("c1 c137 c1 c255 c1 0", 0),
        ("c1 r1 r1 r1 0", 0),  # made again in place of a damaged one
        ("c1 c4", 4),
        ("c137 c3", 3),
    ],
)
def test_a_command_is_started_again_as_long_as_checkpoints_come(keep, tmp_path, plan, code):
    got, errors = ended(keep(plan))
    assert (got, starts(tmp_path)) == (code, len(plan.split())), errors
    assert errors.count("is started again in 0 s") == starts(tmp_path) - 1
    assert ("given up" in errors) == (code == 139)


def test_exit_codes_after_which_another_start_would_not_help(keep, tmp_path):
    for code in (0, 1, 2, 3, 4, 5, 9, 126, 127, 128, 137, 143, 255):
        got, errors = ended(keep(f"{code} {code} {code} 0"))
        assert got == code, errors
        assert starts(tmp_path) == (1 if code in (0, 2, 3, 4) else 3), code
        for file in tmp_path.glob("words.*"):
            file.unlink()


@pytest.mark.parametrize("out", [["--out", "a run"], ["--out=a run"]])
def test_the_run_is_found_and_arguments_arrive_as_they_are(keep, tmp_path, out):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "a run").symlink_to("run")
    words = ["--config", "two words", *out, "--set", "data.train=x_*.bin", ""]
    code, errors = ended(keep("c1 1 1 0", *words))
    assert code == 0, errors
    for number in range(1, 5):
        assert (tmp_path / f"words.{number}").read_text() == "\n".join([*words, "--resume", ""])


@pytest.mark.parametrize(
    "words", [[], ["./train"], ["./train", "--out"], ["./train", "--out="], ["--set", "a"]]
)
def test_without_a_run_there_is_nothing_to_keep(words):
    code, errors = ended(start([SCRIPTS / "keep_training.sh", *words]))
    assert code == 2 and errors.startswith("usage: scripts/keep_training.sh COMMAND... --out RUN\n")


@pytest.mark.parametrize("code", [4, 1, 137])
@pytest.mark.parametrize("name", ["TERM", "INT", "USR1", "HUP"])
def test_a_signal_ends_the_command_and_all(keep, tmp_path, name, code):
    process = keep(f"s{code} 0")
    wait_until((tmp_path / "waits").exists)
    process.send_signal(getattr(signal, f"SIG{name}"))
    got, errors = ended(process)
    assert got == code and "started again" not in errors
    assert starts(tmp_path) == 1
    assert (tmp_path / "signals").read_text() == {"INT": "TERM"}.get(name, name) + "\n"


@pytest.mark.parametrize("failed", [1, 137])
@pytest.mark.parametrize("name", ["TERM", "INT", "USR1", "HUP"])
def test_a_signal_between_two_starts_ends_all_with_the_code_of_the_last(keep, tmp_path, name, failed):
    process = keep(f"c{failed} 0", wait=1000)
    assert "is started again in 1000 s" in process.stderr.readline()
    began = time.monotonic()
    process.send_signal(getattr(signal, f"SIG{name}"))
    code, errors = ended(process)  # at the end of its output: nobody has it open any more
    assert (code, starts(tmp_path)) == (failed, 1)
    assert f"SIG{ {'INT': 'TERM'}.get(name, name) } after the command had ended with code {failed};" in errors
    assert time.monotonic() - began < 60


def test_no_signal_is_lost_at_the_start(keep, tmp_path):
    def code_after(wait):
        process = keep("s4 0")
        wait()
        process.send_signal(signal.SIGUSR1)
        code, errors = ended(process)
        # Whoever had it first: the shell, the command before it handled it, or after.
        assert code in (-signal.SIGUSR1, 128 + signal.SIGUSR1, 4), errors
        for file in (*tmp_path.glob("words.*"), tmp_path / "waits"):
            file.unlink(missing_ok=True)
        return code

    begun, handles = tmp_path / "words.1", tmp_path / "waits"
    began = time.monotonic()
    assert code_after(lambda: wait_until(handles.exists)) == 4
    whole = time.monotonic() - began
    codes = [code_after(lambda: time.sleep(whole * part / 20)) for part in range(21)]
    assert codes.count(-signal.SIGUSR1) < len(codes)
    for _ in range(5):  # the script handles it by then
        assert code_after(lambda: wait_until(begun.exists)) in (128 + signal.SIGUSR1, 4)


def assert_same_run(run, other):
    newest = max(path.name for path in other.glob("checkpoints/step_*"))
    for file in FILES:
        ours, theirs = ((folder / "checkpoints" / newest / file).read_bytes() for folder in (run, other))
        assert ours == theirs, file
    ours, theirs = ([(line["step"], line["loss"]) for line in metrics_of(folder)] for folder in (run, other))
    assert ours == theirs


def test_training_that_is_killed_goes_on_to_the_same_end(binary, tmp_path):
    long = {"train__steps": 1500, "checkpoint__interval": 250, "eval__interval": 0, "log__interval": 500}
    subprocess.run(
        [binary, *tiny_run(tmp_path / "unbroken", **long), "--ranks", "2"], check=True, timeout=BOUND
    )
    words = [SCRIPTS / "keep_training.sh", binary, *tiny_run(tmp_path / "run", **long), "--ranks", "2"]
    process = start(words, env=with_variables(WAIT=0), stdout=subprocess.DEVNULL)
    checkpoints = tmp_path / "run/checkpoints"
    wait_until((checkpoints / "step_00000250").exists)
    (launcher,) = children(process.pid)
    os.kill(launcher, signal.SIGKILL)  # the ranks end with it
    wait_until((checkpoints / "step_00000750").exists)
    wait_until(lambda: [child for child in children(process.pid) if child != launcher])
    (launcher,) = children(process.pid)
    os.kill(children(launcher)[1], signal.SIGKILL)  # rank 1
    code, errors = ended(process)
    assert code == 0, errors
    assert "keep_training: the command ended with code 137" in errors
    assert "rank 1" in errors and errors.count("is started again") == 2, (
        errors
    )  # rank 0 may be the first to end
    assert_same_run(tmp_path / "run", tmp_path / "unbroken")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def nodes(tmp_path):
    """nodes(nodes, ranks, words): train_nodes.sh for each of so many nodes, all of which are this host."""
    processes = []

    def call(count, ranks, words, **variables):
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        for node in reversed(range(count)):
            command = [SCRIPTS / "train_nodes.sh", node, count, ranks, *words]
            process = start(
                command, cwd=tmp_path, env=with_variables(**here | variables), stdout=subprocess.DEVNULL
            )
            processes.insert(0, process)
        return processes

    yield call
    end_with_children(processes)


def test_the_ranks_of_two_nodes_train_what_one_rank_trains(binary, nodes, tmp_path):
    words = ["--set", "distributed.leaves=4"]
    subprocess.run([binary, *tiny_run(tmp_path / "one"), *words], check=True, timeout=BOUND)
    for process in nodes(2, 2, [binary, *tiny_run(tmp_path / "four"), *words]):
        assert ended(process) == (0, "")
    assert_same_run(tmp_path / "four", tmp_path / "one")


def endless(folder):
    return tiny_run(folder, train__steps=10_000_000, eval__interval=0, log__interval=10_000_000)


def test_a_killed_rank_ends_all_nodes(binary, nodes, tmp_path):
    first, second = nodes(2, 2, [binary, *endless(tmp_path / "run")])
    wait_until((tmp_path / "run/metrics.jsonl").exists)
    killed = children(second.pid)[1]
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    (code, errors), (other_code, other_errors) = ended(first), ended(second)
    assert time.monotonic() - began < 25  # their sign of life is missed after 30 s
    assert f"rank 3 (host {socket.gethostname()}, pid {killed}) has ended" in errors
    assert (
        code == 1
        and "train_nodes: rank 0 ended with code 1\ntrain_nodes: rank 1 ended with code 1\n" in errors
    )
    assert other_code == 1 and "train_nodes: rank 3 ended with code 137\n" in other_errors


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1", "HUP"])
def test_a_signal_at_one_node_stops_all_after_saving(binary, nodes, tmp_path, name):
    first, second = nodes(2, 1, [binary, *endless(tmp_path / "run")])
    wait_until((tmp_path / "run/metrics.jsonl").exists)
    second.send_signal(getattr(signal, f"SIG{name}"))
    (code, errors), (other_code, _) = ended(first), ended(second)
    assert (code, other_code) == (4, 4), errors
    assert "at rank 1; continue with --resume" in errors
    assert len(list((tmp_path / "run/checkpoints").glob("step_*"))) == 1


def test_each_rank_knows_its_place(nodes, tmp_path):
    script = (
        'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS $*" > rank_$RANK'
    )
    for process in nodes(2, 3, ["bash", "-c", script, "name", "two words"], OMP_NUM_THREADS=5):
        assert ended(process) == (0, "")
    for rank in range(6):
        told = (tmp_path / f"rank_{rank}").read_text()
        assert told == f"{rank}/6 {rank % 3}/3 127.0.0.1 5 two words\n"


@pytest.mark.parametrize(
    ("codes", "expected"), [("0 0 0", 0), ("0 4 0", 4), ("4 1 137", 1), ("0 137 1", 137), ("4 4 3", 3)]
)
def test_the_code_of_a_node_is_that_of_its_first_rank_that_failed(nodes, codes, expected):
    (process,) = nodes(
        1, 3, ["bash", "-c", "set -- $CODES; sleep 0.$((3 - RANK)); exit ${@:RANK+1:1}"], CODES=codes
    )
    code, errors = ended(process)
    failed = [(rank, code) for rank, code in enumerate(codes.split()) if code not in ("0", "4")]
    assert code == expected
    assert errors == "".join(f"train_nodes: rank {rank} ended with code {code}\n" for rank, code in failed)


@pytest.mark.parametrize(
    "words",
    [[], [0, 1, 1], [1, 1, 1, "true"], [0, 0, 1, "true"], [0, 1, 0, "true"], ["-1", 2, 1, "true"]]
    + [["x", 2, 1, "true"], [0, "08", 1, "true"], [0, 1, "1.5", "true"], [0, 1, 999_999, "true"]],
)
def test_a_node_that_does_not_exist_is_refused(words):
    environment = with_variables(MASTER_ADDR="127.0.0.1")
    code, errors = ended(start([SCRIPTS / "train_nodes.sh", *words], env=environment))
    assert code == 2 and errors.startswith("usage: MASTER_ADDR=HOST scripts/train_nodes.sh NODE NODES RANKS")


def test_nodes_need_the_address_of_the_first():
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
    code, errors = ended(start([SCRIPTS / "train_nodes.sh", 0, 2, 1, "true"], env=environment))
    assert code == 2 and "MASTER_ADDR is not set" in errors


@pytest.fixture
def job(tmp_path):
    """job(code): train.slurm where srun does what $DOES says and ends with that code: its exit code and
    output, and what srun and scontrol were given."""
    for name, last in (("srun", 'eval "$DOES"; exit $CODE'), ("scontrol", "exit 0")):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/bash\nprintf '%s\\n' \"$@\" > {name}.words\nenv > {name}.env\n{last}\n")
        tool.chmod(0o755)

    def call(code, *words, does="", **variables):
        environment = {"CODE": code, "DOES": does, "SLURM_JOB_ID": 4711, "SLURM_CPUS_PER_TASK": 6} | variables
        environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        done = start(
            ["bash", SCRIPTS / "train.slurm", *words], cwd=tmp_path, env=with_variables(**environment)
        )
        output, errors = done.communicate(timeout=BOUND)
        given = [
            path.read_text().splitlines()
            for path in (tmp_path / "srun.words", tmp_path / "scontrol.words")
            if path.exists()
        ]
        return done.returncode, output + errors, *given

    return call


ONE_MORE = "mkdir 'a run/checkpoints/step_00001000'"
THE_SAME_AGAIN = "cd 'a run/checkpoints'; rmdir step_00000990; mkdir step_00000990"
HALF = "mkdir 'a run/checkpoints/.step_00001000'"


@pytest.mark.parametrize("out", [["--out", "a run"], ["--out=a run"]], ids=["--out RUN", "--out=RUN"])
@pytest.mark.parametrize(
    ("code", "does", "requeued"),
    [(code, does, False) for code in (0, 2, 3) for does in ("", ONE_MORE)]
    + [(code, does, True) for code in (4, 138, 143) for does in ("", ONE_MORE)]
    + [(code, does, False) for code in (1, 5, 127, 134, 137, 255) for does in ("", HALF)]
    + [(code, does, True) for code in (1, 134, 137, 255) for does in (ONE_MORE, THE_SAME_AGAIN)],
)
def test_a_job_goes_back_into_the_queue_where_that_helps(job, tmp_path, code, does, requeued, out):
    (tmp_path / "a run/checkpoints/step_00000990").mkdir(parents=True)
    got, told, _, *requeue = job(code, "--config", "c4_125m", *out, "--set", "train.steps=9", does=does)
    assert got == code, told
    assert requeue == ([["requeue", "4711"]] if requeued else [])
    assert ("back into the queue" in told, "not started again" in told) == (
        requeued,
        not requeued and code != 0,
    )


def test_a_job_that_has_no_checkpoint_yet(job, tmp_path):
    assert len(job(1, "--out", "run")) == 3  # scontrol was given nothing
    assert job(1, "--out", "run", does="mkdir -p run/checkpoints/step_00000010")[3] == ["requeue", "4711"]


@pytest.mark.parametrize("words", [[], ["--config", "c4_125m"], ["--out"], ["--out="]], ids=str)
def test_a_job_without_a_run_does_not_start(job, words):
    code, told, *given = job(0, *words)
    assert (code, given) == (2, []) and told == "usage: sbatch scripts/train.slurm OPTIONS... --out RUN\n"


def test_a_job_passes_on_its_arguments(job, tmp_path):
    words = ["--config", "two words", "--set", "data.train=x_*.bin", "", "--out", "$HOME"]
    _, _, given = job(0, *words, OMP_NUM_THREADS="")
    assert given[given.index("./train_gpt_goat") + 1 :] == [*words, "--resume"]
    assert "--cpus-per-task=6" in given[: given.index("./train_gpt_goat")]
    assert "OMP_NUM_THREADS=6\n" in (tmp_path / "srun.env").read_text()


def other_launchers():
    """Name, and the command for two ranks on this host; None where it is not installed."""
    launchers = {"Open MPI": None, "MPICH": None, "torchrun": None}
    for name in ("mpirun.openmpi", "mpiexec.mpich", "mpirun"):
        if not shutil.which(name):
            continue
        version = subprocess.run([name, "--version"], capture_output=True, text=True).stdout
        if "Open MPI" in version:
            launchers["Open MPI"] = [
                name,
                "--oversubscribe",
                *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
            ]
            launchers["Open MPI"] += ["-n", "2"]
        elif "HYDRA" in version:
            launchers["MPICH"] = [name, "-n", "2"]
    if shutil.which("torchrun"):
        launchers["torchrun"] = ["torchrun", "--no-python", "--standalone", "--nproc-per-node=2"]
    return launchers


@pytest.mark.parametrize("name", ["Open MPI", "MPICH", "torchrun"])
def test_ranks_of_another_launcher_are_those_of_the_own(binary, run_binary, tmp_path, name):
    command = other_launchers()[name]
    if command is None:
        pytest.skip(f"{name} is not installed")
    run_binary(*tiny_run(tmp_path / "own"), "--ranks", 2)
    code, errors = ended(start([*command, binary, *tiny_run(tmp_path / "run")]))
    assert code == 0, errors
    assert_same_run(tmp_path / "run", tmp_path / "own")


def test_ranks_of_srun_by_its_variables(binary, run_binary, tmp_path):
    run_binary(*tiny_run(tmp_path / "own"), "--ranks", 2)
    variables = {
        "SLURM_JOB_ID": free_port(),
        "SLURM_STEP_ID": 0,
        "SLURM_STEP_NUM_TASKS": 2,
        "SLURM_NTASKS": 2,
    }
    variables |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": 1, "MASTER_PORT": free_port()}
    ranks = [
        start(
            [binary, *tiny_run(tmp_path / "run")],
            env=with_variables(SLURM_PROCID=rank, SLURM_LOCALID=rank, **variables),
        )
        for rank in (1, 0)
    ]
    for rank in ranks:
        assert ended(rank) == (0, "")
    assert_same_run(tmp_path / "run", tmp_path / "own")
