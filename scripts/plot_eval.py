"""Figures of what `train_gpt_goat eval --json` measured: perplexity, or the accuracy of a task, by length."""

import numpy as np
from console import DataError
from eval_reader import names_of_evaluations, note_on_data
from figure_file import (
    DASHED, GRID, REFERENCE, SEQUENTIAL, STYLE, legend_below, plain_numbers, plt, series_style, wrapped,
)  # fmt: skip
from run_reader import finite


def draw_kinds(evaluations):
    """{what is added to the file's name: figure}: one figure, or one for each kind of evaluation."""
    kinds = dict.fromkeys(evaluation.kind for evaluation in evaluations)
    return {
        f"_{kind}" if len(kinds) > 1 else "": draw_eval([each for each in evaluations if each.kind == kind])
        for kind in kinds
    }


def draw_eval(evaluations, names=None):
    """Of evaluations of one kind: perplexity by length; accuracies by length for tasks; the grid of a task
    that has depths."""
    draw = {"perplexity": draw_perplexities, "accuracy": draw_accuracies, "depths": draw_grids}
    with plt.rc_context(STYLE):
        return draw[evaluations[0].kind](evaluations, names or names_of_evaluations(evaluations))


def perplexities(evaluation):
    with np.errstate(over="ignore"):
        return np.exp(evaluation.column("nll"))


def draw_perplexities(evaluations, names):
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for n, (name, evaluation) in enumerate(zip(names, evaluations, strict=True)):
        style = series_style(n) | {"markersize": 5, "label": name}
        axes.plot(evaluation.lengths, perplexities(evaluation), **style)
    axes.set_yscale("log")
    plain_numbers(axes)
    axes.set_ylabel(f"perplexity (logarithmic){note_on_data(evaluations)}")
    by_length(axes, evaluations)
    return figure


ACCURACIES = [("span_token_accuracy", "-", "tokens"), ("strict_accuracy", "--", "whole answers")]


def draw_accuracies(evaluations, names):
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for n, (name, evaluation) in enumerate(zip(names, evaluations, strict=True)):
        for key, line, what in ACCURACIES:
            style = series_style(n) | {"linestyle": line, "markersize": 5, "label": f"{name}, {what}"}
            axes.plot(evaluation.lengths, evaluation.column(key), **style)
    axes.set(ylabel=f"accuracy{note_on_data(evaluations)}", ylim=(-0.03, 1.03))
    by_length(axes, evaluations)
    return figure


def by_length(axes, evaluations):
    """The axis of lengths, and the legend."""
    show_lengths(axes, evaluations)
    legend_below(axes.figure, [axes])


def labels_with_room(axes, lengths):
    """A label for each of the ascending lengths, none where it would run into the one before."""
    inches = axes.get_window_extent().width / axes.figure.dpi
    octave = 0.9 * inches / max(1e-9, np.log2(lengths[-1] / lengths[0]))  # the axis has margins
    labels, free = [], -np.inf
    for length in lengths:
        label, at = f"{length:,}", octave * np.log2(length / lengths[0])
        width = 0.085 * len(label)
        labels.append(label if at - width / 2 >= free else "")
        if labels[-1]:
            free = at + width / 2
    return labels


def show_lengths(axes, evaluations):
    """The axis of lengths, the training lengths in it, and the grid."""
    lengths = np.unique(np.concatenate([evaluation.lengths for evaluation in evaluations]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, labels_with_room(axes, lengths))
    axes.minorticks_off()
    axes.set_xlabel("length of the sequences (tokens)")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for length in sorted({evaluation.train_length for evaluation in evaluations}):
        axes.axvline(length, color=REFERENCE, linewidth=1, linestyle=DASHED, label="training length")


PAGE = 11  # inches: as wide as the grids of several models become
CELL = (0.55, 0.2)  # inches: width and the least height of a cell of a grid
TITLE_CHARACTER, TITLE_LINE = 0.09, 0.17  # inches
NO_VALUE = "\N{EN DASH}"


def draw_grids(evaluations, names):
    """For each evaluation a grid: depth of the needle down, length across, mean accuracy as the colour."""
    grids = [grid_of(evaluation) for evaluation in evaluations]
    depths, lengths = np.max([grid.shape for _, _, grid in grids], axis=0)
    width = 1.2 + CELL[0] * lengths
    titles = [wrapped(name, int(width / TITLE_CHARACTER)) for name in names]
    height = max(2.9, 1.1 + CELL[1] * depths) + TITLE_LINE * max(title.count("\n") for title in titles)
    columns = min(len(grids), max(1, int(PAGE / width)))
    rows = -(-len(grids) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(1 + width * columns, height * rows), layout="constrained", squeeze=False
    )
    for axes in panels.flat[len(grids) :]:
        axes.remove()
    for axes, title, grid in zip(panels.flat, titles, grids, strict=False):
        image = draw_grid(axes, title, *grid)
    label = f"accuracy of the answer's tokens{note_on_data(evaluations)}"
    last = panels[:, -1] if len(grids) == panels.size else panels[:-1, -1]  # the last row may be short
    figure.colorbar(image, ax=last, label=label, aspect=20 * rows)
    return figure


def draw_grid(axes, title, depths, lengths, grid):
    """Returns the image. A cell without a value is empty."""
    image = axes.imshow(grid, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
    for (row, column), value in np.ndenumerate(grid):
        said = NO_VALUE if np.isnan(value) else f"{value:.2f}"
        shade = "white" if value < 0.6 else "black"
        axes.text(column, row, said, ha="center", va="center", color=shade)
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    axes.set(xlabel="length (tokens)", ylabel="depth of the needle")
    axes.set_title(title, parse_math=False)
    return image


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
