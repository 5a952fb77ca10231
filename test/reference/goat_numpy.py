"""One whole training step of the model in float64 NumPy: forward, backward written by hand, global-norm
clipping and AdamW.

It follows docs/forward.md and shares nothing with the trainer. The prior is used as it is defined, a T x T
matrix that is added to the logits; the trainer instead writes it into extra coordinates of q and k. Agreement
of the two is what test_reference.py asserts.

    z_ij = sigma <q_i, k_j> + K_ij,   p_i. = softmax over j <= i of z_ij,   o_i = sum_j p_ij v_j
    K_ij = sum_r [ alpha_r cos(w_r (i-j)) + beta_r sin(w_r (i-j)) ] + u(j)
    u(j) = lambda j + g(phi(j)) + b [j == 0]

With "forget" z_ij also has F_ij = sum over l = j+1 .. i of log sigmoid(gate_l).

A layer is a function that returns its output and a closure `backward`, which takes the gradient of that
output, adds the gradients of the layer's parameters to `Model.grads`, and returns the gradient of the layer's
input.
"""

from dataclasses import dataclass, fields

import numpy as np

DECAYED = (
    ".embedding.weight",
    ".head.weight",
    *(f".attn.{name}.weight" for name in (*"qkvo", "forget")),
    *(f".mlp.{name}.weight" for name in ("gate", "up", "down")),
)


@dataclass(frozen=True)
class ModelConfig:
    layers: int
    heads: int
    width: int
    attention: str  # "none", or a sum of parts such as "goat+rope"
    train_length: int  # L_train
    block: str = "gpt"  # or "llama"
    kv_heads: int = 0  # H_k; 0: heads
    tied: bool = True
    bias: str = "auto"  # or "true" or "false"
    norm_eps: float = 1e-5
    qk_norm: bool = False
    rope_base: float = 10000.0
    rope_fraction: float = 1.0
    attn_scale: str = "rsqrt"  # or "none"
    pos_rank: int = 2  # R
    abs_rank: int = 8  # M
    lane_dim: int = 0  # d_p; 0: 2R + 2
    base: float = 10000.0
    abs_base: float = 10000.0
    recency: str = "free"  # "free", "softplus" or "off"

    @property
    def head_dim(self):
        return self.width // self.heads

    @property
    def content_dim(self):
        """d_c. The prior takes its coordinates from q and k, not from v."""
        return self.head_dim - (self.lane_dim or 2 * self.pos_rank + 2) * self.has("goat")

    def has(self, part):
        return part in self.attention.split("+")

    @property
    def log_prior(self):
        """Whether something is added to the logits."""
        return any(self.has(part) for part in ("goat", "alibi", "alibi_learned"))

    @property
    def rope_dim(self):
        """The first coordinates of a head, which rope turns."""
        fraction = self.rope_fraction if self.has("rope") or self.has("rope_pi") else 0
        return 2 * int(np.floor(fraction * self.content_dim / 2 + 0.5))

    @property
    def sigma(self):
        """The scale of the content logits."""
        return self.content_dim**-0.5 if self.attn_scale == "rsqrt" else 1.0

    @property
    def key_heads(self):
        return self.kv_heads or self.heads

    @property
    def biases(self):
        """Whether linear layers and LayerNorm add one."""
        return self.block == "gpt" if self.bias == "auto" else self.bias == "true"

    @property
    def head(self):
        """The tensor that gives the logits."""
        return "embedding.weight" if self.tied else "head.weight"

    @classmethod
    def from_run(cls, config):
        """From a run's config.toml, parsed. A key that an older run lacks has its default."""
        keys = config["model"] | config["prior"] | {"train_length": config["data"]["seq_len"]}
        return cls(**{field.name: keys[field.name] for field in fields(cls) if field.name in keys})


def frequencies(rank, base):
    """w_r = base^(-(r-1) / max(R-1, 1)), r = 1 .. R."""
    return base ** -(np.arange(rank) / max(rank - 1, 1))


def alibi_slopes(heads):
    """2^(-8/P), 2^(-16/P), .. for the largest power of two P up to `heads`, then every second one of 2P."""
    power = 2 ** int(np.log2(heads))
    slopes = [2.0 ** (-8 * k / power) for k in range(1, power + 1)]
    return np.array(slopes + [2.0 ** (-8 * k / (2 * power)) for k in range(1, 2 * (heads - power), 2)])


