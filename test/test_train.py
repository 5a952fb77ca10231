"""The program as a user meets it: usage, run folders, reproducibility, bad input, closed pipes and full
disks."""

import fcntl
import json
import os
import platform
import pty
import re
import resource
import signal
import subprocess
import sys
import termios
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import REPOSITORY

TINY = {
    "model.width": 16,
    "model.vocab": 16,
    "prior.pos_rank": 1,
    "prior.abs_rank": 2,
    "data.seq_len": 16,
    "train.batch": 4,
    "train.steps": 12,
    "train.warmup": 2,
    "eval.interval": 5,
    "eval.tokens": 192,
    "log.interval": 4,
}


def flags(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def changed(settings, changes):
    """The settings with others: train__steps=3 for train.steps = 3."""
    return settings | {key.replace("__", "."): value for key, value in changes.items()}


def tiny_run(folder, **changes):
    return [
        "--config",
        "copy_mixture",
        "--out",
        folder,
        *flags(changed(TINY, changes)),
    ]


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_run_folder_holds_what_the_readme_says(run_binary, tmp_path):
    result = run_binary(*tiny_run(tmp_path / "run"))
    run = tmp_path / "run"
    lines = metrics_of(run)
    assert [line["step"] for line in lines] == list(range(1, 13))
    for line in lines:
        assert {
            "step",
            "tokens",
            "loss",
            "lr",
            "grad_norm",
            "tokens_per_second",
            "flops_per_second",
            "memory_bytes",
        } <= line.keys()
        assert line["tokens"] == line["step"] * 4 * 16
    assert [line["step"] for line in lines if "val_loss" in line] == [5, 10, 12]
    summary = json.loads((run / "summary.json").read_text())
    assert (
        summary["steps"] == 12
        and summary["loss"] == lines[-1]["loss"]
        and summary["val_loss"] == lines[-1]["val_loss"]
    )
    assert 0 < summary["bayes_optimal_loss"] < np.log(16)
    tensors = load_file(run / summary["checkpoint"] / "model.safetensors")
    assert summary["parameters"] == sum(tensor.size for tensor in tensors.values())
    assert tensors["embedding.weight"].shape == (16, 16)
    assert tensors["blocks.0.attn.q.weight"].shape == (2 * (8 - 4), 16)
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    assert tomllib.loads((run / "config.toml").read_text())["train"]["steps"] == 12
    assert "step 12/12 100%" in result.stdout


def test_the_start_says_why_the_device_was_taken(run_binary, tmp_path):
    chosen = run_binary(*tiny_run(tmp_path / "chosen"), "--device", "cpu").stdout.splitlines()[0]
    taken = run_binary(*tiny_run(tmp_path / "taken")).stdout.splitlines()[0]
    assert chosen.startswith("device ") and "(chosen with --device)" in chosen
    assert taken.startswith("device ") and "(chosen with --device)" not in taken


def test_learning_rate_is_never_zero_and_ends_at_its_minimum(run_binary, tmp_path):
    run_binary(*tiny_run(tmp_path / "run", train__lr=0.01, train__min_lr=0.002))
    rates = [line["lr"] for line in metrics_of(tmp_path / "run")]
    assert (
        rates[0] == pytest.approx(0.005)
        and rates[1] == pytest.approx(0.01)
        and rates[-1] == pytest.approx(0.002)
    )
    assert all(earlier > later for earlier, later in zip(rates[1:], rates[2:]))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="nothing is done on other processors")
def test_the_cpu_takes_subnormal_numbers_as_zero(run_binary, tmp_path):
    """They would be many times slower. Here each update of a bias, which begins at 0, would be one."""
    small = ("--set", "train.lr=1e-40", "--set", "train.min_lr=1e-40", "--set", "train.warmup=0")
    run = tmp_path / "run"
    run_binary("--config", "copy_mixture", "--device", "cpu", "--out", run, "--set", "train.steps=2", *small)
    weights = load_file(run / "checkpoints/step_00000002/model.safetensors")
    biases = [values for name, values in weights.items() if name.endswith(".bias")]
    assert biases and not any(values.view(np.uint32).any() for values in biases)


