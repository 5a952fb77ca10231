"""The figure of retrieval: accuracy by length of several models, a column of panels for each task."""

import re

import numpy as np
from figure_file import REFERENCE, STYLE, legend_below, literal, plt, series_style
from plot_eval import show_lengths
from seeds import THIN, Curve, check_same_settings, models_of, note_on_models

UNKNOWN = "task"  # what a task is called whose file does not name it
ROWS = {
    "span_token_accuracy": "share of the answer's tokens that are right",
    "strict_accuracy": "share of whole answers that are right",
}
CHANCE = {"passkey": 1 / 10, "niah": 1 / 4}  # of a token: ten digits, four letters


def over_depths(evaluation, lengths, key):
    """[lengths]: the mean accuracy of each length."""
    accuracy = evaluation.column(key)
    return np.array([accuracy[evaluation.lengths == length].mean() for length in lengths])


def curve_of(name, seeds, key):
    """An accuracy by length: of each seed, mean over depths."""
    check_same_settings(seeds)
    lengths = np.unique(seeds[0].lengths)
    accuracies = np.array([over_depths(evaluation, lengths, key) for evaluation in seeds])
    return Curve(name, lengths, accuracies)


def without_task(task, names):
    """The names of models without the task, where they begin with that and still differ."""
    short = [re.sub(rf"^{re.escape(task)}[-_. ](?=.)", "", name) for name in names]
    return short if len(set(short)) == len(short) else names


def panels_of(evaluations):
    """{task: its evaluations}, in their order."""
    panels = {}
    for evaluation in evaluations:
        panels.setdefault(evaluation.task or UNKNOWN, []).append(evaluation)
    return panels


def curves_of(task, evaluations, key="span_token_accuracy"):
    names, seeds = zip(*models_of(evaluations), strict=True)
    return [curve_of(*each, key) for each in zip(without_task(task, names), seeds, strict=True)]


def draw_panel(axes, curves, styles, evaluations, chance):
    for curve in curves:
        curve.draw(axes, styles[curve.name])
        curve.draw_seeds(axes, styles[curve.name])
    if any(len(curve.seeds) > 1 for curve in curves):
        axes.plot([], [], color=REFERENCE, linewidth=THIN, label="single seeds")
    if chance is not None:
        axes.axhline(chance, color=REFERENCE, linewidth=1, linestyle=":", label="by chance")
    axes.set(ylim=(-0.03, 1.03))
    show_lengths(axes, evaluations)


def draw_retrieval(evaluations):
    """Above the tokens of the answers, below whole answers. A model has the same line in every panel."""
    panels = panels_of(evaluations)
    curves = {
        (task, key): curves_of(task, members, key) for key in ROWS for task, members in panels.items()
    }
    names = dict.fromkeys(curve.name for each in curves.values() for curve in each)
    styles = {name: series_style(n) for n, name in enumerate(names)}
    with plt.rc_context(STYLE):
        size = (3.6 * len(panels) + 1, 6.6)
        figure, grid = plt.subplots(
            len(ROWS), len(panels), figsize=size, layout="constrained", squeeze=False, sharex="col"
        )
        for row, (key, label) in zip(grid, ROWS.items(), strict=True):
            for axes, (task, members) in zip(row, panels.items(), strict=True):
                chance = CHANCE.get(task) if key == "span_token_accuracy" else None
                draw_panel(axes, curves[task, key], styles, members, chance)
            row[0].set_ylabel(label)
        for axes, (task, members) in zip(grid[0], panels.items(), strict=True):
            literal(axes.set_title(f"{task}{note_on_models(members)}"))
            axes.set_xlabel("")
        legend_below(figure, grid.flat)
    return figure


def describe_retrieval(evaluations):
    """A sentence for each model: the shortest and the longest length."""
    sentences = []
    for task, members in panels_of(evaluations).items():
        both = [curves_of(task, members, key) for key in ROWS]
        for tokens, whole in zip(*both, strict=True):
            shares = [
                f"{tokens.mean[n]:.3f} of tokens, {whole.mean[n]:.3f} of whole answers at {length:,}"
                for n, length in enumerate(tokens.lengths)
                if length in tokens.lengths[[0, -1]]
            ]
            sentences.append(f"{task}, {tokens.name}: {'; '.join(shares)}.")
    return sentences
