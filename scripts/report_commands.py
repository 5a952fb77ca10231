"""The commands that repeat a run: its training, its evaluation, its figures."""

import math
import os
import shlex
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from report_runs import CONFIG, Run, flat
from run_reader import read_json

ROOT = Path(__file__).resolve().parent.parent
PROGRAM, PYTHON = "./train_gpt_goat", ".venv/bin/python"
ANSWER_SECONDS = 20
LARGEST_EVALUATIONS = 256 << 20  # bytes
PUBLISHED = {  # lengths, depths and samples of each task where no options are given
    "passkey": ((1024, 2048, 4096, 8192, 16384), (), 40),
    "niah": ((512, 1024, 2048, 4096, 8192, 16384), (0.1, 0.3, 0.5, 0.7, 0.9), 20),
}


def program_path():
    return os.environ.get("TRAIN_GPT_GOAT", ROOT / "train_gpt_goat")


def ask_program(program, *words):
    """What the program prints, or None where it cannot be asked."""
    options = {"capture_output": True, "text": True, "check": True, "timeout": ANSWER_SECONDS}
    try:
        return subprocess.run([program, *words], stdin=subprocess.DEVNULL, **options).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def config_of(program, preset, settings=()):
    """The config that a preset and --set words mean, or None."""
    text = ask_program(program, "--config", preset, *settings, "--print-config")
    try:
        return None if text is None else flat(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        return None


@cache
def presets_of(program):
    """{name: config} of the presets in the program."""
    lines = (ask_program(program, "--list-configs") or "").splitlines()
    names = [line.split()[0] for line in lines if line.strip()]
    return {name: config for name in names if (config := config_of(program, name)) is not None}


def changed(config, preset):
    return {key: value for key, value in config.items() if preset.get(key) != value}


def as_settings(values):
    def text(value):
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [word for key, value in values.items() for word in ("--set", f"{key}={text(value)}")]


def nearest_preset(config):
    """(name, the --set words that turn it into this config) of the preset that needs the fewest. None if the
    program cannot be asked, or does not make the same config of them."""
    program = program_path()
    presets = presets_of(program)
    if not config or not presets:
        return None
    name = min(presets, key=lambda name: len(changed(config, presets[name])))
    settings = as_settings(changed(config, presets[name]))
    made = config_of(program, name, settings)
    return (name, settings) if made is not None and not changed(config, made) else None


def training_commands(run):
    """[(what it does, command)]"""
    folder = run.folder if run.folder.name not in ("", "..") else run.folder.resolve()
    out = ["--out", f"{folder}-again"]
    start = ["--init-from", run.start["checkpoint"]] if "checkpoint" in run.start else []
    commands = []
    if (run.folder / CONFIG).exists():
        words = [PROGRAM, "--config", f"{run.folder / CONFIG}", *start, *out]
        commands.append(("Train it again, from the run's own config", shlex.join(map(str, words))))
    if preset := nearest_preset(run.config):
        name, settings = preset
        words = [PROGRAM, "--config", name, *start, *out, *settings]
        what = f"The same config, as changes to the preset {name}, the nearest"
        commands.append((what, shlex.join(map(str, words))))
    return commands


class Unrepeatable(Exception):
    """No command is known to make the file again; the message says why."""


@dataclass(frozen=True)
class Evaluated:
    """One evaluation of a file, seen as what the options of `eval` were."""

    contents: dict
    run: Run | None  # None: not among those of the page

    @property
    def rows(self):
        return self.contents["results"]

    @property
    def is_task(self):
        return all("span_token_accuracy" in row for row in self.rows)

    @property
    def lengths(self):
        return tuple(sorted({row["length"] for row in self.rows}))

    @property
    def depths(self):
        return tuple(sorted({row["depth"] for row in self.rows if row.get("depth") is not None}))

    @property
    def samples(self):
        return self.rows[0].get("samples")

    @property
    def of_shards(self):
        return str(self.contents.get("data", "")).startswith("shards '")

    @property
    def published(self):
        return PUBLISHED.get(self.contents.get("task"), (None, None, None))

    @property
    def own_lengths(self):
        """Those without --lengths."""
        return self.published[0] if self.is_task else (self.contents["train_length"],)

    @property
    def tokens(self):
        """The --tokens of this evaluation alone."""
        return max(row["sequences"] * row["length"] for row in self.rows)

    def is_made_by(self, tokens):
        """Whether --tokens gives these sequences; None: without it."""
        if not self.of_shards:
            given = self.contents.get("validation_tokens", 0) if tokens is None else tokens
            return given > 0 and all(row["sequences"] == max(1, given // row["length"]) for row in self.rows)
        left_out = self.contents.get("tokens_left_out", math.inf)
        took_all = left_out < math.lcm(*self.lengths)
        return took_all if tokens is None else tokens == self.tokens or (took_all and tokens > self.tokens)

    @property
    def default_precision(self):
        """What `eval` computes in where no --precision is given; None where files do not tell."""
        chosen = self.run.config.get("model.precision") if self.run else None
        summary = self.run.summary if self.run else {}
        known = {summary.get("device_description"): summary.get("device")}
        device = known.get(self.contents.get("device")) if self.contents.get("device") else None
        if chosen == "fp32" or device == "cpu":
            return "fp32"
        return "bf16" if device and chosen in ("auto", "bf16") else None


def shared(option, values, defaults):
    """What all evaluations have in common; None where each has its own default, or none has a value."""
    if len(set(values)) == 1:
        return values[0]
    if values == defaults:
        return None
    raise Unrepeatable(f"its evaluations differ in {option}")


def joined(values):
    return ",".join(map(str, values))


def retrieval_words(tasks):
    depths = shared("--depths", [each.depths for each in tasks], [each.published[1] for each in tasks])
    samples = shared("--samples", [each.samples for each in tasks], [each.published[2] for each in tasks])
    words = ["--depths", joined(depths)] if depths else []
    return [*words, "--samples", samples] if samples else words


def protocol_words(perplexities):
    """The protocol of all runs, and the tokens that recut takes of each."""
    of_run = {}
    for each in perplexities:
        of_run.setdefault(each.contents["checkpoint"], set()).add(each.contents.get("protocol", "recut"))
    protocols = shared("--protocol", [tuple(sorted(found)) for found in of_run.values()], None)
    words = ["--protocol", "both" if len(protocols) > 1 else protocols[0]]
    recut = [each for each in perplexities if each.contents.get("protocol", "recut") == "recut"]
    is_told = all("sequences" in row for each in recut for row in each.rows)
    return ([] if protocols == ("recut",) else words) + (tokens_words(recut) if recut and is_told else [])


def tokens_words(recut):
    tokens = max(each.tokens for each in recut)
    if all(each.is_made_by(tokens) for each in recut):
        return ["--tokens", tokens]
    if all(each.is_made_by(None) for each in recut):
        return []
    raise Unrepeatable("its evaluations differ in --tokens")


def data_words(perplexities):
    """--data, where other shards than each run's validation data were evaluated."""
    given = []
    for each in perplexities:
        if "data_files" not in each.contents and (each.of_shards or "data" not in each.contents):
            said = each.contents.get("data", "no data")
            raise Unrepeatable(f"it is of an older program and does not tell --data, it names {said}")
        given += [tuple(each.contents["data_files"])] if each.of_shards else []
    words = shared("--data", given, None) if given else ()
    return ["--data", *words] if words else []


def precision_words(several):
    values = [each.contents.get("precision") for each in several]
    defaults = [each.default_precision for each in several]
    if values == defaults or not any(values):
        return []
    return ["--precision", shared("--precision", values, defaults)]


def evaluation_words(file, several):
    """The command that makes a file of these evaluations. Raises Unrepeatable."""
    tasks = [each for each in several if each.is_task]
    perplexities = [each for each in several if not each.is_task]
    lengths = shared("--lengths", [each.lengths for each in several], [each.own_lengths for each in several])
    words = [PROGRAM, "eval", "--checkpoint", *dict.fromkeys(each.contents["checkpoint"] for each in several)]
    words += ["--lengths", joined(lengths)] if lengths else []
    words += retrieval_words(tasks) if tasks else []
    words += [*protocol_words(perplexities), *data_words(perplexities)] if perplexities else []
    return [*words, *precision_words(several), "--json", file]


def evaluation_commands(measured):
    """[(what it does, command)] of each file of evaluations; None for the command where none is
    known to make the file, and the words say why."""
    runs = {each.contents["checkpoint"]: each.run for each in measured}
    commands = []
    for file in dict.fromkeys(each.file for each in measured):
        found = read_json(file, LARGEST_EVALUATIONS)
        found = found.get("evaluations", [found])
        several = [Evaluated(contents, runs.get(contents["checkpoint"])) for contents in found]
        try:
            words = evaluation_words(file, several)
            commands.append((f"Evaluate again, into {file}", shlex.join(map(str, words))))
        except Unrepeatable as why:
            commands.append((f"No command makes {file} again: {why}.", None))
        except (TypeError, ValueError, AttributeError, KeyError):
            why = "it holds values that `eval` does not write"
            commands.append((f"No command makes {file} again: {why}.", None))
    return commands


def figure_commands(runs, measured):
    """[(what it draws, command)]"""
    plot = [PYTHON, "scripts/plot.py"]
    commands = []
    if with_loss := [run.folder for run in runs if run.has_losses]:
        commands.append(("Loss curves", [*plot, "loss", *with_loss]))
    for run in runs:
        for matrices, layer in run.priors:
            words = [*plot, "prior", run.folder, "--checkpoint", matrices.step, "--layer", layer]
            commands.append((f"Prior of {run.name}, layer {layer}", words))
    for files in measured:
        commands.append(("Evaluation", [*plot, "eval", *dict.fromkeys(each.file for each in files)]))
    return [(what, shlex.join(map(str, words))) for what, words in commands]
