"""What a run's folder tells, gathered for scripts/report.py. What is missing becomes a note, not an error."""

import json
import math
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from console import DataError, ScriptError, count
from plot_eval import Evaluation
from plot_loss import loss_points, names_of, smoothed
from plot_prior import PriorMatrices, prior_matrices
from run_reader import (
    Checkpoint,
    check_run_folder,
    finite,
    newest_checkpoint,
    parse_json,
    read_bytes,
    read_json,
    read_metrics,
    read_summary,
)

LARGEST_CONFIG, LARGEST_EVALUATION = 1 << 20, 256 << 20  # bytes
CONFIG, METRICS, EVALUATION, START = "config.toml", "metrics.jsonl", "eval.json", "init_from.json"
NOTABLE_WAIT = 0.01  # share of the time that a run may wait for its data before that is worth a warning


@dataclass
class Run:
    """One run. `notes` say what is missing, `warnings` what is wrong with it."""

    folder: Path
    name: str = ""
    config: dict = field(default_factory=dict)  # by section.key
    metrics: list = field(default_factory=list)
    summary: dict = field(default_factory=dict)
    start: dict = field(default_factory=dict)  # init_from.json
    checkpoint: Checkpoint | None = None
    priors: list[tuple[PriorMatrices, int]] = field(default_factory=list)  # with the layer of each
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def has_losses(self):
        return any(len(loss_points(self.metrics, key)[0]) for key in ("loss", "val_loss"))

    @property
    def is_finished(self):
        return bool(self.summary)

    @property
    def state(self):
        return self.checkpoint.state if self.checkpoint else {}

    def latest(self, key):
        """`key` of summary.json, else of the last line of metrics.jsonl that has it, else of state.json."""
        if key in self.summary:
            return self.summary[key]
        lines = (entry[key] for entry in reversed(self.metrics) if key in entry)
        return next(lines, self.state.get(key))

    @property
    def steps(self):
        steps = [entry["step"] for entry in self.metrics if isinstance(entry.get("step"), int)]
        return self.summary.get("steps", steps[-1] if steps else self.state.get("step"))

    @property
    def planned_steps(self):
        """None where the config does not say."""
        if self.config.get("train.steps"):
            return self.config["train.steps"]
        try:
            tokens_a_step = self.config["train.batch"] * self.config["data.seq_len"]
            return -(-self.config["train.tokens"] // tokens_a_step) or None
        except (KeyError, TypeError, ZeroDivisionError):
            return None

    def parameters(self):
        """By summary.json, else by the checkpoint's tensors; None without both."""
        if "parameters" in self.summary or self.checkpoint is None:
            return self.summary.get("parameters")
        return sum(math.prod(shape) for shape in self.checkpoint.shapes().values())

    def skipped(self):
        """How many updates were skipped, by reason."""
        return Counter(str(entry["skipped"]) for entry in self.metrics if "skipped" in entry)

    def smoothed_loss(self):
        """The end of the curve that the figure shows, NaN without one."""
        steps, loss = loss_points(self.metrics, "loss")
        return smoothed(steps, loss, max(1, (steps[-1] - steps[0]) / 100))[-1] if len(steps) else np.nan

    def best_validation(self):
        """(step, loss) of the lowest validation loss, or None."""
        steps, loss = loss_points(self.metrics, "val_loss")
        return (int(steps[loss.argmin()]), loss.min()) if len(loss) else None


def flat(table, prefix=""):
    """A config's values by section.key."""
    values = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        values |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return values


def read_config(path):
    try:
        return flat(tomllib.loads(read_bytes(path, LARGEST_CONFIG).decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not TOML; the file is damaged ({error})") from None


def read_run(folder, layers):
    """The run in `folder`, with the prior of `layers`. Raises UsageError, DataError."""
    check_run_folder(folder)
    run = Run(folder)
    if (folder / CONFIG).exists():
        run.config = read_config(folder / CONFIG)
    else:
        run.notes.append(f"there is no {CONFIG}")
    if (folder / METRICS).exists():
        run.metrics = read_metrics(folder)
    else:
        run.notes.append(f"there is no {METRICS}: nothing was trained in this folder")
    run.summary = read_summary(folder)
    if (folder / START).exists():
        run.start = read_json(folder / START)
    find_checkpoint(run, layers)
    if not run.has_losses:
        run.notes.append("there is no finite loss yet")
    run.warnings += warnings_of(run)
    return run


def find_checkpoint(run, layers):
    """Its newest checkpoint that is whole and, where the model has one, the prior in it."""
    try:
        run.checkpoint = newest_checkpoint(run.folder, run.warnings.append)
    except DataError as error:
        run.notes.append(f"no checkpoint: {error}")
        return
    run.config = run.config or flat(run.checkpoint.config)
    if "goat" not in str(run.config.get("model.attention")).split("+"):
        return
    for layer in layers:
        try:
            run.priors.append((prior_matrices(run.checkpoint.folder, layer), layer))
        except ScriptError as error:
            run.notes.append(f"no figure of the prior: {error}")


def warnings_of(run):
    for reason, number in run.skipped().items():
        yield f"{count(number, 'update')} skipped: {reason}"
    if unusable := sum("loss" in entry and np.isnan(finite(entry["loss"])) for entry in run.metrics):
        yield f"{count(unusable, 'step')} without a finite loss; the figure leaves them out"
    waited, seconds = (finite(run.summary.get(key)) for key in ("seconds_waiting_for_data", "seconds"))
    if waited > NOTABLE_WAIT * seconds:
        yield f"training waited {waited:,.0f} s of {seconds:,.0f} s for its data"


def last_sign_of_life(run):
    path = run.folder / METRICS
    if not path.exists():
        return None
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def read_runs(folders, layers):
    """The runs, each once, with names that tell them apart."""
    folders = list({folder.resolve(): folder for folder in folders}.values())
    runs = [read_run(folder, layers) for folder in folders]
    for run, name in zip(runs, names_of(folders), strict=True):
        run.name = name
    return runs


# Configs


def differing_keys(runs):
    """{section: {key: a value for each run, None where its config lacks the key}} of keys that are not the
    same in all runs that have a config."""
    configs = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = {}
    for key in keys:
        if len({json.dumps(config.get(key), default=str) for config in configs}) > 1:
            differing.setdefault(key.partition(".")[0], {})[key] = [run.config.get(key) for run in runs]
    return differing


# Evaluations


@dataclass(frozen=True)
class Measured:
    """One evaluation: what eval --json wrote, where it stands, and whose it is."""

    evaluation: Evaluation
    contents: dict
    file: Path
    where: str  # the file, and which it is of several there
    run: Run | None  # None: of a run that is not among those asked for
    name: str

    @property
    def kind(self):
        """Evaluations of one kind go into one table and one figure."""
        of = self.contents.get("task" if self.evaluation.is_task else "protocol")
        return self.evaluation.is_task, self.evaluation.has_depths, of


def evaluation_objects(path):
    """What eval --json wrote, or each member of {"evaluations": [...]}."""
    try:
        contents = parse_json(read_bytes(path, LARGEST_EVALUATION))
    except ValueError as error:
        raise DataError(f"{path}: not JSON; the file is damaged ({error})") from None
    if not isinstance(contents, dict):
        raise DataError(f"{path}: expected a JSON object")
    several = contents.get("evaluations", [contents])
    if not isinstance(several, list):
        raise DataError(f"{path}: 'evaluations' is not a list")
    return several


def measured_in(contents, path, where, owner, runs):
    """What one member of a file says."""
    evaluation = Evaluation(where, contents)
    run = owner or run_of_checkpoint(contents["checkpoint"], runs)
    name = run.name if run else evaluation.run.name or str(evaluation.run)
    return Measured(evaluation, contents, path, where, run, name)


def run_of_checkpoint(checkpoint, runs):
    """The run that a checkpoint's path names: by the path, or by the name where one run alone has it."""
    path = Path(checkpoint)
    folder = path.parent.parent if path.parent.name == "checkpoints" else path
    same = [run for run in runs if run.folder.resolve() == folder.resolve()]
    return next(iter(same or only(run for run in runs if run.folder.resolve().name == folder.name)), None)


def only(items):
    items = list(items)
    return items if len(items) == 1 else []


def read_evaluations(runs, files):
    """eval.json of each run, then what the files hold; what is there twice counts once."""
    sources = [(run.folder / EVALUATION, run) for run in runs if (run.folder / EVALUATION).exists()]
    found = {}
    for path, owner in [*sources, *((path, None) for path in files)]:
        several = evaluation_objects(path)
        for number, contents in enumerate(several, 1):
            where = str(path) if len(several) == 1 else f"{path}, evaluation {number}"
            each = measured_in(contents, path, where, owner, runs)
            found.setdefault((each.name, json.dumps(contents, sort_keys=True)), each)
    return list(found.values())


def by_kind(measured):
    """Evaluations that belong into one table."""
    groups = {}
    for each in measured:
        groups.setdefault(each.kind, []).append(each)
    return list(groups.values())
