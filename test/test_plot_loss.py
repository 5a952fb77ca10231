"""The figure of losses: what is drawn, artist by artist."""

import json

import numpy as np
import pytest

import plot_loss
from console import DataError
from fabricated_run import write_metrics, write_run


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


def test_every_step_the_smoothed_curve_and_validation_are_drawn(tmp_path):
    run = write_run(tmp_path / "first")
    axes = plot_loss.draw_loss([run]).axes[0]
    steps = np.arange(1, 41)
    raw, labelled = raw_of(axes), lines_of(axes)
    assert len(raw) == 1 and set(labelled) == {"first", "first, validation", "Bayes-optimal, 2.900"}
    assert raw[0].get_xdata() == pytest.approx(steps)
    assert raw[0].get_ydata() == pytest.approx(4 - 0.02 * steps)
    assert raw[0].get_alpha() == 0.25
    curve = labelled["first"]
    assert curve.get_xdata() == pytest.approx(steps)
    assert curve.get_ydata() == pytest.approx(averages(steps, 4 - 0.02 * steps, 1))
    validation = labelled["first, validation"]
    assert list(validation.get_xdata()) == [20, 40] and list(validation.get_ydata()) == [3.7, 3.3]
    assert validation.get_marker() == "o" and validation.get_linestyle() == "None"
    assert list(labelled["Bayes-optimal, 2.900"].get_ydata()) == [2.9, 2.9]
    assert len({line.get_color() for line in (raw[0], curve, validation)}) == 1
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
    names = ["first", "first, validation", "second", "Bayes-optimal, 1.500", "Bayes-optimal, 2.900"]
    assert [text.get_text() for text in legend_of(figure)] == names
    assert labelled["second"].get_ydata() == pytest.approx(5)
    for look in ("get_color", "get_linestyle"):
        assert getattr(labelled["first"], look)() != getattr(labelled["second"], look)()
    low, high = axes.get_ylim()
    assert low < 1.5 and high > 5


def test_one_optimum_is_drawn_once(tmp_path):
    figure = plot_loss.draw_loss([write_run(tmp_path / name) for name in ("first", "second")])
    assert [text.get_text() for text in legend_of(figure)].count("Bayes-optimal, 2.900") == 1


def test_legend_tells_runs_of_one_name_apart_and_shows_odd_names(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("a/run", "b/run", "_x", "cost $x_$", "x" * 90)]
    figure = plot_loss.draw_loss(runs)
    texts = legend_of(figure)
    shown = [line.get_label() for line in figure.axes[0].lines if "," not in line.get_label()]
    labels = [label for label in shown if not label.startswith("_")]
    assert labels == ["a/run", "b/run", "./_x", "cost $x_$", "x" * 90]
    names = [text.get_text() for text in texts if "," not in text.get_text()]
    assert names == ["a/run", "b/run", "./_x", "cost $x_$", shortened("x" * 90)]
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
    assert "run, validation" not in lines_of(axes)
    assert warnings == [f"warning: {run}: 2 of 6 steps have no finite loss; they are left out"]


def test_steps_are_drawn_in_order(tmp_path):
    run = write_run(tmp_path / "run")
    write_metrics(run, [{"step": s, "loss": float(s)} for s in (3, 1, 2)])
    assert list(raw_of(plot_loss.draw_loss([run]).axes[0])[0].get_xdata()) == [1, 2, 3]


def test_a_run_that_only_validates_or_has_nothing_yet(tmp_path):
    run = write_run(tmp_path / "run")
    write_metrics(run, [{"step": 7, "val_loss": 2.5}])
    assert set(lines_of(plot_loss.draw_loss([run]).axes[0])) == {"run, validation", "Bayes-optimal, 2.900"}
    for lines in ([], [{"step": 7}], [{"step": 7, "loss": None}]):
        write_metrics(run, lines)
        with pytest.raises(DataError, match="holds no finite loss yet"):
            plot_loss.draw_loss([run])


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
