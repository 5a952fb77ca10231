#!/usr/bin/env python3
"""What dev/gpu_check.sh wants of its runs, each a folder that dev/gpu_run.py filled:

    dev/gpu_compare.py same RUN RUN...             losses, models and optimizers, bit for bit
    dev/gpu_compare.py losses RUN OTHER            mean absolute difference of the losses
    dev/gpu_compare.py memory --context SMALL RUN  peak against plan; a small run shows the context's share
    dev/gpu_compare.py gaps RUN                    the device's idle time in a profile's trace

Prints a JSON; exits with 1, saying what differed, if the runs are not as wanted.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

from gpu_run import read_metrics, trouble_in

SHOWN = 10  # gaps that are listed
SAVED = ("model.safetensors", "optimizer.safetensors")


class Differs(Exception):
    """The runs are not as wanted."""


def metrics_of(run):
    lines = read_metrics(run)
    if not lines:
        raise Differs(f"{run.name} has no steps: it did not run")
    if trouble := trouble_in(lines):
        raise Differs(f"{run.name}: {trouble}")
    return lines


def saved_by(run, name):
    """The bytes of that file in the newest checkpoint."""
    files = sorted(run.glob(f"checkpoints/step_*/{name}"))
    if not files:
        raise Differs(f"{run.name} has no {name}: it saved none")
    return files[-1].read_bytes()


def tensors_of(file):
    """name -> bytes, of a safetensors file."""
    size = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + size])
    data = file[8 + size :]
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items() if "dtype" in entry}


def require_same_steps(first, second):
    a, b = metrics_of(first), metrics_of(second)
    for one, other in zip(a, b):
        for key in ("step", "loss", "grad_norm"):
            if one[key] != other[key]:
                raise Differs(
                    f"{first.name} and {second.name} differ from step {one['step']} on: "
                    f"{key} {one[key]!r} and {other[key]!r}"
                )
    if len(a) != len(b):
        raise Differs(f"{first.name} has {len(a)} steps, {second.name} {len(b)}")
    return len(a)


def require_same_file(first, second, name):
    one, other = saved_by(first, name), saved_by(second, name)
    if one == other:
        return
    a, b = tensors_of(one), tensors_of(other)
    different = [tensor for tensor in sorted(a.keys() | b.keys()) if a.get(tensor) != b.get(tensor)]
    raise Differs(
        f"{first.name} and {second.name} have the same losses, but their {name} differ: "
        f"{len(different)} of {len(a)} tensors" + (f", first {different[0]}" if different else "")
    )


def same(runs):
    first = runs[0]
    for other in runs[1:]:
        steps = require_same_steps(first, other)
        for name in SAVED:
            require_same_file(first, other, name)
    sizes = {name: len(saved_by(first, name)) for name in SAVED}
    return {"runs": [run.name for run in runs], "steps": steps, "bytes": sizes}


def losses(run, other, steps, within):
    a, b = metrics_of(run)[:steps], metrics_of(other)[:steps]
    for name, lines in ((run.name, a), (other.name, b)):
        if len(lines) < steps:
            raise Differs(f"{name} has {len(lines)} steps of the {steps} to compare")
    differences = [abs(one["loss"] - two["loss"]) for one, two in zip(a, b)]
    mean, largest = sum(differences) / steps, max(differences)
    worst = differences.index(largest) + 1
    if not mean <= within:
        raise Differs(
            f"the losses of {run.name} and {other.name} differ by {mean:.2g} in the mean of {steps} steps, "
            f"more than {within:g}; most at step {worst}, by {largest:.2g}"
        )
    return {
        "runs": [run.name, other.name],
        "steps": steps,
        "mean_absolute_difference": mean,
        "largest": largest,
        "at_step": worst,
        "within": within,
        "last_losses": [a[-1]["loss"], b[-1]["loss"]],
    }


def memory_of(run):
    try:
        memory = json.loads(run.with_name(run.name + ".json").read_text())["memory"]
    except OSError as problem:
        raise Differs(f"{run.name} did not run: its memory was not measured") from problem
    return memory["planned_bytes"], memory["peak_bytes"]


def memory(runs, small, within):
    planned, peak = memory_of(small)
    context = peak - planned
    result, wrong = {"context_bytes": context, "within": within, "runs": {}}, []
    for run in runs:
        planned, peak = memory_of(run)
        over = (peak - context - planned) / planned
        result["runs"][run.name] = {"planned_bytes": planned, "peak_bytes": peak, "over_plan": over}
        if not abs(over) <= within:
            wrong.append(
                f"{run.name}: {peak / 2**30:.2f} GiB at the peak without {context / 2**30:.2f} of the "
                f"context is {100 * over:+.1f} % of the {planned / 2**30:.2f} planned, "
                f"beyond {100 * within:g} %"
            )
    if wrong:
        raise Differs("; ".join(wrong))
    return result


def rows_of(trace):
    """(slices of the device by their starts, number of steps) of trace.json, in microseconds."""
    events = json.loads(trace.read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    slices = [event for event in events if event["ph"] == "X"]
    device = [event for event in slices if rows[event["tid"]].startswith("device")]
    steps = [e for e in slices if rows[e["tid"]].startswith("host") and e["name"].startswith("step ")]
    return sorted(device, key=lambda event: event["ts"]), len(steps)


def gaps_between(slices):
    """(microseconds, operation before, operation after) of each time in which no slice ran."""
    gaps, last = [], slices[0]
    for event in slices[1:]:
        idle = event["ts"] - (last["ts"] + last["dur"])
        if idle > 0:
            gaps.append((idle, last["name"], event["name"]))
        if event["ts"] + event["dur"] > last["ts"] + last["dur"]:
            last = event
    return gaps


def gaps(run):
    folder = run / "profile"
    try:
        slices, steps = rows_of(folder / "trace.json")
        operations = json.loads((folder / "operations.json").read_text())
    except OSError as problem:
        raise Differs(f"{run.name} has no profile: {problem}") from problem
    if not slices or not steps:
        raise Differs(f"{folder / 'trace.json'} has {len(slices)} operations in {steps} steps")
    found = gaps_between(slices)
    pairs = defaultdict(list)
    for idle, before, after in found:
        pairs[before, after].append(idle)
    by_pair = sorted(pairs.items(), key=lambda pair: -sum(pair[1]))
    span = max(event["ts"] + event["dur"] for event in slices) - slices[0]["ts"]
    return {
        "steps": steps,
        "step_microseconds": 1e6 * operations["step_seconds"],
        "span_microseconds": span / steps,
        "idle_microseconds": sum(idle for idle, _, _ in found) / steps,
        "gaps": len(found) / steps,
        "largest": [
            {"microseconds": idle, "after": before, "before": after}
            for idle, before, after in sorted(found, reverse=True)[:SHOWN]
        ],
        "most_idle": [
            {"microseconds": sum(idle) / steps, "gaps": len(idle) / steps, "after": before, "before": after}
            for (before, after), idle in by_pair[:SHOWN]
        ],
        "operations": operations,
    }


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    kind = kinds.add_parser("same")
    kind.add_argument("runs", nargs="+", type=Path)
    kind = kinds.add_parser("losses")
    kind.add_argument("run", type=Path)
    kind.add_argument("other", type=Path)
    kind.add_argument("--steps", type=int, required=True, help="how many are compared")
    kind.add_argument("--within", type=float, required=True, help="of the mean absolute difference")
    kind = kinds.add_parser("memory")
    kind.add_argument("runs", nargs="+", type=Path)
    kind.add_argument("--context", type=Path, required=True, dest="small", metavar="SMALL")
    kind.add_argument("--within", type=float, required=True, help="of the plan, 0.03 is 3 %%")
    kinds.add_parser("gaps").add_argument("run", type=Path)
    return vars(parser.parse_args(words))


def main(words=None):
    arguments = arguments_of(words)
    kind = {"same": same, "losses": losses, "memory": memory, "gaps": gaps}[arguments.pop("kind")]
    try:
        print(json.dumps(kind(**arguments), indent=1))
    except Differs as what:
        sys.exit(f"gpu_compare: {what}")


if __name__ == "__main__":
    main()
