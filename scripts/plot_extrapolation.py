"""The figure of extrapolation: perplexity by length of several models, those that stay flat in detail."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from console import DataError, count
from eval_reader import names_of_evaluations, note_on_data
from figure_file import DASHED, GRID, REFERENCE, STYLE, plain_numbers, plt, series_style
from plot_eval import by_length
from run_reader import CONFIG, differing_keys, read_config

FLAT = 1.25  # a curve is flat if its perplexities differ by no more than this factor
INSET = (0.14, 0.5, 0.46, 0.44)  # left, bottom, width, height: shares of the axes; its labels are left of it
INSET_END, CURVES_BELOW = 0.64, 0.4  # left of this the curves stay below that, so that the inset hides none
SEED = re.compile(r"[-_. ]?seed[-_. ]?[0-9]+$")  # at the end of a run's name
DRAWN_WITH = re.compile(r", seed [0-9]+$")  # in the description of generated data


@dataclass(frozen=True)
class Curve:
    """Perplexity by length: of one evaluation, or of several seeds of the same settings."""

    name: str
    lengths: np.ndarray
    perplexity: np.ndarray  # exp of the mean of the seeds' losses
    lowest: np.ndarray  # of the seeds
    highest: np.ndarray

    @property
    def is_flat(self):
        finite = self.perplexity[np.isfinite(self.perplexity)]
        return len(finite) == len(self.perplexity) and finite.max() <= FLAT * finite.min()


@dataclass(frozen=True)
class Model:
    """Evaluations by one protocol that are seeds of one model, or one evaluation. It is named as an
    evaluation is."""

    run: Path  # of seeds: their runs' common path, without the seed
    step: str
    protocol: str
    path: Path
    seeds: list


def config_of(evaluation):
    """The settings of its run without the seed: from the run's folder or the one the file lies in. {} if
    there are none."""
    for folder in (evaluation.run, Path(evaluation.path).absolute().parent):
        if os.path.exists(folder / CONFIG):  # False also where it may not be looked for
            config = read_config(folder)
            config.pop("train.seed", None)
            return config
    return {}


def check_same_settings(evaluations):
    """Refuses to average what are not seeds of the same settings, as far as the files tell."""
    first = evaluations[0]
    config = config_of(first)
    for other in evaluations[1:]:
        pair = f"{first.where} and {other.where} are called seeds of one model, but"
        if not np.array_equal(first.lengths, other.lengths):
            raise DataError(f"{pair} were evaluated at different lengths")
        if first.train_length != other.train_length:
            raise DataError(f"{pair} were trained at different lengths")
        data = [DRAWN_WITH.sub("", each.data) for each in (first, other)]
        if all(data) and data[0] != data[1]:
            raise DataError(f"{pair} were evaluated on different data: {data[0]}; {data[1]}")
        theirs = config_of(other)
        if config and theirs and (keys := sorted(differing_keys([config, theirs]))):
            raise DataError(f"{pair} have different settings: {', '.join(keys[:5])}; rename one of the runs")


def models_of(evaluations):
    """The models: runs X_seed1, X_seed2, ... in one folder, evaluated by one protocol, are one. A run that is
    there twice is not averaged."""
    groups = {}
    for each in evaluations:
        model = SEED.sub("", each.run.name) or each.run.name
        groups.setdefault((each.run.parent / model, each.protocol), []).append(each)
    models = []
    for (run, protocol), members in groups.items():
        if 1 < len(members) == len({each.run for each in members}):
            models.append(Model(run, "", protocol, members[0].path, members))
        else:
            models += [Model(each.run, each.step, protocol, each.path, [each]) for each in members]
    return models


def groups_of(evaluations):
    """(name, seeds) of each model."""
    models = models_of(evaluations)
    return [
        (f"{name} (mean of {count(len(model.seeds), 'seed')})" if len(model.seeds) > 1 else name, model.seeds)
        for name, model in zip(names_of_evaluations(models), models, strict=True)
    ]


def curve_of(name, evaluations):
    check_same_settings(evaluations)
    losses = np.array([evaluation.column("nll") for evaluation in evaluations])
    with np.errstate(over="ignore"):
        return Curve(
            name, evaluations[0].lengths, np.exp(losses.mean(axis=0)), np.exp(losses.min(axis=0)),
            np.exp(losses.max(axis=0)),
        )  # fmt: skip


def curves_of(evaluations):
    """A curve for each model. Raises DataError for what has no perplexity to draw."""
    for evaluation in evaluations:
        if evaluation.is_task:
            raise DataError(f"{evaluation.path}: holds a task's accuracies; draw them with: plot.py eval")
    curves = [curve_of(name, members) for name, members in groups_of(evaluations)]
    for curve in curves:
        if not np.isfinite(curve.perplexity).any():
            raise DataError(f"{curve.name}: no length has a finite loss; the model has diverged")
    return curves


def draw_curves(axes, curves, styles):
    for curve, style in zip(curves, styles, strict=True):
        axes.plot(curve.lengths, curve.perplexity, markersize=5, label=curve.name, **style)
        if not np.array_equal(curve.lowest, curve.highest):
            band = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
            axes.fill_between(curve.lengths, curve.lowest, curve.highest, **band)


def make_room(axes, curves):
    """Raises the upper end of the logarithmic axis until no curve passes behind the inset."""
    (left, right), (low, high) = np.log(axes.get_xlim()), np.log(axes.get_ylim())
    edge = left + INSET_END * (right - left)
    for curve in curves:
        good = np.isfinite(curve.highest)
        x, y = np.log(curve.lengths[good]), np.log(curve.highest[good])
        behind = np.append(y[x <= edge], np.interp(edge, x, y))
        high = max(high, low + (behind.max() - low) / CURVES_BELOW)
    axes.set_ylim(top=np.exp(high))


def draw_inset(axes, curves, styles, train_lengths):
    """The flat curves on a linear axis, in the upper left."""
    inset = axes.inset_axes(INSET)
    draw_curves(inset, curves, styles)
    inset.set_xscale("log", base=2)
    inset.set_xticks(axes.get_xticks(), [])
    inset.minorticks_off()
    for length in train_lengths:
        inset.axvline(length, color=REFERENCE, linewidth=1, linestyle=DASHED)
    inset.grid(axis="y", color=GRID, linewidth=0.8)
    inset.tick_params(labelsize=7)
    inset.set_title("those that stay flat, linear", fontsize=8)
    return inset


def draw_extrapolation(evaluations):
    """All curves on a logarithmic axis, the flat ones again in an inset; on a linear axis if all are flat."""
    curves = curves_of(evaluations)
    styles = [series_style(n) for n in range(len(curves))]
    flat = [n for n, curve in enumerate(curves) if curve.is_flat]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
        draw_curves(axes, curves, styles)
        by_length(axes, evaluations)
        note = note_on_data(evaluations)
        axes.set_ylabel(f"perplexity{note}")
        if len(flat) == len(curves):
            return figure
        axes.set_yscale("log")
        axes.set_ylabel(f"perplexity (logarithmic){note}")
        plain_numbers(axes)
        if flat:
            make_room(axes, curves)
            lengths = sorted({evaluation.train_length for evaluation in evaluations})
            draw_inset(axes, [curves[n] for n in flat], [styles[n] for n in flat], lengths)
    return figure


def describe_extrapolation(evaluations):
    """A sentence for each curve: from where to where its perplexity goes."""
    sentences = []
    for curve in curves_of(evaluations):
        good = np.flatnonzero(np.isfinite(curve.perplexity))
        ends = [f"{curve.perplexity[n]:.3f} at {curve.lengths[n]:,}" for n in dict.fromkeys(good[[0, -1]])]
        sentences.append(f"{curve.name}: perplexity {' and '.join(ends)}{', flat' if curve.is_flat else ''}.")
    return sentences
