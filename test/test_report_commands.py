"""report.py: the commands on the page repeat the runs and their evaluations."""

import json
import shlex
import subprocess

import pytest

from fabricated_run import CONFIG, no_figure_stays_open, peaked_tensors, write_run  # with a fixture
from report_pages import (  # with fixtures
    evaluation, finished, no_program, page_of, texts, write_evaluation,
)  # fmt: skip


def test_commands_name_the_files_as_the_shell_takes_them(tmp_path, page_of):
    run = finished(tmp_path / "a b", peaked_tensors())
    others = "shards 'other/val_*.bin': 80 tokens to predict"
    rows = [{"length": 40, "nll": 1.5, "sequences": 3}, {"length": 20, "nll": 1.5, "sequences": 6}]
    write_evaluation(run, rows, data=others, data_files=["other/val_*.bin"])
    (run / "init_from.json").write_text(json.dumps({"checkpoint": "/from/here", "step": 3}))
    page = page_of(run)
    train, evaluate, loss, prior, figure, own = map(shlex.split, page.commands)
    assert train == [
        "./train_gpt_goat", "--config", f"{run}/config.toml", "--init-from", "/from/here",
        "--out", f"{run}-again",
    ]  # fmt: skip
    assert evaluate == [
        "./train_gpt_goat", "eval", "--checkpoint", f"{run}/checkpoints/step_00000040", "--lengths", "20,40",
        "--tokens", "120", "--data", "other/val_*.bin", "--json", f"{run}/eval.json",
    ]  # fmt: skip
    plot = [".venv/bin/python", "scripts/plot.py"]
    assert loss == [*plot, "loss", str(run)]
    assert prior == [*plot, "prior", str(run), "--checkpoint", "40", "--layer", "0"]
    assert figure == [*plot, "eval", f"{run}/eval.json"]
    assert own[1:4] == ["scripts/report.py", str(run), "--out"]
    assert texts(page.row("start")) == ["weights of /from/here"]


