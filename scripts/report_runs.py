"""What a run's folder tells, gathered for scripts/report.py. What is missing becomes a note, not an error."""

import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from console import DataError, ScriptError, count
from eval_reader import EVALUATION, Evaluation, contents_text, find_runs, read_evaluations
from plot_loss import loss_points, smoothed, smoothing_width
from plot_prior import PriorMatrices, prior_matrices
from run_names import names_of, real
from run_reader import (
    CONFIG,
    METRICS,
    Checkpoint,
    check_run_folder,
    differing_keys,
    finite,
    flat,
    newest_checkpoint,
    read_config,
    read_json,
    read_metrics,
    read_summary,
)

START = "init_from.json"
NOTABLE_SECONDS, NOTABLE_SHARE = 1, 0.01  # of waiting for data; the program itself tells of as much


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
        """(step, loss) at the end of the curve that the figure shows, or None."""
        steps, loss = loss_points(self.metrics, "loss")
        if not len(steps):
            return None
        return int(steps[-1]), float(smoothed(steps, loss, smoothing_width(steps))[-1])

    def last_validation(self):
        """(step, loss) of the last finite validation loss, or None."""
        steps, loss = loss_points(self.metrics, "val_loss")
        return (int(steps[-1]), float(loss[-1])) if len(steps) else None

    def best_validation(self):
        """(step, loss) of the lowest validation loss, or None."""
        steps, loss = loss_points(self.metrics, "val_loss")
        return (int(steps[loss.argmin()]), loss.min()) if len(loss) else None


def read_run(folder, layers):
    """The run in `folder`, with the prior of `layers`. Raises UsageError, DataError."""
    check_run_folder(folder)
    run = Run(folder)
    if (folder / CONFIG).exists():
        run.config = read_config(folder)
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
    yield from losses_not_finite(run)
    yield from losses_above_guessing(run)
    waited, seconds = (finite(run.summary.get(key)) for key in ("seconds_waiting_for_data", "seconds"))
    if waited >= max(NOTABLE_SECONDS, NOTABLE_SHARE * seconds):
        yield f"training waited {waited:,.0f} s of {seconds:,.0f} s for its data"


def losses_not_finite(run):
    for key, what in (("loss", "step"), ("val_loss", "validation")):
        is_lost = [np.isnan(finite(entry[key])) for entry in run.metrics if key in entry]
        if any(is_lost):
            last = ", the last one too" if is_lost[-1] else ""
            yield f"{count(sum(is_lost), what)} without a finite loss{last}; the figure leaves them out"


def losses_above_guessing(run):
    """Of a run past its warm-up: an untrained model may lie a little above."""
    vocabulary, warm_up = (finite(run.config.get(key)) for key in ("model.vocab", "train.warmup"))
    is_warming_up = not run.is_finished and finite(run.steps) <= warm_up
    if is_warming_up or not vocabulary >= 1:
        return
    guessing = math.log(vocabulary)
    ends = {"smoothed training loss": run.smoothed_loss(), "validation loss": run.last_validation()}
    for what, end in ends.items():
        if end and end[1] > guessing:
            limit = f"that of guessing, ln {vocabulary:,.0f} = {guessing:.5g}"
            yield f"the last {what}, {end[1]:.5g}, is above {limit}"


def last_sign_of_life(run):
    path = run.folder / METRICS
    if not path.exists():
        return None
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def read_runs(folders, layers):
    """The runs, each once, with names that tell them apart."""
    folders = list({real(folder): folder for folder in folders}.values())
    runs = [read_run(folder, layers) for folder in folders]
    for run, name in zip(runs, names_of(folders), strict=True):
        run.name = name
    return runs


# Configs


def differing_settings(runs):
    """{section: {key: a value for each run, None where its config lacks the key}} of keys that are not the
    same in all runs that have a config."""
    differing = {}
    for key in differing_keys([run.config for run in runs if run.config]):
        differing.setdefault(key.partition(".")[0], {})[key] = [run.config.get(key) for run in runs]
    return differing


# Evaluations


@dataclass(frozen=True)
class Measured:
    """One evaluation, and whose it is."""

    evaluation: Evaluation
    run: Run | None  # None: of a run that is not among those asked for
    name: str

    @property
    def contents(self):
        return self.evaluation.contents

    @property
    def file(self):
        return self.evaluation.path

    @property
    def where(self):
        return self.evaluation.where

    @property
    def kind(self):
        """Evaluations of one kind go into one table and one figure."""
        of = self.contents.get("task" if self.evaluation.is_task else "protocol")
        return self.evaluation.is_task, self.evaluation.has_depths, of


def gather_evaluations(runs, files):
    """eval.json of each run, then what the files hold; what is there twice counts once."""
    by_folder = {run.folder: run for run in runs}
    sources = [(run.folder / EVALUATION, run.folder) for run in runs if (run.folder / EVALUATION).exists()]
    pairs = []
    for path, home in [*sources, *((path, None) for path in files)]:
        evaluations = read_evaluations(path)
        pairs += zip(evaluations, find_runs(evaluations, by_folder, home), strict=True)
    others = list(dict.fromkeys(evaluation.run for evaluation, folder in pairs if folder is None))
    names = dict(zip(others, names_of([*others, *by_folder]), strict=False))
    found = {}
    for evaluation, folder in pairs:
        run = by_folder.get(folder)
        if run:
            evaluation.run = real(folder)  # it may have moved since
        each = Measured(evaluation, run, run.name if run else names[evaluation.run])
        found.setdefault((each.name, contents_text(evaluation)), each)
    return list(found.values())


def by_kind(measured):
    """Evaluations that belong into one table."""
    groups = {}
    for each in measured:
        groups.setdefault(each.kind, []).append(each)
    return list(groups.values())


def labelled(each, measured):
    """Its run, and the step or file where that is not enough."""
    same = [other for other in measured if other.name == each.name]
    label = f"{each.name}, step {each.contents['step']}" if "step" in each.contents else each.name
    return label if len(same) == 1 else f"{label}, {each.where}"
