#!/usr/bin/env python3
"""Tables of a GPU check: dev/gpu_table.py dev/results/gpu_NAME.json > dev/results/gpu_NAME.md"""

import json
import sys

from gpu_check_report import sections_of, training


def attention(check):
    """(d_h, T, causal, pass, prior, deterministic) -> TFLOP/s of ours; (backend, d_h, T, causal, pass) -> of
    PyTorch's."""
    ours, torch = {}, {}
    for section in check["kernels"]["result"]["sections"]:
        for row in section["results"]:
            if row["name"] in ("attention_forward", "attention_backward"):
                direction = row["name"].split("_")[1]
                key = (
                    row["d_h"],
                    row["T"],
                    row["causal"],
                    direction,
                    row["prior"],
                    row.get("deterministic", True),
                )
                ours[key] = row["tflops_per_second"]
    for row in check.get("torch", {}).get("result", {}).get("results", []):
        for direction in ("forward", "backward"):
            torch[row["backend"], row["d_h"], row["T"], row["causal"], direction] = row.get(
                f"{direction}_tflops_per_second"
            )
    return ours, torch


def number(value):
    return "-" if value is None else f"{value:.0f}"


def print_attention(check):
    ours, torch = attention(check)
    print("## Attention, TFLOP/s\n")
    print(
        "bf16, B T = 16,384, H d_h = 2,048; FLOPs 4 B T^2 H d_h, half if causal, 2.5 times that backward. "
        "*prior*: slope, lanes and their gradients.\n"
    )
    print(
        "| d_h | T | | forward | with prior | FlashAttention-2 | cuDNN "
        "| backward | with prior | atomic dQ | with prior | FlashAttention-2 | cuDNN |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for d_h, length, causal in sorted({key[:3] for key in ours}, key=lambda k: (k[0], not k[2], k[1])):
        shape = (d_h, length, causal)
        cells = [ours.get((*shape, "forward", prior, True)) for prior in (False, True)]
        cells += [torch.get((backend, *shape, "forward")) for backend in ("flash", "cudnn")]
        cells += [
            ours.get((*shape, "backward", prior, deterministic))
            for deterministic in (True, False)
            for prior in (False, True)
        ]
        cells += [torch.get((backend, *shape, "backward")) for backend in ("flash", "cudnn")]
        print(
            f"| {d_h} | {length:,} | {'causal' if causal else 'full'} | "
            + " | ".join(map(number, cells))
            + " |"
        )


def print_kernels(check):
    print("\n## Other kernels\n")
    print("| kernel | shape | microseconds | GB/s | TFLOP/s |\n|---|---|---|---|---|")
    shown = ("model", "layer", "tokens", "parameters", "bytes", "d_h", "T")
    for section in check["kernels"]["result"]["sections"]:
        for row in section["results"]:
            if row["name"] in ("attention_forward", "attention_backward"):
                continue
            shape = ", ".join(
                f"{row[key]:,}" if isinstance(row[key], int) else row[key] for key in shown if key in row
            )
            rates = [number(row.get(key)) for key in ("gigabytes_per_second", "tflops_per_second")]
            print(f"| {row['name']} | {shape} | {row['microseconds']:,.0f} | " + " | ".join(rates) + " |")


def print_sections(check):
    print("| part | result | seconds |\n|---|---|---|")
    for name, section in sections_of(check).items():
        lines = [line.strip("= ") for line in section.get("output", "").splitlines()]
        said = [
            line
            for line in lines
            if line.startswith(("All tests", "ERROR SUMMARY", "RACECHECK SUMMARY", "trained"))
        ]
        outcome = "passed" if section["exit"] == 0 else "FAILED"
        if "not_run" in section:
            outcome, said = "not run", [section["not_run"]]
        print(f"| {name} | {outcome}. {'; '.join(said)} | {section['seconds']} |")
    print()


def main(words=None):
    (file,) = words or sys.argv[1:]
    check = json.load(open(file))
    print(f"# {check['gpu'].split(',')[0]}\n")
    print(
        f"`{check['command']}` at {check['commit']}, {check['date']}, {check['gpu']}. "
        f"From [the JSON]({file.split('/')[-1]}) by `dev/gpu_table.py`.\n"
    )
    print_sections(check)
    if lines := training(check):
        print("\n".join(lines))
    if "kernels" in check:
        print_attention(check)
        print_kernels(check)


if __name__ == "__main__":
    main()
