#!/usr/bin/env python3
"""Writes the metrics of runs of train_gpt_goat as event files of TensorBoard.

  export_tensorboard.py RUN ... --out LOGDIR             what the runs have now
  export_tensorboard.py RUN ... --out LOGDIR --follow    and what they write, until all have finished
  tensorboard --logdir LOGDIR

Each RUN becomes LOGDIR/NAME, after the name of its folder: a scalar for every number in the lines of
metrics.jsonl, and config.toml as text. Given again, the command adds what is new. Steps that a resumed run
repeats, or that have changed otherwise, replace those before. --follow ends when every run has its
summary.json, or with Ctrl-C.

Needs TensorBoard: .venv/bin/pip install -r scripts/requirements_tensorboard.txt

Exit codes: 0 done, 1 failure (disk, interrupted, missing package), 2 wrong use, 3 bad data.
"""

import argparse
import math
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import console
import numpy as np
from console import ScriptError, UsageError
from run_reader import (
    LARGEST_CONFIG, METRICS, check_run_folder, finite, is_count, is_number, parse_metrics, read_bytes,
)  # fmt: skip

REQUIREMENTS = Path(__file__).resolve().with_name("requirements_tensorboard.txt")
TAGS = {
    "loss": "loss/training",
    "val_loss": "loss/validation",
    "lr": "optimizer/learning_rate",
    "grad_norm": "optimizer/gradient_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "flops_per_second": "speed/flops_per_second",
    "mfu": "speed/mfu",
    "memory_bytes": "speed/memory_bytes",
    "tokens": "progress/tokens",
    "seconds": "progress/seconds",
}


def scalars_of(entry):
    """{tag: value} of a line's finite numbers, as float32 holds them."""
    values = {key: finite(value) for key, value in entry.items() if key != "step" and is_number(value)}
    with np.errstate(over="ignore"):
        singles = {key: float(np.float32(value)) for key, value in values.items()}
    return {TAGS.get(key, f"other/{key}"): value for key, value in singles.items() if np.isfinite(value)}


