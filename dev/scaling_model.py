#!/usr/bin/env python3
"""How training should scale over many GPUs: a model, nothing of it measured on several GPUs.

    dev/scaling_model.py                                     c4_125m and fineweb_1b on 1 to 512 H100
    dev/scaling_model.py --inputs                            the numbers it rests on, and where they are from
    dev/scaling_model.py --set network_gpu=22 --wire bf16    another network; gradients travel in bf16
    dev/scaling_model.py --set-from FILE.toml --json FILE    inputs from a file (NAME = VALUE); rows as JSON

The units, bytes and buckets are the program's (dev/scaling_layout.py). A unit's share of a step's time is
that of the timed kernels (dev/predict_step.py); the sum is the goal of one H100. A step is simulated unit by
unit (dev/scaling_step.py). Where dev/results/*.json have measured runs on several GPUs, they stand beside the
model.
"""

import argparse
import json
import re
import sys
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import predict_step
from predict_step import MODELS, REPOSITORY, print_table
from scaling_layout import model_buckets
from scaling_step import (
    Options,
    Work,
    cluster_of,
    gather_stages,
    in_a_row,
    reduce_stages,
    report,
    steady_step,
    step_without_overlap,
    with_costs,
)

RESULTS = REPOSITORY / "dev/results"
GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MATTERS = 0.03  # of a step: less is no limit
NCCL = "NCCL 2.28, src/graph/tuning.cc"


@dataclass(frozen=True)
class Input:
    value: float
    unit: str
    source: str


INPUTS = {
    "gpus_per_node": Input(8, "GPUs", "DGX and HGX H100"),
    "nvlink_ring": Input(355, "GB/s", "ring in a node, as others measured it (350 to 360)"),
    "nvlink_all_to_all": Input(320, "GB/s", "assumed, a tenth below the ring; not measured"),
    "network_gpu": Input(45, "GB/s a GPU", "400 Gb/s a GPU, at 90 %"),
    "network_ring": Input(330, "GB/s", "ring over nodes of 8 such GPUs; others: 340 at best, 256 GPUs"),
    "memory": Input(2950, "GB/s", "dev/results, H100: copies and casts 3,010 to 3,050, AdamW 2,952"),
    "adamw": Input(2950, "GB/s", "dev/results, H100: adamw, 30 bytes a parameter"),
    "call": Input(8.4, "us", f"{NCCL}: base of a ring, Simple"),
    "nvlink_step": Input(3.4, "us", f"{NCCL}: step of a ring over NVLink, Simple (AMD hosts: 6 among nodes)"),
    "network_step": Input(14, "us", f"{NCCL}: step of a ring over a network, Simple"),
    "pat_call": Input(8, "us", f"{NCCL}: base of PAT (all-gather, one GPU a node)"),
    "pat_rank": Input(2.8, "us a rank", f"{NCCL}: PAT's linear part"),
    "small_call": Input(6.6, "us", f"{NCCL}: base of a ring, LL"),
    "small_nvlink_step": Input(0.6, "us", f"{NCCL}: step over NVLink, LL"),
    "small_network_step": Input(2.7, "us", f"{NCCL}: step over a network, LL"),
    "peer": Input(1, "us a rank", "assumed: one more peer of an all-to-all; not measured"),
    "launch": Input(4, "us", "assumed: start and end of a kernel between transfers; not measured"),
    "kernel": Input(4, "us", "assumed: start and end of a kernel of the passes; not measured"),
    "kernels_of_block": Input(
        40, "kernels", "22 (gpt) and 24 (llama) operations in a profile, of about 1.7 kernels"
    ),
    "kernels_outside": Input(20, "kernels", "8 operations outside the blocks, the head in chunks"),
    "c4_125m_speed": Input(537e3, "tokens/s", "goal of one H100: timed kernels, attention as cuDNN's"),
    "c4_125m_micro_batch": Input(16, "sequences", "of that goal"),
    "fineweb_1b_speed": Input(72e3, "tokens/s", "goal of one H100: the same"),
    "fineweb_1b_micro_batch": Input(8, "sequences", "of that goal"),
}
# What would be gone if something were free: the inputs that say how much it costs.
FREE = {
    "too few tokens a GPU": {"kernel": 0.0},
    "latency": {name: 0.0 for name, i in INPUTS.items() if i.unit.startswith("us") and name != "kernel"},
    "network bandwidth": {"network_gpu": 1e9, "network_ring": 1e9},
    "NVLink bandwidth": {"nvlink_ring": 1e9, "nvlink_all_to_all": 1e9},
    "the update": {"adamw": 1e9},
}
TAIL = "embedding tail"
OPTIMIZER = ("gradient_norm", "squared_sums", "adamw", "set_zero")


