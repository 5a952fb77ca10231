"""What nvcc made of the kernels: ptxas's report on each of them, and the symbols of the two builds of
kernels/cuda. Runs where there is nvcc."""

import ctypes
import ctypes.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "dev"))
from kernel_report import Kernel, has_cuda, read_build, read_report  # noqa: E402

BUILD = REPOSITORY / os.environ.get("GOAT_BUILD", "build")
EXCEPTIONS = tomllib.loads((REPOSITORY / "dev/kernel_exceptions.toml").read_text())["exception"]


@pytest.fixture(scope="module")
def kernels():
    if not has_cuda(BUILD):
        pytest.skip(f"{BUILD} has no CUDA device: run make test CUDA=ON, or make cuda")
    return read_build(BUILD)


def exceptions_for(kernel):
    return [
        entry
        for entry in EXCEPTIONS
        if re.fullmatch(entry["kernel"], kernel.name)
        and re.fullmatch(entry.get("architecture", ".*"), kernel.architecture)
    ]


def faults(kernel, exceptions=()):
    """What is wrong with one kernel, as text."""
    spill = max(kernel.spill_stores, kernel.spill_loads)
    if spill > max((entry.get("spill", 0) for entry in exceptions), default=0):
        yield f"spills {kernel.spill_stores} bytes, loads {kernel.spill_loads}"
    if kernel.stack > max((entry.get("stack", 0) for entry in exceptions), default=0):
        yield f"keeps {kernel.stack} bytes of local variables in memory"
    if kernel.takes_dynamic_shared and kernel.dynamic_shared is None:
        yield "takes dynamic shared memory without state_dynamic_shared"
    if kernel.threads is None:
        yield "has no __launch_bounds__"
    else:
        for resource, blocks in kernel.blocks_by_resource().items():
            if blocks < (kernel.blocks or 1):
                yield f"states {kernel.blocks or 1} blocks per SM, {resource} allow {blocks}"


