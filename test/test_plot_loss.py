"""The figure of losses: what is drawn, artist by artist."""

import json

import numpy as np
import pytest

import plot
import plot_loss
from console import DataError
from fabricated_run import fails, no_figure_stays_open, write_metrics, write_run  # with fixtures


def lines_of(axes):
    """Lines by label; those without one are the pale raw losses."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def legend_of(figure):
    return figure.legends[0].get_texts()


def shortened(name):
    """As a legend shows it: the end of what has more than 80 characters."""
    return name if len(name) <= 80 else "..." + name[-77:]


def raw_of(axes):
    return [line for line in axes.lines if line.get_label().startswith("_")]


def names_in(figure):
    return [text.get_text() for text in legend_of(figure)]


def write_losses(folder, losses):
    """A run with these losses of the steps 1, 2, ..., and no best possible one."""
    run = write_run(folder)
    (run / "summary.json").unlink()
    write_metrics(run, [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)])
    return run


def write_begun(folder):
    """A run that has written nothing but its config."""
    run = write_losses(folder, [])
    (run / "metrics.jsonl").unlink()
    return run


def test_every_step_the_smoothed_curve_and_validation_are_drawn(tmp_path):
    run = write_run(tmp_path / "first")
    axes = plot_loss.draw_loss([run]).axes[0]
    steps = np.arange(1, 41)
    labelled = lines_of(axes)
    raw, points = raw_of(axes)
    assert set(labelled) == {"first", "validation loss", "Bayes-optimal, 2.900"}
    assert raw.get_xdata() == pytest.approx(steps)
    assert raw.get_ydata() == pytest.approx(4 - 0.02 * steps)
    assert raw.get_alpha() == 0.25
    curve = labelled["first"]
    assert curve.get_xdata() == pytest.approx(steps)
    assert curve.get_ydata() == pytest.approx(averages(steps, 4 - 0.02 * steps, 1))
    assert list(points.get_xdata()) == [20, 40] and list(points.get_ydata()) == [3.7, 3.3]
    assert points.get_marker() == curve.get_marker() == "o" and points.get_linestyle() == "None"
    assert curve.get_markevery() == []  # in the legend alone
    assert list(labelled["Bayes-optimal, 2.900"].get_ydata()) == [2.9, 2.9]
    assert len({line.get_color() for line in (raw, curve, points)}) == 1
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss (nats a token)")


def averages(steps, loss, width):
    """Weights e^(-age / width) times what a step's distance to the one before adds, scaled to sum to 1."""
    distances = np.diff(steps, prepend=steps[0] - 1)
    shares = 1 - np.exp(-distances / width)
    result = []
    for n in range(len(steps)):
        weights = shares[: n + 1] * np.exp(-(steps[n] - steps[: n + 1]) / width)
        result.append((weights * loss[: n + 1]).sum() / weights.sum())
    return result


def test_smoothing_is_corrected_for_its_start_and_knows_gaps(rng):
    steps = np.cumsum(rng.integers(1, 9, size=50))
    loss = rng.normal(size=50)
    for width in (1, 7.5, 1000):
        assert plot_loss.smoothed(steps, loss, width) == pytest.approx(averages(steps, loss, width))
    assert plot_loss.smoothed([5, 6], [3.0, 3.0], 100) == pytest.approx([3, 3])
    long = plot_loss.smoothed(np.arange(1, 3), np.array([1.0, 0.0]), 1e6)
    assert long == pytest.approx([1, 0.5], abs=1e-5)  # a plain mean while few steps have been seen


def test_smoothing_takes_a_hundredth_of_the_run(tmp_path):
    run = write_run(tmp_path / "run")
    steps = np.arange(0, 2001, 10)
    loss = 3 + np.cos(steps)
    write_metrics(run, [{"step": int(s), "loss": float(value)} for s, value in zip(steps, loss, strict=True)])
    curve = lines_of(plot_loss.draw_loss([run]).axes[0])["run"]
    assert curve.get_ydata() == pytest.approx(averages(steps, loss, 20))


def test_all_but_the_first_fall_is_in_view(tmp_path):
    run = write_run(tmp_path / "run")
    write_metrics(run, [{"step": s, "loss": 1000.0 if s < 3 else 3.0 - s / 500} for s in range(1, 501)])
    low, high = plot_loss.draw_loss([run]).axes[0].get_ylim()
    expected = averages(
        np.arange(1, 501), np.array([1000.0 if s < 3 else 3.0 - s / 500 for s in range(1, 501)]), 4.99
    )
    top = max(expected[10:])  # the first fiftieth is left out
    assert low < 2 and high == pytest.approx(top + 0.06 * (top - min(*expected, 2.0, 2.9)), rel=0.01)
    assert high < 500


