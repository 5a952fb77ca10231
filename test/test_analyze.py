"""`analyze`: every file against NumPy, from model.safetensors alone; what is left out and said; bad use."""

import json
import re
import subprocess
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

import plot_prior
from reference.copy_mixture_numpy import VALIDATION_BIT, CopyMixture
from reference.goat_numpy import Model, ModelConfig, softmax
from test_train import flags
from prepared import write_shard

LAYERS, HEADS, LENGTH, TRAIN_LENGTH, SEQUENCES = 2, 3, 150, 16, 4
FIRST_ROW = LENGTH // 4
PRIOR_FILES = {
    f"{name}.npy" for name in ("sink", "sink_slope", "sink_mlp", "sink_bump", "kappa", "log_prior")
}
VARIANTS = {
    "free": {"prior.recency": "free"},
    "softplus": {"prior.recency": "softplus", "prior.init": "alibi"},
    "off": {"prior.recency": "off", "prior.learned_frequencies": "true"},
    "one head of keys": {"prior.recency": "free", "model.kv_heads": 1, "model.qk_norm": "true"},
    "forget": {"model.attention": "goat+forget", "prior.recency": "free"},
}


def train(run_binary, folder, **settings):
    """A run of six steps with a large learning rate, so that every part of the prior has moved."""
    tiny = {
        "model.layers": LAYERS, "model.heads": HEADS, "model.width": 36, "model.vocab": 16,
        "prior.pos_rank": 2, "prior.abs_rank": 3, "prior.init": "random", "prior.sink_init_scale": 0.7,
        "data.seq_len": TRAIN_LENGTH, "train.batch": 4, "train.steps": 6,
        "train.warmup": 2, "train.lr": 0.05, "train.min_lr": 0.01,
    }  # fmt: skip
    run_binary("--config", "copy_mixture", "--out", folder, *flags(tiny | settings))
    return folder


