#!/usr/bin/env python3
"""Writes dev/results/occupancy.md from a build by nvcc: make cuda && .venv/bin/python dev/occupancy.py
[--build build-cuda] [--out FILE]"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from kernel_report import read_build  # noqa: E402

HEADER = """# Registers, shared memory and occupancy of the kernels

Written by `dev/occupancy.py` from what ptxas reports (`make cuda`). Threads and blocks per SM are those of
`__launch_bounds__`; "fit" is how many blocks an SM of the architecture holds, "limit" the resource that
allows no more. Occupancy: warps of those blocks / warps an SM can hold. Dynamic shared memory is what the
kernel states with `state_dynamic_shared` (empty: none).
"""
COLUMNS = (
    *("kernel", "architecture", "registers", "spills (bytes stored/loaded)", "static shared"),
    *("dynamic shared", "threads", "blocks stated", "fit", "occupancy", "limit"),
)


def row(kernel):
    by_resource = kernel.blocks_by_resource()
    fit = kernel.blocks_that_fit()
    limit = ", ".join(resource for resource, blocks in by_resource.items() if blocks == fit)
    dynamic = "" if kernel.dynamic_shared is None else kernel.dynamic_shared
    spills = (
        f"{kernel.spill_stores}/{kernel.spill_loads}" if kernel.spill_stores or kernel.spill_loads else "0"
    )
    return (
        f"| `{kernel.name}` | {kernel.architecture} | {kernel.registers} | {spills} "
        f"| {kernel.static_shared} | {dynamic} | {kernel.threads} "
        f"| {kernel.blocks or ''} | {fit} | {kernel.occupancy():.0%} | {limit} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build-cuda")
    parser.add_argument("--out", default="dev/results/occupancy.md")
    options = parser.parse_args()
    kernels = [kernel for kernel in read_build(options.build) if kernel.threads]
    if not kernels:
        sys.exit(f"{options.build} holds no kernels compiled by nvcc: run make cuda")
    lines = [HEADER]
    for source in sorted({kernel.source for kernel in kernels}):
        lines += [
            f"\n## {source}\n",
            "| " + " | ".join(COLUMNS) + " |",
            "|" + "---|" * len(COLUMNS),
            *(row(kernel) for kernel in kernels if kernel.source == source),
        ]
    Path(options.out).write_text("\n".join(lines) + "\n")
    print(f"{options.out}: {len(kernels)} kernels")


if __name__ == "__main__":
    main()