def shards(run, lengths=(128, 512), tokens=1024, **more):
    """An evaluation of shards by the program: as many sequences as the tokens make."""
    rows = [{"length": n, "nll": 1.5, "sequences": tokens // n} for n in lengths]
    known = {"protocol": "recut", "data": "shards 'x': much", "data_files": [], "precision": "fp32"}
    return evaluation(run, rows, **known | {"tokens_left_out": 100} | more)


def write_several(path, *several):
    path.write_text(json.dumps({"evaluations": several}))


def evaluation_command(page):
    [words] = [shlex.split(command) for command in page.commands if " eval --checkpoint" in command]
    return words


def test_one_command_makes_a_file_of_several_runs_and_both_protocols(tmp_path, page_of):
    runs = [finished(tmp_path / name) for name in ("a", "b")]
    made = [shards(run, protocol=protocol) for run in runs for protocol in ("recut", "paper")]
    made[1]["results"] = made[3]["results"] = [{"length": n, "nll": 2, "sequences": 100} for n in (128, 512)]
    write_several(tmp_path / "all.json", *made)
    write_several(runs[0] / "eval.json", *made[:2])  # which all.json holds too
    page = page_of(*runs, "--eval", tmp_path / "all.json")
    words = [shlex.split(command) for command in page.commands if " eval --checkpoint" in command]
    checkpoints = [f"{run}/checkpoints/step_00000040" for run in runs]
    end = ["--lengths", "128,512", "--protocol", "both", "--tokens", "1024", "--precision", "fp32", "--json"]
    start = ["./train_gpt_goat", "eval", "--checkpoint"]
    assert words == [
        [*start, checkpoints[0], *end, f"{runs[0]}/eval.json"],
        [*start, *checkpoints, *end, f"{tmp_path}/all.json"],
    ]
    assert page_of(*runs).text.count("Evaluate again, into") == 1


def test_the_command_of_an_evaluation_has_all_words_of_data(tmp_path, page_of):
    run = finished(tmp_path / "a")
    files = ["a 0.bin", "a_1.bin", "it's/b_*.bin"]
    named = "shards 'a 0.bin ... it's/b_*.bin': 1"
    write_several(run / "eval.json", shards(run, data=named, data_files=files))
    words = evaluation_command(page_of(run))
    assert words[words.index("--data") + 1 : words.index("--data") + 4] == files
    write_several(run / "eval.json", shards(run, data="shards 'data.val': 1"))
    assert "--data" not in evaluation_command(page_of(run))


@pytest.mark.parametrize(
    ("config", "device", "precision", "is_given"),
    [
        ("fp32", "an H100", "fp32", False), ("fp32", "an H100", "bf16", True),
        ("bf16", "a processor", "fp32", False), ("bf16", "a processor", "bf16", True),
        ("auto", "a processor", "fp32", False), ("auto", "a processor", "bf16", True),
        ("bf16", "unknown", "bf16", True), ("auto", "unknown", "fp32", True),
    ],
)  # fmt: skip
def test_the_command_has_a_precision_that_is_not_the_runs_own(
    tmp_path, page_of, config, device, precision, is_given
):
    changed = CONFIG | {"model": CONFIG["model"] | {"precision": config}}
    run = finished(tmp_path / "a", config=changed)
    write_several(run / "eval.json", shards(run, device=device, precision=precision))
    words = evaluation_command(page_of(run))
    assert words[words.index("--json") - 2 :][:2] == ["--precision", precision] or not is_given
    assert ("--precision" in words) == is_given


def test_on_a_gpu_bf16_is_the_runs_own_precision(tmp_path, page_of):
    changed = CONFIG | {"model": CONFIG["model"] | {"precision": "auto"}}
    run = finished(tmp_path / "a", config=changed, device="cuda", device_description="an H100")
    for precision, is_given in (("bf16", False), ("fp32", True)):
        write_several(run / "eval.json", shards(run, device="an H100", precision=precision))
        assert ("--precision" in evaluation_command(page_of(run))) == is_given


def test_runs_with_data_of_their_own_are_evaluated_by_their_own_defaults(tmp_path, page_of):
    runs = [finished(tmp_path / name) for name in ("a", "b", "c")]
    rows = [{"length": 40, "nll": 1.5, "sequences": 6}]
    known = {"precision": "fp32", "data_files": []}
    mixture = known | evaluation(runs[2], rows, protocol="recut", data="a mixture", validation_tokens=256)
    answers = {"nll": 1.0, "span_token_accuracy": 0.5, "strict_accuracy": 0.25, "samples": 40}
    grid = [{"length": 1024 << n} | answers for n in range(5)]
    task = known | evaluation(tmp_path / "d", grid, task="passkey")
    whole, other = (shards(run, [40], n, tokens_left_out=9) for run, n in ((runs[0], 4000), (runs[1], 800)))
    write_several(tmp_path / "all.json", whole, other, mixture, task)
    words = evaluation_command(page_of(*runs, "--eval", tmp_path / "all.json"))
    assert words[7:] == ["--samples", "40", "--precision", "fp32", "--json", f"{tmp_path}/all.json"]
    cut = shards(runs[1], [40], 4000, tokens_left_out=200)
    write_several(tmp_path / "all.json", whole | {"checkpoint": "other"}, other, cut)
    words = evaluation_command(page_of(*runs, "--eval", tmp_path / "all.json"))
    assert words[words.index("--tokens") + 1] == "4000"  # the other run has no more than 800


OLDER = "it is of an older program and does not tell --data, it names "


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data_files": None}, f"{OLDER}shards 'x': much"),
        ({"data_files": None, "data": None}, f"{OLDER}no data"),
        ({"data_files": ["y"]}, "its evaluations differ in --data"),
        ({"lengths": (128, 256)}, "its evaluations differ in --lengths"),
        ({"tokens": 512, "tokens_left_out": 600}, "its evaluations differ in --tokens"),
        ({"protocol": "paper"}, "its evaluations differ in --protocol"),
        ({"precision": "bf16"}, "its evaluations differ in --precision"),
        ({"tokens_left_out": "x"}, "it holds values that `eval` does not write"),
        ({"precision": [1]}, "it holds values that `eval` does not write"),
    ],
    ids=str,
)
def test_where_no_command_is_known_to_make_a_file_the_page_says_why(tmp_path, page_of, changes, why):
    runs = [finished(tmp_path / name) for name in ("a", "b")]
    made = {key: value for key, value in shards(runs[1], **changes).items() if value is not None}
    write_several(runs[0] / "eval.json", shards(runs[0]), made)
    page = page_of(*runs)
    assert f"No command makes {runs[0]}/eval.json again: {why}." in page.text
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
