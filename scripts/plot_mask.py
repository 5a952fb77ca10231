"""What the causal mask leaves of the prior: its softmax over all keys, beside that over the keys j <= i."""

import numpy as np
from figure_file import SEQUENTIAL, STYLE, heading, plt
from matplotlib.colors import LogNorm
from plot_prior import MASKED, PROBABILITY_FLOOR

HEADS_BESIDE = 2  # heads in a row, where there are more than that


def draw_probabilities(axes, matrix, norm, title):
    interpolation = "nearest" if len(matrix) <= 256 else "antialiased"
    image = axes.imshow(matrix, aspect="equal", interpolation=interpolation, cmap=SEQUENTIAL, norm=norm)
    axes.set_facecolor(MASKED)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9, pad=4)
    axes.set(xlabel="key j", ylabel="query i")
    return image


def draw_mask(matrices, title):
    """A pair of panels a head, side by side: without the mask, and causal."""
    beside = min(HEADS_BESIDE, matrices.heads)
    rows = -(-matrices.heads // beside)
    norm = LogNorm(PROBABILITY_FLOOR, 1)
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            rows, 2 * beside, figsize=(1.2 + 5.4 * beside, 0.7 + 2.6 * rows), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        heading(figure, title)
        panels = list(grid.flat)
        for head in range(matrices.heads):
            whole, causal = panels[2 * head : 2 * head + 2]
            drawn = np.maximum(matrices.unmasked(head), PROBABILITY_FLOOR)
            image = draw_probabilities(whole, drawn, norm, f"head {head}: over all keys")
            drawn = np.maximum(matrices.probabilities(head), PROBABILITY_FLOOR)
            hidden = np.ma.masked_where(~np.tri(matrices.length, dtype=bool), drawn)
            draw_probabilities(causal, hidden, norm, f"head {head}: causal")
        for axes in panels[2 * matrices.heads :]:
            axes.remove()
        beside_bar = grid[: matrices.heads // beside, -1]  # the last row may be short
        bar = figure.colorbar(image, ax=beside_bar, fraction=0.05, pad=0.02, label="probability")
        bar.outline.set_visible(False)
    return figure


def mass_ahead(matrices, head):
    """Share of the unmasked prior on keys after the query, a mean over the rows that have such."""
    return float(np.triu(matrices.unmasked(head), 1).sum(axis=1)[:-1].mean())


def describe_mask(matrices):
    shares = ", ".join(f"{head}: {mass_ahead(matrices, head):.1%}" for head in range(matrices.heads))
    return f"Of the prior over all keys, what lies after the query, by head (mean over queries): {shares}."
