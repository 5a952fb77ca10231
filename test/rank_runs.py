"""Runs of the program as several ranks, started side by side without a launcher or by --ranks, that
test/programs/fault_library.cpp makes fail at exact moments."""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from conftest import REPOSITORY
from test_ranks import free_port
from test_train import TINY, flags, metrics_of

BUILD = Path(os.environ.get("GOAT_BUILD", REPOSITORY / "build"))
LIBRARY = REPOSITORY / BUILD / "test" / "libfault_library.so"

# Four leaves: runs of 1, 2 and 4 ranks have the same bits. Each of four ranks owns a piece of the weights.
# The limits let ranks that do their work be slow on a busy machine.
SETTINGS = TINY | {
    "model.width": 128,
    "distributed.leaves": 4,
    "distributed.heartbeat_timeout": 10,
    "distributed.start_timeout": 30,
    "checkpoint.interval": 4,
    "train.micro_batch": 1,
}


def words(folder, *extra, settings=SETTINGS, device="cpu"):
    return ["--config", "copy_mixture", "--out", str(folder), "--device", device, *flags(settings), *extra]


@dataclass
class Run:
    """Processes that were started, by rank; a launcher stands at -1."""

    processes: dict
    folder: tempfile.TemporaryDirectory  # of the library's logs, until stop() keeps them here
    kept: dict | None = None  # {rank: text}
    outcome: dict = field(default_factory=dict)  # {rank: (code, stdout, stderr)}
    ended: float = 0.0  # when the last of those that were waited for had ended

    def logs(self):
        """{rank: what the library has logged}"""
        if self.kept is not None:
            return self.kept
        return {log.suffix[1:]: log.read_text() for log in Path(self.folder.name).glob("log.*")}

    def wait(self, *but, timeout=200):
        """Waits for all except the ranks `but`."""
        for rank, process in self.processes.items():
            if rank not in but:
                output, errors = process.communicate(timeout=timeout)
                self.outcome[rank] = process.returncode, output, errors
        self.ended = time.monotonic()
        return self

    def take(self, rank):
        """The outcome of a rank that was not waited for; the end of the others counts."""
        output, errors = self.processes[rank].communicate(timeout=200)
        self.outcome[rank] = self.processes[rank].returncode, output, errors

    def stop(self):
        """Ends what has stayed, and waits for it. The logs can still be asked for."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for pid in self.pids():  # ranks whose launcher was killed, should they have stayed
            with contextlib.suppress(ProcessLookupError):
                if exists(pid):
                    os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.communicate()  # to the end of their output: ranks of a launcher have it open too
        self.kept = self.logs()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def lines(self, rank, word):
        """What the library has logged of the rank after this word."""
        text = self.logs().get(str(rank), "")
        return [line.removeprefix(word + " ") for line in text.splitlines() if line.startswith(word + " ")]

    def of_all(self, word):
        return [line for rank in self.logs() for line in self.lines(rank, word)]

    def pids(self):
        return [int(pid) for pid in self.of_all("pid")]

    def fault_times(self):
        return [float(at) for at in self.of_all("acts")]

    def seconds(self):
        """From the first fault to the end of all that were waited for."""
        return self.ended - min(self.fault_times(), default=-float("inf"))

    def segments_left(self):
        return [name for name in self.of_all("shm") if Path("/dev/shm" + name).exists()]


def environment(log, fault, trace, variables):
    own = {"LD_PRELOAD": LIBRARY, "GOAT_TEST_FAULT": fault, "GOAT_TEST_FAULT_LOG": log, "OMP_NUM_THREADS": 1}
    if trace:
        own["GOAT_TEST_TRACE"] = 1
    return os.environ | {name: str(value) for name, value in (own | variables).items()}


def _start(command, log, fault, trace, **variables):
    return subprocess.Popen(
        [str(word) for word in command],
        env=environment(log, fault, trace, variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_by_hand(
    program, ranks, arguments, fault="", trace=False, prefixes=None, address="127.0.0.1", port=0
):
    """Each rank with its variables, so that no launcher ends them. `arguments` may differ by rank: a function
    of it."""
    log = tempfile.TemporaryDirectory(prefix="goat_faults_")
    port = port or free_port()
    processes = {}
    for rank in range(ranks):
        own = arguments(rank) if callable(arguments) else arguments
        prefix = prefixes[rank] if prefixes else []
        place = dict(RANK=rank, WORLD_SIZE=ranks, MASTER_ADDR=address, MASTER_PORT=port)
        processes[rank] = _start([*prefix, program, *own], log.name, fault, trace, **place)
    return Run(processes, log)


def start_by_launcher(program, ranks, arguments, fault="", trace=False):
    log = tempfile.TemporaryDirectory(prefix="goat_faults_")
    command = [program, *arguments, "--ranks", ranks]
    return Run({-1: _start(command, log.name, fault, trace)}, log)


def start_alone(program, arguments, fault=""):
    """A run of one rank, without a launcher."""
    log = tempfile.TemporaryDirectory(prefix="goat_faults_")
    return Run({-1: _start([program, *arguments], log.name, fault, False, RANK=0, WORLD_SIZE=1)}, log)


def exists(pid):
    """Whether the process is there and not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def losses(folder):
    return [
        (line["step"], line["loss"], line["grad_norm"], line.get("val_loss")) for line in metrics_of(folder)
    ]


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("step_*"))


def hidden(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob(".*"))


def half_checkpoints(folder):
    """Checkpoints that a resume would find but that lack a file."""
    files = {"state.json", "model.safetensors", "optimizer.safetensors"}
    return [
        path.name
        for path in (folder / "checkpoints").glob("step_*")
        if {file.name for file in path.iterdir()} != files
    ]


def same_end(folder, unbroken):
    """What differs between the ends of two runs; empty if nothing does."""
    if losses(folder) != losses(unbroken):
        return "metrics.jsonl"
    last = checkpoints(unbroken)[-1]
    for name in ("model.safetensors", "optimizer.safetensors"):
        if (folder / "checkpoints" / last / name).read_bytes() != (
            unbroken / "checkpoints" / last / name
        ).read_bytes():
            return name
    a, b = (json.loads((run / "summary.json").read_text()) for run in (folder, unbroken))
    return ", ".join(key for key in ("steps", "loss", "val_loss", "checkpoint") if a.get(key) != b.get(key))


def named(rank):
    return rf"rank {rank} \(host \S+, pid \d+\)"


def names(errors, pattern):
    return re.search(pattern, errors) is not None
