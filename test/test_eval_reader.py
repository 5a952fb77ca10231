"""Evaluations in files: whose they are, what they are called, and whether their data are the same."""

import json
from pathlib import Path

import pytest

import eval_reader
from console import DataError
from run_names import names_of
from test_plot_eval import losses, together


@pytest.mark.parametrize(
    ("runs", "folders", "home", "found"),
    [
        (["/r/a", "/r/b", "/r/b"], ["/r/a", "/r/b"], "/r/a", ["/r/a", "/r/b", "/r/b"]),
        (["/r/a", "/r/b"], ["/r/a"], "/r/a", ["/r/a", None]),
        (["/r/b", "/r/a"], ["/r/a"], "/r/a", [None, "/r/a"]),
        (["/old/c", "/old/c"], ["/r/a", "/r/b"], "/r/a", ["/r/a", "/r/a"]),  # renamed
        (["/old/a", "/old/b"], ["/r/a", "/r/b"], "/r/a", ["/r/a", "/r/b"]),  # moved, all of them
        (["/old/a"], ["/r/a", "/r/b"], None, ["/r/a"]),
        (["/old/a"], ["/r/1/a", "/r/2/a"], None, [None]),
        (["/x/m", "/y/m"], ["/x/m"], "/x/m", ["/x/m", None]),  # not also the run of the same name
        (["/x/m", "/y/m"], ["/r/m"], None, [None, None]),
    ],
)
def test_an_evaluation_is_of_the_run_that_its_checkpoint_names(tmp_path, runs, folders, home, found):
    parts = [losses(tmp_path / f"{n}.json", run=run) for n, run in enumerate(runs)]
    path = tmp_path / "all.json"
    contents = [json.loads(part.read_text()) for part in parts]
    for each, run in zip(contents, runs, strict=True):
        each["checkpoint"] = f"{run}/checkpoints/step_00000010"
    path.write_text(json.dumps({"evaluations": contents}))
    evaluations = eval_reader.read_evaluations(path)
    folders, home = [Path(folder) for folder in folders], home and Path(home)
    expected = [folder and Path(folder) for folder in found]
    assert eval_reader.find_runs(evaluations, folders, home) == expected


def test_runs_and_their_evaluations_have_the_same_names(tmp_path):
    names = ["1/a", "2/a", "_x", "c\nd", "2/_y", "1/_y"]
    files = [losses(tmp_path / f"{n}.json", run=name) for n, name in enumerate(names)]
    expected = ["1/a", "2/a", "./_x", "c\\nd", "2/_y", "1/_y"]
    assert names_of([f"/runs/{name}" for name in names]) == expected
    evaluations = eval_reader.read_evaluations(together(tmp_path / "all.json", *files))
    assert eval_reader.names_of_evaluations(evaluations) == expected
    assert names_of(["/a", "/b/a", "/a/../a"]) == ["/a", "b/a", "/a"]


def test_the_file_of_a_model_of_reproduce_is_read_too(tmp_path):
    alone = losses(tmp_path / "a.json", run="goat-seed1")
    path = tmp_path / "goat-seed1.json"
    path.write_text(json.dumps({"variant": "goat", "evaluations": {"eval": json.loads(alone.read_text())}}))
    (evaluation,) = eval_reader.read_evaluations(path)
    assert evaluation.rows == eval_reader.read_evaluations(alone)[0].rows
    assert (evaluation.where, evaluation.run.name) == (str(path), "goat-seed1")


def test_a_member_that_is_no_evaluation_is_named_by_its_place(tmp_path):
    path = together(tmp_path / "all.json", losses(tmp_path / "a.json"), losses(tmp_path / "b.json", []))
    with pytest.raises(DataError, match=r"all\.json, evaluation 2: not what train_gpt_goat eval"):
        eval_reader.read_evaluations(path)


@pytest.mark.parametrize("checkpoint", ["\x00", "\ud800", 3, None])
def test_a_checkpoint_that_no_path_can_be_is_refused(tmp_path, checkpoint):
    path = losses(tmp_path / "a.json", checkpoint=checkpoint)
    with pytest.raises(DataError, match="not what train_gpt_goat eval"):
        eval_reader.read_evaluations(path)
