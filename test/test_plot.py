"""plot.py as a command: what is printed and written, and every error in one line."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import plot
from conftest import REPOSITORY
from fabricated_run import (  # with fixtures
    CONFIG, config_of, fails, is_picture, no_figure_stays_open, peaked_tensors, run, write_checkpoint,
    write_run,
)  # fmt: skip

SCRIPT = REPOSITORY / "scripts" / "plot.py"


# What is printed and written


def test_prior_writes_its_figure_and_says_what_it_shows(run, run_command):
    result = run_command([sys.executable, SCRIPT, "prior", run, "--layer", "1"])
    path, where, sentences, losses = result.stdout.splitlines()
    assert Path(path) == run / "figures" / "prior_layer1.png" and is_picture(path, 1200, 800)
    assert where == f"Layer 1 at step 40, from {run / 'checkpoints' / 'step_00000040'}."
    assert "Head 0 puts 99" in sentences and "j = 0" in sentences
    assert "Head 1 puts" in sentences and "lag 1" in sentences
    assert "3.2000" in losses and "3.3000" in losses and "2.9000" in losses
    assert result.stderr == ""


def test_a_model_that_was_passed_on_is_drawn_and_nothing_is_said_of_its_run(run, tmp_path, run_command):
    passed_on = tmp_path / "passed on"
    passed_on.mkdir()
    for name in ("model.safetensors", "state.json"):
        (passed_on / name).write_bytes((run / "checkpoints/step_00000040" / name).read_bytes())
    result = run_command([sys.executable, SCRIPT, "prior", passed_on])
    path, where, _ = result.stdout.splitlines()
    assert Path(path) == passed_on / "figures" / "prior.png" and "step 40" in where


def test_loss_writes_its_figure_beside_the_first_run(run, tmp_path, run_command):
    second = write_run(tmp_path / "second")
    (second / "metrics.jsonl").open("ab").write(b'{"step": 41, "lo\xc3')  # a run that is being written
    (second / "summary.json").unlink()
    result = run_command([sys.executable, SCRIPT, "loss", run, second])
    path, *sentences = result.stdout.splitlines()
    assert Path(path) == run / "figures" / "loss.png" and is_picture(path, 800, 400)
    assert [sentence.partition(": ")[0] for sentence in sentences] == [str(run), str(second)]
    assert "3.2000" in sentences[0] and "not finished" in sentences[1] and result.stderr == ""


@pytest.mark.parametrize("ending", ["png", "PNG", "pdf", "svg", "jpg"])
def test_the_name_gives_the_format(run, tmp_path, ending):
    path = tmp_path / "new" / "folder" / f"figure.{ending}"
    assert plot.main(["loss", str(run), "--out", str(path)]) == 0
    head = path.read_bytes()[:200]
    assert {"png": b"PNG", "pdf": b"%PDF", "svg": b"<?xml", "jpg": b"JFIF"}[ending.lower()] in head
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("name", ["$x_$", "a\nb", "\u6587", os.fsdecode(b"\xff"), "_x"])
def test_odd_names_of_runs_do_no_harm(tmp_path, capsys, recwarn, name):
    folder = write_run(tmp_path / name, peaked_tensors())
    for command in (["prior", "--length", "3"], ["loss"]):
        assert plot.main([*command, str(folder)]) == 0
        assert capsys.readouterr().err == ""
        assert (folder / "figures" / f"{command[0]}.png").stat().st_size > 10_000


# Errors


def test_wrong_use_is_one_line_and_exits_with_2(run, tmp_path, fails):
    rope = write_run(tmp_path / "rope", peaked_tensors(), config_of(model__attention="none"))
    slopes = write_run(tmp_path / "slopes", peaked_tensors(), config_of(model__attention="goat+alibi"))
    for words, part in [
        ([], "COMMAND"),
        (["draw"], "draw"),
        (["prior"], "RUN"),
        (["loss"], "RUN"),
        (["prior", run, "more"], "more"),
        (["prior", rope], "model.attention is 'none'"),
        (["prior", slopes], "ALiBi's slopes"),
        (["prior", run, "--layer", "2"], "--layer 2: "),
        (["prior", run, "--layer", "-1"], "0 to 1"),
        (["prior", run, "--layer", "x"], "--layer"),
        (["prior", run, "--length", "1"], "--length 1: "),
        (["prior", run, "--length", "1e3"], "--length"),
        (["prior", run, "--length", "9" * 5000], "--length"),
        (["prior", run, "--length", "9" * 30], "the limit here is --length"),
        (["prior", run, "--checkpoint", "7"], "5, 40"),
        (["prior", run, "--checkpoint", "-5"], "5, 40"),
        (["loss", tmp_path / "nowhere"], "metrics.jsonl"),
        (["loss", run, tmp_path / "nowhere"], "nowhere"),
    ]:
        assert part in fails(2, *words), words
    assert not (run / "figures").exists()


def damaged_tensors(**changes):
    return {name: changes.get(name.rsplit(".", 1)[-1], value) for name, value in peaked_tensors().items()}


def test_models_that_do_not_fit_their_config_exit_with_3(tmp_path, fails):
    zeros = np.zeros
    with_nan = peaked_tensors()["blocks.0.attn.prior.alpha"].copy()
    with_nan[0, 0] = np.nan
    for n, (tensors, config, part) in enumerate([
        ({"x": zeros(1, np.float32)}, CONFIG, "'blocks.0.attn.prior.alpha' is missing"),
        (damaged_tensors(alpha=zeros((3, 5), np.float32)), CONFIG, "F32 [3, 5], expected F32 [3, 4]"),
        (damaged_tensors(bump=zeros(3, np.float64)), CONFIG, "F64 [3], expected F32 [3]"),
        (damaged_tensors(bump=zeros((3, 1), np.float32)), CONFIG, "F32 [3, 1]"),
        (damaged_tensors(w1=zeros(0, np.float32)), CONFIG, "F32 [0], expected F32 [6, 6]"),
        (damaged_tensors(alpha=with_nan), CONFIG, "alpha' holds values that are not finite"),
        (peaked_tensors(), config_of(model__heads=4), "expected F32 [4, 4]"),
        (peaked_tensors(), config_of(prior__learned_frequencies=True), "0.attn.prior.frequency' is missing"),
        (peaked_tensors(), config_of(model__layers="two"), "model.layers = 'two' cannot be"),
        (peaked_tensors(), config_of(model__heads=True), "model.heads = True"),
        (peaked_tensors(), config_of(model__heads=0), "model.heads = 0"),
        (peaked_tensors(), config_of(model__attention=1), "model.attention = 1"),
        (peaked_tensors(), config_of(prior__base=-1.0), "prior.base = -1.0"),
        (peaked_tensors(), config_of(prior__base="x"), "prior.base = 'x'"),
        (peaked_tensors(), config_of(prior__recency="often"), "prior.recency = 'often'"),
        (peaked_tensors(), config_of(data__seq_len=0), "data.seq_len = 0"),
        (peaked_tensors(), {"model": CONFIG["model"]}, "prior.abs_rank is missing"),
        (peaked_tensors(), {"model": {"attention": "goat", "layers": 2}}, "model.heads is missing"),
        (peaked_tensors(), {}, "model.attention is missing"),
    ]):  # fmt: skip
        run = write_run(tmp_path / str(n), tensors, config)
        assert part in fails(3, "prior", run) and not (run / "figures").exists()


def test_an_integer_stands_for_a_number_with_a_fraction(tmp_path):
    assert (
        plot.main(["prior", str(write_run(tmp_path / "run", peaked_tensors(), config_of(prior__base=10000)))])
        == 0
    )


def test_whole_checkpoints_with_unreadable_contents_exit_with_3(tmp_path, fails, monkeypatch):
    monkeypatch.setattr("fabricated_run.save", lambda tensors: b"no safetensors file")
    assert "model.safetensors" in fails(3, "prior", write_run(tmp_path / "weights", peaked_tensors()))
    monkeypatch.undo()
    monkeypatch.setattr("fabricated_run.toml", lambda config: "model = [1,\n")
    run = tmp_path / "config"
    (run / "checkpoints").mkdir(parents=True)
    write_checkpoint(run / "checkpoints" / "step_00000001", 1, peaked_tensors())
    assert "none of its 1 checkpoints" in plot_errors(run)[-1]


def plot_errors(run):
    result = subprocess.run(
        [sys.executable, SCRIPT, "prior", run], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 3 and "Traceback" not in result.stderr
    return result.stderr.splitlines()


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (b'{"step": 1, "loss": 2.0}\nnonsense\n{"step": 2, "loss": 2.0}\n', "line 2: not JSON"),
        (b"[1]\n", "line 1: expected an object, found [1]"),
        (b"3\n", "expected an object"),
        (b"\n\n\xff\n", "line 3: not JSON"),
        (b'{"loss": 2.0}\n', "'step' is missing"),
        (b'{"step": "1", "loss": 2.0}\n', "'step' is missing or not a count"),
        (b'{"step": -1, "loss": 2.0}\n', "not a count"),
        (b'{"step": true, "loss": 2.0}\n', "not a count"),
        (b'{"step": 1e999, "loss": 2.0}\n', "not a count"),
        (b'{"step": 1, "loss": "low"}\n', "loss is 'low', expected a number"),
        (b'{"step": 1, "val_loss": []}\n', "val_loss is [], expected a number"),
        (b'{"step": 1, "loss": NaN}\n', "NaN is not JSON"),
        (b'{"step": ' + b"1" * 5000 + b', "loss": 1}\n', "not JSON"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"step": 1, "loss": null}\n', "no finite loss"),
        (b'{"step": 1, "loss": ' + b"9" * 400 + b"}\n", "no finite loss"),
        (b'{"step": 1, "loss": 2.0}', "no finite loss"),  # not finished
        (b"", "no finite loss"),
    ],
)
def test_damaged_metrics_exit_with_3_and_name_the_line(run, fails, lines, part):
    (run / "metrics.jsonl").write_bytes(lines)
    error = fails(3, "loss", run)
    assert part in error and str(run / "metrics.jsonl") in error


@pytest.mark.parametrize("text", [b"{", b"[]", b"3", b"\xff", b"", b"[" * 100_000, b'{"loss": NaN}'])
def test_a_damaged_summary_exits_with_3(run, fails, text):
    (run / "summary.json").write_bytes(text)
    assert str(run / "summary.json") in fails(3, "loss", run)


def test_folders_where_files_should_be_exit_with_3(run, fails):
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    assert "is not a regular file" in fails(3, "loss", run)


def test_settings_of_the_users_shell_do_not_matter(run, tmp_path, run_command):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.dpi: 3\n")
    environment = ["env", "MPLBACKEND=nonsense", f"MATPLOTLIBRC={tmp_path}", "PYTHONIOENCODING=ascii"]
    folder = write_run(tmp_path / "caf\u00e9", peaked_tensors())
    out = run_command([*environment, sys.executable, SCRIPT, "prior", folder]).stdout
    assert "caf\\xe9" in out and is_picture(folder / "figures" / "prior.png", 1200, 800)
