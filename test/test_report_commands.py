"""report.py: the commands on the page repeat the runs and their evaluations."""

import json
import shlex
import subprocess

import pytest

from fabricated_run import no_figure_stays_open, peaked_tensors, write_run  # with a fixture
from report_pages import (  # with fixtures
    evaluation, finished, losses, no_program, page_of, texts, write_evaluation,
)  # fmt: skip


def test_commands_name_the_files_as_the_shell_takes_them(tmp_path, page_of):
    run = finished(tmp_path / "a b", peaked_tensors())
    words = ["eval", "--checkpoint", str(run), "--data", "it's/val_*.bin", "--json", f"{run}/eval.json"]
    write_evaluation(run, losses((40, 1.5)), arguments=words)
    (run / "init_from.json").write_text(json.dumps({"checkpoint": "/from/here", "step": 3}))
    page = page_of(run)
    train, evaluate, loss, prior, figure, own = map(shlex.split, page.commands)
    assert train == [
        "./train_gpt_goat", "--config", f"{run}/config.toml", "--init-from", "/from/here",
        "--out", f"{run}-again",
    ]  # fmt: skip
    assert evaluate == ["./train_gpt_goat", *words]
    plot = [".venv/bin/python", "scripts/plot.py"]
    assert loss == [*plot, "loss", str(run)]
    assert prior == [*plot, "prior", str(run), "--checkpoint", "40", "--layer", "0"]
    assert figure == [*plot, "eval", f"{run}/eval.json"]
    assert own[1:4] == ["scripts/report.py", str(run), "--out"]
    assert texts(page.row("start")) == ["weights of /from/here"]


def test_each_file_of_evaluations_has_the_command_that_made_it(tmp_path, page_of):
    runs = [finished(tmp_path / name) for name in ("a", "b")]
    rows, protocols = losses((40, 1.5)), ("recut", "paper")
    made = [evaluation(run, rows, protocol=protocol) for run in runs for protocol in protocols]
    files = {tmp_path / "all.json": ["eval", "--protocol", "both"], runs[0] / "eval.json": ["eval", "x"]}
    for file, words in files.items():
        members = made if file.name == "all.json" else made[:2]  # which all.json holds too
        file.write_text(json.dumps({"evaluations": members, "arguments": words}))
    page = page_of(*runs, "--eval", tmp_path / "all.json")
    commands = [shlex.split(command) for command in page.commands]
    assert all(["./train_gpt_goat", *words] in commands for words in files.values())
    assert all(f"What made {file}" in page.text for file in files)


@pytest.mark.parametrize("arguments", [None, [], "eval"])
def test_a_file_may_not_tell_what_made_it(tmp_path, page_of, arguments):
    run = finished(tmp_path / "a")
    write_evaluation(run, losses((40, 1.5)), arguments=arguments)
    page = page_of(run)
    assert f"{run}/eval.json does not tell the command that made it." in page.text
    assert not any(" eval --checkpoint" in command for command in page.commands)


@pytest.mark.parametrize("preset", ["copy_mixture", "niah"])
def test_the_training_command_makes_the_same_config_of_a_preset(
    tmp_path, page_of, binary, monkeypatch, preset
):
    monkeypatch.setenv("TRAIN_GPT_GOAT", str(binary))
    settings = [
        "--set",
        "train.lr=0.00123",
        "--set",
        "model.attention=goat+rope",
        "--set",
        "model.tied=false",
    ]
    settings += ["--set", "data.train=", "--set", "train.micro_batch=2"]
    words = [binary, "--config", preset, *settings, "--print-config"]
    resolved = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    run = write_run(tmp_path / "a")
    (run / "config.toml").write_text(resolved)
    _, command, *_ = page_of(run).commands
    program, *words = shlex.split(command)
    assert program == "./train_gpt_goat" and words[:2] == ["--config", preset]
    assert words[2:4] == ["--out", f"{run}-again"] and len(words) <= 4 + len(settings)
    made = subprocess.run([binary, *words, "--print-config"], capture_output=True, text=True, check=True)
    assert made.stdout == resolved
    (run / "config.toml").write_text(resolved.replace("rope_base = ", "rope_base = -"))  # no program makes it
    assert "--set" not in page_of(run).commands[1]
