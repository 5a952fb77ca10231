"""dev/gpu_check.sh, rehearsed: parts train and ranks on the simulated GPU, and, with a program that pretends
to train on GPUs, every trouble that they must see."""

import functools
import json
import os
import re
import subprocess
import sys
import time

import pytest

from conftest import REPOSITORY
from prepared import shard
from pretended_gpu import environment_of, gpu_check, outcomes

sys.path.insert(0, str(REPOSITORY / "dev"))
import gpu_check_report  # noqa: E402
import gpu_compare  # noqa: E402
import gpu_table  # noqa: E402
import predict_step  # noqa: E402
import random_shards  # noqa: E402
import scaling_model  # noqa: E402

RUNS = ["c4_125m", "c4_125m_no_graph", "c4_125m_library", "fineweb_1b", "fineweb_1b_no_graph"]

# Troubles that one check can have at once: {run: trouble}.
PLANTED = {
    "none": {},
    "other results": {
        "repeat_again": "other losses",
        "repeat_no_graph": "other model",
        "resumed": "other losses",
        "fineweb_1b": "more memory",
        "losses_simt": "other losses",
        "losses_cpu": "other losses",
    },
    "broken runs": {"stopped": "deaf", "c4_125m_library": "breaks", "losses_simt": "not finite"},
    "other optimizer": {"ranks_2_hosts": "other optimizer", "killed": "does not end"},
    "other model": {"ranks_2_hosts": "other model", "killed": "nameless", "contracts": "broken"},
    "refused": {"ranks_2_hosts": "refused"},
    "refused twice": {"ranks_2_hosts": "refused", "ranks_2_shared": "refused", "contracts": "refused"},
}


@pytest.fixture(scope="module")
def pretended(pretended_gpu):
    """pretended(NAME) is part train on a GPU that is none, with the troubles of that name."""

    @functools.cache
    def check(name):
        (pretended_gpu / "planted.json").write_text(json.dumps(PLANTED[name]))
        words = ("--part", "train", "--bin", pretended_gpu, "--out", pretended_gpu / f"{name}.json")
        return gpu_check(*words, environment=environment_of(pretended_gpu))

    return check


def test_part_train_measures_what_the_runs_on_a_gpu_did(pretended):
    code, printed, check = pretended("none")
    assert code == 0, printed
    run = check["c4_125m"]["result"]
    assert run["tokens_per_second"] == pytest.approx(400e3) and run["mfu"] == pytest.approx(0.36)
    assert run["steps"] == 20 and run["batch"] == 2 * run["micro_batch"] == 32
    assert check["fineweb_1b"]["result"]["recompute"] == "gelu"  # what fits
    memory = check["memory"]["result"]
    assert memory["context_bytes"] == pytest.approx(500 << 20, rel=0.01)
    for name in RUNS:
        assert memory["runs"][name]["over_plan"] == pytest.approx(0.001, abs=1e-4)
    assert check["losses_beside_simt"]["result"]["steps"] == 100
    gaps = check["gaps"]["result"]
    assert (gaps["steps"], gaps["idle_microseconds"], gaps["gaps"]) == (2, 5.5, 2.5)
    assert gaps["largest"][0] == {"microseconds": 3, "after": "linear_forward head", "before": "adamw"}
    assert gaps["most_idle"][0]["microseconds"] == 3
    assert "| attention with the prior | " in check["prediction"]["output"]
    assert "| c4_125m | 16 | none | 400,000 | 36.0 % | 19.53 |" in printed
    assert check["gpu"].startswith("NVIDIA H100 80GB HBM3, 580")


@pytest.mark.parametrize(
    ("planted", "section", "words"),
    [
        ("other results", "same_again", "differ from step 3 on: loss 3.997 and 4.007"),
        ("other results", "same_without_graph", "differ: 1 of 2 tensors, first head.weight"),
        ("other results", "same_resumed", "repeat and resumed differ from step "),
        ("other results", "memory", r"fineweb_1b: .* is \+4.0 % of the 68.36 planned, beyond 3 %"),
        ("other results", "losses_beside_simt", "differ by 0.0098 in the mean of 100 steps"),
        ("other results", "losses_beside_cpu", "differ by 0.0099 in the mean of 200 steps"),
        ("broken runs", "stopped", "ended by itself before it could be stopped after 5 steps"),
        ("broken runs", "c4_125m_library", "error: out of memory on the device"),
        ("broken runs", "memory", "c4_125m_library did not run"),
        ("broken runs", "losses_beside_simt", "losses_simt: the loss of step 3 is not finite"),
    ],
)
def test_trouble_fails_the_check_with_words(pretended, planted, section, words):
    code, printed, check = pretended(planted)
    assert code == 1
    assert re.search(f"FAILED {section} .*{words}", printed), printed
    assert check[section]["exit"] != 0 and "result" not in check[section]


