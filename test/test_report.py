"""report.py: the page's numbers are those of the runs' files, and whatever the files hold is only text."""

import base64
import json
import shlex
import sys

import numpy as np
import pytest

import report
import report_figures
from conftest import REPOSITORY
from fabricated_run import (  # with a fixture
    CONFIG, no_figure_stays_open, peaked_tensors, toml, write_metrics, write_run,
)  # fmt: skip
from plot_eval import draw_eval
from report_pages import (  # with fixtures
    SUMMARY, evaluation, finished, losses, no_program, page_of, texts, write_evaluation,
)  # fmt: skip

SCRIPT = REPOSITORY / "scripts" / "report.py"


@pytest.fixture
def fails(tmp_path, capsys):
    """fails(code, words...): the one line on stderr; a page that was there stays as it was."""

    def check(code, *words):
        path = tmp_path / "old.html"
        path.write_text("the old page")
        assert report.main([*map(str, words), "--out", str(path)]) == code, words
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) == 1, captured
        assert path.read_text() == "the old page"
        return captured.err

    return check


# What the page says of runs


def test_facts_are_those_of_the_summary(tmp_path, page_of):
    page = page_of(finished(tmp_path / "one"))
    for what, key, shown in [
        ("tokens", "tokens", "163,840"),
        ("parameters", "parameters", "785,728"),
        ("of them the prior's", "parameters_prior", "896"),
        ("time", "seconds", "1 h 6 min"),
        ("speed", "tokens_per_second", "4,410 tokens/s"),
        ("arithmetic", "flops_per_second", "22.32 GFLOP/s"),
        ("memory", "memory_bytes", "174.3 MiB"),
        ("skipped updates", "skipped_updates", "2"),
    ]:
        assert page.row(what) == [(shown, repr(SUMMARY[key]))], what
    for what, shown in [
        ("status", "finished"),
        ("device", "cpu: a processor"),
        ("program", "0123abc"),
        ("start", "random weights"),
        ("warnings", "none"),
    ]:
        assert texts(page.row(what)) == [shown]
    assert "MFU" not in page.text  # no run knows one


def test_losses_are_those_of_the_metrics(tmp_path, page_of):
    run = write_run(tmp_path / "one")
    (run / "summary.json").unlink()
    lines = [{"step": s, "loss": 5 - 0.01234567 * s} for s in range(1, 41)]
    lines[19]["val_loss"], lines[39]["val_loss"] = 4.123456, 4.234567
    write_metrics(run, lines)
    page = page_of(run)
    assert page.row("training, last step") == [("4.5062", repr(lines[-1]["loss"]))]
    assert page.row("validation, last") == [("4.2346", "4.234567")]
    assert page.row("validation, lowest") == [("4.1235 at step 20", "4.123456")]
    [(shown, value)] = page.row("training, smoothed, at the end")
    assert lines[-1]["loss"] < float(value) < lines[-4]["loss"] and shown == f"{float(value):.4f}"
    [image] = [each for each in page.images if "loss" in each["alt"]]
    kind, _, data = image["src"].partition(";base64,")
    assert kind == "data:image/svg+xml" and b"<svg" in base64.b64decode(data)


def test_the_smoothed_loss_of_a_run_that_diverged_has_its_step(tmp_path, page_of):
    run = finished(tmp_path / "a")
    lines = [{"step": step, "loss": 2.0 if step < 7 else None} for step in range(1, 11)]
    write_metrics(run, lines)
    [(shown, value)] = page_of(run).row("training, smoothed, at the end")
    assert shown == "2.0000 at step 6" and float(value) == pytest.approx(2)


def test_a_run_that_has_only_validated_has_a_dash_for_the_other_losses(tmp_path, page_of):
    runs = [write_run(tmp_path / name) for name in ("one", "two")]
    (runs[0] / "summary.json").unlink()
    write_metrics(runs[0], [{"step": 1, "val_loss": 4.5}])
    page = page_of(*runs)
    assert page.row("training, smoothed, at the end")[0] == ("\N{EN DASH}", None)
    assert page.row("validation, lowest")[0] == ("4.5000 at step 1", "4.5")


