#!/usr/bin/env python3
"""The ranks of dev/gpu_check.sh, each a process of its own:

    dev/gpu_ranks.py nccl                                    which NCCL a program would load, as JSON
    dev/gpu_ranks.py run --ranks N [--way WAY] -- PROGRAM WORDS...
    dev/gpu_ranks.py kill --ranks N [--way WAY] --out RUN --after STEPS -- PROGRAM WORDS...

`run` starts them with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, shows what they say, and exits with the
code of the first that failed; the others are then ended. `kill` ends rank 1 by SIGKILL once RUN has so many
steps: all others must end within --within seconds, and name it.

WAY says how ranks come to a GPU: gpus (a GPU each; the default), or two on one: hosts (each NCCL_HOSTID is
another, so NCCL connects them as two hosts, over sockets of the loopback) or shared (NCCL 2.30 and later,
NCCL_MULTI_RANK_GPU_ENABLE=1). Exits with 77, saying why, where this machine or NCCL cannot do what was asked.
Needs nothing but Python.
"""

import argparse
import ctypes
import ctypes.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from gpu_run import read_metrics

NOT_RUN = 77  # exit code: this machine cannot do it
SHARING_FROM = 23000  # NCCL 2.30 as ncclGetVersion() has it
# NCCL's own words where it does not take two ranks on one GPU.
REFUSED = re.compile(r"Duplicate GPU detected.*")
VICTIM = 1  # the rank that `kill` ends
GRACE = 5.0  # seconds for ranks to end by themselves after the first failure
POLL = 0.01
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class NotRun(Exception):
    """This machine cannot do what was asked for."""


class Failed(Exception):
    def __init__(self, what, code=1):
        super().__init__(what)
        self.code = code


def nccl():
    """{library, version, number} of the library that a program would load: $GOAT_NCCL or libnccl.so.2."""
    name = os.environ.get("GOAT_NCCL", "libnccl.so.2")
    try:
        library = ctypes.CDLL(name)
    except OSError as problem:
        raise NotRun(
            f"no NCCL: {problem}; install a package such as nvidia-nccl-cu13, or set GOAT_NCCL"
        ) from problem
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    major, rest = divmod(number.value, 10_000)
    minor, patch = divmod(rest, 100)
    return {"library": name, "version": f"{major}.{minor}.{patch}", "number": number.value}


