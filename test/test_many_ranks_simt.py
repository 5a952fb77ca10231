"""The same run by one rank and by several on the simulated GPU, whatever runs first and whoever waits."""

import os
import re
import signal
import time

import pytest

from many_ranks import (  # noqa: F401
    SIMULATED,
    by_hand,
    command,
    end,
    endings,
    many,
    ranks_under,
    require_same,
    result,
    start,
    steps_done,
    wait_until,
)

LLAMA = dict(model__block="llama", model__attention="rope", model__tied="false", model__vocab=2048)
VARIANTS = {
    "bf16, rounded stochastically": dict(train__rounding="stochastic"),
    "bf16, rounded to the nearest, clipped": dict(train__clip=0.5, train__cuda_graph="off"),
    "fp32": dict(model__precision="fp32"),
    "llama blocks, rounded stochastically": dict(train__rounding="stochastic", **LLAMA),
    "llama blocks in fp32, skipped spikes": dict(
        model__precision="fp32", train__spike_z=1, train__spike_window=3, train__max_skips=30, **LLAMA
    ),
    "several buckets": dict(
        model__vocab=16384, model__width=32, distributed__bucket_mib=1, train__steps=5, train__batch=4
    ),
    "answers alone": dict(
        data__source="passkey",
        data__passkey__digits=3,
        data__seq_len=80,
        eval__tokens=5 * 80,
        train__loss="span",
        train__steps=5,
    ),
}


@pytest.fixture(autouse=True)
def simulated(run_binary, monkeypatch):
    if not re.search("simt +built", run_binary("--version").stdout):
        pytest.skip("this build has no simulated GPU (make SIMT=ON)")
    monkeypatch.setenv("GOAT_SIMT_THREADS", "1")


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_by_one_two_and_four_ranks(many, variant):
    common = many(SIMULATED, device="simt", **variant)
    precision = variant.get("model__precision", "bf16")
    assert {state["precision"] for state in common["states"].values()} == {precision}
    if "train__spike_z" in variant:
        assert any(line.get("skipped") == "spike" for line in common["metrics"])


def test_twelve_leaves_by_one_and_three_ranks(many):
    many(SIMULATED, device="simt", ranks=(1, 3), train__batch=12, distributed__leaves=12, train__steps=10)


def test_two_ranks_whose_queues_run_at_other_times(run_binary, binary, tmp_path):
    """Each rank's work runs at once, as late as it may, or in a random order of its own."""
    settings = dict(train__steps=8, train__rounding="stochastic", eval__interval=3, checkpoint__interval=4)
    folders = [tmp_path / "one"]
    run_binary(*command(folders[0], 1, SIMULATED, "--device", "simt", **settings))
    at_once, late = {"GOAT_SIMT_STREAMS": "at_once"}, {"GOAT_SIMT_STREAMS": "late"}
    random = [{"GOAT_SIMT_STREAMS": "random", "GOAT_SIMT_SEED": seed} for seed in range(1, 7)]
    for pair in [(late, late), (at_once, late), (late, random[0]), *zip(random[1::2], random[2::2])]:
        folders.append(tmp_path / f"two_{len(folders)}")
        words = command(folders[-1], 1, SIMULATED, "--device", "simt", **settings)
        for code, _, errors in endings(by_hand(binary, [words, words], environment=pair)):
            assert code == 0, errors
    require_same(folders)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stands_still_for_a_moment(run_binary, binary, tmp_path, rank):
    run_binary(*command(tmp_path / "one", 1, SIMULATED, "--device", "simt"))
    two = tmp_path / "two"
    process = start(binary, command(two, 2, SIMULATED, "--device", "simt"))
    try:
        for step in (2, 9):
            wait_until(lambda: steps_done(two) >= step, [process])
            pid = ranks_under(process.pid)[rank]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.6)
            os.kill(pid, signal.SIGCONT)
        assert endings([process])[0][0] == 0
    finally:
        end(process)
    require_same([tmp_path / "one", two])


def test_resumed_by_other_numbers_of_ranks(run_binary, tmp_path):
    """The masters of a rank's pieces are rounded again as they were before."""
    settings = SIMULATED | {"train.rounding": "stochastic", "train.min_lr": 0.01, "eval.interval": 3}
    run_binary(*command(tmp_path / "one", 1, settings, "--device", "simt", checkpoint__interval=3))
    folder = tmp_path / "several"
    for ranks, steps in ((4, 3), (2, 6), (1, 9), (4, 12)):
        run_binary(*command(folder, ranks, settings, "--device", "simt", "--resume", train__steps=steps))
    ours, theirs = result(folder), result(tmp_path / "one")
    assert ours["metrics"] == theirs["metrics"]
    assert ours["files"] == theirs["files"] and len(ours["files"]) == 8
