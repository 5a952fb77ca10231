"""scripts/reproduce.py: what a finished model leaves, that an interrupted study goes on, and its tables."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import reproduce
import studies
import study_tables
from conftest import REPOSITORY
from prepared import write_shard
from program import as_settings
from run_reader import read_config

TINY = {
    "model.layers": 1,
    "model.width": 32,
    "prior.pos_rank": 2,
    "data.seq_len": 16,
    "train.batch": 4,
    "train.steps": 4,
    "train.warmup": 1,
    "eval.tokens": 64,
}
LENGTHS = ["--lengths", "16,32", "--tokens", "64"]


def tiny(variant, seed=1, **changes):
    settings = TINY | studies.VARIANTS[variant] | {"train.seed": seed} | changes
    analysis = ["--length", "32"] if variant == "goat" else None
    return studies.Experiment(
        "extrapolation", variant, seed, "copy_mixture", settings, {"eval": LENGTHS}, analysis
    )


@pytest.fixture
def start(binary, tmp_path, monkeypatch, capsys):
    """start(experiments, words...): reproduce.py with a study of these; its exit code, stdout and stderr."""
    monkeypatch.setenv("TRAIN_GPT_GOAT", str(binary))

    def run(experiments, *words, study="extrapolation"):
        monkeypatch.setitem(reproduce.STUDIES, study, experiments)
        folders = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
        monkeypatch.setattr(sys, "argv", ["reproduce.py", study, *folders, *words])
        code = reproduce.main()
        return code, *capsys.readouterr()

    return run


def result_of(tmp_path, name):
    return json.loads((tmp_path / "results" / "extrapolation" / f"{name}.json").read_text())


def test_a_finished_model_is_one_file_with_what_the_program_wrote(start, tmp_path):
    code, _, errors = start([tiny("goat"), tiny("rope", seed=2)])
    assert (code, errors) == (0, "")
    for name, seed in (("goat-seed1", 1), ("rope-seed2", 2)):
        result, run = result_of(tmp_path, name), tmp_path / "runs" / "extrapolation" / name
        assert result["evaluations"]["eval"] == json.loads((run / "eval.json").read_text())
        assert result["summary"] == json.loads((run / "summary.json").read_text())
        assert [row["length"] for row in result["evaluations"]["eval"]["results"]] == [16, 32]
        assert result["seed"] == seed and result["settings"]["train.seed"] == seed
        assert result["validation"][-1] == [4, result["summary"]["val_loss"]]
    analysis = json.loads((tmp_path / "runs/extrapolation/goat-seed1/analysis/analysis.json").read_text())
    assert analysis["length"] == 32
    assert [result_of(tmp_path, name)["analysis"] for name in ("goat-seed1", "rope-seed2")] == [analysis, {}]


def test_a_model_of_a_genome_leaves_its_completions(start, tmp_path, rng):
    for part in ("train", "val"):
        write_shard(tmp_path / f"{part}_000000.bin", rng.choice([0, 1, 2, 4], size=2000))
    data = {f"data.{part}": str(tmp_path / f"{part}_*.bin") for part in ("train", "val")}
    experiment = dataclasses.replace(
        tiny("rope", **data, **{"data.record_tokens": 500}), preset="genome_25m", is_completed=True
    )
    code, _, errors = start([experiment])
    assert (code, errors) == (0, "")
    result = result_of(tmp_path, "rope-seed1")
    written = tmp_path / "runs/extrapolation/rope-seed1/completions.json"
    assert result["completions"] == json.loads(written.read_text())
    assert [len(each["completions"]) for each in result["completions"]["prompts"]] == [3, 3, 3]
    command = ".venv/bin/python scripts/genome_completions.py runs/extrapolation/rope-seed1"
    assert result["commands"][-1] == command


@pytest.mark.parametrize("first", [{}, {"data.seq_len": 8}], ids=["alone", "after another run"])
def test_its_commands_repeat_it(start, tmp_path, binary, run_command, first):
    start([dataclasses.replace(tiny("goat"), first=first)])
    result = result_of(tmp_path, "goat-seed1")
    for command in result["commands"]:
        words = command.replace("runs/extrapolation/goat-seed1", str(tmp_path / "again")).split()
        run_command([binary, *words[1:]])
    again = json.loads((tmp_path / "again" / "eval.json").read_text())
    assert again["results"] == result["evaluations"]["eval"]["results"]


def test_a_model_starts_with_the_weights_of_the_run_before_it(start, tmp_path):
    experiment = dataclasses.replace(tiny("rope"), first={"data.seq_len": 8, "train.steps": 3})
    assert start([experiment])[0] == 0
    runs = tmp_path / "runs/extrapolation"
    first, second = runs / "rope-seed1-first", runs / "rope-seed1"
    assert json.loads((first / "summary.json").read_text())["steps"] == 3
    assert read_config(first)["data.seq_len"] == 8 and read_config(second)["data.seq_len"] == 16
    begun = json.loads((second / "init_from.json").read_text())
    assert begun["checkpoint"] == str(first / "checkpoints/step_00000003")
    # interrupted before its first checkpoint: it starts with them again
    expected = (second / "eval.json").read_bytes()
    (tmp_path / "results/extrapolation/rope-seed1.json").unlink()
    for path in (second / "summary.json", second / "eval.json"):
        path.unlink()
    shutil.rmtree(second / "checkpoints")
    assert start([experiment])[0] == 0
    assert (second / "eval.json").read_bytes() == expected


def test_what_is_finished_is_not_done_again(start, tmp_path):
    start([tiny("none")])
    (tmp_path / "results/extrapolation/none-seed1.json").touch()
    log = tmp_path / "runs/extrapolation/none-seed1.log"
    before = log.read_bytes()
    code, out, _ = start([tiny("none"), tiny("rope")], "--only", "none*")
    assert code == 0 and "1 of 1 models are finished\nnothing to train: " in out
    assert log.read_bytes() == before
    assert not (tmp_path / "runs/extrapolation/rope-seed1").exists()


def test_a_model_of_two_studies_is_trained_once(start, tmp_path):
    start([tiny("goat")])
    begun = (tmp_path / "runs/extrapolation/goat-seed1.log").read_bytes()
    experiment = dataclasses.replace(tiny("goat"), row="R=2")
    code, out, _ = start([experiment], study="ablations")
    assert code == 0 and "ablations: 1 of 1 models are finished" in out
    assert (tmp_path / "runs/extrapolation/goat-seed1.log").read_bytes() == begun
    assert os.listdir(tmp_path / "results") == ["extrapolation"]
    assert "\n| R=2 | 1 | " in start([experiment], "--table", study="ablations")[1]


def test_the_ablations_take_what_the_study_of_extrapolation_has():
    files = {}
    for each in studies.STUDIES["extrapolation"] + studies.STUDIES["ablations"]:
        files.setdefault(json.dumps(each.settings, sort_keys=True), set()).add((each.study, each.name))
    assert all(len(each) == 1 for each in files.values())
    shared = [each for each in studies.STUDIES["ablations"] if each.study == "extrapolation"]
    assert {(each.row, each.variant) for each in shared} == {
        ("R=4", "goat"),
        ("alibi start", "goat, alibi start"),
        ("alibi start, lr x5", "goat, alibi start, lr x5"),
        ("lr x20", "goat, lr x20"),
    }


def test_without_time_nothing_is_started(start, tmp_path):
    code, out, _ = start([tiny("none")], "--minutes", "0")
    assert code == 0 and "the same command goes on" in out
    assert not (tmp_path / "runs").exists()


def test_an_interrupted_model_goes_on_and_becomes_the_same(start, tmp_path, binary):
    # Long enough to be interrupted; the interruption comes once the run has its folder.
    experiment = tiny("goat", **{"train.steps": 400, "checkpoint.interval": 50})
    study = f"""
