#!/usr/bin/env python3
"""Makes ranks of a training run fail at random moments, resumes with another number of ranks each time, and
compares every step with a run that nothing interrupted.

    nice python dev/rank_faults.py [--faults 200] [--ranks 4] [--minutes 30] [--seed S] [--table FILE]

A fault strikes one rank, all of them or the launcher, during start-up, training or saving: SIGKILL, SIGSTOP,
an exit, no memory, a full disk, SIGTERM or SIGUSR1. Exits with 1 if a process stays for too long, something
half done is left, a restart fails, or a loss, a gradient norm or the final weights differ in one bit.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "test"))

import rank_runs  # noqa: E402

BINARY = Path(os.environ.get("TRAIN_GPT_GOAT", REPOSITORY / "train_gpt_goat"))
HEARTBEAT, START = 2, 5  # timeouts in seconds
SETTINGS = rank_runs.SETTINGS | {
    "distributed.heartbeat_timeout": HEARTBEAT,
    "distributed.start_timeout": START,
    "train.steps": 1200,
    "checkpoint.interval": 5,
    "checkpoint.keep": 2,
    "eval.interval": 50,
    "log.interval": 1000,
}
SLACK = 4  # seconds: the machine has other things to do
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGUSR1": signal.SIGUSR1}
# Seconds until all are gone. Before the ranks have met, the others wait for the start, or the launcher ends
# them.
LIMITS = defaultdict(lambda: 2, {"SIGSTOP": HEARTBEAT + 2} | dict.fromkeys(SIGNALS, 5))
BEFORE_THE_MEETING, LIMIT_BEFORE = ", before the ranks had met", START + 5
# Where the library strikes: a call, and how many of them a start may have before the fault.
PLACES = [
    ("call=wake", 300),
    ("call=send", 300),
    ("call=recv", 300),
    ("call=write;path=metrics.jsonl", 40),
    ("call=open;path=.step_", 30),
    ("call=pwrite;path=model.safetensors", 60),
    ("call=pwrite;path=optimizer.safetensors", 120),
    ("call=fsync;path=safetensors", 16),
    ("call=write;path=state.json", 8),
    ("call=fsync;path=/checkpoints$", 8),
    ("call=rename;path=/step_", 12),
    ("call=fallocate", 1),
    ("call=shm_open", 2),
    ("call=accept", 2),
    ("call=connect", 1),
]
# A save that fails, with the calls that may fail in each rank and in rank 0 alone.
SAVE_CALLS = ["call=pwrite;path=.step_", "call=fsync;path=.step_", "call=open;path=safetensors"]
SAVE_CALLS_OF_FIRST = [*SAVE_CALLS, "call=ftruncate;path=.step_", "call=write;path=state.json"]


class Wrong(Exception):
    """What must not be."""


@dataclass
class Fault:
    kind: str  # of the table
    ranks: int  # of this start
    rank: int  # that is struck; -1: the launcher or all
    place: str = ""  # for the library; empty: after `delay` seconds
    delay: float = 0.0
    early: bool = False  # before the ranks had met
    stagger: list = field(default_factory=list)  # a signal to all ranks, each so many seconds later

    def __str__(self):
        whom = f"rank {self.rank}" if self.rank >= 0 else "the launcher" if not self.stagger else "all"
        when = self.place or f"{self.delay:.3f} s after the start"
        return f"{self.kind} of {whom} of {self.ranks}, {when}"

    @property
    def signal(self):
        return getattr(signal, self.kind, signal.SIGKILL)

    def for_library(self):
        if not self.place:
            return ""
        action = {"exit": "exit:5", "no memory": "bad_alloc", "full disk": "error:ENOSPC"}.get(
            self.kind, f"signal:{int(self.signal)}"
        )
        return f"rank={self.rank};{self.place};do={action}"


def in_a_save(place):
    return any(word in place for word in (".step_", "/step_", "safetensors", "state.json", "/checkpoints"))


def draw(generator, most_ranks):
    ranks = generator.choice([n for n in (1, 2, 2, 4, 4) if n <= most_ranks])
    rank = generator.randrange(ranks)
    others = ["exit", "no memory", "full disk", "full disk", "launcher killed"]
    kind = generator.choice(["SIGKILL"] * 5 + ["SIGSTOP"] * 3 + others + [*SIGNALS])
    if ranks == 1 and kind in ("SIGSTOP", "launcher killed", "no memory"):
        kind = "SIGKILL"  # one rank has no launcher and nobody who waits for it
    delay = generator.uniform(0, 0.9)
    if kind == "launcher killed":
        return Fault(kind, ranks, -1, delay=delay)
    if kind in SIGNALS:
        whom = generator.randrange(3)
        if whom == 0 and ranks > 1:
            stagger = [generator.uniform(0, 0.05) for _ in range(ranks)]
            return Fault(kind, ranks, -1, delay=delay, stagger=stagger)
        return Fault(kind, ranks, rank if whom == 1 or ranks == 1 else -1, delay=delay)
    if kind == "full disk":
        call = generator.choice(SAVE_CALLS if rank else SAVE_CALLS_OF_FIRST)
        count = generator.randint(1, 6)
        return Fault(kind, ranks, rank, f"{call};count={count};times={generator.randint(1, 3)}", delay)
    if kind in ("SIGKILL", "SIGSTOP") and generator.random() < 0.5:
        return Fault(kind, ranks, rank, delay=delay)
    # No memory in a save is a save that fails, as on a full disk.
    places = [(place, most) for place, most in PLACES if kind != "no memory" or not in_a_save(place)]
    place, most = generator.choice(places)
    return Fault(kind, ranks, rank, f"{place};count={generator.randint(1, most)}", delay)


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Wrong(f"{what} took more than {seconds:.1f} s")
        time.sleep(0.002)


def pid_of(run, rank):
    if rank < 0:
        return run.processes[-1].pid
    return int((run.lines(rank, "pid") or [0])[0])


def send(run, rank, number):
    """To a rank as soon as it is there; -1: the launcher."""
    process = run.processes[-1]
    wait_for(lambda: pid_of(run, rank) or process.poll() is not None, 20, "the start of a rank")
    try:
        os.kill(pid_of(run, rank) or process.pid, number)
    except ProcessLookupError:
        pass


def strike(run, fault):
    """Returns the time of the fault; None if the run ended before."""
    process = run.processes[-1]
    if fault.place:
        end = time.monotonic() + 3
        while not run.fault_times() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        if run.fault_times():
            return min(run.fault_times())
    else:
        time.sleep(fault.delay)
    if process.poll() is not None:
        return None
    if fault.place:
        fault.place, fault.kind = "", "SIGKILL"  # that call did not come
    now = time.monotonic()
    if fault.stagger:
        for rank, pause in enumerate(fault.stagger):
            time.sleep(pause)
            send(run, rank, fault.signal)
    else:
        send(run, fault.rank, fault.signal)
    return now


def metrics(folder):
    """(step, loss, norm, validation) of each complete line."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    parsed = map(json.loads, lines)
    return [(line["step"], line["loss"], line["grad_norm"], line.get("val_loss")) for line in parsed]


