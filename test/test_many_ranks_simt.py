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
    metrics,
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


def losses_of(folder):
    return [line["loss"] for line in metrics(folder)]


def require_close(folder, other, within):
    """The losses of the steps differ by less than `within`, and the weights are not the same bits."""
    differences = [abs(a - b) for a, b in zip(losses_of(folder), losses_of(other), strict=True)]
    assert max(differences) < within
    assert result(folder)["files"] != result(other)["files"]


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


BUCKETS = dict(model__vocab=16384, model__width=32, distributed__bucket_mib=1, train__steps=4)


def test_four_ranks_on_two_and_four_nodes(run_binary, tmp_path, monkeypatch):
    """Gradients are added on each node first: the bits are those of one rank and of one level."""
    folders = [tmp_path / "one", tmp_path / "two_nodes", tmp_path / "four_nodes"]
    run_binary(*command(folders[0], 1, SIMULATED, "--device", "simt", **BUCKETS))
    for folder, nodes in zip(folders[1:], (2, 4)):
        monkeypatch.setenv("GOAT_SIMT_NODES", str(nodes))
        run = run_binary(*command(folder, 4, SIMULATED, "--device", "simt", **BUCKETS))
        assert "added in a fixed tree, on each host first" in run.stdout
    require_same(folders)


def test_nodes_of_three_ranks_add_in_one_level_unless_two_are_asked_for(run_binary, tmp_path, monkeypatch):
    monkeypatch.setenv("GOAT_SIMT_NODES", "2")
    settings = SIMULATED | {"train.batch": 6, "train.steps": 6, "distributed.leaves": 6}
    folders = [tmp_path / name for name in ("one", "six", "two_levels")]
    run_binary(*command(folders[0], 1, settings, "--device", "simt"))
    run = run_binary(*command(folders[1], 6, settings, "--device", "simt"))
    assert "added in one level, because 3 ranks a host are no power of two" in run.stderr
    run = run_binary(*command(folders[2], 6, settings, "--device", "simt", distributed__levels=2))
    assert "on each host first" in run.stdout and "each host adds its own first" in run.stderr
    assert losses_of(folders[0]) == losses_of(folders[1])
    require_close(folders[0], folders[2], 1e-5)


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_gradients_that_travel_as_bf16(run_binary, tmp_path, monkeypatch, nodes):
    """Every rank rounds what it sends: half an ulp of bf16, 2^-9, of a gradient; in two levels twice."""
    monkeypatch.setenv("GOAT_SIMT_NODES", nodes)
    run_binary(*command(tmp_path / "one", 1, SIMULATED, "--device", "simt", model__precision="fp32"))
    for overlap in ("true", "false"):
        bf16 = dict(distributed__wire="bf16", distributed__overlap=overlap, model__precision="fp32")
        run = run_binary(*command(tmp_path / overlap, 4, SIMULATED, "--device", "simt", **bf16))
        assert 'distributed.wire = "bf16" rounds gradients before they travel' in run.stderr
    results = [result(tmp_path / overlap) for overlap in ("true", "false")]
    assert all(results[0][kind] == results[1][kind] for kind in ("metrics", "files"))
    require_close(tmp_path / "one", tmp_path / "true", 2e-3)
    norms = [[line["grad_norm"] for line in metrics(tmp_path / name)][0] for name in ("one", "true")]
    assert norms[0] != norms[1] and abs(norms[1] / norms[0] - 1) < 2**-8


def test_gradients_that_nccl_adds(run_binary, tmp_path):
    run_binary(*command(tmp_path / "one", 1, SIMULATED, "--device", "simt", model__precision="fp32"))
    for wire, within in (("f32", 1e-5), ("bf16", 2e-3)):
        words = dict(distributed__reduce="nccl", distributed__wire=wire, model__precision="fp32")
        run = run_binary(*command(tmp_path / wire, 4, SIMULATED, "--device", "simt", **words))
        assert "are added by NCCL" in run.stdout
        require_close(tmp_path / "one", tmp_path / wire, within)


def test_nodes_that_cannot_be_are_refused_by_all_ranks(run_binary, tmp_path, monkeypatch):
    monkeypatch.setenv("GOAT_SIMT_NODES", "3")
    run = run_binary(*command(tmp_path / "run", 4, SIMULATED, "--device", "simt"), code=2)
    assert "GOAT_SIMT_NODES=3: a divisor of the 4 ranks is expected" in run.stderr
    assert "--resume" not in run.stderr


def test_ranks_of_the_cpu_have_no_nccl_to_add(run_binary, tmp_path):
    run = run_binary(*command(tmp_path / "cpu", 2, SIMULATED, distributed__reduce="nccl"), code=2)
    assert "ranks of the cpu have no NCCL" in run.stderr
    assert not (tmp_path / "cpu").exists()


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
