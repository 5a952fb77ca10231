"""The tensor-core attention kernels as nvcc compiled them, against attention_traits.cuh: what ptxas reports
against each shape's budget, and the instructions in the machine code against the counts that the comments of
kernels/cuda/attention/attention_*.cu and .cuh derive by hand.

The traits' numbers come from a program compiled here against the header; registers and machine code from the
objects of the build in GOAT_BUILD.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "dev"))
from kernel_report import ARCHITECTURES, Kernel, demangled, has_cuda, read_report  # noqa: E402

BUILD = REPOSITORY / os.environ.get("GOAT_BUILD", "build")
OBJECTS = BUILD / "kernels/cuda/CMakeFiles/goat_cuda.dir"
WHEELS = "lib/python3*/site-packages/nvidia/cu13"
# Where the kernels of a pass stand, and the sources that compile them.
PASSES = {
    "forward": ("attention_forward.cu", ["attention_forward.cu"]),
    "backward_keys": (
        "attention_backward_keys.cuh",
        [f"attention_backward_keys_{head_dim}.cu" for head_dim in (32, 64, 128)],
    ),
    "backward_queries": ("attention_backward_queries.cu", ["attention_backward_queries.cu"]),
}
SOURCES = [source for _, sources in PASSES.values() for source in sources]
FAMILIES = ("large_shared", "small_shared")
TERMS = ("none", "slope", "key_bias")
HEAD_DIMS = (32, 64, 128)


# -------------------------------------------------------------------------------- the traits

PRINT_TRAITS = """
#include <cstdio>
#include "kernels/cuda/attention/attention_traits.cuh"
using namespace goat::GOAT_TARGET;

template <int D, Family family, class Shape>
void print(const char* pass) {
  std::printf("shape %s %d %d D=%d keys=%d queries=%d threads=%d shared=%d", pass, D,
              static_cast<int>(family), Shape::head_dim, Shape::keys, Shape::queries, Shape::threads,
              Shape::shared_bytes);
  if constexpr (requires { Shape::key_bias_bytes; }) std::printf(" key_bias=%d", Shape::key_bias_bytes);
  if constexpr (requires { Shape::row_tiles; }) std::printf(" row_tiles=%d", Shape::row_tiles);
  if constexpr (requires { Shape::key_tiles; })
    std::printf(" key_tiles=%d warp_queries=%d", Shape::key_tiles, Shape::warp_queries);
  if constexpr (requires { Shape::ds_bytes; })
    std::printf(" ds=%d has_dq=%d", 2 * Shape::ds_bytes, has_dq_form<D, family>);
  if constexpr (requires { Shape::blocks_per_multiprocessor; })
    std::printf(" blocks=%d", Shape::blocks_per_multiprocessor);
  std::printf("\\n");
}
template <int D, Family family>
void print() {
  print<D, family, ForwardTraits<D, family>>("forward");
  print<D, family, BackwardKeysTraits<D, family>>("backward_keys");
  print<D, family, BackwardQueriesTraits<D, family>>("backward_queries");
}
template <Family family>
void print() {
  print<32, family>();
  print<64, family>();
  print<128, family>();
}
int main() {
  print<Family::large_shared>();
  print<Family::small_shared>();
  for (int architecture : {ARCHITECTURES})
    for (bool specific : {false, true})
      for (Family family : {Family::large_shared, Family::small_shared})
        if (is_compiled(family, 10 * architecture, specific))
          std::printf("architecture %d%s %d\\n", architecture, specific ? "a" : "", static_cast<int>(family));
}
"""


@dataclass(frozen=True)
class Traits:
    shapes: dict  # {("forward", 64, "large_shared"): {"keys": 64, ..}}
    compiled: set  # ("sm_80", "large_shared"): the code for an architecture holds the family's kernels


def cuda_headers():
    """A folder with cuda_runtime.h: the toolkit's or that of scripts/setup.sh."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    folders = [
        Path(nvcc).resolve().parent.parent / "include",
        Path("/usr/include"),
        *(REPOSITORY / ".venv").glob(f"{WHEELS}/include"),
    ]
    return next((folder for folder in folders if (folder / "cuda_runtime.h").exists()), None)


