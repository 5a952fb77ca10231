"""Writes a run's folder as the program would have left it before its first step: config.toml and a checkpoint
of step 0, whose optimizer state is zero."""

import json

import numpy as np
import xxhash
from hf_files import write_bytes, write_tensors
from run_reader import CHECKSUM, FORMAT_OF_FILES, MANIFEST, WEIGHTS, canonical

OPTIMIZER = "optimizer.safetensors"
MOMENTS = ("m.", "v.")


def toml(config):
    """A config by section and key as TOML."""
    sections = (
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for section, keys in config.items()
    )
    return "\n".join(sections)


def write_with_checksum(path, tensors):
    """Writes a safetensors file of step 0; returns what state.json says of it."""
    digest, size = xxhash.xxh3_64(), 0

    def write(file, contents):
        nonlocal size
        size += file.write(contents)
        digest.update(contents)

    write_tensors(path, tensors, {"format": "pt", "step": "0"}, write)
    return {"name": path.name, "bytes": size, CHECKSUM: digest.hexdigest()}


def manifest(config, tokenizer, files):
    """state.json: nothing has been read or updated. Null is a number that is not known yet."""
    counts = ("step", "sequences", "tokens", "updates", "consecutive_skips", "skipped_updates")
    unknown = ("loss_limit", "grad_norm_limit", "loss", "val_loss", "best_loss")
    state = {
        "format": FORMAT_OF_FILES,
        **dict.fromkeys(counts, 0),
        **dict.fromkeys(unknown),
        "seconds": 0.0,
        "spike_window": [],
        "latest_losses": [],
        "precision": "",
        "config": config,
        "data": {"working_folder": "", "tokenizer": tokenizer, "training": [], "validation": []},
        "files": files,
    }
    return state | {CHECKSUM: xxhash.xxh3_64_hexdigest(canonical(state).encode())}


def write_run(folder, config, tensors, tokenizer, tokenizer_files):
    """Fills an empty folder. tensors: (name, shape, values()) of all weights; tokenizer: its name, or "" if
    that is unknown; tokenizer_files: contents by name."""
    text = toml(config)
    checkpoint = folder / "checkpoints" / "step_00000000"
    checkpoint.mkdir(parents=True)
    weights = [(name, shape, "F32", values) for name, shape, values in tensors]
    moments = [
        (prefix + name, shape, "F32", lambda shape=shape: np.zeros(shape, np.float32))
        for prefix in MOMENTS
        for name, shape, _ in tensors
    ]
    files = [
        write_with_checksum(checkpoint / WEIGHTS, weights),
        write_with_checksum(checkpoint / OPTIMIZER, moments),
    ]
    contents = json.dumps(manifest(text, tokenizer, files), indent=2, ensure_ascii=False)
    write_bytes(checkpoint / MANIFEST, contents.encode() + b"\n")
    write_bytes(folder / "config.toml", text.encode())
    if tokenizer_files:
        (folder / "tokenizer").mkdir()
        for name, file in tokenizer_files.items():
            write_bytes(folder / "tokenizer" / name, file)
