"""--init-from: a run that starts with another one's weights."""

import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from test_train import metrics_of, tiny_run

AT_REST = {"train__steps": 1, "train__warmup": 0, "train__lr": 1e-12, "train__min_lr": 0, "eval__tokens": 0}


@pytest.fixture
def trained(run_binary, tmp_path):
    """A run of 12 steps."""
    run_binary(*tiny_run(tmp_path / "trained"))
    return tmp_path / "trained"


def weights_of(run):
    (checkpoint,) = sorted((run / "checkpoints").glob("step_*"))[-1:]
    return load_file(checkpoint / "model.safetensors")


def record_of(run):
    return json.loads((run / "init_from.json").read_text())


def start(run_binary, folder, source, code=0, **settings):
    """A run that keeps the weights it starts with."""
    return run_binary(*tiny_run(folder, **AT_REST | settings), "--init-from", source, code=code)


@pytest.mark.parametrize("ranks", [1, 2])
def test_all_weights_come_from_the_run(run_binary, tmp_path, trained, ranks):
    run = tmp_path / "run"
    words = tiny_run(run, **AT_REST)
    told = run_binary(*words, "--init-from", trained, "--ranks", ranks)
    before, after = weights_of(trained), weights_of(run)
    assert before.keys() == after.keys()
    assert all(np.allclose(after[name], before[name], rtol=0, atol=1e-10) for name in before)
    record = record_of(run)
    assert sorted(record["loaded"]) == sorted(before) and record["step"] == 12
    assert not record["started_as_configured"] and not record["unused"]
    assert f"{len(before)} tensors as a whole" in told.stdout and "of step 12 of" in told.stdout
    assert metrics_of(run)[0]["loss"] < metrics_of(trained)[0]["loss"] - 0.02  # of the same batch


def test_any_name_of_the_weights_is_taken(run_binary, tmp_path, trained):
    checkpoint = next((trained / "checkpoints").iterdir())
    passed_on = tmp_path / "passed_on"
    passed_on.mkdir()
    for name in ("model.safetensors", "state.json"):
        shutil.copy(checkpoint / name, passed_on)
    for number, source in enumerate((checkpoint, checkpoint / "model.safetensors", passed_on)):
        start(run_binary, tmp_path / str(number), source)
        assert np.allclose(
            weights_of(tmp_path / str(number))["embedding.weight"],
            weights_of(trained)["embedding.weight"],
            rtol=0,
            atol=1e-10,
        )


def test_longer_texts_and_another_schedule_by_the_config_of_the_run(run_binary, tmp_path, trained):
    run = tmp_path / "run"
    settings = ["data.seq_len=32", "train.steps=3", "train.warmup=0", "train.schedule=constant"]
    words = [word for setting in settings for word in ("--set", setting)]
    run_binary("--init-from", trained, "--out", run, *words)
    assert len(metrics_of(run)) == 3
    assert "data.seq_len = 32, which was 16" in record_of(run)["changed_keys"]
    assert re.search(r"^seq_len = 32 ", (run / "config.toml").read_text(), re.MULTILINE)
    assert re.search(r"^width = 16 ", (run / "config.toml").read_text(), re.MULTILINE)
    assert len({line["lr"] for line in metrics_of(run)}) == 1


def test_new_parameters_start_as_configured_and_are_listed(run_binary, tmp_path, trained):
    """ALiBi's slopes and a head of its own are not in the run; the prior is not in the model."""
    run = tmp_path / "run"
    lanes = {"model__attention": "goat", "prior__lane_dim": 4}
    without = tmp_path / "without"
    run_binary(*tiny_run(without, **lanes | {"prior__recency": "off"}))
    told = start(run_binary, run, without, prior__recency="free", prior__init="alibi", model__tied="false")
    record = record_of(run)
    assert sorted(record["started_as_configured"]) == sorted(
        ["head.weight"] + [name for name in weights_of(run) if name.endswith(".slope")]
    )
    assert "not there, started as configured: " in told.stdout
    slopes = next(value for name, value in weights_of(run).items() if name.endswith(".slope"))
    assert slopes == pytest.approx([2 ** (-8 * (h + 1) / len(slopes)) for h in range(len(slopes))])

    back = tmp_path / "back"
    told = start(run_binary, back, run, prior__recency="off")
    assert record_of(back)["unused"] == sorted(record["started_as_configured"])
    assert "there, not in this model: " in told.stdout


