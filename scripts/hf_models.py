"""The models of runs as models of `transformers`: which class, the keys of its config.json, and which tensor
is which. One table serves both directions, export and import.

A run's config is a dict of sections, as in config.toml. LlamaForCausalLM computes what a llama block with
rope computes, GPT2LMHeadModel a gpt block with learned positions; every other model has modeling_goat.py.
"""

import math
from dataclasses import dataclass

from console import DataError

NORM_EPS = 1e-5
POSITION_TABLE = "position_embedding.weight"  # with "learned" in model.attention
# Keys of [model] that older runs lack, and what these computed with.
LATER_KEYS = {"rope_fraction": 1.0, "norm_eps": NORM_EPS, "bias": "auto", "qk_norm": False, "kv_heads": 0}
# What model.attention can be a sum of, where it is not "none".
PARTS = ("goat", "rope", "rope_pi", "alibi", "alibi_learned", "forget", "sinusoidal", "learned")


@dataclass(frozen=True)
class Mapped:
    """A tensor of theirs: those of ours, [outputs, inputs], one below the other; `transposed` where they
    store [inputs, outputs]."""

    theirs: str
    ours: tuple
    shapes: tuple  # of ours
    transposed: bool = False

    @property
    def shape(self):
        """Of theirs."""
        joined = (sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])
        return joined[::-1] if self.transposed else joined


def later(config, key):
    """The value of one of LATER_KEYS."""
    return config["model"].get(key, LATER_KEYS[key])


def key_heads(config):
    """H_k, the heads of k and v, which groups of query heads share."""
    return later(config, "kv_heads") or config["model"]["heads"]


def has_biases(config):
    """Whether linear layers and LayerNorm have one."""
    return {"auto": config["model"]["block"] == "gpt", "true": True, "false": False}[later(config, "bias")]


def parts(config):
    """The parts of model.attention."""
    attention = config["model"]["attention"]
    return () if attention == "none" else tuple(attention.split("+"))


def head_dims(config):
    """(d_c, d_h): dimensions of a head's q and k, and of its v."""
    model = config["model"]
    d_h = model["width"] // model["heads"]
    if "goat" not in parts(config):
        return d_h, d_h
    prior = config["prior"]
    return d_h - (prior["lane_dim"] or 2 * prior["pos_rank"] + 2), d_h


