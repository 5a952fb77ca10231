"""The figure of the mask: the prior over all keys against the reference, and beside it the causal one."""

import numpy as np
import pytest

import plot
import plot_mask
import plot_prior
from fabricated_run import (  # with fixtures
    CONFIG, HEADS, LENGTH, config_of, fails, no_figure_stays_open, peaked_tensors, prior_tensors, run,
    write_run,
)  # fmt: skip


def kappa(tensors, layer, head, lag):
    """The relative part at one lag, which may be negative, term by term."""
    prefix = f"blocks.{layer}.attn.prior."
    alpha, beta = tensors[prefix + "alpha"][head], tensors[prefix + "beta"][head]
    rank = len(alpha)
    w = [CONFIG["prior"]["base"] ** (-r / (rank - 1)) for r in range(rank)]
    return sum(alpha[r] * np.cos(w[r] * lag) + beta[r] * np.sin(w[r] * lag) for r in range(rank))


def softmax(row):
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def test_the_unmasked_prior_is_the_softmax_over_all_keys(tmp_path, rng):
    tensors = prior_tensors(rng)
    matrices = plot_prior.prior_matrices(write_run(tmp_path / "run", tensors), layer=1, length=12)
    for head in range(HEADS):
        unmasked = matrices.unmasked(head)
        u = matrices.sink[head]
        for i in range(12):
            row = np.array([kappa(tensors, 1, head, i - j) + u[j] for j in range(12)])
            assert unmasked[i] == pytest.approx(softmax(row), rel=1e-6)
            causal = matrices.probabilities(head)[i, : i + 1]
            assert causal == pytest.approx(softmax(row[: i + 1]), rel=1e-6)
            # The mask removes keys and scales what is left.
            assert causal == pytest.approx(unmasked[i, : i + 1] / unmasked[i, : i + 1].sum(), rel=1e-9)


def test_a_pair_of_panels_a_head_without_and_with_the_mask(run):
    matrices = plot_prior.prior_matrices(run, layer=1)
    figure = plot_mask.draw_mask(matrices, "The $ title")
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_label() != "<colorbar>"}
    names = [f"head {h}: {which}" for h in range(HEADS) for which in ("over all keys", "causal")]
    assert list(panels) == names
    causal = np.tri(LENGTH, dtype=bool)
    for head in range(HEADS):
        whole, hidden = (panels[f"head {head}: {which}"] for which in ("over all keys", "causal"))
        drawn = whole.images[0].get_array()
        assert not np.ma.getmaskarray(drawn).any()
        assert drawn.data == pytest.approx(np.maximum(matrices.unmasked(head), 1e-3))
        drawn = hidden.images[0].get_array()
        assert np.array_equal(np.ma.getmaskarray(drawn), ~causal)
        assert drawn.data[causal] == pytest.approx(np.maximum(matrices.probabilities(head), 1e-3)[causal])
        for axes in (whole, hidden):
            assert axes.images[0].get_clim() == (1e-3, 1)
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("key j", "query i")
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert [bar.get_ylabel() for bar in bars] == ["probability"]
    assert figure.get_suptitle() == "The $ title"


def test_the_sentence_has_the_mass_after_the_query(tmp_path):
    zeros = {name: np.zeros_like(value) for name, value in peaked_tensors().items()}
    matrices = plot_prior.prior_matrices(write_run(tmp_path / "run", zeros), length=4)
    uniform = (3 / 4 + 2 / 4 + 1 / 4) / 3
    assert plot_mask.mass_ahead(matrices, 0) == pytest.approx(uniform)
    assert plot_mask.describe_mask(matrices).endswith("0: 50.0%, 1: 50.0%, 2: 50.0%.")


def test_the_command_draws_a_layer_of_a_checkpoint(run, capsys):
    assert plot.main(["mask", str(run), "--layer", "1", "--checkpoint", "5", "--length", "9"]) == 0
    path, where, _ = capsys.readouterr().out.splitlines()
    assert path == str(run / "figures" / "mask_layer1.png")
    assert where == f"Layer 1 at step 5, from {run / 'checkpoints' / 'step_00000005'}."


def test_what_has_no_prior_is_refused_as_for_prior(tmp_path, fails):
    rope = write_run(tmp_path / "rope", peaked_tensors(), config_of(model__attention="rope"))
    assert "model.attention is 'rope'" in fails(2, "mask", rope)
    assert "0 to 1" in fails(2, "mask", write_run(tmp_path / "run", peaked_tensors()), "--layer", 2)
