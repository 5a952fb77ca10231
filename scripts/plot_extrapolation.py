"""The figure of extrapolation: perplexity by length of several models, those that stay flat in detail."""

import numpy as np
from console import DataError, count
from eval_reader import note_on_data
from figure_file import DASHED, GRID, REFERENCE, STYLE, plain_numbers, plt, series_style
from plot_eval import by_length
from seeds import Curve, check_same_settings, models_of

FLAT = 1.25  # a curve is flat if its perplexities differ by no more than this factor
INSET = (0.14, 0.5, 0.46, 0.44)  # left, bottom, width, height: shares of the axes; its labels are left of it
INSET_END, CURVES_BELOW = 0.64, 0.4  # left of this the curves stay below that, so that the inset hides none


def is_flat(curve):
    finite = curve.mean[np.isfinite(curve.mean)]
    return 1 < len(finite) == len(curve.mean) and finite.max() <= FLAT * finite.min()


def groups_of(evaluations):
    """(name, seeds) of each model."""
    return [
        (f"{name} (mean of {count(len(seeds), 'seed')})" if len(seeds) > 1 else name, seeds)
        for name, seeds in models_of(evaluations)
    ]


def curve_of(name, evaluations):
    """Perplexity by length, its mean over seeds, as in the tables of reproduce.py."""
    check_same_settings(evaluations)
    losses = np.array([evaluation.column("nll") for evaluation in evaluations])
    with np.errstate(over="ignore"):
        return Curve(name, evaluations[0].lengths, np.exp(losses))


def curves_of(evaluations):
    """A curve for each model. Raises DataError for what has no perplexity to draw."""
    for evaluation in evaluations:
        if evaluation.is_task:
            raise DataError(f"{evaluation.path}: holds a task's accuracies; draw them with: plot.py eval")
    curves = [curve_of(name, members) for name, members in groups_of(evaluations)]
    for curve in curves:
        if not np.isfinite(curve.mean).any():
            raise DataError(f"{curve.name}: no length has a finite loss; the model has diverged")
    return curves


def draw_curves(axes, curves, styles):
    for curve, style in zip(curves, styles, strict=True):
        curve.draw(axes, style)
        curve.draw_band(axes, style)


def make_room(axes, curves):
    """Raises the upper end of the logarithmic axis until no curve passes behind the inset. False if that
    is beyond float64."""
    (left, right), (low, high) = np.log(axes.get_xlim()), np.log(axes.get_ylim())
    edge = left + INSET_END * (right - left)
    for curve in curves:
        good = np.isfinite(curve.highest)
        x, y = np.log(curve.lengths[good]), np.log(curve.highest[good])
        behind = np.append(y[x <= edge], np.interp(edge, x, y))
        high = max(high, low + (behind.max() - low) / CURVES_BELOW)
    if high > np.log(np.finfo(np.float64).max):
        return False
    axes.set_ylim(top=np.exp(high))
    return True


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
    flat = [n for n, curve in enumerate(curves) if is_flat(curve)]
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
        if flat and make_room(axes, curves):
            lengths = sorted({evaluation.train_length for evaluation in evaluations})
            draw_inset(axes, [curves[n] for n in flat], [styles[n] for n in flat], lengths)
    return figure


def describe_extrapolation(evaluations):
    """A sentence for each curve: from where to where its perplexity goes."""
    sentences = []
    for curve in curves_of(evaluations):
        good = np.flatnonzero(np.isfinite(curve.mean))
        ends = [f"{curve.mean[n]:.3f} at {curve.lengths[n]:,}" for n in dict.fromkeys(good[[0, -1]])]
        flat = ", flat" if is_flat(curve) else ""
        sentences.append(f"{curve.name}: perplexity {' and '.join(ends)}{flat}.")
    return sentences