class Wrong(Exception):
    """What was asked for makes no sense, in words for the user."""


def inputs_of(changes):
    """name -> value as attributes. Throws Wrong for a name that is none."""
    for name, value in changes.items():
        if name not in INPUTS:
            raise Wrong(f"there is no input {name}: --inputs lists them")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise Wrong(f"input {name} is {value!r}: a number of at least 0 is wanted")
    return SimpleNamespace(**{name: changes.get(name, entry.value) for name, entry in INPUTS.items()})


@dataclass(frozen=True)
class Preset:
    """A preset's dimensions, and how the time of its timed kernels is spread."""

    name: str
    config: dict
    length: int
    batch: int
    layers: int
    shares: dict  # embedding, block, head -> (forward, backward), of a micro-batch; sum with all blocks: 1


def unit_of(operation):
    if operation.endswith(" head") or operation.startswith(("cross_entropy", "add_loss")):
        return "head"
    return "embedding" if operation.startswith("embedding_") else "block"


def shares_of(times, layers):
    """`times`: operation -> ms of a micro-batch."""
    sums = {unit: [0.0, 0.0] for unit in ("embedding", "block", "head")}
    counted = {name: ms for name, ms in times.items() if name not in OPTIMIZER}
    for name, milliseconds in counted.items():
        sums[unit_of(name)]["backward" in name] += milliseconds / sum(counted.values())
    sums["block"] = [share / layers for share in sums["block"]]
    return {unit: tuple(pair) for unit, pair in sums.items()}


def preset_of(name, kernels):
    config, model = predict_step.preset_config(name), predict_step.preset(name)
    shares = shares_of(predict_step.predict(kernels, model), model.layers)
    return Preset(name, config, model.length, model.batch, model.layers, shares)


def micro_batch_ms(x, preset, sequences):
    """Of so many sequences: each kernel has a fixed part; the rest grows with the tokens."""
    speed, reference = getattr(x, f"{preset.name}_speed"), getattr(x, f"{preset.name}_micro_batch")
    fixed = x.kernel / 1e3 * (preset.layers * x.kernels_of_block + x.kernels_outside)
    goal = 1e3 * reference * preset.length / speed
    return fixed + (goal - fixed) * sequences / reference


