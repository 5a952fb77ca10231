"""Runs of several ranks, and what must be the same in runs of other numbers of ranks."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from test_train import changed, flags, metrics_of

# About eight chunks of 32,768 weights, so that each of four ranks updates some. A leaf has two micro-batches,
# and the validation's sequences cannot be shared evenly.
SMALL = {
    "model.width": 48,
    "model.vocab": 4096,
    "prior.pos_rank": 2,
    "prior.abs_rank": 2,
    "prior.recency": "free",
    "data.seq_len": 16,
    "train.batch": 8,
    "train.micro_batch": 1,
    "train.steps": 20,
    "train.warmup": 3,
    "eval.interval": 7,
    "eval.tokens": 7 * 16,
    "checkpoint.interval": 9,
    "checkpoint.keep": 0,
    "log.interval": 5,
    "distributed.leaves": 4,
}
SIMULATED = SMALL | {
    "model.width": 16,
    "prior.pos_rank": 1,
    "data.seq_len": 8,
    "eval.tokens": 5 * 8,
    "eval.interval": 10,
    "train.batch": 4,
    "train.steps": 12,
}
# Only these lines of the metrics tell of the machine.
OF_THE_MACHINE = {"tokens_per_second", "flops_per_second", "memory_bytes", "seconds", "mfu"}


def command(folder, ranks, settings, *words, config="copy_mixture", **changes):
    chosen = ["--ranks", ranks] if ranks > 1 else []
    given = ["--config", config] if config else []
    return [*given, "--out", folder, *chosen, *flags(changed(settings, changes)), *words]


def metrics(folder):
    lines = metrics_of(folder)
    return [{key: value for key, value in line.items() if key not in OF_THE_MACHINE} for line in lines]


def state_of(checkpoint):
    """state.json without times, and without who wrote which piece of a file."""
    state = json.loads((checkpoint / "state.json").read_text())
    for name in ("seconds", "files", "format", "xxh3_64"):
        del state[name]
    return state


def result(folder):
    """All of a run that does not depend on who computed it: metrics, checkpoints and their states."""
    checkpoints = sorted((folder / "checkpoints").iterdir())
    return {
        "metrics": metrics(folder),
        "config": (folder / "config.toml").read_text(),
        "states": {path.name: state_of(path) for path in checkpoints},
        "files": {
            f"{path.name}/{name}": hashlib.sha256((path / f"{name}.safetensors").read_bytes()).hexdigest()
            for path in checkpoints
            for name in ("model", "optimizer")
        },
    }


def require_same(folders):
    """Fails unless all these runs have the same results, bit for bit."""
    results = [result(folder) for folder in folders]
    for folder, other in zip(folders[1:], results[1:]):
        for kind, expected in results[0].items():
            assert other[kind] == expected, f"{folder.name} differs from {folders[0].name} in its {kind}"
    return results[0]


@pytest.fixture
def many(run_binary, tmp_path):
    """many(settings, *words, ranks=(1, 2, 4), code=0, **changes): runs the same config by so many ranks and
    returns their common result."""

    def run(settings, *words, ranks=(1, 2, 4), code=0, device="cpu", config="copy_mixture", **changes):
        folders = [tmp_path / f"by_{size}" for size in ranks]
        for folder, size in zip(folders, ranks):
            run_binary(
                *command(folder, size, settings, "--device", device, *words, config=config, **changes),
                code=code,
            )
        return require_same(folders)

    return run


def start(binary, words, **options):
    """The program in a process group of its own."""
    return subprocess.Popen(
        [str(word) for word in [binary, *words]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def ranks_under(launcher):
    """{rank: pid} of the copies that a process has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    found = {}
    for pid in map(int, children):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for entry in environment:
            if entry.startswith(b"RANK="):
                found[int(entry[5:])] = pid
    return found


def end(process):
    """Ends a process group that start() began, whatever it does."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def by_hand(binary, words, *, size=None, ranks=None, environment=(), port=None, **options):
    """Processes that are told by variables that they are the ranks 0, 1, .. (or `ranks`) of a run. `words`
    and `environment` hold a command line and some variables for each, `options` a list for each option."""
    port = port or free_port()
    processes = []
    for place, line in enumerate(words):
        variables = {
            "RANK": ranks[place] if ranks else place,
            "WORLD_SIZE": size or len(words),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            **(environment[place] if environment else {}),
        }
        own = {name: value[place] for name, value in options.items()}
        variables = {name: str(value) for name, value in variables.items()}
        processes.append(start(binary, line, env=os.environ | variables, **own))
    return processes


def endings(processes, timeout=120):
    """(exit code, stdout, stderr) of each."""
    try:
        told = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            end(process)
    return [(process.returncode, *texts) for process, texts in zip(processes, told)]


def wait_until(condition, processes, seconds=100):
    """Waits while all the processes run."""
    limit = time.monotonic() + seconds
    while not condition():
        ended = [process.communicate() for process in processes if process.poll() is not None]
        assert not ended and time.monotonic() < limit, ended
        time.sleep(0.002)


def steps_done(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
