"""README.md of an exported folder: how to load it, what it is, what it was trained on, its losses."""

import math

from hf_models import has_biases, head_dims, key_heads, later, parts, rope_dim
from run_reader import is_count


def table(rows):
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def loading(family):
    trust = ", trust_remote_code=True" if family.files else ""
    return f"""```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER"{trust})
tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})
```"""


def model_rows(config, parameters):
    model, prior = config["model"], config["prior"]
    yield "block, attention", f"`{model['block']}`, `{model['attention']}`"
    yield "layers, heads, width", f"{model['layers']}, {model['heads']}, {model['width']}"
    if key_heads(config) != model["heads"]:
        yield "heads of keys and values", f"{key_heads(config)}"
    if has_biases(config) != (model["block"] == "gpt"):
        yield "biases", "in every linear layer" if has_biases(config) else "none"
    if later(config, "qk_norm"):
        yield "q and k", "normed in each head"
    yield "hidden units of the MLP", f"{model['ff_width'] or 4 * model['width']:,}"
    yield "vocabulary", f"{model['vocab']:,}{'' if model['tied'] else ', a head of its own'}"
    yield "parameters", f"{parameters:,}"
    yield "training length", f"{config['data']['seq_len']:,} tokens"
    if "goat" in parts(config):
        modes = f"R = {prior['pos_rank']}, M = {prior['abs_rank']}"
        yield "prior", f"{modes}, slope `{prior['recency']}`"
    if {"rope", "rope_pi"} & set(parts(config)):
        turned, content = rope_dim(config), head_dims(config)[0]
        yield "rope", f"base {model['rope_base']:g}, {turned} of the {content} dimensions of a head"


def training_rows(config, step, state):
    data = config["data"]
    shards = data["train"] or data["mixture"] or "(not named)"
    yield "data", f"`{shards}`" if data["source"] == "shards" else f"the built-in task `{data['source']}`"
    yield "steps", f"{step:,}"
    if is_count(state.get("tokens")):
        yield "tokens", f"{state['tokens']:,}"
    for key, name in (("loss", "loss of the last step"), ("val_loss", "latest validation loss")):
        value = state.get(key)  # null where there is none
        if isinstance(value, float | int) and math.isfinite(value):
            yield name, f"{float(value):.4f} nats a token"


def model_card(name, family, dtype, config, parameters, checkpoint, tokenizer):
    """The text. parameters: their number; tokenizer: a sentence about it."""
    code = " It runs `modeling_goat.py`, which lies beside it: read it first." if family.files else ""
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# {name}

A language model trained by train_gpt_goat, as a `{family.architecture}` in {dtype}.{code}

{loading(family)}

{table(model_rows(config, parameters))}

## Training

{table(training_rows(config, checkpoint.step, checkpoint.state))}

## Tokenizer

{tokenizer}
"""
