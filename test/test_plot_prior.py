"""The figure of the prior: its numbers against the reference, and what is drawn, artist by artist."""

import resource
import tracemalloc

import numpy as np
import pytest

import figure_file
import free_memory
import plot
import plot_prior
from fabricated_run import CONFIG, HEADS, LENGTH, config_of, peaked_tensors, prior_tensors, write_run
from reference.goat_numpy import Model, ModelConfig

VARIANTS = {
    "free": {},
    "softplus": {"prior__recency": "softplus"},
    "off": {"prior__recency": "off"},
    "learned frequencies": {"prior__learned_frequencies": True},
    "no absolute modes, one relative": {"prior__abs_rank": 0, "prior__pos_rank": 1},
}


class Expected:
    """The prior of one layer over `length` positions, by the reference implementation."""

    def __init__(self, tensors, config, layer, length):
        name = f"blocks.{layer}.attn.prior"
        model = Model(
            ModelConfig.from_run(config), {key: value.astype(np.float64) for key, value in tensors.items()}
        )
        self.u = model.key_bias(name, length)[0] + np.outer(model.slopes(name)[0], np.arange(length))
        relative = model.relative_prior(name, length)[0]
        self.kappa = relative[:, :, 0]
        self.k = relative + self.u[:, None, :]
        self.causal = np.tri(length, dtype=bool)
        self.centred, self.probabilities = np.zeros_like(self.k), np.zeros_like(self.k)
        for head in range(len(self.k)):
            for i in range(length):
                row = self.k[head, i, : i + 1]
                self.centred[head, i, : i + 1] = row - sum(row) / (i + 1)
                weights = np.exp(row - max(row))
                self.probabilities[head, i, : i + 1] = weights / sum(weights)

    def mass(self, head, key_of_row, first_row=16):
        rows = range(first_row, len(self.causal))
        return sum(self.probabilities[head, i, key_of_row(i)] for i in rows) / len(rows)


def grid_of(figure):
    """The panels, a row of four a head, and the colour bars."""
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    return [panels[i : i + 4] for i in range(0, len(panels), 4)], bars


