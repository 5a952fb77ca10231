"""The program against an independent float64 implementation of the whole training step, and checks of that
implementation itself."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from reference.copy_mixture_numpy import VALIDATION_BIT, CopyMixture, philox4x32
from reference.goat_numpy import AdamW, Model, ModelConfig, learning_rate, train

VOCAB, FF_WIDTH = 11, 50  # of the models that only the reference runs
# Some models learn the usual mixture too slowly for this test, or with gradients that rounding soon turns.
EASY = {"data.copy_mixture.p_first": 0.6, "data.copy_mixture.p_prev": 0.3, "train.clip": 3}
UNTIED = EASY | {"model.tied": "false"}
SLOWLY = EASY | {"train.lr": 0.005}
VARIANTS = {
    "goat, free slope": {"prior.recency": "free"},
    "goat, softplus slope from alibi": {"prior.recency": "softplus", "prior.init": "alibi"},
    "goat, no slope": {"prior.recency": "off"},
    "goat, learned frequencies": {"prior.learned_frequencies": "true"},
    "goat, spare lanes": {"prior.lane_dim": 10},
    "goat, untied": UNTIED,
    "rope": {"model.attention": "rope", "model.rope_base": 100},
    "none": {"model.attention": "none"},
    "alibi of three heads": SLOWLY | {"model.attention": "alibi", "model.heads": 3, "model.width": 36},
    "goat, whose prior learns faster": {"prior.lr_scale": 4},
    "alibi_learned": {"model.attention": "alibi_learned"},
    "alibi_learned, slower": {"model.attention": "alibi_learned", "prior.lr_scale": 0.25},
    "sinusoidal": SLOWLY | {"model.attention": "sinusoidal"},
    "learned": SLOWLY | {"model.attention": "learned"},
    "goat+rope, in part": {"model.attention": "rope+goat", "model.rope_fraction": 0.5, "model.rope_base": 20},
    "forget": SLOWLY | {"model.attention": "forget"},
    "goat+forget": {"model.attention": "goat+forget"},
    "goat+forget, of three learning rates": {
        "model.attention": "goat+forget", "prior.lr_scale": 2, "prior.forget_lr_scale": 0.5,
    },
    "goat, one head of keys": {"model.kv_heads": 1},
    "goat, without biases": {"model.bias": "false", "model.norm_eps": 0.01},
    "llama, goat+rope+forget, two heads of keys for four, normed, biases": SLOWLY | {
        "model.block": "llama",
        "model.attention": "goat+rope+forget",
        "model.heads": 4,
        "model.width": 48,
        "model.kv_heads": 2,
        "model.qk_norm": "true",
        "model.bias": "true",
    },
    "llama, rope, normed": {"model.block": "llama", "model.attention": "rope", "model.qk_norm": "true"},
    "llama, goat": {"model.block": "llama", "model.ff_width": 40},
    "llama, rope": {"model.block": "llama", "model.attention": "rope"},
    "llama, rope, untied": UNTIED | {"model.block": "llama", "model.attention": "rope"},
    "llama, none": {"model.block": "llama", "model.attention": "none"},
}
# Softmax ignores k.bias and all but ignores alpha of the slow modes: their gradients are rounding noise,
# which Adam turns into full steps.
NOISE_DRIVEN = ("attn.k.bias", "prior.alpha")
EXPERIMENT = {
    "model.layers": 2,
    "model.heads": 2,
    "model.width": 32,
    "model.vocab": 50,
    "model.attention": "goat",
    "prior.pos_rank": 3,
    "prior.abs_rank": 4,
    "prior.init": "random",
    "prior.sink_init_scale": 0.3,
    "prior.recency": "free",
    "data.seq_len": 24,
    "train.steps": 20,
    "train.batch": 6,
    "train.micro_batch": 3,
    "train.lr": 0.01,
    "train.min_lr": 0.001,
    "train.warmup": 3,
    "train.clip": 1.3,
    "eval.tokens": 0,
    "log.interval": 1,
}


def run_experiment(run_binary, folder, settings):
    """Trains on the CPU in fp32; returns the run's resolved config, its metrics (one a step) and the weights
    of its only checkpoint."""
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run_binary("--config", "copy_mixture", "--device", "cpu", "--out", folder, *flags, timeout=300)
    config = tomllib.loads((folder / "config.toml").read_text())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    newest = max((folder / "checkpoints").glob("step_*/model.safetensors"))
    return config, metrics, load_file(newest)


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_equals_float64(run_binary, tmp_path, variant):
    settings = EXPERIMENT | VARIANTS[variant]
    at_rest = settings | {"train.steps": 1, "train.min_lr": 0, "train.warmup": 0}  # its only step has rate 0
    _, _, initial = run_experiment(run_binary, tmp_path / "initial", at_rest)
    config, metrics, final = run_experiment(run_binary, tmp_path / "trained", settings)

    model = Model(ModelConfig.from_run(config), initial)
    expected = list(train(model, copy_mixture(config), config["train"], config["prior"]))

    assert [line["step"] for line in metrics] == list(range(1, len(expected) + 1))
    loss, norm = (np.array([line[key] for line in metrics]) for key in ("loss", "grad_norm"))
    want_loss, want_norm = np.array(expected).T
    assert np.max(np.abs(loss - want_loss)) <= 5e-6
    assert np.max(np.abs(norm / want_norm - 1)) <= 1e-5
    assert [line["lr"] for line in metrics] == pytest.approx(
        [learning_rate(step, config["train"]) for step in range(len(expected))], rel=1e-6
    )
    clipped = want_norm > config["train"]["clip"]
    assert clipped.any() and not clipped.all(), "the experiment must cover steps with and without clipping"
    assert want_loss[0] - want_loss[-1] > 0.05, "the experiment must learn something"
    assert final.keys() == model.params.keys()
    for name, value in model.params.items():
        assert final[name].shape == value.shape, name
        if not name.endswith(NOISE_DRIVEN):
            assert np.max(np.abs(final[name] - value)) <= 1e-4, name  # a weight moves by 0.01 a step


def test_summary_states_the_bayes_optimal_loss(run_binary, tmp_path):
    folder = tmp_path / "run"
    config, _, _ = run_experiment(run_binary, folder, EXPERIMENT | {"train.steps": 1, "train.warmup": 0})
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["bayes_optimal_loss"] == pytest.approx(copy_mixture(config).bayes_optimal_loss(), rel=1e-5)


def copy_mixture(config):
    data, vocab, seed = config["data"], config["model"]["vocab"], config["train"]["seed"]
    return CopyMixture(vocab, data["seq_len"], **data["copy_mixture"], seed=seed)


# The reference itself.


def random_model(rng, **options):
    """A model in which no parameter is zero or one, so that every term of every gradient shows. options:
    fields of ModelConfig, and learned_frequencies."""
    learned = options.pop("learned_frequencies", False)
    small = dict(layers=2, heads=3, width=36, attention="goat", train_length=9, pos_rank=3, abs_rank=2)
    config = ModelConfig(**small | options)
    width, content, key_heads = config.width, config.content_dim, config.key_heads
    linear = {
        **{"attn.q": (config.heads * content, width), "attn.k": (key_heads * content, width)},
        **{"attn.v": (key_heads * config.head_dim, width), "attn.o": (width, width)},
        **{"mlp.up": (FF_WIDTH, width), "mlp.down": (width, FF_WIDTH)},
    }
    if config.block == "llama":
        linear["mlp.gate"] = (FF_WIDTH, width)
    shapes = {"embedding.weight": (VOCAB, width), "final_norm.weight": (width,)}
    if config.has("learned"):
        shapes["position_embedding.weight"] = (config.train_length, width)
    if not config.tied:
        shapes["head.weight"] = (VOCAB, width)
    for block in (f"blocks.{layer}" for layer in range(config.layers)):
        shapes |= {f"{block}.{name}.weight": shape for name, shape in linear.items()}
        shapes |= {f"{block}.{norm}.weight": (width,) for norm in ("norm1", "norm2")}
        if config.has("alibi_learned"):
            shapes[f"{block}.attn.prior.slope"] = (config.heads,)
        if config.has("forget"):
            shapes |= {f"{block}.attn.forget.weight": (config.heads, width)}
            shapes |= {f"{block}.attn.forget.bias": (config.heads,)}
        if config.qk_norm:
            shapes |= {f"{block}.attn.{name}_norm.weight": (content,) for name in "qk"}
        if config.has("goat"):
            prior = prior_shapes(config, learned)
            shapes |= {f"{block}.attn.prior.{name}": shape for name, shape in prior.items()}
    biased = tuple(linear) + (("norm", "norm1", "norm2") if config.block == "gpt" else ())
    if config.biases:
        for name in [name for name in shapes if name.removesuffix(".weight").endswith(biased)]:
            if not name.endswith(("q_norm.weight", "k_norm.weight")):
                shapes[name.removesuffix("weight") + "bias"] = shapes[name][:1]
    values = {name: rng.normal(size=shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()}
    return Model(config, values)


def prior_shapes(config, learned):
    heads, rank, features = config.heads, config.pos_rank, 2 * config.abs_rank + 2
    shapes = {"alpha": (heads, rank), "beta": (heads, rank), "bump": (config.key_heads,)}
    shapes |= {"sink.w1": (5, features), "sink.b1": (5,), "sink.w2": (config.key_heads, 5)}
    shapes |= {"slope": (heads,)} if config.recency != "off" else {}
    return shapes | ({"frequency": (rank,)} if learned else {})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recency": "softplus"},
        {"recency": "off", "tied": False},
        {"learned_frequencies": True},
        {"lane_dim": 10, "attn_scale": "none"},
        {"attention": "rope", "rope_base": 10.0},
        {"attention": "none"},
        {"attention": "alibi_learned"},
        {"attention": "goat+rope+learned", "rope_fraction": 0.5},
        {"attention": "goat+rope_pi+alibi+sinusoidal", "recency": "off", "train_length": 4},
        {"kv_heads": 1, "bias": "false", "norm_eps": 0.1},
        {"attention": "forget"},
        {"attention": "goat+rope+forget", "heads": 4, "width": 48, "kv_heads": 2, "qk_norm": True},
        {"block": "llama", "attention": "alibi+forget", "bias": "true", "qk_norm": True},
        {"block": "llama"},
        {"block": "llama", "attention": "rope", "tied": False},
        {"block": "llama", "attention": "none"},
    ],
    ids=lambda options: ", ".join(f"{key} {value}" for key, value in options.items()) or "free",
)
def test_reference_gradients_equal_central_differences(rng, options):
    model = random_model(rng, **options)
    tokens, targets = rng.integers(VOCAB, size=(2, 2, 7))
    _, grads = model.loss_and_gradients(tokens, targets)
    step = 1e-5
    for name, param in model.params.items():
        start = param.copy()
        direction = rng.normal(size=param.shape)
        ends = []
        for sign in (1, -1):
            param[...] = start + sign * step * direction
            ends.append(model.token_losses(tokens, targets).mean())
        param[...] = start
        slope = np.sum(grads[name] * direction)
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-8), name


def test_reference_prior_is_the_sum_in_the_paper(rng):
    model = random_model(rng)
    prefix = "blocks.1.attn.prior"
    log_prior, _ = model.prior(prefix, 8)
    p = {name.removeprefix(prefix + "."): value for name, value in model.params.items()}
    h, i, j = 2, 7, 4
    w = [1.0, 10000.0**-0.5, 10000.0**-1]
    alpha, beta = p["alpha"][h], p["beta"][h]
    relative = sum(alpha[r] * np.cos(w[r] * (i - j)) + beta[r] * np.sin(w[r] * (i - j)) for r in range(3))
    phi = [np.cos(j), np.cos(j / 1e4), np.sin(j), np.sin(j / 1e4), j / 9, np.log(1 + j) / np.log(10)]
    hidden = p["sink.w1"] @ phi + p["sink.b1"]
    bias = p["slope"][h] * j + p["sink.w2"][h] @ (hidden / (1 + np.exp(-hidden)))
    assert log_prior[h, i, j] == pytest.approx(relative + bias, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("block", ["gpt", "llama"])
def test_reference_rope_logits_are_those_of_complex_numbers_and_depend_on_the_lag_alone(rng, block):
    model = random_model(rng, block=block, attention="rope", rope_base=50.0)
    same = np.broadcast_to(rng.normal(size=model.config.width), (1, 8, model.config.width))
    q, k = (model.query_or_key(f"blocks.1.attn.{name}", same)[0][0] for name in "qk")
    logits = model.config.sigma * np.einsum("ihc,jhc->hij", q, k)
    half = model.config.head_dim // 2
    q0, k0 = (y[0, :, :half] + 1j * y[0, :, half:] for y in (q, k))  # position 0 is not turned
    for i, j in np.ndindex(8, 8):
        turn = np.exp(1j * (i - j) * 50.0 ** (-2 * np.arange(half) / model.config.head_dim))
        lag = (q0 * k0.conj() * turn).real.sum(axis=1) / np.sqrt(model.config.head_dim)
        assert logits[:, i, j] == pytest.approx(lag, rel=1e-12, abs=1e-12)
    assert np.abs(logits[:, 1, 0] - logits[:, 0, 0]).min() > 1e-6


def test_reference_rope_leaves_the_values_where_they_are(rng):
    model = random_model(rng, attention="rope")
    none = Model(replace(model.config, attention="none"), model.params)
    for name in (f"blocks.{layer}.attn.{part}" for layer in range(2) for part in ("q.weight", "q.bias")):
        model.params[name][...] = none.params[name][...] = 0  # uniform attention
    tokens, targets = rng.integers(VOCAB, size=(2, 2, 7))
    assert model.token_losses(tokens, targets) == pytest.approx(none.token_losses(tokens, targets), rel=1e-12)


def test_reference_llama_block_is_its_formula_for_one_token(rng):
    model = random_model(rng, block="llama", attention="none", layers=1)
    p = {name.removeprefix("blocks.0."): value for name, value in model.params.items()}

    def rms(x, weight):
        return x / np.sqrt(np.mean(x**2) + 1e-5) * weight

    x = p["embedding.weight"][3]
    x = x + p["attn.o.weight"] @ p["attn.v.weight"] @ rms(x, p["norm1.weight"])  # one key: p = 1
    y = rms(x, p["norm2.weight"])
    gate = p["mlp.gate.weight"] @ y
    x = x + p["mlp.down.weight"] @ (gate / (1 + np.exp(-gate)) * (p["mlp.up.weight"] @ y))
    want = p["embedding.weight"] @ rms(x, p["final_norm.weight"])
    assert model.forward(np.array([[3]]))[0][0, 0] == pytest.approx(want, rel=1e-12)


def test_reference_untied_head_equals_the_tied_one_at_its_values_and_learns_apart(rng):
    tied = random_model(rng)
    table = tied.params["embedding.weight"]
    untied = Model(replace(tied.config, tied=False), tied.params | {"head.weight": table})
    tokens, targets = rng.integers(VOCAB - 1, size=(2, 2, 7))  # the last token is never read
    loss, grads = tied.loss_and_gradients(tokens, targets)
    untied_loss, parts = untied.loss_and_gradients(tokens, targets)
    assert untied_loss == loss
    both = parts["embedding.weight"] + parts["head.weight"]
    assert both == pytest.approx(grads["embedding.weight"], abs=1e-12)
    assert not parts["embedding.weight"][-1].any() and parts["head.weight"][-1].all()


def test_reference_schedule_warms_up_and_ends_at_min_lr():
    schedule = {"lr": 2.0, "min_lr": 0.5, "warmup": 4, "steps": 12}
    rates = [learning_rate(step, schedule) for step in range(12)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[7] == pytest.approx(1.25)
    assert rates[-1] == pytest.approx(0.5, rel=1e-15)


def test_reference_adamw_first_step_is_the_sign_of_the_gradient():
    settings = {"beta1": 0.9, "beta2": 0.95, "eps": 0.0, "clip": 1.0, "weight_decay": 0.1}
    params = {"embedding.weight": np.array([[2.0, 2.0]]), "final_norm.bias": np.array([2.0])}
    grads = {"embedding.weight": np.array([[3.0, -4.0]]), "final_norm.bias": np.array([12.0])}
    norm = AdamW(params, settings, {"norm": 3}).step(grads, lr=0.01)
    assert norm == pytest.approx(13)
    assert params["embedding.weight"] == pytest.approx(np.array([[2 - 0.01 * 1.2, 2 + 0.01 * 0.8]]))
    assert params["final_norm.bias"] == pytest.approx(2 - 3 * 0.01)


def test_reference_philox_gives_the_published_known_answers():
    ones = 0xFFFFFFFF
    known = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, answer in known:
        assert tuple(int(word) for word in philox4x32(counter, key)) == answer


def test_reference_copy_mixture_costs_the_best_predictor_its_bayes_optimal_loss():
    source = CopyMixture(vocab=8, seq_len=32, p_first=0.3, p_prev=0.2, seed=1)
    x = np.stack([source.tokens(VALIDATION_BIT | n) for n in range(2000)])
    i = np.arange(source.seq_len)
    probability = 0.5 / 8 + 0.3 * (x[:, 1:] == x[:, :1]) + 0.2 * (x[:, 1:] == x[:, np.maximum(i - 1, 0)])
    nll = -np.log(probability).mean(axis=1)
    error = nll.std() / np.sqrt(len(nll))
    assert abs(nll.mean() - source.bayes_optimal_loss()) < 4 * error
    assert not np.array_equal(source.tokens(3), source.tokens(VALIDATION_BIT | 3))
