"""One whole training step of the model in float64 NumPy: forward, backward written by hand, global-norm
clipping and AdamW.

It follows the paper's equations and shares nothing with the trainer. The prior is used as it is defined, a T x T matrix that is added to
the logits; the trainer instead writes it into extra coordinates of q and k. Agreement of the two is what test_reference.py asserts.

    z_ij = sigma <q_i, k_j> + K_ij,   p_i. = softmax over j <= i of z_ij,   o_i = sum_j p_ij v_j
    K_ij = sum_r [ alpha_r cos(w_r (i-j)) + beta_r sin(w_r (i-j)) ] + u(j),   u(j) = lambda j + g(phi(j)) + b [j == 0]

A layer is a function that returns its output and a closure `backward`, which takes the gradient of that output, adds the gradients of the
layer's parameters to `Model.grads`, and returns the gradient of the layer's input.
"""

from dataclasses import dataclass

import numpy as np

LAYERNORM_EPS = 1e-5
DECAYED = ("embedding.weight", "attn.q.weight", "attn.k.weight", "attn.v.weight", "attn.o.weight", "mlp.up.weight", "mlp.down.weight")


@dataclass(frozen=True)
class ModelConfig:
    layers: int
    heads: int
    width: int
    attention: str  # "goat" or "none"
    train_length: int  # L_train
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
        return self.head_dim - (self.lane_dim or 2 * self.pos_rank + 2) * (self.attention == "goat")

    @classmethod
    def from_run(cls, config):
        """From a run's config.toml, parsed."""
        model, prior = config["model"], config["prior"]
        return cls(
            train_length=config["data"]["seq_len"],
            **{key: model[key] for key in ("layers", "heads", "width", "attention")},
            **{key: prior[key] for key in ("pos_rank", "abs_rank", "lane_dim", "base", "abs_base", "recency")},
        )


def frequencies(rank, base):
    """w_r = base^(-(r-1) / max(R-1, 1)), r = 1 .. R."""
    return base ** -(np.arange(rank) / max(rank - 1, 1))


