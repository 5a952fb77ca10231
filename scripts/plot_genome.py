"""Completions of a genome beside the truth: GC content, matches and the bases themselves."""

import shlex
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from console import DataError, UsageError, count
from figure_file import COLOURS, GRID, LINES, REFERENCE, STYLE, heading, plt
from genome_completions import FILE, check_model
from genome_measures import BASES, gc_content, matches, mean_or_none, pearson_r
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from run_reader import is_count, open_checkpoint, read_json

MOST_PROMPTS = 6  # of a figure
MOST_COMPLETIONS = 8  # of a prompt that are drawn; its numbers are of all
MOST_LETTERS = 600  # bases of each that are spelled out
COLUMNS = 100  # letters of a line
CHANCE = 0.25  # share of matches of bases drawn at random
COLOUR_OF = dict(zip(BASES, (COLOURS[2], COLOURS[0], COLOURS[1], "#999999", COLOURS[3]), strict=True))
LARGEST_COMPLETIONS = 1 << 30  # bytes


@dataclass(frozen=True)
class Prompt:
    """A piece of the data and what the model made of it. Numbers are computed from the bases."""

    number: int
    place: str
    truth: str  # how the data go on
    texts: list
    window: int

    @property
    def spelled(self):
        """The sequences that are written in letters, the truth first."""
        return [sequence[:MOST_LETTERS] for sequence in (self.truth, *self.texts[:MOST_COMPLETIONS])]

    @property
    def title(self):
        shown = f"prompt {self.number}: {self.place}"
        if len(self.texts) > MOST_COMPLETIONS:
            shown += f"; {MOST_COMPLETIONS} of {len(self.texts)} completions"
        if len(self.truth) > MOST_LETTERS:
            shown += f"; the first {MOST_LETTERS} bases in letters"
        return shown

    @property
    def correlations(self):
        truth = gc_content(self.truth, self.window)
        return [pearson_r(truth, gc_content(text, self.window)) for text in self.texts]

    @property
    def hits(self):
        """[samples, bases] whether the base is the truth's."""
        return np.array([matches(self.truth, text) for text in self.texts])


def is_bases(text):
    return isinstance(text, str) and bool(text) and set(text) <= set(BASES)


def prompt_of(number, entry, window):
    """Raises ValueError, KeyError or TypeError for what is no entry of completions.json."""
    truth, texts = entry["truth"], [completion["text"] for completion in entry["completions"]]
    if not texts or not all(is_bases(text) and len(text) == len(truth) for text in (truth, *texts)):
        raise ValueError
    if not window < len(truth):
        raise ValueError
    return Prompt(number, f"{entry['shard']}, base {entry['position']:,}", truth, texts, window)


def read_completions(run):
    """The step and the prompts in RUN/completions.json. Raises UsageError, DataError."""
    path = Path(run) / FILE
    if not path.exists():
        check_model(open_checkpoint(run, None, warn=lambda message: None))
        command = shlex.join([".venv/bin/python", "scripts/genome_completions.py", str(run)])
        raise UsageError(f"{path}: is not there yet; this makes it: {command}")
    contents = read_json(path, LARGEST_COMPLETIONS)
    try:
        window = contents["window"]
        if not (is_count(window) and window > 0 and is_count(contents["step"])):
            raise ValueError
        prompts = [prompt_of(n, entry, window) for n, entry in enumerate(contents["prompts"])]
    except (ValueError, KeyError, TypeError):
        prompts = []
    if not prompts:
        raise DataError(f"{path}: not what scripts/genome_completions.py writes")
    return contents["step"], prompts


def chosen_prompts(prompts, number):
    if number is None:
        return prompts[:MOST_PROMPTS]
    if not 0 <= number < len(prompts):
        raise UsageError(f"--prompt {number}: the file has the prompts 0 to {len(prompts) - 1}")
    return [prompts[number]]


def draw_gc(axes, prompt):
    """GC content of the windows by their first base, in percent."""
    truth = 100 * gc_content(prompt.truth, prompt.window)
    axes.plot(truth, color="#000000", linewidth=2, label="truth")
    pairs = zip(prompt.texts, prompt.correlations, strict=True)
    for n, (text, r) in enumerate(islice(pairs, MOST_COMPLETIONS)):
        style = {"color": COLOURS[n % 4], "linestyle": LINES[1 + n % (len(LINES) - 1)], "linewidth": 1.3}
        said = "r: none, constant" if r is None else f"r = {r:.2f}"
        curve = 100 * gc_content(text, prompt.window)
        axes.plot(curve, label=f"completion {n + 1}, {said}", **style)
    axes.set_ylabel(f"GC (%), windows of {prompt.window}")
    axes.set_xlim(0, len(prompt.truth))
    axes.set_ylim(0, 100)
    axes.set_title(prompt.title, loc="left", fontsize=9, parse_math=False)
    axes.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), frameon=False, fontsize=8)


