"""The attention prior that each head of a layer has learned, and the figure of it."""

import math
from dataclasses import dataclass

import numpy as np
from console import DataError, UsageError
from figure_file import ACCENT, DIVERGING, LINE, SEQUENTIAL, STYLE, heading, plt
from free_memory import free_memory
from matplotlib.colors import LogNorm
from run_reader import Checkpoint, open_checkpoint

LONGEST_DEFAULT = 512  # positions shown unless --length says otherwise
FIRST_ROW = 16  # statistics leave out the first rows, where a few keys hold all the mass whatever the prior
PROBABILITY_FLOOR = 1e-3  # smaller ones share the darkest colour
# Bytes for each of the length x length cells, measured (test_plot_prior.py): what the two pictures of a
# head keep, and what comes and goes while one is computed and drawn.
KEPT_BYTES, WORKING_BYTES = 20, 100


@dataclass(frozen=True)
class PriorMatrices:
    """The log-prior K of every head of a layer, in parts: K_ij = relative[i - j] + sink[j], j <= i."""

    sink: np.ndarray  # [H, T], u(j) = lambda j + g(phi(j)) + b [j == 0]
    relative: np.ndarray  # [H, T], kappa(lag) = sum_r alpha_r cos(w_r lag) + beta_r sin(w_r lag)
    checkpoint: Checkpoint
    ahead: np.ndarray | None = None  # [H, T], kappa(-lag): of keys after the query, which training masks

    @property
    def heads(self):
        return self.sink.shape[0]

    @property
    def length(self):
        return self.sink.shape[1]

    @property
    def step(self):
        return self.checkpoint.step

    @property
    def has_gates(self):
        """Whether forgetting gates add a part to the logits that depends on the text: it is no prior."""
        return "forget" in self.checkpoint.value("model.attention", str).split("+")

    def title(self, what, name, layer):
        without = ", without forgetting" if self.has_gates else ""
        return f"{what}{without}: {name}, layer {layer}, step {self.step}"

    def log_prior(self, head):
        """K [T, T]; NaN at the masked keys j > i."""
        i, j = np.indices((self.length, self.length))
        return np.where(j <= i, self.relative[head][np.abs(i - j)] + self.sink[head][j], np.nan)

    def centred(self, head):
        """K less its row means over the keys j <= i: what softmax sees of K. [T, T], NaN at masked keys."""
        log_prior = self.log_prior(head)
        return log_prior - np.nanmean(log_prior, axis=1, keepdims=True)

    def probabilities(self, head):
        """The causal prior softmax(K): each row sums to 1. [T, T], zero at masked keys."""
        log_prior = self.log_prior(head)
        weights = np.exp(log_prior - np.nanmax(log_prior, axis=1, keepdims=True))
        return np.nan_to_num(weights / np.nansum(weights, axis=1, keepdims=True))

    def unmasked(self, head):
        """softmax(K) over all keys, also those after the query: each row sums to 1. [T, T]."""
        i, j = np.indices((self.length, self.length))
        lag = np.abs(i - j)
        relative = np.where(j <= i, self.relative[head][lag], self.ahead[head][lag])
        log_prior = relative + self.sink[head][j]
        weights = np.exp(log_prior - log_prior.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    @property
    def first_row(self):
        """Statistics are means over the rows i >= first_row."""
        return min(FIRST_ROW, self.length - 1)

    def mass_on_first(self, head):
        """Share of the prior on the key j = 0, a mean over rows."""
        return float(self.probabilities(head)[self.first_row :, 0].mean())

    def mass_on_previous(self, head):
        """Share of the prior on the key j = i - 1 (lag 1), a mean over rows."""
        return float(np.diagonal(self.probabilities(head), offset=-1)[self.first_row - 1 :].mean())


# From the checkpoint's tensors


@dataclass(frozen=True)
class PriorConfig:
    """The keys of a checkpoint's config that say what its prior's tensors are and mean."""

    heads: int
    key_heads: int  # H_k
    pos_rank: int  # R
    base: float
    abs_rank: int  # M
    abs_base: float
    hidden: int  # n
    recency: str
    learned_frequencies: bool
    train_length: int

    @classmethod
    def of(cls, checkpoint):
        def positive(value):
            return 0 < value < math.inf

        def not_negative(value):
            return value >= 0

        heads = checkpoint.value("model.heads", int, positive)
        grouped = "kv_heads" in checkpoint.config["model"]  # older runs lack the key
        key_heads = grouped and checkpoint.value("model.kv_heads", int, not_negative) or heads
        abs_rank = checkpoint.value("prior.abs_rank", int, not_negative)
        hidden = checkpoint.value("prior.sink_hidden", int, not_negative)
        return cls(
            heads=heads,
            key_heads=key_heads,
            pos_rank=checkpoint.value("prior.pos_rank", int, positive),
            base=checkpoint.value("prior.base", float, positive),
            abs_rank=abs_rank,
            abs_base=checkpoint.value("prior.abs_base", float, positive),
            hidden=hidden or min(2 * (2 * abs_rank + 2), max(2 * heads, 4)),
            recency=checkpoint.value("prior.recency", str, ("free", "softplus", "off").__contains__),
            learned_frequencies=checkpoint.value("prior.learned_frequencies", bool),
            train_length=checkpoint.value("data.seq_len", int, positive),
        )

    def tensor_shapes(self):
        """Of one layer's prior, by short name."""
        heads, features = self.heads, 2 * self.abs_rank + 2
        shapes = {
            "alpha": (heads, self.pos_rank),
            "beta": (heads, self.pos_rank),
            "bump": (self.key_heads,),
            "sink.w1": (self.hidden, features),
            "sink.b1": (self.hidden,),
            "sink.w2": (self.key_heads, self.hidden),
        }
        shapes |= {"slope": (heads,)} if self.recency != "off" else {}
        return shapes | ({"frequency": (self.pos_rank,)} if self.learned_frequencies else {})


def frequencies(rank, base):
    """w_r = base^(-(r-1) / max(R-1, 1)), r = 1 .. R."""
    return base ** (-np.arange(rank) / max(rank - 1, 1))


def key_bias(tensors, config, position):
    """u [H, T] from one layer's tensors (alpha, beta, ...) at the given positions."""
    angle = np.outer(position, frequencies(config.abs_rank, config.abs_base))
    scales = [position / config.train_length, np.log1p(position) / np.log1p(config.train_length)]
    features = np.column_stack([np.cos(angle), np.sin(angle), *scales])
    hidden = features @ tensors["sink.w1"].T + tensors["sink.b1"]
    sigmoid = np.exp(-np.logaddexp(0, -hidden))
    bias = tensors["sink.w2"] @ (hidden * sigmoid).T
    bias += np.outer(tensors["bump"], position == 0)
    bias = np.repeat(bias, config.heads // config.key_heads, axis=0)
    if config.recency != "off":
        slope = np.logaddexp(0, tensors["slope"]) if config.recency == "softplus" else tensors["slope"]
        bias += np.outer(slope, position)
    return bias


def relative_part(tensors, config, lag):
    """kappa [H, T] from one layer's tensors at the given lags."""
    w = tensors["frequency"] if config.learned_frequencies else frequencies(config.pos_rank, config.base)
    angle = np.outer(w, lag)
    return tensors["alpha"] @ np.cos(angle) + tensors["beta"] @ np.sin(angle)


def longest_length(heads, memory):
    """The most positions whose figure fits into `memory` bytes."""
    return math.isqrt(memory // (heads * KEPT_BYTES + WORKING_BYTES))


def check_length(length, heads):
    if length < 2:
        raise UsageError(f"--length {length}: expected at least 2 positions")
    memory = free_memory()
    if memory is not None and length > (longest := longest_length(heads, memory)):
        needed = length**2 * (heads * KEPT_BYTES + WORKING_BYTES) / 2**30
        have = f"takes {needed:,.1f} GiB of memory, and {memory / 2**30:,.1f} GiB are free"
        raise UsageError(
            f"--length {length}: the figure of {heads} heads {have}; the limit here is --length {longest}"
        )


def prior_matrices(run, layer=0, length=None, checkpoint=None, warn=lambda message: None):
    """The prior of every head of a layer over `length` positions (default: the training length, at most 512).

    `run` is a run's folder or a checkpoint's, `checkpoint` a step of the run. Raises UsageError, DataError.
    """
    found = open_checkpoint(run, checkpoint, warn)
    attention, layers = found.value("model.attention", str), found.value("model.layers", int)
    parts = attention.split("+")
    if "goat" not in parts:
        raise UsageError(f"{run}: model.attention is '{attention}'; only goat has a learned prior to draw")
    if "alibi" in parts or "alibi_learned" in parts:
        raise UsageError(f"{run}: model.attention is '{attention}'; the figure would lack ALiBi's slopes")
    if not 0 <= layer < layers:
        raise UsageError(f"--layer {layer}: {run} has the layers 0 to {layers - 1}")
    config = PriorConfig.of(found)
    length = max(2, min(config.train_length, LONGEST_DEFAULT)) if length is None else length
    check_length(length, config.heads)

    prefix = f"blocks.{layer}.attn.prior."
    stored = found.tensors({prefix + name: shape for name, shape in config.tensor_shapes().items()})
    tensors = {name.removeprefix(prefix): value for name, value in stored.items()}
    position = np.arange(length, dtype=np.float64)
    sink, relative = key_bias(tensors, config, position), relative_part(tensors, config, position)
    ahead = relative_part(tensors, config, -position)
    if not all(np.isfinite(part).all() for part in (sink, relative, ahead)):
        raise DataError(f"{found.folder}: the prior of layer {layer} is not finite over {length} positions")
    return PriorMatrices(sink=sink, relative=relative, checkpoint=found, ahead=ahead)


# Drawing

MASKED = "#efefef"


def draw_curve(axes, values, xlabel, unit):
    """The curve, with its maximum marked: `unit` says of what ("j", "lag")."""
    axes.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    axes.plot(values, color=LINE, linewidth=1.4 if len(values) <= 256 else 0.7)
    top = int(np.argmax(values))
    right_half = top > len(values) / 2
    axes.plot(top, values[top], "o", color=ACCENT, markersize=5, markeredgecolor="white")
    axes.annotate(
        f"max at {unit} {top}", (top, values[top]), xytext=(-6 if right_half else 6, 4),
        textcoords="offset points", ha="right" if right_half else "left", fontsize=8, color=ACCENT,
    )  # fmt: skip
    axes.margins(x=0.04, y=0.15)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("nats")


def draw_matrix(figure, axes, matrix, label, **colours):
    matrix = np.ma.masked_where(~np.tri(len(matrix), dtype=bool), matrix)
    interpolation = "nearest" if len(matrix) <= 256 else "antialiased"
    image = axes.imshow(matrix, aspect="equal", interpolation=interpolation, **colours)
    axes.set_facecolor(MASKED)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.5 - 0.02 * len(matrix), len(matrix) - 0.5)  # a margin that sets off the column j = 0
    axes.set_xlabel("key j")
    axes.set_ylabel("query i")
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03, label=label)
    bar.outline.set_visible(False)


def draw_head(figure, row, matrices, head):
    """The four panels of one head, with its two statistics in the masked corner of the last."""
    draw_curve(row[0], matrices.sink[head], "key j", "j =")
    draw_curve(row[1], matrices.relative[head], "lag i \N{MINUS SIGN} j", "lag")
    centred = matrices.centred(head)
    extreme = max(np.nanmax(np.abs(centred)), 1e-12)
    draw_matrix(figure, row[2], centred, "nats", cmap=DIVERGING, vmin=-extreme, vmax=extreme)
    probabilities = np.maximum(matrices.probabilities(head), PROBABILITY_FLOOR)
    draw_matrix(
        figure, row[3], probabilities, "probability", cmap=SEQUENTIAL, norm=LogNorm(PROBABILITY_FLOOR, 1)
    )
    shares = f"j = 0:  {matrices.mass_on_first(head):.0%}\nlag 1:  {matrices.mass_on_previous(head):.0%}"
    row[3].text(
        0.97, 0.95, shares, transform=row[3].transAxes, ha="right", va="top", fontsize=10, color=ACCENT,
        linespacing=1.5,
    )  # fmt: skip
    row[0].annotate(
        f"head {head}", (0, 0.5), xycoords="axes fraction", xytext=(-52, 0), textcoords="offset points",
        rotation=90, va="center", ha="center", fontsize=11, fontweight="bold",
    )  # fmt: skip


def draw_prior(matrices, title):
    """A row a head: (a) K_sink = u(j), (b) K_rel = kappa(i-j), (c) row-centred K, (d) softmax(K)."""
    titles = (
        r"(a) $K_\mathrm{sink}$: key bias $u(j)$",
        r"(b) $K_\mathrm{rel}$: relative part $\kappa(i-j)$",
        "(c) log-prior $K$, centred by rows",
        "(d) causal prior softmax$(K)$",
    )
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            matrices.heads, 4, figsize=(13.5, 0.8 + 2.85 * matrices.heads), squeeze=False,
            layout="constrained", width_ratios=(1, 1, 1.15, 1.15),
        )  # fmt: skip
        figure.get_layout_engine().set(hspace=0.06, wspace=0.06)
        heading(figure, title)
        for head, row in enumerate(grid):
            draw_head(figure, row, matrices, head)
        for axes, text in zip(grid[0], titles, strict=True):
            axes.set_title(text, pad=8)
    return figure


def describe_prior(matrices):
    """Two sentences: which head is the sink, which looks one token back, and with what share of its prior."""
    rows = f"mean over rows i >= {matrices.first_row}"
    statistics = {
        "the first token (j = 0)": matrices.mass_on_first,
        "the previous token (lag 1)": matrices.mass_on_previous,
    }
    sentences = []
    for what, mass in statistics.items():
        shares = [mass(head) for head in range(matrices.heads)]
        best = int(np.argmax(shares))
        share = f"{shares[best]:.1%}"
        if shares[best] >= 0.5:
            sentences.append(f"Head {best} puts {share} of its causal prior on {what}, {rows}.")
        else:
            largest = f"the largest share is {share} (head {best}), {rows}"
            sentences.append(f"No head puts half of its causal prior on {what}; {largest}.")
    return " ".join(sentences)
