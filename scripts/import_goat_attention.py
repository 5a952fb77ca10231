#!/usr/bin/env python3
"""Turns the attention layers of the package goat-attention into layers of train_gpt_goat.

  import_goat_attention.py STATE OUT --heads 12 --train-length 2048

STATE is a state_dict, of a GoatAttention or of a model that has some: safetensors, or what torch.save wrote
of it (which needs torch: .venv-hf/bin/python). With --trust-pickle it may be a whole module that torch.save
wrote, which runs code when it is read; --heads and --train-length are then its own. OUT is a safetensors file
with blocks.N.attn.* for the layers in their order. Printed are the keys of the config that a run with them
needs. Exit codes: 0 done, 1 failure (disk, memory, interrupted, missing package), 2 wrong use, 3 bad data.
"""

import argparse
import sys
from pathlib import Path

import console

MARK = "lambda_sym"  # a tensor that every GoatAttention has


def read_safetensors(path):
    from hf_files import read_header

    return {name: stored.read(name) for name, stored in read_header(path).items()}


def read_pickle(path, trusted):
    """What torch.save wrote: a dict of float32 arrays, or a module. Raises DataError."""
    try:
        import torch
    except ImportError:
        raise console.ScriptError(
            f"{path}: reading it needs torch: scripts/setup.sh hf, then .venv-hf/bin/python {__file__} ..; "
            "or store it by safetensors.torch.save_file(model.state_dict(), 'STATE.safetensors')"
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=not trusted)
    except OSError:
        raise
    except Exception as error:  # the unpickler raises what it likes
        advice = "" if trusted else "; --trust-pickle reads whole modules, and runs code that is in the file"
        why = console.one_line(error)[:200]
        raise console.DataError(f"{path}: is no state_dict ({why}){advice}") from None
    if isinstance(found, torch.nn.Module):
        return found
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise console.DataError(f"{path}: expected a state_dict, a dict of tensors, or a module")
    return {name: value.detach().float().numpy() for name, value in found.items()}


def layers_of_state(path, state, arguments):
    """(name, tensors, heads, training length, prior scale) of each layer in a state_dict."""
    if arguments.heads is None:
        raise console.UsageError(f"--heads is missing: {path} is a state_dict, which does not say it")
    prefixes = [name.removesuffix(MARK) for name in state if name == MARK or name.endswith(f".{MARK}")]
    if not prefixes:
        raise console.DataError(f"{path}: holds no tensor '{MARK}': it has no GoatAttention layer")
    for prefix in prefixes:
        tensors = {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}
        has_key_bias = "sink_gain" in tensors
        if has_key_bias and arguments.train_length is None:
            raise console.UsageError(
                f"--train-length is missing: {path} is a state_dict, which does not say training_seq_len"
            )
        name = f"{path}: {prefix.rstrip('.') or 'layer'}"
        yield name, tensors, arguments.heads, arguments.train_length, 1.0


def layers_of_module(path, module, arguments):
    """The same of a module, which also knows its options."""
    found = [(name, part) for name, part in module.named_modules() if type(part).__name__ == "GoatAttention"]
    if not found:
        raise console.DataError(f"{path}: the module has no GoatAttention in it")
    for name, part in found:
        name = f"{path}: {name or 'layer'}"
        check_options(name, part)
        length = arguments.train_length or part.training_seq_len
        if part.enable_key_bias and length is None:
            raise console.UsageError(
                f"--train-length is missing: {name} has training_seq_len=None, and divides positions by the "
                "length of each text less one; --train-length T - 1 is the same for texts of T tokens"
            )
        state = {key: value.detach().float().numpy() for key, value in part.state_dict().items()}
        yield name, state, part.num_heads, length, float(part.goat_prior_scale)


def check_options(name, part):
    allowed = {"prior_gate": "none", "pos_encoding": "1d", "add_bias_kv": False, "add_zero_attn": False}
    for option, value in allowed.items():
        found = getattr(part, option)
        if found != value:
            raise console.DataError(
                f"{name}: {option} is {found!r}; the program has what {value!r} gives only: take such a layer"
            )


def merged(layers):
    """All tensors by name, and the keys that the layers share. Raises DataError if they differ in one."""
    tensors, keys = {}, None
    for n, (name, length, layer) in enumerate(layers):
        tensors |= {f"blocks.{n}.attn.{key}": value for key, value in layer.tensors.items()}
        biases = "q.bias" in layer.tensors
        found = {f"model.{key}": value for key, value in layer.model.items()}
        found |= {"model.block": "gpt" if biases else "llama (or gpt with biases of 0)"}
        found |= {f"prior.{key}": value for key, value in layer.prior.items()} | {"data.seq_len": length}
        keys = keys or found
        for key, value in found.items():
            if value != keys[key]:
                raise console.DataError(f"{name}: {key} would be {value!r}, and {keys[key]!r} before it")
    return tensors, keys


def convert(arguments):
    from goat_attention import layer_of
    from hf_files import write_tensors

    if arguments.out.exists():
        raise console.UsageError(f"{arguments.out}: is there; give another name")
    path = arguments.state
    is_plain = path.suffix == ".safetensors"
    found = read_safetensors(path) if is_plain else read_pickle(path, arguments.trust_pickle)
    listed = (layers_of_state if isinstance(found, dict) else layers_of_module)(path, found, arguments)
    layers = [
        (name, length, layer_of(name, state, heads, arguments.head_dim, scale))
        for name, state, heads, length, scale in listed
    ]
    tensors, keys = merged(layers)
    stored = [(name, value.shape, "F32", lambda value=value: value) for name, value in tensors.items()]
    write_tensors(arguments.out, stored, {"format": "pt"})
    width = len(tensors["blocks.0.attn.o.weight"])
    console.say(f"{arguments.out}: {console.count(len(layers), 'attention layer')}, width {width}")
    console.say("A run with them needs:")
    for key, value in keys.items():
        if value is not None:
            console.say(f"  {key} = {value}")


def parse_arguments(words):
    parser = console.Parser(
        prog="import_goat_attention.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("state", type=Path, metavar="STATE")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--heads", type=int, metavar="H", help="num_heads")
    parser.add_argument("--train-length", type=int, metavar="L", help="training_seq_len (data.seq_len)")
    parser.add_argument(
        "--head-dim", type=int, default=0, metavar="D", help="of our heads (as few dimensions as it takes)"
    )
    parser.add_argument("--trust-pickle", action="store_true", help="read whole modules, with their code")
    return parser.parse_args(words)


def main(words):
    return console.run_script("import_goat_attention.py", lambda: convert(parse_arguments(words)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
