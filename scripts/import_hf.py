#!/usr/bin/env python3
"""Turns a folder of `transformers` into a run of train_gpt_goat.

  import_hf.py FOLDER RUN --train 'data/mine/train_*.bin' --val 'data/mine/val_*.bin'

FOLDER holds config.json and safetensors (fp32, fp16 or bf16; one file, or shards with their index) of a
Llama, a GPT-2, or a model that export_hf.py has written. RUN gets config.toml and a checkpoint of step 0,
without any optimizer state: eval, analyze and sample take it, and --resume trains on from it. Exit codes:
0 done, 1 failure (disk, memory, interrupted, missing package), 2 wrong use, 3 bad data.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import console

LONGEST = 2048  # the training length where a model allows more and --seq-len says nothing
DEFAULT_TRAIN = "data/train_*.bin"
TRAINING = {"steps": 1000, "warmup": 50, "lr": 3e-5, "min_lr": 3e-6}
# The keys that these models do not read, at the program's defaults: a run's config has every key.
PRIOR = {
    "pos_rank": 2, "abs_rank": 8, "lane_dim": 0, "base": 10000.0, "abs_base": 10000.0, "recency": "free",
    "learned_frequencies": False, "sink_hidden": 0,
}  # fmt: skip


def refuse(path, what):
    raise console.DataError(f"{path}: {what}")


def counted(path, json, name, default=None):
    """A positive count of config.json."""
    value = json.get(name, default)
    if type(value) is not int or not 0 < value < 1 << 40:
        refuse(path, f"{name} is {value!r}, expected a positive number")
    return value


def require(path, json, expected):
    """Refuses keys of config.json that have another value than those that the program computes with, of which
    the first holds where the key is missing."""
    for name, values in expected.items():
        found = json.get(name, values[0])
        if found not in values and not (found is None and False in values):
            allowed = " or ".join(map(repr, values))
            refuse(path, f"{name} is {found!r}; the program has {allowed} only: take a model that has that")


def number(path, json, name, low, high, default):
    value = json.get(name, default)
    if type(value) not in (int, float) or not low <= value <= high:
        refuse(path, f"{name} is {value!r}, expected a number from {low:g} to {high:g}")
    return float(value)


def norm_eps(path, json, name, default):
    """Within the program's bounds."""
    return number(path, json, name, 1e-30, 1, default)


def check_common(path, json):
    if json.get("quantization_config"):
        refuse(path, "the weights are quantized (quantization_config); take the folder in bf16, fp16 or fp32")


def rope_base(path, json):
    """rope_theta, which may stand in rope_parameters. Raises DataError for any scaling of it."""
    parameters = json.get("rope_parameters") or {}
    scaling = json.get("rope_scaling") or {}
    for key, found in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        kind = found.get("rope_type", found.get("type", "default")) if isinstance(found, dict) else found
        if kind != "default":
            refuse(
                path,
                f"{key} scales rope ({kind!r}); the program has rope without scaling only: take a model "
                "whose rope_type is 'default', such as this one before its context was extended",
            )
    turned = json.get("partial_rotary_factor", parameters.get("partial_rotary_factor", 1))
    if turned not in (1, None):
        refuse(
            path,
            f"partial_rotary_factor is {turned!r}, but a Llama turns every dimension of a head: take the "
            "folder as the model's makers published it",
        )
    return number(path, parameters | json, "rope_theta", 1, 1e12, 10000.0)


def grouped_heads(path, json, heads):
    """model.kv_heads for num_key_value_heads: 0 where every head has keys of its own."""
    groups = counted(
        path, {"num_key_value_heads": json.get("num_key_value_heads") or heads}, "num_key_value_heads"
    )
    if heads % groups:
        refuse(path, f"num_key_value_heads is {groups}, which does not divide num_attention_heads = {heads}")
    return 0 if groups == heads else groups


def llama_bias(path, json):
    """model.bias for attention_bias and mlp_bias."""
    found = {name: json.get(name) or False for name in ("attention_bias", "mlp_bias")}
    require(path, found, dict.fromkeys(found, (False, True)))
    if len(set(found.values())) > 1:
        refuse(
            path,
            "attention_bias is {attention_bias}, mlp_bias is {mlp_bias}; the program has biases in all "
            "linear layers or in none: take a model with both or neither".format(**found),
        )
    return "true" if found["mlp_bias"] else "auto"