@pytest.fixture(scope="module", params=VARIANTS)
def analyzed(request, binary, tmp_path_factory):
    """A trained run, analysed: (run, its config, its tensors, analysis.json, {name: array})."""

    def run_binary(*arguments):
        return subprocess.run(
            [binary, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=300
        ).stdout

    run = train(run_binary, tmp_path_factory.mktemp("analyze") / "run", **VARIANTS[request.param])
    run_binary("analyze", "--checkpoint", run, "--length", LENGTH, "--layer", 1, "--head", 2)
    folder = run / "analysis"
    assert {path.name for path in folder.iterdir()} == PRIOR_FILES | {"analysis.json", "signal_vs_sink.npy"}
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    tensors = load_file(next(run.glob("checkpoints/*/model.safetensors")))
    return (
        run,
        tomllib.loads((run / "config.toml").read_text()),
        tensors,
        json.loads((folder / "analysis.json").read_text()),
        arrays,
    )


def prior_of(analyzed, layer):
    return plot_prior.prior_matrices(analyzed[0], layer, LENGTH)


def each_head(analysis):
    """(layer, head, entry of analysis.json) of every head, in order."""
    assert [(entry["layer"], entry["head"]) for entry in analysis["by_head"]] == list(
        np.ndindex(LAYERS, HEADS)
    )
    return [(entry["layer"], entry["head"], entry) for entry in analysis["by_head"]]


def test_curves_and_their_parts(analyzed):
    _, config, tensors, _, arrays = analyzed
    for name in ("sink", "sink_slope", "sink_mlp", "sink_bump", "kappa"):
        assert arrays[name].shape == (LAYERS, HEADS, LENGTH) and arrays[name].dtype == np.float64
    assert arrays["sink"] == pytest.approx(
        arrays["sink_slope"] + arrays["sink_mlp"] + arrays["sink_bump"], rel=1e-12
    )
    for layer in range(LAYERS):
        prior = prior_of(analyzed, layer)
        assert arrays["sink"][layer] == pytest.approx(prior.sink, rel=1e-9, abs=1e-9)
        assert arrays["kappa"][layer] == pytest.approx(prior.relative, rel=1e-9, abs=1e-9)
        names = f"blocks.{layer}.attn.prior"
        assert arrays["sink_bump"][layer] == pytest.approx(
            np.outer(np.resize(tensors[f"{names}.bump"], HEADS), np.arange(LENGTH) == 0)
        )
        raw = tensors.get(f"{names}.slope", np.zeros(HEADS)).astype(np.float64)
        slope = np.logaddexp(0, raw) if config["prior"]["recency"] == "softplus" else raw
        assert arrays["sink_slope"][layer] == pytest.approx(np.outer(slope, np.arange(LENGTH)), rel=1e-9)
    assert (
        np.ptp(arrays["sink_mlp"], axis=2).min() > 1e-3 and np.ptp(arrays["kappa"], axis=2).min() > 1e-3
    )  # nothing is trivially equal


def test_log_prior_of_the_chosen_head(analyzed):
    log_prior = analyzed[4]["log_prior"]
    expected = prior_of(analyzed, 1).log_prior(2)
    assert log_prior.dtype == np.float32 and log_prior.shape == (LENGTH, LENGTH)
    assert np.isneginf(log_prior[np.isnan(expected)]).all()
    assert log_prior[~np.isnan(expected)] == pytest.approx(expected[~np.isnan(expected)], rel=1e-6, abs=1e-6)


def test_masses_argmax_and_theorem_2(analyzed):
    analysis, arrays = analyzed[3:]
    assert analysis["first_row"] == FIRST_ROW and analysis["theorem2_violations"] == 0
    for layer, head, entry in each_head(analysis):
        prior, measured = prior_of(analyzed, layer), entry["prior"]
        p = prior.probabilities(head)
        rows = p[FIRST_ROW:]
        assert measured["mass_first"] == pytest.approx(rows[:, 0].mean(), rel=1e-9)
        lags = [np.diagonal(p, -lag)[FIRST_ROW - lag :].mean() for lag in range(9)]
        assert measured["mass_lag"] == pytest.approx(lags, rel=1e-9)
        assert measured["u_first"] == arrays["sink"][layer, head, 0]
        assert measured["argmax_sink"] == arrays["sink"][layer, head].argmax()
        assert measured["argmax_relative"] == arrays["kappa"][layer, head].argmax()
        uniform = np.log(np.arange(1, LENGTH + 1))
        divergence = (np.nansum(p * np.log(np.where(p > 0, p, 1)), axis=1) + uniform)[FIRST_ROW:].mean()
        assert measured["divergence"] == pytest.approx(divergence, rel=1e-9, abs=1e-9)

        log_prior = prior.log_prior(head)
        i = np.arange(FIRST_ROW, LENGTH)
        margin = log_prior[FIRST_ROW:, 0] - np.nanmax(log_prior[FIRST_ROW:, 1:], axis=1)
        theorem = measured["theorem2"]
        assert theorem["smallest_margin"] == pytest.approx(margin.min(), rel=1e-9, abs=1e-9)
        assert theorem["bound"] == pytest.approx((i / (np.exp(margin) + i)).mean(), rel=1e-9)
        assert theorem["outside_first"] == pytest.approx(rows[:, 1:].sum(axis=1).mean(), rel=1e-9)
        assert theorem["sensitivity"] == pytest.approx(
            (rows[:, 0] * rows[:, 1:].sum(axis=1)).mean(), rel=1e-9
        )
        assert theorem["rows"] == LENGTH - 1 and theorem["violations"] == 0


def test_spectrum(analyzed):
    tensors, analysis = analyzed[2], analyzed[3]
    alpha, beta = (
        np.stack([tensors[f"blocks.{layer}.attn.prior.{name}"] for layer in range(LAYERS)]).astype(float)
        for name in ("alpha", "beta")
    )
    spectrum = analysis["spectrum"]
    energy = (alpha**2 + beta**2).sum(axis=(0, 1))
    assert spectrum["energy_first_to_last"] == pytest.approx(energy / energy.sum())
    assert spectrum["energy_last_to_first"] == spectrum["energy_first_to_last"][::-1]
    amplitude = np.hypot(alpha, beta).sum(axis=2)
    measured = spectrum["amplitude"]
    assert [measured[key] for key in ("min", "max", "mean", "deviation")] == pytest.approx(
        [f(amplitude) for f in (np.min, np.max, np.mean, np.std)]
    )
    assert spectrum["active"] == (amplitude > 1).sum() and spectrum["heads"] == amplitude.size
    ratio = np.linalg.norm(beta, axis=2) / np.linalg.norm(alpha, axis=2)
    assert spectrum["sine_dominated"] == (ratio > 1).sum() and spectrum["median_ratio"] == pytest.approx(
        np.median(ratio)
    )
    assert [layer["mean_amplitude"] for layer in spectrum["layers"]] == pytest.approx(amplitude.mean(axis=1))
    assert [layer["active"] for layer in spectrum["layers"]] == (amplitude > 1).sum(axis=1).tolist()
    for layer, head, entry in each_head(analysis):
        assert entry["prior"]["amplitude"] == pytest.approx(amplitude[layer, head]) and entry["prior"][
            "ratio"
        ] == pytest.approx(ratio[layer, head])


def expected_readings(config, tensors):
    """[L, H, S, T, 4] and, per head, the largest |log(p / pi)| - omega: theorem 1 says it is not positive."""
    model = Model(ModelConfig.from_run(config), tensors)
    mixture = CopyMixture(config["model"]["vocab"], LENGTH, 0.25, 0.25, config["train"]["seed"])
    x = model.embedded(np.stack([mixture.tokens(VALIDATION_BIT | s)[:-1] for s in range(SEQUENCES)]))
    causal = np.tri(LENGTH, dtype=bool)
    recent = causal & (np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)) < 128)
    readings, excess = [], []
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        normed, _ = model.norm(f"{block}.norm1", x)
        q, k = (model.query_or_key(f"{block}.attn.{name}", normed)[0] for name in "qk")
        k = np.repeat(k, HEADS // k.shape[2], axis=2)
        s = model.config.sigma * np.einsum("bihc,bjhc->hbij", q, k)
        log_prior = (
            model.prior(f"{block}.attn.prior", LENGTH)[0]
            if model.config.log_prior
            else np.zeros((HEADS, LENGTH, LENGTH))
        )
        log_prior = log_prior[:, None]
        if model.config.has("forget"):
            log_prior = log_prior + model.forgotten(f"{block}.attn.forget", normed)[0].transpose(1, 0, 2, 3)
        pi = softmax(np.where(causal, log_prior, -np.inf))
        p = softmax(np.where(causal, s + log_prior, -np.inf))
        omega = np.where(causal, s, -np.inf).max(-1) - np.where(causal, s, np.inf).min(-1)
        readings.append(np.stack([omega, p[..., 0], p.max(-1), (p * recent).sum(-1)], axis=-1))
        with np.errstate(divide="ignore", invalid="ignore"):
            excess.append(np.nanmax(np.abs(np.log(p / pi)) - omega[..., None], axis=(1, 2, 3)))
        for branch in (model.attention_branch, model.mlp_branch):
            x = x + branch(block, x)[0]
    return np.stack(readings), np.stack(excess)


def check_readings(config, tensors, analysis, readings):
    expected, excess = expected_readings(config, tensors)
    assert readings.dtype == np.float32 and readings.shape == expected.shape
    assert readings == pytest.approx(expected, rel=2e-4, abs=2e-5)
    assert excess.max() < 1e-6
    assert analysis["theorem1_violations"] == 0 and analysis["signal_vs_sink"]["sequences"] == SEQUENCES
    for layer, head, entry in each_head(analysis):
        measured, rows = entry["signal_vs_sink"], expected[layer, head][:, FIRST_ROW:]
        means = [measured[key] for key in ("omega", "p_first", "p_max", "mass_last_128")]
        assert means == pytest.approx(rows.mean(axis=(0, 1)), rel=2e-4, abs=2e-5)
        assert measured["theorem1"] == {"keys": SEQUENCES * LENGTH * (LENGTH + 1) // 2, "violations": 0}


def test_signal_vs_sink_and_theorem_1(analyzed):
    _, config, tensors, analysis, arrays = analyzed
    check_readings(config, tensors, analysis, arrays["signal_vs_sink"])
    assert arrays["signal_vs_sink"][..., 0].mean() > 0.1  # there is content


def test_a_model_without_a_learned_prior_has_only_the_signal(run_binary, tmp_path):
    run, out = train(run_binary, tmp_path / "run", **{"model.attention": "none"}), tmp_path / "out"
    out.mkdir()
    (out / "kappa.npy").write_bytes(b"of an earlier analysis")
    (out / "notes.txt").write_text("mine")
    said = run_binary("analyze", "--checkpoint", run, "--length", LENGTH, "--out", out).stdout
    assert "adds no prior to the logits" in said
    assert {path.name for path in out.iterdir()} == {"analysis.json", "signal_vs_sink.npy", "notes.txt"}
    tensors = load_file(next(run.glob("checkpoints/*/model.safetensors")))
    analysis = json.loads((out / "analysis.json").read_text())
    assert "spectrum" not in analysis
    check_readings(
        tomllib.loads((run / "config.toml").read_text()),
        tensors,
        analysis,
        np.load(out / "signal_vs_sink.npy"),
    )


def test_what_is_forgotten_is_a_prior_of_each_text_alone(run_binary, tmp_path):
    run, out = train(run_binary, tmp_path / "run", **{"model.attention": "forget"}), tmp_path / "out"
    said = run_binary("analyze", "--checkpoint", run, "--length", LENGTH, "--out", out).stdout
    assert "differs from text to text: no prior files" in said
    config = tomllib.loads((run / "config.toml").read_text())
    tensors = load_file(next(run.glob("checkpoints/*/model.safetensors")))
    analysis = json.loads((out / "analysis.json").read_text())
    check_readings(config, tensors, analysis, np.load(out / "signal_vs_sink.npy"))


@pytest.mark.parametrize("attention", ["alibi", "alibi_learned+rope"])
def test_slopes_are_a_prior_too(run_binary, tmp_path, attention):
    run, out = train(run_binary, tmp_path / "run", **{"model.attention": attention}), tmp_path / "out"
    said = run_binary("analyze", "--checkpoint", run, "--length", LENGTH, "--out", out).stdout
    assert "slopes: min" in said and "spectrum" not in said and "theorem 2: 0 violations" in said
    config = tomllib.loads((run / "config.toml").read_text())
    tensors = load_file(next(run.glob("checkpoints/*/model.safetensors")))
    analysis = json.loads((out / "analysis.json").read_text())
    assert "spectrum" not in analysis
    model = Model(ModelConfig.from_run(config), tensors)
    for layer in range(LAYERS):
        log_prior = model.prior(f"blocks.{layer}.attn.prior", LENGTH)[0]
        assert np.load(out / "sink.npy")[layer] == pytest.approx(log_prior[:, 0], rel=1e-6)
    assert not np.load(out / "kappa.npy").any()
    check_readings(config, tensors, analysis, np.load(out / "signal_vs_sink.npy"))


def test_missing_validation_data_leaves_out_the_signal_and_says_so(run_binary, tmp_path, rng):
    shard, other = tmp_path / "train.bin", tmp_path / "other.bin"
    for path in (shard, other):
        write_shard(path, rng.integers(16, size=200))
    run = train(run_binary, tmp_path / "run", **{"data.source": "shards", "data.train": shard, "data.bos": 0})
    result = run_binary("analyze", "--checkpoint", run)
    assert "signal_vs_sink.npy is left out" in result.stderr and "--data" in result.stderr
    assert {path.name for path in (run / "analysis").iterdir()} == PRIOR_FILES | {"analysis.json"}
    assert np.load(run / "analysis" / "kappa.npy").shape[2] == TRAIN_LENGTH

    run_binary(
        "analyze", "--checkpoint", run, "--data", other, "--length", 80
    )  # the data hold only two sequences this long
    assert np.load(run / "analysis" / "signal_vs_sink.npy").shape == (LAYERS, HEADS, 2, 80, 4)
    assert (
        "nothing.bin"
        in run_binary("analyze", "--checkpoint", run, "--data", tmp_path / "nothing.bin", code=3).stderr
    )


def test_a_long_analysis_holds_only_the_start_of_the_log_prior(run_binary, tmp_path):
    one_head = {"model.layers": 1, "model.heads": 1, "model.width": 8}
    run = train(run_binary, tmp_path / "run", **one_head)
    said = run_binary("analyze", "--checkpoint", run, "--length", 4100, timeout=300).stdout
    assert "first 4096 positions" in said
    log_prior = np.load(run / "analysis" / "log_prior.npy", mmap_mode="r")
    sink, kappa = (np.load(run / "analysis" / f"{name}.npy")[0, 0] for name in ("sink", "kappa"))
    assert log_prior.shape == (4096, 4096) and sink.shape == (4100,)
    assert log_prior[4095] == pytest.approx(kappa[4095::-1] + sink[:4096], rel=1e-6, abs=1e-5)


def test_one_is_singular(run_binary, tmp_path):
    run = train(run_binary, tmp_path / "run", **{"model.layers": 1, "model.heads": 1, "model.width": 12})
    said = run_binary("analyze", "--checkpoint", run).stdout
    for text in (
        "step 6: 1 layer, 1 head, attention goat",
        "relative part, 1 head\n",
        "4 sequences of them probed",
    ):
        assert text in said, said
    assert "1 heads" not in said and "1 layers" not in said
    assert (
        "the model has 1 layer; expected 0\n"
        in run_binary("analyze", "--checkpoint", run, "--layer", 1, code=2).stderr
    )


def test_long_work_tells_how_far_it_is(binary, run_binary, tmp_path):
    run = train(run_binary, tmp_path / "run", **{"model.layers": 1, "model.heads": 1, "model.width": 12})
    probed = train(run_binary, tmp_path / "probed", **{"model.attention": "none"})
    cases = {
        "prior: ": ["analyze", "--checkpoint", run, "--length", 200_000],
        "attention: ": ["analyze", "--checkpoint", probed, "--length", 60_000],
        "length 16: ": ["eval", "--checkpoint", run, "--tokens", 200_000_000],
    }
    processes = []
    try:
        for words in cases.values():
            argv = [binary, *map(str, words)]
            processes.append(
                subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            )
        for start, process in zip(cases, processes, strict=True):
            line = process.stderr.readline()
            assert re.fullmatch(re.escape(start) + r"\d+%  \d+ (keys|tokens)/s(  ETA .+)?\n", line), line
            assert (
                "ETA" in line or start == "attention: "
            )  # whose first pass through the model may take longer
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()


def test_bad_use_is_explained_and_writes_nothing(run_binary, tmp_path):
    run = train(run_binary, tmp_path / "run")
    cases = [
        (["--layer", 2], 2, "--layer 2: the model has 2 layers; expected 0 to 1"),
        (["--head", -1], 2, "--head -1: the model has 3 heads; expected 0 to 2"),
        (["--length", 1], 2, "--length: 1 is not allowed; expected an integer from 2 to 1048576"),
        (["--length", 0], 2, "--length: 0 is not allowed"),
        (["--length", "1e3"], 2, "--length: 1e3 is not allowed"),
        (["--out", ""], 2, "--out: the name is empty"),
        (["--data", "x.bin"], 2, "generated data"),
        (["--out", run / "config.toml"], 2, "config.toml: is not a folder"),
    ]
    for words, code, text in cases:
        assert text in run_binary("analyze", "--checkpoint", run, *words, code=code).stderr, words
    assert not (run / "analysis").exists()
    write_shard(tmp_path / "train.bin", [1, 2, 3, 4] * 10)
    shards = {"data.source": "shards", "data.train": tmp_path / "train.bin", "data.bos": 0, "data.seq_len": 1}
    short = train(run_binary, tmp_path / "short", **shards)
    stderr = run_binary("analyze", "--checkpoint", short, code=2).stderr
    assert "--length 1 (the training length): expected 2 to 1048576" in stderr
    assert str(tmp_path / "none") in run_binary("analyze", "--checkpoint", tmp_path / "none", code=3).stderr
