"""dev/gpu_check.sh, rehearsed: part train on the simulated GPU, and, with a program that pretends to train on
a GPU, every trouble that it must see."""

import functools
import json
import os
import re
import subprocess
import sys

import pytest

from conftest import REPOSITORY
from prepared import shard

sys.path.insert(0, str(REPOSITORY / "dev"))
import gpu_check_report  # noqa: E402
import gpu_compare  # noqa: E402
import gpu_table  # noqa: E402
import predict_step  # noqa: E402
import random_shards  # noqa: E402

PRETENDED = REPOSITORY / "test/pretended_program.py"
RUNS = ["c4_125m", "c4_125m_no_graph", "c4_125m_library", "fineweb_1b", "fineweb_1b_no_graph"]


def gpu_check(*words, environment=None):
    """(exit status, what was printed, the JSON or None)"""
    words = [str(word) for word in words]
    ran = subprocess.run(
        [REPOSITORY / "dev/gpu_check.sh", *words],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
    )
    out = words[words.index("--out") + 1] if "--out" in words else None
    check = json.loads(open(out).read()) if out and os.path.exists(out) else None
    return ran.returncode, ran.stdout + ran.stderr, check


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
}


def environment_of(folder):
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PRETENDED": str(folder)}


@pytest.fixture(scope="module")
def pretended_gpu(tmp_path_factory):
    """The folder of the programs that pretend."""
    folder = tmp_path_factory.mktemp("pretended")
    for name in ("nvidia-smi", "train_gpt_goat"):
        (folder / name).symlink_to(PRETENDED)
    return folder


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--part", "ranks"], "--part ranks: train kernels"),
        (["--device", "simt", "--part", "train"], "needs --bin"),
        (["--device", "simt", "--bin", "."], "--part train alone"),
        (["--device", "tpu"], "--device tpu: cuda or simt"),
        (["--fast"], "unknown argument '--fast'"),
        (["--bin"], "--bin needs a value"),
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


def has_simt(binary):
    return "simt     built" in subprocess.run([binary, "--version"], capture_output=True, text=True).stdout


@pytest.fixture
def wrapped(binary, tmp_path):
    """wrapped(LINES) makes a folder with a train_gpt_goat that runs these lines of bash first, which may
    change the array `words`; $run is the name of the run."""
    if not has_simt(binary):
        pytest.skip("this build has no simulated device: make test SIMT=ON")

    def write(lines):
        folder = tmp_path / "bin"
        folder.mkdir()
        script = folder / "train_gpt_goat"
        script.write_text(
            '#!/bin/bash\nwords=("$@")\nfor ((i = 0; i < $#; ++i)); do\n'
            '  [[ ${words[i]} != --out ]] || run=$(basename "${words[i + 1]}")\ndone\n'
            f'{lines}\nexec {binary} "${{words[@]}}"\n'
        )
        script.chmod(0o755)
        return folder

    return write


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
