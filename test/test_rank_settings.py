"""The keys that matter only among several ranks: that each does what it says."""

import re
import signal
import subprocess
import time
import tomllib

import pytest

from conftest import REPOSITORY
from test_rank_scripts import BOUND, ended, free_port, start, wait_until, with_variables
from test_settings import AMONG_RANKS
from test_train import metrics_of, tiny_run

ENDLESS = {"train__steps": 10_000_000, "eval__interval": 0, "log__interval": 10_000_000}


def distributed(**keys):
    return [word for key, value in keys.items() for word in ("--set", f"distributed.{key}={value}")]


def by_hand(binary, rank, words, port):
    """One of two ranks, which no launcher ends."""
    variables = with_variables(RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    return start([binary, *words], env=variables, stdout=subprocess.DEVNULL)


def start_timeout(binary, folder):
    code, errors = ended(by_hand(binary, 0, [*tiny_run(folder), *distributed(start_timeout=1)], free_port()))
    assert code == 1 and re.search(r"rank 1 of 2 at port \d+ did not come within 1 s", errors), errors


def what_rank_0_says_of_a_stopped_rank(binary, folder, **keys):
    words = [*tiny_run(folder, **ENDLESS), *distributed(**keys)]
    port = free_port()
    first, second = (by_hand(binary, rank, words, port) for rank in (0, 1))
    try:
        wait_until((folder / "metrics.jsonl").exists)
        time.sleep(3)  # some signs of life, so that rank 0 mostly knows that rank 1 trains
        second.send_signal(signal.SIGSTOP)
        code, errors = ended(first)
    finally:
        second.kill()
        second.communicate()
    assert code == 1
    return errors


def heartbeat_timeout(binary, folder):
    errors = what_rank_0_says_of_a_stopped_rank(binary, folder, heartbeat_timeout=4)
    assert re.search(r"ends: rank 1 \(.*\) has given no sign of life for 4 s", errors), errors


def progress_timeout(binary, folder):
    """Six times as long counts if rank 0 has not heard yet that rank 1 trains, which may start slowly."""
    keys = dict(progress_timeout=3, heartbeat_timeout=100)
    errors = what_rank_0_says_of_a_stopped_rank(binary, folder, **keys)
    assert re.search("no rank has got on for (3|18) s: rank 0 ", errors), errors


def bucket_mib(binary, folder):
    """A bucket more or less is memory for its parts, and changes no bit."""
    seen = []
    for mib in (1, 2):
        run = folder / str(mib)
        words = [
            *tiny_run(run, model__width=256, train__steps=3),
            "--ranks",
            "2",
            *distributed(bucket_mib=mib),
        ]
        subprocess.run([binary, *map(str, words)], check=True, capture_output=True, timeout=BOUND)
        seen.append([(line["loss"], line["grad_norm"], line["memory_bytes"]) for line in metrics_of(run)])
    assert [line[:2] for line in seen[0]] == [line[:2] for line in seen[1]]
    assert {one[2] - other[2] for one, other in zip(seen[1], seen[0])} == {1 << 20}


def two_ranks(binary, folder, **keys):
    words = [*tiny_run(folder, train__steps=3), "--ranks", "2", *distributed(**keys)]
    return subprocess.run([binary, *map(str, words)], capture_output=True, text=True, timeout=BOUND)


def reduce(binary, folder):
    refused = two_ranks(binary, folder, reduce="nccl")
    assert refused.returncode == 2 and "ranks of the cpu have no NCCL" in refused.stderr


def wire(binary, folder):
    """bf16 keeps eight bits of a gradient, and so of the norm."""
    norms = []
    for wire in ("f32", "bf16"):
        assert two_ranks(binary, folder / wire, wire=wire).returncode == 0
        norms.append(metrics_of(folder / wire)[0]["grad_norm"])
    assert norms[0] != norms[1] and abs(norms[1] / norms[0] - 1) < 2**-8


CASES = [start_timeout, heartbeat_timeout, progress_timeout, bucket_mib, reduce, wire]
UNSEEN = {
    # What it finds is a fault of the exchange: the next one would hide any other.
    "distributed.check_interval",
    # These change something on GPUs only (test_simt_ranks.cpp, test_many_ranks_simt.py).
    "distributed.overlap",
    "distributed.levels",
}


def test_every_key_has_its_case():
    assert {f"distributed.{case.__name__}" for case in CASES} | UNSEEN == AMONG_RANKS


def test_the_page_on_ranks_has_every_key_with_its_default(run_binary):
    page = (REPOSITORY / "docs/ranks.md").read_text()
    listed = dict(re.findall(r"^\| `distributed\.(\w+)` \| (\w+)", page, re.MULTILINE))
    printed = tomllib.loads(run_binary("--config", "copy_mixture", "--print-config").stdout)["distributed"]
    words = {key: str(value).lower().removesuffix(".0") for key, value in printed.items()}
    assert listed == words
    assert "--ranks N" in run_binary("--help").stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_a_key_does(binary, tmp_path, case):
    case(binary, tmp_path)
