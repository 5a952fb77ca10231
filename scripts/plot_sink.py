"""The key bias u(j) of every head, and the parts that it is the sum of."""

from dataclasses import dataclass

import numpy as np
from analysis_reader import Analysis, command_for, open_analysis
from console import DataError, UsageError
from figure_file import ACCENT, COLOURS, GRID, LINE, MARKERS, STYLE, heading, legend_below, plt

MOST_PANELS = 200
MOST_COLUMNS = 8  # where the heads of one layer are in several rows
MOST_POINTS = 4096  # of a curve; of longer ones every second, third, ... key is drawn
LINEAR = 1.0  # nats around zero that stay linear where the axis is logarithmic
LARGE = 10.0  # nats; where u(j) goes beyond, the axis is logarithmic
PARTS = {  # name in the legend, and how the line looks
    "sink": ("u(j), the sum", {"color": "#b0b0b0", "linestyle": "-", "linewidth": 3.2, "zorder": 2}),
    "sink_slope": ("slope", {"color": LINE, "linestyle": "--", "linewidth": 1.3, "zorder": 3}),
    "sink_mlp": ("MLP", {"color": ACCENT, "linestyle": "-.", "linewidth": 1.3, "zorder": 3}),
    "sink_bump": (
        "bump on j = 0",
        {"color": COLOURS[2], "linestyle": "none", "marker": MARKERS[1], "markersize": 5, "zorder": 4,
         "clip_on": False, "markeredgecolor": "white"},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class SinkParts:
    analysis: Analysis
    layers: list  # those that are drawn
    parts: dict  # name of the file, without its ending: [L, H, T] in nats

    @property
    def grid(self):
        """Rows and columns of panels."""
        heads = self.analysis.heads
        if len(self.layers) > 1:
            return len(self.layers), heads
        columns = min(heads, MOST_COLUMNS)
        return -(-heads // columns), columns


def check_layer(layer, analysis):
    if layer is not None and not 0 <= layer < analysis.layers:
        raise UsageError(f"--layer {layer}: {analysis.run} has the layers 0 to {analysis.layers - 1}")


def sink_parts(run, layer=None, warn=lambda message: None):
    """The curves of a layer, or of all. Raises UsageError, DataError."""
    analysis = open_analysis(run, warn)
    check_layer(layer, analysis)
    panels = analysis.heads * (analysis.layers if layer is None else 1)
    if panels > MOST_PANELS:
        raise UsageError(
            f"{run}: {panels} heads are more than a figure has room for (at most {MOST_PANELS}); "
            "draw one layer: --layer L"
        )
    layers = range(analysis.layers) if layer is None else [layer]
    if not analysis.has("sink.npy"):
        raise UsageError(
            f"{run}: model.attention is '{analysis.attention}', which adds no key bias u(j); nothing to draw"
        )
    shape = (analysis.layers, analysis.heads, analysis.length)
    parts = {name: analysis.array(f"{name}.npy", np.float64, *shape) for name in PARTS}
    total = parts["sink_slope"] + parts["sink_mlp"] + parts["sink_bump"]
    if not np.allclose(total, parts["sink"], rtol=1e-9, atol=1e-9):
        raise DataError(
            f"{analysis.folder}: sink.npy is not the sum of slope, MLP and bump; the files are of different "
            f"analyses; make them anew with: {command_for(run)}"
        )
    return SinkParts(analysis, list(layers), parts)


def draw_panel(axes, parts, layer, head):
    axes.axhline(0, color=GRID, linewidth=0.8, zorder=0)
    for name, (label, style) in PARTS.items():
        values = parts[name][layer, head]
        keys = np.arange(0, len(values), -(-len(values) // MOST_POINTS))
        keys = keys[:1] if name == "sink_bump" else keys  # the bump is on the first key alone
        axes.plot(keys, values[keys], label=label, **style)
    axes.set_title(f"layer {layer}, head {head}", fontsize=8, pad=3)
    axes.tick_params(labelsize=7)


def draw_sink(sink, title):
    """A panel a head; the layers are rows, or the heads of the only layer fill the rows."""
    rows, columns = sink.grid
    is_large = max(np.abs(values[sink.layers]).max() for values in sink.parts.values()) > LARGE
    if is_large:
        title += f"; linear to \N{PLUS-MINUS SIGN}{LINEAR:g} nat, logarithmic beyond"
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            rows, columns, figsize=(max(5.2, 0.8 + 2.1 * columns), 1.3 + 1.65 * rows), squeeze=False,
            layout="constrained", sharex=True, sharey="row",
        )  # fmt: skip
        heading(figure, title)
        for axes in grid[:, 0]:  # the others of a row share its scale
            axes.set_ylabel("nats (logarithmic)" if is_large else "nats")
            if is_large:
                axes.set_yscale("symlog", linthresh=LINEAR)
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        panels = [(layer, head) for layer in sink.layers for head in range(sink.analysis.heads)]
        for axes, (layer, head) in zip(grid.flat, panels, strict=False):
            draw_panel(axes, sink.parts, layer, head)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for column in range(columns):
            lowest = (len(panels) - 1 - column) // columns  # the last row may be short
            grid[lowest, column].set_xlabel("key j")
            grid[lowest, column].tick_params(labelbottom=True)
        figure.align_ylabels(grid[:, 0])
        legend_below(figure, [grid[0, 0]])
    return figure


def describe_sink(sink):
    """A sentence: the range of slopes and bumps in what is drawn."""
    slope = sink.parts["sink_slope"][sink.layers][..., 1]
    bump = sink.parts["sink_bump"][sink.layers][..., 0]
    mlp = np.ptp(sink.parts["sink_mlp"][sink.layers], axis=-1)
    return (
        f"Slopes {slope.min():.4f} to {slope.max():.4f} nats a token, bumps on j = 0 {bump.min():.3f} to "
        f"{bump.max():.3f} nats; the MLP's part spans at most {mlp.max():.3f} nats in a head."
    )
