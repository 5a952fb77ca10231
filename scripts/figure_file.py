"""The look of the figures, and how they reach the disk: all at once, or not at all."""

import io
import os
import stat
import sys
import warnings
from pathlib import Path

from console import ScriptError, UsageError

os.environ["MPLBACKEND"] = "agg"  # whatever the user's shell or matplotlibrc says

import matplotlib  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402

matplotlib.rcdefaults()
warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)

DPI = 150
MOST_PIXELS = 65_000  # of height or width; matplotlib has a limit of 2^16
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
}
FORMATS = sorted(
    set(matplotlib.backend_bases.FigureCanvasBase.get_supported_filetypes()) - {"pgf"}
)  # pgf needs LaTeX


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


def check_figure_path(path):
    """Refuses what cannot become a figure, before anything is drawn."""
    if path.is_dir():
        raise UsageError(
            f"--out {path}: is a folder; give the name of a file in it, as {path / 'figure.png'}"
        )
    if is_standard_output(path) and not os.path.samestat(path.stat(), os.stat(os.devnull)):
        raise UsageError(
            f"--out {path}: is where the sentences about the figure go; give a file or another pipe"
        )
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise UsageError(f"--out {path}: its symbolic links lead in a circle")
    parent = target.parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise UsageError(f"--out {path}: {parent} is not a folder")
    format_of(path)


def write_figure(figure, path):
    """Writes the figure to `path` and closes it. Where that fails, the file that was there stays."""
    picture = io.BytesIO()
    dpi = min(DPI, MOST_PIXELS / max(figure.get_size_inches()))
    try:
        figure.savefig(picture, format=format_of(path), dpi=dpi)
    finally:
        plt.close(figure)
    try:
        if is_special(path):
            path.write_bytes(picture.getbuffer())
        else:
            replace_file(Path(os.path.realpath(path)), picture.getbuffer())
    except OSError as error:
        raise ScriptError(
            f"{path}: cannot write the figure: {error.strerror}; --out names another place"
        ) from None


def replace_file(path, contents):
    """Puts a new file in the place of `path` in one step, with the old one's permissions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(0, "the file that is there is read-only")
    temporary = path.with_name(f".figure.{os.getpid()}.partial")
    try:
        with open(temporary, "wb") as file:
            file.write(contents)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