def test_limits_hold_validation_and_the_optimum_with_a_margin(tmp_path):
    run = write_run(tmp_path / "run")
    write_metrics(run, [{"step": s, "loss": 4.0} for s in range(1, 9)] + [{"step": 9, "val_loss": 6.0}])
    low, high = plot_loss.draw_loss([run]).axes[0].get_ylim()
    assert (low, high) == (pytest.approx(2.9 - 0.06 * 3.1), pytest.approx(6 + 0.06 * 3.1))
    (run / "summary.json").unlink()
    write_metrics(run, [{"step": s, "loss": 4.0} for s in range(1, 9)])
    assert plot_loss.draw_loss([run]).axes[0].get_ylim() == (pytest.approx(3.9), pytest.approx(4.1))


def test_several_runs_share_a_figure_and_a_legend(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("first", "second")]
    write_metrics(runs[1], [{"step": s, "loss": 5.0} for s in (1, 2, 3)])
    (runs[1] / "summary.json").write_text('{"loss": 5.0, "bayes_optimal_loss": 1.5}')
    figure = plot_loss.draw_loss(runs)
    axes = figure.axes[0]
    labelled = lines_of(axes)
    names = ["first", "second", "validation loss", "Bayes-optimal, 1.500", "Bayes-optimal, 2.900"]
    assert names_in(figure) == names
    assert labelled["second"].get_ydata() == pytest.approx(5)
    for look in ("get_color", "get_linestyle"):
        assert getattr(labelled["first"], look)() != getattr(labelled["second"], look)()
    low, high = axes.get_ylim()
    assert low < 1.5 and high > 5


def test_one_optimum_is_drawn_once(tmp_path):
    figure = plot_loss.draw_loss([write_run(tmp_path / name) for name in ("first", "second")])
    assert names_in(figure) == ["first", "second", "validation loss", "Bayes-optimal, 2.900"]


def test_legend_tells_runs_of_one_name_apart_and_shows_odd_names(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("a/run", "b/run", "_x", "cost $x_$", "x" * 90)]
    figure = plot_loss.draw_loss(runs)
    texts = legend_of(figure)
    labels = list(lines_of(figure.axes[0]))
    assert labels[:5] == ["a/run", "b/run", "./_x", "cost $x_$", "x" * 90]
    assert names_in(figure)[:5] == ["a/run", "b/run", "./_x", "cost $x_$", shortened("x" * 90)]
    assert not any(text.get_parse_math() for text in texts)