def test_a_run_that_was_not_finished_says_how_far_it_came(tmp_path, page_of):
    run = write_run(tmp_path / "one", peaked_tensors(), CONFIG | {"train": {"steps": 120}})
    (run / "summary.json").unlink()
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 41, "lo')  # being written
    page = page_of(run)
    [(status, _)] = page.row("status")
    assert texts(page.row("parameters")) == [f"{sum(map(np.size, peaked_tensors().values())):,}"]
    assert status.startswith("not finished (in progress, or stopped): step 40 of 120; last line written 2")
    (run / "config.toml").write_text(toml(CONFIG | {"train": {"tokens": 900, "batch": 2}}))
    assert "step 40 of 12;" in page_of(run).text  # of 2 sequences of 40 tokens


def test_warnings_count_skipped_updates_and_losses_that_are_not_finite(tmp_path, page_of):
    run = finished(tmp_path / "one", seconds_waiting_for_data=1000.0)
    lines = [{"step": s, "loss": 4.0} for s in range(1, 9)]
    lines[2] |= {"loss": None, "skipped": "not finite"}
    lines[4]["skipped"] = lines[5]["skipped"] = "spike"
    write_metrics(run, lines)
    [(warnings, _)] = page_of(run).row("warnings")
    assert "1 update skipped: not finite" in warnings and "2 updates skipped: spike" in warnings
    assert "1 step without a finite loss" in warnings and "waited 1,000 s of 4,000 s" in warnings


