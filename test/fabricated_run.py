"""Folders as a run of the program leaves them, made without it, and plot.py called on them."""

import json

import numpy as np
import pytest
import xxhash
from matplotlib.image import imread
from safetensors.numpy import save

import figure_file
import plot

HEADS, RANK, MODES, HIDDEN, LENGTH = 3, 4, 2, 6, 40
CONFIG = {
    "model": {"layers": 2, "heads": HEADS, "width": 48, "attention": "goat"},
    "prior": {
        "pos_rank": RANK, "abs_rank": MODES, "lane_dim": 0, "base": 10000.0, "abs_base": 500.0,
        "recency": "free", "learned_frequencies": False, "sink_hidden": HIDDEN,
    },
    "data": {"seq_len": LENGTH},
}  # fmt: skip


def config_of(**changes):
    """CONFIG with the changed keys, as model__layers=3."""
    config = {section: dict(keys) for section, keys in CONFIG.items()}
    for name, value in changes.items():
        section, key = name.split("__")
        config[section][key] = value
    return config


def toml(config):
    lines = []
    for section, keys in config.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def prior_tensors(rng, config=CONFIG, layers=(0, 1)):
    """Random tensors of the prior, by full name."""
    heads, rank = config["model"]["heads"], config["prior"]["pos_rank"]
    hidden, features = config["prior"]["sink_hidden"], 2 * config["prior"]["abs_rank"] + 2
    tensors = {}
    for layer in layers:
        values = {
            "alpha": rng.normal(size=(heads, rank)),
            "beta": rng.normal(size=(heads, rank)),
            "bump": rng.normal(size=heads),
            "sink.w1": rng.normal(size=(hidden, features)),
            "sink.b1": rng.normal(size=hidden),
            "sink.w2": rng.normal(size=(heads, hidden)),
        }
        values |= {"slope": rng.normal(size=heads)} if config["prior"]["recency"] != "off" else {}
        values |= (
            {"frequency": rng.uniform(0.1, 1, size=rank)} if config["prior"]["learned_frequencies"] else {}
        )
        tensors |= {f"blocks.{layer}.attn.prior.{name}": v.astype(np.float32) for name, v in values.items()}
    return tensors


def peaked_tensors():
    """Uniform but for two heads of layer 1. Head 0: a bump on j = 0; head 1: modes that add up at lag 1."""
    tensors = {name: np.zeros_like(value) for name, value in prior_tensors(np.random.default_rng(0)).items()}
    w = 10000.0 ** (-np.arange(RANK) / (RANK - 1))
    tensors["blocks.1.attn.prior.bump"][0] = 9
    tensors["blocks.1.attn.prior.alpha"][1] = 30 * np.cos(w)
    tensors["blocks.1.attn.prior.beta"][1] = 30 * np.sin(w)
    return tensors


def write_manifest(folder, state):
    """state.json with its checksum."""
    sealed = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    (folder / "state.json").write_text(
        json.dumps(state | {"xxh3_64": xxhash.xxh3_64_hexdigest(sealed.encode())})
    )


def write_checkpoint(folder, step, tensors, config=CONFIG):
    folder.mkdir(parents=True)
    weights = save(tensors)
    (folder / "model.safetensors").write_bytes(weights)
    checksum = xxhash.xxh3_64_hexdigest(weights)
    state = {
        "format": 1, "step": step, "config": toml(config),
        "files": [{"name": "model.safetensors", "bytes": len(weights), "xxh3_64": checksum}],
    }  # fmt: skip
    write_manifest(folder, state)


def write_metrics(run, entries):
    (run / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def write_run(folder, tensors=None, config=CONFIG, steps=(5, 40)):
    """A run of 40 steps. `tensors` is what each checkpoint holds, or a function of the step."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(toml(config))
    validated = {20: {"val_loss": 3.7}, 40: {"val_loss": 3.3}}
    write_metrics(
        folder, [{"step": s, "loss": 4.0 - 0.02 * s, "lr": 1e-3} | validated.get(s, {}) for s in range(1, 41)]
    )
    (folder / "summary.json").write_text('{"loss": 3.2, "val_loss": 3.3, "bayes_optimal_loss": 2.9}')
    for step in steps if tensors is not None else ():
        values = tensors(step) if callable(tensors) else tensors
        write_checkpoint(folder / "checkpoints" / f"step_{step:08d}", step, values, config)
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", peaked_tensors())


@pytest.fixture
def fails(capsys):
    """fails(code, words...): the one line that plot.py says on stderr."""

    def check(code, *words):
        assert plot.main([str(word) for word in words]) == code, words
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) == 1, captured
        assert captured.err.startswith("plot.py: ")
        return captured.err

    return check


def is_picture(path, width, height):
    pixels = imread(path)[..., :3]
    return pixels.shape[1] >= width and pixels.shape[0] >= height and pixels.std() > 0.05


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    figure_file.plt.close("all")
