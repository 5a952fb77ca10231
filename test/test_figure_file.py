"""The file of a figure: whole or not at all, through links, to pipes and devices, and what is refused."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

import figure_file
from conftest import REPOSITORY
from fabricated_run import fails, is_picture, no_figure_stays_open, run

SCRIPT = REPOSITORY / "scripts" / "plot.py"


def test_a_figure_of_many_heads_is_not_too_large_for_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_file, "MOST_PIXELS", 700)
    figure, _ = figure_file.plt.subplots(figsize=(2, 10))
    figure_file.write_figure(figure, tmp_path / "x.png")
    assert imread(tmp_path / "x.png").shape[:2] == (700, 140)


def test_curves_differ_in_more_than_colour_and_colours_in_brightness():
    styles = [figure_file.series_style(n) for n in range(6)]
    for kind in ("color", "linestyle", "marker"):
        assert len({style[kind] for style in styles}) == 6
    assert figure_file.series_style(99)["color"] in figure_file.COLOURS
    grey = [np.dot(to_rgb(colour), (0.299, 0.587, 0.114)) for colour in figure_file.COLOURS]
    assert min(abs(one - other) for one, other in pairwise(grey)) > 0.15
    shades = [np.dot(colour[:3], (0.299, 0.587, 0.114)) for colour in figure_file.layer_colours(12)]
    assert shades == sorted(shades) and shades[-1] < 0.8
    assert len(figure_file.layer_colours(1)) == 1


def test_a_legend_stands_under_the_panels_and_covers_none(tmp_path):
    figure, panels = figure_file.plt.subplots(1, 2, figsize=(7, 4), layout="constrained")
    for axes in panels:
        axes.plot([0, 1], [0, 1], label="a $x_$ name")
        axes.plot([0, 1], [1, 0], label="long " * 40)
    legend = figure_file.legend_below(figure, panels)
    texts = legend.get_texts()
    assert [text.get_text() for text in texts] == ["a $x_$ name", "..." + ("long " * 40)[-77:]]
    assert not any(text.get_parse_math() for text in texts)
    figure.canvas.draw()
    box = legend.get_window_extent()
    for axes in panels:
        assert axes.get_tightbbox().y0 >= box.y1 - 1 and axes.get_window_extent().height > 100
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert figure_file.legend_below(figure, [figure.add_subplot()]) is None


@pytest.mark.parametrize("entries", [12, 40])
def test_a_figure_grows_with_its_legend(entries):
    figure, axes = figure_file.plt.subplots(figsize=(7, 4), layout="constrained")
    for n in range(entries):
        axes.plot([0, 1], [0, n], label=f"a run with a name of usual length {n}")
    legend = figure_file.legend_below(figure, [axes])
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == entries and box.y0 >= 0
    assert axes.get_tightbbox().y0 >= box.y1 - 1
    assert axes.get_window_extent().height > 2.4 * figure.dpi


@pytest.mark.parametrize("letter", ["i", "m"])
@pytest.mark.parametrize("length", [1, 5, 20, 33])
def test_a_legend_takes_as_many_columns_as_there_is_room_for(letter, length):
    """Words of the same length differ in their widths."""
    figure, axes = figure_file.plt.subplots(figsize=(7, 4), layout="constrained")
    for n in range(8):
        axes.plot([0, 1], [0, n], label=letter * (length - 1) + str(n))
    legend = figure_file.legend_below(figure, [axes])
    assert figure.legends == [legend]
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    rows = len({text.get_window_extent().y0 for text in legend.get_texts()})
    if rows > 1:
        columns, more = -(-8 // rows), -(-8 // (rows - 1))
        assert box.width * more / columns > 0.95 * figure.bbox.width


@pytest.mark.parametrize("bounds", [(12.4, 13.9), (4, 60), (1, 3e5), (0.5, 1e12)])
def test_a_logarithmic_axis_has_a_few_plain_labels(bounds):
    figure, axes = figure_file.plt.subplots()
    axes.set_yscale("log")
    axes.set_ylim(bounds)
    figure_file.plain_numbers(axes)
    figure.canvas.draw()
    low, high = bounds
    ticks = axes.yaxis.get_major_ticks()
    shown = [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high]
    assert 3 <= len(shown) <= 16
    for text, tick in zip(shown, (t for t in ticks if low <= t.get_loc() <= high), strict=True):
        assert float(text.replace(",", "")) == pytest.approx(tick.get_loc())
    assert not any(label.get_text() for label in axes.yaxis.get_minorticklabels())


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_the_same_figure_is_the_same_bytes_at_any_time(run, tmp_path, run_command, ending):
    made = []
    for n in range(2):
        path = tmp_path / f"{n}.{ending}"
        words = ["env", f"PYTHONHASHSEED={n}", sys.executable, SCRIPT, "loss", run, "--out", path]
        run_command(words)
        made.append(path.read_bytes())
    assert made[0] == made[1] and b"CreationDate" not in made[0] and b"<dc:date>" not in made[0]


def test_a_failed_figure_leaves_the_old_one(run, tmp_path, monkeypatch):
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")
    figure, _ = figure_file.plt.subplots()
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(
                figure_file.os, name, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
            with pytest.raises(figure_file.ScriptError, match="No space left"):
                figure_file.write_figure(figure, path)
    with monkeypatch.context() as patch:
        patch.setattr(figure, "savefig", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            figure_file.write_figure(figure, path)
    assert path.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["figure.png", "run"]


def test_links_are_written_through(run, tmp_path, run_command):
    (tmp_path / "there").mkdir()
    old = tmp_path / "there" / "old.png"
    old.write_bytes(b"old")
    for link, target in [("a.png", old), ("b.png", tmp_path / "there" / "new.png")]:
        (tmp_path / link).symlink_to(target)
        run_command([sys.executable, SCRIPT, "loss", run, "--out", tmp_path / link])
        assert (tmp_path / link).is_symlink() and is_picture(target, 800, 400)


def test_pipes_and_devices_are_written_to(run, tmp_path, run_command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    run_command([sys.executable, SCRIPT, "loss", run, "--out", pipe])
    assert reader.communicate(timeout=300)[0].startswith(b"\x89PNG") and pipe.is_fifo()
    run_command([sys.executable, SCRIPT, "loss", run, "--out", "/dev/null"])
    error = run_command([sys.executable, SCRIPT, "loss", run, "--out", "/dev/full"], code=1).stderr
    assert (
        "/dev/full: cannot write the figure: No space left on device" in error
        and Path("/dev/full").is_char_device()
    )


def test_a_figure_that_cannot_be_written_is_refused(run, tmp_path, fails):
    (tmp_path / "file").touch()
    (tmp_path / "loop.png").symlink_to("loop.png")
    for out, code, part in [
        (tmp_path, 2, "is a folder"),
        (".", 2, "is a folder"),
        (tmp_path / "x", 2, ".png"),
        (tmp_path / ".png", 2, ".svg"),
        (tmp_path / "x.xyz", 2, ".pdf"),
        (tmp_path / "x.pgf", 2, ".pdf"),
        (tmp_path / "file" / "x.png", 2, f"{tmp_path / 'file'} is not a folder"),
        (tmp_path / "loop.png", 2, "circle"),
        (tmp_path / ("x" * 300 + ".png"), 1, "name too long"),
        ("/proc/x.png", 1, "cannot write the figure"),
    ]:
        assert part in fails(code, "loss", run, "--out", out)
        if code == 2:
            assert part in fails(code, "prior", run, "--out", out)
    (run / "figures").write_text("a file where the folder should be")
    assert "figures" in fails(1, "prior", run, "--length", 3) and "figures" in fails(1, "loss", run)


def test_places_where_nothing_can_be_written_are_named(run, fails):
    (run / "figures").symlink_to("/proc")
    error = fails(1, "loss", run)
    assert str(run / "figures" / "loss.png") in error and "--out names another place" in error


def test_a_read_only_figure_is_not_replaced(run, tmp_path, fails, monkeypatch):
    (tmp_path / "x.png").write_bytes(b"mine")
    monkeypatch.setattr(figure_file.os, "access", lambda path, mode: mode != os.W_OK)
    assert "read-only" in fails(1, "loss", run, "--out", tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes() == b"mine"


def test_a_figure_does_not_go_where_the_sentences_go(run, run_command, tmp_path):
    error = run_command([sys.executable, SCRIPT, "loss", run, "--out", "/dev/stdout"], code=2).stderr
    assert "--out /dev/stdout" in error
    with open(tmp_path / "out.png", "wb") as out:
        words = [sys.executable, SCRIPT, "loss", run, "--out", tmp_path / "out.png"]
        assert subprocess.run(words, stdout=out, stderr=subprocess.PIPE, timeout=300).returncode == 2