def test_what_is_not_troubled_passes_beside_what_is(pretended):
    _, _, check = pretended("other results")
    compared = {name for name in check if name.startswith(("same_", "losses_beside"))}
    assert gpu_check_report.failures(check).keys() == {"memory"} | compared


def test_part_kernels_keeps_what_the_programs_say(pretended_gpu, tmp_path):
    """The check's JSON is what dev/gpu_table.py and dev/predict_step.py read."""
    known = json.loads((REPOSITORY / "dev/results/gpu_NVIDIA_H100_80GB_HBM3.json").read_text())
    kernels = known["kernels"]["result"]
    (tmp_path / "kernels.json").write_text(json.dumps(kernels))
    for name, line in {
        "kernel_tests": "echo All tests passed",
        "gpu_kernels": f"cat {tmp_path}/kernels.json",
        "compute-sanitizer": "echo ERROR SUMMARY: 1 error; exit 9",
    }.items():
        (pretended_gpu / name).write_text(f"#!/bin/sh\n{line}\n")
        (pretended_gpu / name).chmod(0o755)
    out = tmp_path / "check.json"
    words = ("--part", "kernels", "--bin", pretended_gpu, "--out", out)
    code, printed, check = gpu_check(*words, environment=environment_of(pretended_gpu))
    assert code == 1 and gpu_check_report.failures(check).keys() == {"memcheck", "racecheck"}, printed
    assert "FAILED memcheck (exit 9): ERROR SUMMARY: 1 error" in printed
    assert check["kernels"]["result"] == kernels and check["tests"]["output"] == "All tests passed\n"
    assert predict_step.Kernels([check]).rows == predict_step.Kernels([known]).rows


@pytest.fixture(scope="module")
def ranks_of(pretended_gpu):
    """ranks_of(PLANTED, gpus=1, version=22809) is part ranks on so many GPUs that are none, with that version
    of NCCL; 0: with none."""

    @functools.cache
    def check(name, gpus=1, version=22809):
        (pretended_gpu / "planted.json").write_text(json.dumps(PLANTED[name]))
        library = pretended_gpu / f"nccl_{version}.so"
        if version and not library.exists():
            source = f"int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}"
            words = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
            subprocess.run(words, input=source, text=True, check=True)
        environment = environment_of(pretended_gpu) | {"GOAT_NCCL": str(library), "PRETENDED_GPUS": str(gpus)}
        out = pretended_gpu / f"ranks_{name}_{gpus}_{version}.json"
        return gpu_check("ranks", "--bin", pretended_gpu, "--out", out, environment=environment)

    return check


def test_part_ranks_on_one_gpu_runs_what_it_can_and_says_what_it_cannot(ranks_of):
    code, printed, check = ranks_of("none")
    assert code == 0, printed
    old = "NCCL 2.28.9 takes one rank a GPU; from 2.30 on it takes several"
    passed = (
        "shards",
        "nccl",
        "contracts_1_gpus",
        "contracts_2_hosts",
        "alone_2",
        "ranks_2_hosts",
        "killed_rank",
    )
    assert outcomes(check) == dict.fromkeys((*passed, "same_2_hosts"), "passed") | {
        "contracts_2_shared": old,
        "ranks_2_shared": old,
        "same_2_shared": "ranks_2_shared was not run",
        "all_gpus": "there is one GPU",
    }
    assert check["nccl"]["result"]["version"] == "2.28.9"
    assert check["same_2_hosts"]["result"]["steps"] == 20
    killed = check["killed_rank"]["result"]
    assert killed["seconds"] < 5 and re.search(r"rank 1 \(host vm, pid \d+\) has ended", killed["said"])
    assert "8 of 8 sections passed" in printed and "4 were not run" in printed
    assert f"not run ranks_2_shared: {old}" in printed
    assert "* 2 ranks on one GPU, as two hosts (NCCL_HOSTID) and one rank: the same bit for bit" in printed


