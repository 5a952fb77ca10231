"""report.py: which figure evaluations of one kind have, and the command that draws it."""

import json
import math
import shlex

import numpy as np
import pytest

import plot
import report_figures
import report_html
from fabricated_run import CONFIG, no_figure_stays_open  # with a fixture
from figure_file import plt
from report_pages import (  # with fixtures
    evaluation, finished, losses, no_program, page_of, texts, write_evaluation,
)  # fmt: skip

LENGTHS = (20, 40, 80, 160)


def by_length(*values):
    """Rows of an evaluation; without a loss where the value is None."""
    pairs = zip(LENGTHS, values, strict=True)
    return [
        {"length": n, "nll": nll, "perplexity": math.exp(nll) if nll and nll < 700 else None, "tokens": 80}
        for n, nll in pairs
    ]


@pytest.fixture
def drawn(monkeypatch):
    """The curves of each figure of extrapolation on the page: {name in the legend: perplexities}."""
    figures, draw_extrapolation = [], report_figures.draw_extrapolation

    def draw(evaluations):
        figure = draw_extrapolation(evaluations)
        lines = figure.axes[0].lines
        figures.append({line.get_label(): line.get_ydata() for line in lines if len(line.get_xdata()) > 2})
        return figure

    monkeypatch.setattr(report_figures, "draw_extrapolation", draw)
    return figures


def plot_commands(page):
    """What plot.py is called with for the evaluations."""
    commands = [shlex.split(command)[2:] for command in page.commands if "plot.py" in command]
    return [words for words in commands if words[0] in ("eval", "extrapolation")]


def test_perplexities_beyond_the_training_length_are_the_means_of_seeds(tmp_path, page_of, drawn):
    runs = [finished(tmp_path / name) for name in ("x_seed1", "x_seed2", "rope")]
    values = [(1.5, 1.5, 1.4, 1.4), (1.7, 1.6, 1.6, 1.6), (1.5, 1.6, 3.0, 4.0)]
    for run, each in zip(runs, values, strict=True):
        write_evaluation(run, by_length(*each))
    page = page_of(*runs)
    [curves] = drawn
    assert list(curves) == ["x (mean of 2 seeds)", "rope"]
    assert curves["x (mean of 2 seeds)"] == pytest.approx(np.exp(values[:2]).mean(axis=0))
    assert "Runs X_seed1, X_seed2, ... of one folder are one curve, the mean" in page.text
    [words] = plot_commands(page)
    assert words == ["extrapolation", *(f"{run}/eval.json" for run in runs)]
    assert plot.main([*words, "--out", str(tmp_path / "again.png")]) == 0


def test_one_seed_of_each_model_is_no_mean(tmp_path, page_of, drawn):
    runs = [finished(tmp_path / name) for name in ("x_seed1", "y_seed1")]
    for run in runs:
        write_evaluation(run, by_length(1.5, 1.5, 1.4, 1.4))
    text = page_of(*runs).text
    assert len(drawn) == 1 and "the mean" not in text


@pytest.mark.parametrize("rows", [losses((20, 1.0), (40, 1.1)), losses((160, 1.0))])
def test_lengths_of_the_training_or_one_alone_are_no_extrapolation(tmp_path, page_of, drawn, rows):
    run = finished(tmp_path / "a")
    write_evaluation(run, rows)
    assert plot_commands(page_of(run)) == [["eval", f"{run}/eval.json"]] and not drawn


def test_a_model_that_has_diverged_leaves_the_view_and_is_named(tmp_path, page_of, drawn):
    values = {
        "good": (1.5, 1.5, 1.4, 1.4),
        "far": (9.0, 9.0, 9.1, None),
        "lost": (None, None, None, None),
        "beyond": (800.0, 800.0, 900.0, 1e4),
        "late": (1.5, 1.6, None, 800.0),
    }
    runs = {name: finished(tmp_path / name) for name in values}
    for name, run in runs.items():
        write_evaluation(run, by_length(*values[name]))
    page = page_of(*runs.values())
    [curves] = drawn
    assert list(curves) == ["good", *(f"{name}, leaves the view" for name in list(values)[1:])]
    assert texts(page.row("late, step 40")) == ["4.4817", "4.9530", "not finite", "not finite"]
    assert texts(page.row("beyond, step 40")) == ["not finite"] * 4
    assert plot_commands(page) == [["extrapolation", *(f"{run}/eval.json" for run in runs.values())]]


def test_where_every_model_has_diverged_there_is_no_figure_and_no_command(tmp_path, page_of, drawn):
    run = finished(tmp_path / "a")
    write_evaluation(run, by_length(None, None, None, 800.0))
    page = page_of(run)
    assert "No figure: no evaluation has a finite loss." in page.text
    assert not plot_commands(page) and not drawn


def test_seeds_that_are_not_alike_have_curves_of_their_own(tmp_path, page_of, drawn):
    runs = [
        finished(tmp_path / f"x_seed{n}", config=CONFIG | {"train": {"lr": lr, "seed": n}})
        for n, lr in ((1, 0.1), (2, 0.2))
    ]
    for run in runs:
        write_evaluation(run, by_length(1.5, 1.5, 1.4, 1.4))
    page = page_of(*runs)
    assert "Each run has a curve of its own:" in page.text and "train.lr" in page.text and not drawn
    assert [words[0] for words in plot_commands(page)] == ["eval"]


def test_two_protocols_in_one_file_have_one_command(tmp_path, page_of, drawn):
    run = finished(tmp_path / "a")
    each = [evaluation(run, by_length(1.5, 1.5, 1.4, 1.4), protocol=name) for name in ("recut", "paper")]
    (run / "eval.json").write_text(json.dumps({"evaluations": each}))
    assert plot_commands(page_of(run)) == [["extrapolation", f"{run}/eval.json"]] and len(drawn) == 2


def test_a_run_that_was_renamed_has_its_name_in_the_figure(tmp_path, page_of, drawn):
    run = finished(tmp_path / "new")
    (run / "eval.json").write_text(
        json.dumps(evaluation(tmp_path / "its old name", by_length(1.5, 1.5, 1.4, 1.4)))
    )
    page_of(run)
    assert list(drawn[0]) == ["new"]


def test_a_bitmap_beyond_the_limits_of_webp_is_png():
    def image_of(height):
        figure = plt.figure(figsize=(1, height))
        shown = report_html.picture(figure, "", "", "", [report_html.bitmap_kind(figure)])
        return shown.find("div/img").get("src").partition(";")[0]

    assert [image_of(height) for height in (109, 110)] == ["data:image/webp", "data:image/png"]
