"""The retrieval tasks from outside: training on them, and `eval` of their answers against an independent
float64 model."""

import json
import re
import subprocess
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from reference.copy_mixture_numpy import VALIDATION_BIT
from reference.goat_numpy import Model, ModelConfig
from reference.needle_numpy import niah, passkey

TINY = {
    "model.layers": 2,
    "model.heads": 2,
    "model.width": 32,
    "prior.pos_rank": 2,
    "prior.init": "random",
    "prior.sink_init_scale": 0.5,
    "data.seq_len": 66,
    "data.passkey.digits": 4,
    "data.niah.letters": 5,
    "train.steps": 12,
    "train.batch": 4,
    "train.micro_batch": 2,
    "train.lr": 0.03,
    "train.min_lr": 0.03,
    "train.warmup": 2,
    "eval.interval": 0,
    "eval.tokens": 6 * 66,
    "log.interval": 100,
}
TASKS = {
    "passkey": lambda length, **depths: passkey(length, digits=4, **depths),
    "niah": lambda length, **depths: niah(length, letters=5, **depths),
}
FIELDS = ("nll", "strict_accuracy", "span_token_accuracy", "span_log_probability")


def flags(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def reference_model(run):
    config = tomllib.loads((run / "config.toml").read_text())
    newest = max((run / "checkpoints").glob("step_*/model.safetensors"))
    return Model(ModelConfig.from_run(config), load_file(newest))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, binary):
    """{task: the folder of a short run}"""
    folder = tmp_path_factory.mktemp("runs")
    for task in TASKS:
        command = [binary, "--config", task, "--device", "cpu", "--out", folder / task, *flags(TINY)]
        subprocess.run(command, check=True, capture_output=True)
    return {task: folder / task for task in TASKS}


def results_of(run_binary, run, path, *options):
    result = run_binary("eval", "--checkpoint", run, "--json", path, *options)
    return json.loads(path.read_text()), result.stdout


def wanted(model, task, count):
    """The fields of a cell, in float64, for the first `count` validation samples."""
    x = np.stack([task.tokens(VALIDATION_BIT | n) for n in range(count)])
    answer = slice(task.seq_len - task.answer_length, task.seq_len)
    losses = model.token_losses(x[:, :-1], x[:, 1:])
    logits, _ = model.forward(x[:, :-1])
    right = logits[:, answer].argmax(axis=-1) == x[:, 1:][:, answer]
    fields = (losses.mean(), right.all(axis=1).mean(), right.mean(), -losses[:, answer].mean())
    return losses, answer, dict(zip(FIELDS, fields))


@pytest.mark.parametrize("task", TASKS)
def test_answers_equal_float64_from_the_files_of_the_run_at_each_length_and_depth(
    runs, run_binary, tmp_path, task
):
    model = reference_model(runs[task])
    options = ["--lengths", "66,150", "--depths", "0,0.7", "--samples", 9]
    results, printed = results_of(run_binary, runs[task], tmp_path / "r.json", *options)
    assert results["task"] == task and results["answer_length"] == {"passkey": 4, "niah": 5}[task]
    assert re.fullmatch(rf"{task}, answers of [45] characters, validation samples, seed \d+", results["data"])
    cells = results["results"]
    assert [(c["length"], c["depth"]) for c in cells] == [(66, 0), (66, 0.7), (150, 0), (150, 0.7)]
    for cell in cells:
        depth = cell["depth"]
        want = wanted(model, TASKS[task](cell["length"], depths=(depth, depth)), 9)[2]
        assert cell["samples"] == 9
        for field in FIELDS:
            assert cell[field] == pytest.approx(want[field], abs=2e-5), field
    assert any(0 < cell["span_token_accuracy"] < 1 for cell in cells)
    table, grid = printed.split("\n\n")[1:]
    assert [line.split()[:3] for line in table.splitlines()[1:]] == [
        [str(c["length"]), f"{c['depth']:g}", "9"] for c in cells
    ]
    assert [word for word in grid.split() if word.endswith("%")] == [
        f"{100 * cell['span_token_accuracy']:.1f}%" for cell in cells
    ]


