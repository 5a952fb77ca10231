"""Speeds, hours and profiles as a user gets them from the program."""

import json
import re
import subprocess
import tomllib

import pytest

from test_train import TINY, changed, flags, metrics_of, tiny_run


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows_of(trace):
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    rows = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            rows[names[event["tid"]]].append(event)
    return rows


@pytest.fixture(scope="module")
def profiled(binary, tmp_path_factory):
    """The folder of a run that was profiled after its end, what was printed, and what lay there before."""
    folder = tmp_path_factory.mktemp("profiled") / "run"
    words = [str(word) for word in [binary, *tiny_run(folder), "--device", "cpu"]]
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    before = contents(folder)
    result = subprocess.run(
        [*words, "--profile", "3", "--peak-tflops", "0.5"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return folder, result.stdout, before


def test_a_profile_leaves_the_run_in_its_folder_as_it_is(profiled):
    folder, _, before = profiled
    after = contents(folder)
    assert {path: after[path] for path in before} == before
    assert {path.relative_to(folder).as_posix() for path in after.keys() - before.keys()} == {
        "profile/config.toml",
        "profile/operations.json",
        "profile/trace.json",
    }


def test_a_profile_has_every_operation_of_a_step_beside_its_limit(profiled):
    folder, printed, _ = profiled
    profile = json.loads((folder / "profile/operations.json").read_text())
    rows = {row["name"]: row for row in profile["operations"]}
    micro_batches = profile["micro_batches"]
    layers = tomllib.loads((folder / "profile/config.toml").read_text())["model"]["layers"]
    assert profile["steps"] == 3 and profile["tokens_per_step"] == 64
    for name, calls in {
        "attention_forward": layers * micro_batches,
        "attention_backward": layers * micro_batches,
        "linear_gelu_forward mlp.up": layers * micro_batches,
        "linear_backward_weight head": micro_batches,
        "step_verdict": 1,
    }.items():
        assert rows[name]["calls"] == calls
        assert name in printed
    assert all(row["seconds"] > 0 and row["limit_seconds"] >= 0 for row in rows.values())
    assert sum(row["seconds"] for row in rows.values()) == pytest.approx(profile["device_seconds"])
    assert profile["device_seconds"] < profile["step_seconds"]
    assert profile["limits"]["flops_per_second"] == 0.5e12
    assert profile["mfu"] == pytest.approx(profile["tokens_per_second"] * profile["flops_per_token"] / 0.5e12)


def test_a_profiles_trace_is_two_rows_of_slices_in_order(profiled):
    folder, _, _ = profiled
    rows = rows_of(folder / "profile/trace.json")
    device, host = (
        next(row for name, row in rows.items() if name.startswith(kind)) for kind in ("device", "host")
    )
    steps = [event for event in host if event["name"].startswith("step ")]
    assert [event["name"] for event in steps] == ["step 1", "step 2", "step 3"]
    profile = json.loads((folder / "profile/operations.json").read_text())
    assert len(device) == pytest.approx(3 * sum(row["calls"] for row in profile["operations"]))
    for earlier, later in zip(device, device[1:]):
        assert earlier["ts"] + earlier["dur"] <= later["ts"] + 0.002  # microseconds, rounded to nanoseconds
    for event in device:
        assert any(s["ts"] - 0.002 <= event["ts"] <= s["ts"] + s["dur"] for s in steps)


def test_a_folder_with_a_profile_alone_is_free_for_a_run(run_binary, tmp_path):
    run_binary(*tiny_run(tmp_path / "run"), "--profile", "1", "--device", "cpu")
    assert "new" in run_binary(*tiny_run(tmp_path / "run"), "--dry-run").stdout.split("output folder:")[1]
    run_binary(*tiny_run(tmp_path / "run"))
    run_binary(*tiny_run(tmp_path / "run"), "--overwrite")
    assert len(metrics_of(tmp_path / "run")) == 12
    assert (tmp_path / "run/profile/trace.json").exists()


@pytest.mark.parametrize("other", ["--resume", "--overwrite", "--dry-run", "--print-config"])
def test_a_profile_is_no_run(run_binary, tmp_path, other):
    assert "--profile" in run_binary(*tiny_run(tmp_path / "run"), "--profile", "2", other, code=2).stderr


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf", "many"])
@pytest.mark.parametrize("option", ["--peak-tflops", "--tokens-per-second"])
def test_speeds_are_numbers_above_0(run_binary, tmp_path, option, value):
    assert (
        "above 0" in run_binary(*tiny_run(tmp_path / "run"), "--dry-run", f"{option}={value}", code=2).stderr
    )


def test_mfu_is_shown_against_the_peak_that_is_given_and_not_without_one(run_binary, tmp_path):
    without = run_binary(*tiny_run(tmp_path / "without"), "--device", "cpu")
    assert "MFU" not in without.stdout and "GFLOP/s" in without.stdout
    assert not any("mfu" in line for line in metrics_of(tmp_path / "without"))
    with_peak = run_binary(*tiny_run(tmp_path / "with"), "--device", "cpu", "--peak-tflops", "0.25")
    assert re.search(r"MFU \d+\.\d%", with_peak.stdout) and "250.0 GFLOP/s, --peak-tflops" in with_peak.stdout
    lines = metrics_of(tmp_path / "with")
    for line in lines:
        assert line["mfu"] == pytest.approx(line["flops_per_second"] / 0.25e12)
    summary = json.loads((tmp_path / "with/summary.json").read_text())
    counted = lines[2:]  # without the warm-up
    seconds = sum(64 / line["tokens_per_second"] for line in counted)
    assert summary["tokens_per_second"] == pytest.approx(64 * len(counted) / seconds)
    assert summary["mfu"] == pytest.approx(
        summary["tokens_per_second"] * summary["flops_per_token"] / 0.25e12
    )


def test_a_dry_run_tells_the_time_and_by_which_speed(run_binary, tmp_path):
    def time_of(*words):
        lines = run_binary(
            *tiny_run(tmp_path / "run"), "--dry-run", "--device", "cpu", *words
        ).stdout.splitlines()
        return next(line for line in lines if line.startswith("time "))

    assert "not known" in time_of()
    assert "1 min 17 s" in time_of("--tokens-per-second", "10")  # 12 steps of 64 tokens
    assert "assumed, not measured: MFU 40%" in time_of("--peak-tflops", "1")
    run_binary(*tiny_run(tmp_path / "run"), "--device", "cpu")
    measured = json.loads((tmp_path / "run/summary.json").read_text())["tokens_per_second"]
    assert f"at {measured:.0f} tokens/s: measured by the run in {tmp_path / 'run'}" in time_of()
    wider = [
        "--config",
        "copy_mixture",
        "--out",
        tmp_path / "run",
        *flags(changed(TINY, {"model__width": 32})),
    ]
    assert "not known" in run_binary(*wider, "--dry-run", "--device", "cpu").stdout
