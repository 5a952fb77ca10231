"""The figure of evaluations: what is drawn, artist by artist, and what is refused."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import eval_reader
import plot
import plot_commands
import plot_eval
from console import DataError, UsageError


def write_evaluation(path, rows, run="mine", train_length=128, step=10, **more):
    contents = {"checkpoint": f"/runs/{run}/checkpoints/step_{step:08}", "step": step, "results": rows}
    path.write_text(json.dumps(contents | {"train_length": train_length} | more))
    return path


def losses(path, values=((128, 1.5), (512, 1.25)), tokens=65536, **options):
    rows = [{"length": n, "nll": nll, "tokens": tokens} for n, nll in values]
    return write_evaluation(path, rows, **options)


def answers(path, cells, samples=10, **options):
    """cells: (length, depth or None, accuracy of tokens, of whole answers)"""
    rows = [
        {"length": n, "nll": 1.0, "samples": samples, "span_token_accuracy": tokens, "strict_accuracy": whole}
        | ({} if depth is None else {"depth": depth})
        for n, depth, tokens, whole in cells
    ]
    return write_evaluation(path, rows, **options)


def together(path, *files):
    """One file with the evaluations of the others, as several runs or protocols give it."""
    path.write_text(json.dumps({"evaluations": [json.loads(file.read_text()) for file in files]}))
    return path


def draw_all(*paths):
    """{what is added to the file's name: figure}"""
    evaluations = [evaluation for path in paths for evaluation in eval_reader.read_evaluations(path)]
    return dict(plot_eval.draw_kinds(evaluations))


def draw(*paths):
    figures = draw_all(*paths)
    assert list(figures) == [""]
    return figures[""]


def lines_of(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_perplexity_of_each_run_by_length(tmp_path):
    first = losses(tmp_path / "a.json", [(512, 1.25), (128, 1.5)])
    lines = lines_of(draw(first, losses(tmp_path / "b.json", run="other")))
    assert set(lines) == {"mine", "other", "training length"}
    assert list(lines["mine"].get_xdata()) == [128, 512]
    assert lines["mine"].get_ydata() == pytest.approx(np.exp([1.5, 1.25]))
    assert list(lines["training length"].get_xdata()) == [128, 128]


def test_runs_differ_in_line_and_marker_and_the_axis_has_labels(tmp_path):
    figure = draw(losses(tmp_path / "a.json"), losses(tmp_path / "b.json", run="other"))
    lines = lines_of(figure)
    for look in ("get_color", "get_linestyle", "get_marker"):
        assert getattr(lines["mine"], look)() != getattr(lines["other"], look)()
    figure.canvas.draw()
    low, high = figure.axes[0].get_ylim()
    ticks = [tick for tick in figure.axes[0].yaxis.get_major_ticks() if low < tick.get_loc() < high]
    assert len(ticks) >= 3 and all(tick.label1.get_text() for tick in ticks)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mine", "other", "training length"]


def test_tokens_and_whole_answers_differ_in_line_and_runs_in_marker(tmp_path):
    cells = [(256, None, 0.5, 0.25), (512, None, 0.4, 0.1)]
    lines = lines_of(draw(answers(tmp_path / "a.json", cells), answers(tmp_path / "b.json", cells, run="b")))
    assert lines["mine, tokens"].get_linestyle() != lines["mine, whole answers"].get_linestyle()
    assert lines["mine, tokens"].get_marker() == lines["mine, whole answers"].get_marker()
    assert lines["mine, tokens"].get_marker() != lines["b, tokens"].get_marker()


def test_a_run_whose_name_begins_with_an_underscore_is_in_the_legend(tmp_path):
    figure = draw(losses(tmp_path / "a.json", run="_x"))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["./_x", "training length"]


def test_different_data_are_said_beside_the_axis(tmp_path):
    cells = [(256, 0.1, 0.5, 0.25), (256, 0.5, 0.4, 0.1)]
    for make, label in [
        (lambda path, **more: losses(path, **more), "perplexity (logarithmic)"),
        (lambda path, **more: answers(path, [(256, None, 0.5, 0.25)], **more), "accuracy"),
        (lambda path, **more: answers(path, cells, **more), "accuracy of the answer's tokens"),
    ]:
        for data, note in [("shards 'x'", ""), ("shards 'y'", " (of different data)")]:
            first = make(tmp_path / "a.json", data="shards 'x'")
            figure = draw(first, make(tmp_path / "b.json", run="other", data=data))
            assert label + note in {axes.get_ylabel() for axes in figure.axes}
    unknown = draw(losses(tmp_path / "a.json"), losses(tmp_path / "b.json", run="other", data="shards 'x'"))
    assert unknown.axes[0].get_ylabel() == "perplexity (logarithmic)"


def test_other_numbers_of_tokens_are_other_data_and_other_folders_are_not(tmp_path):
    def label(**more):
        one = losses(tmp_path / "a.json", data="shards 'data/x/val_*.bin': 9 tokens", protocol="recut")
        other = losses(tmp_path / "b.json", run="other", **{"protocol": "recut"} | more)
        return draw(one, other).axes[0].get_ylabel()

    plain = "perplexity (logarithmic)"
    assert label(data="shards '/home/x/val_*.bin': 9 tokens") == plain
    assert label(data="shards 'data/x/train_*.bin': 9 tokens") == f"{plain} (of different data)"
    assert label(tokens=4096) == f"{plain} (of different data)"
    assert label(tokens=4096, values=((64, 1.0), (1024, 1.0))) == plain  # no length in common
    assert label(tokens=4096, protocol="paper") == plain  # which takes other tokens by its nature


def test_a_run_is_read_by_its_eval_json_and_told_how_to_make_one(tmp_path):
    run = tmp_path / "a run"
    run.mkdir()
    with pytest.raises(UsageError, match="a run: holds no run"):
        eval_reader.read_evaluations(run)
    (run / "config.toml").write_text("")
    for path in (run, run / "eval.json"):
        with pytest.raises(UsageError, match=r"eval --checkpoint '.*/a run' --json '.*/a run/eval.json'"):
            eval_reader.read_evaluations(path)
    losses(run / "eval.json")
    assert plot.main(["eval", str(run)]) == 0
    assert (run / "figures" / "eval.png").exists()
    model = tmp_path / "model"  # passed on without its run
    model.mkdir()
    (model / "state.json").write_text("{}")
    with pytest.raises(UsageError, match="eval --checkpoint .*/model "):
        eval_reader.read_evaluations(model)


def test_labels_of_near_lengths_do_not_run_into_each_other(tmp_path):
    lengths = (256, 1024, 1499, 2048, 2049, 32768)
    figure = draw(losses(tmp_path / "a.json", [(n, 1.0) for n in lengths]))
    figure.canvas.draw()
    labels = [label for label in figure.axes[0].get_xticklabels() if label.get_text()]
    assert {"256", "1,024", "32,768"} < {label.get_text() for label in labels}
    assert len(figure.axes[0].get_xticks()) == len(lengths)
    boxes = [label.get_window_extent() for label in labels]
    assert all(one.x1 < other.x0 for one, other in zip(boxes, boxes[1:]))


def test_grids_of_many_models_fit_a_page(tmp_path):
    cells = [(256 << n, depth, n / 10, 0.0) for n in range(6) for depth in (0.1, 0.5)]
    paths = [answers(tmp_path / f"{n}.json", cells, run=f"m{n}x") for n in range(5)]
    figure = draw(*paths)
    grids = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert [axes.get_title() for axes in grids] == [f"m{n}x" for n in range(5)]
    assert figure.get_figwidth() <= plot_eval.PAGE + 1 and figure.get_figheight() > 6
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])


