#!/usr/bin/env python3
"""Predicts the time of the tensor-core attention kernels from their tile shapes
(kernels/cuda/attention/attention_traits.cuh), as markdown.

  dev/attention_cost.py > dev/results/attention_prediction.md

A tile is one step of a block: its rows against one tile of the other side. For each tile the script counts
what the code does: matrix FLOPs, exponentials, FP32 instructions, bytes through shared memory. Tiles are
counted as the kernels walk them, those cut by the diagonal whole. Each resource gives a time if it were
alone; `overlapped` is the longest of them, `serial` the time if the tensor cores stand still while a warp
computes its softmax: tensor + exponentials + FP32. A kernel of mma.sync lies between, FlashAttention-2 close
to serial (see the last section).
"""

import heapq
import pathlib
import re
from dataclasses import dataclass

TRAITS = pathlib.Path(__file__).resolve().parent.parent / "kernels/cuda/attention/attention_traits.cuh"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS, WIDTH = 16384, 2048  # B T and H d_h, as in FlashAttention's benchmark


@dataclass(frozen=True)
class Gpu:
    name: str
    multiprocessors: int
    clock: float  # Hz
    tensor_flops: float  # bf16, dense, that mma.sync can reach
    memory: float  # bytes/s
    fp32_lanes: int  # FP32 instructions a clock and multiprocessor
    mufu_lanes: int = 16  # exponentials
    shared_bytes: int = 128  # a clock and multiprocessor


# mma.sync reaches 62-65 % of what wgmma does on Hopper. GA100 has 64 FP32 lanes a multiprocessor, Hopper 128.
GPUS = (
    Gpu("A100 SXM 80 GB", 108, 1.41e9, 312e12, 2.0e12, 64),
    Gpu("H100 SXM", 132, 1.755e9, 0.63 * 989e12, 3.35e12, 128),
)


def read_traits(text):
    """{("ForwardTraits", 64, "large_shared"): {"query_rows": 128, ..}}"""
    shapes = {}
    for parameters, name in re.findall(r"template <([^>]*)>\s*struct (\w+Shape) \{", text):
        shapes[name] = [parameter.split()[-1] for parameter in parameters.split(",")]
    traits = {}
    pattern = r"struct (\w+Traits)<(\d+), (?:Family::)?(\w+)> : (\w+Shape)<([^>]*)> \{\};"
    for name, head_dim, family, shape, arguments in re.findall(pattern, text):
        values = dict(zip(shapes[shape], (int(argument) for argument in arguments.split(",")), strict=True))
        families = ("large_shared", "small_shared") if family == "family" else (family,)
        for each in families:
            traits[name, int(head_dim), each] = values
    return traits


@dataclass
class Kernel:
    """One kernel at one head dimension: the counts of a tile (rows x columns pairs), all warps of the block
    together."""

    name: str
    head_dim: int
    rows: int  # what a block owns
    columns: int  # what a step walks over
    products: int  # matrix products of 2 D FLOPs a pair
    exponentials: float  # a pair
    fp32: float  # FP32 and conversion instructions a pair, without the prior
    fp32_prior: float  # what the prior adds
    ldmatrix: int  # .x4, 512 bytes each
    copied: int  # bytes into shared memory
    blocks: int  # resident on a multiprocessor
    owns_keys: bool
    rows_bytes: float  # to and from memory for each row owned, in all
    columns_bytes: float  # for each row walked over: once, from memory; for every block that walks, from L2

    def flops(self):
        return 2 * self.products * self.head_dim * self.rows * self.columns

    def shared(self):
        return 512 * self.ldmatrix + self.copied


