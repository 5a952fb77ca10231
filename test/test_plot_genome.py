"""The figure of genome completions: curves, matches and letters against the file, and what is refused."""

import json
import shlex

import numpy as np
import pytest

import genome_completions
import plot
import plot_genome
from conftest import REPOSITORY
from fabricated_run import (  # with fixtures
    config_of, fails, no_figure_stays_open, peaked_tensors, run, write_run,
)  # fmt: skip
from genome_measures import gc_content, pearson_r

TRUTH = ("GATTACA" * 20)[:130]
TEXTS = [TRUTH[:60] + "C" * 70, TRUTH[1:] + "A", "N" * 130]


def write_completions(run, prompts=1, texts=TEXTS):
    """RUN/completions.json as genome_completions.py writes it."""
    entries = []
    for n in range(prompts):
        place = {"shard": "val_000000.bin", "position": 1000 * n, "prompt": "ACGT"}
        entries.append(place | genome_completions.compare(TRUTH, texts, seed=1))
    run.mkdir(exist_ok=True)
    contents = {"step": 40, "window": 25, "prompts": entries}
    (run / "completions.json").write_text(json.dumps(contents))
    return contents


def draw(run, number=None):
    _, prompts = plot_genome.read_completions(run)
    return plot_genome.draw_genome(plot_genome.chosen_prompts(prompts, number), "The $ title")


def test_gc_content_of_truth_and_completions_with_their_correlations(run):
    (entry,) = write_completions(run)["prompts"]
    axes = draw(run).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    truth = gc_content(TRUTH)
    rs = [pearson_r(truth, gc_content(text)) for text in TEXTS]
    assert rs[2] is None
    names = [f"completion {n}, r = {rs[n - 1]:.2f}" for n in (1, 2)] + ["completion 3, r: none, constant"]
    assert list(lines) == ["truth", *names]
    assert lines["truth"].get_ydata() == pytest.approx(100 * np.array(entry["gc_truth"]))
    for name, completion in zip(names, entry["completions"], strict=True):
        assert lines[name].get_ydata() == pytest.approx(100 * np.array(completion["gc"]))
    assert len({(line.get_linestyle(), line.get_color()) for line in lines.values()}) == 4
    assert len({line.get_linestyle() for line in lines.values()}) > 2
    assert "GC (%)" in axes.get_ylabel() and "val_000000.bin, base 0" in axes.get_title(loc="left")


def test_matches_by_position_and_their_windowed_mean(run):
    (entry,) = write_completions(run)["prompts"]
    axes = draw(run).axes[1]
    share = 100 * np.array(entry["matches_by_position"])
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(share)
    lines = {line.get_label(): line for line in axes.lines}
    means = [share[first : first + 25].mean() for first in range(130 - 24)]
    assert lines["mean of 25 bases"].get_ydata() == pytest.approx(means)
    assert list(lines["drawn at random: 25 %"].get_ydata()) == [25, 25]
    assert axes.get_legend().get_title().get_text() == f"{100 * entry['mean_matches']:.1f} % match"


