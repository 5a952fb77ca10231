"""Loss curves of runs."""

from pathlib import Path

import numpy as np
from console import DataError
from figure_file import COLOURS, DASHED, GRID, LINES, MARKERS, REFERENCE, STYLE, legend_below, plt
from run_names import names_of
from run_reader import finite, read_metrics, read_summary


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


def draw_run(axes, run, name, n, warn):
    """Every step pale, smoothed strong, validation as points. Returns what should be in view."""
    colour, line, marker = COLOURS[n % len(COLOURS)], LINES[n % len(LINES)], MARKERS[n % len(MARKERS)]
    metrics = read_metrics(run)
    steps, loss = loss_points(metrics, "loss")
    validated, validation = loss_points(metrics, "val_loss")
    if not len(steps) and not len(validated):
        raise DataError(f"{Path(run) / 'metrics.jsonl'}: holds no finite loss yet")
    if unusable := sum("loss" in entry and np.isnan(finite(entry["loss"])) for entry in metrics):
        warn(f"warning: {run}: {unusable} of {len(metrics)} steps have no finite loss; they are left out")
    in_view = np.empty(0)
    if len(steps):
        curve = smoothed(steps, loss, smoothing_width(steps))
        axes.plot(steps, loss, color=colour, alpha=0.25, linewidth=0.7)
        axes.plot(steps, curve, color=colour, linestyle=line, linewidth=1.8, label=name)
        in_view = curve[len(curve) // 50 :]
    if len(validated):
        style = {"color": colour, "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.4}
        axes.plot(validated, validation, marker, label=f"{name}, validation", zorder=3, **style)
    return np.concatenate([in_view, validation])


def draw_loss(runs, warn=lambda message: None, names=None):
    """A figure with the loss of each run by step and, where the task has one, the Bayes-optimal loss."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
        in_view = np.concatenate([
            draw_run(axes, run, name, n, warn)
            for n, (run, name) in enumerate(zip(runs, names or names_of(runs), strict=True))
        ])  # fmt: skip
        optima = [finite(read_summary(run).get("bayes_optimal_loss")) for run in runs]
        for optimum in sorted({round(value, 6) for value in optima if not np.isnan(value)}):
            label = f"Bayes-optimal, {optimum:.3f}"
            axes.axhline(optimum, color=REFERENCE, linewidth=1, linestyle=DASHED, label=label)
            in_view = np.append(in_view, optimum)
        height = np.ptp(in_view)
        margin = 0.06 * height if height > 1e-6 * np.abs(in_view).max() else 0.1  # not for rounding errors
        axes.set_ylim(in_view.min() - margin, in_view.max() + margin)
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