def draw_matches(axes, prompt):
    """The share of samples with the truth's base at each position, and its mean over a window."""
    share = 100 * prompt.hits.mean(axis=0)
    axes.bar(np.arange(len(share)) + 0.5, share, width=1, color="#c9c9c9", label="at each base")
    means = np.lib.stride_tricks.sliding_window_view(share, prompt.window).mean(axis=1)
    axes.plot(means, color=COLOURS[0], linewidth=1.6, label=f"mean of {prompt.window} bases")
    chance = {"color": REFERENCE, "linewidth": 1, "linestyle": LINES[1], "label": "drawn at random: 25 %"}
    axes.axhline(100 * CHANCE, **chance)
    samples = len(prompt.texts)
    axes.set_ylabel("matches (%)" if samples == 1 else f"matches (%),\nmean of {samples}")
    axes.set_xlabel("base after the prompt (of a window: its first)")
    axes.set_xlim(0, len(share))
    axes.set_ylim(0, 104)
    axes.legend(
        loc="center left", bbox_to_anchor=(1.005, 0.5), frameon=False, fontsize=8,
        title=f"{share.mean():.1f} % match", title_fontsize=8, alignment="left",
    )  # fmt: skip


def draw_letters(axes, prompt):
    """Lines of 100 bases: the truth, and below it each completion, filled where it has the truth's base."""
    sequences = prompt.spelled
    lines = len(sequences)
    blocks = -(-len(sequences[0]) // COLUMNS)
    height = blocks * (lines + 1) - 1  # an empty line between blocks
    cells = np.ones((height, COLUMNS, 3))
    labels = {}
    for block in range(blocks):
        for n, sequence in enumerate(sequences):
            row = block * (lines + 1) + n
            labels[row] = "truth" if n == 0 else f"completion {n}"
            for column, base in enumerate(sequence[block * COLUMNS : (block + 1) * COLUMNS]):
                is_match = base == prompt.truth[block * COLUMNS + column]
                if is_match:
                    cells[row, column] = 0.45 * np.array(to_rgb(COLOUR_OF[base])) + 0.55
                axes.text(
                    column, row, base, ha="center", va="center_baseline", fontsize=6.5, family="monospace",
                    color="#000000" if is_match else COLOUR_OF[base], weight="bold" if is_match else "normal",
                    in_layout=False,
                )  # fmt: skip
    axes.imshow(cells, aspect="auto", interpolation="nearest")
    axes.set_yticks(list(labels), labels.values(), fontsize=7)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    patches = [Patch(color=0.45 * np.array(to_rgb(COLOUR_OF[base])) + 0.55, label=base) for base in BASES]
    axes.legend(
        handles=patches, loc="center left", bbox_to_anchor=(1.005, 0.5), frameon=False, fontsize=8, ncols=3,
        title="filled: as the truth", title_fontsize=8, alignment="left", handlelength=1, columnspacing=1,
    )  # fmt: skip


def draw_genome(prompts, title):
    """Three panels a prompt, one below the other."""
    lines = [-(-len(prompt.spelled[0]) // COLUMNS) * (len(prompt.spelled) + 1) for prompt in prompts]
    heights = [height for lines_of_one in lines for height in (1.9, 1.4, 0.19 * lines_of_one + 0.1)]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            3 * len(prompts), 1, figsize=(13, 0.6 + sum(heights)), layout="constrained",
            height_ratios=heights, squeeze=False,
        )  # fmt: skip
        figure.get_layout_engine().set(h_pad=0.09)
        heading(figure, title)
        for n, prompt in enumerate(prompts):
            gc, share, letters = axes[3 * n : 3 * n + 3, 0]
            draw_gc(gc, prompt)
            draw_matches(share, prompt)
            draw_letters(letters, prompt)
            for panel in (gc, share):
                panel.grid(axis="y", color=GRID, linewidth=0.8)
                panel.set_axisbelow(True)
    return figure


def describe_genome(prompts):
    known = [r for prompt in prompts for r in prompt.correlations]
    mean, none = mean_or_none(known), known.count(None)
    share = np.mean([prompt.hits.mean() for prompt in prompts])
    text = "no Pearson r has a value" if mean is None else f"mean Pearson r of GC content {mean:.3f}"
    if mean is not None and none:
        text += f" ({none} of {len(known)} have none: a GC content is constant)"
    return f"{count(len(prompts), 'prompt')}: {text}; matches {share:.1%}."
