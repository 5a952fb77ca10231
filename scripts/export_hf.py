#!/usr/bin/env python3
"""Exports a run of train_gpt_goat as a folder that `transformers` loads.

  export_hf.py RUN OUT                      the newest checkpoint, in fp32
  export_hf.py RUN OUT --dtype bf16 --checkpoint 8000

A llama block with rope becomes a LlamaForCausalLM, a gpt block with learned positions a GPT2LMHeadModel;
every other model comes with modeling_goat.py and loads with trust_remote_code=True. RUN may also be a
checkpoint's folder. OUT appears when it is complete. Exit codes: 0 done, 1 failure (disk, memory,
interrupted, missing package), 2 wrong use, 3 bad data.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import console

warn = partial(console.warn, "export_hf.py")
HERE = Path(__file__).resolve().parent
# The keys of a run's config that an export reads.
KEYS = {
    "model": {"block": str, "layers": int, "heads": int, "width": int, "ff_width": int, "vocab": int,
              "tied": bool, "attention": str, "rope_base": float, "attn_scale": str},
    "prior": {"pos_rank": int, "abs_rank": int, "lane_dim": int, "base": float, "abs_base": float,
              "recency": str, "learned_frequencies": bool, "sink_hidden": int},
    "data": {"source": str, "train": str, "mixture": str, "seq_len": int, "block": str, "bos": int},
}  # fmt: skip
# The keys of [model] that say how, not what, a model computes.
NOT_OF_THE_FUNCTION = {"precision", "tf32", "epilogue", "recompute"}


def config_of(checkpoint):
    """The run's config by section and key. Raises DataError where a key is missing, or unknown in [model]."""
    from hf_models import LATER_KEYS

    config = {
        section: {key: checkpoint.value(f"{section}.{key}", kind) for key, kind in keys.items()}
        for section, keys in KEYS.items()
    }
    model = checkpoint.config["model"]
    for key, default in LATER_KEYS.items():
        stored = checkpoint.value(f"model.{key}", type(default)) if key in model else default
        config["model"][key] = stored
    unknown = sorted(set(model) - set(config["model"]) - NOT_OF_THE_FUNCTION)
    if unknown:
        raise console.DataError(
            f"{checkpoint.folder}: config: model.{unknown[0]} is not known to this export_hf.py; take the "
            "one of the program that trained the run"
        )
    return config


def check_tensors(path, stored, shapes):
    """Raises DataError unless the checkpoint holds exactly the tensors of its config."""
    for name, shape in shapes.items():
        if name not in stored:
            raise console.DataError(f"{path}: tensor '{name}' is missing")
        if stored[name].shape != shape:
            raise console.DataError(
                f"{path}: tensor '{name}' has shape {list(stored[name].shape)}, expected {list(shape)}"
            )
    unknown = sorted(set(stored) - set(shapes))
    if unknown:
        raise console.DataError(
            f"{path}: holds tensors that this script does not know: {console.some(unknown, 5)}"
        )


def joined(stored, mapped):
    """A tensor of theirs, from ours."""
    import numpy as np

    parts = [stored[name].read(name) for name in mapped.ours]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole.T if mapped.transposed else whole


def stays_fp32(name):
    """Norms, the prior and the gates of modeling_goat.py, which it computes with in fp32."""
    return ".prior." in name or ".forget." in name or "norm" in name.rsplit(".", 2)[-2]


def tensors_of(family, config, stored, dtype):
    """What write_tensors takes."""
    keeps = stays_fp32 if family.files else lambda name: False
    return [
        (m.theirs, m.shape, "F32" if keeps(m.theirs) else dtype, partial(joined, stored, m))
        for m in family.mapped(config)
    ]


def config_json(family, config, dtype, tokenizer):
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        **family.keys(config),
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16"}[dtype],
        **token_ids(tokenizer),
    }


def token_ids(tokenizer):
    """Null where there is none: their defaults are ids of other vocabularies."""
    return {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.eos, "pad_token_id": None}


def tokenizer_of(checkpoint, config, folder):
    from hf_tokenizers import export_tokenizer

    data = checkpoint.state.get("data")
    recorded = data.get("tokenizer") if isinstance(data, dict) else None
    return export_tokenizer(config, recorded, [folder] if folder else [checkpoint.run / "tokenizer"])


def write_folder(folder, name, checkpoint, dtype, tokenizer_dir):
    """Writes all files of the export into an empty folder; returns the family and the tokenizer."""
    from hf_card import model_card
    from hf_files import DTYPES, WEIGHTS, read_header, write_bytes, write_json, write_tensors
    from hf_models import family_of, tensor_shapes

    config, stored_as = config_of(checkpoint), DTYPES[dtype]
    family, stored = family_of(config), read_header(checkpoint.folder / WEIGHTS)
    check_tensors(checkpoint.folder / WEIGHTS, stored, tensor_shapes(config))
    tokenizer = tokenizer_of(checkpoint, config, tokenizer_dir)
    metadata = {"format": "pt", "step": str(checkpoint.step)}
    write_tensors(folder / WEIGHTS, tensors_of(family, config, stored, stored_as), metadata)
    write_json(folder / "config.json", config_json(family, config, stored_as, tokenizer))
    write_json(folder / "generation_config.json", token_ids(tokenizer))
    for file, contents in tokenizer.files.items():
        write_bytes(folder / file, contents)
    for file in family.files:
        write_bytes(folder / file, (HERE / file).read_bytes())
    parameters = sum(tensor.end - tensor.begin for tensor in stored.values()) // 4
    card = model_card(name, family, dtype, config, parameters, checkpoint, tokenizer.about)
    write_bytes(folder / "README.md", card.encode())
    return family, tokenizer


def export(arguments):
    from hf_files import check_new_folder, new_folder
    from run_reader import open_checkpoint

    check_new_folder(arguments.out, arguments.overwrite, "config.json")
    checkpoint = open_checkpoint(arguments.run, arguments.checkpoint, warn)
    name = checkpoint.run.resolve().name
    with new_folder(arguments.out) as folder:
        family, tokenizer = write_folder(folder, name, checkpoint, arguments.dtype, arguments.tokenizer_dir)
    console.say(f"{arguments.out}: {family.architecture}, {arguments.dtype}, step {checkpoint.step}")
    console.say(f"Tokenizer: {tokenizer.about}")


def parse_arguments(words):
    parser = console.Parser(
        prog="export_hf.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="of the weights (fp32)")
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="in place of the newest one")
    parser.add_argument(
        "--tokenizer-dir", type=Path, metavar="FOLDER", help="the tokenizer's files (RUN/tokenizer)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an exported folder")
    return parser.parse_args(words)


def main(words):
    return console.run_script("export_hf.py", lambda: export(parse_arguments(words)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
