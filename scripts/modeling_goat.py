"""A model trained by train_gpt_goat, for `transformers`: AutoModelForCausalLM.from_pretrained(FOLDER,
trust_remote_code=True). Needs torch and transformers, and no other file.

Tensors have the names of the trainer's model.safetensors. config.attention is "none" or a sum of PARTS, as in
"goat+rope". A part adds vectors to the stream (sinusoidal, learned), turns q and k (rope, rope_pi), or adds
to each logit of a query i and a key j what depends on the positions alone (alibi, alibi_learned, goat) or on
what the tokens between them forget (forget):

    z_ij = scale <q_i, k_j> + K_ij + F_ij
    K_ij = sum_r [alpha_r cos(w_r (i-j)) + beta_r sin(w_r (i-j))] + lambda (j-i) + g(phi(j)) + bump [j == 0]
    F_ij = sum over l = j+1 .. i of log sigmoid(<w, x_l> + b)

(softmax ignores -lambda i; alibi and alibi_learned have lambda alone). Heads of queries may share heads of
keys and values, and with them g and bump. Positions count from the first token
that attention_mask does not hide.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

LOGIT_PARTS = ("goat", "alibi", "alibi_learned")
ROTATIONS = ("rope", "rope_pi")
PARTS = (*LOGIT_PARTS, *ROTATIONS, "forget", "sinusoidal", "learned")
MOST_BIASES = 1 << 25  # elements of K + F that are made at a time
# How the cache is called in the outputs of this version of transformers.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class GoatConfig(PretrainedConfig):
    """block: "gpt" or "llama"; bias: whether linear layers and LayerNorm have one, None for what the block
    has; qk_norm: whether the content of q and k is normed; num_key_value_heads: None for one a head of
    queries; attention: "none" or a sum of PARTS; content_dim: dimensions of a head's q and k;
    attention_scale: of the content logits; rope_dim: dimensions of a head that rope turns, its first ones;
    train_length: L of phi and of rope_pi, and the number of learned positions; prior: pos_rank, abs_rank,
    base, abs_base, recency, learned_frequencies, sink_hidden."""

    model_type = "train_gpt_goat"
    keys_to_ignore_at_inference = [CACHE]

    def __init__(
        self,
        vocab_size=50257,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=None,
        max_position_embeddings=2048,
        block="gpt",
        bias=None,
        qk_norm=False,
        attention="none",
        content_dim=64,
        attention_scale=0.125,
        norm_eps=1e-5,
        rope_base=10000.0,
        rope_dim=64,
        train_length=2048,
        prior=None,
        use_cache=True,
        tie_word_embeddings=True,
        **kwargs,
    ):
        self.parts = () if attention == "none" else tuple(attention.split("+"))
        if block not in ("gpt", "llama") or not set(self.parts) <= set(PARTS):
            raise ValueError(f"block={block!r}, attention={attention!r}: modeling_goat.py does not have it")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.block = block
        self.bias = block == "gpt" if bias is None else bias
        self.qk_norm = qk_norm
        self.attention = attention
        self.content_dim = content_dim
        self.attention_scale = attention_scale
        self.norm_eps = norm_eps
        self.rope_base = rope_base
        self.rope_dim = rope_dim
        self.train_length = train_length
        self.prior = prior
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)


@dataclass
class Places:
    """Where queries and keys stand. The first dimension is 1 where all sequences have the same positions.

    query [B or 1, Q], key [B or 1, S]: positions, int64. length [B or 1, 1]: tokens of the whole text, of
    which some may still be to come. index [Q]: of the queries among the keys. seen [B, S]: keys that
    attention_mask shows, or None for all of them.
    """

    query: torch.Tensor
    key: torch.Tensor
    length: torch.Tensor
    index: torch.Tensor
    seen: torch.Tensor | None

    @classmethod
    def of(cls, mask, past, count, device, total_length=None):
        """`past` keys are cached, `count` tokens are new. mask: [B, past + count], 1 for tokens, or None.
        total_length: columns that the text will have in the end, if that is known."""
        total = past + count
        index = torch.arange(past, total, device=device)
        if mask is not None and mask.shape[-1] != total:
            raise ValueError(
                f"attention_mask has {mask.shape[-1]} columns, expected {total} (with the cached ones)"
            )
        if mask is None or bool(mask.all()):
            key, seen = torch.arange(total, device=device)[None], None
            length = torch.full((1, 1), total, device=device)
        else:
            seen = mask.bool()
            key = (seen.long().cumsum(-1) - 1).clamp(min=0)
            length = seen.sum(-1, keepdim=True)
        to_come = max(total_length - total, 0) if total_length is not None else 0
        return cls(key[:, past:], key, length + to_come, index, seen)

    def allowed(self, rows):
        """[B or 1, 1, rows, S]: which keys the queries of a slice see. Each sees itself, so that a hidden
        token has finite values too."""
        index = self.index[rows, None]
        keys = torch.arange(self.key.shape[1], device=index.device)
        causal = (keys <= index)[None, None]
        return causal if self.seen is None else causal & self.seen[:, None, None] | (keys == index)


def waves(positions, frequency):
    """cos and sin of position times frequency, float32; the angle is formed in float64."""
    angle = positions[..., None].double() * frequency.double()
    return angle.cos().float(), angle.sin().float()


def fourier(rank, base, device):
    """base^(-(r-1) / max(R-1, 1)), r = 1 .. R, float64."""
    return base ** -(torch.arange(rank, dtype=torch.float64, device=device) / max(rank - 1, 1))


def alibi_slopes(heads):
    """2^(-8k/P), k = 1 .. P, for the greatest power of two P up to `heads`, then every second one of 2P."""
    power = 1 << heads.bit_length() - 1
    first = [2 ** (-8 * k / power) for k in range(1, power + 1)]
    return torch.tensor(first + [2 ** (-4 * k / power) for k in range(1, 2 * (heads - power), 2)])


def sinusoids(position, width):
    """[.., C] of positions [..], float32: sin and cos in turn, divided by sqrt(C)."""
    column = torch.arange(width, device=position.device)
    angle = position[..., None].double() * 10000.0 ** (-(column - column % 2).double() / width)
    return (torch.where(column % 2 == 0, angle.sin(), angle.cos()) / math.sqrt(width)).float()


class Sink(nn.Module):
    """g(phi(j)) = w2 silu(w1 phi(j) + b1)."""

    def __init__(self, heads, hidden, features):
        super().__init__()
        self.w1 = nn.Parameter(torch.zeros(hidden, features))
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.zeros(heads, hidden))

    def forward(self, phi):
        return F.silu(phi @ self.w1.float().T + self.b1.float()) @ self.w2.float().T


class Prior(nn.Module):
    """The log-prior K of a layer's heads: the slope of one of LOGIT_PARTS, and the rest of goat."""

    def __init__(self, config):
        super().__init__()
        self.parts, self.settings = config.parts, config.prior
        self.heads, self.train_length = config.num_attention_heads, config.train_length
        self.key_heads = config.num_key_value_heads
        if "goat" in self.parts:
            self._make_goat()
        if "alibi_learned" in self.parts or "goat" in self.parts and self.settings["recency"] != "off":
            self.slope = nn.Parameter(torch.zeros(self.heads))

    def _make_goat(self):
        settings, rank = self.settings, self.settings["pos_rank"]
        self.alpha = nn.Parameter(torch.zeros(self.heads, rank))
        self.beta = nn.Parameter(torch.zeros(self.heads, rank))
        self.bump = nn.Parameter(torch.zeros(self.key_heads))
        self.sink = Sink(self.key_heads, settings["sink_hidden"], 2 * settings["abs_rank"] + 2)
        if settings["learned_frequencies"]:
            self.frequency = nn.Parameter(torch.ones(rank))

    def features(self, position):
        """phi [.., 2M+2], float32."""
        settings = self.settings
        frequency = fourier(settings["abs_rank"], settings["abs_base"], position.device)
        j, length = position.double(), torch.tensor(self.train_length, dtype=torch.float64)
        scales = torch.stack([j / length, j.log1p() / length.log1p()], -1)
        return torch.cat([*waves(position, frequency), scales.float()], -1)

    def slopes(self):
        """lambda [H], float32, or None."""
        if "alibi" in self.parts:
            return alibi_slopes(self.heads)
        if not hasattr(self, "slope"):
            return None
        positive = "alibi_learned" in self.parts or self.settings["recency"] == "softplus"
        return F.softplus(self.slope.float()) if positive else self.slope.float()

    def keys(self, position):
        """What a key adds in goat: its waves [.., S, 2R] and its own bias [.., H, S], without the slope; None
        without goat."""
        if "goat" not in self.parts:
            return None
        settings = self.settings
        frequency = (
            self.frequency
            if settings["learned_frequencies"]
            else fourier(settings["pos_rank"], settings["base"], position.device)
        )
        bias = self.sink(self.features(position)) + (position == 0)[..., None] * self.bump.float()
        bias = bias.transpose(-1, -2).repeat_interleave(self.heads // self.key_heads, -2)
        return torch.cat(waves(position, frequency), -1), bias

    def forward(self, query, key, keys, rows):
        """K [.., H, Q, S] up to a constant of each query, for a slice of the queries: the last keys. query
        [.., Q] and key [.., S] are positions, keys of these by self.keys()."""
        bias = 0 if keys is None else self.goat(*keys, query.shape[-1], rows)
        slope = self.slopes()
        if slope is None:
            return bias
        lag = (key[..., None, :] - query[..., rows, None]).float().unsqueeze(-3)
        return bias + slope.to(lag.device)[:, None, None] * lag

    def goat(self, key_waves, key_bias, queries, rows):
        cos, sin = key_waves[..., -queries:, :][..., rows, :].chunk(2, -1)
        cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
        alpha, beta = self.alpha.float()[:, None], self.beta.float()[:, None]
        lanes = torch.cat([alpha * cos + beta * sin, alpha * sin - beta * cos], -1)
        return lanes @ key_waves.unsqueeze(-3).transpose(-1, -2) + key_bias.unsqueeze(-2)


class Rotation:
    """Rotary embedding of the first d = rope_dim dimensions: the pair (x_r, x_{r + d/2}) at position p turns
    by p * base^(-2r/d). rope_pi scales p by (L - 1) / (T - 1) in a text of T tokens that is longer than L."""

    def __init__(self, config):
        self.dim, self.base, self.train_length = config.rope_dim, config.rope_base, config.train_length
        self.interpolates = "rope_pi" in config.parts

    def __call__(self, x, position, length):
        """x [B, H, Q, d_c], position [B or 1, Q], length [B or 1, 1]."""
        half = self.dim // 2
        steps = torch.arange(half, dtype=torch.float64, device=x.device)
        if self.interpolates:
            squeezed = (self.train_length - 1) / (length - 1).clamp(min=1).double()
            position = position * torch.where(length > self.train_length, squeezed, 1.0)
        cos, sin = (wave.unsqueeze(1) for wave in waves(position, self.base ** -(steps / half)))
        first, second, rest = x.float().split([half, half, x.shape[-1] - self.dim], -1)
        turned = [first * cos - second * sin, second * cos + first * sin, rest]
        return torch.cat(turned, -1).to(x.dtype)


class Norm(nn.Module):
    """LayerNorm where `centred`, else RMSNorm, which has no bias; computed in float32."""

    def __init__(self, config, size=None, centred=None):
        super().__init__()
        size = size or config.hidden_size
        self.eps, self.centred = config.norm_eps, config.block == "gpt" if centred is None else centred
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if self.centred and config.bias else None

    def forward(self, x):
        y, weight = x.float(), self.weight.float()
        if self.centred:
            bias = None if self.bias is None else self.bias.float()
            y = F.layer_norm(y, y.shape[-1:], weight, bias, self.eps)
        else:
            y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * weight
        return y.to(x.dtype)


def stored_as(dtype, x):
    """float32 x [.., n] as a tensor of `dtype` that loses nothing: [.., 2n] where a number has 16 bits."""
    return x.to(dtype) if dtype.itemsize >= 4 else x.contiguous().view(dtype)


def restored(stored):
    """x of stored_as, in float64."""
    return (stored if stored.element_size() >= 4 else stored.contiguous().view(torch.float32)).double()


class Forget(nn.Linear):
    """The gates of "forget", one a head of queries. The cache has log sigmoid(gate) of each token beside its
    v, so that it follows whatever is done to a cache; sums of them are formed in float64."""

    def __init__(self, config):
        super().__init__(config.hidden_size, config.num_attention_heads)
        self.key_heads = config.num_key_value_heads

    def beside(self, v, x, places):
        """v [B, H_k, Q, d_h] of the tokens x [B, Q, C], and log sigmoid of the gates of its heads. A hidden
        token forgets nothing."""
        gate = F.linear(x.float(), self.weight.float(), self.bias.float())
        forgotten = F.logsigmoid(gate.double())
        if places.seen is not None:
            forgotten = forgotten.masked_fill(~places.seen[:, -x.shape[1] :, None], 0.0)
        forgotten = forgotten.float().unflatten(-1, (self.key_heads, -1)).transpose(1, 2)
        return torch.cat([v, stored_as(v.dtype, forgotten)], -1)

    def split(self, stored, size):
        """v [B, H_k, S, size], and the sums of log sigmoid up to each token, float64 [B, H, S]."""
        sums = restored(stored[..., size:]).cumsum(-2)
        return stored[..., :size], sums.transpose(-1, -2).flatten(1, 2)


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.layer, self.scale = layer, config.attention_scale
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        width, content, bias = config.hidden_size, config.content_dim, config.bias
        self.head_dim = width // self.heads
        self.q = nn.Linear(width, self.heads * content, bias=bias)
        self.k = nn.Linear(width, self.key_heads * content, bias=bias)
        self.v = nn.Linear(width, self.key_heads * self.head_dim, bias=bias)
        self.o = nn.Linear(width, width, bias=bias)
        self.q_norm = Norm(config, content, centred=False) if config.qk_norm else None
        self.k_norm = Norm(config, content, centred=False) if config.qk_norm else None
        self.rotation = Rotation(config) if set(config.parts) & set(ROTATIONS) else None
        self.prior = Prior(config) if set(config.parts) & set(LOGIT_PARTS) else None
        self.forget = Forget(config) if "forget" in config.parts else None

    def forward(self, x, places, cache):
        q, k, v = self.vectors(x)
        rotation, sums = self.rotation, None
        if rotation is not None:
            q = rotation(q, places.query, places.length)
            if not rotation.interpolates:
                k = rotation(k, places.query, places.length)
        if self.forget is not None:
            v = self.forget.beside(v, x, places)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        if self.forget is not None:
            v, sums = self.forget.split(v, self.head_dim)
        if rotation is not None and rotation.interpolates:  # its angles change while a text grows
            k = rotation(k, places.key, places.length)
        if self.prior is None and sums is None:
            out = self.attend(q, k, v, places)
        else:
            out = self.attend_with_bias(q, k, v, places, sums)
        return self.o(out.transpose(1, 2).flatten(2))

    def vectors(self, x):
        """q [B, H, Q, d_c], k [B, H_k, Q, d_c], v [B, H_k, Q, d_h], before positions."""
        q = self.q(x).unflatten(-1, (self.heads, -1))
        k, v = (linear(x).unflatten(-1, (self.key_heads, -1)) for linear in (self.k, self.v))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def product(self, q, k, v, mask, causal=False):
        grouped = self.heads != self.key_heads
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, scale=self.scale, enable_gqa=grouped
        )

    def attend(self, q, k, v, places):
        causal = places.seen is None and q.shape[2] == k.shape[2]
        alone = places.seen is None and q.shape[2] == 1
        return self.product(q, k, v, None if causal or alone else places.allowed(slice(None)), causal)

    def attend_with_bias(self, q, k, v, places, sums):
        """In blocks of queries: K and F take memory linear in the number of keys."""
        queries, keys = q.shape[2], None if self.prior is None else self.prior.keys(places.key)
        sequences = len(places.key) if sums is None else len(q)
        rows = max(1, MOST_BIASES // (sequences * self.heads * k.shape[2]))
        out = []
        for begin in range(0, queries, rows):
            block = slice(begin, begin + rows)
            bias = 0 if self.prior is None else self.prior(places.query, places.key, keys, block)
            if sums is not None:
                bias = bias + (sums[..., -queries:][..., block, None] - sums[..., None, :]).float()
            bias = bias.masked_fill(~places.allowed(block), -torch.inf)
            bias = (bias - bias.amax(-1, keepdim=True)).to(q.dtype)  # small where it counts, for bf16
            out.append(self.product(q[:, :, block], k, v, bias.expand(len(q), -1, -1, -1)))
        return torch.cat(out, 2)


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, hidden, bias = config.hidden_size, config.intermediate_size, config.bias
        self.gate = None if config.block == "gpt" else nn.Linear(width, hidden, bias=bias)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        if self.gate is None:
            return self.down(F.gelu(self.up(x), approximate="tanh"))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.norm1, self.attn = Norm(config), Attention(config, layer)
        self.norm2, self.mlp = Norm(config), Mlp(config)

    def forward(self, x, places, cache):
        x = x + self.attn(self.norm1(x), places, cache)
        return x + self.mlp(self.norm2(x))


class GoatForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = GoatConfig
    _no_split_modules = ["Block"]
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        in_fp32 = ["norm1", "norm2", "final_norm"] + ["q_norm", "k_norm"] * config.qk_norm
        in_fp32 += ["prior"] * bool({"goat", "alibi_learned"} & set(config.parts))
        self._keep_in_fp32_modules_strict = in_fp32 + ["forget"] * ("forget" in config.parts)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        learned = "learned" in config.parts
        rows = (config.train_length, config.hidden_size)
        self.position_embedding = nn.Embedding(*rows) if learned else None
        self.blocks = nn.ModuleList(Block(config, n) for n in range(config.num_hidden_layers))
        self.final_norm = Norm(config)
        tied = config.tie_word_embeddings
        self.head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        """Of what a checkpoint lacks. The prior, which starts at zero, and norms are as they were made."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def get_input_embeddings(self):
        return self.embedding

    def set_input_embeddings(self, value):
        self.embedding = value

    def get_output_embeddings(self):
        return self.head

    def set_output_embeddings(self, value):
        self.head = value

    def add_positions(self, x, position):
        """x [B, Q, C], and the vectors of the positions [B or 1, Q] where there are any."""
        if "sinusoidal" in self.config.parts:
            x = (x.float() + sinusoids(position, x.shape[-1])).to(x.dtype)
        if self.position_embedding is None:
            return x
        rows = self.config.train_length
        if int(position.max()) >= rows:
            raise ValueError(f"this model has learned {rows} positions and takes no longer texts")
        return x + self.position_embedding(position)

    def generate(self, inputs=None, generation_config=None, **kwargs):
        """As in GenerationMixin. rope_pi is told how long the text may get, which fixes its angles."""
        if "rope_pi" in self.config.parts and kwargs.get("total_length") is None:
            kwargs["total_length"] = self.longest_text(inputs, generation_config, kwargs)
        return super().generate(inputs, generation_config, **kwargs)

    def longest_text(self, inputs, generation_config, kwargs):
        """Tokens of the prompt and those asked for; None if no number is given."""
        settings = generation_config or self.generation_config
        prompts = (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
        prompt = next((prompt for prompt in prompts if prompt is not None), None)
        asked = kwargs.get("max_new_tokens", settings.max_new_tokens)
        if prompt is not None and asked is not None:
            return prompt.shape[1] + asked
        return kwargs.get("max_length", settings.max_length)

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        past_key_values=None,
        cache=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        return_dict=None,
        total_length=None,
        **kwargs,
    ):
        """attention_mask: [B, cached + new tokens], 0 for padding, on either side. cache or past_key_values,
        its older name: of the tokens before. labels: -100 where no loss counts; the logits of token t are
        held against label t + 1. total_length: tokens that the text will have in the end, padding included,
        for rope_pi; without it those that are there."""
        if kwargs.get("position_ids") is not None:
            raise ValueError("position_ids are not read: positions follow from attention_mask")
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache is None:
            use_cache = self.config.use_cache
        if cache is None:
            cache = DynamicCache() if use_cache and past_key_values is None else past_key_values
        past = 0 if cache is None else cache.get_seq_length()
        places = Places.of(attention_mask, past, x.shape[1], x.device, total_length)
        x = self.add_positions(x, places.query)
        for block in self.blocks:
            x = block(x, places, cache)
        x = self.final_norm(
            x[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else x[:, logits_to_keep]
        )
        logits = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        loss = None
        if labels is not None:
            shifted = labels[:, 1:].reshape(-1).to(logits.device)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), shifted)
        kept = {CACHE: cache} if use_cache else {}
        if return_dict is False:
            return tuple(part for part in (loss, logits, *kept.values()) if part is not None)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **kept)
