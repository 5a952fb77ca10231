"""The figure of extrapolation: which curves are drawn in detail, the inset, seeds, and what is refused."""

import json

import numpy as np
import pytest

import eval_reader
import plot
import plot_extrapolation as extrapolation
from console import DataError
from fabricated_run import fails, no_figure_stays_open  # fixtures
from test_plot_eval import answers, losses, together

FLAT = ((128, 1.50), (512, 1.48), (2048, 1.47))
BROKEN = ((128, 1.49), (512, 2.50), (2048, 5.00))


def evaluations_of(*paths):
    return [evaluation for path in paths for evaluation in eval_reader.read_evaluations(path)]


def draw(*paths):
    return extrapolation.draw_extrapolation(evaluations_of(*paths))


def curves(axes):
    return {line.get_label(): line for line in axes.lines if len(line.get_xdata()) > 2}


def test_all_curves_are_in_the_axes_and_the_flat_ones_in_the_inset(tmp_path):
    flat = losses(tmp_path / "a.json", FLAT, run="flat")
    broken = losses(tmp_path / "b.json", BROKEN, run="broken")
    axes = draw(broken, flat).axes[0]
    (inset,) = axes.child_axes
    assert axes.get_yscale() == "log" and inset.get_yscale() == "linear"
    assert set(curves(axes)) == {"flat", "broken"} and set(curves(inset)) == {"flat"}
    for name, points in (("flat", FLAT), ("broken", BROKEN)):
        line = curves(axes)[name]
        assert list(line.get_xdata()) == [n for n, _ in points]
        assert line.get_ydata() == pytest.approx(np.exp([nll for _, nll in points]))
    one, other = curves(axes)["flat"], curves(inset)["flat"]
    assert list(one.get_ydata()) == list(other.get_ydata())
    for look in ("get_color", "get_linestyle", "get_marker"):
        assert getattr(one, look)() == getattr(other, look)()
        assert getattr(one, look)() != getattr(curves(axes)["broken"], look)()
    training = [line for line in inset.lines if len(line.get_xdata()) == 2]
    assert [list(line.get_xdata()) for line in training] == [[128, 128]]
    assert "perplexity" in axes.get_ylabel() and "tokens" in axes.get_xlabel()


def test_no_curve_passes_behind_the_inset(tmp_path):
    steep = ((128, 1.5), (256, 6.0), (2048, 7.0))
    figure = draw(losses(tmp_path / "a.json", FLAT, run="flat"), losses(tmp_path / "b.json", steep, run="b"))
    axes = figure.axes[0]
    figure.canvas.draw()
    left, bottom, width, _ = extrapolation.INSET
    to_axes = axes.transData + axes.transAxes.inverted()
    x = np.geomspace(128, 2048, 200)
    y = np.exp(np.interp(np.log(x), np.log([n for n, _ in steep]), [nll for _, nll in steep]))
    shares = to_axes.transform(np.column_stack([x, y]))
    behind = shares[shares[:, 0] <= left + width]
    assert len(behind) > 50 and behind[:, 1].max() < bottom
    assert shares[:, 1].max() < 1


def test_a_linear_axis_alone_if_all_are_flat_and_no_inset_if_none_is(tmp_path):
    flat = draw(losses(tmp_path / "a.json", FLAT)).axes[0]
    assert flat.get_yscale() == "linear" and not flat.child_axes
    broken = draw(losses(tmp_path / "b.json", BROKEN)).axes[0]
    assert broken.get_yscale() == "log" and not broken.child_axes


def test_narrow_is_a_factor_of_at_most_a_quarter_more(tmp_path):
    for factor, is_narrow in [(1.249, True), (1.251, False)]:
        path = losses(tmp_path / "a.json", ((128, 1.0), (512, 1.0 + np.log(factor))))
        assert extrapolation.is_narrow(extrapolation.curves_of(evaluations_of(path))[0]) == is_narrow


