"""The figures made of an analysis, key bias and signal against sink, and when an analysis is refused."""

import shlex

import numpy as np
import pytest

import plot
import plot_signal
import plot_sink
from analysis_reader import command_for, open_analysis
from console import DataError, UsageError
from fabricated_analysis import HEADS, LAYERS, LENGTH, write_analysis
from fabricated_run import fails, no_figure_stays_open, peaked_tensors, run, write_checkpoint  # fixtures

NAMES = {"u(j), the sum": "sink", "slope": "sink_slope", "MLP": "sink_mlp", "bump on j = 0": "sink_bump"}


def labelled(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def panels_of(figure):
    return {axes.get_title(): axes for axes in figure.axes}


# The key bias


def test_each_head_shows_its_parts_and_their_sum(run, rng):
    arrays = write_analysis(run, rng)
    figure = plot_sink.draw_sink(plot_sink.sink_parts(run), "The $ title")
    panels = panels_of(figure)
    assert list(panels) == [f"layer {n}, head {h}" for n in range(LAYERS) for h in range(HEADS)]
    for layer in range(LAYERS):
        for head in range(HEADS):
            lines = labelled(panels[f"layer {layer}, head {head}"])
            assert set(lines) == set(NAMES)
            for label, name in NAMES.items():
                values = arrays[name][layer, head]
                drawn = lines[label]
                if name == "sink_bump":
                    assert list(drawn.get_xdata()) == [0] and drawn.get_ydata()[0] == values[0]
                else:
                    assert list(drawn.get_xdata()) == list(range(LENGTH))
                    assert np.array_equal(drawn.get_ydata(), values)
            looks = {(line.get_linestyle(), line.get_marker()) for line in lines.values()}
            assert len(looks) == len(NAMES)  # apart from their colours
    assert figure.get_suptitle() == "The $ title" and not figure._suptitle.get_parse_math()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(NAMES)
    assert figure.axes[0].get_ylabel() == "nats" and figure.axes[-1].get_xlabel() == "key j"
    assert figure.axes[0].get_yscale() == "linear"


def test_large_biases_have_a_logarithmic_axis_and_the_title_says_so(run, rng):
    write_analysis(run, rng, slope=30)
    figure = plot_sink.draw_sink(plot_sink.sink_parts(run), "x")
    assert {axes.get_yscale() for axes in figure.axes} == {"symlog"}
    assert "logarithmic beyond" in figure.get_suptitle()


def test_of_long_curves_some_keys_are_drawn(run, rng, monkeypatch):
    monkeypatch.setattr(plot_sink, "MOST_POINTS", 15)
    arrays = write_analysis(run, rng)
    figure = plot_sink.draw_sink(plot_sink.sink_parts(run, layer=0), "x")
    line = labelled(figure.axes[1])["MLP"]
    assert list(line.get_xdata()) == list(range(0, LENGTH, 3))
    assert np.array_equal(line.get_ydata(), arrays["sink_mlp"][0, 1, ::3])


def test_one_layer_fills_rows_of_eight_heads(run, rng):
    write_analysis(run, rng, heads=11)
    sink = plot_sink.sink_parts(run, layer=1)
    panels = panels_of(plot_sink.draw_sink(sink, "x"))
    assert sink.grid == (2, 8) and list(panels) == [f"layer 1, head {h}" for h in range(11)]
    named = [title for title, axes in panels.items() if axes.get_xlabel() == "key j"]
    assert named == [f"layer 1, head {h}" for h in range(3, 11)]  # the lowest of each column


def test_too_many_heads_for_a_figure_are_refused(run, rng):
    write_analysis(run, rng, layers=21, heads=10, length=3)
    with pytest.raises(UsageError, match="210 heads are more.*--layer L"):
        plot_sink.sink_parts(run)
    assert plot_sink.sink_parts(run, layer=20).layers == [20]


def test_the_sentence_names_the_ranges_of_what_is_drawn(run, rng):
    arrays = write_analysis(run, rng)
    sentence = plot_sink.describe_sink(plot_sink.sink_parts(run, layer=1))
    slope, bump = arrays["sink_slope"][1, :, 1], arrays["sink_bump"][1, :, 0]
    span = np.ptp(arrays["sink_mlp"][1], axis=-1).max()
    assert f"{slope.min():.4f} to {slope.max():.4f} nats a token" in sentence
    assert f"{bump.min():.3f} to {bump.max():.3f} nats" in sentence and f"at most {span:.3f}" in sentence


# Signal against sink


def test_runs_stand_beside_each_other_with_a_curve_a_layer(tmp_path, run, rng):
    other = tmp_path / "rope"
    first = write_analysis(run, rng)["signal_vs_sink"].astype(float)
    second = write_analysis(other, rng, attention="rope", has_sink=False, layers=3, length=20)
    second = second["signal_vs_sink"]
    figure = plot_signal.draw_signal(plot_signal.signals_of([run, other]))
    grid = np.array(figure.axes).reshape(4, 2)
    assert [axes.get_title() for axes in grid[0]] == ["run\ngoat, step 40", "rope\nrope, step 40"]
    for column, values in zip(grid.T, (first, second.astype(float)), strict=True):
        means = values.mean(axis=(1, 2))
        for quantity, axes in enumerate(column):
            lines = labelled(axes)
            assert list(lines) == [*(f"layer {n}" for n in range(len(means))), "mean"]
            for layer, mean in enumerate(means):
                assert lines[f"layer {layer}"].get_ydata() == pytest.approx(mean[:, quantity], rel=1e-6)
            assert lines["mean"].get_ydata() == pytest.approx(means.mean(axis=0)[:, quantity], rel=1e-6)
    labels = [axes.get_ylabel() for axes in grid[:, 0]]
    for label, part in zip(labels, ["omega", "p_0", "largest", "last 128"], strict=True):
        assert part in label
    for row in grid:  # of one scale, so that runs compare
        assert row[0].get_ylim() == row[1].get_ylim()
    shades = [np.mean(line.get_color()[:3]) for name, line in labelled(grid[0, 1]).items() if name != "mean"]
    assert shades == sorted(shades) and shades[-1] < 0.8  # in grey too


def test_the_legends_colours_are_those_of_every_run_whatever_its_depth(tmp_path, run, rng):
    runs = [run, tmp_path / "deep", tmp_path / "deeper"]
    for each, layers in zip(runs, (4, 12, 14), strict=True):
        write_analysis(each, rng, layers=layers)
    figure = plot_signal.draw_signal(plot_signal.signals_of(runs))
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    shown = {name: line.get_color() for name, line in zip(names, legend.get_lines(), strict=True)}
    order = [*range(4), "mean", *range(4, 12), 13]
    assert names == [each if each == "mean" else f"layer {each}" for each in order]
    assert len(set(shown.values())) == len(names)
    for axes in figure.axes:
        assert all(line.get_color() == shown[name] for name, line in labelled(axes).items())
        in_order = [line.get_color() for line in axes.lines[:4]]
        assert in_order == [shown[f"layer {n}"] for n in range(4)]


def test_of_one_layer_each_head_is_a_curve(run, rng):
    values = write_analysis(run, rng)["signal_vs_sink"].astype(float)
    figure = plot_signal.draw_signal(plot_signal.signals_of([run], layer=1))
    lines = labelled(figure.axes[2])
    assert list(lines) == ["head 0", "head 1", "head 2", "mean"]
    assert lines["head 2"].get_ydata() == pytest.approx(values[1, 2, :, :, 2].mean(axis=0), rel=1e-6)


def test_the_legend_names_the_ends_of_many_layers(run, rng):
    write_analysis(run, rng, layers=14)
    figure = plot_signal.draw_signal(plot_signal.signals_of([run]))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["layer 0", "layer 13", "mean"]


def test_the_sentence_on_signals_has_the_means_over_later_queries(run, rng):
    values = write_analysis(run, rng)["signal_vs_sink"].astype(float)
    (signal,) = plot_signal.signals_of([run])
    omega, first, largest, last = values[:, :, :, LENGTH // 4 :].mean(axis=(0, 1, 2, 3))
    assert plot_signal.describe_signal(signal) == (
        f"run: content range {omega:.3f} nats, p_0 {first:.3f}, largest p {largest:.3f}, mass of the last "
        f"128 keys {last:.3f}; means over the queries i >= 10."
    )


# Commands, and what is refused


def test_the_commands_write_into_the_runs_folder(run, rng, capsys):
    write_analysis(run, rng)
    for words, name in [
        (["sink"], "sink.png"),
        (["sink", "--layer", "1"], "sink_layer1.png"),
        (["signal"], "signal.png"),
    ]:
        assert plot.main([words[0], str(run), *words[1:]]) == 0
        assert capsys.readouterr().out.splitlines()[0] == str(run / "figures" / name)
        assert (run / "figures" / name).stat().st_size > 10_000


def test_a_missing_or_old_analysis_is_refused_with_the_command_that_makes_it(run, rng, fails):
    command = f": ./train_gpt_goat analyze --checkpoint {run}"
    for name in ("sink", "signal"):
        assert command in fails(2, name, run)
    write_analysis(run, rng, step=39)
    for name in ("sink", "signal"):
        error = fails(2, name, run)
        assert command in error and "of step 39" in error and "step 40" in error
    assert "no such folder" in fails(2, "sink", run / "nowhere")
    assert "is not a folder" in fails(2, "sink", run / "config.toml")
    assert not (run / "figures").exists()


def test_the_command_for_an_analysis_is_one_for_the_shell(tmp_path):
    words = shlex.split(command_for(tmp_path / "a run's"))
    assert words == ["./train_gpt_goat", "analyze", "--checkpoint", f"{tmp_path}/a run's"]


def test_a_damaged_newer_checkpoint_does_not_make_an_analysis_old(run, rng):
    write_analysis(run, rng, step=40)
    newest = run / "checkpoints" / "step_00000041"
    write_checkpoint(newest, 41, peaked_tensors())
    with pytest.raises(UsageError, match="step 41"):
        open_analysis(run, lambda message: None)
    (newest / "model.safetensors").write_bytes(b"damaged")
    warnings = []
    assert open_analysis(run, warnings.append).step == 40 and "step_00000041" in warnings[0]


def test_a_checkpoint_that_was_passed_on_has_its_own_analysis(tmp_path, rng):
    write_checkpoint(tmp_path / "alone", 7, peaked_tensors())
    write_analysis(tmp_path / "alone", rng, step=7)
    assert open_analysis(tmp_path / "alone", None).step == 7
    write_analysis(tmp_path / "alone", rng, step=6)
    with pytest.raises(UsageError, match="step 7"):
        open_analysis(tmp_path / "alone", None)


def test_what_an_analysis_does_not_have_is_named(run, rng, fails):
    write_analysis(run, rng, attention="rope", has_sink=False, has_signal=False)
    assert "model.attention is 'rope', which adds no key bias" in fails(2, "sink", run)
    assert "--data" in fails(2, "signal", run)
    write_analysis(run, rng)
    for name in ("sink", "signal"):
        assert "the layers 0 to 1" in fails(2, name, run, "--layer", "2")
        assert "the layers 0 to 1" in fails(2, name, run, "--layer", "-1")


@pytest.mark.parametrize(
    ("file", "damage", "part"),
    [
        ("sink.npy", b"", "sink.npy: not a .npy file"),
        ("sink.npy", b"no array", "sink.npy: not a .npy file"),
        ("sink_mlp.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8'}", "sink_mlp.npy: not a .npy file"),
        ("analysis.json", b"{", "analysis.json: not JSON"),
        ("analysis.json", b"{}", "'step' is missing"),
        ("analysis.json", b'{"step": 40, "layers": 0, "heads": 1, "length": 1}', "'layers' is missing"),
        ("analysis.json", b'{"step": 40, "layers": 2, "heads": 3, "length": 40}', "'attention' is missing"),
    ],
)
def test_damaged_files_of_an_analysis_exit_with_3(run, rng, fails, file, damage, part):
    write_analysis(run, rng)
    (run / "analysis" / file).write_bytes(damage)
    assert part in fails(3, "sink", run)


def test_arrays_that_do_not_fit_exit_with_3(run, rng, fails):
    arrays = write_analysis(run, rng)
    folder = run / "analysis"
    for name, values, command, part in [
        ("sink", arrays["sink"][:1], "sink", "float64 [1, 3, 40], expected float64 [2, 3, 40]"),
        ("sink", arrays["sink"].astype(np.float32), "sink", "is float32"),
        ("sink", arrays["sink"] * np.nan, "sink", "not finite; the model has diverged"),
        ("sink", arrays["sink"] + 1, "sink", "not the sum of slope, MLP and bump"),
        ("signal_vs_sink", arrays["sink"], "signal", "expected float32 [2, 3, any, 40, 4]"),
        ("signal_vs_sink", arrays["signal_vs_sink"][:, :, :0], "signal", "holds no sequence"),
        ("signal_vs_sink", np.array([{}]), "signal", "not a .npy file"),
    ]:
        np.save(folder / f"{name}.npy", values, allow_pickle=True)
        assert part in fails(3, command, run)
        np.save(folder / f"{name}.npy", arrays[name])
    whole = (folder / "sink.npy").read_bytes()
    (folder / "sink.npy").write_bytes(whole[:-8])
    assert "damaged" in fails(3, "sink", run)
    (folder / "sink_bump.npy").unlink()
    (folder / "sink.npy").write_bytes(whole)
    assert "sink_bump.npy: No such file" in fails(3, "sink", run)
    with pytest.raises(DataError, match="sink_bump"):
        plot_sink.sink_parts(run)