class GrowingMetrics:
    """The lines of metrics.jsonl, as far as they have been read."""

    def __init__(self, path):
        self.path = path
        self.begin_anew()

    def begin_anew(self):
        self._end = self._lines = 0
        self._last = b""  # the last line read: a file that was cut and has grown again has another there

    def read(self):
        """({step: entry} of the lines that are new, whether they begin with the first of the file). A line
        without an end is left for later; a file that is not there has no new lines."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._end - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self.begin_anew()
                    file.seek(0)
                contents = file.read()
        except FileNotFoundError:
            return {}, False
        is_first = self._end == 0
        *lines, rest = contents.split(b"\n")
        entries = [
            parse_metrics(self.path, number, line)
            for number, line in enumerate(lines, self._lines + 1)
            if line.strip()
        ]
        if lines:
            self._last = lines[-1] + b"\n"
            self._end += len(contents) - len(rest)
            self._lines += len(lines)
        return {entry["step"]: entry for entry in entries if is_count(entry.get("step"))}, is_first


class Export:
    """A run and its event files."""

    def __init__(self, run, events):
        self.run, self.events = run, events
        self.metrics = GrowingMetrics(run / METRICS)
        self.origin = time.time()  # when the run's own count of seconds began, in seconds since 1970
        self.added = 0

    def is_finished(self):
        return (self.run / "summary.json").exists()

    def update(self):
        """Adds what is new. Returns the step from which on what was there is replaced, or None."""
        entries, is_whole = self.metrics.read()
        if not is_whole and min(entries, default=math.inf) <= self._last_step():
            self.metrics.begin_anew()
            entries, is_whole = self.metrics.read()
        wanted = {step: values for step, entry in entries.items() if (values := scalars_of(entry))}
        replaced = self._cut_what_differs(wanted) if is_whole else None
        if is_whole:
            self.origin = self._find_origin(entries)
        self._add_config()
        last = self._last_step()
        for step in sorted(step for step in wanted if step > last):
            self.events.add_scalars(step, self._wall_time(entries[step]), wanted[step])
            self.added += 1
        self.events.flush()
        return replaced

    def _last_step(self):
        return max(self.events.scalars, default=-1)

    def _cut_what_differs(self, wanted):
        """Takes back the steps from the first on that the event files do not have as the run has them."""
        written, last = self.events.scalars, self._last_step()
        steps = (step for step in written.keys() | wanted.keys() if step <= last)
        first = min((step for step in steps if written.get(step) != wanted.get(step)), default=None)
        if first is not None:
            self.events.cut(first)
        return first

    def _find_origin(self, entries):
        """By the last step that is written already, else so that the last line is as old as the file."""
        seconds = {step: finite(entry.get("seconds")) for step, entry in entries.items()}
        seconds = {step: value for step, value in seconds.items() if not np.isnan(value)}
        written = max(self.events.wall_times.keys() & seconds.keys(), default=None)
        if written is not None:
            return self.events.wall_times[written] - seconds[written]
        changed = self.metrics.path.stat().st_mtime if entries else time.time()
        return changed - (seconds[max(seconds)] if seconds else 0)

    def _wall_time(self, entry):
        seconds = finite(entry.get("seconds"))
        return self.origin + (0 if np.isnan(seconds) else seconds)

    def _add_config(self):
        path = self.run / "config.toml"
        if path.exists():
            text = read_bytes(path, LARGEST_CONFIG).decode(errors="replace")
            self.events.add_text(max(self._last_step(), 0), self.origin, "config", text)


def update_all(exports):
    for export in exports:
        replaced = export.update()
        if replaced is not None:
            console.say(f"{export.events.path}: metrics.jsonl has changed from step {replaced} on: replaced")


def follow(exports, interval):
    """Until all have finished, or Ctrl-C."""
    try:
        while True:
            have_finished = all(
                [export.is_finished() for export in exports]
            )  # before the last lines are read
            update_all(exports)
            if have_finished:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        console.ignore_stops()
        console.say("stopped; the same command goes on")


def parse_arguments(words):
    parser = console.Parser(
        prog="export_tensorboard.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--out", type=Path, metavar="LOGDIR", required=True, help="folder of the event files")
    parser.add_argument("--follow", action="store_true", help="go on until all runs have finished, or Ctrl-C")
    parser.add_argument(
        "--interval", type=float, metavar="S", default=2.0, help="seconds between two looks (default: 2)"
    )
    arguments = parser.parse_args(words)
    if not 0 < arguments.interval < 1e6:
        raise UsageError(f"--interval {arguments.interval:g}: expected a number of seconds above 0")
    return arguments


def is_about_to_begin(run):
    """Whether the folder holds nothing but the lock of a trainer before its first step."""
    return run.is_dir() and all(path.name.startswith(".") for path in run.iterdir())


def check_arguments(arguments):
    for run in arguments.runs:
        if not (arguments.follow and is_about_to_begin(run)):
            check_run_folder(run)
    names = [run.resolve().name for run in arguments.runs]
    if twice := {name for name in names if names.count(name) > 1}:
        which = console.some(sorted(twice))
        raise UsageError(f"runs of one name ({which}) would share a folder; give each an --out of its own")
    if arguments.out.exists() and not arguments.out.is_dir():
        raise UsageError(f"--out {arguments.out}: is not a folder")


def open_events(path):
    try:
        from tensorboard_events import EventFolder
    except ImportError as missing:
        raise ScriptError(f"{missing}. Install TensorBoard: pip install -r {REQUIREMENTS}") from None
    return EventFolder(path)


def run(words):
    arguments = parse_arguments(words)
    check_arguments(arguments)
    with ExitStack() as opened:
        exports = []
        for folder in arguments.runs:
            events = open_events(arguments.out / folder.resolve().name)
            opened.callback(events.close)
            exports.append(Export(folder, events))
        if arguments.follow:
            follow(exports, arguments.interval)
        else:
            update_all(exports)
        for export in exports:
            steps = console.count(len(export.events.scalars), "step")
            console.say(f"{export.events.path}: {steps}, {export.added:,} of them new")


def main(words=None):
    return console.run_script("export_tensorboard.py", lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
