"""An attention layer of the package goat-attention (class GoatAttention) as a layer of train_gpt_goat.

Theirs computes, for causal self-attention on one-dimensional positions, a special case of docs/forward.md:
its sink MLP has one output and each head a gain (w2_h = gain_h w2; softmax ignores the output's bias), its
slope is a softplus. It takes 2R + 1 dimensions of a head for the prior (2R without a key bias), where the
program takes at least 2R + 2. So the layer's heads get more dimensions and its width more channels: it reads
and writes the first E of them, and the others count for nothing.
"""

from dataclasses import dataclass, replace

import numpy as np
from console import DataError, some

WAVES_BASE = 10000.0
CLAMPED = 1e6  # their bound on alpha and beta
UNTRAINED_GATE = {"prior_gate_scale_raw": -10.0, "prior_gate_bias": 10.0}
TENSORS = (
    "lambda_sym", "lambda_asym", "rel_freqs_base", "abs_freqs_base", "sink_gain", "sink_bump",
    "recency_slope_raw", *UNTRAINED_GATE,
    *(f"key_bias.{part}.{kind}" for part in ("fc1", "fc2") for kind in ("weight", "bias")),
    *(f"{part}.{kind}" for part in ("in_proj", "q_proj", "k_proj", "v_proj", "out_proj")
      for kind in ("weight", "bias")),
)  # fmt: skip


@dataclass(frozen=True)
class Layer:
    tensors: dict  # float32 by name after "blocks.N.attn."
    model: dict  # keys of [model] and [prior] that the layer needs
    prior: dict


@dataclass(frozen=True)
class Sizes:
    width: int  # E
    heads: int
    key_heads: int  # of their k, v and prior, which groups of heads share
    rank: int  # R
    modes: int  # M
    has_key_bias: bool
    head_dim: int  # d_h of ours

    @property
    def their_head_dim(self):
        return self.width // self.heads

    @property
    def content(self):
        return self.their_head_dim - 2 * self.rank - self.has_key_bias


def layer_of(name, state, heads, head_dim=0, prior_scale=1.0):
    """Layer of the state_dict of a GoatAttention, float32 arrays by name. name: of the layer, for messages;
    head_dim: dimensions of a head of ours, 0 for as few as it takes; prior_scale: their goat_prior_scale.
    Raises DataError for what the program does not have."""
    check_tensors(name, state)
    sizes = sizes_of(name, state, heads, head_dim)
    tensors = projections(name, state, sizes) | prior_tensors(name, state, sizes, prior_scale)
    base, frequency = relative_base(state["rel_freqs_base"])
    if frequency is not None:
        tensors["prior.frequency"] = frequency
    prior = {
        "pos_rank": max(sizes.rank, 1),
        "abs_rank": sizes.modes,
        "lane_dim": sizes.head_dim - sizes.content,
        "base": base,
        "abs_base": absolute_base(name, state, sizes),
        "recency": "softplus" if sizes.has_key_bias else "off",
        "learned_frequencies": frequency is not None,
        "sink_hidden": len(tensors["prior.sink.b1"]),
    }
    model = {"attention": "goat", "heads": heads, "width": heads * sizes.head_dim, "attn_scale": "rsqrt"}
    stored = {key: np.ascontiguousarray(value, np.float32) for key, value in tensors.items()}
    return Layer(stored, model, prior)


def check_tensors(name, state):
    for key, value in state.items():
        if not np.isfinite(value).all():
            raise DataError(f"{name}: tensor '{key}' holds values that are not finite")
    if "bias_k" in state or "bias_v" in state:
        raise DataError(f"{name}: add_bias_kv=True adds a key that no token has; the program has none")
    unknown = sorted(set(state) - set(TENSORS))
    if unknown:
        raise DataError(f"{name}: holds tensors that GoatAttention 0.1.1 does not have: {some(unknown, 5)}")
    for key, value in UNTRAINED_GATE.items():
        if key in state and not (state[key] == value).all():
            raise DataError(
                f"{name}: {key} is not {value:g} everywhere, so that prior_gate='query_norm' has been "
                "trained; the program's prior has no gate: take a layer with prior_gate='none'"
            )


def sizes_of(name, state, heads, head_dim):
    for key in ("lambda_sym", "out_proj.weight", "rel_freqs_base", "abs_freqs_base"):
        if key not in state:
            raise DataError(f"{name}: tensor '{key}' is missing; expected the state_dict of a GoatAttention")
    modes, width = state["lambda_sym"], len(state["out_proj.weight"])
    if modes.ndim != 2 or heads < 1 or width % heads or len(modes) < 1 or heads % len(modes):
        raise DataError(
            f"{name}: {heads} heads do not fit a width of {width} and a lambda_sym of {list(modes.shape)}; "
            "give --heads its num_heads"
        )
    has_key_bias = "key_bias.fc1.weight" in state
    key_heads, rank = modes.shape
    sizes = Sizes(width, heads, key_heads, rank, len(state["abs_freqs_base"]), has_key_bias, head_dim)
    least = sizes.content + 2 * max(rank, 1) + 2
    if sizes.content < 1:
        raise DataError(f"{name}: {heads} heads leave no dimension for content; give --heads its num_heads")
    if head_dim and head_dim < least:
        raise DataError(f"{name}: --head-dim {head_dim} is too small for this layer, which takes {least}")
    return replace(sizes, head_dim=head_dim or least)


# Projections


