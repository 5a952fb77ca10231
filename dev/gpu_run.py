#!/usr/bin/env python3
"""One training run of dev/gpu_check.sh: dev/gpu_run.py --out RUN [options] -- PROGRAM WORDS...

Runs PROGRAM WORDS... --out RUN, takes the device's memory meanwhile, and prints a JSON of what the run was,
which RUN.json keeps for dev/gpu_compare.py. What the program prints goes to stderr. Exits with the program's
code, with 0 if it ended as was asked for. Needs nothing but Python and, on a GPU, nvidia-smi.
"""

import argparse
import json
import math
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

WARM_UP = 2  # steps that are no speed, as in train/speed
STOPPED = 4  # the program's exit code after a signal that it obeyed
POLL = 0.005  # seconds
QUERY = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits", "-lms", "50"]


class NoMeasurement(Exception):
    """The device's memory cannot be read."""


class GpuMemory:
    """By how much the memory in use rose, on the GPU where it rose most."""

    def __init__(self):
        self.first, self.peak, self.problem = {}, {}, ""
        self.begun = threading.Event()
        try:
            self.query = subprocess.Popen(QUERY, stdout=subprocess.PIPE, text=True)
        except OSError as problem:
            raise NoMeasurement(f"nvidia-smi: {problem}") from problem
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.begun.wait(20) or self.problem:
            self.close()
            raise NoMeasurement(f"nvidia-smi tells no memory: {self.problem or 'no line in 20 s'}")

    def _read(self):
        for line in self.query.stdout:
            try:
                index, used = (int(word) for word in line.split(","))
            except ValueError:
                self.problem = line.strip()
                break
            self.first.setdefault(index, used)
            self.peak[index] = max(used, self.peak.get(index, 0))
            self.begun.set()
        self.problem = self.problem or ("" if self.first else "it ended")
        self.begun.set()

    def sample(self, pid):
        pass

    def close(self):
        self.query.terminate()
        self.query.wait()
        self.reader.join(5)

    def peak_bytes(self):
        return max(self.peak[index] - self.first[index] for index in self.peak) << 20


class HostMemory:
    """The largest memory of the process itself: of devices that are no GPU."""

    def __init__(self):
        self.peak = 0

    def sample(self, pid):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:  # it has ended
            return
        for line in lines:
            if line.startswith("VmHWM:"):
                self.peak = int(line.split()[1]) << 10

    def close(self):
        pass

    def peak_bytes(self):
        return self.peak


def read_metrics(run):
    """The lines of metrics.jsonl, [] where there is none. A line that a killed run broke off is left out."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]


def trouble_in(lines):
    """What is wrong with the first step whose loss or update is no good, or ''."""
    for line in lines:
        if line["loss"] is None or not math.isfinite(line["loss"]):  # JSON has null for what is not finite
            return f"the loss of step {line['step']} is not finite"
        if "skipped" in line:
            return f"the update of step {line['step']} was skipped: {line['skipped']}"
    return ""


def run_program(words, run, memory, after, stop_by):
    """Runs the program; sends it the signal `stop_by` once `after` steps are logged. (exit code, whether the
    signal was sent)."""
    process = subprocess.Popen(words, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    sent = False
    try:
        while process.poll() is None:
            memory.sample(process.pid)
            if stop_by and not sent and len(read_metrics(run)) >= after:
                process.send_signal(stop_by)
                sent = True
            time.sleep(POLL)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode, sent


def speed_of(lines):
    """Tokens a second, and MFU where the program knows it, of the steps after the warm-up."""
    counted = lines[WARM_UP:] or lines
    tokens = [now["tokens"] - before for now, before in zip(lines, [0, *(line["tokens"] for line in lines)])]
    tokens = tokens[-len(counted) :]
    seconds = sum(t / line["tokens_per_second"] for t, line in zip(tokens, counted))
    speed = {"tokens_per_second": sum(tokens) / seconds}
    last = counted[-1]
    if "mfu" in last:
        speed["mfu"] = last["mfu"] * speed["tokens_per_second"] / last["tokens_per_second"]
    return speed


def settings_of(run):
    config = tomllib.loads((run / "config.toml").read_text())
    keys = {"model": ("precision", "recompute", "epilogue"), "train": ("batch", "micro_batch", "cuda_graph")}
    return {key: config[section][key] for section in keys for key in keys[section]}


def report_of(run, lines, memory):
    report = settings_of(run)
    report |= {"steps": lines[-1]["step"], "first_loss": lines[0]["loss"], "last_loss": lines[-1]["loss"]}
    report |= speed_of(lines)
    report["memory"] = {"planned_bytes": lines[-1]["memory_bytes"], "peak_bytes": memory.peak_bytes()}
    return report


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="RUN", required=True, help="the run's folder")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--stop-after", type=int, metavar="N", help="SIGTERM after N steps: it saves and ends")
    ends.add_argument("--kill-after", type=int, metavar="N", help="SIGKILL after N steps: nothing is saved")
    parser.add_argument("program", nargs="+", metavar="PROGRAM WORDS")
    arguments = parser.parse_args(words)
    run, after = arguments.out, arguments.stop_after or arguments.kill_after
    stop_by = signal.SIGTERM if arguments.stop_after else signal.SIGKILL if arguments.kill_after else None
    wanted = {signal.SIGTERM: STOPPED, signal.SIGKILL: -signal.SIGKILL, None: 0}[stop_by]

    on_gpu = "--device cuda" in " ".join(arguments.program)
    try:
        memory = GpuMemory() if on_gpu else HostMemory()
    except NoMeasurement as problem:
        sys.exit(f"gpu_run: {problem}")
    try:
        code, sent = run_program([*arguments.program, "--out", str(run)], run, memory, after, stop_by)
    finally:
        memory.close()
    if code == 0 and stop_by:
        sys.exit(f"gpu_run: {run.name} ended by itself before it could be stopped after {after} steps")
    if code != wanted:
        print(f"gpu_run: {run.name} ended with code {code}, expected {wanted}", file=sys.stderr)
        sys.exit(code if code > 0 else 1)
    lines = read_metrics(run)
    if trouble := trouble_in(lines):
        sys.exit(f"gpu_run: {run.name}: {trouble}")
    report = report_of(run, lines[:after] if arguments.kill_after else lines, memory)
    if arguments.stop_after:
        report["stopped_after"] = lines[-1]["step"]
    text = json.dumps(report, indent=1)
    run.with_name(run.name + ".json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
