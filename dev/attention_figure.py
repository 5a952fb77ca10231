#!/usr/bin/env python3
"""Draws dev/attention.png for dev/attention.md: .venv/bin/python dev/attention_figure.py [FILE]

Left, how a block of queries walks over the keys. Right, which lane of a warp holds which number of a 16 x 16
piece of S = Q K^T, as accumulators of two mma.m16n8k16, and which one it has to hold of P for P V, as their A
operand: the same.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import Patch, Rectangle  # noqa: E402

QUERIES, KEYS, WARPS, BLOCKS = 128, 64, 4, 3  # ForwardTraits<64>, three blocks of a sequence
MASKED, WHOLE, UNSEEN = "#f4a259", "#8cb369", "#eeeeee"


def accumulator(lane, register):
    """Row and column of d[register] of one 16 x 8 product."""
    return lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2


def a_operand(lane, register, half):
    """Row and column of one of the two numbers in a[register]."""
    return lane // 4 + 8 * (register % 2), 2 * (lane % 4) + half + 8 * (register // 2)


def owners_of_scores():
    """{(row, column): (lane, name)} of two products side by side."""
    return {
        (row, column + 8 * n): (lane, f"s{n}[{register}]")
        for n in range(2) for lane in range(32) for register in range(4)
        for row, column in [accumulator(lane, register)]
    }  # fmt: skip


def owners_of_operand():
    return {
        a_operand(lane, register, half): (lane, f"a[{register}]")
        for lane in range(32) for register in range(4) for half in range(2)
    }  # fmt: skip


def draw_walk(axes):
    rows, columns = BLOCKS * QUERIES // KEYS, BLOCKS * QUERIES // KEYS
    for block in range(BLOCKS):
        for tile in range(columns):
            last_seen, first_partly = (block + 1) * QUERIES // KEYS - 1, block * QUERIES // KEYS
            color = UNSEEN if tile > last_seen else MASKED if tile >= first_partly else WHOLE
            axes.add_patch(
                Rectangle((tile, 2 * block), 1, 2, facecolor=color, edgecolor="white", linewidth=2)
            )
            if tile <= last_seen:
                axes.text(tile + 0.5, 2 * block + 1, str(last_seen - tile + 1), ha="center", va="center")
    axes.plot([0, columns], [0, rows], color="black", linewidth=1)
    for warp in range(1, WARPS):
        axes.plot([0, columns], [4 + warp / 2, 4 + warp / 2], color="white", linewidth=0.8, linestyle=":")
    axes.set(
        xlim=(0, columns),
        ylim=(rows, 0),
        aspect="equal",
        xlabel="keys, 64 a tile",
        ylabel="queries, 128 a block",
    )
    axes.set_xticks(range(columns + 1), [KEYS * c for c in range(columns + 1)])
    axes.set_yticks(range(0, rows + 1, 2), [KEYS * r for r in range(0, rows + 1, 2)])
    axes.set_title(
        "Each block's steps: numbers give their order\n(dotted: the four warps of the last block)",
        fontsize=10,
    )
    labels = [
        Patch(color=MASKED, label="masked"),
        Patch(color=WHOLE, label="seen whole"),
        Patch(color=UNSEEN, label="never touched"),
    ]
    axes.legend(handles=labels, loc="upper right", fontsize=8)


def draw_owners(axes, owners, title):
    shades = plt.get_cmap("tab20")
    for (row, column), (lane, name) in owners.items():
        mine = lane == 5
        face = (*shades(lane // 4 * 2 + (lane % 2))[:3], 0.45)
        face = "#222222" if mine else face
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor="white", linewidth=0.8))
        axes.text(column + 0.5, row + 0.5, f"{lane}\n{name}" if mine else str(lane), ha="center", va="center",
                  fontsize=5 if mine else 7, color="white" if mine else "black")  # fmt: skip
    axes.plot([8, 8], [0, 16], color="black", linewidth=1)
    axes.plot([0, 16], [8, 8], color="black", linewidth=1, linestyle=":")
    axes.set(xlim=(0, 16), ylim=(16, 0), aspect="equal", xlabel="key (columns)", ylabel="query (rows)")
    axes.set_xticks([0, 4, 8, 12, 16])
    axes.set_yticks([0, 4, 8, 12, 16])
    axes.set_title(title, fontsize=10)


def main():
    scores, operand = owners_of_scores(), owners_of_operand()
    of_scores, of_operand = ({place: lane for place, (lane, _) in o.items()} for o in (scores, operand))
    if of_scores != of_operand:
        sys.exit("attention_figure: the lanes of S and P differ, and the figure's point is that they do not")
    figure, (walk, left, right) = plt.subplots(1, 3, figsize=(16, 5.6), width_ratios=(1, 1, 1))
    draw_walk(walk)
    draw_owners(
        left,
        scores,
        "S = Q K$^T$: accumulators s0 and s1 of two 16 x 8 products\n"
        "(numbers are lanes; lane 5 in black, with its registers)",
    )
    draw_owners(
        right,
        operand,
        "P as A operand of P V: registers a[0..3], two bf16 each\n"
        "(every number is already in the lane that needs it)",
    )
    figure.tight_layout()
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("attention.png")
    figure.savefig(target, dpi=110)
    print(target)


if __name__ == "__main__":
    main()
