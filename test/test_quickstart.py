"""The quickstart, as a user runs it: train the built-in task, draw the prior, and find in it what the
paper's first figure shows."""

import json
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

import plot_prior


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_quickstart_learns_a_sink_and_a_previous_token_head(run_binary, run_command, tmp_path, seed):
    run = tmp_path / "quickstart"
    run_binary("--config", "copy_mixture", "--set", f"train.seed={seed}", "--out", run, timeout=600)
    drawn = run_command([sys.executable, Path(plot_prior.__file__).with_name("plot.py"), "prior", run])

    matrices = plot_prior.prior_matrices(run)
    first = [matrices.mass_on_first(head) for head in range(matrices.heads)]
    previous = [matrices.mass_on_previous(head) for head in range(matrices.heads)]
    assert matrices.first_row == 16
    assert max(first) >= 0.9, f"mass on j = 0 by head: {first}"
    assert max(previous) >= 0.5, f"mass on lag 1 by head: {previous}"

    summary = json.loads((run / "summary.json").read_text())
    assert abs(summary["val_loss"] - summary["bayes_optimal_loss"]) <= 0.15

    picture = Path(drawn.stdout.splitlines()[0])
    assert picture == run / "figures" / "prior.png"
    pixels = imread(picture)[..., :3]
    assert pixels.shape[0] >= 600 and pixels.shape[1] >= 1200
    assert pixels.std() > 0.05