@pytest.mark.parametrize(("task", "span_weight"), [("passkey", 10), ("niah", None)])
def test_depths_are_drawn_as_in_training_and_validation_is_the_loss_that_is_trained(
    runs, run_binary, tmp_path, task, span_weight
):
    summary = json.loads((runs[task] / "summary.json").read_text())
    losses, answer, _ = wanted(reference_model(runs[task]), TASKS[task](66), 6)
    span = losses[:, answer].mean()
    want = span if span_weight is None else (losses.mean() + span_weight * span) / (1 + span_weight)
    assert summary["val_loss"] == pytest.approx(want, abs=2e-5)
    if task == "passkey":
        results, printed = results_of(
            run_binary, runs[task], tmp_path / "r.json", "--lengths", "66", "--samples", 6
        )
        (cell,) = results["results"]
        assert cell["nll"] == pytest.approx(losses.mean(), abs=2e-5) and "depth" not in cell
        assert "depth" not in printed


def test_the_published_grid_is_the_default(run_binary, tmp_path):
    smallest = {"model.layers": 1, "model.heads": 1, "model.width": 16, "train.steps": 1, "train.warmup": 0}
    runs = {task: tmp_path / task for task in TASKS}
    for task, run in runs.items():
        run_binary("--config", task, "--device", "cpu", "--out", run, *flags(TINY | smallest))
    run = runs["niah"]
    results, _ = results_of(run_binary, run, tmp_path / "r.json", "--lengths", "70", "--samples", 1)
    assert [cell["depth"] for cell in results["results"]] == [0.1, 0.3, 0.5, 0.7, 0.9]
    results, _ = results_of(run_binary, run, tmp_path / "r.json", "--depths", "0.5", "--samples", 1)
    assert [cell["length"] for cell in results["results"]] == [512, 1024, 2048, 4096, 8192, 16384]
    results, _ = results_of(run_binary, runs["passkey"], tmp_path / "r.json", "--samples", 1)
    assert [cell["length"] for cell in results["results"]] == [1024, 2048, 4096, 8192, 16384]
    results, _ = results_of(run_binary, runs["passkey"], tmp_path / "r.json", "--lengths", "66")
    assert [cell["samples"] for cell in results["results"]] == [40]


def test_what_fits_no_retrieval_task_or_no_other_run_is_refused(runs, run_binary, tmp_path):
    for arguments, words in [
        (["--tokens", "100"], ["--tokens", "--samples"]),
        (["--protocol", "paper"], ["--protocol", "--samples"]),
        (["--per-token", tmp_path / "nll.npy"], ["--per-token", "--samples"]),
        (["--lengths", "30"], ["length 30", "too short for niah", "at least 52"]),
        (["--depths", "1.5"], ["1.5", "from 0 to 1"]),
        (["--depths", "0.5,0.5"], ["--depths", "0.5 is there twice"]),
        (["--samples", "0"], ["--samples", "from 1"]),
    ]:
        stderr = run_binary("eval", "--checkpoint", runs["niah"], *arguments, code=2).stderr
        for word in words:
            assert word in stderr, stderr
    settings = ["--set", "train.steps=1", "--set", "train.warmup=0", "--set", "eval.tokens=64"]
    run_binary("--config", "copy_mixture", "--out", tmp_path / "copies", *settings)
    for option in (["--samples", "3"], ["--depths", "0.5"]):
        stderr = run_binary("eval", "--checkpoint", tmp_path / "copies", *option, code=2).stderr
        assert option[0] in stderr and "copy_mixture" in stderr


@pytest.mark.parametrize(
    ("preset", "command"),
    [
        ("shakespeare", "text --tokenizer bytes --out data/shakespeare FILE..."),
        ("c4_125m", "c4 --out data/c4"),
        ("fineweb_1b", "fineweb --out data/fineweb"),
        ("genome_25m", "fasta --input FILE.fa.gz --out data/genome"),
        ("genome_125m", "fasta --input FILE.fa.gz --out data/genome"),
    ],
)
def test_a_preset_without_its_data_names_the_command_that_makes_it(
    binary, run_command, tmp_path, monkeypatch, preset, command
):
    monkeypatch.chdir(tmp_path)
    stderr = run_command([binary, "--config", preset], code=3).stderr
    assert stderr.endswith(f"\n  .venv/bin/python data/prepare.py {command}\n")
    moved = ["--set", "data.train=elsewhere/x/train_*.bin", "--set", "data.val="]
    stderr = run_command([binary, "--config", preset, *moved], code=3).stderr
    assert command not in stderr
    assert list(tmp_path.iterdir()) == []


def test_samples_are_in_the_characters_of_the_task(run_binary, runs):
    sample = ("sample", "--checkpoint", runs["passkey"], "--tokens", 5)
    question = " q: what is the passkey? a: "
    result = run_binary(*sample, "--prompt", question)
    assert result.stdout.startswith(question) and "tokenizer characters" in result.stderr
    assert run_binary(*sample, "--prompt", "A", code=2).stderr.count('"A" at byte 0') == 1