def test_what_is_missing_is_said_and_is_no_error(tmp_path, page_of, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.toml").write_text(toml(CONFIG))
    damaged = finished(tmp_path / "damaged", peaked_tensors())
    for step in ("05", "40"):
        (damaged / f"checkpoints/step_000000{step}/model.safetensors").write_bytes(b"")
    page = page_of(bare, damaged)
    [(of_bare, _), (of_damaged, _)] = page.row("not there")
    assert "no metrics.jsonl" in of_bare and "no finite loss" in of_bare and "train first" in of_bare
    assert "none of its 2 checkpoints can be used" in of_damaged
    assert texts(page.row("status"))[0] == "not finished (in progress, or stopped): no step yet"
    assert "step_00000040" in page.row("warnings")[1][0]
    assert "Without a finite loss: bare." in page.text
    assert "Not evaluated, there is no eval.json: bare, damaged" in page.text
    assert "No run has a learned prior that can be drawn." in page.text
    assert "damaged: no checkpoint" in capsys.readouterr().out


@pytest.mark.parametrize("waited, seconds", [(0.9, 1.0), (30.0, 4000.0)])
def test_a_short_wait_for_data_is_no_warning(tmp_path, page_of, waited, seconds):
    run = finished(tmp_path / "a", seconds_waiting_for_data=waited, seconds=seconds)
    assert texts(page_of(run).row("warnings")) == ["none"]


def of_vocabulary(size, **train):
    return CONFIG | {"model": CONFIG["model"] | {"vocab": size}, "train": train}


def test_a_run_that_ends_above_the_loss_of_guessing_has_a_warning(tmp_path, page_of):
    good, lost, overfitted = (
        finished(tmp_path / name, config=of_vocabulary(64)) for name in ("good", "lost", "overfitted")
    )
    write_metrics(lost, [{"step": s, "loss": 249.0, "val_loss": 5.0} for s in range(1, 9)])
    validated = {1: {"val_loss": 4.0}, 9: {"val_loss": 4.16}}
    write_metrics(overfitted, [{"step": s, "loss": 1.0} | validated.get(s, {}) for s in range(1, 10)])
    of_good, of_lost, of_overfitted = texts(page_of(good, lost, overfitted).row("warnings"))
    limit = "is above that of guessing, ln 64 = 4.1589"
    assert of_good == "none"
    assert "smoothed training loss, 249, is" in of_lost and of_lost.count(limit) == 2
    assert of_overfitted == f"the last validation loss, 4.16, {limit}"


def test_a_run_in_its_warm_up_is_not_compared_with_guessing(tmp_path, page_of):
    for steps, number in [(5, 0), (6, 1)]:
        run = write_run(tmp_path / str(steps), config=of_vocabulary(64, warmup=5))
        (run / "summary.json").unlink()
        write_metrics(run, [{"step": s, "loss": 4.2} for s in range(1, steps + 1)])
        assert page_of(run).text.count("above that of guessing") == number


def test_a_last_loss_that_is_not_finite_is_said_to_be(tmp_path, page_of):
    run = finished(tmp_path / "a", loss=None)
    summary = json.loads((run / "summary.json").read_text())
    del summary["val_loss"]  # the program leaves it out
    (run / "summary.json").write_text(json.dumps(summary))
    lines = [{"step": s, "loss": 2.0, "val_loss": 2.5} for s in (1, 2)]
    write_metrics(run, [*lines, {"step": 3, "loss": None, "val_loss": None}])
    page = page_of(run)
    assert texts(page.row("training, last step") + page.row("validation, last")) == ["not finite"] * 2
    [(warnings, _)] = page.row("warnings")
    assert "1 step without a finite loss, the last one too" in warnings
    assert "1 validation without a finite loss, the last one too" in warnings


# Configs


def test_only_keys_that_differ_are_shown_by_section(tmp_path, page_of):
    data = {"seq_len": 40, "copy_mixture.p_first": 0.25}
    first = CONFIG | {"data": data, "train": {"lr": 1e-3, "seed": 1, "batch": 4}}
    second = {
        "model": CONFIG["model"] | {"attention": "rope"},
        "prior": CONFIG["prior"] | {"learned_frequencies": True},
        "data": data | {"copy_mixture.p_first": 0.5},
        "train": {"lr": 2e-3, "batch": 4},
    }
    runs = [finished(tmp_path / name, config=each) for name, each in (("a", first), ("b", second))]
    assert page_of(*runs).table("key") == [
        ["key", "a", "b"],
        ["[model]"],
        ["model.attention", "goat", "rope"],
        ["[prior]"],
        ["prior.learned_frequencies", "false", "true"],
        ["[data]"],
        ["data.copy_mixture.p_first", "0.25", "0.5"],
        ["[train]"],
        ["train.lr", "0.001", "0.002"],
        ["train.seed", "1", "\N{EN DASH}"],
    ]


def test_runs_of_one_config_and_one_run_alone_have_no_differences(tmp_path, page_of):
    runs = [finished(tmp_path / name) for name in "ab"]
    assert "The configs of the runs are the same." in page_of(*runs).text
    assert "nothing to compare" in page_of(runs[0], runs[0]).text  # one run, given twice


# Evaluations


def test_perplexities_are_those_of_eval_json(tmp_path, page_of):
    first, second = finished(tmp_path / "a"), finished(tmp_path / "b")
    rows = [losses((128, 1.4697812), (40, 1.4765)), losses((40, 9.5), (256, 1.25))]
    write_evaluation(first, rows[0], protocol="recut", data="shards 'x/val_*.bin': 80 tokens to predict")
    write_evaluation(second, rows[1], protocol="recut")
    page = page_of(first, second)
    [table] = [table for table in page.tables if table[0][0][0] == "length (tokens)"]
    assert texts(table[0]) == ["length (tokens)", "40", "128", "256"]
    expected = [repr(rows[0][1]["perplexity"]), repr(rows[0][0]["perplexity"]), None]
    assert [value for _, value in page.row("a, step 40")] == expected
    assert texts(page.row("a, step 40")) == ["4.3776", "4.3483", "\N{EN DASH}"]
    assert texts(page.row("b, step 40")) == ["13,360", "\N{EN DASH}", "3.4903"]
    assert "trained at length 40; protocol recut; data shards 'x/val_*.bin'" in page.text
    assert any("Evaluation by length of a, b" in image["alt"] for image in page.images)


def test_accuracies_by_length_and_by_depth_are_those_of_eval_json(tmp_path, page_of):
    runs = [finished(tmp_path / name) for name in ("plain", "grid")]
    answers = {"nll": 1.0, "span_token_accuracy": 2 / 3, "strict_accuracy": 0.125, "samples": 8}
    write_evaluation(runs[0], [{"length": n} | answers for n in (64, 128)], task="passkey")
    cells = {(n, depth): n / 1024 + depth / 10 for n in (64, 128) for depth in (0.1, 0.5)}
    grid = [{"length": n, "depth": d} | answers | {"span_token_accuracy": v} for (n, d), v in cells.items()]
    write_evaluation(runs[1], grid, task="niah")
    page = page_of(*runs)
    tokens, answered = [t for t in page.tables if t[0][0][0] == "length (tokens)"]
    assert tokens[1][1:] == [("66.7%", repr(2 / 3))] * 2 and answered[1][1:] == [("12.5%", "0.125")] * 2
    table, whole = [table for table in page.tables if table[0][0][0] == "depth \\ length"]
    assert [texts(row) for row in whole[1:]] == [["0.1", "12.5%", "12.5%"], ["0.5", "12.5%", "12.5%"]]
    assert [texts(row) for row in table] == [
        ["depth \\ length", "64", "128"],
        ["0.1", "7.2%", "13.5%"],
        ["0.5", "11.2%", "17.5%"],
    ]
    assert table[2][2][1] == repr(cells[128, 0.5])
    assert "passkey: accuracy of whole answers" in page.text and "niah: accuracy" in page.text


def test_files_of_several_evaluations_join_those_of_the_runs(tmp_path, page_of):
    runs = [finished(tmp_path / name) for name in "abc"]
    write_evaluation(runs[0], losses((40, 1.5)))
    same = json.loads((runs[0] / "eval.json").read_text())
    others = [same, evaluation(runs[1], losses((40, 1.25))), evaluation(tmp_path / "gone", losses((40, 1.0)))]
    (tmp_path / "all.json").write_text(json.dumps({"evaluations": others}))
    (tmp_path / "one.json").write_text(json.dumps(evaluation(runs[1], losses((40, 2.0), (80, 2.5)))))
    page = page_of(*runs, "--eval", tmp_path / "all.json", "--eval", tmp_path / "one.json")
    [table] = [table for table in page.tables if table[0][0][0] == "length (tokens)"]
    assert {row[0][0]: row[1][0] for row in table[1:]} == {
        "a, step 40": "4.4817",
        f"b, step 40, {tmp_path / 'all.json'}, evaluation 2": "3.4903",
        "gone, step 40": "2.7183",
        f"b, step 40, {tmp_path / 'one.json'}": "7.3891",
    }
    assert "gone, trained at length 40; a run that is not among those of this page" in page.text
    assert "there is no eval.json: c;" in page.text


def test_a_file_of_several_runs_gives_each_its_own_evaluation(tmp_path, page_of):
    first, second = finished(tmp_path / "a"), finished(tmp_path / "b")
    several = [
        evaluation(run, losses((40, nll)), protocol=protocol)
        for run, nll, protocol in [(first, 1.0, "recut"), (second, 2.0, "recut"), (second, 3.0, "paper")]
    ]
    (first / "eval.json").write_text(json.dumps({"evaluations": several}))
    page = page_of(first, second)
    tables = [table for table in page.tables if table[0][0][0] == "length (tokens)"]
    assert [[(row[0][0], row[1][0]) for row in table[1:]] for table in tables] == [
        [("a, step 40", "2.7183"), ("b, step 40", "7.3891")],
        [("b, step 40", "20.086")],
    ]
    assert "Not evaluated" not in page.text


def test_a_renamed_run_keeps_the_evaluation_in_its_folder(tmp_path, page_of):
    runs = [finished(tmp_path / name) for name in ("a", "b")]
    rows = losses((40, 1.0))
    (runs[0] / "eval.json").write_text(json.dumps(evaluation(tmp_path / "its old name", rows)))
    assert texts(page_of(*runs).row("a, step 40")) == ["2.7183"]


def test_tables_and_figures_call_a_run_the_same(tmp_path, page_of, monkeypatch):
    runs = [finished(tmp_path / name) for name in ("1/a", "2/a", "b")]
    for run in runs[1:]:
        write_evaluation(run, losses((40, 1.0)))
    names = []

    def draw(evaluations, labels):
        names.append(labels)
        return draw_eval(evaluations, labels)

    monkeypatch.setattr(report_figures, "draw_eval", draw)
    page = page_of(*runs)
    [table] = [table for table in page.tables if table[0][0][0] == "length (tokens)"]
    assert names == [[row[0][0] for row in table[1:]]] == [["2/a, step 40", "b, step 40"]]
    assert texts(page.tables[0][0]) == ["", "1/a", "2/a", "b"]


def test_evaluations_of_different_data_are_said_to_be(tmp_path, page_of):
    runs = [finished(tmp_path / name) for name in ("a", "b")]
    heading = "Perplexity by length, protocol recut"
    for data, note in [("shards 'x'", ""), ("shards 'y'", " (of different data)")]:
        write_evaluation(runs[0], losses((40, 1.0)), protocol="recut", data="shards 'x'")
        write_evaluation(runs[1], losses((40, 2.0)), protocol="recut", data=data)
        text = page_of(*runs).text
        assert heading + note in text and ("of different data" in text) == bool(note)


def test_protocols_and_tasks_have_tables_of_their_own(tmp_path, page_of):
    run = finished(tmp_path / "a")
    kinds = [{"protocol": "recut"}, {"protocol": "paper"}, {"task": "passkey"}, {"task": "niah"}]
    answers = {"nll": 1.0, "span_token_accuracy": 0.5, "strict_accuracy": 0.25}
    each = [
        evaluation(run, losses((40, n)) if "protocol" in kind else [{"length": 40} | answers], **kind)
        for n, kind in enumerate(kinds, 1)
    ]
    (run / "eval.json").write_text(json.dumps({"evaluations": each}))
    page = page_of(run)
    tables = [table for table in page.tables if table[0][0][0] == "length (tokens)"]
    assert [table[1][1][0] for table in tables] == ["2.7183", "7.3891", "50.0%", "25.0%", "50.0%", "25.0%"]
    assert "Perplexity by length, protocol paper" in page.text


def test_a_grid_with_holes_is_a_table_without_a_figure(tmp_path, page_of):
    run = finished(tmp_path / "a")
    cells = [(64, 0.1), (64, 0.5), (128, 0.1)]
    answers = {"nll": 1.0, "span_token_accuracy": 0.5, "strict_accuracy": 0}
    write_evaluation(run, [{"length": n, "depth": depth} | answers for n, depth in cells])
    page = page_of(run)
    table, _ = [table for table in page.tables if table[0][0][0] == "depth \\ length"]
    assert table[2][1:] == [("50.0%", "0.5"), ("\N{EN DASH}", None)]
    assert "No figure:" in page.text


# The page itself


EVIL = '<b>&"'


def test_whatever_files_hold_is_only_text(tmp_path, page_of):
    config = CONFIG | {"log": {"name": "</td></table><script>alert(1)</script>"}}
    run = finished(tmp_path / EVIL, peaked_tensors(), config, device="<i>&amp;</i>", program="<!--")
    write_evaluation(run, losses((40, 1.5)), data="<script src='http://x/'></script>\x00\ud800")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 41, "skipped": "<em>"}\n')
    page = page_of(run, finished(tmp_path / "plain"))
    assert not page.tags & {"script", "b", "i", "em"}
    assert page.table("key")[0] == ["key", EVIL, "plain"]
    assert page.row("log.name")[0][0] == config["log"]["name"]
    assert page.row("device")[0][0] == "<i>&amp;</i>: a processor" and page.row("program")[0][0] == "<!--"
    assert "1 update skipped: <em>" in page.row("warnings")[0][0]
    assert "<script src='http://x/'></script>\\x00\\ud800" in page.text
    assert any(EVIL in image["alt"] for image in page.images)