def sink_features(length, config):
    """phi [length, 2M+2]: Fourier features of the position, and the position on a linear and on a
    logarithmic scale."""
    j = np.arange(length, dtype=np.float64)
    angle = np.outer(j, frequencies(config.abs_rank, config.abs_base))
    scales = [j / config.train_length, np.log1p(j) / np.log1p(config.train_length)]
    return np.column_stack([np.cos(angle), np.sin(angle), *scales])


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


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
        table = self.params["embedding.weight"]
        x = table[tokens]
        undo = []
        for layer in range(self.config.layers):
            for branch in (self.attention_branch, self.mlp_branch):
                y, backward = branch(f"blocks.{layer}", x)
                x = x + y
                undo.append(backward)
        y, norm_backward = self.layernorm("final_norm", x)
        loss, dlogits = cross_entropy(y @ table.T, targets)

        self.grads["embedding.weight"] += np.einsum("btv,btc->vc", dlogits, y)
        dx = norm_backward(dlogits @ table)
        for backward in reversed(undo):
            dx = dx + backward(dx)
        np.add.at(self.grads["embedding.weight"], tokens, dx)
        return loss, self.grads

    def attention_branch(self, block, x):
        normed, norm_backward = self.layernorm(f"{block}.norm1", x)
        y, backward = self.attention(f"{block}.attn", normed)
        return y, lambda dy: norm_backward(backward(dy))

    def mlp_branch(self, block, x):
        normed, norm_backward = self.layernorm(f"{block}.norm2", x)
        up, up_backward = self.linear(f"{block}.mlp.up", normed)
        active, gelu_backward = gelu(up)
        y, down_backward = self.linear(f"{block}.mlp.down", active)
        return y, lambda dy: norm_backward(up_backward(gelu_backward(down_backward(dy))))

    def linear(self, name, x):
        weight, bias = self.params[f"{name}.weight"], self.params[f"{name}.bias"]

        def backward(dy):
            self.grads[f"{name}.weight"] += np.einsum("bto,bti->oi", dy, x)
            self.grads[f"{name}.bias"] += dy.sum(axis=(0, 1))
            return dy @ weight

        return x @ weight.T + bias, backward

    def layernorm(self, name, x):
        weight, bias = self.params[f"{name}.weight"], self.params[f"{name}.bias"]
        rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + LAYERNORM_EPS)
        unit = (x - x.mean(axis=-1, keepdims=True)) * rstd

        def backward(dy):
            self.grads[f"{name}.weight"] += (dy * unit).sum(axis=(0, 1))
            self.grads[f"{name}.bias"] += dy.sum(axis=(0, 1))
            dunit = dy * weight
            return rstd * (dunit - dunit.mean(axis=-1, keepdims=True) - unit * (dunit * unit).mean(axis=-1, keepdims=True))

        return unit * weight + bias, backward

    def attention(self, name, x):
        batch, length, width = x.shape
        heads = self.config.heads
        sigma = self.config.content_dim**-0.5
        q, q_backward = self.linear(f"{name}.q", x)
        k, k_backward = self.linear(f"{name}.k", x)
        v, v_backward = self.linear(f"{name}.v", x)
        q, k, v = (t.reshape(batch, length, heads, -1) for t in (q, k, v))

        logits = sigma * np.einsum("bihc,bjhc->bhij", q, k)
        if self.config.attention == "goat":
            log_prior, prior_backward = self.prior(f"{name}.prior", length)
            logits = logits + log_prior
        causal = np.tri(length, dtype=bool)
        p = softmax(np.where(causal, logits, -np.inf))
        out = np.einsum("bhij,bjhd->bihd", p, v).reshape(batch, length, width)
        y, o_backward = self.linear(f"{name}.o", out)

        def backward(dy):
            dout = o_backward(dy).reshape(batch, length, heads, -1)
            dp = np.einsum("bihd,bjhd->bhij", dout, v)
            dz = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
            if self.config.attention == "goat":
                prior_backward(dz.sum(axis=0))
            dq = sigma * np.einsum("bhij,bjhc->bihc", dz, k)
            dk = sigma * np.einsum("bhij,bihc->bjhc", dz, q)
            dv = np.einsum("bhij,bihd->bjhd", p, dout)
            dq, dk, dv = (t.reshape(batch, length, -1) for t in (dq, dk, dv))
            return q_backward(dq) + k_backward(dk) + v_backward(dv)

        return y, backward

    def prior(self, name, length):
        """The log-prior K [H, T, T]. backward takes dK (zero above the diagonal) and has nothing to
        return."""
        relative, relative_backward = self.relative_prior(name, length)
        key_bias, key_bias_backward = self.key_bias(name, length)

        def backward(dlog_prior):
            relative_backward(dlog_prior)
            key_bias_backward(dlog_prior.sum(axis=1))

        return relative + key_bias[:, None, :], backward

    def relative_prior(self, name, length):
        """K_rel [H, T, T] = sum_r alpha_r cos(w_r (i-j)) + beta_r sin(w_r (i-j))."""
        alpha, beta = self.params[f"{name}.alpha"], self.params[f"{name}.beta"]
        learned = f"{name}.frequency" in self.params
        w = self.params[f"{name}.frequency"] if learned else frequencies(self.config.pos_rank, self.config.base)
        position = np.arange(length, dtype=np.float64)
        lag = position[:, None] - position[None, :]
        cos, sin = np.cos(w[:, None, None] * lag), np.sin(w[:, None, None] * lag)

        def backward(drelative):
            self.grads[f"{name}.alpha"] += np.einsum("hij,rij->hr", drelative, cos)
            self.grads[f"{name}.beta"] += np.einsum("hij,rij->hr", drelative, sin)
            if learned:
                weighted = drelative * lag
                self.grads[f"{name}.frequency"] += np.einsum("hij,hr,rij->r", weighted, beta, cos, optimize=True)
                self.grads[f"{name}.frequency"] -= np.einsum("hij,hr,rij->r", weighted, alpha, sin, optimize=True)

        return np.einsum("hr,rij->hij", alpha, cos) + np.einsum("hr,rij->hij", beta, sin), backward

    def key_bias(self, name, length):
        """u [H, T] = lambda j + g(phi(j)) + b [j == 0], where g is Linear -> SiLU -> Linear without a
        bias."""
        params = {key: self.params[f"{name}.{key}"] for key in ("sink.w1", "sink.b1", "sink.w2", "bump")}
        phi = sink_features(length, self.config)
        hidden = phi @ params["sink.w1"].T + params["sink.b1"]
        silu = hidden * sigmoid(hidden)
        u = params["sink.w2"] @ silu.T
        u[:, 0] += params["bump"]
        position = np.arange(length, dtype=np.float64)
        recency = self.config.recency
        if recency != "off":
            slope = self.params[f"{name}.slope"]
            u = u + np.outer(np.logaddexp(0, slope) if recency == "softplus" else slope, position)

        def backward(du):
            if recency != "off":
                self.grads[f"{name}.slope"] += (du @ position) * (sigmoid(slope) if recency == "softplus" else 1)
            self.grads[f"{name}.bump"] += du[:, 0]
            self.grads[f"{name}.sink.w2"] += du @ silu
            s = sigmoid(hidden)
            dhidden = (du.T @ params["sink.w2"]) * s * (1 + hidden * (1 - s))
            self.grads[f"{name}.sink.w1"] += dhidden.T @ phi
            self.grads[f"{name}.sink.b1"] += dhidden.sum(axis=0)

        return u, backward


def gelu(x):
    """GELU in its tanh form."""
    root = np.sqrt(2 / np.pi)
    tanh = np.tanh(root * (x + 0.044715 * x**3))

    def backward(dy):
        return dy * 0.5 * (1 + tanh + x * (1 - tanh**2) * root * (1 + 3 * 0.044715 * x**2))

    return 0.5 * x * (1 + tanh), backward


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

    def __init__(self, params, train):
        self.params = params
        self.train = train
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
            decay = self.train["weight_decay"] if name.endswith(DECAYED) else 0.0
            param -= lr * (unbiased_m / (np.sqrt(unbiased_v) + eps) + decay * param)
        return norm


def train(model, source, train_config):
    """Yields (loss, gradient norm) of each training step; step s reads the sequences s * batch .. (s + 1) *
    batch - 1 of `source`."""
    optimizer = AdamW(model.params, train_config)
    for step in range(train_config["steps"]):
        loss, grads = model.loss_and_gradients(*source.batch(step, train_config["batch"]))
        norm = optimizer.step(grads, learning_rate(step, train_config))
        yield loss, norm
