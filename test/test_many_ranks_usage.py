"""Several ranks on the command line: what is announced, planned and refused; ranks that were started by hand
and do not belong together; who reads the shards."""

import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from many_ranks import SMALL, by_hand, command, endings, free_port, require_same
from prepared import write_shard
from test_train import flags, metrics_of

NAMED = r"rank {} \(host \S+, pid \d+\)"


# ------------------------------------------------------------------------------------------ the command line
def test_micro_batch_is_an_upper_bound_within_a_leaf(run_binary, tmp_path):
    settings = SMALL | {"train.batch": 12, "distributed.leaves": 4, "train.steps": 2, "train.warmup": 1}
    folders = []
    for micro_batch, taken in ((1, 1), (2, 1), (3, 3), (4, 3), (6, 3), (12, 3)):
        folder = tmp_path / f"at_most_{micro_batch}"
        told = run_binary(*command(folder, 2, settings, train__micro_batch=micro_batch)).stdout
        said = (
            f"; micro-batch {taken} of 12 sequences, the largest divisor of a leaf's 3 sequences that is "
            f"not above train.micro_batch = {micro_batch}\n"
        )
        assert (said in told) == (micro_batch != taken), told
        assert f"; micro-batch {taken} of 12 sequences" in told
        assert f"micro_batch = {taken} " in (folder / "config.toml").read_text()
        if taken == 3:
            folders.append(folder)
    require_same(folders)


def test_one_rank_is_a_run_without_ranks(run_binary, tmp_path):
    told = run_binary(*command(tmp_path / "a", 1, SMALL, "--ranks", 1)).stdout
    assert "\nranks " not in told and " a rank" not in told
    run_binary(*command(tmp_path / "b", 1, SMALL))
    require_same([tmp_path / "a", tmp_path / "b"])


def test_leaves_are_as_many_as_the_ranks_unless_they_are_given(run_binary, tmp_path):
    quick = dict(train__steps=1, train__warmup=0)
    for ranks in (1, 2, 4):
        folder = tmp_path / str(ranks)
        told = run_binary(*command(folder, ranks, SMALL, distributed__leaves=0, **quick))
        assert f"\nleaves = {ranks} " in (folder / "config.toml").read_text()
        counted = f"ranks       {ranks} on 1 host; the gradients of {ranks} leaves are added in a fixed tree"
        assert (counted in told.stdout) == (ranks > 1)
        assert "bit for bit" not in told.stderr
    told = run_binary(*command(tmp_path / "3", 4, SMALL, train__batch=12, distributed__leaves=12, **quick))
    assert "[0] note: each of 4 ranks adds 3 leaves, no power of two: losses are those" in told.stderr