def check_what_is_left(run, folder, unbroken):
    if run.segments_left():
        raise Wrong(f"left in /dev/shm: {run.segments_left()}")
    if folder.exists() and rank_runs.half_checkpoints(folder):
        raise Wrong(f"half checkpoints: {rank_runs.half_checkpoints(folder)}")
    steps = metrics(folder)
    for ours, theirs in zip(steps, unbroken, strict=False):
        if ours != theirs:
            raise Wrong(f"step {ours} was {theirs} in the unbroken run")
    return len(steps)


def check_code(run, fault, began, steps):
    """`began`, `steps`: those done before this start, and at its end."""
    code, _, errors = run.outcome[-1]
    number = int(fault.signal)
    if fault.kind in SIGNALS:
        if code not in (4, 128 + number, -number, 0, 1) or (code != 4 and steps > began + 1 and code != 0):
            raise Wrong(f"exit code {code}")
        return
    allowed = {"launcher killed": (-9,), "SIGSTOP": (1,), "exit": (5, 1), "no memory": (1, 134)}
    if code not in allowed.get(fault.kind, (-9, 137, 1)):
        raise Wrong(f"exit code {code}")
    told = re.search(r"rank \d+ \(pid" if fault.early else r"rank \d+ \(host \S+, pid \d+\)", errors)
    if fault.ranks > 1 and fault.kind != "launcher killed" and not told:
        raise Wrong("no line names the rank")


def end_after_full_disk(run, fault, folder):
    """The run goes on; a signal stops it, and its last save must do."""
    process = run.processes[-1]
    time.sleep(0.3)
    send(run, -1, signal.SIGTERM)
    run.wait()
    code, _, errors = run.outcome[-1]
    if "NOT saved" not in errors or "No space left on device" not in errors:
        raise Wrong(f"no warning of a save that failed (exit code {code})")
    if fault.ranks > 1 and not re.search(rf"NOT saved: rank {fault.rank} \(host", errors):
        raise Wrong("the warning does not name the rank")
    if code not in (0, 4) and process.returncode != 1:
        raise Wrong(f"exit code {code}")


def start(folder, fault):
    arguments = rank_runs.words(folder, "--resume", settings=SETTINGS)
    if fault.ranks > 1:
        return rank_runs.start_by_launcher(BINARY, fault.ranks, arguments, fault.for_library())
    return rank_runs.start_alone(BINARY, arguments, fault.for_library())


