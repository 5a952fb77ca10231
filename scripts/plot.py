#!/usr/bin/env python3
"""Figures of a run of train_gpt_goat.

  plot.py prior RUN      the attention prior each head has learned -> RUN/figures/prior.png
  plot.py loss RUN ...   loss curves of one or more runs           -> RUN/figures/loss.png (of the first run)

RUN is the folder that the trainer wrote: config.toml, metrics.jsonl, checkpoints/. Exit codes: 0 done, 2 wrong use, 3 missing or bad data.
"""

import argparse
import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

try:
    import matplotlib
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm
except ImportError as missing:
    print(f"plot.py: {missing}. Install what it needs: pip install -r {Path(__file__).with_name('requirements.txt')}", file=sys.stderr)
    sys.exit(2)

WRONG_USE, BAD_DATA = 2, 3
LONGEST_DEFAULT = 512  # positions shown unless --length says otherwise
FIRST_ROW = 16  # statistics leave out the first rows, where a few keys hold all the mass whatever the prior
PROBABILITY_FLOOR = 1e-3  # smaller ones share the darkest colour


class PlotError(Exception):
    """A figure that cannot be drawn: the message says why and what to do; `code` is the exit code."""

    def __init__(self, message, code=BAD_DATA):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class PriorMatrices:
    """The log-prior K of every head of one layer, in parts: K_ij = relative[i - j] + sink[j] for j <= i. Float64."""

    sink: np.ndarray  # [H, T], u(j) = lambda j + g(phi(j)) + b [j == 0]
    relative: np.ndarray  # [H, T], kappa(lag) = sum_r alpha_r cos(w_r lag) + beta_r sin(w_r lag)
    step: int  # of the checkpoint

    @property
    def heads(self):
        return self.sink.shape[0]

    @property
    def length(self):
        return self.sink.shape[1]

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


# Reading a run


