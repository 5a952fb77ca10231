#!/usr/bin/env python3
r"""Repeats the published experiments at small scale: trains and evaluates every model of a study.

  reproduce.py extrapolation    perplexity far beyond the training length, 13 kinds of positions, 3 seeds
  reproduce.py retrieval        passkey and needle in a haystack, 8 kinds of positions, 7 with 3 seeds
  reproduce.py ablations        the prior's ranks, bases, start, frequencies, slopes and learning rate
  reproduce.py genome           bits a base of a virus' genome, 4 kinds of positions, 3 seeds; completions
  reproduce.py signal           what attention makes of content and positions, 4 kinds of positions
  reproduce.py STUDY --table    the tables of what is finished, as Markdown; trains nothing
  reproduce.py STUDY --table --against ROW   differences from one row, seed by seed

Each finished model is one file, RESULTS/STUDY/NAME.json: its settings, commands, training and evaluation.
What has such a file is not trained again. A model that was interrupted goes on from its newest checkpoint.
So the same command, given again, finishes the study, on this machine or on another that has the files. The
project brings files along; --runs and --results with folders of your own train every model yourself.

The studies of text read data/shakespeare, that of a genome data/lambda:
  .venv/bin/python data/prepare.py text --tokenizer bytes --out data/shakespeare tinyshakespeare.txt
  .venv/bin/python data/prepare.py fasta --out data/lambda --record-tokens 1500 --val-fraction 0.2 \
      --input lambda_virus.fa.gz

Exit codes: 0 done (with --minutes also if models are left), 1 failure (a run failed, disk, interrupted),
2 wrong use, 3 bad data.
"""

import argparse
import fnmatch
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import console
import genome_completions
from console import DataError, ScriptError, UsageError
from program import ROOT, as_settings, program_path
from run_reader import read_config, read_json, read_metrics, read_summary
from studies import STUDIES
from study_tables import tables_of
from whole_file import replace_file

STOPPED_AFTER_SAVING = 4
COMPLETIONS = f"scripts/{genome_completions.SCRIPT}"

warn = partial(console.warn, "reproduce.py")