def first_gpu():
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def variables(way, rank):
    """What a way adds to the environment of a rank. Few channels: two ranks share the GPU's multiprocessors,
    and a kernel of one waits for that of the other."""
    if way == "gpus":
        return {}
    shared = {"CUDA_VISIBLE_DEVICES": first_gpu(), "GOAT_SHARE_GPU": "1", "NCCL_MAX_CTAS": "2"}
    if way == "hosts":
        return shared | {"NCCL_HOSTID": f"goat-check-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    return shared | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def require(way):
    if way == "shared" and (found := nccl())["number"] < SHARING_FROM:
        raise NotRun(f"NCCL {found['version']} takes one rank a GPU; from 2.30 on it takes several")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_with_parent():
    """The kernel ends a rank whose launcher has been killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Rank:
    """A process, whose output is shown line by line behind its number, and kept."""

    def __init__(self, rank, size, port, way, words):
        self.rank, self.lines = rank, []
        environment = os.environ | {"NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | variables(way, rank)
        self.process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=end_with_parent,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            print(f"[{self.rank}] {line}", end="", file=sys.stderr, flush=True)

    def running(self):
        return self.process.poll() is None

    def said(self):
        self.reader.join(timeout=2)
        return "\n".join(self.lines)


def start(size, way, words):
    port = free_port()
    return [Rank(rank, size, port, way, words) for rank in range(size)]


def end(ranks):
    for rank in ranks:
        if rank.running():
            rank.process.kill()
    for rank in ranks:
        rank.process.wait()


def settle(ranks, seconds):
    """Waits until all have ended, for so long at most. Returns those that still run."""
    until = time.monotonic() + seconds
    while (running := [rank for rank in ranks if rank.running()]) and time.monotonic() < until:
        time.sleep(POLL)
    return running


def refusal(ranks):
    """NCCL's words, if it does not take two ranks on one GPU; else ''."""
    found = (REFUSED.search(rank.said()) for rank in ranks)
    return next((match[0] for match in found if match), "")


def run(ranks):
    """Waits for all. Throws Failed with the code of the first that failed, NotRun where NCCL refused."""
    failed = None
    while not failed and any(rank.running() for rank in ranks):
        time.sleep(POLL)
        failed = next((rank for rank in ranks if rank.process.poll()), None)
    settle(ranks, GRACE)
    end(ranks)
    failed = failed or next((rank for rank in ranks if rank.process.returncode), None)
    if failed:
        raise reason_of(ranks, f"rank {failed.rank} of {len(ranks)} ended", failed.process.returncode)


def reason_of(ranks, what, code):
    """The exception for ranks that have failed."""
    if words := refusal(ranks):
        return NotRun(f"NCCL refuses: {words}")
    return Failed(f"{what} with code {code}", code if code > 0 else 1)


def kill(ranks, folder, after, within):
    """Kills one rank in the middle of a run. JSON of what the others did; throws Failed, or NotRun where NCCL
    refused."""
    while len(read_metrics(folder)) < after:
        if ended := [rank for rank in ranks if not rank.running()]:
            settle(ranks, GRACE)
            end(ranks)
            raise reason_of(
                ranks, f"rank {ended[0].rank} ended before step {after}", ended[0].process.returncode
            )
        time.sleep(POLL)
    victim, others = ranks[VICTIM], [rank for rank in ranks if rank.rank != VICTIM]
    killed = time.monotonic()
    victim.process.kill()
    late = settle(others, within)
    seconds = time.monotonic() - killed
    if late:
        raise Failed(f"rank {late[0].rank} still runs {within:g} s after rank {VICTIM} was killed")
    return {
        "killed": VICTIM,
        "after_steps": after,
        "seconds": round(seconds, 3),
        "said": told_by(others, victim),
    }


def told_by(others, victim):
    """The line in which the first of the others names the killed rank; each of them must."""
    name = re.compile(rf".*rank {victim.rank} \(host \S+, pid {victim.process.pid}\).*")
    lines = []
    for rank in others:
        if rank.process.returncode == 0:
            raise Failed(f"rank {rank.rank} ended with code 0 after rank {victim.rank} was killed")
        match = name.search(rank.said())
        if not match:
            raise Failed(f"rank {rank.rank} did not name rank {victim.rank} (pid {victim.process.pid})")
        lines.append(match[0])
    return lines[0]


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("nccl")
    for name in ("run", "kill"):
        kind = kinds.add_parser(name)
        kind.add_argument("--ranks", type=int, required=True)
        kind.add_argument("--way", choices=("gpus", "hosts", "shared"), default="gpus")
        if name == "kill":
            kind.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run")
            kind.add_argument("--after", type=int, required=True, metavar="STEPS")
            kind.add_argument("--within", type=float, default=5.0, metavar="SECONDS")
        kind.add_argument("program", nargs="+", metavar="PROGRAM WORDS")
    return parser.parse_args(words)


def launched(arguments):
    require(arguments.way)
    ranks = start(arguments.ranks, arguments.way, arguments.program)
    try:
        if arguments.kind == "run":
            run(ranks)
        else:
            told = kill(ranks, arguments.out, arguments.after, arguments.within)
            print(json.dumps(told, indent=1))
    finally:
        end(ranks)


def main(words=None):
    arguments = arguments_of(words)
    try:
        if arguments.kind == "nccl":
            print(json.dumps(nccl(), indent=1))
        else:
            launched(arguments)
    except NotRun as reason:
        print(f"gpu_ranks: {reason}", file=sys.stderr)
        sys.exit(NOT_RUN)
    except Failed as what:
        print(f"gpu_ranks: {what}", file=sys.stderr)
        sys.exit(what.code)


if __name__ == "__main__":
    main()