import sys
sys.path[:0] = [{str(REPOSITORY / "scripts")!r}, {str(REPOSITORY / "test")!r}]
import reproduce, test_reproduce
changes = {{"train.steps": 400, "checkpoint.interval": 50}}
reproduce.STUDIES["extrapolation"] = [test_reproduce.tiny("goat", **changes)]
sys.exit(reproduce.main())
"""
    words = ["extrapolation", "--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    process = subprocess.Popen(
        [sys.executable, "-c", study, *words],
        env=os.environ | {"TRAIN_GPT_GOAT": str(binary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "runs/extrapolation/goat-seed1/metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "the same command goes on" in errors
    assert not (tmp_path / "results").exists()
    assert start([experiment])[0] == 0
    log = (tmp_path / "runs/extrapolation/goat-seed1.log").read_text()
    assert log.count("step   1/400") == 1 and log.count("step 400/400") == 1  # none was trained again
    interrupted = result_of(tmp_path, "goat-seed1")
    (tmp_path / "results/extrapolation/goat-seed1.json").unlink()
    (tmp_path / "runs").rename(tmp_path / "first")
    start([experiment])
    assert result_of(tmp_path, "goat-seed1")["evaluations"]["eval"]["results"] == (
        interrupted["evaluations"]["eval"]["results"]
    )


def test_a_model_that_fails_does_not_stop_the_others(start, tmp_path):
    code, out, errors = start([tiny("none", **{"train.steps": -3}), tiny("rope")])
    assert code == 1 and "1 model failed: none-seed1" in errors and "none-seed1.log" in errors
    assert "rope-seed1: finished" in out
    assert "train.steps" in (tmp_path / "runs/extrapolation/none-seed1.log").read_text()


def test_a_model_whose_settings_have_changed_is_refused(start, tmp_path):
    start([tiny("none")])
    code, _, errors = start([tiny("none", **{"model.width": 64})])
    assert code == 3 and "remove it to make it anew" in errors
    (tmp_path / "results/extrapolation/none-seed1.json").unlink()
    code, _, errors = start([tiny("none", **{"model.width": 64})])
    assert code == 1 and "model.width is 32, in the study 64" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "xpos*"], "no such model; there are: none-seed1"),
        (["--jobs", "0"], "--jobs must be 1"),
        (["--against", "goat"], "--against is for --table"),
    ],
)
def test_wrong_use(start, words, message):
    code, _, errors = start([tiny("none")], *words)
    assert code == 2 and message in errors


def test_a_model_that_was_evaluated_otherwise_is_refused(start, tmp_path):
    start([tiny("none")])
    other = dataclasses.replace(tiny("none"), evaluations={"eval": ["--lengths", "16", "--tokens", "64"]})
    code, _, errors = start([other])
    assert code == 3 and "none-seed1.json: its commands are not those of the study" in errors
    (tmp_path / "results/extrapolation/none-seed1.json").unlink()
    assert start([other])[0] == 0  # trained already, and evaluated as the study now says
    lengths = [row["length"] for row in result_of(tmp_path, "none-seed1")["evaluations"]["eval"]["results"]]
    assert lengths == [16]


def test_all_studies_have_models_that_differ_and_that_the_program_accepts(run_binary):
    for experiments in studies.STUDIES.values():
        assert len({each.name for each in experiments}) == len(experiments)
        different = {json.dumps([each.preset, each.settings], sort_keys=True) for each in experiments}
        assert len(different) == len(experiments)
        for each in experiments:
            if each.seed == 1:
                run_binary("--config", each.preset, *as_settings(each.settings), "--print-config")


# Tables


def invented(variant, seed, rows, preset="shakespeare"):
    results = [{"length": length, "nll": nll, **more} for length, nll, more in rows]
    return {
        "variant": variant,
        "seed": seed,
        "preset": preset,
        "evaluations": {"eval": {"results": results}},
        "summary": {"memory_bytes": 2_000_000, "parameters": 1000},
    }


def test_perplexities_are_means_and_deviations_over_seeds():
    # exp(ln 4) = 4 and exp(ln 5) = 5: mean 4.5, standard deviation sqrt(0.5) = 0.707
    ln4, ln5 = 1.3862943611198906, 1.6094379124341003
    results = [
        invented("goat", 1, [(128, ln4, {}), (2048, ln5, {})]),
        invented("goat", 2, [(128, ln5, {}), (2048, ln5, {})]),
        invented("none", 1, [(128, ln4, {}), (2048, ln4, {})]),
    ]
    assert study_tables.tables_of("extrapolation", results).split("\n\n")[1] == (
        "| positions | seeds | 128 | 2,048 |\n"
        "| --- | --- | --- | --- |\n"
        "| goat | 2 | 4.500 ± 0.707 | 5.000 ± 0.000 |\n"
        "| none | 1 | 4.000 | 4.000 |"
    )


def test_memory_stands_below_the_perplexities():
    results = [invented(name, seed, [(128, 1.0, {})]) for name in ("goat", "none") for seed in (1, 2)]
    for result in results[:2]:
        result["summary"] = {"memory_bytes": 2_346_000, "parameters": 1001}
    text = study_tables.tables_of("extrapolation", results)
    assert "| positions | memory (MB) | parameters |\n" in text
    assert "\n| goat | 2.35 | 1,001 |\n| none | 2.00 | 1,000 |\n" in text
    for other in (
        study_tables.tables_of("ablations", results),
        study_tables.tables_of("extrapolation", results, "none"),
    ):
        assert "memory" not in other


def test_completions_stand_below_the_bits():
    rows = [(256, 2 * math.log(2), {"tokens": 1000})]
    results = [invented(name, seed, rows) for name in ("goat", "none") for seed in (1, 2)]
    results[0]["completions"] = {"mean_pearson_r": -0.1234, "mean_matches": 0.2567}
    results[1]["completions"] = {}
    text = study_tables.tables_of("genome", results)
    assert "Bits a base by length, of the first bases of each record (1,000 at 256)" in text
    assert "| goat | 2 | 2.000 ± 0.000 |" in text
    assert "\n\nCompletions, seed 1:\n\n" in text
    assert text.count("| goat |") == 2 and "\n| goat | -0.123 | 0.257 |\n" in text
    assert "Completions" not in study_tables.tables_of("genome", results, "none")


def test_attention_is_the_mean_over_heads_and_seeds():
    keys = ("omega", "p_first", "p_max", "mass_last_128")

    def model(seed, *heads):
        by_head = [{"signal_vs_sink": dict(zip(keys, head, strict=True))} for head in heads]
        analysis = {"first_row": 32, "length": 1024, "by_head": by_head}
        return {"variant": "rope", "seed": seed, "analysis": analysis}

    results = [
        model(1, (1.0, 0.1, 0.2, 0.5), (2.0, 0.3, 0.4, 1.0)),  # means 1.5, 0.2, 0.3, 0.75
        model(2, (3.5, 0.2, 0.5, 0.25), (3.5, 0.2, 0.3, 0.25)),  # 3.5, 0.2, 0.4, 0.25
    ]
    text = study_tables.tables_of("signal", results)
    assert text.startswith("Attention of queries 32 to 1,023, mean over heads:\n\n| positions | content")
    assert "| rope | 2.50 ± 1.41 | 0.2000 ± 0.0000 | 0.350 ± 0.071 | 0.500 ± 0.354 |" in text
    with pytest.raises(study_tables.UsageError, match="this study has no table by length"):
        study_tables.tables_of("signal", results, "rope")


def test_differences_are_those_of_the_same_seed():
    def model(variant, seed, perplexity):
        return invented(variant, seed, [(128, math.log(perplexity), {})])

    results = [
        *(model("goat", *each) for each in [(1, 4.0), (2, 5.0), (3, 9.0)]),
        *(model("rope", *each) for each in [(2, 5.5), (1, 4.25), (4, 1.0)]),
        model("none", 3, 8.0),
    ]
    # rope is 0.25 and 0.5 above goat: mean 0.375, standard deviation sqrt(2) / 8; its seed 4 has no partner
    text = study_tables.tables_of("extrapolation", results, "goat")
    assert text.splitlines()[0] == "Perplexity by length, less that of goat with the same seed:"
    assert text.split("\n\n")[1].splitlines()[2:] == ["| rope | 2 | 0.375 ± 0.177 |", "| none | 1 | -1.000 |"]
    with pytest.raises(study_tables.DataError, match="no such row; there are: goat; rope; none"):
        study_tables.tables_of("extrapolation", results, "xpos")
    with pytest.raises(study_tables.DataError, match="no other row has a seed in common with it"):
        study_tables.tables_of("extrapolation", results[3:], "none")


def test_accuracies_are_means_over_depths():
    rows = [
        (256, 2.0, {"depth": depth, "span_token_accuracy": right, "strict_accuracy": whole})
        for depth, right, whole in ((0.1, 1.0, 1.0), (0.9, 0.5, 0.0))
    ]
    tables = study_tables.tables_of("retrieval", [invented("goat", 1, rows, "niah")])
    assert "niah, share of characters that are right, by length:" in tables
    assert "| goat | 1 | 0.75 |" in tables and "| goat | 1 | 0.50 |" in tables


def test_the_spread_says_what_it_is_of_and_stands_where_there_is_one():
    cell = {"depth": 0.1, "span_token_accuracy": 1.0, "strict_accuracy": 1.0}
    tasks = [invented("goat", seed, [(256, 2.0, cell)], "niah") for seed in (1, 2)]
    assert "each seed has its own" in study_tables.tables_of("retrieval", tasks)
    assert "±" not in study_tables.tables_of("retrieval", tasks[:1])
    texts = [invented("goat", seed, [(128, 1.0, {})]) for seed in (1, 2)]
    assert "it says nothing of the tokens" in study_tables.tables_of("extrapolation", texts)


def test_a_model_that_has_diverged_is_in_the_table():
    losses = {"a": 1.0, "b": None, "c": 800.0}
    results = [invented(name, 1, [(128, loss, {})]) for name, loss in losses.items()]
    table = study_tables.tables_of("extrapolation", results)
    assert "| a | 1 | 2.718 |\n| b | 1 | – |\n| c | 1 | inf |" in table


def test_files_with_other_lengths_do_not_share_a_table():
    results = [invented("goat", 1, [(128, 1.0, {})]), invented("none", 1, [(256, 1.0, {})])]
    with pytest.raises(study_tables.DataError, match="none: its files have other lengths than goat"):
        study_tables.tables_of("extrapolation", results)