def test_odd_names_of_folders_do_no_harm(tmp_path, page_of):
    names = ["$x_$", "a\nb", "caf\u00e9 \u6587", b"\xff".decode(errors="surrogateescape"), "_x", "-x"]
    runs = [finished(tmp_path / name) for name in names]
    shown = page_of(*runs).tables[0][0]
    assert texts(shown) == ["", "$x_$", "a\\nb", "caf\u00e9 \u6587", "\\udcff", "./_x", "-x"]


def test_the_page_needs_no_other_file_and_its_links_lead_somewhere(tmp_path, page_of):
    run = finished(tmp_path / "a", peaked_tensors())
    write_evaluation(run, losses((40, 1.5)))
    page = page_of(run)
    for link in page.links:
        assert link.startswith("data:image/") or link.removeprefix("#") in page.ids, link[:80]
    text = (tmp_path / "page.html").read_text()
    assert "url(" not in text and "@import" not in text and not page.tags & {"script", "link", "iframe"}
    assert text.startswith("<!DOCTYPE html>") and 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text and len(page.images) == 3


def test_the_prior_of_each_goat_run_is_drawn_at_the_layers_asked_for(tmp_path, page_of):
    goat = finished(tmp_path / "goat", peaked_tensors())
    rope = finished(tmp_path / "rope", peaked_tensors(), CONFIG | {"model": {"attention": "rope"}})
    page = page_of(goat, rope, "--layers", "1,0")
    priors = [image["alt"] for image in page.images if "image/webp" in image["src"]]
    assert priors == [f"Learned attention prior: goat, layer {n}, step 40" for n in (0, 1)]
    assert "Head 0 puts 99" in page.text
    too_many = page_of(goat, "--layers", "2")
    assert "no figure of the prior: --layer 2" in too_many.row("not there")[0][0]