def test_part_ranks_takes_all_gpus(ranks_of, pretended_gpu):
    """With a NCCL that refuses one way, and takes the other."""
    code, printed, check = ranks_of("refused", gpus=8, version=23007)
    assert code == 0, printed
    found = outcomes(check)
    assert found.pop("ranks_2_hosts").startswith("NCCL refuses: Duplicate GPU detected : rank 0 and rank 1")
    assert found.pop("same_2_hosts") == "ranks_2_hosts was not run"
    assert set(found.values()) == {"passed"}
    assert found.keys() >= {"same_2_shared", "contracts_8_gpus", "same_8_gpus", "fineweb_1b_8_gpus"}
    assert check["same_8_gpus"]["result"]["runs"] == ["alone_8", "ranks_8_gpus"]
    speed = check["c4_125m_8_gpus"]["result"]
    assert (
        speed["batch"] == 128 and speed["steps"] == 12 and speed["tokens_per_second"] == pytest.approx(400e3)
    )
    (pretended_gpu / "results").mkdir()
    (pretended_gpu / "results/check.json").write_text(json.dumps(check))
    assert scaling_model.measured_points(pretended_gpu / "results") == {
        (preset, 8, 128): pytest.approx(400e3) for preset in scaling_model.MODELS
    }
    pids = [int(file.read_text()) for file in (pretended_gpu / "ranks").glob("*_8_gpus_*/*")]
    assert len(pids) == 3 * 8
    until = time.monotonic() + 20  # the kernel ends ranks whose launcher is killed, and init takes note
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_without_nccl_no_rank_runs_and_nothing_fails(ranks_of):
    code, printed, check = ranks_of("none", version=0)
    assert code == 0
    found = outcomes(check)
    assert found.pop("nccl").startswith("no NCCL: ")
    assert {name for name, outcome in found.items() if outcome == "passed"} == {"shards", "alone_2"}
    assert found["contracts_1_gpus"] == found["ranks_2_hosts"] == "nccl was not run"
    assert found["killed_rank"] == "two ranks have not run by any way"


def test_where_nccl_takes_no_two_ranks_on_a_gpu_none_is_killed(ranks_of):
    code, printed, check = ranks_of("refused twice", version=23007)
    assert code == 0, printed
    assert outcomes(check)["killed_rank"] == "two ranks have not run by any way"
    assert outcomes(check)["contracts_2_hosts"].startswith("NCCL refuses: ")


@pytest.mark.parametrize(
    ("planted", "section", "words"),
    [
        (
            "other optimizer",
            "same_2_hosts",
            "optimizer.safetensors differ: 1 of 2 tensors, first v.head.weight",
        ),
        ("other optimizer", "killed_rank", "rank 0 still runs 15 s after rank 1 was killed"),
        ("other model", "same_2_hosts", "model.safetensors differ: 1 of 2 tensors, first head.weight"),
        ("other model", "killed_rank", r"rank 0 did not name rank 1 \(pid \d+\)"),
        (
            "other model",
            "contracts_2_hosts",
            "part 1 holds the bytes of rank 0; gpu_ranks: rank 1 of 2 ended",
        ),
    ],
)
def test_trouble_among_ranks_fails_the_check_with_words(ranks_of, planted, section, words):
    code, printed, check = ranks_of(planted)
    assert code == 1
    assert re.search(f"FAILED {section} .*{words}", printed), printed
    assert "result" not in check[section]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--part", "speed"], "--part speed: train kernels ranks extrapolate"),
        (["speed"], "--part speed: train kernels ranks extrapolate"),
        (["ranks", "--device", "simt", "--bin", "docs"], "there is no train_gpt_goat in"),
        (["--device", "simt", "--part", "train"], "needs --bin"),
        (["--device", "simt", "--bin", "."], "--part train, ranks or extrapolate"),
        (["kernels", "--device", "simt", "--bin", "."], "--part train, ranks or extrapolate"),
        (["--device", "tpu"], "--device tpu: cuda or simt"),
        (["--fast"], "unknown argument '--fast'"),
        (["--bin"], "--bin needs a value"),
        (["ranks", "--data", "docs"], "--data docs: is for part extrapolate; part ranks takes none"),
        (["extrapolate", "--data", "nowhere"], "nowhere: there is no such folder of shards"),
        (["--device", "simt", "--part", "train", "--bin", "docs"], "there is no train_gpt_goat in"),
    ],
)
def test_wrong_words_are_refused(words, said):
    code, printed, _ = gpu_check(*words)
    assert code == 2 and said in printed


def test_random_shards_are_shards(tmp_path):
    random_shards.main([str(tmp_path), "--vocab", "300", "--tokens", "5000", "--shards", "2"])
    first, second = (shard(tmp_path / f"train_{number:06d}.bin") for number in range(2))
    assert len(first) == len(second) == 5000 and (first != second).any()
    assert first.min() == 0 and first.max() == 299
    random_shards.main([str(tmp_path / "again"), "--vocab", "300", "--tokens", "5000"])
    assert (tmp_path / "again/train_000001.bin").read_bytes() == (tmp_path / "train_000001.bin").read_bytes()


def test_gaps_are_times_in_which_nothing_ran():
    """Slices that overlap, as of two streams, leave no gap before the longer one has ended."""
    slices = [
        {"name": name, "ts": start, "dur": length}
        for name, start, length in (("a", 0, 10), ("b", 2, 3), ("c", 6, 2), ("d", 15, 1))
    ]
    assert gpu_compare.gaps_between(slices) == [(5, "a", "d")]