def work_of(x, preset, sequences):
    """Of a GPU with so many sequences a step, in the largest micro-batches up to the goal's."""
    most = int(getattr(x, f"{preset.name}_micro_batch"))
    micro_batch = max(size for size in range(1, most + 1) if sequences % size == 0)
    milliseconds = micro_batch_ms(x, preset, micro_batch)
    units = [preset.shares["head"], *[preset.shares["block"]] * preset.layers, preset.shares["embedding"]]
    forward, backward = (tuple(share[i] * milliseconds for share in units) for i in (0, 1))
    return Work(forward, backward, sequences // micro_batch)


def sequences_of(preset, gpus, chosen=0):
    """Of a step, all GPUs together: the preset's, or 4 a GPU where those are too few."""
    sequences = chosen or (preset.batch if preset.batch % gpus == 0 else 4 * gpus)
    if sequences % gpus:
        raise Wrong(f"{sequences} sequences a step cannot be shared equally by {gpus} GPUs")
    return sequences


def simulated(x, preset, gpus, sequences, options, tied=True):
    """(work, buckets with their costs, time of the report, Step). Without `tied` the embedding's gradient is
    complete where the head's is."""
    cluster = cluster_of(gpus, x.gpus_per_node)
    work = work_of(x, preset, sequences // gpus)
    buckets = model_buckets(preset.config, gpus, options.bucket_mib << 20)
    costs = [with_costs(x, bucket, cluster, options) for bucket in buckets]
    if not tied:
        embedding = preset.layers + 1
        early = [0 if c.first_unit == embedding else min(c.ready_unit, embedding - 1) for c in costs]
        costs = [replace(cost, ready_unit=unit) for cost, unit in zip(costs, early)]
    reporting = report(x, buckets, cluster)
    return work, costs, reporting, steady_step(work, costs, reporting, options.streams)


def gains(x, preset, gpus, sequences, options):
    """[(what, share of the step that would be gone if it were free)], the largest first."""
    total = simulated(x, preset, gpus, sequences, options)[3].total
    shorter = {
        what: simulated(SimpleNamespace(**vars(x) | free), preset, gpus, sequences, options)[3].total
        for what, free in FREE.items()
    }
    if gpus > 1:
        shorter[TAIL] = simulated(x, preset, gpus, sequences, options, tied=False)[3].total
    return sorted(((what, 1 - less / total) for what, less in shorter.items()), key=lambda pair: -pair[1])


def limit_of(ordered_gains):
    """What limits a row, in words."""
    first = [f"{what} {100 * gain:.0f} %" for what, gain in ordered_gains if gain >= MATTERS]
    if first:
        return ", ".join(first[:3])
    what, gain = ordered_gains[0]
    return f"compute (then: {what} {100 * gain:.1f} %)"


def transfers(x, preset, gpus, options):
    """name -> ms of a transfer of all buckets, back to back, in each of its forms."""
    cluster = cluster_of(gpus, x.gpus_per_node)
    buckets = model_buckets(preset.config, gpus, options.bucket_mib << 20)

    def total(stages_of, **changes):
        chosen = replace(options, **changes)
        return in_a_row([stages_of(x, bucket, cluster, chosen) for bucket in buckets], options.streams)

    return {
        "ring_ms": total(reduce_stages, reduce="nccl"),
        "ordered_one_level_ms": total(reduce_stages, reduce="ordered", levels=1),
        "ordered_two_levels_ms": total(reduce_stages, reduce="ordered", levels=2),
        "gather_ms": total(gather_stages),
    }


def row_of(x, preset, gpus, options, chosen=0):
    sequences = sequences_of(preset, gpus, chosen)
    work, buckets, reporting, step = simulated(x, preset, gpus, sequences, options)
    apart = step_without_overlap(work, buckets, reporting, options.streams)
    ordered_gains = gains(x, preset, gpus, sequences, options)
    return {
        "preset": preset.name,
        "gpus": gpus,
        "sequences": sequences,
        "micro_batches": work.micro_batches,
        "compute_ms": work.total,
        **transfers(x, preset, gpus, options),
        "tail_ms": step.tail,
        "step_ms": step.total,
        "exposed_ms": step.total - work.total,
        "exposed": 1 - work.total / step.total,
        "without_overlap": 1 - work.total / apart,
        "tokens_per_second": 1e3 * sequences * preset.length / step.total,
        "gains": dict(ordered_gains),
        "limit": limit_of(ordered_gains),
    }


def table_of(x, preset, numbers, options, chosen=0):
    """A row for each number of GPUs, with the efficiency against one GPU and the preset's batch."""
    alone = row_of(x, preset, 1, options)["tokens_per_second"]
    rows = [row_of(x, preset, gpus, options, chosen) for gpus in numbers]
    return [row | {"efficiency": row["tokens_per_second"] / row["gpus"] / alone} for row in rows]


def measured_points(folder):
    """(preset, gpus, sequences) -> tokens/s, of the sections c4_125m_8_gpus and the like in the JSON of
    dev/gpu_check.sh. A later file replaces an earlier one; nothing that ran without a GPU counts."""
    points = {}
    for file in sorted(folder.glob("*.json")):
        check = json.loads(file.read_text())
        if not isinstance(check, dict) or str(check.get("gpu", "none")).startswith("none"):
            continue
        for name, section in check.items():
            found = re.fullmatch(rf"({'|'.join(MODELS)})_(\d+)_gpus", name)
            if found and "result" in section:
                result = section["result"]
                points[found[1], int(found[2]), result["batch"]] = result["tokens_per_second"]
    return points


def with_measured(rows, points):
    """The rows, with `measured_tokens_per_second` where there is a point."""
    found = [points.get((row["preset"], row["gpus"], row["sequences"])) for row in rows]
    return [row | ({"measured_tokens_per_second": speed} if speed else {}) for row, speed in zip(rows, found)]


def speed_text(tokens_per_second):
    millions = tokens_per_second / 1e6
    return (
        f"{millions:.0f} M"
        if millions >= 10
        else f"{millions:.1f} M"
        if millions >= 1
        else f"{millions:.2g} M"
    )


def milliseconds_text(value):
    if value == 0:
        return "-"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def measured_text(row):
    return speed_text(row["measured_tokens_per_second"]) if "measured_tokens_per_second" in row else "-"


COLUMNS = {
    "GPUs": lambda row: str(row["gpus"]),
    "sequences": lambda row: f"{row['sequences']:,}",
    "compute": lambda row: milliseconds_text(row["compute_ms"]),
    "ring": lambda row: milliseconds_text(row["ring_ms"]),
    "ordered, one level": lambda row: milliseconds_text(row["ordered_one_level_ms"]),
    "two": lambda row: milliseconds_text(row["ordered_two_levels_ms"]),
    "gather": lambda row: milliseconds_text(row["gather_ms"]),
    "tail": lambda row: milliseconds_text(row["tail_ms"]),
    "exposed": lambda row: f"{milliseconds_text(row['exposed_ms'])} = {100 * row['exposed']:.0f} %",
    "without overlap": lambda row: f"{100 * row['without_overlap']:.0f} %",
    "tokens/s": lambda row: speed_text(row["tokens_per_second"]),
    "efficiency": lambda row: f"{100 * row['efficiency']:.0f} %",
    "measured tokens/s": measured_text,
    "what limits it": lambda row: row["limit"],
}


def print_rows(preset, rows, options):
    any_measured = any("measured_tokens_per_second" in row for row in rows)
    columns = [name for name in COLUMNS if any_measured or not name.startswith("measured")]
    words = [f"{options.reduce} reduction", f"{options.wire} on the wire"]
    words += ["one level"] if options.levels == 1 else []
    words += ["a stream for each level"] if options.streams == 2 else []
    print(f"**{preset}**, {', '.join(words)}; ms a step\n")
    print_table(columns, [[COLUMNS[name](row) for name in columns] for row in rows])
    print()


def print_inputs(x):
    print_table(
        ["input", "value", "unit", "from"],
        [[name, f"{getattr(x, name):g}", entry.unit, entry.source] for name, entry in INPUTS.items()],
    )


def numbers(text):
    return [int(part) for part in text.split(",")]


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=MODELS, action="append", help="(default: both)")
    parser.add_argument("--gpus", type=numbers, default=GPUS, metavar="N,N,...")
    parser.add_argument("--sequences", type=int, default=0, help="a step (default: the preset's, or 4 a GPU)")
    parser.add_argument("--wire", choices=("f32", "bf16"), default="f32", help="gradients travel in it")
    parser.add_argument("--reduce", choices=("ordered", "nccl"), default="ordered")
    parser.add_argument("--levels", type=int, choices=(1, 2), default=2, help="among several nodes")
    parser.add_argument("--streams", type=int, choices=(1, 2), default=1, help="2: one for each level")
    parser.add_argument("--bucket-mib", type=int, default=0, help="(default: the program's)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another input")
    parser.add_argument("--set-from", type=Path, metavar="FILE", help="inputs from a TOML file")
    parser.add_argument("--inputs", action="store_true", help="print the inputs and where they are from")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of measured runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write inputs, options and rows as well")
    return parser.parse_args(words)


def changes_of(arguments):
    changes = tomllib.loads(arguments.set_from.read_text()) if arguments.set_from else {}
    for setting in arguments.set:
        name, _, value = setting.partition("=")
        try:
            changes[name] = float(value)
        except ValueError:
            raise Wrong(f"--set {setting}: NAME=VALUE with a number is wanted") from None
    return changes


def run(arguments):
    x = inputs_of(changes_of(arguments))
    if arguments.inputs:
        print_inputs(x)
        return
    chosen = ("wire", "reduce", "levels", "streams", "bucket_mib")
    options = Options(**{name: getattr(arguments, name) for name in chosen})
    kernels = predict_step.Kernels([json.loads(path.read_text()) for path in predict_step.DEFAULT])
    points, rows = measured_points(arguments.results), []
    for preset in (preset_of(name, kernels) for name in arguments.preset or MODELS):
        table = with_measured(table_of(x, preset, arguments.gpus, options, arguments.sequences), points)
        print_rows(preset.name, table, options)
        rows += table
    if not points:
        print("A model: no run on several GPUs has been measured.")
    if arguments.json:
        inputs = {name: asdict(replace(entry, value=getattr(x, name))) for name, entry in INPUTS.items()}
        told = {"measured": bool(points), "inputs": inputs, "options": asdict(options), "rows": rows}
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")


def main(words=None):
    try:
        run(arguments_of(words))
    except (Wrong, ValueError, OSError, predict_step.Missing) as problem:
        sys.exit(f"scaling_model: {problem}")


if __name__ == "__main__":
    main()
