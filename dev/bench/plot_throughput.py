#!/usr/bin/env python3
"""Throughput against context length: runs bench_step at T = 256 .. 8192 with the same number of tokens a
step and draws the result.

  OMP_NUM_THREADS=2 plot_throughput.py BENCH_STEP dev/results/throughput_cpu.png

Writes the numbers beside the figure, as .json; with --redraw it draws them again without measuring.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LENGTHS = [256, 512, 1024, 2048, 4096, 8192]
SUMMARY = re.compile(
    r"attention (\w+), T (\d+), B (\d+): ([\d.]+) ms a step, ([\d.]+) tokens/s, ([\d.]+) GFLOP/s, ([\d.]+) %"
)
COLUMNS = ["attention", "length", "batch", "ms", "tokens_per_second", "gflops", "percent_of_sgemm"]


def measure(program, tokens, steps, clock):
    points, machine = [], ""
    for length in LENGTHS:
        command = [program, "--brief", "--attention", "both", "--clock", clock, "--warm-up", "1"]
        command += ["--steps", str(steps), "--length", str(length), "--batch", str(tokens // length)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(output, end="", flush=True)
        machine = output.splitlines()[0].split(";")[0]
        for match in SUMMARY.finditer(output):
            name, *numbers = match.groups()
            points.append(dict(zip(COLUMNS, [name, *map(float, numbers)])))
    return {"machine": machine, "clock": clock, "tokens_per_step": tokens, "points": points}


def draw(result, path):
    figure, (speed, share) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for attention, label, style in [("goat", "with the goat prior", "o-"), ("none", "without", "x--")]:
        points = [point for point in result["points"] if point["attention"] == attention]
        lengths = [point["length"] for point in points]
        speed.plot(lengths, [point["tokens_per_second"] for point in points], style, label=label)
        share.plot(lengths, [point["percent_of_sgemm"] for point in points], style, label=label)
    speed.set(ylabel="tokens/s", title="throughput")
    share.set(ylabel="% of the sgemm rate", title="FLOP/s, causal attention counted once")
    for axes in (speed, share):
        axes.set_xscale("log", base=2)
        axes.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
        axes.set(xlabel=f"context length T ({result['tokens_per_step']:,} tokens a step)")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(
        f"6 layers, C = 384, GPT-2 vocabulary, fp32: {result['machine']} ({result['clock']} time)", fontsize=9
    )
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", help="bench_step")
    parser.add_argument("figure", type=Path, help="the PNG to write")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens a step; a multiple of 8192")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each length")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="as in bench_step")
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    if options.tokens < LENGTHS[-1] or options.tokens % LENGTHS[-1]:
        sys.exit(f"--tokens {options.tokens}: expected a multiple of {LENGTHS[-1]}")
    numbers = options.figure.with_suffix(".json")
    if not options.redraw:
        numbers.write_text(
            json.dumps(measure(options.program, options.tokens, options.steps, options.clock), indent=1)
            + "\n"
        )
    draw(json.loads(numbers.read_text()), options.figure)


if __name__ == "__main__":
    main()