class Workers:
    """Runs the program, several at a time with one thread each. stop() ends all of them, after they have
    saved, and lets none start."""

    def __init__(self, deadline):
        self.deadline = deadline
        self.running = set()
        self.lock = threading.Lock()
        self.stopped = False

    def may_start(self):
        return not self.stopped and time.monotonic() < self.deadline

    def call(self, arguments, log, program=None):
        """Runs the program, or another one, which adds what it prints to `log`. Returns whether it has done
        all that it was asked for, and not been stopped. Raises ScriptError if it failed."""
        with open(log, "ab") as file:
            with self.lock:
                if self.stopped:
                    return False
                process = subprocess.Popen(
                    [*(program or [program_path()]), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    start_new_session=True,  # Ctrl-C reaches it through stop() alone
                )
                self.running.add(process)
            code = process.wait()
            with self.lock:
                self.running.discard(process)
        if code == 0:
            return True
        if self.stopped or code == STOPPED_AFTER_SAVING:
            return False
        raise ScriptError(f"{Path(log).stem}: the program ended with code {code}, see {log}")

    def stop(self):
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.send_signal(signal.SIGTERM)


def stages_of(experiment, run):
    """(folder, settings, folder of the run whose weights it starts with or None) of each run of a model."""
    first = run.with_name(f"{run.name}-first")
    if experiment.first:
        yield first, experiment.settings | experiment.first, None
    yield run, experiment.settings, first if experiment.first else None


def check_settings(settings, run):
    """Raises DataError if the run that is there is another model's: its settings have changed since."""
    config = read_config(run)
    for key, value in settings.items():
        found = config.get(key)
        if found != value:
            raise DataError(
                f"{run}: {key} is {found!r}, in the study {value!r}; remove the run to train it anew"
            )


def train(experiment, run, workers, log):
    """Trains the model, or goes on with it. Returns whether it is trained."""
    return all(
        train_stage(experiment.preset, *stage, workers, log) for stage in stages_of(experiment, run)
    )


def train_stage(preset, run, settings, start, workers, log):
    is_begun = (run / "config.toml").exists()
    if is_begun:
        check_settings(settings, run)
    if read_summary(run):
        return True
    new = ["--config", preset, *as_settings(settings)]
    return workers.call([*into(run, start), *(["--resume"] if is_begun else new)], log)


def into(run, start):
    return ["--out", str(run), *(["--init-from", str(start)] if start else [])]


def evaluate(experiment, run, workers, log):
    """{name: what eval --json wrote}, or None if it was stopped."""
    found = {}
    for name, options in experiment.evaluations.items():
        file = run / f"{name}.json"
        if not workers.call(["eval", "--checkpoint", str(run), "--json", str(file), *options], log):
            return None
        found[name] = read_json(file)
    return found


def analyze(experiment, run, workers, log):
    """analysis.json, {} where none is kept, or None if it was stopped."""
    if experiment.analysis is None:
        return {}
    is_done = workers.call(["analyze", "--checkpoint", str(run), *experiment.analysis], log)
    return read_json(run / "analysis" / "analysis.json") if is_done else None


def complete(experiment, run, workers, log):
    """completions.json, {} where none is kept, or None if it was stopped."""
    if not experiment.is_completed:
        return {}
    is_done = workers.call([str(run)], log, [sys.executable, str(ROOT / COMPLETIONS)])
    return read_json(run / genome_completions.FILE) if is_done else None


def commands_of(experiment):
    run = Path("runs", experiment.study, experiment.name)
    for folder, settings, start in stages_of(experiment, run):
        words = ["--config", experiment.preset, *into(folder, start), *as_settings(settings)]
        yield f"./train_gpt_goat {shlex.join(words)}"
    for name, options in experiment.evaluations.items():
        yield f"./train_gpt_goat eval --checkpoint {run} {shlex.join(options)} --json {run}/{name}.json"
    if experiment.analysis is not None:
        yield shlex.join(["./train_gpt_goat", "analyze", "--checkpoint", str(run), *experiment.analysis])
    if experiment.is_completed:
        yield f".venv/bin/python {COMPLETIONS} {run}"


def result_of(experiment, run, found):
    metrics = read_metrics(run)
    validation = [(entry["step"], entry["val_loss"]) for entry in metrics if "val_loss" in entry]
    return {
        "study": experiment.study,
        "preset": experiment.preset,
        "variant": experiment.variant,
        "seed": experiment.seed,
        "settings": experiment.settings,
        "commands": list(commands_of(experiment)),
        "summary": read_summary(run),
        "validation": validation,
        **found,
    }


def finish(experiment, folders, workers):
    """Trains and evaluates one model and writes its file. Returns whether it is finished."""
    if not workers.may_start():
        return False
    run = folders["runs"] / experiment.study / experiment.name
    run.parent.mkdir(parents=True, exist_ok=True)
    log = run.with_name(f"{experiment.name}.log")
    begin = time.monotonic()
    if not train(experiment, run, workers, log):
        return False
    found = {
        name: look(experiment, run, workers, log)
        for name, look in (("evaluations", evaluate), ("analysis", analyze), ("completions", complete))
    }
    if None in found.values():
        return False
    result = result_of(experiment, run, found)
    replace_file(file_of(folders, experiment), (json.dumps(result, indent=1) + "\n").encode())
    console.say(f"{experiment.name}: finished after {(time.monotonic() - begin) / 60:.1f} minutes")
    return True


def file_of(folders, experiment):
    return folders["results"] / experiment.study / f"{experiment.name}.json"


def finished_result(folders, experiment):
    """What the file of a model holds, None if there is none. Raises DataError if the study has changed
    since."""
    file = file_of(folders, experiment)
    if not file.exists():
        return None
    result = read_json(file)
    if result.get("commands") != list(commands_of(experiment)):
        raise DataError(f"{file}: its commands are not those of the study; remove it to make it anew")
    return result | {"variant": experiment.row or experiment.variant}


def work_off(experiments, folders, workers, jobs):
    """Returns whether all of the experiments are finished now. Raises ScriptError if some have failed."""
    failed = []

    def attempt(experiment):
        try:
            return finish(experiment, folders, workers)
        except ScriptError as error:  # the others go on
            warn(error)
            failed.append(experiment.name)
            return False

    with ThreadPoolExecutor(jobs) as pool:
        try:
            is_finished = list(pool.map(attempt, experiments))
        finally:
            workers.stop()
    if failed:
        raise ScriptError(f"{console.count(len(failed), 'model')} failed: {console.some(sorted(failed))}")
    return all(is_finished)


def parse_arguments():
    parser = console.Parser(
        prog="reproduce.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES, metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--table", action="store_true", help="print the tables of what is finished")
    parser.add_argument("--against", metavar="ROW", help="with --table: differences from it, seed by seed")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="of these names, as 'goat*-seed1'")
    parser.add_argument("--jobs", type=int, default=2, help="models at a time, one thread each (2)")
    parser.add_argument("--minutes", type=float, help="start no model after so many minutes")
    runs, results = Path(os.path.relpath(ROOT / "runs")), ROOT / "dev/results/reproduction"
    parser.add_argument("--runs", type=Path, default=runs, help="folder of the runs (runs)")
    parser.add_argument("--results", type=Path, default=results, help="folder of the files")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        raise UsageError("--jobs must be 1 or more")
    if arguments.against and not arguments.table:
        raise UsageError("--against is for --table")
    return arguments


def body():
    arguments = parse_arguments()
    folders = {"runs": arguments.runs, "results": arguments.results}
    experiments = [each for each in STUDIES[arguments.study] if fnmatch.fnmatch(each.name, arguments.only)]
    if not experiments:
        names = console.some(each.name for each in STUDIES[arguments.study])
        raise UsageError(f"--only {arguments.only}: no such model; there are: {names}")
    results = {each.name: finished_result(folders, each) for each in experiments}
    finished = [result for result in results.values() if result]
    if arguments.table:
        console.say(tables_of(arguments.study, finished, arguments.against))
        return
    if not program_path().exists():
        raise ScriptError(f"{program_path()}: there is no program yet: run make")
    console.say(f"{arguments.study}: {len(finished)} of {len(experiments)} models are finished")
    left = [each for each in experiments if not results[each.name]]
    if not left:
        files = f"their files are in {arguments.results}"
        console.say(f"nothing to train: {files}; --runs and --results with other folders train all")
    deadline = float("inf") if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    if not work_off(left, folders, Workers(deadline), arguments.jobs):
        console.say("not all are finished; the same command goes on")


def main():
    return console.run_script("reproduce.py", body, "the same command goes on")


if __name__ == "__main__":
    sys.exit(main())
