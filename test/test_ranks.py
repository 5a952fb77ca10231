"""Ranks as processes that fail: who notices, within which time, and what every rank says. They are started
side by side, each with its variables, so that no launcher ends them."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import REPOSITORY

BUILD = Path(os.environ.get("GOAT_BUILD", REPOSITORY / "build"))
PROGRAM = REPOSITORY / BUILD / "test" / "run_ranks"
SLACK = 4  # seconds: the machine has other things to do
HEARTBEAT, PROGRESS = 2.0, 1.5  # limits in seconds


@dataclass
class Case:
    ranks: int
    fault: str
    rank: int  # of the fault
    place: str
    within: float  # seconds after which all others are gone
    words: list  # in what each of the others says
    code: int = 1  # of the others
    settings: dict = field(default_factory=dict)

    def __str__(self):
        return f"{self.fault} at {self.place} in rank {self.rank} of {self.ranks}"


def named(rank):
    return rf"rank {rank} \(host \S+, pid \d+\)"


def ended(rank):
    return [named(rank) + " has ended"]


def cases():
    for ranks, rank in ((2, 0), (2, 1), (4, 2)):
        for place in ("met", "step", "save"):
            yield Case(ranks, "kill", rank, place, 1, ended(rank))
        yield Case(ranks, "exit", rank, "step", 1, ended(rank))
        yield Case(ranks, "leave", rank, "end", 1, ended(rank))
        message = named(rank) + ": shard_7.bin: row 12 is damaged"
        yield Case(ranks, "throw", rank, "step", 1, [message], 3)
        yield Case(ranks, "throw", rank, "save", 1, [message], 3)
        quiet = [named(rank) + " has given no sign of life for 2 s"]
        yield Case(ranks, "stop", rank, "step", HEARTBEAT, quiet)
        stuck = ["no rank has got on for 1500 ms", f"{named(rank)} step 5, train, collective 4 of 4"]
        yield Case(ranks, "hang", rank, "step", PROGRESS, stuck, settings={"heartbeat_ms": 20_000})
    # While one saves, the others wait for it: the long limit counts.
    yield Case(2, "hang", 1, "save", 2.5, ["no rank has got on for 2500 ms"], settings={"long_ms": 2500})
    # In the rendezvous: the last rank is late.
    late = {"late_rank": 3, "late_ms": 1000}
    gone = [named(1) + " ended while the ranks were starting"]
    yield Case(4, "alarm", 1, "start", 1.5, gone, settings=late)
    alone = {"start_ms": 1000}
    missing = [r"rank 1 of 3 at port \d+ did not come within 1 s"]
    yield Case(3, "kill", 1, "start", 1, missing, settings=alone)
    missing = [r"rank 0 at 127.0.0.1:\d+ did not answer within 1 s"]
    yield Case(3, "kill", 0, "start", 1, missing, settings=alone)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(rank, ranks, port, settings, prefix=(), address="127.0.0.1"):
    variables = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": address, "MASTER_PORT": port}
    return subprocess.Popen(
        [*prefix, PROGRAM, "take", *(f"{name}={value}" for name, value in settings.items())],
        env=os.environ | {name: str(value) for name, value in variables.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_case(case):
    """(seconds from the last sign of normal work until all others are gone, {rank: (code, stderr)})"""
    settings = {
        "fault": case.fault,
        "fault_rank": case.rank,
        "place": case.place,
        "heartbeat_ms": int(HEARTBEAT * 1000),
        "progress_ms": int(PROGRESS * 1000) if case.fault == "hang" else 20_000,
    } | case.settings
    processes = [start(rank, case.ranks, case.port, settings) for rank in range(case.ranks)]
    began = time.monotonic()
    outcome = {}
    try:
        for rank, process in enumerate(processes):
            if rank != case.rank:
                _, errors = process.communicate(timeout=case.within + 20)
                outcome[rank] = process.returncode, errors
        taken = time.monotonic() - began
    finally:
        for process in processes:
            process.kill()  # also what is stopped
            process.communicate()
    return taken, outcome


@pytest.fixture(scope="module")
def outcomes():
    """All cases at once: they mostly wait."""
    if not PROGRAM.is_file():
        pytest.fail(f"{PROGRAM} is missing: make tests builds it")
    everything = list(cases())
    for case, port in zip(everything, different_ports(len(everything)), strict=True):
        case.port = port
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(map(str, everything), pool.map(run_case, everything), strict=True))


def different_ports(count):
    """Free ports that are all different."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_all_ranks_end_in_time_and_name_the_one_that_failed(outcomes, case):
    taken, outcome = outcomes[str(case)]
    assert taken < case.within + SLACK, outcome
    assert len(outcome) == case.ranks - 1
    for rank, (code, errors) in outcome.items():
        assert code == case.code, (rank, errors)
        assert f"rank {rank} (host " in errors or "error: " in errors
        for word in case.words:
            assert re.search(word, errors), (rank, errors)