def test_every_kernel_keeps_to_what_its_launch_states(kernels):
    found = [
        f"{kernel.source} {kernel.name} {kernel.architecture}: {fault}"
        for kernel in kernels
        for fault in faults(kernel, exceptions_for(kernel))
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_source_with_kernels_was_read(kernels):
    folder = REPOSITORY / "kernels/cuda"
    shared = [path.name for path in folder.rglob("*.cuh") if "__global__" in path.read_text()]
    with_kernels = {
        path.name
        for path in folder.rglob("*.cu")
        if any(words in path.read_text() for words in ("__global__", *(f'/{name}"' for name in shared)))
    }
    assert with_kernels - {kernel.source for kernel in kernels} == set()


def test_every_exception_is_needed(kernels):
    architectures = {kernel.architecture for kernel in kernels}
    unused = [
        entry
        for entry in EXCEPTIONS
        if any(re.fullmatch(entry.get("architecture", ".*"), architecture) for architecture in architectures)
        and not any(entry in exceptions_for(kernel) and any(faults(kernel)) for kernel in kernels)
    ]
    assert unused == []
    assert all(entry.get("reason") for entry in EXCEPTIONS)


def test_planted_faults_are_seen():
    good = dict(
        source="a.cu",
        symbol="a",
        architecture="sm_80",
        registers=128,
        threads=256,
        blocks=2,
        dynamic_shared=80 * 1024,
    )
    assert list(faults(Kernel(**good))) == []
    for change, words in [
        (dict(registers=136), "registers allow 1"),
        (dict(dynamic_shared=82 * 1024), "shared memory allow 1"),
        (dict(architecture="sm_86"), "shared memory allow 1"),
        (dict(blocks=9, registers=16, dynamic_shared=None), "threads allow 8"),
        (dict(spill_loads=4), "spills"),
        (dict(stack=40), "local variables"),
        (dict(threads=None), "__launch_bounds__"),
        (dict(takes_dynamic_shared=True, dynamic_shared=None), "state_dynamic_shared"),
    ]:
        found = list(faults(Kernel(**{**good, **change})))
        assert len(found) == 1 and words in found[0], (change, found)


def test_a_report_is_read_in_full(tmp_path):
    report = tmp_path / "scale.cu.o.kernels"
    report.write_text(
        """.target sm_80
.visible .entry _Z5scaleIfEvPT_S1_l(
.maxntid 32, 4, 1
.target sm_90a
.extern .shared .align 1024 .b8 goat_dynamic_shared[];
.visible .entry _Z5scaleIfEvPT_S1_l(
.maxntid 32, 4, 1
.minnctapersm 4
\t// goat: dynamic shared memory 1234
\tmov.u32 \t%r13, goat_dynamic_shared;
.entry _Z5plainPf(
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5scaleIfEvPT_S1_l' for 'sm_80'
ptxas info    : Function properties for _Z5scaleIfEvPT_S1_l
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers
ptxas info    : Compiling entry function '_Z5scaleIfEvPT_S1_l' for 'sm_90a'
ptxas info    : Function properties for _Z5scaleIfEvPT_S1_l
    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 18 registers, used 1 barriers, 2048 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function '_Z5plainPf' for 'sm_90a'
ptxas info    : Function properties for _Z5plainPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""
    )
    empty, scale, plain = read_report(report, "scale.cu")
    assert [(kernel.name, kernel.architecture) for kernel in (empty, scale, plain)] == [
        ("scale<float>", "sm_80"),
        ("scale<float>", "sm_90a"),
        ("plain", "sm_90a"),
    ]
    assert (
        empty.threads,
        empty.blocks,
        empty.dynamic_shared,
        empty.takes_dynamic_shared,
        empty.registers,
    ) == (128, None, None, False, 4)
    assert (scale.threads, scale.blocks, scale.dynamic_shared, scale.takes_dynamic_shared) == (
        128,
        4,
        1234,
        True,
    )
    assert (scale.registers, scale.stack, scale.spill_stores, scale.spill_loads, scale.static_shared) == (
        18,
        8,
        16,
        24,
        2048,
    )
    assert (plain.threads, plain.blocks, plain.dynamic_shared, plain.takes_dynamic_shared) == (
        None,
        None,
        None,
        False,
    )
    assert plain.registers == 10


# -------------------------------------------------------------------------------- symbol tables


def defined_symbols(library):
    """{mangled: readable} of the global and weak symbols a static library defines."""
    names = []
    for line in subprocess.run(
        ["nm", "--defined-only", "--extern-only", library], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if match := re.fullmatch(r"[0-9a-f]+ [A-Zu] (\S+)", line):
            names.append(match[1])
    readable = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return dict(zip(names, readable, strict=True))


def of_the_standard_library(readable):
    """Instantiations for standard types alone are the same code in both builds."""
    name = re.sub(r"^(?:typeinfo for|typeinfo name for|vtable for|VTT for|guard variable for) ", "", readable)
    return (
        bool(re.match(r"(?:[\w:<>,*& ]+ )?(?:std|__gnu_cxx|operator new|operator delete)\b", name))
        and "on_simt" not in name
    )


# Of headers outside kernels/cuda: the common base class and inline functions, the same text for the same
# host compiler. DW.ref: pointers to type_info and
# the like, for exceptions; what they point to is listed under its own name.
SHARED_WITH_THE_REST = re.compile(
    r"(?:typeinfo (?:name )?for |vtable for )?"
    r"goat::(?:Communicator(?:Setup)?|Device(?:Event|Graph|Buffer|Info)?|RankLost|Tensor|Allocation)\b"
    r"(?!.*\bon_(?:simt|cuda)\b).*|DW\.ref\.\w+"
)


def unexplained(shared):
    return sorted(
        name
        for name in shared
        if not of_the_standard_library(name) and not SHARED_WITH_THE_REST.fullmatch(name)
    )


def is_simulated(readable):
    """Whether a symbol says that it is of the simulation: by its namespace, or in assembly and the hooks of
    the race checker by its name."""
    return bool(
        re.search(r"\bgoat::on_simt::", readable) or re.match(r"__tsan_\w+$|(?:goat_)?simt_\w+$", readable)
    )


def library_of(target):
    library = BUILD / f"kernels/{target}/libgoat_{target}.a"
    if not library.exists():
        pytest.skip(f"{BUILD} does not hold {library.name}")
    return defined_symbols(library)


def test_the_two_builds_share_no_symbol():
    simt, cuda = library_of("simt"), library_of("cuda")
    assert len(simt) > 50 and len(cuda) > 50
    found = unexplained(simt[name] for name in simt.keys() & cuda.keys())
    assert not found, "\n" + "\n".join(found)


def test_the_simulated_build_has_no_name_of_cuda():
    found = [name for name in library_of("simt").values() if not is_simulated(name) and unexplained([name])]
    assert not found, "\n" + "\n".join(found)


def test_planted_symbols_are_seen():
    for name in [
        "goat::divide_up(long, long)",
        "float warp_sum<float>(float)",
        "atomicAdd(float*, float)",
        "cudaMalloc",
        "__expf",
        "goat::on_cuda::open_device()",
    ]:
        assert unexplained([name]) == [name] and not is_simulated(name)
    for name in [
        "std::vector<double, std::allocator<double> >::~vector()",
        "void std::swap<int>(int&, int&)",
        "typeinfo for goat::Device",
    ]:
        assert unexplained([name]) == []
    assert is_simulated(
        "void goat::on_simt::enqueue_norm_backward<float, true>(CUstream_st*, "
        "goat::on_simt::NormBackward<float> const&, float*)"
    )


# ---------------------------------------------------------------------------------------- NCCL's library

FORWARDED = re.findall(r"Do\((nccl\w+)\)", (REPOSITORY / "kernels/cuda/nccl_library.cu").read_text())


@pytest.fixture(scope="module")
def nccl_path():
    known = ctypes.util.find_library("nccl")
    wheels = (REPOSITORY / ".venv/lib").glob("python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")
    here = [Path(os.environ.get("GOAT_NCCL", "")), Path("/usr/local/cuda/lib64/libnccl.so.2"), *wheels]
    if known := known or next((str(path) for path in here if path.is_file()), None):
        return known
    pytest.skip("no libnccl.so.2")


def test_every_function_of_nccl_that_is_called_is_passed_on():
    source = (REPOSITORY / "kernels/cuda/communicator.cu").read_text()
    called = set(re.findall(r"\b(nccl[A-Z]\w+)\(", source))
    defined = re.findall(
        r"^[\w ]+[ *]+(nccl\w+)\(", (REPOSITORY / "kernels/cuda/nccl_library.cu").read_text(), re.M
    )
    assert called and called - {"ncclGetVersion"} <= set(FORWARDED)
    assert sorted(FORWARDED) == sorted(defined)


def test_the_library_has_every_function_that_is_passed_on(nccl_path):
    library = ctypes.CDLL(nccl_path)
    assert [name for name in FORWARDED if not hasattr(library, name)] == []


def version_line(**variables):
    places = [BUILD / "train_gpt_goat", REPOSITORY / "train_gpt_goat"]  # of make cuda, and of make
    program = next((place for place in places if place.exists()), None)
    if not has_cuda(BUILD) or not program:
        pytest.skip(f"{BUILD} has no program with the CUDA device")
    done = subprocess.run([program, "--version"], env=os.environ | variables, capture_output=True, text=True)
    return re.search("^nccl +(.*)", done.stdout, re.M)[1]


def test_the_version_of_the_library_is_told(nccl_path):
    words = rf"built with 2\.\d+\.\d+, found 2\.\d+\.\d+ in .*{re.escape(Path(nccl_path).name)}"
    assert re.fullmatch(words, version_line(GOAT_NCCL=nccl_path))


def library(folder, text):
    folder.mkdir()
    source, built = folder / "nccl.c", folder / "libnccl.so.2"
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source], check=True)
    return str(built)


def test_a_library_that_is_missing_too_old_or_another_one_is_refused_with_what_to_install(tmp_path):
    others = "".join(f"int {name}(void) {{ return 0; }}\n" for name in FORWARDED if name != "ncclGetVersion")
    old = others + "int ncclGetVersion(int* version) { *version = 21805; return 0; }\n"
    for path, cause in [
        (str(tmp_path / "none.so"), "the library was not found (.*none.so"),
        (library(tmp_path / "old", old), "libnccl.so.2 is version 2.18.5, too old for this build"),
        (library(tmp_path / "other", old.replace("ncclSend", "ncclSent")), "libnccl.so.2 has no ncclSend"),
    ]:
        line = version_line(GOAT_NCCL=path)
        assert re.search(cause.replace("(", r"\("), line), line
        assert "apt install libnccl2" in line and "nvidia-nccl-cu" in line and "GOAT_NCCL" in line


@pytest.mark.parametrize(
    ("answer", "asked", "built"),
    [
        ("8.9\n9.0\n9.0", "AUTO", "89;90a"),
        ("7.5", "AUTO", "80;90a"),  # too old: the program says so, and there is something to run it
        ("9.0", "all", "80;86;89;90a;100;120"),
    ],
)
def test_the_build_is_for_the_gpus_here_or_for_those_asked_for(tmp_path, answer, asked, built):
    if not shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin"):
        pytest.skip("no nvcc")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    tool.chmod(0o755)
    words = ["cmake", "-S", REPOSITORY, "-B", tmp_path / "build", "-DGOAT_CUDA=ON", "-DGOAT_TESTS=OFF"]
    done = subprocess.run(
        [*words, f"-DGOAT_CUDA_ARCHITECTURES={asked}"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert f"architectures {built}\n" in done.stdout