def rope_dim(config):
    """Dimensions of a head's q and k that rope turns, its first ones. Half a pair is rounded up."""
    content = head_dims(config)[0]
    pairs = math.floor(later(config, "rope_fraction") * content / 2 + 0.5)
    return 2 * min(pairs, content // 2)


def sink_hidden(config):
    """n, the hidden units of the prior's sink MLP."""
    prior = config["prior"]
    return prior["sink_hidden"] or min(2 * (2 * prior["abs_rank"] + 2), max(2 * config["model"]["heads"], 4))


def tensor_shapes(config):
    """The shape of every tensor of a run's model.safetensors, by name."""
    model = config["model"]
    width, vocab, ff = model["width"], model["vocab"], model["ff_width"] or 4 * model["width"]
    shapes = {"embedding.weight": (vocab, width)}
    if not model["tied"]:
        shapes["head.weight"] = (vocab, width)
    if "learned" in parts(config):
        shapes[POSITION_TABLE] = (config["data"]["seq_len"], width)
    content, d_h = head_dims(config)
    linear = {"attn.q": (model["heads"] * content, width), "attn.k": (key_heads(config) * content, width)}
    linear |= {"attn.v": (key_heads(config) * d_h, width), "attn.o": (width, width)}
    linear |= {"mlp.gate": (ff, width)} if model["block"] == "llama" else {}
    linear |= {"mlp.up": (ff, width), "mlp.down": (width, ff)}
    biases = has_biases(config)
    norm_biases = biases and model["block"] == "gpt"
    for block in (f"blocks.{n}." for n in range(model["layers"])):
        for name, shape in linear.items():
            shapes |= weight_and_bias(block + name, shape, biases)
        for name in ("norm1", "norm2"):
            shapes |= weight_and_bias(block + name, (width,), norm_biases)
        if later(config, "qk_norm"):
            shapes |= {f"{block}attn.{name}_norm.weight": (content,) for name in "qk"}
        if "forget" in parts(config):
            shapes |= weight_and_bias(f"{block}attn.forget", (model["heads"], width), True)
        shapes |= {f"{block}attn.prior.{name}": shape for name, shape in prior_shapes(config).items()}
    return shapes | weight_and_bias("final_norm", (width,), norm_biases)


def weight_and_bias(name, shape, biased):
    bias = {f"{name}.bias": shape[:1]} if biased else {}
    return {f"{name}.weight": shape} | bias


def prior_shapes(config):
    """Of attn.prior.NAME: goat has all of them, alibi_learned the slope. A key's own bias is that of a head
    of keys."""
    heads, prior, hidden = config["model"]["heads"], config["prior"], sink_hidden(config)
    slope = {"slope": (heads,)}
    learned = slope if "alibi_learned" in parts(config) else {}
    if "goat" not in parts(config):
        return learned
    shapes = {"alpha": (heads, prior["pos_rank"]), "beta": (heads, prior["pos_rank"])}
    shapes |= {
        "bump": (key_heads(config),),
        "sink.w1": (hidden, 2 * prior["abs_rank"] + 2),
        "sink.b1": (hidden,),
        "sink.w2": (key_heads(config), hidden),
    }
    shapes |= slope if prior["recency"] != "off" else learned
    return shapes | ({"frequency": (prior["pos_rank"],)} if prior["learned_frequencies"] else {})


def prior_settings(config):
    """What modeling_goat.py reads of [prior]."""
    kept = ("pos_rank", "abs_rank", "base", "abs_base", "recency", "learned_frequencies")
    return {name: config["prior"][name] for name in kept} | {"sink_hidden": sink_hidden(config)}


class Family:
    """A class of `transformers`. `architecture`: its name; `model_type`: as config.json has it."""

    architecture: str
    model_type: str
    files: tuple = ()  # of scripts/, copied into the folder

    @staticmethod
    def names():
        """(theirs, ours, transposed) of the tensors, {n} being the block; ours may be a tuple of names."""
        raise NotImplementedError

    @classmethod
    def mapped(cls, config):
        """How each tensor of the run maps, a list of Mapped."""
        shapes, found = tensor_shapes(config), []
        for theirs, ours, transposed in cls.names():
            for n in range(config["model"]["layers"]) if "{n}" in theirs else (0,):
                names = tuple(name.format(n=n) for name in (ours if isinstance(ours, tuple) else (ours,)))
                if names[0] in shapes:
                    sizes = tuple(shapes[name] for name in names)
                    found.append(Mapped(theirs.format(n=n), names, sizes, transposed))
        return found


class Llama(Family):
    architecture, model_type = "LlamaForCausalLM", "llama"

    @staticmethod
    def fits(config):
        model = config["model"]
        same = (model["block"], model["attention"], model["attn_scale"]) == ("llama", "rope", "rsqrt")
        return same and not later(config, "qk_norm") and rope_dim(config) == head_dims(config)[0]

    @staticmethod
    def names():
        layer = "model.layers.{n}."
        yield "model.embed_tokens.weight", "embedding.weight", False
        for norm, theirs in (("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm")):
            yield f"{layer}{theirs}.weight", f"blocks.{{n}}.{norm}.weight", False
        for kind in ("weight", "bias"):
            for name in "qkvo":
                yield f"{layer}self_attn.{name}_proj.{kind}", f"blocks.{{n}}.attn.{name}.{kind}", False
            for name in ("gate", "up", "down"):
                yield f"{layer}mlp.{name}_proj.{kind}", f"blocks.{{n}}.mlp.{name}.{kind}", False
        yield "model.norm.weight", "final_norm.weight", False
        yield "lm_head.weight", "head.weight", False

    @staticmethod
    def keys(config):
        model = config["model"]
        return {
            "vocab_size": model["vocab"],
            "hidden_size": model["width"],
            "intermediate_size": model["ff_width"] or 4 * model["width"],
            "num_hidden_layers": model["layers"],
            "num_attention_heads": model["heads"],
            "num_key_value_heads": key_heads(config),
            "head_dim": model["width"] // model["heads"],
            "hidden_act": "silu",
            "max_position_embeddings": config["data"]["seq_len"],
            "rms_norm_eps": later(config, "norm_eps"),
            "rope_theta": float(model["rope_base"]),
            "tie_word_embeddings": model["tied"],
            "attention_bias": has_biases(config),
            "mlp_bias": has_biases(config),
            "attention_dropout": 0.0,
            "use_cache": True,
        }


class Gpt2(Family):
    architecture, model_type = "GPT2LMHeadModel", "gpt2"

    @staticmethod
    def fits(config):
        model = config["model"]
        same = (model["block"], model["attention"], model["attn_scale"]) == ("gpt", "learned", "rsqrt")
        plain = has_biases(config) and not later(config, "qk_norm")
        return same and plain and key_heads(config) == model["heads"]

    @staticmethod
    def names():
        layer, block = "transformer.h.{n}.", "blocks.{n}."
        yield "transformer.wte.weight", "embedding.weight", False
        yield "transformer.wpe.weight", POSITION_TABLE, False
        for kind in ("weight", "bias"):
            stored = kind == "weight"  # their Conv1D has its weight as [inputs, outputs]
            qkv = tuple(f"{block}attn.{name}.{kind}" for name in "qkv")
            yield f"{layer}attn.c_attn.{kind}", qkv, stored
            yield f"{layer}attn.c_proj.{kind}", f"{block}attn.o.{kind}", stored
            yield f"{layer}mlp.c_fc.{kind}", f"{block}mlp.up.{kind}", stored
            yield f"{layer}mlp.c_proj.{kind}", f"{block}mlp.down.{kind}", stored
            yield f"{layer}ln_1.{kind}", f"{block}norm1.{kind}", False
            yield f"{layer}ln_2.{kind}", f"{block}norm2.{kind}", False
            yield f"transformer.ln_f.{kind}", f"final_norm.{kind}", False
        yield "lm_head.weight", "head.weight", False

    @staticmethod
    def keys(config):
        model = config["model"]
        return {
            "vocab_size": model["vocab"],
            "n_embd": model["width"],
            "n_inner": model["ff_width"] or 4 * model["width"],
            "n_layer": model["layers"],
            "n_head": model["heads"],
            "n_positions": config["data"]["seq_len"],
            "activation_function": "gelu_new",
            "layer_norm_epsilon": later(config, "norm_eps"),
            "tie_word_embeddings": model["tied"],
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
            "scale_attn_weights": True,
            "use_cache": True,
        }


class Goat(Family):
    """modeling_goat.py, which keeps the names of the run's tensors."""

    architecture, model_type, files = "GoatForCausalLM", "train_gpt_goat", ("modeling_goat.py",)

    @staticmethod
    def fits(config):
        named = parts(config)
        return set(named) <= set(PARTS) and len(set(named)) == len(named)

    @classmethod
    def mapped(cls, config):
        return [Mapped(name, (name,), (shape,)) for name, shape in tensor_shapes(config).items()]

    @staticmethod
    def keys(config):
        model = config["model"]
        return {
            "auto_map": {
                "AutoConfig": "modeling_goat.GoatConfig",
                "AutoModelForCausalLM": "modeling_goat.GoatForCausalLM",
            },
            "vocab_size": model["vocab"],
            "hidden_size": model["width"],
            "intermediate_size": model["ff_width"] or 4 * model["width"],
            "num_hidden_layers": model["layers"],
            "num_attention_heads": model["heads"],
            "num_key_value_heads": key_heads(config),
            "max_position_embeddings": config["data"]["seq_len"],
            "tie_word_embeddings": model["tied"],
            "block": model["block"],
            "bias": has_biases(config),
            "qk_norm": later(config, "qk_norm"),
            "attention": model["attention"],
            "content_dim": head_dims(config)[0],
            "attention_scale": head_dims(config)[0] ** -0.5 if model["attn_scale"] == "rsqrt" else 1.0,
            "norm_eps": later(config, "norm_eps"),
            "rope_base": float(model["rope_base"]),
            "rope_dim": rope_dim(config),
            "train_length": config["data"]["seq_len"],
            "prior": prior_settings(config) if "goat" in parts(config) else None,
            "use_cache": True,
        }


FAMILIES = (Llama, Gpt2, Goat)


def family_of(config):
    """The class of `transformers` for a run's config. Raises DataError if none computes the same."""
    for family in FAMILIES:
        if family.fits(config):
            return family
    raise DataError(
        f'attention = "{config["model"]["attention"]}" cannot be exported: neither transformers nor '
        f"modeling_goat.py has it; attention may be none or a sum of {', '.join(PARTS)}, each of them once"
    )