def seed_files(tmp_path, configs=({}, {})):
    paths = []
    for n, config in enumerate(configs, 1):
        folder = tmp_path / f"m_seed{n}"
        folder.mkdir()
        if config is not None:
            keys = {"seed": n, "steps": 5} | config
            lines = ["[train]", *(f"{key} = {value}" for key, value in keys.items())]
            (folder / "config.toml").write_text("\n".join(lines))
        points = ((128, 1.0 + n / 10), (512, 1.2 + n / 5))
        paths.append(losses(folder / "eval.json", points, run=f"m_seed{n}"))
    return paths


def test_seeds_of_one_model_are_one_curve_with_a_band(tmp_path):
    other = losses(tmp_path / "c.json", BROKEN, run="rope_seed1")  # alone: keeps its name
    figure = draw(*seed_files(tmp_path), other)
    axes = figure.axes[0]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["m (mean of 2 seeds)", "rope_seed1", "training length"]
    mean = next(line for line in axes.lines if line.get_label() == labels[0])
    assert mean.get_ydata() == pytest.approx(np.exp([[1.1, 1.4], [1.2, 1.6]]).mean(axis=0))
    (band,) = axes.collections
    edges = band.get_paths()[0].vertices
    assert edges[:, 1].min() == pytest.approx(np.exp(1.1)) and edges[:, 1].max() == pytest.approx(np.exp(1.6))


def evaluated_by(tmp_path, *evaluations):
    """[(name, runs)] of the curves; evaluations: (run, protocol, step)"""
    paths = [
        losses(tmp_path / f"{n}.json", ((128, 1.0), (512, 1.0 + n)), run=run, protocol=protocol, step=step)
        for n, (run, protocol, step) in enumerate(evaluations)
    ]
    groups = extrapolation.groups_of(evaluations_of(together(tmp_path / "all.json", *paths)))
    return [(name, [str(each.run)[len("/runs/") :] for each in members]) for name, members in groups]


def test_seeds_are_grouped_by_protocol_and_by_folder(tmp_path):
    runs = [f"{folder}/m_seed{seed}" for folder in "xy" for seed in (1, 2)]
    both = [(run, protocol, 10) for run in runs[:2] for protocol in ("recut", "paper")]
    assert evaluated_by(tmp_path, *both) == [
        ("m, recut (mean of 2 seeds)", runs[:2]),
        ("m, paper (mean of 2 seeds)", runs[:2]),
    ]
    assert evaluated_by(tmp_path, *((run, "recut", 10) for run in runs)) == [
        ("x/m (mean of 2 seeds)", runs[:2]),
        ("y/m (mean of 2 seeds)", runs[2:]),
    ]
    assert evaluated_by(tmp_path, (runs[0], "recut", 10), (runs[3], "recut", 10)) == [
        ("m_seed1", [runs[0]]),
        ("m_seed2", [runs[3]]),
    ]


def test_a_run_that_is_there_twice_is_not_averaged(tmp_path):
    twice = [("m_seed1", "recut", 10), ("m_seed1", "recut", 20), ("m_seed2", "recut", 10)]
    names = ["m_seed1 at step 10", "m_seed1 at step 20", "m_seed2"]
    assert [name for name, _ in evaluated_by(tmp_path, *twice)] == names


def test_a_checkpoint_at_the_top_of_the_disk_has_a_name(tmp_path):
    path = losses(tmp_path / "a.json", checkpoint="/checkpoints/step_00000010")
    assert [name for name, _ in extrapolation.groups_of(evaluations_of(path))] == ["/"]


def test_folders_of_runs_that_cannot_be_looked_into_are_no_error(tmp_path):
    seeds = [losses(tmp_path / f"{n}.json", run=f"{'x' * 300}/m_seed{n}") for n in (1, 2)]
    assert len(extrapolation.curves_of(evaluations_of(*seeds))) == 1


def test_both_protocols_of_two_seeds_are_two_curves_with_bands(tmp_path):
    paths = [
        losses(tmp_path / f"{seed}{protocol}.json", ((128, 1.0), (512, 2.0 + seed)), run=f"m_seed{seed}",
               protocol=protocol)
        for seed in (1, 2) for protocol in ("recut", "paper")
    ]  # fmt: skip
    axes = draw(together(tmp_path / "all.json", *paths)).axes[0]
    assert len(axes.collections) == 2


