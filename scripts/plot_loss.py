"""Loss curves of runs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from console import DataError, some
from figure_file import DASHED, GRID, LEAVES_VIEW, REFERENCE, STYLE, legend_below, plt, series_style
from run_names import names_of
from run_reader import CONFIG, METRICS, finite, read_metrics, read_summary

MOST_RISE = 3  # times its first loss: a run that rises higher does not choose the limits of the axis
POINTS = {"linestyle": "none", "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.4}


def smoothing_width(steps):
    """A hundredth of the run, in steps."""
    return max(1, (steps[-1] - steps[0]) / 100)


def smoothed(steps, loss, width):
    """Exponential moving average with a time constant of `width` steps.

    Bias-corrected: the weights of the losses so far are scaled to sum to 1, so it starts at the first loss.
    """
    average = weight = 0.0
    previous = steps[0] - 1
    out = []
    for step, value in zip(steps, loss, strict=True):
        decay = np.exp(-(step - previous) / width)
        average, weight, previous = decay * average + (1 - decay) * value, decay * weight + 1 - decay, step
        out.append(average / weight)
    return np.array(out)


def loss_points(metrics, key):
    """Steps and values, [n] each and in order, of the lines that have `key` as a finite number."""
    points = [(entry["step"], finite(entry[key])) for entry in metrics if key in entry]
    points = sorted(point for point in points if not np.isnan(point[1]))
    return np.array(points, dtype=np.float64).reshape(-1, 2).T


@dataclass(frozen=True)
class Losses:
    """The finite losses of a run, in the order of their steps."""

    run: Path
    name: str
    steps: np.ndarray
    loss: np.ndarray
    curve: np.ndarray  # the smoothed loss
    validated: np.ndarray  # steps
    validation: np.ndarray
    lack: str  # what a warning says of losses that are missing, "" if none is

    @property
    def first(self):
        return np.concatenate([self.loss, self.validation])[0]

    @property
    def in_view(self):
        """What should be in view: validation, and the curve without its first fall."""
        return np.concatenate([self.curve[len(self.curve) // 50 :], self.validation])

    @property
    def highest(self):
        return self.in_view.max()


def metrics_of(run):
    """The lines of metrics.jsonl; none where the run has begun and not written it yet."""
    has_begun = (Path(run) / CONFIG).exists() and not (Path(run) / METRICS).exists()
    return [] if has_begun else read_metrics(run)


def lack_of(metrics, has_losses):
    if not has_losses:
        return "has no finite loss yet; it is left out"
    unusable = sum("loss" in entry and np.isnan(finite(entry["loss"])) for entry in metrics)
    return f"{unusable} of {len(metrics)} steps have no finite loss; they are left out" if unusable else ""


def read_losses(run, name):
    metrics = metrics_of(run)
    steps, loss = loss_points(metrics, "loss")
    curve = smoothed(steps, loss, smoothing_width(steps)) if len(steps) else loss
    validated, validation = loss_points(metrics, "val_loss")
    lack = lack_of(metrics, len(steps) + len(validated))
    return Losses(run, name, steps, loss, curve, validated, validation, lack)


def losses_of(runs, names, warn):
    """The losses of the runs that have some. Raises DataError if none has."""
    found = [read_losses(run, name) for run, name in zip(runs, names, strict=True)]
    drawn = [losses for losses in found if len(losses.in_view)]
    if not drawn:
        raise DataError(f"{some(str(Path(run) / METRICS) for run in runs)}: no finite loss yet")
    for losses in found:
        if losses.lack:
            warn(f"warning: {losses.run}: {losses.lack}")
    return drawn


def limits_of(drawn, optima):
    """The lowest and highest loss in view, with a margin. A run that has diverged may leave it at the top,
    unless all have."""
    tops = [losses.highest for losses in drawn if losses.highest <= MOST_RISE * losses.first]
    high = max([*(tops or [losses.highest for losses in drawn]), *optima])
    low = min([*(losses.in_view.min() for losses in drawn), *optima])
    margin = 0.06 * (high - low)
    if margin <= 6e-8 * max(abs(high), abs(low)):  # rounding errors
        margin = 0.1
    return low - margin, high + margin


def draw_run(axes, losses, label, n):
    """Every step pale, smoothed strong, validation as points, whose marker the legend shows on the line."""
    style = series_style(n)
    colour, marker = style["color"], style["marker"]
    if len(losses.steps):
        axes.plot(losses.steps, losses.loss, color=colour, alpha=0.25, linewidth=0.7)
        if len(losses.steps) == 1:  # no line is seen
            style |= {"fillstyle": "none"}
        else:
            style |= {"markevery": []} if len(losses.validated) else {"marker": ""}
        axes.plot(losses.steps, losses.curve, linewidth=1.8, label=label, **style)
    if len(losses.validated):
        named = {} if len(losses.steps) else {"label": label}
        axes.plot(
            losses.validated, losses.validation, color=colour, marker=marker, zorder=3, **POINTS, **named
        )


def draw_loss(runs, warn=lambda message: None, names=None):
    """A figure with the loss of each run by step and, where the task has one, the Bayes-optimal loss."""
    drawn = losses_of(runs, names or names_of(runs), warn)
    optima = [finite(read_summary(losses.run).get("bayes_optimal_loss")) for losses in drawn]
    optima = sorted({round(value, 6) for value in optima if not np.isnan(value)})
    low, high = limits_of(drawn, optima)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
        for n, losses in enumerate(drawn):
            label = losses.name
            if losses.highest > high:
                label += LEAVES_VIEW
                warn(f"warning: {losses.run}: leaves the view, its loss rises to {losses.highest:,.4g}")
            draw_run(axes, losses, label, n)
        if any(len(losses.validated) for losses in drawn):
            axes.plot([], [], marker="o", color="#999999", label="validation loss", **POINTS)
        for optimum in optima:
            label = f"Bayes-optimal, {optimum:.3f}"
            axes.axhline(optimum, color=REFERENCE, linewidth=1, linestyle=DASHED, label=label)
        axes.set_ylim(low, high)
        axes.set(xlabel="step", ylabel="loss (nats a token)")
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        legend_below(figure, [axes])
    return figure


def describe_loss(summary):
    """The run's final losses beside the best possible one, where the task has a known one."""
    if not summary:
        return "The run has no summary.json yet: it has not finished."
    loss, validation = finite(summary.get("loss")), finite(summary.get("val_loss"))
    optimum = finite(summary.get("bayes_optimal_loss"))
    if np.isnan(loss):
        return "The run's summary.json holds no finite training loss."
    text = f"Final training loss {loss:.4f} nats a token"
    if not np.isnan(validation):
        text += f", validation {validation:.4f}"
    if not np.isnan(optimum):
        text += f"; the best possible (Bayes-optimal) loss is {optimum:.4f}"
    return text + "."