def test_same_seed_same_run_bit_for_bit(run_binary, tmp_path):
    for name in ("a", "b"):
        run_binary(*tiny_run(tmp_path / name))
    losses = [
        [(line["loss"], line["grad_norm"], line.get("val_loss")) for line in metrics_of(tmp_path / name)]
        for name in ("a", "b")
    ]
    assert losses[0] == losses[1]
    a, b = (
        next((tmp_path / name / "checkpoints").glob("*/model.safetensors")).read_bytes()
        for name in ("a", "b")
    )
    assert a == b


def test_config_of_a_run_repeats_it(run_binary, tmp_path):
    run_binary(*tiny_run(tmp_path / "a", train__seed=5))
    run_binary("--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "b")
    assert [line["loss"] for line in metrics_of(tmp_path / "a")] == [
        line["loss"] for line in metrics_of(tmp_path / "b")
    ]


def test_another_run_in_the_folder_is_refused_unless_overwritten(run_binary, tmp_path):
    run = tmp_path / "run"
    run_binary(*tiny_run(run))
    before = (run / "metrics.jsonl").read_bytes()
    assert "--overwrite" in run_binary(*tiny_run(run, train__steps=3), code=2).stderr
    assert (run / "metrics.jsonl").read_bytes() == before
    run_binary(*tiny_run(run, train__steps=3), "--overwrite")
    assert len(metrics_of(run)) == 3
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["step_00000003"]


def test_a_folder_that_is_no_run_is_never_touched(run_binary, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "no run" in run_binary(*tiny_run(tmp_path), "--overwrite", code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert "not a folder" in run_binary(*tiny_run(tmp_path / "thesis.tex"), "--overwrite", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--config"]),
        (["--config", "copy_mixtur"], ["copy_mixtur", "copy_mixture"]),
        (["--config", "no/such/file.toml"], ["no/such/file.toml"]),
        (["--config", "copy_mixture", "--stes"], ["--stes"]),
        (["--config", "copy_mixture", "--ovewrite"], ["--ovewrite", "did you mean --overwrite?"]),
        (["--config", "copy_mixture", "stray"], ["stray"]),
        (["--config", "copy_mixture", "eval", "--checkpoint", "x"], ["--config", "eval"]),
        (["--config", "copy_mixture", "--set"], ["--set"]),
        (["--config", "copy_mixture", "--set", "model.head=2"], ["model.head", "model.heads"]),
        (["--config", "copy_mixture", "--set", "train.steps=12abc"], ["train.steps", "12abc"]),
        (["--config", "copy_mixture", "--set", "train.steps=0"], ["train.steps"]),
        (["--config", "copy_mixture", "--set", "log.interval=0"], ["log.interval"]),
        (["--config", "copy_mixture", "--set", "model.heads=5"], ["model.heads", "model.width"]),
        (["--config", "copy_mixture", "--set", "prior.pos_rank=40"], ["prior.pos_rank"]),
        (["--config", "copy_mixture", "--set", "train.micro_batch=5"], ["train.micro_batch"]),
        (["--config", "copy_mixture", "--device", "tpu"], ["tpu", "cpu"]),
        (["--config", "copy_mixture", "--set", "model.precision=fp16"], ["model.precision", "bf16", "fp32"]),
    ],
)
def test_bad_usage_is_explained_with_exit_code_2_and_leaves_nothing(run_binary, tmp_path, arguments, words):
    result = run_binary(*arguments, "--out", tmp_path / "run", code=2)
    for word in words:
        assert word in result.stderr
    assert not (tmp_path / "run").exists()


def test_missing_data_is_explained_with_exit_code_3_and_leaves_nothing(run_binary, tmp_path):
    pattern = tmp_path / "nothing_*.bin"
    result = run_binary(
        "--config", "shakespeare", "--set", f"data.train={pattern}", "--out", tmp_path / "run", code=3
    )
    assert str(pattern) in result.stderr and "prepare.py" in result.stderr
    assert not (tmp_path / "run").exists()


def test_lists_and_prints_configs(run_binary, tmp_path):
    listing = run_binary("--list-configs").stdout
    names = [line.split()[0] for line in listing.splitlines()]
    assert {"copy_mixture", "shakespeare"} <= set(names)
    for name in names:
        printed = run_binary("--config", name, "--print-config").stdout
        tomllib.loads(printed)
        (tmp_path / f"{name}.toml").write_text(printed)
        assert run_binary("--config", tmp_path / f"{name}.toml", "--print-config").stdout == printed
    help_text = run_binary("--help").stdout
    assert "--overwrite" in help_text and "Examples:" in help_text


def test_updates_that_are_not_finite_stop_the_run_with_the_last_good_model(run_binary, tmp_path):
    run = tmp_path / "run"
    result = run_binary(
        *tiny_run(
            run,
            train__lr=10,
            train__min_lr=10,
            train__weight_decay=100,
            train__clip=0,
            train__max_skips=3,
            train__steps=40,
        ),
        code=1,
    )
    assert "not finite" in result.stderr and "train.lr" in result.stderr
    lines = metrics_of(run)
    assert all(line.get("skipped") for line in lines[-3:]) and len(lines) < 40
    model = load_file(next((run / "checkpoints").glob("*/model.safetensors")))
    assert all(np.isfinite(tensor).all() for tensor in model.values())


def test_training_goes_on_when_stdout_is_closed(binary, tmp_path):
    process = subprocess.Popen(
        [binary, *tiny_run(tmp_path / "run", log__interval=1)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    process.stderr.read()
    assert process.wait(timeout=300) == 0
    assert len(metrics_of(tmp_path / "run")) == 12


def test_a_full_disk_never_leaves_half_a_line_or_half_a_model(binary, tmp_path):
    limit = 1500  # bytes a file may have: some of metrics.jsonl's lines, not the model

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [binary, *tiny_run(tmp_path / "run", train__steps=40)]
    config_toml = subprocess.run([*command, "--print-config"], capture_output=True, check=True).stdout
    assert len(config_toml) > limit  # so config.toml itself does not fit
    refused = subprocess.run(command, preexec_fn=small_files, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 1 and "config.toml" in refused.stderr

    limit = len(config_toml) + 100
    result = subprocess.run(
        [*command[:-1], command[-1], "--overwrite"],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (
        result.returncode == 1
        and "NOT saved" in result.stderr
        and "model.safetensors" in result.stderr
        and "metrics.jsonl" in result.stderr
    )
    lines = metrics_of(tmp_path / "run")  # every line parses
    assert 3 < len(lines) < 40
    assert not list((tmp_path / "run").rglob("*.partial")) and not list(
        (tmp_path / "run").rglob("model.safetensors")
    )


def test_text_to_falling_validation_loss(run_binary, run_command, tmp_path):
    """Raw text -> prepare.py -> shards -> training, with bytes."""

    words = ["the", "goat", "climbs", "a", "steep", "hill", "and", "looks", "back"]
    choose = np.random.default_rng(1)
    text = " ".join(choose.choice(words) for _ in range(8000))
    (tmp_path / "book.txt").write_text(text)
    run_command(
        [
            sys.executable,
            REPOSITORY / "data/prepare.py",
            "text",
            "--out",
            tmp_path / "shards",
            "--tokenizer",
            "bytes",
            tmp_path / "book.txt",
        ]
    )
    settings = {
        "data.train": f"{tmp_path}/shards/train_*.bin",
        "data.val": f"{tmp_path}/shards/val_*.bin",
        "model.layers": 1,
        "model.heads": 2,
        "model.width": 32,
        "data.seq_len": 32,
        "train.batch": 8,
        "train.steps": 60,
        "train.warmup": 5,
        "train.lr": 5e-3,
        "train.min_lr": 5e-4,
        "eval.interval": 20,
    }
    run_binary("--config", "shakespeare", "--out", tmp_path / "run", *flags(settings))
    losses = [line["val_loss"] for line in metrics_of(tmp_path / "run") if "val_loss" in line]
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2] and losses[2] < 2.6


def test_a_terminal_shows_a_bar_and_closing_it_saves_the_run(binary, tmp_path):
    master, slave = pty.openpty()
    command = [binary, *tiny_run(tmp_path / "run", train__steps=100000)]
    process = subprocess.Popen(
        command,
        stdout=slave,
        stderr=slave,
        stdin=slave,
        start_new_session=True,
        preexec_fn=lambda: controlling_terminal(slave),
    )
    os.close(slave)
    shown = b""
    while b"ETA" not in shown:
        shown += os.read(master, 4096)
    assert b"\r\033[K[" in shown and b"/100000" in shown
    os.close(master)  # hangs up: SIGHUP, and every write fails from now on
    assert process.wait(timeout=300) == 4
    assert len(list((tmp_path / "run/checkpoints").glob("step_*/state.json"))) == 1
    for line in metrics_of(tmp_path / "run"):
        assert np.isfinite(line["loss"])


def controlling_terminal(file):
    fcntl.ioctl(file, termios.TIOCSCTTY, 0)


def test_a_spike_is_skipped_and_does_not_move_the_limits(run_binary, tmp_path):
    """One and a half deviations above the mean of eight steps are common: some updates are skipped, the rest
    of the run goes on. The limits of a step rest on the results up to the step before the previous one."""
    run = tmp_path / "run"
    result = run_binary(
        *tiny_run(run, train__steps=60, train__spike_z=1.5, train__spike_window=8, train__max_skips=30)
    )
    lines = metrics_of(run)
    skipped = [line for line in lines if "skipped" in line]
    assert (
        0 < len(skipped) < 60
        and all(line["skipped"] == "spike" for line in skipped)
        and not any("skipped" in line for line in lines[:9])
    )
    assert json.loads((run / "summary.json").read_text())["skipped_updates"] == len(skipped)
    assert result.stderr.count("spike, update skipped") == len(skipped)

    window, latest = [], []
    for line in lines:
        recent = np.array(window[-8:])
        if len(recent) == 8:
            limits = recent.mean(axis=0) + 1.5 * recent.std(axis=0)
            above = (np.array([line["loss"], line["grad_norm"]]) > limits * (1 + 1e-6)).any()
            below = (np.array([line["loss"], line["grad_norm"]]) < limits * (1 - 1e-6)).all()
            assert not (above and "skipped" not in line) and not (below and "skipped" in line)
        window += latest
        latest = [] if "skipped" in line else [(line["loss"], line["grad_norm"])]


def test_a_micro_batch_of_0_is_announced_and_saved_resolved(run_binary, tmp_path):
    result = run_binary(*tiny_run(tmp_path / "run"), *flags({"train.micro_batch": 0}))
    assert "micro-batch 4 of 4 sequences, the largest that fits" in result.stdout
    saved = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert saved["train"]["micro_batch"] == 4
    result = run_binary(*tiny_run(tmp_path / "run"), *flags({"train.micro_batch": 0}), "--resume")
    assert "nothing to do" in result.stdout and "micro_batch" not in result.stderr
    go_on = ["--resume", "--out", tmp_path / "run", "--set", "train.steps=16"]
    run_binary("--resume", "--out", tmp_path / "run", *flags({"train.micro_batch": 2, "train.steps": 14}))
    dry = run_binary(*go_on, "--dry-run")
    assert re.search(r"micro-batch +2 +\(as before\)", dry.stdout) and "micro_batch" not in dry.stderr
    result = run_binary(*go_on)
    assert "micro-batch 2 of 4 sequences, as before" in result.stdout and "micro_batch" not in result.stderr
    result = run_binary("--resume", "--out", tmp_path / "run", *flags({"train.batch": 3, "train.steps": 18}))
    assert "micro-batch 3 of 3 sequences, the largest that fits" in result.stdout
    dry = run_binary(*tiny_run(tmp_path / "new"), *flags({"train.micro_batch": 0}), "--dry-run").stdout
    assert re.search(r"micro-batch +4 +\(the largest that fits\)", dry)


def test_a_run_that_does_not_fit_is_refused_with_the_largest_micro_batch_that_does(run_binary, tmp_path):
    """Asks for more memory than any test machine has; one sequence at a time would fit."""
    huge = {
        "data.seq_len": 4096,
        "train.batch": 65536,
        "train.micro_batch": 65536,
        "model.width": 64,
        "model.recompute": "block",
    }
    result = run_binary(*tiny_run(tmp_path / "run"), *flags(huge), code=1)
    assert (
        "out of memory" in result.stderr
        and "needed" in result.stderr
        and "--set train.micro_batch=" in result.stderr
    )
    assert not (tmp_path / "run").exists()
    hopeless = {"model.width": 65536, "model.layers": 100, "model.heads": 64}
    assert (
        "No micro-batch fits" in run_binary(*tiny_run(tmp_path / "hopeless"), *flags(hopeless), code=1).stderr
    )
