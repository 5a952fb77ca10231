"""Figures of what `train_gpt_goat eval --json` measured: perplexity, or the accuracy of a task, by length."""

from pathlib import Path

import numpy as np
from console import DataError, one_line
from figure_file import (
    DASHED, GRID, REFERENCE, SEQUENTIAL, STYLE, legend_below, plain_numbers, plt, series_style,
)  # fmt: skip
from run_reader import finite, parse_json, read_bytes

LARGEST_FILE = 256 << 20  # bytes
NO_EVALUATION = "not what train_gpt_goat eval --json writes"


class Evaluation:
    """An evaluation in a JSON file. rows: the results by ascending length; is_task: whether answers were
    looked for; has_depths: whether each length was measured with the needle at several depths; protocol: ""
    for a task; label: the file, and which it is of several there."""

    def __init__(self, path, contents):
        self.path, self.label = path, str(path)
        try:
            self.train_length = contents["train_length"]
            self.run, self.step = run_of(contents["checkpoint"]), str(contents.get("step"))
            self.protocol = str(contents.get("protocol", ""))
            self.rows = sorted(contents["results"], key=lambda row: row["length"])
            is_good = self.train_length > 0 and all(
                row["length"] > 0 and "nll" in row and (row.get("depth") is None or row["depth"] >= 0)
                for row in self.rows
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            is_good = False
        if not is_good or not self.rows:
            raise DataError(f"{path}: {NO_EVALUATION}")
        self.is_task = all("span_token_accuracy" in row for row in self.rows)
        self.has_depths = self.is_task and len({row.get("depth") for row in self.rows}) > 1

    @property
    def lengths(self):
        return np.array([row["length"] for row in self.rows])

    @property
    def kind(self):
        if not self.is_task:
            return "perplexity"
        return "depths" if self.has_depths else "accuracy"

    def column(self, key):
        """[rows], NaN where a value is missing or not finite."""
        return np.array([finite(row.get(key)) for row in self.rows])


def read_evaluations(path):
    """The evaluations in a file: one, or those of several runs or protocols."""
    path = Path(path)
    try:
        contents = parse_json(read_bytes(path, LARGEST_FILE))
    except ValueError:
        raise DataError(f"{path}: {NO_EVALUATION}") from None
    if not isinstance(contents, dict) or "evaluations" not in contents:
        return [Evaluation(path, contents)]
    if not isinstance(contents["evaluations"], list) or not contents["evaluations"]:
        raise DataError(f"{path}: {NO_EVALUATION}")
    evaluations = [Evaluation(path, each) for each in contents["evaluations"]]
    for name, evaluation in zip(names_of(evaluations), evaluations, strict=True):
        evaluation.label = f"{path}: {name}"
    return evaluations


def run_of(checkpoint):
    """The folder of the run, from the path of a checkpoint: RUN/checkpoints/step_N, or one of its own."""
    path = Path(checkpoint)
    return path.parent.parent if path.parent.name == "checkpoints" else path


def end_of(path, count):
    """The last `count` folders of a path, or all."""
    parts = path.parts[-count:]
    return "/".join(parts) if len(parts) < len(path.parts) else str(path)


def shortest_name(path, paths):
    """The fewest last folders of a path that no other of the paths ends with."""
    others = [other for other in paths if other != path]
    for count in range(1, len(path.parts)):
        if all(end_of(other, count) != end_of(path, count) for other in others):
            return end_of(path, count)
    return str(path)


def names_of(evaluations):
    """What the legend calls each: its run; the step where there are several of a run; the protocol where
    there are both; the file in place of the run where all these are the same."""
    runs = [evaluation.run for evaluation in evaluations]
    steps = [{other.step for other in evaluations if other.run == run} for run in runs]
    protocols = {evaluation.protocol for evaluation in evaluations} - {""}

    def name_of(evaluation, name):
        is_told = len(protocols) > 1 and evaluation.protocol
        return one_line(f"{name}, {evaluation.protocol}" if is_told else name)

    names = [
        name_of(each, shortest_name(each.run, runs) + (f" at step {each.step}" if len(of_run) > 1 else ""))
        for each, of_run in zip(evaluations, steps, strict=True)
    ]
    return [
        name if names.count(name) == 1 else name_of(each, str(each.path))
        for name, each in zip(names, evaluations, strict=True)
    ]


def draw_kinds(evaluations):
    """{what is added to the file's name: figure}: one figure, or one for each kind of evaluation."""
    kinds = dict.fromkeys(evaluation.kind for evaluation in evaluations)
    return {
        f"_{kind}" if len(kinds) > 1 else "": draw_eval([each for each in evaluations if each.kind == kind])
        for kind in kinds
    }


def draw_eval(evaluations):
    """Of evaluations of one kind: perplexity by length; accuracies by length for tasks; the grid of a task
    that has depths."""
    draw = {"perplexity": draw_perplexities, "accuracy": draw_accuracies, "depths": draw_grids}
    with plt.rc_context(STYLE):
        return draw[evaluations[0].kind](evaluations)


def perplexities(evaluation):
    with np.errstate(over="ignore"):
        return np.exp(evaluation.column("nll"))


def draw_perplexities(evaluations):
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for n, (name, evaluation) in enumerate(zip(names_of(evaluations), evaluations, strict=True)):
        style = series_style(n) | {"markersize": 5, "label": name}
        axes.plot(evaluation.lengths, perplexities(evaluation), **style)
    axes.set_yscale("log")
    plain_numbers(axes)
    axes.set_ylabel("perplexity (logarithmic)")
    by_length(axes, evaluations)
    return figure


ACCURACIES = [("span_token_accuracy", "-", "tokens"), ("strict_accuracy", "--", "whole answers")]


def draw_accuracies(evaluations):
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for n, (name, evaluation) in enumerate(zip(names_of(evaluations), evaluations, strict=True)):
        for key, line, what in ACCURACIES:
            style = series_style(n) | {"linestyle": line, "markersize": 5, "label": f"{name}, {what}"}
            axes.plot(evaluation.lengths, evaluation.column(key), **style)
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
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for length in sorted({evaluation.train_length for evaluation in evaluations}):
        axes.axvline(length, color=REFERENCE, linewidth=1, linestyle=DASHED, label="training length")
    legend_below(axes.figure, [axes])


def draw_grids(evaluations):
    """For each evaluation a grid: depth of the needle down, length across, mean accuracy as the colour."""
    grids = [grid_of(evaluation) for evaluation in evaluations]
    width = 1.6 + 0.75 * max(grid.shape[1] for _, _, grid in grids)
    figure, panels = plt.subplots(
        1, len(grids), figsize=(width * len(grids), 3.4), layout="constrained", squeeze=False
    )
    for axes, name, (depths, lengths, grid) in zip(panels[0], names_of(evaluations), grids, strict=True):
        image = axes.imshow(grid, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
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
        raise DataError(f"{evaluation.label}: not every length has the same depths")
    return depths, lengths, np.array([[cells[depth, length] for length in lengths] for depth in depths])


def describe_eval(evaluation):
    """A sentence: the shortest and the longest length, means over depths."""
    key, what = ("span_token_accuracy", "accuracy") if evaluation.is_task else ("nll", "loss")
    lengths, values = evaluation.lengths, evaluation.column(key)
    ends = [f"{values[lengths == n].mean():.4f} at {n:,}" for n in sorted({lengths[0], lengths[-1]})]
    return f"{evaluation.label}: {what} {' and '.join(ends)}, trained at {evaluation.train_length:,}."