def test_the_tables_of_a_check_show_what_there_is(pretended, capsys, tmp_path):
    """Of part train alone, and of an older check without it."""
    _, _, check = pretended("other results")
    (tmp_path / "check.json").write_text(json.dumps(check))
    for name, shown in (
        (tmp_path / "check.json", "| fineweb_1b | 8 | gelu |"),
        (REPOSITORY / "dev/results/gpu_NVIDIA_H100_80GB_HBM3.json", "## Attention"),
    ):
        gpu_table.main([str(name)])
        printed = capsys.readouterr().out
        assert shown in printed and ("## Attention" in printed) == (shown == "## Attention")
    gpu_check_report.main(["show", str(tmp_path / "check.json")])
    assert "FAILED losses_beside_cpu" in capsys.readouterr().out


def test_the_rehearsal_on_the_simulated_gpu_passes(wrapped, tmp_path):
    code, printed, check = gpu_check(
        *("--device", "simt", "--part", "train", "--bin", wrapped(""), "--out", tmp_path / "check.json")
    )
    assert code == 0, printed
    sections = gpu_check_report.sections_of(check)
    assert all(section["exit"] == 0 for section in sections.values())
    assert f"{len(sections)} of {len(sections)} sections passed" in printed and "FAILED" not in printed
    for name in RUNS:
        assert check[name]["result"]["tokens_per_second"] > 0
        assert check["memory"]["result"]["runs"][name]["planned_bytes"] > 0
    for name in ("same_again", "same_without_graph", "same_resumed"):
        assert check[name]["result"]["steps"] == 8
    assert check["stopped"]["result"]["stopped_after"] < 8
    assert 0 < check["losses_beside_cpu"]["result"]["mean_absolute_difference"] < 0.003
    gaps = check["gaps"]["result"]
    idle = gaps["step_microseconds"] - 1e6 * gaps["operations"]["device_seconds"]
    assert 0 < gaps["idle_microseconds"] < idle * 1.001


def test_a_program_that_computes_otherwise_is_seen_in_the_rehearsal(wrapped, tmp_path):
    """Two runs with another seed, and what depends on runs that do not start."""
    folder = wrapped(
        "case $run in repeat_again | losses_cpu) words+=(--set train.seed=2) ;;\n"
        "c4_125m* | fineweb_1b* | profiled) exit 1 ;; esac"
    )
    code, printed, check = gpu_check(
        *("--device", "simt", "--part", "train", "--bin", folder, "--out", tmp_path / "check.json")
    )
    assert code == 1
    assert re.search(r"FAILED same_again .*repeat and repeat_again differ from step 1 on: loss \d", printed)
    assert re.search(r"FAILED losses_beside_cpu .*losses and losses_cpu differ by 0\.\d+ in the", printed)
    assert re.search(r"FAILED memory .*c4_125m did not run", printed)
    for name in ("same_without_graph", "same_resumed", "losses_beside_simt"):
        assert check[name]["exit"] == 0


def test_the_rehearsal_of_ranks_on_the_simulated_gpu_passes(wrapped, tmp_path):
    folder = wrapped("")
    (folder / "nccl_ranks").write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE"\n')
    (folder / "nccl_ranks").chmod(0o755)
    code, printed, check = gpu_check(
        "ranks", "--device", "simt", "--bin", folder, "--out", tmp_path / "out.json"
    )
    assert code == 0, printed
    assert outcomes(check).pop("all_gpus") == "there is one GPU"
    assert [name for name, outcome in outcomes(check).items() if outcome != "passed"] == ["all_gpus"]
    assert check["same_2_gpus"]["result"]["steps"] == 20
    assert re.search(r"rank 1 \(host \S+, pid \d+\)", check["killed_rank"]["result"]["said"])


def test_ranks_that_compute_otherwise_are_seen_in_the_rehearsal(wrapped, tmp_path):
    """The two ranks have another seed than the one; without nccl_ranks its tests are not run."""
    folder = wrapped("case $run in ranks_2_gpus) words+=(--set train.seed=2) ;; killed) exit 1 ;; esac")
    code, printed, check = gpu_check(
        "ranks", "--device", "simt", "--bin", folder, "--out", tmp_path / "out.json"
    )
    assert code == 1
    assert re.search(r"FAILED same_2_gpus .*alone_2 and ranks_2_gpus differ from step 1 on: loss \d", printed)
    assert re.search(r"FAILED killed_rank .*rank [01] ended before step 3 with code 1", printed)
    assert outcomes(check)["contracts_2_gpus"] == f"there is no nccl_ranks in {folder}"
