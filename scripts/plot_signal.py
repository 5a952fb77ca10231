"""Signal against sink: what attention makes of content and prior, query by query, run beside run."""

from dataclasses import dataclass

import numpy as np
from analysis_reader import Analysis, command_for, open_analysis
from console import DataError, UsageError
from figure_file import GRID, REFERENCE, STYLE, layer_colours, legend_below, literal, plt, wrapped
from plot_loss import names_of
from plot_sink import check_layer

QUANTITIES = (  # the last dimension of signal_vs_sink.npy
    ("omega", r"content range $\omega$ (nats)"),
    ("p_first", r"$p_0$, on the first key"),
    ("p_max", "largest $p$"),
    ("mass_last_128", "mass of the last 128 keys"),
)
MEAN = {"color": REFERENCE, "linewidth": 2, "linestyle": (0, (4, 1.5)), "label": "mean"}
TITLE_CHARACTERS = 38  # of a line above a column
MOST_NAMED = 12  # lines that the legend names; of more it names the first and the last


@dataclass(frozen=True)
class Signal:
    analysis: Analysis
    name: str
    noun: str  # "layer" or "head": what a curve is
    curves: np.ndarray  # [curves, T, 4], means over the sequences and, of layers, over their heads


def signal_of(run, name, layer, warn):
    """Of all layers, a curve each; of one layer its heads, a curve each."""
    analysis = open_analysis(run, warn)
    check_layer(layer, analysis)
    if not analysis.has("signal_vs_sink.npy"):
        raise UsageError(
            f"{analysis.folder}: has no signal_vs_sink.npy, the run's validation data was not found; make it "
            f"with: {command_for(run)} --data 'FOLDER/val_*.bin'"
        )
    shape = (analysis.layers, analysis.heads, None, analysis.length, len(QUANTITIES))
    values = analysis.array("signal_vs_sink.npy", np.float32, *shape).astype(np.float64)
    if not values.size:
        raise DataError(f"{analysis.folder / 'signal_vs_sink.npy'}: holds no sequence")
    if layer is None:
        return Signal(analysis, name, "layer", values.mean(axis=(1, 2)))
    return Signal(analysis, name, "head", values[layer].mean(axis=1))


def signals_of(runs, layer=None, warn=lambda message: None):
    return [signal_of(run, name, layer, warn) for run, name in zip(runs, names_of(runs), strict=True)]


def draw_column(column, signal, colours):
    """The four quantities of one run, by query. The n-th layer or head has the n-th colour in all runs."""
    count = len(signal.curves)
    named = range(count) if count <= MOST_NAMED else (0, count - 1)
    for quantity, axes in enumerate(column):
        for n, curve in enumerate(signal.curves):
            label = f"{signal.noun} {n}" if n in named else None
            axes.plot(curve[:, quantity], color=colours[n], linewidth=0.9, label=label)
        axes.plot(signal.curves[..., quantity].mean(axis=0), **MEAN)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
    name, analysis = wrapped(signal.name, TITLE_CHARACTERS), signal.analysis
    literal(column[0].set_title(f"{name}\n{analysis.attention}, step {analysis.step}", fontsize=9))


def draw_signal(signals):
    """A column a run, a row a quantity; rows share their scale, so that runs compare."""
    colours = layer_colours(max(len(signal.curves) for signal in signals))
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            len(QUANTITIES), len(signals), figsize=(1.6 + 3 * len(signals), 8.6), squeeze=False,
            layout="constrained", sharey="row", sharex="col",
        )  # fmt: skip
        for column, signal in zip(grid.T, signals, strict=True):
            draw_column(column, signal, colours)
            column[-1].set_xlabel("query i")
        for axes, (_, label) in zip(grid[:, 0], QUANTITIES, strict=True):
            axes.set_ylabel(label)
        grid[0, 0].set_ylim(bottom=0)
        for axes in grid[1:, 0]:
            axes.set_ylim(-0.03, 1.03)
        legend_below(figure, grid[0])
    return figure


def describe_signal(signal):
    """A sentence with the means over all curves and the queries i >= T/4, as analysis.json has them."""
    first = max(1, signal.analysis.length // 4)
    omega, first_key, largest, last = signal.curves[:, first:].mean(axis=(0, 1))
    return (
        f"{signal.name}: content range {omega:.3f} nats, p_0 {first_key:.3f}, largest p {largest:.3f}, mass "
        f"of the last 128 keys {last:.3f}; means over the queries i >= {first}."
    )