REFUSED = {
    "no rank": (["--ranks", 0], {}, {}, ["--ranks: 0 is not allowed", "from 1 to 1024"]),
    "too many ranks": (["--ranks", 5000], {}, {}, ["--ranks: 5000 is not allowed"]),
    "half a rank": (["--ranks", "1.5"], {}, {}, ["--ranks: 1.5 is not allowed"]),
    "ranks that do not divide the leaves": (
        ["--ranks", 3],
        {"train.batch": 12},
        {},
        ["distributed.leaves = 4 cannot be shared evenly by 3 ranks", "a multiple of the ranks that divides"],
    ),
    "more ranks than leaves": (["--ranks", 8], {}, {}, ["distributed.leaves = 4 cannot", "by 8 ranks"]),
    "leaves that do not divide the batch": (
        ["--ranks", 2],
        {"distributed.leaves": 6},
        {},
        ["train.batch = 8 is not divisible by distributed.leaves = 6", "such as 4"],
    ),
    "ranks that do not divide the batch": (
        ["--ranks", 3],
        {"distributed.leaves": 0},
        {},
        ["train.batch = 8 cannot be cut into 3 leaves, one a rank", "multiple of 3"],
    ),
    "a wrong key": (["--ranks", 4], {"train.stesp": 3}, {}, ["train.stesp"]),
    "a micro-batch that does not divide the batch": (
        ["--ranks", 2],
        {"train.micro_batch": 3},
        {},
        ["train.batch = 8 is not divisible by train.micro_batch = 3"],
    ),
    "a profile": (["--ranks", 2, "--profile", 1], {}, {}, ["--profile", "--ranks"]),
    "inside torchrun": (
        ["--ranks", 2],
        {},
        {"RANK": 0, "WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "x"},
        ["--ranks 2: torchrun has started 2 ranks already; leave --ranks out"],
    ),
    "inside mpirun": (
        ["--ranks", 2],
        {},
        {"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 4},
        ["--ranks 2: mpirun has started 4 ranks already"],
    ),
    "half of a launcher's variables": (["--ranks", 2], {}, {"RANK": 0}, ["RANK=0 without WORLD_SIZE"]),
    "a rank beyond the last": ([], {}, {"RANK": 2, "WORLD_SIZE": 2}, ["RANK=2 and WORLD_SIZE=2 contradict"]),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_makes_no_sense_is_refused_in_one_line(run_command, binary, tmp_path, case):
    words, settings, variables, said = case
    run = tmp_path / "run"
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()} | variables
    outer = ["env", *(f"{name}={value}" for name, value in variables.items())]
    result = run_command([*outer, binary, *command(run, 1, SMALL | settings, *words)], code=2)
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: ") and (len(lines) == 1 or lines[1:] == [HELP]), lines
    for word in said:
        assert word in result.stderr
    assert not run.exists()


HELP = "Run train_gpt_goat --help for the options."


@pytest.mark.parametrize("name", ["eval", "sample", "analyze"])
def test_other_commands_take_no_ranks(run_command, run_binary, binary, tmp_path, name):
    words = [name, "--checkpoint", tmp_path]
    assert f"--ranks belongs to training, not to {name}" in run_binary(*words, "--ranks", 2, code=2).stderr
    outer = ["env", "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=3333"]
    told = run_command([*outer, binary, *words], code=2).stderr
    assert "this command is for one process" in told and "2 ranks" in told
    del outer[-2:]  # where rank 0 is does not matter
    assert "this command is for one process" in run_command([*outer, binary, *words], code=2).stderr


@pytest.mark.parametrize("name", ["eval", "sample", "--list-configs", "--dry-run"])
@pytest.mark.parametrize("variables", [["RANK=0"], ["RANK=2", "WORLD_SIZE=2"], ["WORLD_SIZE=x", "RANK=0"]])
def test_what_does_not_train_ignores_variables_without_sense(binary, tmp_path, name, variables):
    words = {
        "--list-configs": ["--list-configs"],
        "--dry-run": command(tmp_path / "run", 1, SMALL, "--dry-run"),
    }.get(name, [name, "--checkpoint", tmp_path / "nothing"])
    plain, told = (
        subprocess.run([str(word) for word in line], capture_output=True, text=True, timeout=60, check=False)
        for line in ([binary, *words], ["env", *variables, binary, *words])
    )
    assert (plain.returncode == 0) == name.startswith("--"), plain.stderr
    assert (told.returncode, told.stderr) == (plain.returncode, plain.stderr)


# --------------------------------------------------------------------------------------------------- memory
CHUNK = 32_768


def planned(shapes, ranks, leaves):
    """Bytes of each category of a model in fp32 whose parameters' sizes are multiples of 64, without what
    does not depend on the ranks."""

    def padded(elements):
        return elements if ranks == 1 else math.ceil(elements / ranks / CHUNK) * ranks * CHUNK

    groups = [padded(sum(math.prod(shape) for shape in shapes if len(shape) == rank)) for rank in (1, 2)]
    weights = sum(4 * elements for elements in groups)
    open_branches = (leaves // ranks - 1).bit_length()
    from_all_ranks = 4 * max(groups) if ranks > 1 else 0
    columns = 2 + leaves // ranks + sum(math.ceil(elements / ranks / CHUNK) for elements in groups)
    reports = math.ceil(8 * ranks * columns / 256) * 256
    hashes = 256 if ranks > 1 else 0
    return {
        "parameters": weights,
        "gradients": weights * (1 + open_branches) + from_all_ranks,
        "optimizer": 2 * weights // ranks + reports + hashes + STATE,
    }


STATE = 512  # of the step, and the loss of a leaf


def printed_bytes(dry_run, category):
    number, unit = re.search(rf"memory: {category} +([\d.]+) (\w+)\n", dry_run).groups()
    return float(number) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


def test_a_dry_run_plans_what_a_rank_takes_and_each_rank_holds_its_share_of_the_moments(run_binary, tmp_path):
    settings = SMALL | {"model.width": 64, "model.attention": "rope", "train.steps": 1, "train.warmup": 0}
    rest = set()
    for ranks in (1, 2, 4):
        folder = tmp_path / str(ranks)
        dry = run_binary(*command(folder, ranks, settings, "--dry-run")).stdout
        assert not folder.exists()
        assert ("memory is that of each" in dry) == (ranks > 1)
        told = run_binary(*command(folder, ranks, settings)).stdout
        total = re.search(r"memory: total +(.*)\n", dry)[1]
        assert re.search(r"memory +(.*?)( a rank)?;", told)[1] == total
        tensors = load_file(folder / "checkpoints" / "step_00000001" / "model.safetensors").values()
        plan = planned([tensor.shape for tensor in tensors], ranks, 4)
        for category, size in plan.items():
            assert printed_bytes(dry, category) == pytest.approx(size, rel=0.02)
        rest.add(metrics_of(folder)[0]["memory_bytes"] - sum(plan.values()))
    assert len(rest) == 1  # activations and temporary memory


def test_masters_of_a_bf16_model_are_shared_too(run_binary, tmp_path):
    """c4_125m, as it would be on a GPU: 18 bytes a parameter become 6 + 12 / N, and those of the parts."""
    if not re.search("simt +built", run_binary("--version").stdout):
        pytest.skip("this build has no simulated GPU (make SIMT=ON)")
    sizes = {}
    for ranks in (1, 4):
        words = ["--config", "c4_125m", "--device", "simt", "--dry-run", "--out", tmp_path / "run"]
        words += flags({"train.micro_batch": 1, "data.source": "copy_mixture", "distributed.leaves": 4})
        dry = run_binary(*words, "--ranks", ranks).stdout
        sizes[ranks] = printed_bytes(dry, "optimizer")
        parameters = int(re.search(r"parameters, trainable +(\d+)", dry)[1])
        assert sizes[ranks] == pytest.approx(12 * parameters / ranks, rel=0.05)


def test_the_config_that_a_dry_run_prints_is_the_runs(run_binary, tmp_path):
    words = command(tmp_path / "run", 4, SMALL, distributed__leaves=0, train__micro_batch=0)
    dry = run_binary(*words, "--dry-run", "--print-config").stdout
    run_binary(*words)
    assert (tmp_path / "run" / "config.toml").read_text() in dry
    printed = run_binary(*words, "--print-config").stdout
    assert "\nleaves = 0 " in printed and "\nmicro_batch = 0 " in printed


# ------------------------------------------------------------------------------------------ started by hand
def words_of(folder, *words, **changes):
    return command(folder, 1, SMALL, *words, **changes)


UNLIKE = {
    "config": (
        dict(train__lr=0.001),
        [],
        r"differ in config: line \d+ \[train\], rank 0 has 'lr = 0.01 .*', rank 1 has 'lr = 0.001 .*'",
    ),
    "start": ({}, ["--overwrite"], "differ in start: rank 0 has 'a new run', rank 1 has '--overwrite'"),
}


@pytest.mark.parametrize("case", UNLIKE.values(), ids=UNLIKE.keys())
def test_ranks_of_unlike_commands_are_refused(binary, tmp_path, case):
    changes, words, said = case
    run = tmp_path / "run"
    require_refused(by_hand(binary, [words_of(run), words_of(run, *words, **changes)]), said)
    assert not run.exists()


def require_refused(processes, said):
    ranks = NAMED.format(0) + " and " + NAMED.format(1)
    for code, output, errors in endings(processes):
        assert (code, output) == (2, "")
        assert re.fullmatch(f"error: {ranks} {said}\n", errors), errors


def test_ranks_of_two_run_folders_are_refused(binary, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    said = f"differ in run folder: rank 0 has '{a}', rank 1 has '{b}'"
    require_refused(by_hand(binary, [words_of(a), words_of(b)]), said)
    assert not list(tmp_path.iterdir())


def test_ranks_on_two_devices_are_refused(run_binary, binary, tmp_path):
    if not re.search("simt +built", run_binary("--version").stdout):
        pytest.skip("this build has no other device")
    run = tmp_path / "run"
    words = [words_of(run, "--device", name) for name in ("cpu", "simt")]
    require_refused(by_hand(binary, words), "differ in device: rank 0 has 'cpu', rank 1 has 'simt'")
    assert not run.exists()


def test_ranks_of_two_builds_are_refused(run_binary, binary, tmp_path):
    commit = run_binary("--version").stdout.split()[1].encode()
    other = bytearray(commit)
    other[0] = ord("0") if other[0] != ord("0") else ord("1")
    program = binary.read_bytes()
    assert program.count(commit) == 1
    twin = tmp_path / "twin"
    twin.write_bytes(program.replace(commit, bytes(other)))
    twin.chmod(0o755)
    port = free_port()
    run = tmp_path / "run"
    processes = [
        by_hand(path, [words_of(run)], ranks=[rank], size=2, port=port)[0]
        for rank, path in enumerate([binary, twin])
    ]
    builds = [rf"'commit {name.decode()}, .*'" for name in (commit, other)]
    require_refused(processes, f"differ in program: rank 0 has {builds[0]}, rank 1 has {builds[1]}")
    assert not run.exists()


@pytest.mark.parametrize("there", [0, 1])
def test_a_rank_that_does_not_come_is_named(binary, tmp_path, there):
    run = tmp_path / "run"
    words = [words_of(run, distributed__start_timeout=1)]
    [(code, _, errors)] = endings(by_hand(binary, words, ranks=[there], size=2))
    missing = ["rank 0 at 127.0.0.1:", "rank 1 of 2 at port"][1 - there]
    assert code == 1 and missing in errors and "within 1 s" in errors
    assert not run.exists()


def test_a_rank_that_comes_twice_is_named(binary, tmp_path):
    run = tmp_path / "run"
    for code, _, errors in endings(by_hand(binary, [words_of(run)] * 3, ranks=[0, 1, 1], size=3)):
        assert code == 2
        assert re.search(f"two processes are the same rank: {NAMED.format(1)} and {NAMED.format(1)}", errors)
    assert not run.exists()


def test_a_run_folder_that_a_rank_does_not_see_is_refused(binary, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    words = [words_of(Path("run"))] * 2
    told = endings(by_hand(binary, words, cwd=[tmp_path / "here", tmp_path / "there"]))
    assert [code for code, _, _ in told] == [2, 2]
    said = NAMED.format(1) + rf": the run folder {tmp_path}/here/run of rank 0 \(host \S+\) is not there on "
    assert re.fullmatch(rf"error: {said}host \S+ as {tmp_path}/there/run: .*\n", told[0][2]), told[0][2]
    assert [list((tmp_path / name).iterdir()) for name in ("here", "there")] == [[], []]


# ------------------------------------------------------------------------------------------------ the shards
UNABLE = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]  # permissions bind even root then


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can drop abilities")
def test_only_rank_0_opens_shards_of_which_it_alone_reads_tokens(run_binary, binary, rng, tmp_path):
    """Rank 1 may not read the first shard of the validation data. Ranks share the validation, and the check
    of the shards, just so that rank 0 has this one."""
    for name, count in (("train_0", 129), ("val_0", 128), ("val_1", 129)):
        write_shard(tmp_path / f"{name}.bin", rng.integers(0, 4096, count))
    settings = SMALL | {
        "data.source": "shards",
        "data.train": f"{tmp_path}/train_*.bin",
        "data.val": f"{tmp_path}/val_*.bin",
        "data.block": "window",
        "eval.tokens": 16 * 16,
        "train.steps": 3,
    }
    run_binary(*command(tmp_path / "one", 1, settings))

    def by_two(folder, forbidden):
        os.chown(tmp_path / forbidden, 65534, 65534)
        (tmp_path / forbidden).chmod(0o600)
        words = command(tmp_path / folder, 1, settings)
        of_both = {"size": 2, "port": free_port()}
        first = by_hand(binary, [words], **of_both)
        second = by_hand(UNABLE[0], [[*UNABLE[1:], binary, *words]], ranks=[1], **of_both)
        return endings(first + second)

    told = by_two("two", "val_0.bin")
    assert [code for code, _, _ in told] == [0, 0], told
    require_same([tmp_path / "one", tmp_path / "two"])
    told = by_two("other", "val_1.bin")
    assert {code for code, _, _ in told} == {3}
    assert re.search(NAMED.format(1) + ": .*val_1.bin.* Permission denied", told[0][2]), told[0][2]