def drawn_by(monkeypatch, *words):
    """The figure that plot.py would write, and where."""
    written = []
    with monkeypatch.context() as patch:
        patch.setattr(figure_file, "write_figure", lambda figure, path: written.append((figure, path)))
        assert plot.main([str(word) for word in words]) == 0
    assert len(written) == 1
    return written[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_matrices_equal_the_reference(tmp_path, rng, variant):
    config = config_of(**VARIANTS[variant])
    tensors = prior_tensors(rng, config)
    matrices = plot_prior.prior_matrices(write_run(tmp_path / "run", tensors, config), layer=1, length=60)
    expected = Expected(tensors, config, 1, 60)
    assert (matrices.heads, matrices.length, matrices.first_row, matrices.step) == (HEADS, 60, 16, 40)
    for head in range(HEADS):
        causal = expected.causal
        log_prior, centred = matrices.log_prior(head), matrices.centred(head)
        assert log_prior[causal] == pytest.approx(expected.k[head][causal], rel=1e-10, abs=1e-10)
        assert centred[causal] == pytest.approx(expected.centred[head][causal], rel=1e-9, abs=1e-9)
        assert np.isnan(log_prior[~causal]).all() and np.isnan(centred[~causal]).all()
        assert matrices.probabilities(head) == pytest.approx(
            expected.probabilities[head], rel=1e-8, abs=1e-12
        )
        assert matrices.mass_on_first(head) == pytest.approx(expected.mass(head, lambda i: 0))
        assert matrices.mass_on_previous(head) == pytest.approx(expected.mass(head, lambda i: i - 1))


def test_hidden_units_follow_the_other_sizes_unless_they_are_given(tmp_path, rng):
    for modes, hidden in [(2, 6), (1, 6), (0, 4)]:  # min(2 (2M + 2), max(2H, 4)) with H = 3
        tensors = prior_tensors(rng, config_of(prior__abs_rank=modes, prior__sink_hidden=hidden))
        run = write_run(
            tmp_path / str(modes), tensors, config_of(prior__abs_rank=modes, prior__sink_hidden=0)
        )
        assert plot_prior.prior_matrices(run).heads == HEADS


def test_large_hidden_values_do_not_overflow(tmp_path):
    tensors = peaked_tensors()
    tensors["blocks.0.attn.prior.sink.b1"][:] = [-3e38, -1e4, -800, 800, 1e4, 3e30]
    tensors["blocks.0.attn.prior.sink.w2"][:, 3] = 1
    with np.errstate(all="raise", under="ignore"):
        matrices = plot_prior.prior_matrices(write_run(tmp_path / "run", tensors))
    assert matrices.sink[0] == pytest.approx(800)


@pytest.mark.parametrize("length", [40, 300])  # where there is a line a position, and where there is not
def test_what_is_drawn_is_the_prior(tmp_path, rng, length):
    tensors = prior_tensors(rng)
    matrices = plot_prior.prior_matrices(write_run(tmp_path / "run", tensors), layer=1, length=length)
    expected = Expected(tensors, CONFIG, 1, length)
    grid, bars = grid_of(plot_prior.draw_prior(matrices, "x"))
    assert len(grid) == HEADS and len(bars) == 2 * HEADS
    for head, (sink, relative, log_prior, softmax) in enumerate(grid):
        for axes, values, unit in [(sink, expected.u[head], "j ="), (relative, expected.kappa[head], "lag")]:
            zero, curve, marker = axes.lines
            assert list(zero.get_ydata()) == [0, 0]
            assert curve.get_xdata() == pytest.approx(np.arange(length))
            assert curve.get_ydata() == pytest.approx(values, rel=1e-9, abs=1e-9)
            top = int(np.argmax(values))
            assert (marker.get_xdata()[0], marker.get_ydata()[0]) == (top, pytest.approx(values[top]))
            label = next(text for text in axes.texts if text.get_text().startswith("max"))
            assert label.get_text() == f"max at {unit} {top}" and label.xy == (
                top,
                pytest.approx(values[top]),
            )
            assert label.get_ha() == ("right" if top > length / 2 else "left")
            low, high = axes.get_ylim()
            assert low < min(values.min(), 0) and high > max(values.max(), 0)
            assert axes.get_xlim()[0] < 0 and axes.get_xlim()[1] > length - 1

        causal = expected.causal
        for axes, values in [(log_prior, expected.centred[head]), (softmax, expected.probabilities[head])]:
            image = axes.images[0]
            drawn = image.get_array()
            assert np.array_equal(np.ma.getmaskarray(drawn), ~causal)
            floored = np.maximum(values, 1e-3) if axes is softmax else values
            assert drawn.data[causal] == pytest.approx(floored[causal], rel=1e-8, abs=1e-9)
            assert image.get_extent() == [-0.5, length - 0.5, length - 0.5, -0.5]  # query 0 is on top
            assert axes.get_xlim() == (pytest.approx(-0.5 - 0.02 * length), length - 0.5)
            assert axes.get_ylim() == (length - 0.5, -0.5)
            assert axes.get_aspect() == 1
        extreme = np.abs(expected.centred[head][causal]).max()
        colours, shades = log_prior.images[0], softmax.images[0]
        assert colours.get_clim() == (pytest.approx(-extreme), pytest.approx(extreme))
        assert colours.get_cmap().name == "RdBu_r" and type(colours.norm).__name__ == "Normalize"
        assert shades.get_clim() == (1e-3, 1)
        assert shades.get_cmap().name == "magma" and type(shades.norm).__name__ == "LogNorm"
        first, previous = expected.mass(head, lambda i: 0), expected.mass(head, lambda i: i - 1)
        assert softmax.texts[0].get_text() == f"j = 0:  {first:.0%}\nlag 1:  {previous:.0%}"
        assert [text.get_text() for text in sink.texts if "head" in text.get_text()] == [f"head {head}"]


def test_axes_and_panels_are_named(tmp_path):
    matrices = plot_prior.prior_matrices(write_run(tmp_path / "run", peaked_tensors()), layer=1)
    figure = plot_prior.draw_prior(matrices, "The $ title_\n")
    grid, bars = grid_of(figure)
    for row in grid:
        assert [axes.get_xlabel() for axes in row] == ["key j", "lag i \N{MINUS SIGN} j", "key j", "key j"]
        assert [axes.get_ylabel() for axes in row] == ["nats", "nats", "query i", "query i"]
    assert [bar.get_ylabel() for bar in bars] == ["nats", "probability"] * HEADS
    titles = [axes.get_title() for axes in grid[0]]
    assert [title[:3] for title in titles] == ["(a)", "(b)", "(c)", "(d)"]
    for title, part in zip(titles, ["key bias", "relative part", "centred", "softmax"], strict=True):
        assert part in title
    assert all(axes.get_title() == "" for row in grid[1:] for axes in row)
    assert figure.get_suptitle() == "The $ title_\\n" and not figure._suptitle.get_parse_math()


def test_a_flat_prior_has_a_colour_scale(tmp_path):
    matrices = plot_prior.prior_matrices(write_run(tmp_path / "run", peaked_tensors()), layer=0)
    grid, _ = grid_of(plot_prior.draw_prior(matrices, "x"))
    low, high = grid[0][2].images[0].get_clim()
    assert low < 0 < high and low == -high


def test_layer_checkpoint_and_length_choose_what_is_drawn(tmp_path, rng, monkeypatch, capsys):
    by_step = {step: prior_tensors(rng) for step in (5, 40)}
    run = write_run(tmp_path / "run", by_step.get)
    for words, step, layer, length in [
        ([], 40, 0, LENGTH),
        (["--layer", 1], 40, 1, LENGTH),
        (["--checkpoint", 5], 5, 0, LENGTH),
        (["--length", 23, "--layer", 1, "--checkpoint", 5], 5, 1, 23),
        (["--length", 2], 40, 0, 2),
    ]:
        figure, path = drawn_by(monkeypatch, "prior", run, *words)
        expected = Expected(by_step[step], CONFIG, layer, length)
        curve = grid_of(figure)[0][2][0].lines[1]
        assert curve.get_ydata() == pytest.approx(expected.u[2], rel=1e-9, abs=1e-9)
        assert figure.get_suptitle() == f"Learned attention prior: run, layer {layer}, step {step}"
        assert path == run / "figures" / ("prior.png" if layer == 0 else "prior_layer1.png")
        out = capsys.readouterr().out.splitlines()
        assert out[0] == str(path)
        assert out[1] == f"Layer {layer} at step {step}, from {run / 'checkpoints' / f'step_{step:08d}'}."
        figure_file.plt.close(figure)


def test_what_gates_forget_is_said_to_be_left_out(tmp_path, capsys, monkeypatch):
    config = config_of(model__attention="goat+forget")
    run = write_run(tmp_path / "run", peaked_tensors(), config)
    for command, what in (("prior", "Learned attention prior"), ("mask", "The prior and the mask")):
        figure, _ = drawn_by(monkeypatch, command, run)
        assert figure.get_suptitle() == f"{what}, without forgetting: run, layer 0, step 40"
        assert "What its gates forget depends on the text and is not drawn." in capsys.readouterr().out
        figure_file.plt.close(figure)


def test_length_is_the_training_length_but_at_most_512_positions(tmp_path):
    for seq_len, length in [(1, 2), (511, 511), (2000, 512)]:
        run = write_run(tmp_path / str(seq_len), peaked_tensors(), config_of(data__seq_len=seq_len))
        assert plot_prior.prior_matrices(run).length == length


def test_sentences_name_the_heads_and_their_shares(tmp_path):
    run = write_run(tmp_path / "run", peaked_tensors())
    expected = Expected(peaked_tensors(), CONFIG, 1, LENGTH)
    first, previous = expected.mass(0, lambda i: 0), expected.mass(1, lambda i: i - 1)
    assert first > 0.99 and previous > 0.5
    assert plot_prior.describe_prior(plot_prior.prior_matrices(run, layer=1)) == (
        f"Head 0 puts {first:.1%} of its causal prior on the first token (j = 0), mean over rows i >= 16. "
        f"Head 1 puts {previous:.1%} of its causal prior on the previous token (lag 1), "
        "mean over rows i >= 16."
    )
    uniform = sum(1 / (i + 1) for i in range(16, 40)) / 24
    assert plot_prior.describe_prior(plot_prior.prior_matrices(run, layer=0)) == " ".join(
        f"No head puts half of its causal prior on {what}; "
        f"the largest share is {uniform:.1%} (head 0), mean over rows i >= 16."
        for what in ("the first token (j = 0)", "the previous token (lag 1)")
    )


def test_statistics_of_a_short_figure_use_its_last_row(tmp_path):
    matrices = plot_prior.prior_matrices(write_run(tmp_path / "run", peaked_tensors()), layer=1, length=3)
    expected = Expected(peaked_tensors(), CONFIG, 1, 3)
    assert matrices.first_row == 2
    assert matrices.mass_on_first(0) == pytest.approx(expected.mass(0, lambda i: 0, first_row=2))
    assert matrices.mass_on_previous(1) == pytest.approx(expected.mass(1, lambda i: i - 1, first_row=2))


# Memory


def test_a_length_beyond_the_memory_is_refused_with_the_longest_that_fits(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "run", peaked_tensors())
    assert plot.main(["prior", str(run), "--length", "1000000"]) == 2
    assert "--length 1000000: the figure of 3 heads takes" in capsys.readouterr().err
    cell = 3 * plot_prior.KEPT_BYTES + plot_prior.WORKING_BYTES
    monkeypatch.setattr(plot_prior, "free_memory", lambda: 100**2 * cell)
    assert plot.main(["prior", str(run), "--length", "101"]) == 2
    assert "the limit here is --length 100" in capsys.readouterr().err
    assert plot_prior.prior_matrices(run, length=100).length == 100
    monkeypatch.setattr(plot_prior, "free_memory", lambda: None)  # where nobody knows
    assert plot_prior.prior_matrices(run, length=101).length == 101


def test_the_memory_a_figure_takes_is_what_is_reckoned_with(tmp_path):
    """By what a longer figure takes more: fonts, axes and the picture's pixels are the same."""
    heads = 1

    def peak(length):
        curves = np.random.default_rng(0).normal(size=(heads, length))
        tracemalloc.start()
        try:
            figure = plot_prior.draw_prior(plot_prior.PriorMatrices(curves, curves, None), "x")
            figure_file.write_figure(figure, tmp_path / "x.png")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    larger = peak(1600)
    taken = (larger - peak(1000)) / (1600**2 - 1000**2)
    reckoned = heads * plot_prior.KEPT_BYTES + plot_prior.WORKING_BYTES
    assert 0.5 * reckoned < taken < reckoned, taken


def test_free_memory_is_the_least_of_the_limits(tmp_path, monkeypatch):
    available = free_memory.number_in("/proc/meminfo", "MemAvailable:") * 1024
    assert 0 < free_memory.free_memory() <= 1.1 * available
    monkeypatch.setattr(free_memory, "control_group_rest", lambda: 12345)
    assert free_memory.free_memory() == 12345
    monkeypatch.undo()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = free_memory.number_in("/proc/self/status", "VmSize:") * 1024
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, hard))
        assert 2**25 < free_memory.free_memory() <= 2**26
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    for text, value in [("7\n", 7), ("max\n", None), ("", None)]:
        (tmp_path / "limit").write_text(text)
        assert free_memory.number_in(tmp_path / "limit") == value
