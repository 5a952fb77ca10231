"""The figure of evaluations: what is drawn, artist by artist, and what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import plot_eval
from console import DataError


def write_evaluation(path, rows, run="mine", train_length=128):
    checkpoint = f"runs/{run}/checkpoints/step_00000010"
    path.write_text(json.dumps({"checkpoint": checkpoint, "train_length": train_length, "results": rows}))
    return path


def losses(path, values=((128, 1.5), (512, 1.25)), **options):
    return write_evaluation(path, [{"length": n, "nll": nll} for n, nll in values], **options)


def answers(path, cells, **options):
    """cells: (length, depth or None, accuracy of tokens, of whole answers)"""
    rows = [
        {"length": n, "nll": 1.0, "span_token_accuracy": tokens, "strict_accuracy": whole}
        | ({} if depth is None else {"depth": depth})
        for n, depth, tokens, whole in cells
    ]
    return write_evaluation(path, rows, **options)


def draw(*paths):
    return plot_eval.draw_eval([plot_eval.Evaluation(path) for path in paths])


def lines_of(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_perplexity_of_each_run_by_length(tmp_path):
    first = losses(tmp_path / "a.json", [(512, 1.25), (128, 1.5)])
    lines = lines_of(draw(first, losses(tmp_path / "b.json", run="other")))
    assert set(lines) == {"mine", "other", "training length"}
    assert list(lines["mine"].get_xdata()) == [128, 512]
    assert lines["mine"].get_ydata() == pytest.approx(np.exp([1.5, 1.25]))
    assert list(lines["training length"].get_xdata()) == [128, 128]


def test_two_files_of_one_run_are_told_apart(tmp_path):
    paths = [losses(tmp_path / name) for name in ("a.json", "b.json")]
    assert set(lines_of(draw(*paths))) == {*map(str, paths), "training length"}


def test_accuracies_by_length(tmp_path):
    lines = lines_of(draw(answers(tmp_path / "a.json", [(256, None, 0.5, 0.25), (512, None, 0.4, 0.1)])))
    assert list(lines["mine, tokens"].get_ydata()) == [0.5, 0.4]
    assert list(lines["mine, whole answers"].get_ydata()) == [0.25, 0.1]


def test_a_grid_of_depths_and_lengths(tmp_path):
    cells = [(512, 0.5, 0.1, 0), (256, 0.5, 0.2, 0), (512, 0.1, 0.3, 0), (256, 0.1, 0.4, 0)]
    figure = draw(answers(tmp_path / "a.json", cells))
    axes = figure.axes[0]
    assert axes.images[0].get_array().tolist() == [[0.4, 0.3], [0.2, 0.1]]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["256", "512"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0.1", "0.5"]
    with pytest.raises(DataError, match="same depths"):
        draw(answers(tmp_path / "b.json", cells[:3]))


def test_what_is_no_evaluation_is_refused(tmp_path):
    path = tmp_path / "a.json"
    for text in ("", "[]", '{"results": []}', '{"checkpoint": "a", "train_length": 8, "results": [{}]}'):
        path.write_text(text)
        with pytest.raises(DataError, match="not what train_gpt_goat eval --json writes"):
            plot_eval.Evaluation(path)
    losses(path, [])
    with pytest.raises(DataError, match="not what"):
        plot_eval.Evaluation(path)
    with pytest.raises(DataError, match="different kinds"):
        draw(losses(path), answers(tmp_path / "b.json", [(256, None, 0.5, 0.25)]))


def test_the_command_writes_the_figure_beside_the_file(tmp_path, run_command):
    script = Path(plot_eval.__file__).with_name("plot.py")
    done = run_command([sys.executable, script, "eval", losses(tmp_path / "a.json")])
    assert done.stdout.splitlines() == [
        str(tmp_path / "a.png"),
        f"{tmp_path / 'a.json'}: loss 1.5000 at 128 and 1.2500 at 512, trained at 128.",
    ]
    assert imread(tmp_path / "a.png").std() > 0.05