def load_config(run):
    path = Path(run) / "config.toml"
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise PlotError(f"{run}: no config.toml in it; expected the folder given to train_gpt_goat --out", WRONG_USE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise PlotError(f"{path}: {error}") from None


def load_checkpoint(run, step=None):
    """Step and tensors of the newest checkpoint, or of the one of `step`."""
    folder = Path(run) / "checkpoints"
    found = {int(path.parent.name[5:]): path for path in folder.glob("step_*/model.safetensors") if path.parent.name[5:].isdigit()}
    if not found:
        raise PlotError(f"{folder}: no checkpoint step_*/model.safetensors; train first, or wait until the run has saved one")
    if step is not None and step not in found:
        raise PlotError(f"{folder}: no checkpoint of step {step}; there are {', '.join(map(str, sorted(found)))}", WRONG_USE)
    step = max(found) if step is None else step
    path = found[step]
    try:
        return step, load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise PlotError(f"{path}: cannot be read as safetensors ({error}); choose another with --checkpoint") from None


def load_metrics(run):
    """The lines of metrics.jsonl. A last line that is still being written is left out."""
    path = Path(run) / "metrics.jsonl"
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise PlotError(f"{path}: {error.strerror}; expected the metrics of a run of train_gpt_goat") from None
    metrics = []
    for number, line in enumerate(lines, start=1):
        try:
            metrics.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise PlotError(f"{path}, line {number}: not JSON ({error})") from None
    metrics = [entry for entry in metrics if isinstance(entry.get("loss"), float) or isinstance(entry.get("val_loss"), float)]
    if not metrics:
        raise PlotError(f"{path}: holds no loss yet")
    return metrics


def load_summary(run):
    """summary.json, which a run writes at its end; {} before that."""
    path = Path(run) / "summary.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, OSError) as error:
        raise PlotError(f"{path}: {error}") from None


# The prior


def frequencies(rank, base):
    """w_r = base^(-(r-1) / max(R-1, 1)), r = 1 .. R."""
    return base ** (-np.arange(rank) / max(rank - 1, 1))


def key_bias(tensors, config, position):
    """u [H, T] from one layer's tensors (alpha, beta, ...) at the given positions."""
    prior, train_length = config["prior"], config["data"]["seq_len"]
    angle = np.outer(position, frequencies(prior["abs_rank"], prior["abs_base"]))
    scales = [position / train_length, np.log1p(position) / np.log1p(train_length)]
    features = np.column_stack([np.cos(angle), np.sin(angle), *scales])
    hidden = features @ tensors["sink.w1"].T + tensors["sink.b1"]
    bias = tensors["sink.w2"] @ (hidden / (1 + np.exp(-hidden))).T
    bias += np.outer(tensors["bump"], position == 0)
    if prior["recency"] != "off":
        slope = np.logaddexp(0, tensors["slope"]) if prior["recency"] == "softplus" else tensors["slope"]
        bias += np.outer(slope, position)
    return bias


def prior_tensors(run, layer, checkpoint):
    """Step of the checkpoint and the prior's tensors of one layer by their short names (alpha, beta, sink.w1, ...)."""
    prefix = f"blocks.{layer}.attn.prior."
    step, stored = load_checkpoint(run, checkpoint)
    return step, {name.removeprefix(prefix): value.astype(np.float64) for name, value in stored.items() if name.startswith(prefix)}


def check_request(run, config, layer, length):
    model = config["model"]
    if model["attention"] != "goat":
        raise PlotError(f"{run}: model.attention is '{model['attention']}'; only goat has a learned prior to draw", WRONG_USE)
    if not 0 <= layer < model["layers"]:
        raise PlotError(f"--layer {layer}: {run} has the layers 0 to {model['layers'] - 1}", WRONG_USE)
    if length < 2:
        raise PlotError(f"--length {length}: expected at least 2 positions", WRONG_USE)


def prior_matrices(run, layer=0, length=None, checkpoint=None):
    """The prior of every head of a layer over `length` positions (default: the run's context, at most 512). Raises PlotError."""
    config = load_config(run)
    try:
        length = min(config["data"]["seq_len"], LONGEST_DEFAULT) if length is None else length
        check_request(run, config, layer, length)
        step, tensors = prior_tensors(run, layer, checkpoint)
        position = np.arange(length, dtype=np.float64)
        w = tensors.get("frequency", frequencies(config["prior"]["pos_rank"], config["prior"]["base"]))
        angle = np.outer(w, position)
        relative = tensors["alpha"] @ np.cos(angle) + tensors["beta"] @ np.sin(angle)
        return PriorMatrices(sink=key_bias(tensors, config, position), relative=relative, step=step)
    except KeyError as error:
        raise PlotError(
            f"{run}: {error} is missing from config.toml or from the checkpoint; was the run written by another version?"
        ) from None
    except ValueError as error:
        raise PlotError(f"{run}: the checkpoint's prior does not fit config.toml ({error})") from None


# Figures

STYLE = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#333333",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.grid": False,
}
LINE, ACCENT, MASKED = "#2f4b7c", "#c2410c", "#efefef"


def draw_curve(axes, values, xlabel, unit):
    """The curve, with its maximum marked: `unit` says of what ("j", "lag")."""
    axes.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    axes.plot(values, color=LINE, linewidth=1.4 if len(values) <= 256 else 0.7)
    top = int(np.argmax(values))
    right_half = top > len(values) / 2
    axes.plot(top, values[top], "o", color=ACCENT, markersize=5, markeredgecolor="white")
    axes.annotate(
        f"max at {unit} {top}", (top, values[top]), xytext=(-6 if right_half else 6, 4), textcoords="offset points",
        ha="right" if right_half else "left", fontsize=8, color=ACCENT,
    )  # fmt: skip
    axes.margins(x=0.04, y=0.15)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("nats")


