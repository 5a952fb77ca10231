"""The figure of extrapolation: perplexity by length of several models, narrow ranges in detail."""

import numpy as np
from console import DataError, count, some
from figure_file import (
    DASHED, GRID, LEAVES_VIEW, REFERENCE, STYLE, legend_below, plain_numbers, plt, series_style,
)  # fmt: skip
from plot_eval import show_lengths
from seeds import Curve, check_same_settings, models_of, note_on_models

NARROW = 1.25  # a curve has a narrow range if its perplexities differ by no more than this factor
NEAR = 2  # times the lowest perplexity: the most that is drawn in the inset
HIGHEST = 1e3  # times the lowest perplexity: a curve that goes beyond it has no say in where the axis ends
INSET = (0.14, 0.5, 0.46, 0.44)  # left, bottom, width, height: shares of the axes; its labels are left of it
INSET_END, CURVES_BELOW = 0.64, 0.4  # left of this the curves stay below that, so that the inset hides none


def is_narrow(curve):
    finite = curve.mean[np.isfinite(curve.mean)]
    return 1 < len(finite) == len(curve.mean) and finite.max() <= NARROW * finite.min()


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
    """A curve for each model. Raises DataError if none has a finite perplexity."""
    curves = [curve_of(name, members) for name, members in groups_of(evaluations)]
    if not any(np.isfinite(curve.mean).any() for curve in curves):
        names = some(curve.name for curve in curves)
        raise DataError(f"{names}: has diverged, no length has a finite loss with each seed")
    return curves


def draw_curves(axes, curves, styles):
    for curve, style in zip(curves, styles, strict=True):
        curve.draw(axes, style)
        curve.draw_band(axes, style)


def lowest_of(curves):
    lowest = (curve.mean[np.isfinite(curve.mean)].min(initial=np.inf) for curve in curves)
    return float(min(lowest, default=np.inf))


def in_detail(curves):
    """Which of them have a narrow range, and one linear axis can show: their positions."""
    narrow = [n for n, curve in enumerate(curves) if is_narrow(curve)]
    end = NEAR * lowest_of([curves[n] for n in narrow])
    return [n for n in narrow if curves[n].mean.max() <= end]


def scale_logarithmically(axes, curves):
    """A model that has diverged leaves the view at the top: the others would be one line."""
    with np.errstate(over="ignore"):  # in matplotlib's margins
        axes.set_yscale("log")
        low, high = axes.get_ylim()
    lowest = lowest_of(curves)
    axes.set_ylim(max(low, 0.8 * lowest), min(high, HIGHEST * lowest))


def make_room(axes, curves):
    """Raises the upper end of the logarithmic axis until no curve passes behind the inset, but those that
    leave the view. False if that is beyond float64."""
    (left, right), (low, high) = np.log(axes.get_xlim()), np.log(axes.get_ylim())
    edge, end = left + INSET_END * (right - left), HIGHEST * lowest_of(curves)
    for curve in curves:
        good = np.isfinite(curve.highest)
        if good.any() and not (curve.mean > end).any():
            x, y = np.log(curve.lengths[good]), np.log(curve.highest[good])
            behind = np.append(y[x <= edge], np.interp(edge, x, y))
            high = max(high, low + (behind.max() - low) / CURVES_BELOW)
    if high > np.log(np.finfo(np.float64).max):
        return False
    axes.set_ylim(top=np.exp(high))
    return True


def name_those_that_leave(axes, curves):
    """In the legend; `curves` are the first lines of the axes. One without a finite perplexity is none."""
    top = axes.get_ylim()[1]
    for line, curve in zip(axes.lines[: len(curves)], curves, strict=True):
        if (curve.mean > top).any() or not np.isfinite(curve.mean).any():
            line.set_label(curve.name + LEAVES_VIEW)


def draw_inset(axes, curves, styles, train_lengths):
    """The curves of a narrow range on a linear axis, in the upper left."""
    inset = axes.inset_axes(INSET)
    draw_curves(inset, curves, styles)
    inset.set_xscale("log", base=2)
    inset.set_xticks(axes.get_xticks(), [])
    inset.minorticks_off()
    for length in train_lengths:
        inset.axvline(length, color=REFERENCE, linewidth=1, linestyle=DASHED)
    inset.grid(axis="y", color=GRID, linewidth=0.8)
    inset.tick_params(labelsize=7)
    inset.set_title(f"those within a factor of {NARROW:g}, linear", fontsize=8)
    return inset


def draw_extrapolation(evaluations):
    """All curves on a logarithmic axis, those of a narrow range again in an inset; on a linear axis if all
    are such."""
    curves = curves_of(evaluations)
    styles = [series_style(n) for n in range(len(curves))]
    detailed = in_detail(curves)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
        draw_curves(axes, curves, styles)
        show_lengths(axes, evaluations)
        note = note_on_models(evaluations)
        axes.set_ylabel(f"perplexity{note}")
        if len(detailed) < len(curves):
            scale_logarithmically(axes, curves)
            axes.set_ylabel(f"perplexity (logarithmic){note}")
            plain_numbers(axes)
            if detailed and make_room(axes, curves):
                lengths = sorted({evaluation.train_length for evaluation in evaluations})
                draw_inset(axes, [curves[n] for n in detailed], [styles[n] for n in detailed], lengths)
            name_those_that_leave(axes, curves)
        legend_below(figure, [axes])
    return figure


def sentence_of(curve):
    is_finite = np.isfinite(curve.mean)
    parts = []
    if is_finite.any():
        ends = dict.fromkeys(np.flatnonzero(is_finite)[[0, -1]])
        parts.append(" and ".join(f"{perplexity_text(curve.mean[n])} at {curve.lengths[n]:,}" for n in ends))
    if not is_finite.all():
        parts.append(f"not finite at {some(f'{length:,}' for length in curve.lengths[~is_finite])}")
    return f"{curve.name}: perplexity {', '.join(parts)}."


def perplexity_text(perplexity):
    return f"{perplexity:.3f}" if perplexity < 1e6 else f"{perplexity:.3g}"


def describe_extrapolation(evaluations):
    """A sentence for each curve: from where to where its perplexity goes."""
    return [sentence_of(curve) for curve in curves_of(evaluations)]
