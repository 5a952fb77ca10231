"""What nvcc made of the kernels: reads the OBJECT.kernels files that kernels/cuda/keep_report.sh leaves in a
build directory.

A launcher states its launch in the kernel's declaration: `__launch_bounds__(threads, blocks per SM)`, and
with dynamic shared memory `state_dynamic_shared<bytes>()` in its body. ptxas keeps the registers within the
first; test/test_cuda_build.py checks the rest.
"""

import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """Limits of one SM (CUDA C++ Programming Guide, "Compute Capabilities"); shared memory in bytes."""

    warps: int
    blocks: int
    shared: int
    shared_of_a_block: int
    registers: int = 64 * KIB


ARCHITECTURES = {
    "sm_80": Architecture(64, 32, 164 * KIB, 163 * KIB),
    "sm_86": Architecture(48, 16, 100 * KIB, 99 * KIB),
    "sm_87": Architecture(48, 16, 164 * KIB, 163 * KIB),
    "sm_89": Architecture(48, 24, 100 * KIB, 99 * KIB),
    "sm_90": Architecture(64, 32, 228 * KIB, 227 * KIB),
    "sm_100": Architecture(64, 32, 228 * KIB, 227 * KIB),
    "sm_103": Architecture(64, 32, 228 * KIB, 227 * KIB),
    "sm_120": Architecture(48, 24, 100 * KIB, 99 * KIB),
    "sm_121": Architecture(48, 24, 100 * KIB, 99 * KIB),
}
SHARED_RESERVED = 1 * KIB  # by the system, for each block


@dataclass
class Kernel:
    source: str  # "layernorm.cu"
    symbol: str
    architecture: str  # "sm_90a"
    name: str = ""  # as in the source, with its template arguments
    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    static_shared: int = 0
    threads: int | None = None  # __launch_bounds__; None where the kernel has none
    blocks: int | None = None
    dynamic_shared: int | None = None  # as stated
    takes_dynamic_shared: bool = False

    @property
    def limits(self):
        return ARCHITECTURES[self.architecture.rstrip("af")]

    @property
    def shared(self):
        return self.static_shared + (self.dynamic_shared or 0)

    def blocks_by_resource(self):
        """The blocks an SM can hold, as each of its resources allows."""
        sm = self.limits
        warps = math.ceil(self.threads / 32)
        # Registers come in units of 256 a warp, warps in fours (one for each quarter).
        a_warp = math.ceil(max(self.registers, 1) * 32 / 256) * 256
        a_block = math.ceil((self.shared + SHARED_RESERVED) / 128) * 128
        return {
            "registers": (sm.registers // 4 // a_warp * 4) // (math.ceil(warps / 4) * 4),
            "shared memory": sm.shared // a_block if self.shared <= sm.shared_of_a_block else 0,
            "threads": sm.warps // warps,
            "blocks": sm.blocks,
        }

    def blocks_that_fit(self):
        return min(self.blocks_by_resource().values())

    def occupancy(self):
        return self.blocks_that_fit() * math.ceil(self.threads / 32) / self.limits.warps


def demangled(symbols):
    """Readable names of kernels: no return type, no namespaces, no parameters."""
    if not symbols:
        return []
    text = subprocess.run(
        ["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True
    ).stdout
    return [short_name(line) for line in text.splitlines()]


def short_name(signature):
    # Nested brackets of the parameter list are dropped from the right; then the namespaces and the return
    # type.
    end, depth = len(signature), 0
    for i in range(len(signature) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(signature[i], 0)
        if depth == 0:
            end = i
            break
    name = re.sub(r"\(anonymous namespace\)::|goat::on_cuda::|_GLOBAL__N__\w+::", "", signature[:end])
    name = name.replace("__nv_bfloat16", "bf16").removeprefix("void ")
    return re.sub(r"\((?:int|bool|unsigned int|long)\)", "", name)


def read_report(path, source):
    """The kernels of one OBJECT.kernels file, one for each architecture it was compiled for."""
    launches, kernels = {}, []
    target = entry = kernel = None
    for line in path.read_text().splitlines():
        if match := re.match(r"\.target (\w+)", line):
            target = match[1]
        elif match := re.match(r"(?:\.visible |\.weak )?\.entry (\w+)", line):
            entry = launches.setdefault((match[1], target), {})
        elif match := re.match(r"\.maxntid (\d+)(?:, (\d+), (\d+))?", line):
            entry["threads"] = math.prod(int(size) for size in match.groups() if size)
        elif match := re.match(r"\.minnctapersm (\d+)", line):
            entry["blocks"] = int(match[1])
        elif match := re.search(r"// goat: dynamic shared memory (\d+)", line):
            entry["dynamic_shared"] = max(int(match[1]), entry.get("dynamic_shared") or 0)
        elif "goat_dynamic_shared" in line and not line.startswith(".extern"):
            entry["takes_dynamic_shared"] = True
        elif match := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            kernel = Kernel(source, match[1], match[2])
            kernels.append(kernel)
        elif match := re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        ):
            # Of the kernel, then of each function it calls (pow of CUDA).
            stack, stores, loads = (int(number) for number in match.groups())
            kernel.stack = max(kernel.stack, stack)
            kernel.spill_stores = max(kernel.spill_stores, stores)
            kernel.spill_loads = max(kernel.spill_loads, loads)
        elif match := re.search(r"Used (\d+) registers", line):
            kernel.registers = int(match[1])
            if match := re.search(r"(\d+) bytes smem", line):
                kernel.static_shared = int(match[1])
    for kernel, name in zip(kernels, demangled([kernel.symbol for kernel in kernels]), strict=True):
        kernel.name = name
        for field, value in launches[kernel.symbol, kernel.architecture].items():
            setattr(kernel, field, value)
    return kernels


def has_cuda(build):
    """Whether a build directory compiles the CUDA device, as it is configured now."""
    commands = Path(build) / "compile_commands.json"
    return commands.exists() and "goat_cuda.dir" in commands.read_text()


def read_build(build):
    """Every kernel of a build directory, by source, name and architecture. Empty where the build has no cuda
    device."""
    folder = Path(build) / "kernels/cuda/CMakeFiles/goat_cuda.dir"
    kernels = [
        kernel
        for path in sorted(folder.rglob("*.kernels"))
        for kernel in read_report(path, path.name.removesuffix(".o.kernels"))
    ]
    return sorted(
        kernels, key=lambda kernel: (kernel.source, kernel.name, int(kernel.architecture.strip("sm_af")))
    )