def draw_matrix(figure, axes, matrix, label, **colours):
    matrix = np.ma.masked_where(~np.tri(len(matrix), dtype=bool), matrix)
    image = axes.imshow(matrix, aspect="equal", interpolation="nearest" if len(matrix) <= 256 else "antialiased", **colours)
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
    draw_matrix(figure, row[2], centred, "nats", cmap="RdBu_r", vmin=-extreme, vmax=extreme)
    probabilities = np.maximum(matrices.probabilities(head), PROBABILITY_FLOOR)
    draw_matrix(figure, row[3], probabilities, "probability", cmap="magma", norm=LogNorm(PROBABILITY_FLOOR, 1))
    shares = f"j = 0:  {matrices.mass_on_first(head):.0%}\nlag 1:  {matrices.mass_on_previous(head):.0%}"
    row[3].text(0.97, 0.95, shares, transform=row[3].transAxes, ha="right", va="top", fontsize=10, color=ACCENT, linespacing=1.5)
    row[0].annotate(
        f"head {head}", (0, 0.5), xycoords="axes fraction", xytext=(-52, 0), textcoords="offset points",
        rotation=90, va="center", ha="center", fontsize=11, fontweight="bold",
    )  # fmt: skip


def draw_prior(matrices, title):
    """A figure with one row a head: (a) K_sink = u(j), (b) K_rel = kappa(i-j), (c) row-centred K, (d) softmax(K)."""
    titles = (
        r"(a) $K_\mathrm{sink}$: key bias $u(j)$",
        r"(b) $K_\mathrm{rel}$: relative part $\kappa(i-j)$",
        "(c) log-prior $K$, centred by rows",
        "(d) causal prior softmax$(K)$",
    )
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            matrices.heads, 4, figsize=(13.5, 0.8 + 2.85 * matrices.heads), squeeze=False, layout="constrained",
            width_ratios=(1, 1, 1.15, 1.15),
        )  # fmt: skip
        figure.get_layout_engine().set(hspace=0.06, wspace=0.06)
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.012, ha="left")
        for head, row in enumerate(grid):
            draw_head(figure, row, matrices, head)
        for axes, text in zip(grid[0], titles, strict=True):
            axes.set_title(text, pad=8)
    return figure


def describe_prior(matrices):
    """Two sentences: which head is the sink, which looks one token back, and with which share of its prior."""
    rows = f"mean over rows i >= {matrices.first_row}"
    sentences = []
    for what, mass in (("the first token (j = 0)", matrices.mass_on_first), ("the previous token (lag 1)", matrices.mass_on_previous)):
        shares = [mass(head) for head in range(matrices.heads)]
        best = int(np.argmax(shares))
        if shares[best] >= 0.5:
            sentences.append(f"Head {best} puts {shares[best]:.1%} of its causal prior on {what}, {rows}.")
        else:
            sentences.append(
                f"No head puts half of its causal prior on {what}; the largest share is {shares[best]:.1%} (head {best}), {rows}."
            )
    return " ".join(sentences)


def describe_loss(summary):
    """The run's final losses beside the best possible one, where the task has a known one."""
    if "loss" not in summary:
        return "The run has no summary.json yet: it has not finished."
    text = f"Final training loss {summary['loss']:.4f} nats a token"
    if isinstance(summary.get("val_loss"), float):
        text += f", validation {summary['val_loss']:.4f}"
    if isinstance(summary.get("bayes_optimal_loss"), float):
        text += f"; the best possible (Bayes-optimal) loss is {summary['bayes_optimal_loss']:.4f}"
    return text + "."


def smoothed(steps, loss, width):
    """Exponential moving average with a time constant of `width` steps; bias-corrected, so that it starts at the first loss."""
    average = weight = 0.0
    previous = steps[0] - 1
    out = []
    for step, value in zip(steps, loss, strict=True):
        decay = np.exp(-(step - previous) / width)
        average, weight, previous = decay * average + (1 - decay) * value, decay * weight + 1 - decay, step
        out.append(average / weight)
    return np.array(out)


def loss_points(metrics, key):
    """Steps and values, [n] each, of the lines that have `key`."""
    points = [(line["step"], line[key]) for line in metrics if isinstance(line.get(key), float)]
    return np.array(points).reshape(-1, 2).T


