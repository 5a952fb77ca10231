"""Figures of what `train_gpt_goat eval --json` measured: perplexity, or the accuracy of a task, by length."""

from pathlib import Path

import numpy as np
from console import DataError, one_line
from figure_file import STYLE, plt
from run_reader import finite, parse_json, read_bytes

LARGEST_FILE = 256 << 20  # bytes


class Evaluation:
    """One JSON file. rows: the results by ascending length; is_task: whether answers were looked for;
    has_depths: whether each length was measured with the needle at several depths."""

    def __init__(self, path):
        self.path = Path(path)
        try:
            contents = parse_json(read_bytes(self.path, LARGEST_FILE))
            self.train_length = contents["train_length"]
            self.run = run_of(contents["checkpoint"])
            self.rows = sorted(contents["results"], key=lambda row: row["length"])
            is_good = self.train_length > 0 and all(row["length"] > 0 and "nll" in row for row in self.rows)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_good = False
        if not is_good or not self.rows:
            raise DataError(f"{self.path}: not what train_gpt_goat eval --json writes")
        self.is_task = all("span_token_accuracy" in row for row in self.rows)
        self.has_depths = self.is_task and len({row.get("depth") for row in self.rows}) > 1

    @property
    def lengths(self):
        return np.array([row["length"] for row in self.rows])

    def column(self, key):
        """[rows], NaN where a value is missing or not finite."""
        return np.array([finite(row.get(key)) for row in self.rows])


def run_of(checkpoint):
    """The name of the run, from the path of a checkpoint: RUN/checkpoints/step_N, or a folder of its own."""
    path = Path(checkpoint)
    return (path.parent.parent if path.parent.name == "checkpoints" else path).name or str(path)


def names_of(evaluations):
    """What the legend calls each: its run, or the file where another has the same run."""
    runs = [evaluation.run for evaluation in evaluations]
    return [
        one_line(run if runs.count(run) == 1 else str(evaluation.path))
        for run, evaluation in zip(runs, evaluations, strict=True)
    ]


def draw_eval(evaluations):
    """Perplexity by length; accuracies by length for tasks; the grid of a task that has depths."""
    if len({(evaluation.is_task, evaluation.has_depths) for evaluation in evaluations}) > 1:
        raise DataError(
            "the files are of different kinds (perplexity, accuracy by length, accuracy by length and "
            "depth): draw those of one kind together"
        )
    first = evaluations[0]
    with plt.rc_context(STYLE):
        if first.has_depths:
            return draw_grids(evaluations)
        return draw_accuracies(evaluations) if first.is_task else draw_perplexities(evaluations)


def draw_perplexities(evaluations):
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name, evaluation in zip(names_of(evaluations), evaluations, strict=True):
        with np.errstate(over="ignore"):
            axes.plot(evaluation.lengths, np.exp(evaluation.column("nll")), "o-", markersize=5, label=name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(plt.ScalarFormatter())
    axes.yaxis.set_minor_formatter(plt.ScalarFormatter())
    axes.set_ylabel("perplexity (logarithmic)")
    by_length(axes, evaluations)
    return figure


ACCURACIES = [("span_token_accuracy", "o-", "tokens"), ("strict_accuracy", "s--", "whole answers")]


def draw_accuracies(evaluations):
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for n, (name, evaluation) in enumerate(zip(names_of(evaluations), evaluations, strict=True)):
        for key, style, what in ACCURACIES:
            options = {"color": f"C{n}", "markersize": 5, "label": f"{name}, {what}"}
            axes.plot(evaluation.lengths, evaluation.column(key), style, **options)
    axes.set(ylabel="accuracy", ylim=(-0.03, 1.03))
    by_length(axes, evaluations)
    return figure


def by_length(axes, evaluations):
    """The axis of lengths, the training lengths in it, and the legend."""
    lengths = np.unique(np.concatenate([evaluation.lengths for evaluation in evaluations]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("length of the sequences (tokens)")
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    for length in sorted({evaluation.train_length for evaluation in evaluations}):
        axes.axvline(length, color="#333333", linewidth=1, linestyle=(0, (5, 4)), label="training length")
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)  # a folder's name may hold '$'


def draw_grids(evaluations):
    """For each evaluation a grid: depth of the needle down, length across, mean accuracy as the colour."""
    grids = [grid_of(evaluation) for evaluation in evaluations]
    width = 1.6 + 0.75 * max(grid.shape[1] for _, _, grid in grids)
    figure, panels = plt.subplots(
        1, len(grids), figsize=(width * len(grids), 3.4), layout="constrained", squeeze=False
    )
    for axes, name, (depths, lengths, grid) in zip(panels[0], names_of(evaluations), grids, strict=True):
        image = axes.imshow(grid, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for row, column in np.ndindex(grid.shape):
            shade = "white" if grid[row, column] < 0.6 else "black"
            axes.text(column, row, f"{grid[row, column]:.2f}", ha="center", va="center", color=shade)
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
        axes.set(xlabel="length (tokens)", ylabel="depth of the needle")
        axes.set_title(name, parse_math=False)
    figure.colorbar(image, ax=panels[0], label="accuracy of the answer's tokens")
    return figure


def grid_of(evaluation):
    """The depths and lengths, ascending, and accuracies [depths, lengths]. Raises DataError if a cell is
    missing."""
    cells = {(row.get("depth"), row["length"]): finite(row["span_token_accuracy"]) for row in evaluation.rows}
    depths, lengths = sorted({depth for depth, _ in cells}), sorted({length for _, length in cells})
    if len(cells) != len(depths) * len(lengths):
        raise DataError(f"{evaluation.path}: not every length has the same depths")
    return depths, lengths, np.array([[cells[depth, length] for length in lengths] for depth in depths])


def describe_eval(evaluation):
    """A sentence: the shortest and the longest length, means over depths."""
    key, what = ("span_token_accuracy", "accuracy") if evaluation.is_task else ("nll", "loss")
    lengths, values = evaluation.lengths, evaluation.column(key)
    ends = [f"{values[lengths == n].mean():.4f} at {n:,}" for n in sorted({lengths[0], lengths[-1]})]
    return f"{evaluation.path}: {what} {' and '.join(ends)}, trained at {evaluation.train_length:,}."