def sinusoids(length, width):
    """[length, C], of Vaswani et al., divided by sqrt(C): sin in even columns, cos in odd ones."""
    column = np.arange(width)
    angle = np.outer(np.arange(length), 10000.0 ** (-(column - column % 2) / width))
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle)) / np.sqrt(width)


def sink_features(length, config):
    """phi [length, 2M+2]: Fourier features of the position, and the position on a linear and on a
    logarithmic scale."""
    j = np.arange(length, dtype=np.float64)
    angle = np.outer(j, frequencies(config.abs_rank, config.abs_base))
    scales = [j / config.train_length, np.log1p(j) / np.log1p(config.train_length)]
    return np.column_stack([np.cos(angle), np.sin(angle), *scales])


def rotated(x, angle):
    """x [B, T, H, d]: the pair (x_r, x_{r + d/2}) at position p is turned by angle[p, r]. [T, d/2]"""
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def sum_of_groups(x, groups, axis):
    """The sums over equally many neighbours along the axis: [.., H, ..] -> [.., groups, ..]"""
    shape = list(x.shape)
    shape[axis : axis + 1] = [groups, shape[axis] // groups]
    return x.reshape(shape).sum(axis=axis + 1)


class Model:
    """params: name -> float64 array, with the names and shapes of model.safetensors."""

    def __init__(self, config, params):
        self.config = config
        self.params = {name: np.array(value, dtype=np.float64) for name, value in params.items()}
        self.grads = {}

    def loss_and_gradients(self, tokens, targets):
        """Mean negative log-likelihood in nats, and its gradient by every parameter. tokens, targets: [B,
        T]."""
        self.grads = {name: np.zeros_like(value) for name, value in self.params.items()}
        logits, backward = self.forward(tokens)
        loss, dlogits = cross_entropy(logits, targets)
        backward(dlogits)
        return loss, self.grads

    def token_losses(self, tokens, targets):
        """-log softmax(logits)[target] of every token, [B, T]."""
        logits, _ = self.forward(tokens)
        normalizer = np.logaddexp.reduce(logits, axis=-1)
        return normalizer - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]

    def forward(self, tokens):
        """Logits [B, T, V]. backward takes their gradient and has nothing to return."""
        length = tokens.shape[1]
        x = self.embedded(tokens)
        undo = []
        for layer in range(self.config.layers):
            for branch in (self.attention_branch, self.mlp_branch):
                y, backward = branch(f"blocks.{layer}", x)
                x = x + y
                undo.append(backward)
        y, norm_backward = self.norm("final_norm", x)
        head = self.params[self.config.head]

        def backward(dlogits):
            self.grads[self.config.head] += np.einsum("btv,btc->vc", dlogits, y)
            dx = norm_backward(dlogits @ head)
            for branch_backward in reversed(undo):
                dx = dx + branch_backward(dx)
            np.add.at(self.grads["embedding.weight"], tokens, dx)
            if self.config.has("learned"):
                self.grads["position_embedding.weight"][:length] += dx.sum(axis=0)

        return y @ head.T, backward

    def embedded(self, tokens):
        """The tokens' vectors, and those of their positions where there are any. [B, T, C]"""
        x = self.params["embedding.weight"][tokens]
        if self.config.has("sinusoidal"):
            x = x + sinusoids(tokens.shape[1], self.config.width)
        if self.config.has("learned"):
            x = x + self.params["position_embedding.weight"][: tokens.shape[1]]
        return x

    def attention_branch(self, block, x):
        normed, norm_backward = self.norm(f"{block}.norm1", x)
        y, backward = self.attention(f"{block}.attn", normed)
        return y, lambda dy: norm_backward(backward(dy))

    def mlp_branch(self, block, x):
        normed, norm_backward = self.norm(f"{block}.norm2", x)
        hidden = self.swiglu if self.config.block == "llama" else self.gelu
        active, hidden_backward = hidden(f"{block}.mlp", normed)
        y, down_backward = self.linear(f"{block}.mlp.down", active)
        return y, lambda dy: norm_backward(hidden_backward(down_backward(dy)))

    def gelu(self, name, x):
        """gelu(up(x)), GELU in its tanh form."""
        up, up_backward = self.linear(f"{name}.up", x)
        active, slope = gelu(up)
        return active, lambda dy: up_backward(dy * slope)

    def swiglu(self, name, x):
        """silu(gate(x)) * up(x)."""
        gate, gate_backward = self.linear(f"{name}.gate", x)
        up, up_backward = self.linear(f"{name}.up", x)
        active, slope = silu(gate)
        return active * up, lambda dy: gate_backward(dy * up * slope) + up_backward(dy * active)

    def linear(self, name, x, always_bias=False):
        weight, bias = self.params[f"{name}.weight"], self.config.biases or always_bias

        def backward(dy):
            self.grads[f"{name}.weight"] += np.einsum("bto,bti->oi", dy, x)
            self.bias_backward(name, dy, bias)
            return dy @ weight

        return self.add_bias(name, x @ weight.T, bias), backward

    def norm(self, name, x):
        """LayerNorm with the biased variance. In llama blocks RMSNorm, which does not subtract the mean and
        has no bias."""
        if self.config.block == "llama":
            return self.rms_norm(name, x)
        y, rms_backward = self.rms_norm(name, x - x.mean(axis=-1, keepdims=True))

        def backward(dy):
            self.bias_backward(name, dy, self.config.biases)
            dx = rms_backward(dy)
            return dx - dx.mean(axis=-1, keepdims=True)

        return self.add_bias(name, y, self.config.biases), backward

    def rms_norm(self, name, x):
        """Over the last axis."""
        weight = self.params[f"{name}.weight"]
        rstd = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config.norm_eps)
        unit = x * rstd

        def backward(dy):
            self.grads[f"{name}.weight"] += (dy * unit).sum(axis=tuple(range(x.ndim - 1)))
            dunit = dy * weight
            return rstd * (dunit - unit * (dunit * unit).mean(axis=-1, keepdims=True))

        return unit * weight, backward

    def add_bias(self, name, y, bias):
        return y + self.params[f"{name}.bias"] if bias else y

    def bias_backward(self, name, dy, bias):
        if bias:
            self.grads[f"{name}.bias"] += dy.sum(axis=(0, 1))

    def attention(self, name, x):
        batch, length, width = x.shape
        sigma, heads, key_heads = self.config.sigma, self.config.heads, self.config.key_heads
        q, q_backward = self.query_or_key(f"{name}.q", x)
        k, k_backward = self.query_or_key(f"{name}.k", x)
        v, v_backward = self.head_vectors(f"{name}.v", x)
        k, v = (np.repeat(y, heads // key_heads, axis=2) for y in (k, v))

        logits = sigma * np.einsum("bihc,bjhc->bhij", q, k)
        if self.config.log_prior:
            log_prior, prior_backward = self.prior(f"{name}.prior", length)
            logits = logits + log_prior
        if self.config.has("forget"):
            forgotten, forget_backward = self.forgotten(f"{name}.forget", x)
            logits = logits + forgotten
        causal = np.tri(length, dtype=bool)
        p = softmax(np.where(causal, logits, -np.inf))
        out = np.einsum("bhij,bjhd->bihd", p, v).reshape(batch, length, width)
        y, o_backward = self.linear(f"{name}.o", out)

        def backward(dy):
            dout = o_backward(dy).reshape(v.shape)
            dp = np.einsum("bihd,bjhd->bhij", dout, v)
            dz = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
            if self.config.log_prior:
                prior_backward(dz.sum(axis=0))
            dq = sigma * np.einsum("bhij,bjhc->bihc", dz, k)
            dk = sigma * np.einsum("bhij,bihc->bjhc", dz, q)
            dv = np.einsum("bhij,bihd->bjhd", p, dout)
            dk, dv = (sum_of_groups(gradient, key_heads, axis=2) for gradient in (dk, dv))
            dx = q_backward(dq) + k_backward(dk) + v_backward(dv)
            return dx + forget_backward(dz) if self.config.has("forget") else dx

        return y, backward

    def forgotten(self, name, x):
        """F [B, H, T, T], F_ij = sum over l = j+1 .. i of log sigmoid(gate_l); any number where j > i."""
        gate, gate_backward = self.linear(name, x, always_bias=True)
        kept = np.cumsum(-np.logaddexp(0, -gate), axis=1).transpose(0, 2, 1)  # [B, H, T], over l <= t

        def backward(dforgotten):
            dkept = dforgotten.sum(axis=-1) - dforgotten.sum(axis=-2)
            dlog = np.flip(np.cumsum(np.flip(dkept, axis=-1), axis=-1), axis=-1)  # over t >= l
            return gate_backward(dlog.transpose(0, 2, 1) * sigmoid(-gate))

        return kept[:, :, :, None] - kept[:, :, None, :], backward

    def head_vectors(self, name, x):
        """A projection of x: [B, T, H, d] to q, [B, T, H_k, d] to k and v."""
        heads = self.config.heads if name.endswith(".q") else self.config.key_heads
        y, backward = self.linear(name, x)
        return y.reshape(*x.shape[:2], heads, -1), lambda dy: backward(dy.reshape(y.shape))

    def query_or_key(self, name, x):
        """A projection to q or k. With qk_norm the norm of each head's vector follows, and with rope a
        rotation of its first coordinates by the position."""
        y, backward = self.head_vectors(name, x)
        if self.config.qk_norm:
            y, norm_backward = self.rms_norm(f"{name}_norm", y)
            return self.turned(y, lambda dy: backward(norm_backward(dy)))
        return self.turned(y, backward)

    def turned(self, y, backward):
        half, length = self.config.rope_dim // 2, y.shape[1]
        if half == 0:
            return y, backward
        position = np.arange(length, dtype=np.float64)
        if self.config.has("rope_pi") and length > self.config.train_length:
            position *= (self.config.train_length - 1) / (length - 1)
        angle = np.outer(position, self.config.rope_base ** -(np.arange(half) / half))

        def turn(z, angle):
            return np.concatenate([rotated(z[..., : 2 * half], angle), z[..., 2 * half :]], axis=-1)

        return turn(y, angle), lambda dy: backward(turn(dy, -angle))

    def prior(self, name, length):
        """The log-prior K [H, T, T]. backward takes dK (zero above the diagonal) and has nothing to
        return."""
        slopes, slopes_backward = self.slopes(name)
        position = np.arange(length, dtype=np.float64)
        log_prior = np.broadcast_to(np.outer(slopes, position)[:, None, :], (len(slopes), length, length))
        if not self.config.has("goat"):
            return log_prior, lambda dlog_prior: slopes_backward(dlog_prior.sum(axis=1) @ position)
        relative, relative_backward = self.relative_prior(name, length)
        key_bias, key_bias_backward = self.key_bias(name, length)
        key_bias = np.repeat(key_bias, self.config.heads // self.config.key_heads, axis=0)

        def backward(dlog_prior):
            relative_backward(dlog_prior)
            key_bias_backward(sum_of_groups(dlog_prior.sum(axis=1), self.config.key_heads, axis=0))
            slopes_backward(dlog_prior.sum(axis=1) @ position)

        return log_prior + relative + key_bias[:, None, :], backward

    def slopes(self, name):
        """lambda [H]: softmax cannot tell lambda (j - i) from lambda j."""
        if self.config.has("alibi"):
            return alibi_slopes(self.config.heads), lambda dslopes: None
        trained = self.config.has("alibi_learned")
        if not trained and self.config.recency == "off":
            return np.zeros(self.config.heads), lambda dslopes: None
        slope = self.params[f"{name}.slope"]
        softplus = trained or self.config.recency == "softplus"

        def backward(dslopes):
            self.grads[f"{name}.slope"] += dslopes * (sigmoid(slope) if softplus else 1)

        return np.logaddexp(0, slope) if softplus else slope, backward

    def relative_prior(self, name, length):
        """K_rel [H, T, T] = sum_r alpha_r cos(w_r (i-j)) + beta_r sin(w_r (i-j))."""
        alpha, beta = self.params[f"{name}.alpha"], self.params[f"{name}.beta"]
        learned = self.params.get(f"{name}.frequency")
        w = frequencies(self.config.pos_rank, self.config.base) if learned is None else learned
        position = np.arange(length, dtype=np.float64)
        lag = position[:, None] - position[None, :]
        cos, sin = np.cos(w[:, None, None] * lag), np.sin(w[:, None, None] * lag)

        def backward(drelative):
            self.grads[f"{name}.alpha"] += np.einsum("hij,rij->hr", drelative, cos)
            self.grads[f"{name}.beta"] += np.einsum("hij,rij->hr", drelative, sin)
            if learned is not None:
                by_angle = beta[:, :, None, None] * cos - alpha[:, :, None, None] * sin
                self.grads[f"{name}.frequency"] += np.einsum("hij,hrij->r", drelative * lag, by_angle)

        return np.einsum("hr,rij->hij", alpha, cos) + np.einsum("hr,rij->hij", beta, sin), backward

    def key_bias(self, name, length):
        """[H_k, T] = g(phi(j)) + b [j == 0], where g is Linear -> SiLU -> Linear without a bias."""
        params = {key: self.params[f"{name}.{key}"] for key in ("sink.w1", "sink.b1", "sink.w2", "bump")}
        phi = sink_features(length, self.config)
        hidden, hidden_slope = silu(phi @ params["sink.w1"].T + params["sink.b1"])
        u = params["sink.w2"] @ hidden.T
        u[:, 0] += params["bump"]

        def backward(du):
            self.grads[f"{name}.bump"] += du[:, 0]
            self.grads[f"{name}.sink.w2"] += du @ hidden
            dinput = (du.T @ params["sink.w2"]) * hidden_slope
            self.grads[f"{name}.sink.w1"] += dinput.T @ phi
            self.grads[f"{name}.sink.b1"] += dinput.sum(axis=0)

        return u, backward


def silu(x):
    """x sigmoid(x), and its derivative."""
    s = sigmoid(x)
    return x * s, s * (1 + x * (1 - s))


def gelu(x):
    """GELU in its tanh form, and its derivative."""
    root = np.sqrt(2 / np.pi)
    tanh = np.tanh(root * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + tanh), 0.5 * (1 + tanh + x * (1 - tanh**2) * root * (1 + 3 * 0.044715 * x**2))


def cross_entropy(logits, targets):
    """Mean of -log softmax(logits)[target], and its gradient by the logits."""
    p = softmax(logits)
    at_target = (*np.indices(targets.shape), targets)
    loss = -np.log(p[at_target]).mean()
    p[at_target] -= 1
    return float(loss), p / targets.size


def learning_rate(step, train):
    """Of 0-based `step`: linear warm-up, then a cosine that reaches min_lr at the last step. train: the
    [train] table of config.toml."""
    peak, floor, warmup = train["lr"], train["min_lr"], train["warmup"]
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup + 1) / (train["steps"] - warmup)
    return floor + (peak - floor) * (1 + np.cos(np.pi * progress)) / 2


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019) after clipping by the global 2-norm of the
    gradients."""

    def __init__(self, params, train, lr_scales):
        self.params = params
        self.train = train
        self.lr_scales = lr_scales  # {part of a name: multiple of the learning rate}
        self.updates = 0
        self.m = {name: np.zeros_like(value) for name, value in params.items()}
        self.v = {name: np.zeros_like(value) for name, value in params.items()}

    def step(self, grads, lr):
        """Updates the parameters in place. Returns the norm before clipping."""
        beta1, beta2, eps, clip = (self.train[key] for key in ("beta1", "beta2", "eps", "clip"))
        norm = float(np.sqrt(sum(np.sum(grad**2) for grad in grads.values())))
        scale = min(1.0, clip / norm) if clip > 0 else 1.0
        self.updates += 1
        for name, param in self.params.items():
            g = scale * grads[name]
            self.m[name] = beta1 * self.m[name] + (1 - beta1) * g
            self.v[name] = beta2 * self.v[name] + (1 - beta2) * g**2
            unbiased_m = self.m[name] / (1 - beta1**self.updates)
            unbiased_v = self.v[name] / (1 - beta2**self.updates)
            decay = self.train["weight_decay"] if f".{name}".endswith(DECAYED) else 0.0
            rate = lr * next((scale for part, scale in self.lr_scales.items() if part in name), 1.0)
            param -= rate * (unbiased_m / (np.sqrt(unbiased_v) + eps) + decay * param)
        return norm


def train(model, source, train_config, prior_config):
    """Yields (loss, gradient norm) of each training step; step s reads the sequences s * batch .. (s + 1) *
    batch - 1 of `source`. train_config, prior_config: the tables [train] and [prior] of config.toml."""
    lr_scales = {".prior.": prior_config["lr_scale"], ".forget.": prior_config["forget_lr_scale"]}
    optimizer = AdamW(model.params, train_config, lr_scales)
    for step in range(train_config["steps"]):
        loss, grads = model.loss_and_gradients(*source.batch(step, train_config["batch"]))
        norm = optimizer.step(grads, learning_rate(step, train_config))
        yield loss, norm