def projections(name, state, sizes):
    """attn.q, k, v and o."""
    rows = split_projections(name, state, sizes)
    shared = sizes.heads // sizes.key_heads  # query heads that share a key head; each gets its own copy here
    tensors = {}
    for part, kept in (("q", sizes.content), ("k", sizes.content), ("v", sizes.their_head_dim)):
        padded = sizes.head_dim if part == "v" else kept
        copies = 1 if part == "q" else shared
        for kind, value in rows[part].items():
            by_head = value.reshape(-1, sizes.their_head_dim, *value.shape[1:])[:, :kept]
            by_head = np.repeat(by_head, copies, 0)
            whole = grown(by_head, (sizes.heads, padded, *width_of(value, sizes)))
            tensors[f"{part}.{kind}"] = whole.reshape(sizes.heads * padded, *whole.shape[2:])
    weight = state["out_proj.weight"].reshape(sizes.width, sizes.heads, -1)
    width = sizes.heads * sizes.head_dim
    tensors["o.weight"] = grown(weight, (width, sizes.heads, sizes.head_dim)).reshape(width, width)
    if "out_proj.bias" in state:
        tensors["o.bias"] = grown(state["out_proj.bias"], (width,))
    return tensors


def width_of(value, sizes):
    """Of the inputs: () for a bias."""
    return (sizes.heads * sizes.head_dim,) if value.ndim == 2 else ()


def grown(value, shape):
    """The array at the start of one of zeros."""
    whole = np.zeros(shape, np.float32)
    whole[tuple(map(slice, value.shape))] = value
    return whole


def split_projections(name, state, sizes):
    """{part: {kind: rows}} of q, k and v, which may be stored in one."""
    keys = sizes.key_heads * sizes.their_head_dim
    parts = {part: {} for part in "qkv"}
    for kind in ("weight", "bias"):
        if f"in_proj.{kind}" in state:
            cut = np.split(state[f"in_proj.{kind}"], [sizes.width, sizes.width + keys])
            found = dict(zip("qkv", cut, strict=True))
        else:
            found = {part: state.get(f"{part}_proj.{kind}") for part in "qkv"}
        for part, value in found.items():
            if value is None and kind == "bias":
                continue
            expected = (sizes.width if part == "q" else keys, sizes.width)[: 2 if kind == "weight" else 1]
            if value is None or value.shape != expected:
                shown = "is missing" if value is None else f"has shape {list(value.shape)}"
                raise DataError(
                    f"{name}: the {kind} of its projection {part} {shown}, expected {list(expected)}: the "
                    "program has self-attention only (no kdim, no vdim)"
                )
            parts[part][kind] = value
    return parts


# The prior


def prior_tensors(name, state, sizes, scale):
    """attn.prior.*, but for frequencies of its own."""
    shared = sizes.heads // sizes.key_heads
    by_head = {key: np.repeat(state[key], shared, 0) for key in ("lambda_sym", "lambda_asym")}
    alpha, beta = (
        grown(np.clip(by_head[key], -CLAMPED, CLAMPED), (sizes.heads, max(sizes.rank, 1))) for key in by_head
    )
    tensors = {"prior.alpha": alpha, "prior.beta": beta}
    if not sizes.has_key_bias:
        nothing = {"bump": (sizes.heads,), "sink.w1": (1, 2 * sizes.modes + 2), "sink.b1": (1,)}
        nothing["sink.w2"] = (sizes.heads, 1)
        return tensors | {f"prior.{key}": np.zeros(shape, np.float32) for key, shape in nothing.items()}
    w1, w2 = state["key_bias.fc1.weight"], state["key_bias.fc2.weight"]
    if w1.shape[1] != 2 * sizes.modes + 2 or w2.shape != (1, len(w1)):
        raise DataError(f"{name}: its sink MLP has the shapes {list(w1.shape)} and {list(w2.shape)}")
    gain = np.repeat(state["sink_gain"], shared, 0)
    return tensors | {
        "prior.bump": scale * np.repeat(state["sink_bump"], shared, 0),
        "prior.sink.w1": w1,
        "prior.sink.b1": state["key_bias.fc1.bias"],
        "prior.sink.w2": scale * gain[:, None] * w2,
        "prior.slope": scaled_slope(name, np.repeat(state["recency_slope_raw"], shared, 0), scale),
    }


def scaled_slope(name, raw, scale):
    """rho with softplus(rho) = scale softplus(raw)."""
    if scale == 1:
        return raw
    if scale <= 0:
        raise DataError(f"{name}: goat_prior_scale is {scale:g}; a slope of ours is greater than 0")
    slope = scale * np.logaddexp(0, raw.astype(np.float64))
    return slope + np.log(-np.expm1(-slope))


def geometric(frequencies, base):
    """base^(-(r-1) / max(R-1, 1)) in float64, if that is what these float32 numbers are."""
    exact = base ** -(np.arange(len(frequencies)) / max(len(frequencies) - 1, 1))
    return np.allclose(frequencies, exact, rtol=2e-6, atol=0)


def base_of(frequencies):
    """The base of geometric frequencies, a round one if there is one; None if they are not geometric."""
    if len(frequencies) < 2:
        return WAVES_BASE if geometric(frequencies, WAVES_BASE) else None
    measured = 1 / float(frequencies[-1]) if frequencies[-1] > 0 else 0.0
    candidates = (float(f"{measured:.4g}"), measured)
    return next((base for base in candidates if base >= 1 and geometric(frequencies, base)), None)


def relative_base(frequencies):
    """(prior.base, None), or (the default, frequencies) where these are not geometric."""
    if len(frequencies) == 0:
        return WAVES_BASE, None
    base = base_of(frequencies)
    return (WAVES_BASE, frequencies) if base is None else (base, None)


def absolute_base(name, state, sizes):
    base = base_of(state["abs_freqs_base"])
    if base is None and sizes.has_key_bias:
        raise DataError(
            f"{name}: abs_freqs_base is no geometric sequence that begins with 1; the program has no other"
        )
    return base or WAVES_BASE