def test_two_files_of_one_run_are_told_apart(tmp_path):
    paths = [losses(tmp_path / name, [(128, nll)]) for name, nll in (("a.json", 1.5), ("b.json", 1.25))]
    assert set(lines_of(draw(*paths))) == {*map(str, paths), "training length"}


def test_what_is_there_twice_is_drawn_once(tmp_path):
    one, other = losses(tmp_path / "a.json"), losses(tmp_path / "b.json", run="other")
    both = together(tmp_path / "both.json", one, other)
    evaluations = plot_commands.evaluations_of([one, tmp_path / "." / "a.json", both])
    assert [each.run.name for each in evaluations] == ["mine", "other"]


def test_a_file_of_several_runs_is_drawn_as_their_files_are(tmp_path):
    files = [losses(tmp_path / "a.json"), losses(tmp_path / "b.json", [(256, 2.5)], run="other")]
    one, several = (lines_of(draw(*paths)) for paths in ([together(tmp_path / "c.json", *files)], files))
    assert list(one) == list(several) == ["mine", "other", "training length"]
    for name, line in one.items():
        assert np.array_equal(line.get_xydata(), several[name].get_xydata())


@pytest.mark.parametrize(
    ("evaluations", "names"),
    [
        ([("a", 10, "recut"), ("b", 10, "recut")], ["a", "b"]),
        ([("a", 10, "recut"), ("a", 10, "paper")], ["a, recut", "a, paper"]),
        ([("a", 10, "paper"), ("b", 10, "recut")], ["a, paper", "b, recut"]),
        ([("1/a", 10, "recut"), ("2/a", 10, "recut"), ("b", 10, "recut")], ["1/a", "2/a", "b"]),
        ([("a", 10, "recut"), ("a", 20, "recut"), ("b", 10, "recut")], ["a at step 10", "a at step 20", "b"]),
        ([("a", 10, "recut"), ("a", 10, "recut")], ["FILE", "FILE"]),
    ],
)
def test_names_tell_runs_protocols_and_steps_apart(tmp_path, evaluations, names):
    parts = [
        losses(tmp_path / f"{n}.json", run=run, step=step, protocol=protocol)
        for n, (run, step, protocol) in enumerate(evaluations)
    ]
    path = together(tmp_path / "all.json", *parts)
    found = eval_reader.names_of_evaluations(eval_reader.read_evaluations(path))
    assert found == [name.replace("FILE", str(path)) for name in names]


