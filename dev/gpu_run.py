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
POLL = 0.005  # seconds between two looks at the run
QUERIES = 0.1  # and at the GPU's memory
QUERY = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]


class Failed(Exception):
    """The run or its measurement failed; `code` is the exit code."""

    def __init__(self, what, code=1):
        super().__init__(what)
        self.code = code


def memory_in_use():
    """index of each GPU -> MiB"""
    try:
        told = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=True).stdout
        return {index: int(used) for index, used in (line.split(", ") for line in told.splitlines())}
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        raise Failed(f"nvidia-smi tells no memory: {problem}") from problem


class GpuMemory:
    """By how much the memory in use rose, on the GPU where it rose most. It rises from the least that was in
    use: the memory of a program that has just been killed may still be there at the start."""

    def __init__(self):
        self.least = self.peak = memory_in_use()
        self.problem = None
        self.ended = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def _watch(self):
        while not self.ended.wait(QUERIES):
            try:
                now = memory_in_use()
                self.least = {index: min(used, now[index]) for index, used in self.least.items()}
                self.peak = {index: max(used, now[index]) for index, used in self.peak.items()}
            except Failed as problem:
                self.problem = problem

    def sample(self, pid):
        pass

    def close(self):
        self.ended.set()
        self.watcher.join()

    def peak_bytes(self):
        if self.problem:
            raise self.problem
        return max(used - self.least[index] for index, used in self.peak.items()) << 20


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
    """The program's exit code; it is sent the signal `stop_by` once `after` steps are logged."""
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
    return process.returncode


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


def measured_run(program, run, stop_after, kill_after):
    """What the run was, if it ended as was asked for."""
    after = stop_after or kill_after
    stop_by = signal.SIGTERM if stop_after else signal.SIGKILL if kill_after else None
    wanted = {signal.SIGTERM: STOPPED, signal.SIGKILL: -signal.SIGKILL, None: 0}[stop_by]
    memory = GpuMemory() if "--device cuda" in " ".join(program) else HostMemory()
    try:
        code = run_program([*program, "--out", str(run)], run, memory, after, stop_by)
    finally:
        memory.close()
    if code == 0 and stop_by:
        raise Failed(f"{run.name} ended by itself before it could be stopped after {after} steps")
    if code != wanted:
        raise Failed(f"{run.name} ended with code {code}, expected {wanted}", code if code > 0 else 1)
    lines = read_metrics(run)
    if trouble := trouble_in(lines):
        raise Failed(f"{run.name}: {trouble}")
    report = report_of(run, lines[:after] if kill_after else lines, memory)
    return report | ({"stopped_after": lines[-1]["step"]} if stop_after else {})


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="RUN", required=True, help="the run's folder")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--stop-after", type=int, metavar="N", help="SIGTERM after N steps: it saves and ends")
    ends.add_argument("--kill-after", type=int, metavar="N", help="SIGKILL after N steps: nothing is saved")
    parser.add_argument("program", nargs="+", metavar="PROGRAM WORDS")
    arguments = parser.parse_args(words)
    run = arguments.out
    try:
        report = measured_run(arguments.program, run, arguments.stop_after, arguments.kill_after)
    except Failed as what:
        print(f"gpu_run: {what}", file=sys.stderr)
        sys.exit(what.code)
    text = json.dumps(report, indent=1)
    run.with_name(run.name + ".json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