def test_different_data_are_said_beside_the_axis_and_refused_among_seeds(tmp_path):
    one = losses(tmp_path / "a.json", BROKEN, data="shards 'x': 9 tokens")
    for data, note in [("shards 'x': 9 tokens", ""), ("shards 'y'", " (of different data)")]:
        other = losses(tmp_path / "b.json", FLAT, run="other", data=data)
        assert draw(one, other).axes[0].get_ylabel() == f"perplexity (logarithmic){note}"
        flat = losses(tmp_path / "c.json", FLAT, run="flat", data="shards 'x': 9 tokens")
        assert draw(flat, other).axes[0].get_ylabel() == f"perplexity{note}"
    seeds = [losses(tmp_path / f"{n}.json", run=f"m_seed{n}", data=f"shards '{n}'") for n in (1, 2)]
    with pytest.raises(DataError, match=r"evaluated on different data: shards '1'; shards '2'"):
        draw(*seeds)
    drawn = [
        losses(tmp_path / f"{n}.json", run=f"m_seed{n}", data=f"copy mixture, validation: vocab 9, seed {n}")
        for n in (1, 2)
    ]
    assert len(extrapolation.curves_of(evaluations_of(*drawn))) == 1  # one task, another seed


def test_what_are_no_seeds_of_the_same_settings_is_refused(tmp_path):
    one, other = seed_files(tmp_path, ({}, {"steps": 6}))
    with pytest.raises(DataError, match=r"different settings: train\.steps"):
        draw(one, other)
    (other.parent / "config.toml").unlink()  # nothing says otherwise
    draw(one, other)
    (other.parent / "config.toml").write_text("steps = [")
    with pytest.raises(DataError, match="config.toml"):
        draw(one, other)
    config = "[train]\nsteps = {}\n"
    for n, path in enumerate((one, other)):  # beside the checkpoints, when the files stand elsewhere
        (path.parent / "config.toml").write_text(config.format(n))
    elsewhere = [
        losses(tmp_path / f"{n}.json", checkpoint=f"{path.parent}/checkpoints/step_00000010")
        for n, path in enumerate((one, other))
    ]
    with pytest.raises(DataError, match=r"different settings: train\.steps"):
        draw(together(tmp_path / "all.json", *elsewhere))
    (other.parent / "config.toml").unlink()
    with pytest.raises(DataError, match="evaluated at different lengths"):
        draw(one, losses(other, FLAT, run="m_seed2"))
    with pytest.raises(DataError, match="trained at different lengths"):
        draw(one, losses(other, ((128, 1.0), (512, 1.0)), run="m_seed2", train_length=64))


def test_files_of_a_study_say_their_settings_themselves(tmp_path):
    configs = ({}, {"newer": 1})  # the second program had one key more
    files = seed_files(tmp_path, configs)
    assert len(extrapolation.curves_of(evaluations_of(*files))) == 1

    def in_a_study(**changes):
        for seed, file in enumerate(files, 1):
            settings = {"train.seed": seed, "prior.init": "zero"} | (changes if seed == 2 else {})
            evaluation = json.loads((tmp_path / f"m_seed{seed}/eval.json").read_text())
            evaluation = evaluation.get("evaluations", {"eval": evaluation})["eval"]
            file.write_text(json.dumps({"settings": settings, "evaluations": {"eval": evaluation}}))
        return files

    draw(*in_a_study())
    for more in ({"prior.init": "alibi"}, {"prior.lr_scale": 20}):  # which the other leaves as it is
        with pytest.raises(DataError, match=rf"different settings: {next(iter(more))}"):
            draw(*in_a_study(**more))
    files[0].write_text(files[0].read_text().replace('"settings": {', '"settings": 1, "others": {'))
    with pytest.raises(DataError, match="not what train_gpt_goat eval --json writes"):
        draw(*files)


def test_seeds_of_different_steps_are_refused(tmp_path):
    seeds = [losses(tmp_path / f"{n}.json", run=f"m_seed{n}", step=500 * n) for n in (1, 2)]
    with pytest.raises(DataError, match="evaluated after different steps: 500, 1000"):
        draw(*seeds)