# A real run


def test_a_real_run(tmp_path, page_of, run_binary):
    run = tmp_path / "real"
    settings = ["steps=4", "batch=4", "micro_batch=4", "warmup=1"]
    words = [word for each in settings for word in ("--set", f"train.{each}")]
    run_binary(
        "--config", "copy_mixture", "--device", "cpu", "--out", run, *words, "--set", "eval.tokens=256"
    )
    run_binary(
        "eval",
        "--checkpoint",
        run,
        "--device",
        "cpu",
        "--lengths",
        "64,128",
        "--tokens",
        "512",
        "--json",
        run / "eval.json",
    )
    page = page_of(run)
    summary, measured = (json.loads((run / name).read_text()) for name in ("summary.json", "eval.json"))
    assert [value for _, value in page.row("real, step 4")] == [
        repr(row["perplexity"]) for row in measured["results"]
    ]
    assert page.row("parameters")[0][1] == repr(summary["parameters"])
    assert page.row("training, last step") == [(f"{summary['loss']:.4f}", repr(summary["loss"]))]
    assert page.row("best possible (Bayes-optimal)")[0][1] == repr(summary["bayes_optimal_loss"])
    [command] = [shlex.split(each) for each in page.commands if " eval --checkpoint" in each]
    (run / "eval.json").rename(tmp_path / "before.json")
    run_binary(*command[1:])
    again = json.loads((run / "eval.json").read_text())
    assert again["results"] == measured["results"]