@pytest.fixture(scope="module")
def traits(tmp_path_factory):
    headers = cuda_headers()
    if headers is None:
        pytest.skip("no CUDA headers: run scripts/setup.sh")
    program = tmp_path_factory.mktemp("traits") / "traits"
    numbers = ", ".join(name.removeprefix("sm_") for name in ARCHITECTURES)
    source = PRINT_TRAITS.replace("ARCHITECTURES", numbers)
    subprocess.run(
        ["c++", "-std=c++20", "-fno-strict-aliasing", "-isystem", headers, "-I", REPOSITORY,
         "-x", "c++", "-", "-o", program],
        input=source, text=True, check=True,
    )  # fmt: skip
    shapes, compiled = {}, set()
    for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines():
        kind, *words = line.split()
        if kind == "shape":
            shapes[words[0], int(words[1]), FAMILIES[int(words[2])]] = {
                name: int(value) for name, value in (word.split("=") for word in words[3:])
            }
        else:
            compiled.add(("sm_" + words[0], FAMILIES[int(words[1])]))
    return Traits(shapes, compiled)


# -------------------------------------------------------------------------------- the kernels


@dataclass(frozen=True)
class Form:
    """One instantiation of a kernel."""

    walk: str  # of PASSES
    head_dim: int
    family: str
    terms: str  # of TERMS
    grouped: bool = False  # the pass over keys only, as adds_dq
    adds_dq: bool = False

    @classmethod
    def of(cls, name):
        """From the name that dev/kernel_report.py gives; None for other kernels."""
        match = re.fullmatch(
            r"attention_(\w+)_kernel<(\d+), \(Family\)(\d), \(Terms\)(\d)(?:, (\w+), (\w+))?>", name
        )
        return match and cls(
            match[1],
            int(match[2]),
            FAMILIES[int(match[3])],
            TERMS[int(match[4])],
            match[5] == "true",
            match[6] == "false",
        )


def forms_of(traits):
    """Every form there has to be."""
    for (walk, head_dim, family), shape in traits.shapes.items():
        for adds_dq in (False, True) if shape.get("has_dq") else (False,):
            for terms in TERMS:
                yield Form(walk, head_dim, family, terms, False, adds_dq)
                if walk == "backward_keys" and terms != "slope":
                    yield Form(walk, head_dim, family, terms, True, adds_dq)


def object_of(source):
    return OBJECTS / f"attention/{source}.o"


@pytest.fixture(scope="module")
def kernels():
    if not has_cuda(BUILD):
        pytest.skip(f"{BUILD} has no CUDA device: run make test CUDA=ON, or make cuda")
    return [
        kernel
        for source in SOURCES
        for kernel in read_report(Path(f"{object_of(source)}.kernels"), source)
    ]


