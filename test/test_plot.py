"""scripts/plot.py on fabricated runs: its numbers against the reference implementation, its pictures, its errors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from safetensors.numpy import save_file

import plot
from reference.goat_numpy import Model, ModelConfig

SCRIPT = Path(plot.__file__)
HEADS, RANK, MODES, LENGTH = 3, 4, 2, 40


def prior_tensors(rng, recency, learned):
    tensors = {
        "alpha": rng.normal(size=(HEADS, RANK)),
        "beta": rng.normal(size=(HEADS, RANK)),
        "bump": rng.normal(size=HEADS),
        "sink.w1": rng.normal(size=(6, 2 * MODES + 2)),
        "sink.b1": rng.normal(size=6),
        "sink.w2": rng.normal(size=(HEADS, 6)),
    }
    tensors |= {"slope": rng.normal(size=HEADS)} if recency != "off" else {}
    tensors |= {"frequency": rng.uniform(0.1, 1.0, size=RANK)} if learned else {}
    return {f"blocks.1.attn.prior.{name}": value.astype(np.float32) for name, value in tensors.items()}


def write_run(folder, *, tensors=None, recency="free", attention="goat", steps=(5, 40)):
    """A run of two layers; every checkpoint holds `tensors`."""
    folder.mkdir()
    (folder / "config.toml").write_text(
        f'[model]\nlayers = 2\nheads = {HEADS}\nwidth = 48\nattention = "{attention}"\n'
        f'[prior]\npos_rank = {RANK}\nabs_rank = {MODES}\nlane_dim = 0\nbase = 10000.0\nabs_base = 500.0\nrecency = "{recency}"\n'
        f"[data]\nseq_len = {LENGTH}\n"
    )
    lines = [{"step": step, "loss": 4.0 - 0.02 * step, "lr": 1e-3} | ({"val_loss": 3.3} if step == 40 else {}) for step in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text('{"loss": 3.2, "val_loss": 3.3, "bayes_optimal_loss": 2.9}')
    for step in steps if tensors is not None else ():
        checkpoint = folder / "checkpoints" / f"step_{step:08d}"
        checkpoint.mkdir(parents=True)
        save_file(tensors, checkpoint / "model.safetensors")
    return folder


def peaked_tensors():
    """Head 0: a bump on j = 0. Head 1: modes that add up at lag 1. Head 2: uniform."""
    tensors = {name: np.zeros_like(value) for name, value in prior_tensors(np.random.default_rng(0), "free", False).items()}
    w = plot.frequencies(RANK, 10000.0)
    tensors["blocks.1.attn.prior.bump"][0] = 9
    tensors["blocks.1.attn.prior.alpha"][1] = 30 * np.cos(w)
    tensors["blocks.1.attn.prior.beta"][1] = 30 * np.sin(w)
    return tensors


def is_picture(path, width, height):
    pixels = imread(path)[..., :3]
    return pixels.shape[1] >= width and pixels.shape[0] >= height and pixels.std() > 0.05


@pytest.mark.parametrize("recency, learned", [("free", False), ("softplus", False), ("off", False), ("free", True)])
def test_prior_matrices_equal_the_reference(tmp_path, rng, recency, learned):
    tensors = prior_tensors(rng, recency, learned)
    run = write_run(tmp_path / "run", tensors=tensors, recency=recency)
    matrices = plot.prior_matrices(run, layer=1, length=60)

    config = plot.load_config(run)
    model = Model(ModelConfig.from_run(config), tensors)
    expected, _ = model.prior("blocks.1.attn.prior", 60)
    causal = np.tri(60, dtype=bool)
    for head in range(HEADS):
        log_prior = matrices.log_prior(head)
        assert log_prior[causal] == pytest.approx(expected[head][causal], rel=1e-10, abs=1e-10)
        weights = np.exp(expected[head] - expected[head].max(axis=1, keepdims=True)) * causal
        probabilities = matrices.probabilities(head)
        assert probabilities == pytest.approx(weights / weights.sum(axis=1, keepdims=True), rel=1e-8, abs=1e-12)
        assert matrices.mass_on_first(head) == pytest.approx(np.mean([probabilities[i, 0] for i in range(16, 60)]))
        assert matrices.mass_on_previous(head) == pytest.approx(np.mean([probabilities[i, i - 1] for i in range(16, 60)]))
        assert np.abs(np.nanmean(matrices.centred(head), axis=1)).max() < 1e-10


def test_prior_figure_and_its_sentences_name_the_heads(tmp_path, run_command):
    run = write_run(tmp_path / "run", tensors=peaked_tensors())
    out = run_command([sys.executable, SCRIPT, "prior", run, "--layer", "1"]).stdout
    path, sentences, losses = out.splitlines()
    assert Path(path) == run / "figures" / "prior_layer1.png"
    assert is_picture(path, 1200, 800)
    assert "Head 0 puts 99" in sentences and "j = 0" in sentences
    assert "Head 1 puts" in sentences and "lag 1" in sentences
    assert "3.2000" in losses and "3.3000" in losses and "2.9000" in losses


def test_prior_of_a_uniform_layer_names_no_head(tmp_path):
    tensors = {name: np.zeros_like(value) for name, value in peaked_tensors().items()}
    sentences = plot.describe_prior(plot.prior_matrices(write_run(tmp_path / "run", tensors=tensors), layer=1))
    assert sentences.count("No head puts half") == 2


def test_newest_checkpoint_is_drawn_unless_a_step_is_given(tmp_path):
    run = write_run(tmp_path / "run", tensors=peaked_tensors(), steps=(5, 40, 100000000))
    assert plot.prior_matrices(run, layer=1).step == 100000000
    assert plot.prior_matrices(run, layer=1, checkpoint=5).step == 5


def test_loss_figure_of_two_runs(tmp_path, run_command):
    runs = [write_run(tmp_path / name) for name in ("first", "second")]
    (runs[1] / "metrics.jsonl").open("a").write('{"step": 41, "lo')  # a run that is being written
    out = run_command([sys.executable, SCRIPT, "loss", *runs]).stdout
    assert Path(out.splitlines()[0]) == runs[0] / "figures" / "loss.png"
    assert is_picture(out.splitlines()[0], 800, 400)


def test_errors_say_what_is_wrong_and_exit_with_2_or_3(tmp_path, capsys):
    goat = write_run(tmp_path / "goat", tensors=peaked_tensors())
    rope = write_run(tmp_path / "rope", tensors={"x": np.zeros(1, np.float32)}, attention="none")
    untrained = write_run(tmp_path / "untrained")
    torn = write_run(tmp_path / "torn", tensors=peaked_tensors())
    weights = torn / "checkpoints" / "step_00000040" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    other = write_run(tmp_path / "other", tensors={"x": np.zeros(1, np.float32)})
    broken = write_run(tmp_path / "broken")
    (broken / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\nnonsense\n{"step": 2, "loss": 2.0}\n')

    cases = [
        (["prior", tmp_path / "nowhere"], 2, "config.toml"),
        (["prior", rope], 2, "model.attention"),
        (["prior", goat, "--layer", "2"], 2, "--layer 2"),
        (["prior", goat, "--length", "1"], 2, "--length 1"),
        (["prior", goat, "--checkpoint", "7"], 2, "5, 40"),
        (["prior", untrained], 3, "no checkpoint"),
        (["prior", torn], 3, "model.safetensors"),
        (["prior", other], 3, "alpha"),
        (["loss", tmp_path / "nowhere"], 3, "metrics.jsonl"),
        (["loss", broken], 3, "line 2"),
    ]
    for words, code, text in cases:
        assert plot.main([str(word) for word in words]) == code, words
        assert text in capsys.readouterr().err, words
    with pytest.raises(SystemExit, match="2"):
        plot.main(["loss"])


def test_missing_package_is_named(tmp_path, run_command):
    (tmp_path / "matplotlib.py").write_text("raise ImportError(\"No module named 'matplotlib'\")")
    result = run_command(["env", f"PYTHONPATH={tmp_path}", sys.executable, SCRIPT, "prior", "x"], code=2)
    assert "matplotlib" in result.stderr and "requirements.txt" in result.stderr
