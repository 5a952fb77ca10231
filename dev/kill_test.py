#!/usr/bin/env python3
"""Kills a training run with SIGKILL at random moments, resumes it each time, and compares the end with a run
that nothing interrupted.

    python dev/kill_test.py [--kills 100] [--seed S]

Kills are spread over start-up, training and saving (a checkpoint every third step keeps the program saving
much of the time). Exits with 1 if a restart fails, the losses differ in one bit, or the final weights do.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SETTINGS = {
    "model.width": 64,
    "train.steps": 3000,
    "train.batch": 4,
    "data.seq_len": 32,
    "checkpoint.interval": 3,
    "checkpoint.keep": 2,
    "eval.interval": 500,
    "log.interval": 1000,
}


def command(folder):
    flags = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    return [REPOSITORY / "train_gpt_goat", "--config", "copy_mixture", "--out", folder, "--resume", *flags]


def outcome(folder):
    """What must be the same: every step's loss and gradient norm, and the bytes of the final weights and
    optimizer state."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = max((folder / "checkpoints").glob("step_*"))
    files = {name: (last / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}
    return [(line["step"], line["loss"], line["grad_norm"]) for line in metrics], last.name, files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        whole, broken = Path(scratch) / "whole", Path(scratch) / "broken"
        start = time.monotonic()
        subprocess.run(command(whole), check=True, stdout=subprocess.DEVNULL)
        duration = time.monotonic() - start
        print(f"seed {seed}; an unbroken run takes {duration:.1f} s", flush=True)

        kills = starts = 0
        finished = False
        while kills < options.kills and not finished:
            starts += 1
            process = subprocess.Popen(command(broken), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                timeout = generator.uniform(0.01, 1.6 * duration / options.kills)
                _, stderr = process.communicate(timeout=timeout)
                if process.returncode != 0:
                    sys.exit(f"start {starts} failed with exit code {process.returncode}: {stderr.decode()}")
                finished = True
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
        subprocess.run(command(broken), check=True, stdout=subprocess.DEVNULL)
        ours, theirs = outcome(broken), outcome(whole)
        if ours != theirs:
            sys.exit(f"after {kills} kills the run differs from the unbroken one ({ours[1]} and {theirs[1]})")
        print(
            f"{kills} kills, {starts} starts: every restart resumed; losses, final weights and optimizer "
            "state are bitwise those of the unbroken run"
        )
        if kills < options.kills:
            sys.exit(f"the run finished after {kills} of {options.kills} kills: raise train.steps")


if __name__ == "__main__":
    main()