def budget_faults(kernel, form, shape):
    """How ptxas's report on a kernel departs from its shape."""
    blocks = shape.get("blocks", 1)
    stated = {
        "threads": (kernel.threads, shape["threads"]),
        "blocks per SM": (kernel.blocks or 1, blocks),
        "dynamic shared memory": (
            kernel.dynamic_shared,
            shape["shared"]
            + (shape["ds"] if form.adds_dq else 0)
            + (shape.get("key_bias", 0) if form.terms == "key_bias" else 0),
        ),
        "static shared memory": (kernel.static_shared, 0),
    }
    for what, (found, wanted) in stated.items():
        if found != wanted:
            yield f"{what}: {found}, the traits have {wanted}"
    allowed = min(255, kernel.limits.registers // (blocks * shape["threads"]) // 8 * 8)
    if kernel.registers > allowed:
        yield f"{kernel.registers} registers, {allowed} allow {blocks} blocks"
    if kernel.shared > kernel.limits.shared_of_a_block or kernel.blocks_that_fit() < blocks:
        yield f"{kernel.blocks_that_fit()} blocks fit, the traits have {blocks}"
    may_spill = form.adds_dq or form.grouped or form.head_dim == 128
    may_spill = may_spill or (form.walk == "backward_queries" and form.terms == "key_bias")
    if not may_spill and kernel.spill_stores + kernel.spill_loads + kernel.stack:
        yield f"spills {kernel.spill_stores} bytes, loads {kernel.spill_loads}, stack {kernel.stack}"


def is_empty(form, architecture, traits):
    """Kernels of a family that is not compiled for an architecture have no body."""
    return (architecture.replace("f", "a"), form.family) not in traits.compiled


def test_every_form_is_compiled_once_for_each_architecture(kernels, traits):
    forms = Counter((form, kernel.architecture) for kernel in kernels if (form := Form.of(kernel.name)))
    wanted = Counter(
        (form, architecture)
        for form in forms_of(traits)
        for architecture in {kernel.architecture for kernel in kernels}
    )
    assert forms == wanted


def test_ptxas_keeps_to_the_budgets_of_the_traits(kernels, traits):
    found = [
        f"{kernel.name} {kernel.architecture}: {fault}"
        for kernel in kernels
        if (form := Form.of(kernel.name)) and not is_empty(form, kernel.architecture, traits)
        for fault in budget_faults(kernel, form, traits.shapes[form.walk, form.head_dim, form.family])
    ]
    assert not found, "\n" + "\n".join(found)


# -------------------------------------------------------------------------------- instructions

# A fragment by ldmatrix.x4, four plain or four transposed 8 x 8 matrices; one mma.m16n8k16; one cp.async of
# 16 bytes.
MMA, PLAIN, TRANSPOSED, COPY = "HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS.128"
COUNTED = "HMMA|LDSM|LDGSTS|RED|ATOM"


def step_counts(walk, shape):
    """Of one step: a product A B^T reads both operands plain, (t + n) D/16 times; one with accumulators as A
    reads B transposed, n D/16 times."""
    d = shape["D"] // 16
    if walk == "backward_keys":
        t, n, walked = shape["key_tiles"], shape["warp_queries"] // 16, shape["queries"]
        plain, transposed = 2, 2
    else:
        t, n, walked = shape["row_tiles"], shape["keys"] // 16, shape["keys"]
        plain, transposed = 1 if walk == "forward" else 2, 1
    mma = {MMA: 2 * t * n * d * (plain + transposed)}
    loads = {PLAIN: plain * (t + n) * d, TRANSPOSED: transposed * n * d}
    return Counter(mma | loads | {COPY: copies(2 * walked, shape)})


def copies(rows, shape):
    """16-byte copies a thread, for rows of D elements of 2 bytes."""
    return rows * shape["D"] * 2 // (16 * shape["threads"])


def kernel_counts(form, shape):
    """The loop's body with and without a mask; before it the copies of the block's own rows and of the first
    step's. With dQ, S K of a step is formed in the next one: in both bodies and after the loop."""
    own = {
        "forward": shape["queries"],
        "backward_keys": 2 * shape["keys"],
        "backward_queries": 2 * shape["queries"],
    }[form.walk]
    step = step_counts(form.walk, shape)
    counts = step + step + Counter({COPY: copies(own, shape) + step[COPY]})
    if form.adds_dq:  # a warp takes 16 queries and D/2 coordinates, over all keys
        n, columns = shape["keys"] // 16, shape["D"] // 32
        product = Counter({MMA: 2 * n * columns, TRANSPOSED: n * (1 + columns)})
        counts += product + product + product
    return counts


def totals(counts):
    return {"HMMA": counts[MMA], "LDSM": counts[PLAIN] + counts[TRANSPOSED], "LDGSTS": counts[COPY]}


def count_instructions(listing):
    """{(symbol, "sm_90a"): Counter of the instructions of COUNTED} of what cuobjdump -sass prints."""
    counts = {}
    architecture = symbol = None
    instruction = rf"/\*[0-9a-f]{{4,}}\*/ +(?:@\S+ +)?((?:{COUNTED})[\w.]*)"
    for match in re.finditer(
        rf"^[ \t]*(?:code for (\w+)|Function : (\S+)|{instruction})", listing, re.MULTILINE
    ):
        if match[1]:
            architecture = match[1]
        elif match[2]:
            symbol = match[2]
            counts[symbol, architecture] = Counter()
        else:
            counts[symbol, architecture][match[3]] += 1
    return counts


def cuobjdump():
    """It needs nvdisasm, which lies beside it."""
    beside_nvcc = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().with_name("cuobjdump")
    places = [beside_nvcc, *(REPOSITORY / ".venv").glob(f"{WHEELS}/bin/cuobjdump")]
    return shutil.which("cuobjdump") or next((str(place) for place in places if place.exists()), None)


@pytest.fixture(scope="module")
def machine_code(kernels):
    """{(name, architecture): Counter}"""
    tool = cuobjdump()
    if tool is None:
        pytest.skip("no cuobjdump: run scripts/setup.sh")
    environment = {**os.environ, "PATH": f"{Path(tool).parent}:{os.environ['PATH']}"}
    counts = {}
    for source in SOURCES:
        listing = subprocess.run(
            [tool, "-sass", object_of(source)], capture_output=True, text=True, check=True, env=environment
        ).stdout
        found = count_instructions(listing)
        names = demangled([symbol for symbol, _ in found])
        counts |= {
            (name, architecture): counter
            for name, ((_, architecture), counter) in zip(names, found.items(), strict=True)
        }
    return counts


def test_the_machine_code_has_the_instructions_of_the_formulas(kernels, machine_code, traits):
    assert {(kernel.name, kernel.architecture) for kernel in kernels} == machine_code.keys()
    for (name, architecture), counts in machine_code.items():
        form = Form.of(name)
        if form is None or is_empty(form, architecture, traits):
            assert not counts, (name, architecture, counts)
            continue
        if form.adds_dq:  # by atomics, of which the deterministic forms have none
            assert any(re.match("RED|ATOM", instruction) for instruction in counts), (
                name,
                architecture,
                counts,
            )
            counts = Counter({name: n for name, n in counts.items() if not re.match("RED|ATOM", name)})
        assert counts == kernel_counts(form, traits.shapes[form.walk, form.head_dim, form.family]), (
            name,
            architecture,
        )


def commented_counts(walk):
    """The rows `D = 64, large_shared[, with dQ]: HMMA 256, LDSM 80, LDGSTS 32` of a source's first
    comment."""
    text = (REPOSITORY / "kernels/cuda/attention" / PASSES[walk][0]).read_text()
    rows = {}
    for match in re.finditer(
        r"^//   D = (\d+)(?:, (\w+_shared))?(, with dQ)?: HMMA (\d+), LDSM (\d+), LDGSTS (\d+)$",
        text,
        re.MULTILINE,
    ):
        for family in FAMILIES if match[2] is None else (match[2],):
            assert (int(match[1]), family, bool(match[3])) not in rows
            rows[int(match[1]), family, bool(match[3])] = dict(
                HMMA=int(match[4]), LDSM=int(match[5]), LDGSTS=int(match[6])
            )
    return rows


@pytest.mark.parametrize("walk", PASSES)
def test_the_comments_state_the_counts(walk, traits):
    wanted = {
        (form.head_dim, form.family, form.adds_dq): totals(
            kernel_counts(form, traits.shapes[walk, form.head_dim, form.family])
        )
        for form in forms_of(traits)
        if form.walk == walk
    }
    assert commented_counts(walk) == wanted


def test_a_listing_is_read():
    listing = """
Fatbin elf code:
\tcode for sm_80
\t\tFunction : _Z1av
        /*0000*/                   MOV R1, c[0x0][0x28] ;                      /* 0x00000a0000017a02 */
        /*0fe0*/                   LDSM.16.M88.4 R8, [R2] ;                    /* 0x000000000208783b */
        /*10f0*/              @!P0 LDGSTS.E.BYPASS.128 [R3], [R4.64] ;         /* 0x0000000004037fae */
        /*1100*/                   LDGDEPBAR ;                                 /* 0x00000000000079af */
\tcode for sm_90a
\t\tFunction : _Z1av
        /*0000*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;       /* 0x0000000c0804723c */
        /*0010*/               @P1 HMMA.16816.F32.BF16 R4, R8, R12, R4 ;       /* 0x0000000c0804723c */
        /*0020*/              @!UP0 UIADD3 UR4, UR4, 0x1, URZ ;                /* 0x0000000104047890 */
"""
    assert count_instructions(listing) == {
        ("_Z1av", "sm_80"): {PLAIN: 1, COPY: 1},
        ("_Z1av", "sm_90a"): {MMA: 2},
    }


def test_planted_faults_are_seen(traits):
    form = Form("forward", 64, "large_shared", "none")
    shape = traits.shapes["forward", 64, "large_shared"]
    good = dict(
        source="a.cu",
        symbol="a",
        architecture="sm_80",
        registers=255,
        threads=128,
        blocks=2,
        dynamic_shared=shape["shared"],
    )
    assert list(budget_faults(Kernel(**good), form, shape)) == []
    for change, words in [
        (dict(threads=256, registers=128), "threads: 256"),
        (dict(blocks=1), "blocks per SM: 1"),
        (dict(dynamic_shared=shape["shared"] - 16), "dynamic shared memory"),
        (dict(registers=256), "256 registers"),
        (dict(architecture="sm_86", dynamic_shared=shape["shared"] + 2048), "1 blocks fit"),
        (dict(static_shared=16), "static shared memory"),
        (dict(spill_stores=4), "spills 4 bytes"),
        (dict(stack=8), "stack 8"),
    ]:
        found = list(budget_faults(Kernel(**{**good, **change}), form, shape))
        assert any(words in fault for fault in found), (change, found)