def test_losses_that_are_not_finite_are_left_out_and_counted(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [
        '{"step": 1, "loss": 3}',
        '{"step": 2, "loss": null}',
        '{"step": 3, "loss": 1e999}',
        '{"step": 4, "loss": 2.5}',
    ]
    (run / "metrics.jsonl").write_text(
        "\n".join([*lines, '{"step": 5, "event": "saved"}', '{"step": 6, "val_loss": null}', ""])
    )
    warnings = []
    axes = plot_loss.draw_loss([run], warnings.append).axes[0]
    assert list(raw_of(axes)[0].get_xdata()) == [1, 4] and list(raw_of(axes)[0].get_ydata()) == [3, 2.5]
    assert "validation loss" not in lines_of(axes) and lines_of(axes)["run"].get_marker() == ""
    assert warnings == [f"warning: {run}: 2 of 6 steps have no finite loss; they are left out"]


def test_steps_are_drawn_in_order(tmp_path):
    run = write_run(tmp_path / "run")
    write_metrics(run, [{"step": s, "loss": float(s)} for s in (3, 1, 2)])
    assert list(raw_of(plot_loss.draw_loss([run]).axes[0])[0].get_xdata()) == [1, 2, 3]


def test_a_run_that_only_validates_or_has_nothing_yet(tmp_path):
    run = write_run(tmp_path / "run")
    write_metrics(run, [{"step": 7, "val_loss": 2.5}])
    axes = plot_loss.draw_loss([run]).axes[0]
    assert set(lines_of(axes)) == {"run", "validation loss", "Bayes-optimal, 2.900"}
    assert list(lines_of(axes)["run"].get_ydata()) == [2.5] and not raw_of(axes)
    for lines in ([], [{"step": 7}], [{"step": 7, "loss": None}]):
        write_metrics(run, lines)
        with pytest.raises(DataError, match="no finite loss yet"):
            plot_loss.draw_loss([run])


def test_a_run_of_one_step_is_seen(tmp_path):
    figure = plot_loss.draw_loss([write_losses(tmp_path / "run", [3.0])])
    line = lines_of(figure.axes[0])["run"]
    assert line.get_marker() == "o" and line.get_markevery() is None and line.get_fillstyle() == "none"
    assert names_in(figure) == ["run"]


def test_runs_that_have_begun_are_left_out_with_a_warning(tmp_path, fails, capsys):
    begun, run = write_begun(tmp_path / "begun"), write_losses(tmp_path / "run", [4.0, 3.0])
    assert plot.main(["loss", str(begun), str(run), "--out", str(tmp_path / "loss.png")]) == 0
    error = capsys.readouterr().err
    assert error == f"plot.py: warning: {begun}: has no finite loss yet; it is left out\n"
    assert names_in(plot_loss.draw_loss([begun, run])) == ["run"]
    other = write_losses(tmp_path / "other", [None, None])
    error = fails(3, "loss", begun, other)
    assert f"{begun / 'metrics.jsonl'}, {other / 'metrics.jsonl'}: no finite loss yet" in error
    assert "no such file" in fails(2, "loss", run, tmp_path)  # no run at all


FALLING = np.linspace(9, 3, 200)
RISING = np.concatenate([np.linspace(9, 4, 100), np.linspace(4, 249, 100)])
SPIKE = np.where((np.arange(200) > 100) & (np.arange(200) < 120), 300, FALLING)


@pytest.mark.parametrize("losses", [RISING, SPIKE], ids=["diverged", "recovered"])
@pytest.mark.parametrize("good", [1, 3])
def test_a_run_that_has_diverged_leaves_the_others_readable(tmp_path, losses, good):
    runs = [write_losses(tmp_path / f"good{n}", FALLING - 0.1 * n) for n in range(good)]
    alone = plot_loss.draw_loss(runs).axes[0].get_ylim()
    runs += [write_losses(tmp_path / name, losses) for name in "abc"]
    warnings = []
    figure = plot_loss.draw_loss(runs, warnings.append)
    assert figure.axes[0].get_ylim() == pytest.approx(alone, rel=0.01)
    assert names_in(figure)[good:] == [f"{name}, leaves the view" for name in "abc"]
    assert names_in(figure)[:good] == [f"good{n}" for n in range(good)]
    highest = lines_of(figure.axes[0])["a, leaves the view"].get_ydata().max()
    assert warnings == [
        f"warning: {run}: leaves the view, its loss rises to {highest:.4g}" for run in runs[good:]
    ]


def test_runs_that_have_all_diverged_are_in_view(tmp_path):
    runs = [write_losses(tmp_path / "a", RISING), write_losses(tmp_path / "b", 2 * RISING)]
    for some in (runs[:1], runs):
        figure = plot_loss.draw_loss(some, pytest.fail)
        assert figure.axes[0].get_ylim()[1] > max(max(line.get_ydata()) for line in figure.axes[0].lines)
    assert names_in(figure) == ["a", "b"]


def test_a_run_that_learns_nothing_beside_one_that_learns_all_is_in_view(tmp_path):
    runs = [write_losses(tmp_path / "a", FALLING / 500), write_losses(tmp_path / "b", [9.0] * 200)]
    figure = plot_loss.draw_loss(runs, pytest.fail)
    assert figure.axes[0].get_ylim()[1] > 9 and names_in(figure) == ["a", "b"]


def test_what_a_run_that_has_diverged_had_reached_is_in_view(tmp_path):
    runs = [write_losses(tmp_path / "a", FALLING), write_losses(tmp_path / "b", RISING - 2)]
    assert plot_loss.draw_loss(runs).axes[0].get_ylim()[0] < 2.1


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        ({}, "The run has no summary.json yet: it has not finished."),
        ({"loss": 3.25}, "Final training loss 3.2500 nats a token."),
        ({"loss": 3, "val_loss": 3.5}, "Final training loss 3.0000 nats a token, validation 3.5000."),
        (
            {"loss": 3.2, "val_loss": 3.3, "bayes_optimal_loss": 2.9},
            "Final training loss 3.2000 nats a token, validation 3.3000; "
            "the best possible (Bayes-optimal) loss is 2.9000.",
        ),
        ({"loss": None, "val_loss": 1.0}, "The run's summary.json holds no finite training loss."),
        ({"loss": "3"}, "The run's summary.json holds no finite training loss."),
        (
            {"loss": 3.2, "val_loss": None, "bayes_optimal_loss": [1]},
            "Final training loss 3.2000 nats a token.",
        ),
    ],
)
def test_the_sentence_on_the_final_losses(summary, sentence):
    assert plot_loss.describe_loss(json.loads(json.dumps(summary))) == sentence