def draw_run(axes, run, colour):
    """Every step pale, smoothed strong, validation as points. Returns the values that should be in view: all but the first fall."""
    metrics, name = load_metrics(run), Path(run).resolve().name
    steps, loss = loss_points(metrics, "loss")
    in_view = np.empty(0)
    if len(steps):
        curve = smoothed(steps, loss, max(1, (steps[-1] - steps[0]) / 100))
        axes.plot(steps, loss, color=colour, alpha=0.25, linewidth=0.7)
        axes.plot(steps, curve, color=colour, linewidth=1.8, label=name)
        in_view = curve[len(curve) // 50 :]
    steps, loss = loss_points(metrics, "val_loss")
    if len(steps):
        axes.plot(steps, loss, "o", color=colour, markersize=6, markeredgecolor="white", label=f"{name}, validation", zorder=3)
    return np.concatenate([in_view, loss])


def draw_loss(runs):
    """A figure with the loss of each run over its steps and, where the task has one, the Bayes-optimal loss."""
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
        in_view = np.concatenate([draw_run(axes, run, colours[n % len(colours)]) for n, run in enumerate(runs)])
        optima = [load_summary(run).get("bayes_optimal_loss") for run in runs]
        for optimum in sorted({round(value, 6) for value in optima if isinstance(value, float)}):
            axes.axhline(optimum, color="#333333", linewidth=1, linestyle=(0, (5, 4)), label=f"Bayes-optimal, {optimum:.3f}")
            in_view = np.append(in_view, optimum)
        margin = 0.06 * np.ptp(in_view) or 0.1
        axes.set_ylim(in_view.min() - margin, in_view.max() + margin)
        axes.set(xlabel="step", ylabel="loss (nats a token)")
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False)
    return figure


def save(figure, path):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PlotError(f"{path}: cannot write the figure ({error})", WRONG_USE) from None
    finally:
        plt.close(figure)
    print(path)


# Commands


def plot_prior(arguments):
    matrices = prior_matrices(arguments.run, arguments.layer, arguments.length, arguments.checkpoint)
    name = arguments.run.resolve().name
    figure = draw_prior(matrices, f"Learned attention prior: {name}, layer {arguments.layer}, step {matrices.step}")
    file = "prior.png" if arguments.layer == 0 else f"prior_layer{arguments.layer}.png"
    save(figure, arguments.out or arguments.run / "figures" / file)
    print(describe_prior(matrices))
    print(describe_loss(load_summary(arguments.run)))


def plot_loss(arguments):
    save(draw_loss(arguments.runs), arguments.out or arguments.runs[0] / "figures" / "loss.png")
    for run in arguments.runs:
        print(f"{run}: {describe_loss(load_summary(run))}")


def parse_arguments(words):
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    prior = commands.add_parser("prior", help="the attention prior each head has learned")
    prior.set_defaults(command=plot_prior)
    prior.add_argument("run", type=Path, metavar="RUN", help="the folder of a run with model.attention = goat")
    prior.add_argument("--checkpoint", type=int, metavar="N", help="step of the checkpoint (default: the newest)")
    prior.add_argument("--layer", type=int, metavar="L", default=0, help="layer, from 0 (default: 0)")
    prior.add_argument("--length", type=int, metavar="T", help=f"positions (default: the run's seq_len, at most {LONGEST_DEFAULT})")
    prior.add_argument("--out", type=Path, metavar="FILE", help="figure to write (default: RUN/figures/prior.png)")
    loss = commands.add_parser("loss", help="loss curves of one or more runs")
    loss.set_defaults(command=plot_loss)
    loss.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    loss.add_argument("--out", type=Path, metavar="FILE", help="figure to write (default: figures/loss.png of the first run)")
    return parser.parse_args(words)


def main(words=None):
    arguments = parse_arguments(words)
    try:
        arguments.command(arguments)
    except PlotError as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