def one_fault(fault, folder, unbroken):
    """Seconds until all were gone; None if the run ended before the fault."""
    began = len(metrics(folder))
    with start(folder, fault) as run:
        try:
            struck = strike(run, fault)
            if struck is not None and fault.kind == "full disk":
                end_after_full_disk(run, fault, folder)
                taken = 0.0
            else:
                run.wait()
                pids = run.pids()
                wait_for(lambda: not any(map(rank_runs.exists, pids)), 10, "the end of the ranks")
                taken = time.monotonic() - struck if struck is not None else None
                fault.early = fault.ranks > 1 and not run.lines(0, "shm")
                limit = (LIMIT_BEFORE if fault.early else LIMITS[fault.kind]) + SLACK
                if taken is not None and taken > limit:
                    raise Wrong(f"it took {taken:.1f} s until all were gone")
            steps = check_what_is_left(run, folder, unbroken)
            if struck is None and run.outcome[-1][0] != 0:
                raise Wrong(f"exit code {run.outcome[-1][0]} without a fault")
            if struck is not None and fault.kind != "full disk":
                check_code(run, fault, began, steps)
            return taken
        except Wrong as wrong:
            output = run.outcome.get(-1, ("running", "", ""))
            raise Wrong(f"{fault}: {wrong}\n{output[1]}{output[2]}") from wrong


def finish(folder, ranks, whole):
    command = rank_runs.words(folder, "--resume", settings=SETTINGS)
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    result = subprocess.run([BINARY, *command], capture_output=True, text=True, check=False)
    if result.returncode:
        raise Wrong(f"the end of the run: exit code {result.returncode}\n{result.stderr}")
    difference = rank_runs.same_end(folder, whole)
    if difference or rank_runs.hidden(folder):
        raise Wrong(f"the end differs: {difference} {rank_runs.hidden(folder)}")


def table(times):
    lines = [
        "| fault | count | median seconds until all were gone | largest |",
        "|---|---|---|---|",
    ]
    for kind, seconds in sorted(times.items()):
        shown = f"{statistics.median(seconds):.2f} | {max(seconds):.2f}"
        if kind == "full disk":
            shown = "the run goes on | -"
        lines.append(f"| {kind} | {len(seconds)} | {shown} |")
    return "\n".join(lines)


def machine():
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"


def version():
    shown = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout
    return " ".join(shown.split("\n")[0].split())


def report(path, times, finished, words):
    count = sum(map(len, times.values()))
    path.write_text(
        f"""# Random faults of ranks

{count} faults in a row, each followed by a resume on 1, 2 or 4 ranks: no process, no shared memory and no
half checkpoint was left, every step's loss and gradient norm was that of the unbroken run, and so were the
{finished} final models and optimizer states, byte for byte. `heartbeat_timeout` was {HEARTBEAT} s.

{table(times)}

A rank that ends before it has met the others is noticed by the launcher alone, which gives these 5 s to end
by themselves; where it is stopped then, they wait for `start_timeout` ({START} s, rank 0: 5 s more).

`{words}`, {version()};
{machine()}, load {os.getloadavg()[2]:.0f} on average, at low priority
"""
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=4, help="the most of a start")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--table", type=Path, help="where to write the result, as Markdown")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    generator = random.Random(seed)
    words = f"dev/rank_faults.py --faults {options.faults} --ranks {options.ranks} --seed {seed}"
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        subprocess.run(
            [BINARY, *rank_runs.words(whole, settings=SETTINGS)], check=True, stdout=subprocess.DEVNULL
        )
        unbroken = metrics(whole)
        times, done, laps = defaultdict(list), 0, 0
        folder = Path(scratch) / "run_0"
        try:
            while done < options.faults and time.monotonic() < end:
                fault = draw(generator, options.ranks)
                taken = one_fault(fault, folder, unbroken)
                if taken is not None:
                    done += 1
                    times[fault.kind + (BEFORE_THE_MEETING if fault.early else "")].append(taken)
                    print(f"{done:4} {taken:6.2f} s  step {len(metrics(folder)):5}  {fault}", flush=True)
                if taken is None or len(metrics(folder)) >= SETTINGS["train.steps"] - 5:
                    finish(folder, generator.choice((1, 2, options.ranks)), whole)
                    laps += 1
                    folder = Path(scratch) / f"run_{laps}"
            finish(folder, generator.choice((1, 2, options.ranks)), whole)
        except Wrong as wrong:
            sys.exit(f"after {done} faults ({words}):\n{wrong}")
        print(table(times))
        if options.table:
            report(options.table, times, laps + 1, words)
        if done < options.faults:
            sys.exit(f"{done} of {options.faults} faults in {options.minutes} minutes")


if __name__ == "__main__":
    main()