def sizes(path, json):
    """The keys of [model] that Llama's config.json and ours have under the same names."""
    heads = counted(path, json, "num_attention_heads")
    return {
        "layers": counted(path, json, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": grouped_heads(path, json, heads),
        "width": counted(path, json, "hidden_size"),
        "ff_width": counted(path, json, "intermediate_size"),
        "vocab": counted(path, json, "vocab_size"),
    }


# Each returns [model] and [prior] of the run, its training length, and whether that is a part of the model.


def llama_model(path, json):
    own = sizes(path, json)
    require(path, json, {"head_dim": (own["width"] // own["heads"],)} if json.get("head_dim") else {})
    require(path, json, {"hidden_act": ("silu", "swish")})
    model = own | {
        "block": "llama",
        "attention": "rope",
        "tied": json.get("tie_word_embeddings", False) is True,
        "bias": llama_bias(path, json),
        "norm_eps": norm_eps(path, json, "rms_norm_eps", 1e-6),
        "rope_base": rope_base(path, json),
        "attn_scale": "rsqrt",
    }
    longest = counted(path, json, "max_position_embeddings", 2048)
    return model, PRIOR, min(longest, LONGEST), False


def gpt2_model(path, json):
    width, positions = counted(path, json, "n_embd", 768), counted(path, json, "n_positions", 1024)
    require(path, json, {"activation_function": ("gelu_new", "gelu_pytorch_tanh")})
    require(path, json, {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)})
    require(path, json, {"add_cross_attention": (False,)})
    model = {
        "block": "gpt",
        "attention": "learned",
        "layers": counted(path, json, "n_layer", 12),
        "heads": counted(path, json, "n_head", 12),
        "width": width,
        "ff_width": counted(path, json, "n_inner") if json.get("n_inner") else 4 * width,
        "vocab": counted(path, json, "vocab_size", 50257),
        "tied": json.get("tie_word_embeddings", True) is True,
        "norm_eps": norm_eps(path, json, "layer_norm_epsilon", 1e-5),
        "rope_base": 10000.0,
        "attn_scale": "rsqrt",
    }
    return model, PRIOR, positions, True


def goat_model(path, json):
    """Of GoatForCausalLM, which keeps the run's own keys, or what follows from them."""
    from hf_models import PARTS

    require(path, json, {"block": ("gpt", "llama"), "qk_norm": (False, True)})
    own_bias = json["block"] == "gpt"
    require(path, json, {"bias": (own_bias, not own_bias)})
    attention = json.get("attention")
    parts = () if attention == "none" else str(attention).split("+")
    if not set(parts) <= set(PARTS):
        refuse(path, f"attention is {attention!r}; expected none or a sum of {', '.join(PARTS)}")
    own = sizes(path, json)
    content, length = counted(path, json, "content_dim"), counted(path, json, "train_length")
    require(path, json, {"attention_scale": (content**-0.5, 1.0)})
    model = own | {
        "block": json["block"],
        "attention": attention,
        "tied": json.get("tie_word_embeddings", True) is True,
        "bias": "auto" if json.get("bias") in (own_bias, None) else str(json["bias"]).lower(),
        "qk_norm": json.get("qk_norm") or False,
        "norm_eps": norm_eps(path, json, "norm_eps", 1e-5),
        "rope_base": number(path, json, "rope_base", 1, 1e12, 10000.0),
        "rope_fraction": min(number(path, json, "rope_dim", 0, content, content) / content, 1.0) or 1.0,
        "attn_scale": "rsqrt" if json["attention_scale"] == content**-0.5 else "none",
    }
    prior = PRIOR
    if "goat" in parts:
        prior = prior_of(path, json.get("prior")) | {"lane_dim": own["width"] // own["heads"] - content}
    return model, prior, length, bool({"goat", "rope_pi", "learned"} & set(parts))


def prior_of(path, stored):
    """[prior] of the run, but for its lanes."""
    if not isinstance(stored, dict):
        refuse(path, f"prior is {stored!r}, and attention names goat; expected an object")
    counts = {name: counted(path, stored, name) for name in ("pos_rank", "sink_hidden")}
    bases = {name: number(path, stored, name, 1, 1e12, None) for name in ("base", "abs_base")}
    require(path, stored, {"recency": ("free", "softplus", "off"), "learned_frequencies": (False, True)})
    modes = number(path, stored, "abs_rank", 0, 1e4, None)
    return (
        PRIOR
        | counts
        | bases
        | {"abs_rank": int(modes)}
        | {name: stored.get(name, PRIOR[name]) for name in ("recency", "learned_frequencies")}
    )


def read_config(folder, arguments):
    """(family, config of the run) of the folder's config.json."""
    from run_reader import read_json
    from hf_models import Goat, Gpt2, Llama

    path = folder / "config.json"
    if not path.is_file():
        raise console.UsageError(f"{folder}: has no config.json; expected a folder that transformers wrote")
    json = read_json(path)
    families = {
        "llama": (Llama, llama_model),
        "gpt2": (Gpt2, gpt2_model),
        "train_gpt_goat": (Goat, goat_model),
    }
    if json.get("model_type") not in families:
        refuse(path, f"model_type is {json.get('model_type')!r}; expected one of {', '.join(families)}")
    family, read = families[json["model_type"]]
    check_common(path, json)
    model, prior, length, is_fixed = read(path, json)
    if model["width"] % model["heads"]:
        refuse(path, f"a width of {model['width']} is not divisible by {model['heads']} heads")
    if is_fixed and arguments.seq_len not in (None, length):
        raise console.UsageError(
            f"--seq-len {arguments.seq_len}: the training length is a part of this model, {length}; leave it "
            "out"
        )
    data = data_of(json, model, arguments.seq_len or length, arguments)
    return family, {"model": model, "prior": prior, "data": data, "train": TRAINING}


def data_of(json, model, length, arguments):
    data = {
        "source": "shards",
        "train": arguments.train,
        "mixture": "",
        "val": arguments.val,
        "seq_len": length,
    }
    bos = json.get("bos_token_id")
    if type(bos) is int and 0 <= bos < model["vocab"]:
        return data | {"block": "bos", "bos": bos}
    return data | {"block": "window", "bos": 0}


def canonical_names(stored, family):
    """Their tensors by the names of the table: older files lack the prefix, or hold buffers."""
    from hf_models import Gpt2

    buffers = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
    kept = {name: tensor for name, tensor in stored.items() if not name.endswith(buffers)}
    if family is not Gpt2:
        return kept
    bare = ("wte.", "wpe.", "h.", "ln_f.")
    return {f"transformer.{name}" if name.startswith(bare) else name: tensor for name, tensor in kept.items()}


def drop_tied_head(folder, stored, config):
    """A tied model's file may hold the head again; refuses one that is another matrix."""
    import numpy as np

    head = stored.pop("lm_head.weight", None) if config["model"]["tied"] else None
    table = next((name for name in stored if name.endswith((".embed_tokens.weight", ".wte.weight"))), None)
    if head is None or table is None:
        return
    if not np.array_equal(head.read("lm_head.weight"), stored[table].read(table)):
        refuse(
            folder, "tie_word_embeddings is true, but lm_head.weight is not the embedding; set it to false"
        )


def rows_of(stored, mapped, number):
    """Our tensor `number` of those that one of theirs holds."""
    import numpy as np

    whole = stored[mapped.theirs].read(mapped.theirs)
    whole = whole.T if mapped.transposed else whole
    first = sum(shape[0] for shape in mapped.shapes[:number])
    return np.ascontiguousarray(whole[first : first + mapped.shapes[number][0]])


def tensors_of(folder, family, config):
    """(name, shape, values()) of all tensors of the run. Raises DataError unless theirs are exactly those."""
    from hf_files import read_tensors

    stored = canonical_names(read_tensors(folder), family)
    drop_tied_head(folder, stored, config)
    table = family.mapped(config)
    for mapped in table:
        if mapped.theirs not in stored:
            refuse(folder, f"tensor '{mapped.theirs}' is missing")
        if stored[mapped.theirs].shape != mapped.shape:
            found = list(stored[mapped.theirs].shape)
            refuse(folder, f"tensor '{mapped.theirs}' has shape {found}, expected {list(mapped.shape)}")
    unknown = sorted(set(stored) - {mapped.theirs for mapped in table})
    if unknown:
        refuse(folder, f"holds tensors that the program has no place for: {console.some(unknown, 5)}")
    return [
        (name, mapped.shapes[number], partial(rows_of, stored, mapped, number))
        for mapped in table
        for number, name in enumerate(mapped.ours)
    ]


def import_folder(arguments):
    from hf_files import check_new_folder, new_folder
    from hf_models import Gpt2
    from hf_tokenizers import import_tokenizer
    from run_writer import write_run

    if not arguments.folder.is_dir():
        raise console.UsageError(f"{arguments.folder}: no such folder")
    check_new_folder(arguments.run)
    family, config = read_config(arguments.folder, arguments)
    tensors = tensors_of(arguments.folder, family, config)
    tokenizer, files = import_tokenizer(arguments.folder, family is Gpt2)
    with new_folder(arguments.run) as folder:
        write_run(folder, config, tensors, tokenizer, files)
    model = config["model"]
    console.say(
        f"{arguments.run}: {model['block']} block, {model['attention']}, {model['layers']} layers, "
        f"width {model['width']}, trained at length {config['data']['seq_len']}"
    )
    console.say(f"Tokenizer: {tokenizer or 'none found; sample takes one by --tokenizer-dir'}")
    if arguments.train == DEFAULT_TRAIN:
        console.say(f"To train on, name the data: --resume --set data.train='...' (here {DEFAULT_TRAIN})")


def parse_arguments(words):
    parser = console.Parser(
        prog="import_hf.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--train", default=DEFAULT_TRAIN, metavar="GLOB", help="data.train of the run")
    parser.add_argument("--val", default="", metavar="GLOB", help="data.val of the run")
    parser.add_argument(
        "--seq-len", type=int, metavar="T", help=f"data.seq_len (the model's, at most {LONGEST})"
    )
    arguments = parser.parse_args(words)
    if arguments.seq_len is not None and arguments.seq_len < 1:
        raise console.UsageError(f"--seq-len {arguments.seq_len}: expected a positive number")
    return arguments


def main(words):
    return console.run_script("import_hf.py", lambda: import_folder(parse_arguments(words)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