def test_each_kind_has_a_figure_of_its_own(tmp_path):
    task = answers(tmp_path / "b.json", [(256, None, 0.5, 0.25)], run="task")
    grid = answers(tmp_path / "c.json", [(256, 0.1, 0.5, 0.25), (256, 0.5, 0.4, 0.1)], run="grid")
    figures = draw_all(together(tmp_path / "all.json", task, losses(tmp_path / "a.json"), grid))
    assert list(figures) == ["_accuracy", "_perplexity", "_depths"]
    assert set(lines_of(figures["_perplexity"])) == {"mine", "training length"}
    assert "task, tokens" in lines_of(figures["_accuracy"])
    assert figures["_depths"].axes[0].images[0].get_array().tolist() == [[0.5], [0.4]]


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


def test_a_cell_without_a_value_is_empty(tmp_path):
    figure = draw(answers(tmp_path / "a.json", [(256, 0.1, None, 0), (256, 0.5, 0.25, 0)]))
    assert [text.get_text() for text in figure.axes[0].texts] == ["\N{EN DASH}", "0.25"]


def test_a_grid_of_many_depths_and_a_long_name_can_be_read(tmp_path):
    cells = [(length, depth / 40, 0.5, 0) for length in (256, 512) for depth in range(40)]
    name = "a_long_name_of_a_run" * 6
    figure = draw(*(answers(tmp_path / f"{each}.json", cells, run=each) for each in ("short", name)))
    short, long = figure.axes[:2]
    figure.canvas.draw()
    assert long.title.get_text().replace("\n", "") == name and not long.title.get_parse_math()
    frame, boxes = figure.bbox, [short.title.get_window_extent(), long.title.get_window_extent()]
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1 for box in boxes)
    column = [text.get_window_extent() for text in short.texts[::2]]
    assert len(column) == 40 and all(above.y0 > below.y1 for above, below in zip(column, column[1:]))


def test_lines_of_a_title_do_not_take_the_height_of_the_cells(tmp_path):
    cells = [(length, depth, 0.5, 0) for length in (256, 512) for depth in (0.1, 0.5)]
    heights = []
    for name in ("short", "a_long_name_of_a_run" * 6):
        figure = draw(answers(tmp_path / "a.json", cells, run=name))
        figure.canvas.draw()
        heights.append(figure.axes[0].get_window_extent().height)
    assert heights[1] == pytest.approx(heights[0], rel=0.05)


def test_what_is_no_evaluation_is_refused(tmp_path):
    path = tmp_path / "a.json"
    for text in (
        "",
        "[]",
        '{"results": []}',
        '{"checkpoint": "a", "train_length": 8, "results": [{}]}',
        '{"checkpoint": "a", "train_length": true, "results": [{"length": 8, "nll": 1}]}',
        '{"evaluations": []}',
        '{"evaluations": {}}',
        '{"evaluations": [1]}',
    ):
        path.write_text(text)
        with pytest.raises(DataError, match="not what train_gpt_goat eval --json writes"):
            eval_reader.read_evaluations(path)
    (evaluation,) = eval_reader.read_evaluations(losses(path, data=None))
    assert evaluation.data == ""
    losses(path, [])
    with pytest.raises(DataError, match="not what"):
        eval_reader.read_evaluations(path)
    with pytest.raises(DataError, match="not what"):
        eval_reader.read_evaluations(together(tmp_path / "b.json", losses(tmp_path / "c.json"), path))


def test_the_command_writes_the_figure_beside_the_file(tmp_path, run_command):
    script = Path(plot_eval.__file__).with_name("plot.py")
    done = run_command([sys.executable, script, "eval", losses(tmp_path / "a.json")])
    assert done.stdout.splitlines() == [
        str(tmp_path / "a.png"),
        f"{tmp_path / 'a.json'}: loss 1.5000 at 128 and 1.2500 at 512, trained at 128.",
    ]
    assert imread(tmp_path / "a.png").std() > 0.05


def test_the_command_writes_a_figure_of_each_kind_and_says_what_each_evaluation_holds(tmp_path, run_command):
    script = Path(plot_eval.__file__).with_name("plot.py")
    parts = [
        losses(tmp_path / "a.json", protocol="recut"),
        losses(tmp_path / "b.json", [(128, 1.75)], protocol="paper"),
        answers(tmp_path / "c.json", [(256, None, 0.5, 0.25)], run="task"),
    ]
    path = together(tmp_path / "all.json", *parts)
    done = run_command([sys.executable, script, "eval", path, "--out", tmp_path / "figure.png"])
    figures = [tmp_path / "figure_perplexity.png", tmp_path / "figure_accuracy.png"]
    assert done.stdout.splitlines() == [
        *map(str, figures),
        f"{path}: mine, recut: loss 1.5000 at 128 and 1.2500 at 512, trained at 128.",
        f"{path}: mine, paper: loss 1.7500 at 128, trained at 128.",
        f"{path}: task: accuracy 0.5000 at 256, trained at 128.",
    ]
    assert all(imread(figure).std() > 0.02 for figure in figures)