@pytest.mark.parametrize("length", [8, 32])
def test_positions_of_another_length_keep_the_rows_that_both_have(run_binary, tmp_path, length):
    source, run, fresh = tmp_path / "source", tmp_path / "run", tmp_path / "fresh"
    learned = {"model__attention": "learned"}
    run_binary(*tiny_run(source, **learned))
    told = start(run_binary, run, source, **learned, data__seq_len=length)
    assert "the positions that both models have: position_embedding.weight" in told.stdout
    run_binary(*tiny_run(fresh, **AT_REST | learned, data__seq_len=length))
    name, common = "position_embedding.weight", min(length, 16)
    before, after, new = (weights_of(folder)[name] for folder in (source, run, fresh))
    assert np.allclose(after[:common], before[:common], rtol=0, atol=1e-10)
    assert np.allclose(after[common:], new[common:], rtol=0, atol=1e-10) and len(after) == length


def test_what_cannot_be_is_refused_and_leaves_no_run(run_binary, tmp_path, trained):
    run, plain = tmp_path / "run", tmp_path / "plain"
    run_binary(*tiny_run(plain, model__attention="none"))
    sloped = tmp_path / "sloped"
    run_binary(*tiny_run(sloped, prior__recency="free"))

    def refused(code, *words, source=trained, **settings):
        result = start(run_binary, run, source, code=code, **settings)
        assert not run.exists(), "a failed start leaves no trace"
        for word in words:
            assert word in result.stderr, result.stderr

    refused(3, "--init-from", "q.weight", "[", "in this model", model__attention="none")
    refused(3, "--init-from", "embedding.weight", "16,16", "32,16", model__vocab=32)
    refused(2, "model.heads", "other heads", source=plain, model__attention="none", model__heads=1)
    refused(2, "prior.recency", "slopes", source=sloped, prior__recency="softplus")
    refused(3, "--init-from", "no such file or folder", source=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refused(3, "--init-from", "no complete checkpoint here", source=tmp_path / "empty")
    damaged = tmp_path / "damaged"
    shutil.copytree(next((trained / "checkpoints").iterdir()), damaged)
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\0\0\0\x7f")
    refused(3, "checksum", "model.safetensors", source=damaged)
    assert "--config is missing" in run_binary("--init-from", trained, code=2).stderr
    assert "config.toml" in run_binary("--init-from", tmp_path / "empty", "--out", run, code=3).stderr


def test_a_run_that_goes_on_reads_its_own_weights(run_binary, tmp_path, trained):
    """A script that restarts the same command adds --resume."""
    run = tmp_path / "run"
    words = [*tiny_run(run, train__steps=4), "--init-from", trained, "--resume"]
    assert "starts from its beginning" in run_binary(*words).stderr
    losses = [line["loss"] for line in metrics_of(run)]
    record = (run / "init_from.json").read_bytes()
    words[words.index("train.steps=4")] = "train.steps=6"
    assert "--init-from has no effect" in run_binary(*words).stderr
    assert [line["loss"] for line in metrics_of(run)][:4] == losses and len(metrics_of(run)) == 6
    assert (run / "init_from.json").read_bytes() == record


def test_a_dry_run_lists_what_would_be_loaded(run_binary, tmp_path, trained):
    run = tmp_path / "run"
    told = run_binary(*tiny_run(run, model__tied="false"), "--init-from", trained, "--dry-run").stdout
    assert "initial weights: 1 tensor not there, started as configured: head.weight" in told
    assert not run.exists()
