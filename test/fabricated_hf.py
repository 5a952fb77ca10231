"""Runs of every model, and folders as `transformers` writes them, made of random numbers without either."""

import json

import numpy as np

import hf_files
import hf_models
from fabricated_run import toml, write_checkpoint

CONFIG = {
    "model": {
        "block": "gpt", "layers": 2, "heads": 2, "width": 24, "ff_width": 40, "vocab": 64, "tied": True,
        "attention": "goat", "rope_base": 10000.0, "attn_scale": "rsqrt",
    },
    "prior": {
        "pos_rank": 2, "abs_rank": 3, "lane_dim": 0, "base": 10000.0, "abs_base": 10000.0, "recency": "free",
        "learned_frequencies": False, "sink_hidden": 0,
    },
    "data": {
        "source": "shards", "train": "mine/train_*.bin", "mixture": "", "seq_len": 16, "block": "window",
        "bos": 3,
    },
}  # fmt: skip
LLAMA = {"model.block": "llama", "model.attention": "rope"}
GPT2 = {"model.attention": "learned"}


def config_with(changes):
    """CONFIG with changed keys, by section.key."""
    config = {section: dict(keys) for section, keys in CONFIG.items()}
    for name, value in changes.items():
        section, key = name.split(".")
        config[section][key] = value
    return config


def random_weights(rng, config):
    shapes = hf_models.tensor_shapes(config)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_model_run(folder, tensors, config, steps=(40,)):
    """A run with such checkpoints, which all hold the same tensors."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(toml(config))
    for step in steps:
        write_checkpoint(folder / "checkpoints" / f"step_{step:08d}", step, tensors, config)
    return folder


def write_hf_folder(folder, family, config, tensors, dtype="F32", shards=1, **changes):
    """A folder of `transformers` with these tensors, by their names. changes: of keys of config.json."""
    folder.mkdir(parents=True)
    keys = {"model_type": family.model_type, **family.keys(config), "bos_token_id": 3, **changes}
    (folder / "config.json").write_text(json.dumps(keys))
    names, listed = list(tensors), {}
    for n in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        held = [
            (name, tensors[name].shape, dtype, lambda name=name: tensors[name]) for name in names[n::shards]
        ]
        hf_files.write_tensors(folder / file, held, {"format": "pt"})
        listed |= dict.fromkeys(names[n::shards], file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    return folder


def theirs(rng, family, config):
    """Random tensors by the names of `transformers`, whose values bf16 holds exactly."""
    shapes = {mapped.theirs: mapped.shape for mapped in family.mapped(config)}
    return {
        name: hf_files.from_bf16(hf_files.to_bf16(rng.normal(size=shape).astype(np.float32)))
        for name, shape in shapes.items()
    }
