"""The figure of retrieval: panels, means over depths and seeds, and what is refused."""

import numpy as np
import pytest

import plot
import plot_retrieval
from console import DataError
from fabricated_run import fails, no_figure_stays_open  # fixtures
from test_plot_eval import answers, losses, together
from test_plot_extrapolation import evaluations_of

# (length, depth, accuracy of tokens, of whole answers)
NEAR = [(256, 0.1, 1.0, 0.25), (256, 0.5, 0.5, 0.0), (512, 0.1, 0.25, 0.0), (512, 0.5, 0.75, 0.0)]
FAR = [(256, None, 0.5, 0.0), (1024, None, 0.25, 0.0)]


def draw(*paths):
    return plot_retrieval.draw_retrieval(evaluations_of(*paths))


def top_row(figure):
    """The panels of the answers' tokens."""
    return figure.axes[: len(figure.axes) // 2]


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def test_each_task_has_a_panel_and_a_model_the_same_line_in_both(tmp_path):
    files = [
        answers(tmp_path / f"{n}.json", cells, run=run, task=task, train_length=256)
        for n, (run, task, cells) in enumerate([
            ("passkey-goat", "passkey", NEAR),
            ("passkey-rope", "passkey", NEAR),
            ("niah-rope", "niah", FAR),
            ("niah-goat", "niah", FAR),
        ])
    ]  # fmt: skip
    figure = draw(*files)
    passkey, niah, *whole = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["passkey", "niah", "", ""]
    assert list(lines_of(passkey)) == ["goat", "rope", "by chance", "training length"]
    assert list(lines_of(niah)) == ["rope", "goat", "by chance", "training length"]
    assert [list(lines_of(axes)) for axes in whole] == [
        ["goat", "rope", "training length"],
        ["rope", "goat", "training length"],
    ]
    assert lines_of(passkey)["by chance"].get_ydata() == [0.1, 0.1]
    assert lines_of(niah)["by chance"].get_ydata() == [0.25, 0.25]
    for name in ("goat", "rope"):
        one, other = lines_of(passkey)[name], lines_of(niah)[name]
        assert list(one.get_xdata()) == [256, 512] and list(one.get_ydata()) == [0.75, 0.5]
        assert list(other.get_xdata()) == [256, 1024] and list(other.get_ydata()) == [0.5, 0.25]
        assert list(lines_of(whole[0])[name].get_ydata()) == [0.125, 0.0]
        for look in ("get_color", "get_linestyle", "get_marker"):
            assert len({getattr(lines_of(axes)[name], look)() for axes in figure.axes}) == 1
    assert lines_of(passkey)["goat"].get_color() != lines_of(passkey)["rope"].get_color()
    assert list(lines_of(niah)["training length"].get_xdata()) == [256, 256]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["goat", "rope", "by chance", "training length"]
    assert "answer's tokens" in passkey.get_ylabel()
    assert "tokens" in whole[0].get_xlabel() and "whole answers" in whole[0].get_ylabel()
    assert "1,024" in [text.get_text() for text in whole[1].get_xticklabels()]


def test_seeds_are_one_curve_with_a_thin_line_for_each(tmp_path):
    lower = [(length, depth, tokens - 0.25, whole) for length, depth, tokens, whole in NEAR]
    files = [
        answers(tmp_path / f"{seed}.json", cells, run=f"passkey-goat-seed{seed}", task="passkey")
        for seed, cells in ((1, NEAR), (2, lower))
    ]
    (axes,) = top_row(draw(*files))
    mean, *seeds = (line for line in axes.lines if list(line.get_xdata()) == [256, 512])
    assert mean.get_label() == "goat" and list(mean.get_ydata()) == [0.625, 0.375]
    assert [list(line.get_ydata()) for line in seeds] == [[0.75, 0.5], [0.5, 0.25]]
    for look in ("get_color", "get_linestyle", "get_marker"):
        assert [getattr(line, look)() for line in seeds] == [getattr(mean, look)()] * 2
    assert not axes.collections
    legend = lines_of(axes)["single seeds"]
    assert {line.get_linewidth() for line in seeds} == {legend.get_linewidth()}
    assert legend.get_linewidth() < mean.get_linewidth()
    (alone,) = top_row(draw(files[0]))
    assert list(lines_of(alone)) == ["goat-seed1", "by chance", "training length"]


@pytest.mark.parametrize(
    ("run", "name"),
    [("passkey-goat", "goat"), ("passkey", "passkey"), ("goat", "goat"), ("passkeys", "passkeys")],
)
def test_a_name_is_without_the_task_where_it_begins_with_it(tmp_path, run, name):
    (axes,) = top_row(draw(answers(tmp_path / "a.json", FAR, run=run, task="passkey")))
    assert list(lines_of(axes)) == [name, "by chance", "training length"]


def test_names_keep_the_task_where_they_differ_in_that_alone(tmp_path):
    runs = ("passkey-goat", "goat")
    files = [answers(tmp_path / f"{run}.json", FAR, run=run, task="passkey") for run in runs]
    assert list(lines_of(draw(*files).axes[0]))[:2] == list(runs)


def test_different_data_are_said_in_the_title(tmp_path):
    one = answers(tmp_path / "a.json", FAR, run="a", task="niah", data="x")
    for data, title in (("x", "niah"), ("y", "niah (of different data)")):
        other = answers(tmp_path / "b.json", FAR, run="b", task="niah", data=data)
        assert draw(one, other).axes[0].get_title() == title


def test_samples_of_the_same_seeds_are_the_same_data(tmp_path):
    def title(*runs):
        files = [
            answers(tmp_path / f"{run}.json", FAR, run=run, task="niah", data=f"niah, seed {run[-1]}")
            for run in runs
        ]
        return draw(*files).axes[0].get_title()

    assert title("a-seed1", "a-seed2", "b-seed2", "b-seed1") == title("a-seed1", "b-seed1") == "niah"
    other = answers(tmp_path / "b.json", FAR, run="b-seed1", task="niah", data="niah, seed 7")
    assert draw(tmp_path / "a-seed1.json", other).axes[0].get_title() == "niah (of different data)"
    for runs in (("a-seed1", "b-seed2"), ("a-seed1", "a-seed2", "b-seed1"), ("a1", "b2")):
        assert title(*runs) == "niah (of different data)"


def test_other_depths_samples_or_lengths_of_answers_are_other_data(tmp_path):
    def panel(cells, **more):
        one = answers(tmp_path / "a.json", NEAR, run="a", task="niah", answer_length=12)
        other = answers(tmp_path / "b.json", cells, run="b", task="niah", **{"answer_length": 12} | more)
        return draw(one, other).axes[0].get_title()

    assert panel(NEAR) == panel(FAR[1:]) == "niah"  # no length in common
    assert panel([(256, 0.1, 1.0, 0.0)]) == panel(NEAR, answer_length=4) == "niah (of different data)"
    few = [(length, depth, 1.0, 1.0) for length, depth, *_ in NEAR]
    files = [answers(tmp_path / f"{n}.json", few, run=f"m-seed{n}", samples=n) for n in (1, 2)]
    with pytest.raises(DataError, match="different data: other depths, or numbers of tokens or samples"):
        draw(*files)


def test_a_file_that_does_not_name_its_task_has_a_panel(tmp_path):
    (axes,) = top_row(draw(answers(tmp_path / "a.json", FAR)))
    assert "by chance" not in lines_of(axes)
    assert axes.get_title() == "task"


def test_an_accuracy_that_is_missing_leaves_a_gap(tmp_path):
    cells = [(256, None, None, 0.0), (512, None, 0.5, 0.0)]
    (axes,) = top_row(draw(answers(tmp_path / "a.json", cells)))
    assert np.isnan(lines_of(axes)["mine"].get_ydata()).tolist() == [True, False]


def test_perplexities_alone_are_refused(tmp_path, fails):
    assert "plot.py extrapolation" in fails(3, "retrieval", losses(tmp_path / "a.json"))
    assert not list(tmp_path.glob("*.png"))


def test_of_a_file_with_tasks_and_perplexities_each_command_draws_its_own(tmp_path, capsys):
    both = together(
        tmp_path / "all.json",
        losses(tmp_path / "a.json", run="text"),
        answers(tmp_path / "b.json", FAR, run="needle", task="niah"),
    )
    for command, drawn, left_out in (
        ("retrieval", "niah, needle", "perplexities: plot.py extrapolation"),
        ("extrapolation", "text", "accuracies of tasks: plot.py retrieval"),
    ):
        assert plot.main([command, str(both)]) == 0
        out, err = capsys.readouterr()
        assert out.splitlines()[1].startswith(f"{drawn}: ") and len(out.splitlines()) == 2
        assert err == f"plot.py: warning: {both}: left out are {left_out}\n"


def test_the_command_writes_beside_the_first_file_and_says_the_ends(tmp_path, capsys):
    path = answers(tmp_path / "a.json", NEAR, run="passkey-goat", task="passkey")
    assert plot.main(["retrieval", str(path)]) == 0
    where, sentence = capsys.readouterr().out.splitlines()
    assert where == str(tmp_path / "a_retrieval.png")
    ends = "0.750 of tokens, 0.125 of whole answers at 256; 0.500 of tokens, 0.000 of whole answers at 512"
    assert sentence == f"passkey, goat: {ends}."