@pytest.mark.parametrize("step", [30, 350])  # nats, from a length to the next
def test_a_diverged_model_leaves_the_view_of_the_others(tmp_path, step):
    flat = losses(tmp_path / "a.json", FLAT)
    broken = losses(tmp_path / "b.json", BROKEN, run="broken")
    steep = losses(tmp_path / "c.json", [(n, 1.5 + step * i) for i, (n, _) in enumerate(FLAT)], run="steep")
    lost = losses(tmp_path / "d.json", [(n, None) for n, _ in FLAT], run="lost")
    axes = draw(flat, broken, steep, lost).axes[0]
    assert list(curves(axes)) == ["mine", "broken", "steep, leaves the view", "lost, leaves the view"]
    assert [set(curves(inset)) for inset in axes.child_axes] == [{"mine"}]
    low, high = np.log(axes.get_ylim())
    assert (5.00 - 1.47) / (high - low) > 0.2  # what `broken` spans of the axis
    sentences = extrapolation.describe_extrapolation(evaluations_of(broken, steep, lost))
    assert sentences == [
        "broken: perplexity 4.437 at 128 and 148.413 at 2,048.",
        f"steep: perplexity 4.482 at 128 and {np.exp(1.5 + 2 * step):.3g} at 2,048.",
        "lost: perplexity not finite at 128, 512, 2,048.",
    ]


def test_what_is_seen_does_not_leave_the_view(tmp_path):
    ends = {"low": (1.0, 1.0), "high": (7.685, 7.685), "rising": (7.685, 8.6)}  # to 1, 800 and 2,000 times
    files = [
        losses(tmp_path / f"{run}.json", ((128, first), (512, first), (2048, last)), run=run)
        for run, (first, last) in ends.items()
    ]
    axes = draw(*files).axes[0]
    seen = axes.get_ylim()[1] > np.exp(8.6)
    assert list(curves(axes)) == ["low", "high", "rising" if seen else "rising, leaves the view"]
    assert [set(curves(inset)) for inset in axes.child_axes] == [{"low"}]  # one linear axis is not for both


def test_a_loss_near_the_largest_number_leaves_the_inset_out(tmp_path):
    flat = losses(tmp_path / "a.json", ((128, 704.0), (512, 704.1)))
    steep = losses(tmp_path / "b.json", ((128, 704.0), (512, 709.0)), run="steep")
    (axes,) = draw(flat, steep).axes
    assert not axes.child_axes and np.isfinite(axes.get_ylim()).all()
    (one,) = extrapolation.curves_of(evaluations_of(losses(tmp_path / "c.json", FLAT[:1])))
    assert not extrapolation.is_narrow(one)


def test_what_has_no_perplexity_is_refused(tmp_path, fails):
    task = answers(tmp_path / "a.json", [(256, None, 0.5, 0.25)])
    assert "plot.py retrieval" in fails(3, "extrapolation", task)
    assert "has diverged" in fails(3, "extrapolation", losses(tmp_path / "b.json", ((128, None),)))
    (tmp_path / "c.json").write_text("{")
    assert "eval --json" in fails(3, "extrapolation", tmp_path / "c.json")
    assert not list(tmp_path.glob("*.png"))


def test_a_length_without_a_finite_loss_leaves_a_gap(tmp_path):
    path = losses(tmp_path / "a.json", ((128, 1.0), (512, None), (2048, 1.1)))
    (curve,) = extrapolation.curves_of(evaluations_of(path))
    assert np.isnan(curve.mean).tolist() == [False, True, False] and not extrapolation.is_narrow(curve)
    draw(path, losses(tmp_path / "b.json", FLAT, run="flat"))
    (sentence,) = extrapolation.describe_extrapolation(evaluations_of(path))
    assert sentence == "mine: perplexity 2.718 at 128 and 3.004 at 2,048, not finite at 512."


def test_the_command_writes_beside_the_first_file_and_says_the_ends(tmp_path, capsys):
    path = losses(tmp_path / "a.json", FLAT)
    assert plot.main(["extrapolation", str(path)]) == 0
    where, sentence = capsys.readouterr().out.splitlines()
    assert where == str(tmp_path / "a_extrapolation.png")
    assert sentence == "mine: perplexity 4.482 at 128 and 4.349 at 2,048."
