"""The commands that repeat a run: its training, its evaluation, its figures."""

import shlex
import subprocess
import tomllib
from functools import cache

from eval_reader import LARGEST_FILE
from program import as_settings, program_path
from run_reader import CONFIG, flat, read_json

PROGRAM, PYTHON = "./train_gpt_goat", ".venv/bin/python"
ANSWER_SECONDS = 20
FIGURES = {"eval": "Evaluation", "extrapolation": "Perplexity by length"}  # by the command of plot.py


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


def evaluation_commands(measured):
    """[(what it does, command)] of each file of evaluations: the command that made it. None where the file is
    of a program that did not write that."""
    commands = []
    for file in dict.fromkeys(each.file for each in measured):
        words = read_json(file, LARGEST_FILE).get("arguments")
        if isinstance(words, list) and words:
            commands.append((f"What made {file}", shlex.join(map(str, [PROGRAM, *words]))))
        else:
            commands.append((f"{file} does not tell the command that made it.", None))
    return commands


def figure_commands(runs, figures):
    """[(what it draws, command)]"""
    plot = [PYTHON, "scripts/plot.py"]
    commands = []
    if with_loss := [run.folder for run in runs if run.has_losses]:
        commands.append(("Loss curves", [*plot, "loss", *with_loss]))
    for run in runs:
        for matrices, layer in run.priors:
            words = [*plot, "prior", run.folder, "--checkpoint", matrices.step, "--layer", layer]
            commands.append((f"Prior of {run.name}, layer {layer}", words))
    for figure in figures:
        if figure.command:
            files = dict.fromkeys(each.file for each in figure.group)
            commands.append((FIGURES[figure.command], [*plot, figure.command, *files]))
    return list(dict.fromkeys((what, shlex.join(map(str, words))) for what, words in commands))