def test_a_whole_job_that_is_suspended_goes_on():
    """All ranks are stopped for longer than heartbeat_timeout: none accuses another."""
    settings = {"steps": 25, "step_ms": 20, "heartbeat_ms": 1000}
    port = free_port()
    processes = [start(rank, 2, port, settings) for rank in range(2)]
    for process in processes:
        assert process.stdout.readline().startswith("met")
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        assert output == f"done {rank}\n"


def test_a_rank_that_wakes_after_the_others_have_ended_says_so_and_ends():
    settings = {"steps": 1000, "heartbeat_ms": 1000}
    port = free_port()
    processes = [start(rank, 2, port, settings) for rank in range(2)]
    for process in processes:
        assert process.stdout.readline().startswith("met")
    processes[1].send_signal(signal.SIGSTOP)
    _, errors = processes[0].communicate(timeout=20)
    assert re.search(named(1) + " has given no sign of life for 1 s", errors)
    processes[1].send_signal(signal.SIGCONT)
    _, errors = processes[1].communicate(timeout=20)
    assert processes[1].returncode == 1
    assert re.search("rank 1 .* ends: ", errors)


NETWORK = """
set -e
ip netns add {a}; ip netns add {b}
ip link add {a} netns {a} type veth peer name {b} netns {b}
ip -n {a} addr add 10.213.7.1/24 dev {a}; ip -n {b} addr add 10.213.7.2/24 dev {b}
for space in {a} {b}; do ip -n $space link set lo up; ip -n $space link set $space up; done
"""


@pytest.fixture
def two_hosts():
    """Names of two network namespaces that a cable connects."""
    names = [f"goat{os.getpid()}{side}" for side in "ab"]
    if not shutil.which("ip"):
        pytest.skip("network namespaces cannot be made here: there is no ip command")
    made = subprocess.run(
        ["sh", "-c", NETWORK.format(a=names[0], b=names[1])], capture_output=True, text=True, check=False
    )
    try:
        if made.returncode:
            pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def in_space(name, host):
    """The command that runs another one in a namespace, on a host of that name."""
    return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh"]


def test_when_the_network_is_cut_both_sides_end_within_the_limit(two_hosts):
    settings = {"steps": 10_000, "heartbeat_ms": 1000}
    processes = [
        start(rank, 2, 29_511, settings, in_space(name, f"host{rank}"), "10.213.7.1")
        for rank, name in enumerate(two_hosts)
    ]
    try:
        for process in processes:
            assert process.stdout.readline().startswith("met")
        subprocess.run(["ip", "-n", two_hosts[1], "link", "set", two_hosts[1], "down"], check=True)
        began = time.monotonic()
        for rank, process in enumerate(processes):
            _, errors = process.communicate(timeout=20)
            assert process.returncode == 1
            assert re.search(rf"rank {1 - rank} \(host host{1 - rank}, pid \d+\) has given no sign", errors)
        assert time.monotonic() - began < 1 + SLACK
    finally:
        for process in processes:
            process.kill()
            process.communicate()
