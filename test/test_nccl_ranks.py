"""The program that tries the contract of the communicator of GPUs: here on the simulated GPU."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import REPOSITORY

PROGRAM = REPOSITORY / os.environ.get("GOAT_BUILD", "build") / "test/nccl_ranks"


def nccl_ranks(*words, **variables):
    if not Path(PROGRAM).is_file():
        pytest.fail(f"{PROGRAM} is missing: make tests builds it")
    return subprocess.run(
        [PROGRAM, *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GOAT_SIMT_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(autouse=True)
def simulated_gpu(run_binary):
    if not re.search("device simt +built", run_binary("--version").stdout):
        pytest.skip("this build has no simulated GPU")


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_contract_holds_on_the_simulated_gpu(ranks):
    done = nccl_ranks("--device", "simt", "--ranks", ranks, "--calls", 40, "--most", 5000)
    assert done.returncode == 0, done.stderr
    line = rf"nccl_ranks: {ranks} ranks of simt \(.*\), NCCL 2\.28\.9, seed \d+: calls, sums, .* are right\n"
    assert re.fullmatch(line, done.stdout), done.stdout


def test_an_error_of_one_rank_ends_all_and_names_it():
    words = ["--device", "simt", "--ranks", 2, "--calls", 40, "--most", 5000]
    done = nccl_ranks(*words, GOAT_SIMT_NCCL_FAIL="1:7:error")
    assert done.returncode == 1 and done.stdout == ""
    assert re.search(r"rank 1 \(.*\): NCCL: nccl\w+(, ncclRecv)? at rank 1 of 2: ", done.stderr), done.stderr


def test_words_that_it_does_not_know_are_refused():
    done = nccl_ranks("--device", "simt", "--rank", 2)
    assert done.returncode == 2 and "nccl_ranks [--ranks N]" in done.stderr