def kernels(traits, family):
    """Forward, backward over keys and backward over queries for each head dimension."""
    made = []
    for head_dim in (32, 64, 128):
        d = head_dim
        t = traits["ForwardTraits", d, family]
        tiles, keys = t["query_rows"] // (16 * t["warp_count"]), t["key_rows"]
        # A logit: maximum, scale (in the exponential's FMA), sum, half a packing; each of the four threads
        # of a row compares maxima, and rescales seldom.
        # Slope: two FMAs a row and step.
        made.append(
            Kernel("forward", d, t["query_rows"], keys, 2, 1, 3.5 + 16 / keys, 8 / keys,
                   t["warp_count"] * (d // 16) * (tiles + 2 * keys // 16), 4 * keys * d, t["blocks"], False,
                   4 * d + 4, 4 * d)
        )  # fmt: skip
        t = traits["BackwardKeysTraits", d, family]
        warps, part = t["key_warp_count"] * t["query_warp_count"], t["query_rows"] // t["query_warp_count"]
        tiles = t["key_rows"] // (16 * t["key_warp_count"])
        # A logit: the exponential's FMA, dP's start at -delta, P (dP - delta), two halves of a packing.
        # Prior: a sum, added to dU
        # and, times the lag, to dslope.
        made.append(
            Kernel("backward, keys", d, t["key_rows"], t["query_rows"], 4, 1, 4, 1 + 8 / part,
                   warps * 2 * (d // 16) * (tiles + 2 * part // 16), 4 * t["query_rows"] * d,
                   t.get("blocks", 1), True, 8 * d + 8, 4 * d + 8)
        )  # fmt: skip
        t = traits["BackwardQueriesTraits", d, family]
        tiles, keys = t["query_rows"] // (16 * t["warp_count"]), t["key_rows"]
        # A logit: as above with one half of a packing, and the row's sum, which corrects delta. Prior: the
        # slope's FMA.
        made.append(
            Kernel("backward, queries", d, t["query_rows"], keys, 3, 1, 4.5, 1,
                   t["warp_count"] * (d // 16) * (2 * tiles + 3 * keys // 16), 4 * keys * d, t["blocks"],
                   False, 6 * d + 8, 4 * d)
        )  # fmt: skip
    return made


def steps_of_blocks(kernel, length):
    """Steps of the blocks of one head in launch order (most steps first), causal."""
    owned = -(-length // kernel.rows)
    steps = []
    for block in range(owned):
        if kernel.owns_keys:
            steps.append(-(-length // kernel.columns) - block * kernel.rows // kernel.columns)
        else:
            steps.append(-(-min((owned - block) * kernel.rows, length) // kernel.columns))
    return steps


def tail(steps, heads, slots):
    """Makespan of all blocks, taken by `slots` places as they fall free, over the mean load."""
    free = [0] * slots
    for _ in range(heads):
        for each in steps:
            heapq.heapreplace(free, free[0] + each)
    return max(free) * slots / (heads * sum(steps))


def times(kernel, gpu, length, prior):
    """Seconds by resource for B T = 16,384 tokens and H d_h = 2048, causal; and what they come to."""
    heads = TOKENS // length * WIDTH // kernel.head_dim
    steps = steps_of_blocks(kernel, length)
    tiles, pairs = heads * sum(steps), kernel.rows * kernel.columns
    clocks = gpu.multiprocessors * gpu.clock
    fp32 = kernel.fp32 + (kernel.fp32_prior if prior else 0)
    by = {
        "tensor": tiles * kernel.flops() / gpu.tensor_flops,
        "exponentials": tiles * pairs * kernel.exponentials / (gpu.mufu_lanes * clocks),
        "FP32": tiles * pairs * fp32 / (gpu.fp32_lanes * clocks),
        "shared memory": tiles * kernel.shared() / (gpu.shared_bytes * clocks),
        "memory": heads * length * (kernel.rows_bytes + kernel.columns_bytes) / gpu.memory,
    }
    factor = tail(steps, heads, gpu.multiprocessors * kernel.blocks)
    serial = by["tensor"] + by["exponentials"] + by["FP32"]
    return by, factor * max(by.values()), factor * max(serial, by["memory"], by["shared memory"])


def counted_flops(head_dim, length, backward):
    return 2 * TOKENS * length * WIDTH * (2.5 if backward else 1)


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def tile_table(made):
    rows = []
    for k in made:
        pairs = k.rows * k.columns
        rows.append(
            [k.name, str(k.head_dim), f"{k.rows} x {k.columns}", f"{k.flops() / 1e6:.2f}",
             f"{k.exponentials * pairs / 1e3:.1f}", f"{k.fp32 * pairs / 1e3:.1f}",
             f"+{k.fp32_prior * pairs / 1e3:.1f}", f"{k.shared() / 1024:.0f}", f"{k.copied / 1024:.0f}"]
        )  # fmt: skip
    header = ["kernel", "d_h", "tile", "MFLOP", "exponentials, k", "FP32, k", "with the prior, k"]
    header += ["shared memory, KiB", "of it from L2, KiB"]
    return table(header, rows)


def passes(made, head_dim):
    forward, keys, queries = (kernel for kernel in made if kernel.head_dim == head_dim)
    return {"forward": [forward], "backward": [keys, queries]}


def rates(kernels_of_pass, gpu, length, prior):
    """(TFLOP/s overlapped, TFLOP/s serial, the binding resource), FLOPs as FlashAttention counts them."""
    flops = counted_flops(kernels_of_pass[0].head_dim, length, len(kernels_of_pass) > 1)
    overlapped = serial = 0
    total = {}
    for kernel in kernels_of_pass:
        by, low, high = times(kernel, gpu, length, prior)
        overlapped += low
        serial += high
        for name, seconds in by.items():
            total[name] = total.get(name, 0) + seconds
    return flops / overlapped / 1e12, flops / serial / 1e12, max(total, key=total.get), overlapped, serial


def prediction_table(made, gpu):
    rows = []
    for head_dim in (64, 128):
        for name, of_pass in passes(made, head_dim).items():
            for prior in (False, True):
                each = [rates(of_pass, gpu, length, prior) for length in LENGTHS]
                cells = [f"{serial:.0f}-{overlapped:.0f}" for overlapped, serial, *_ in each]
                rows.append([name, str(head_dim), "yes" if prior else "no", *cells, each[-1][2]])
    return table(["pass", "d_h", "prior", *(f"T = {length}" for length in LENGTHS), "binding at 16k"], rows)


def limits_table(made, gpu, length):
    rows = []
    for kernel in made:
        if kernel.head_dim == 32:
            continue
        by, overlapped, serial = times(kernel, gpu, length, True)
        rows.append([kernel.name, str(kernel.head_dim), *(f"{seconds * 1e6:.0f}" for seconds in by.values()),
                     f"{overlapped * 1e6:.0f}", f"{serial * 1e6:.0f}"])  # fmt: skip
    header = ["kernel", "d_h", "tensor", "exponentials", "FP32", "shared memory", "memory"]
    header += ["overlapped", "serial"]
    return table(header, rows)


def share_table(made):
    rows = []
    for gpu in GPUS:
        for head_dim in (64, 128):
            for name, of_pass in passes(made, head_dim).items():
                with_prior, without = rates(of_pass, gpu, 4096, True), rates(of_pass, gpu, 4096, False)
                rows.append([gpu.name, name, str(head_dim), f"{100 * (with_prior[3] / without[3] - 1):.1f} %",
                             f"{100 * (with_prior[4] / without[4] - 1):.1f} %"])  # fmt: skip
    return table(["GPU", "pass", "d_h", "overlapped", "serial"], rows)


def main():
    traits = read_traits(TRAITS.read_text(encoding="utf-8"))
    made = kernels(traits, "large_shared")
    print("# What the attention kernels should take\n")
    print(
        "Written by dev/attention_cost.py from kernels/cuda/attention/attention_traits.cuh (sm_80 and sm_90 "
        "shapes); nothing here was measured.\n"
    )
    print(
        "## A tile\n\nFLOPs are those of the padded head dimension; the backward pass forms S and dP in both "
        "of its kernels.\n"
    )
    print(tile_table(made))
    for gpu in GPUS:
        print(f"## {gpu.name}: TFLOP/s, serial to overlapped\n")
        print(
            f"{gpu.tensor_flops / 1e12:.0f} TFLOP/s by mma.sync, {gpu.memory / 1e12:.2f} TB/s. "
            "B T = 16,384, H d_h = 2048, causal, deterministic dQ; "
            "FLOPs as FlashAttention counts them (backward: 2.5 times forward).\n"
        )
        print(prediction_table(made, gpu))
        print("Microseconds by resource, T = 4096, with the prior:\n")
        print(limits_table(made, gpu, 4096))
    print("## The prior's share of the time, T = 4096\n")
    print(
        "Lanes are coordinates of q and k that content would have had: they cost nothing here. What is left "
        "is the slope and the gradients' sums.\n"
    )
    print(share_table(made))
    print("## How far to trust it\n")
    forward = passes(made, 64)["forward"]
    overlapped, serial, *_ = rates(forward, GPUS[1], 16384, False)
    print(
        "FlashAttention-2's published forward on H100 (d_h = 64, causal, T = 16k, mma.sync too) is 299 "
        f"TFLOP/s; for this kernel's shape the model says {serial:.0f} serial and {overlapped:.0f} "
        "overlapped. Its published forward + backward there is 284; ours has 14 D FLOPs a pair where it has "
        "10 D, the price of a dQ without atomics."
    )
    print(
        "Not modelled: instructions for addresses, masks and reads of the slope's table, latency at the "
        "start of a block, dependence between the steps of one warp."
    )


if __name__ == "__main__":
    main()