# Errors


def test_wrong_use_is_one_line_and_exits_with_2(tmp_path, fails):
    run = finished(tmp_path / "a")
    passed_on = tmp_path / "passed on"
    passed_on.mkdir()
    (passed_on / "state.json").write_text("{}")
    for words, part in [
        ([], "RUN"),
        ([tmp_path / "nowhere"], "no such folder"),
        ([run, run / "config.toml"], "is not a folder"),
        ([run, passed_on], "passed on: holds no run"),
        ([run, "--layers", "one"], "expected numbers of layers"),
    ]:
        assert part in fails(2, *words), words
    assert report.main([str(run), "--out", str(tmp_path)]) == 2


def test_damaged_files_exit_with_3_and_are_named(tmp_path, fails):
    for n, (name, contents) in enumerate([
        ("config.toml", b"model = [1,\n"), ("config.toml", b"\xff"), ("summary.json", b"{"),
        ("metrics.jsonl", b"nonsense\n"), ("init_from.json", b"[]"), ("eval.json", b""), ("eval.json", b"[]"),
        ("eval.json", b"{}"), ("eval.json", b'{"evaluations": 1}'), ("eval.json", b'{"evaluations": [1]}'),
        ("eval.json", b'{"evaluations": [{"checkpoint": 3, "train_length": 1, "results": []}]}'),
    ]):  # fmt: skip
        run = finished(tmp_path / str(n))
        (run / name).write_bytes(contents)
        assert str(run / name) in fails(3, run), (name, contents)
    run = finished(tmp_path / "whole")
    assert "gone.json: No such file" in fails(3, run, "--eval", tmp_path / "gone.json")


def test_values_of_another_type_are_shown_as_they_are(tmp_path, page_of):
    run = finished(
        tmp_path / "a", tokens="many", parameters=[1], seconds=None, mfu=True, steps="x", loss="low"
    )
    page = page_of(run)
    assert texts(page.row("tokens")) == ["many"] and texts(page.row("parameters")) == ["[1]"]


def test_the_script_says_where_the_page_is(tmp_path, run_command):
    run = finished(tmp_path / "a")
    done = run_command([sys.executable, SCRIPT, run, "--out", tmp_path / "new" / "page.html"])
    assert done.stdout.splitlines()[0] == str(tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").stat().st_size > 20_000
