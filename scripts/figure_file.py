"""The look of the figures, and how they reach the disk: all at once, or not at all."""

import io
import os
import sys
import textwrap
import warnings
from pathlib import Path

from console import ScriptError, UsageError, one_line
from whole_file import replace_file

os.environ["MPLBACKEND"] = "agg"  # whatever the user's shell or matplotlibrc says

import matplotlib  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402

matplotlib.rcdefaults()
matplotlib.rcParams.update({
    "pdf.fonttype": 42,  # letters as TrueType outlines: programs can select and search them
    "ps.fonttype": 42,
    "svg.hashsalt": "train_gpt_goat",  # the names in an SVG file do not change from call to call
})  # fmt: skip
warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)

DPI = 150
MOST_PIXELS = 65_000  # of height or width; matplotlib has a limit of 2^16

# Colours of Okabe and Ito, which colour-blind people can tell apart. Neighbours also differ in brightness,
# line and marker, so that a print in grey can be read.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#D55E00", "#56B4E9")
LINES = ("-", "--", "-.", (0, (1, 1.2)), (0, (7, 2)), (0, (4, 1.5, 1, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINE, ACCENT = COLOURS[0], COLOURS[5]
SEQUENTIAL, DIVERGING = "magma", "RdBu_r"  # of matrices: from none to much, and around zero
GRID, REFERENCE = "#e5e5e5", "#333333"  # lines of the grid; lines that no run has drawn
DASHED = (0, (5, 4))  # of reference lines
LONGEST_LABEL = 80  # characters in a legend
LEAVES_VIEW = ", leaves the view"  # after the name of a curve

LEGEND_HEIGHT = 0.8  # inches, for which the figures' heights have room
STYLE = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#333333",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.grid": False,
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
}
FORMATS = sorted(
    set(matplotlib.backend_bases.FigureCanvasBase.get_supported_filetypes()) - {"pgf"}
)  # pgf needs LaTeX
# The date is left out: the same input gives the same bytes.
UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "svgz": {"Date": None}}


def series_style(n):
    """How the n-th curve of a figure looks: colour, line and marker."""
    return {
        "color": COLOURS[n % len(COLOURS)],
        "linestyle": LINES[n % len(LINES)],
        "marker": MARKERS[n % len(MARKERS)],
    }


def layer_colours(count):
    """A colour for each of `count` curves that have an order: dark first, none too pale for white paper."""
    return [plt.get_cmap(SEQUENTIAL)(0.8 * n / max(1, count - 1)) for n in range(count)]


def literal(text):
    """Shows the text as it is: a folder's name may hold '$'."""
    text.set_parse_math(False)
    return text


def wrapped(name, width):
    """A long name in several lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(name, width)) or name


def legend_below(figure, axes):
    """A legend of all labelled artists of `axes`, each label once, in as many columns as there is room for.
    It stands under the panels: it covers no data. A figure grows with a high one."""
    handles = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = [
        label if len(label) <= LONGEST_LABEL else "..." + label[3 - LONGEST_LABEL :] for label in handles
    ]
    if not labels:
        return None
    for columns in sorted({-(-len(labels) // rows) for rows in range(1, len(labels) + 1)}, reverse=True):
        legend = figure.legend(
            handles.values(), labels, loc="outside lower center", frameon=False, ncols=columns
        )
        for text in legend.get_texts():
            literal(text)
        size = legend.get_window_extent()
        if columns == 1 or size.width <= figure.bbox.width:
            inches = size.height / figure.dpi
            figure.set_figheight(figure.get_figheight() + max(0, inches - LEGEND_HEIGHT))
            return legend
        legend.remove()


def plain_numbers(axes):
    """Labels such as 20 and 1,000 on a logarithmic y axis: 1, 2, 5 of a decade; round steps where it spans
    less than one; powers of ten where it spans many."""
    low, high = axes.get_ylim()
    if high < 10 * low:
        locator = matplotlib.ticker.MaxNLocator(7)
    else:
        locator = matplotlib.ticker.LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,), numticks=20)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def heading(figure, text):
    """The title of a figure, at its left edge."""
    return literal(figure.suptitle(one_line(text), fontsize=12, fontweight="bold", x=0.012, ha="left"))


def is_special(path):
    """Whether the path leads to a device or named pipe, which is written to and never replaced."""
    return path.exists() and not path.is_file()


def format_of(path):
    """The picture format that the name asks for; PNG where a device or pipe has no ending."""
    ending = path.suffix[1:].lower()
    if not ending and is_special(path):
        return "png"
    if ending not in FORMATS:
        raise UsageError(
            f"--out {path}: no picture format; expected a name that ends in .{', .'.join(FORMATS)}"
        )
    return ending


def is_standard_output(path):
    try:
        return sys.stdout is not None and os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except OSError:
        return False


def check_output_path(path):
    """Refuses what cannot become a file, before anything is computed for it."""
    if path.is_dir():
        raise UsageError(
            f"--out {path}: is a folder; give the name of a file in it, as {path / 'figure.png'}"
        )
    if is_standard_output(path) and not os.path.samestat(path.stat(), os.stat(os.devnull)):
        raise UsageError(
            f"--out {path}: is where the sentences about the file go; give a file or another pipe"
        )
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise UsageError(f"--out {path}: its symbolic links lead in a circle")
    parent = target.parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise UsageError(f"--out {path}: {parent} is not a folder")


def check_figure_path(path):
    """Refuses what cannot become a figure, before anything is drawn."""
    check_output_path(path)
    format_of(path)


def picture_of(figure, ending):
    """The figure's bytes; the same for the same figure."""
    picture = io.BytesIO()
    dpi = min(DPI, MOST_PIXELS / max(figure.get_size_inches()))
    figure.savefig(picture, format=ending, dpi=dpi, metadata=UNDATED.get(ending))
    return picture.getvalue()


def write_figure(figure, path):
    """Writes the figure to `path` and closes it. Where that fails, the file that was there stays."""
    try:
        picture = picture_of(figure, format_of(path))
    finally:
        plt.close(figure)
    write_output(path, picture, "figure")


def write_output(path, contents, what):
    """Writes to a pipe or device, or puts a new file in the place of `path`."""
    try:
        if is_special(path):
            path.write_bytes(contents)
        else:
            replace_file(Path(os.path.realpath(path)), contents)
    except OSError as error:
        raise ScriptError(
            f"{path}: cannot write the {what}: {error.strerror}; --out names another place"
        ) from None