def test_every_base_is_a_letter_filled_where_it_is_the_truths(run):
    write_completions(run)
    axes = draw(run).axes[2]
    cells = axes.images[0].get_array()
    assert cells.shape == (9, 100, 3)  # two blocks of four lines, one line between them
    letters = {text.get_position(): text for text in axes.texts}
    assert len(letters) == 4 * 130
    for n, sequence in enumerate([TRUTH, *TEXTS]):
        for place, base in enumerate(sequence):
            column, row = place % 100, 5 * (place // 100) + n
            assert letters[column, row].get_text() == base
            is_match = base == TRUTH[place]
            assert (cells[row, column] < 1).any() == is_match
            assert letters[column, row].get_weight() == ("bold" if is_match else "normal")
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == 2 * ["truth", "completion 1", "completion 2", "completion 3"]
    assert list(axes.get_yticks()) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_of_long_and_many_completions_the_first_are_spelled_out(run, monkeypatch):
    (entry,) = write_completions(run)["prompts"]
    monkeypatch.setattr(plot_genome, "MOST_COMPLETIONS", 2)
    monkeypatch.setattr(plot_genome, "MOST_LETTERS", 110)
    gc, share, letters = draw(run).axes
    assert len(gc.lines) == 3 and len(letters.texts) == 3 * 110
    heights = [bar.get_height() for bar in share.patches]
    assert heights == pytest.approx(100 * np.array(entry["matches_by_position"]))  # of all
    assert gc.get_title(loc="left").endswith("; 2 of 3 completions; the first 110 bases in letters")


def test_the_first_prompts_are_drawn_or_one(run, capsys, monkeypatch):
    monkeypatch.setattr(plot_genome, "MOST_PROMPTS", 2)
    write_completions(run, prompts=8)
    figure = draw(run)
    assert len(figure.axes) == 3 * plot_genome.MOST_PROMPTS and figure.get_suptitle() == "The $ title"
    assert "prompt 7: val_000000.bin, base 7,000" in draw(run, 7).axes[0].get_title(loc="left")
    assert plot.main(["genome", str(run), "--prompt", "7"]) == 0
    path, sentence = capsys.readouterr().out.splitlines()
    assert path == str(run / "figures" / "genome_7.png")
    known = [pearson_r(gc_content(TRUTH), gc_content(text)) for text in TEXTS[:2]]
    share = np.mean([[a == b for a, b in zip(TRUTH, text, strict=True)] for text in TEXTS])
    assert sentence == (
        f"1 prompt: mean Pearson r of GC content {np.mean(known):.3f} (1 of 3 have none: a GC content is "
        f"constant); matches {share:.1%}."
    )


def test_no_correlation_at_all_is_said(run):
    write_completions(run, texts=["A" * 130])
    _, prompts = plot_genome.read_completions(run)
    assert "no Pearson r has a value" in plot_genome.describe_genome(prompts)
    draw(run)


def test_the_command_that_makes_the_file_is_told_to_models_of_genomes_alone(tmp_path, fails):
    def of_vocabulary(name, vocabulary):
        config = config_of(model__vocab=vocabulary, data__source="shards")
        return write_run(tmp_path / name, peaked_tensors(), config)

    run = of_vocabulary("a run's $x", 5)
    python, script, *words = shlex.split(fails(2, "genome", run).partition("this makes it: ")[2])
    assert python == ".venv/bin/python" and (REPOSITORY / script).samefile(genome_completions.__file__)
    assert genome_completions.parse_arguments(words).run == run
    for other, code, part in [
        (of_vocabulary("text", 256), 2, "is no model of genomes"),
        (tmp_path / "nowhere", 2, "no such folder"),
    ]:
        error = fails(code, "genome", other)
        assert part in error and "genome_completions" not in error


def test_what_is_no_file_of_completions_is_refused(run, fails):
    contents = write_completions(run)
    for number in ("1", "-1"):
        assert "the prompts 0 to 0" in fails(2, "genome", run, "--prompt", number)
    (entry,) = contents["prompts"]
    for change in [
        {"prompts": []},
        {"prompts": [1]},
        {"prompts": 1},
        {"window": 0},
        {"window": 130},
        {"window": "x"},
        {"step": None},
        {"prompts": [entry | {"completions": []}]},
        {"prompts": [entry | {"completions": [{"text": "ACGT"}]}]},
        {"prompts": [entry | {"completions": [{"text": "X" * 130}]}]},
        {"prompts": [entry | {"truth": 5}]},
        {"prompts": [entry | {"position": "x"}]},
    ]:
        (run / "completions.json").write_text(json.dumps(contents | change))
        assert "not what scripts/genome_completions.py writes" in fails(3, "genome", run), change
    (run / "completions.json").write_text("{")
    assert "not JSON" in fails(3, "genome", run)
    assert not (run / "figures").exists()
