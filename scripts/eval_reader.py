"""Reads what `train_gpt_goat eval --json` wrote: evaluations, the runs they are of, and what to call them."""

import json
import re
import shlex
from collections import defaultdict
from pathlib import Path

import numpy as np
from console import DataError, UsageError
from run_names import names_of, real, shown
from run_reader import MANIFEST, check_run_folder, finite, is_count, parse_json, read_bytes

EVALUATION = "eval.json"  # in a run's folder
LARGEST_FILE = 256 << 20  # bytes
NO_EVALUATION = "not what train_gpt_goat eval --json writes"
OF_DIFFERENT_DATA = "of different data"
IN_FOLDERS = re.compile(r"'[^']*/(?=[^'/]*')")  # of a quoted path: what stands before the last name


class Evaluation:
    """An evaluation in a JSON file. rows: the results by ascending length; is_task: whether answers were
    looked for; has_depths: whether each length was measured with the needle at several depths; protocol: ""
    for a task; task: its name, "" for none; data: what was evaluated, "" where the file does not say; where:
    the file, and which it is of several there; label: the file, and its name among them; settings: what
    the file of a model of reproduce.py says of its run, {} in others; contents: all that is said of it."""

    def __init__(self, path, contents, where=None, settings=None):
        self.path, self.where, self.label, self.contents = path, where or str(path), str(path), contents
        self.settings = settings or {}
        try:
            self.train_length = contents["train_length"]
            self.run, self.step = run_of(contents["checkpoint"]), str(contents.get("step"))
            self.protocol, self.task, self.data = (
                str(contents.get(key) or "") for key in ("protocol", "task", "data")
            )
            self.rows = sorted(contents["results"], key=lambda row: row["length"])
            is_good = is_count(self.train_length) and self.train_length > 0 and all(
                row["length"] > 0 and "nll" in row and (row.get("depth") is None or row["depth"] >= 0)
                for row in self.rows
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            is_good = False
        if not is_good or not self.rows:
            raise DataError(f"{self.where}: {NO_EVALUATION}")
        self.is_task = all("span_token_accuracy" in row for row in self.rows)
        self.has_depths = self.is_task and len({row.get("depth") for row in self.rows}) > 1

    @property
    def lengths(self):
        return np.array([row["length"] for row in self.rows])

    @property
    def kind(self):
        if not self.is_task:
            return "perplexity"
        return "depths" if self.has_depths else "accuracy"

    def cells(self):
        """{length: {(depth, number of tokens or samples, characters of an answer)}}, None for what is not
        said."""
        cells = defaultdict(set)
        answer = self.contents.get("answer_length")
        for row in self.rows:
            cells[row["length"]].add((row.get("depth"), row.get("tokens", row.get("samples")), answer))
        return cells

    def column(self, key):
        """[rows], NaN where a value is missing or not finite."""
        return np.array([finite(row.get(key)) for row in self.rows])


def read_evaluations(path):
    """The evaluations in a file: one, or those of several runs or protocols, or those of a model of
    reproduce.py, which have names. Of a folder: of its eval.json."""
    path = Path(path)
    if path.is_dir():
        path = path / EVALUATION
    if path.name == EVALUATION and not path.exists():
        if not (path.parent / MANIFEST).exists():  # no checkpoint on its own
            check_run_folder(path.parent)
        run, file = (shlex.quote(str(each)) for each in (path.parent, path))
        command = f"./train_gpt_goat eval --checkpoint {run} --json {file}"
        raise UsageError(f"{path}: is not there yet; this makes it: {command}")
    try:
        contents = parse_json(read_bytes(path, LARGEST_FILE))
    except ValueError:
        raise DataError(f"{path}: {NO_EVALUATION}") from None
    if not isinstance(contents, dict) or "evaluations" not in contents:
        return [Evaluation(path, contents)]
    members = contents["evaluations"]
    if isinstance(members, dict):
        members = list(members.values())
    if not isinstance(members, list) or not members:
        raise DataError(f"{path}: {NO_EVALUATION}")
    settings = contents.get("settings")
    if settings is not None and not isinstance(settings, dict):
        raise DataError(f"{path}: {NO_EVALUATION}")
    evaluations = [
        Evaluation(path, each, f"{path}, evaluation {number}" if len(members) > 1 else None, settings)
        for number, each in enumerate(members, 1)
    ]
    for name, evaluation in zip(names_of_evaluations(evaluations), evaluations, strict=True):
        evaluation.label = f"{path}: {name}"
    return evaluations


def contents_text(evaluation):
    """The same for the same evaluation, in whatever file."""
    return json.dumps(evaluation.contents, sort_keys=True)


def each_once(evaluations):
    """What is there twice counts once: the same file, or files with the same evaluation."""
    return list({contents_text(each): each for each in evaluations}.values())


# Runs


def run_of(checkpoint):
    """The folder of the run, from the path of a checkpoint: RUN/checkpoints/step_N, or one of its own.
    Raises TypeError, ValueError for what no path can be."""
    path = Path(checkpoint)
    return real(path.parent.parent if path.parent.name == "checkpoints" else path)


def find_runs(evaluations, folders, home=None):
    """Whose each evaluation of one file is: one of the folders, or None.

    A folder is known by its path. A run may have moved since: then a file in the folder `home` is that
    folder's if it speaks of one run alone, and else a run is known by its name, where it is the only one of
    that name.
    """
    runs = list(dict.fromkeys(each.run for each in evaluations))
    there = {real(folder): folder for folder in folders}
    found = {run: there[run] for run in runs if run in there}
    if home is not None and len(runs) == 1:
        found.setdefault(runs[0], home)
    moved = [run for run in runs if run not in found]
    for run in moved:
        same = [path for path in there if path.name == run.name and path not in found]
        if len(same) == 1 and sum(other.name == run.name for other in moved) == 1:
            found[run] = there[same[0]]
    return [found.get(each.run) for each in evaluations]


# Names and data


def names_of_evaluations(evaluations):
    """What a legend calls each: its run; the step where there are several of a run; the protocol where there
    are both; the file in place of the run where all these are the same."""
    runs = names_of([each.run for each in evaluations])
    steps = {}
    for each in evaluations:
        steps.setdefault(each.run, set()).add(each.step)
    has_both = len({each.protocol for each in evaluations} - {""}) > 1

    def name_of(each, name):
        return f"{name}, {each.protocol}" if has_both and each.protocol else name

    names = [
        name_of(each, f"{run} at step {each.step}" if len(steps[each.run]) > 1 else run)
        for run, each in zip(runs, evaluations, strict=True)
    ]
    return [
        name if names.count(name) == 1 else name_of(each, shown(str(each.path)))
        for name, each in zip(names, evaluations, strict=True)
    ]


def data_of(evaluation):
    """What its file says of the data, without the folders that lead there."""
    return IN_FOLDERS.sub("'", evaluation.data)


def are_of_different_data(evaluations, data_of=data_of):
    """Whether two of these were of different data or, at a length that both have, of other depths or of
    another number of tokens or samples. Two protocols never take the same tokens: they are not compared."""
    if len({data_of(each) for each in evaluations if each.data}) > 1:
        return True
    seen = {}
    for each in evaluations:
        for length, cells in each.cells().items():
            if seen.setdefault((each.protocol, each.task, length), cells) != cells:
                return True
    return False


def note_on_data(evaluations, data_of=data_of):
    """What a heading or the label of an axis adds where these do not compare, as the program's table does."""
    return f" ({OF_DIFFERENT_DATA})" if are_of_different_data(evaluations, data_of) else ""
