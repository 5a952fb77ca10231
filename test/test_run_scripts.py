"""scripts/run_*.sh with --small: from files in the real formats to a trained, evaluated and drawn model."""

import json
import os
import shutil
import subprocess

import pytest
from matplotlib.image import imread

from conftest import REPOSITORY

pytestmark = pytest.mark.usefixtures("binary")  # the scripts call the one in the root of the repository


def start(script, folder, *options, **environment):
    return subprocess.run(
        [REPOSITORY / "scripts" / script, "--small", "--folder", folder, *options],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
    )


def evaluations_of(run):
    contents = json.loads((run / "eval.json").read_text())
    return contents.get("evaluations", [contents])


def lengths_of(run):
    return [row["length"] for each in evaluations_of(run) for row in each["results"]]


def assert_drawn(folder, *names):
    for name in names:
        assert imread(folder / name).std() > 0.02, name


@pytest.mark.parametrize(
    ("script", "preset", "data"),
    [
        ("run_c4_125m.sh", "c4_125m", "c4"),
        ("run_fineweb_1b.sh", "fineweb_1b", "fineweb"),
    ],
)
def test_from_files_to_figures(tmp_path, script, preset, data):
    done = start(script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"== preparing data/{data}\n" in done.stdout
    run, meta = tmp_path / "runs" / preset, json.loads((tmp_path / "data" / data / "meta.json").read_text())
    assert meta["train_tokens"] > 0 and meta["val_tokens"] > 0
    assert [each["protocol"] for each in evaluations_of(run)] == ["recut", "paper"]
    assert lengths_of(run) == [64, 128, 256] * 2
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 30 and summary["val_loss"] < 6
    assert_drawn(run, "figures/prior.png")
    assert_drawn(tmp_path / "runs" / f"{preset}_figures", "loss.png", "extrapolation.png")


def test_what_is_complete_is_not_done_again(tmp_path):
    for _ in range(2):
        done = start("run_genome.sh", tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    completed = json.loads((tmp_path / "runs/genome_25m/completions.json").read_text())
    assert completed["step"] == 30 and len(completed["prompts"]) == 3
    assert_drawn(tmp_path / "runs/genome_25m", "figures/genome.png")
    for line in ("data/genome is there", "runs/genome_25m is trained", "runs/genome_25m is evaluated",
                 "runs/genome_25m has continued the genome"):  # fmt: skip
        assert f"== {line}\n" in done.stdout
    assert "checkpoint " not in done.stdout


def test_tasks_with_two_kinds_of_attention(tmp_path):
    done = start("run_passkey.sh", tmp_path, "--attention", "goat rope")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = tmp_path / "runs"
    for task, depths in (("passkey", 1), ("niah", 5)):
        for run in (runs / task, runs / f"{task}_rope"):
            assert lengths_of(run) == [128] * depths + [256] * depths
        assert_drawn(runs / f"{task}_figures", "loss.png", "eval.png", "retrieval.png")
        assert_drawn(runs / task, "figures/prior.png")
        assert not (runs / f"{task}_rope" / "figures" / "prior.png").exists()


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(tmp_path):
    """Or from its start, where it was stopped before the first of them."""
    options = ("--attention", "none", "--set", "checkpoint.interval=10")
    assert start("run_genome.sh", tmp_path, *options).returncode == 0
    run = tmp_path / "runs" / "genome_25m_none"
    losses = losses_of(run)
    for lost in ("checkpoints/step_00000030", "checkpoints"):
        (run / "summary.json").unlink()
        shutil.rmtree(run / lost)
        again = start("run_genome.sh", tmp_path, *options)
        assert again.returncode == 0, again.stdout + again.stderr
        assert "training runs/genome_25m_none from its newest checkpoint" in again.stdout
        assert "evaluating runs/genome_25m_none" in again.stdout  # what was evaluated is older than the run
        assert losses_of(run) == losses


def losses_of(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--set", "train.steps=abc"], "train.steps"),
        (["--smal"], "--smal"),
        (["--attention", "goat alib"], 'model.attention = "alib" is not allowed'),
    ],
)
def test_a_wrong_option_of_the_trainer_is_said_before_the_data_are_prepared(tmp_path, options, problem):
    stopped = start("run_c4_125m.sh", tmp_path, *options)
    assert stopped.returncode == 2 and problem in stopped.stderr
    assert not list(tmp_path.iterdir())


def test_what_an_earlier_start_has_written_counts_as_space_that_is_there(tmp_path):
    """As if everything but the space on the disk were there."""
    free = tmp_path / "df"
    free.write_text("#!/bin/sh\necho Avail; echo 12000000\n")  # kilobytes
    taken = tmp_path / "du"
    taken.write_text("#!/bin/sh\necho 7900000 total\n")
    for tool in (free, taken):
        tool.chmod(0o755)
    words = [REPOSITORY / "scripts" / "run_c4_125m.sh", "--folder", tmp_path / "o", "--smal"]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert "has 12 GB free, and this takes 13 GB: free some" in done.stderr and done.returncode == 1
    taken.write_text("#!/bin/sh\necho 8100000 total\n")
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert "--smal" in done.stderr and done.returncode == 2  # what is checked next


def test_what_is_wrong_is_said_before_anything_is_done(tmp_path):
    done = start("run_c4_125m.sh", tmp_path / "data", "--attention")
    assert done.returncode == 2 and "--attention needs a value" in done.stderr
    assert not (tmp_path / "data").exists()
    shown = start("run_c4_125m.sh", tmp_path, "--help")
    assert shown.returncode == 0 and "--folder FOLDER" in shown.stdout and not list(tmp_path.iterdir())
