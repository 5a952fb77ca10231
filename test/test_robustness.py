"""Bad shards and bad checkpoints, given to the program itself: what it says, its exit code, and that it
leaves nothing behind."""

import json
import math
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from test_train import TINY, changed, flags, metrics_of
from prepared import write_shard


def on_shards(folder, *, out, **changes):
    settings = TINY | {"data.source": "shards", "data.train": f"{folder}/train*.bin", "data.block": "window"}
    return ["--config", "copy_mixture", "--out", out, *flags(changed(settings, changes))]


GOOD = np.arange(1000) % 16


def bad_shards():
    yield "missing", lambda path: None, ["train*.bin", "prepare.py"]
    yield "a folder", lambda path: path.mkdir(), ["train_0.bin"]
    yield "empty", lambda path: path.write_bytes(b""), ["train_0.bin", "empty"]
    yield (
        "shorter than its header",
        lambda path: path.write_bytes(b"\0" * 1000),
        ["train_0.bin", "1000", "1024"],
    )
    yield "wrong magic", lambda path: write_shard(path, GOOD, magic=1), ["train_0.bin", "20240520"]
    yield "wrong version", lambda path: write_shard(path, GOOD, version=7), ["train_0.bin", "version", "7"]
    yield "count too large", lambda path: write_shard(path, GOOD, count=1001), ["train_0.bin", "1001"]
    yield "count too small", lambda path: write_shard(path, GOOD, count=999), ["train_0.bin", "999"]
    yield "negative count", lambda path: write_shard(path, GOOD, count=-5), ["train_0.bin", "-5"]
    yield (
        "token outside the vocabulary",
        lambda path: write_shard(path, np.where(np.arange(1000) == 700, 16, GOOD)),
        ["train_0.bin", "700", "16"],
    )
    yield (
        "too short for one sequence",
        lambda path: write_shard(path, GOOD[:10]),
        ["10 tokens", "one sequence of 16"],
    )


@pytest.mark.parametrize(
    ("make", "words"), [pytest.param(make, words, id=name) for name, make, words in bad_shards()]
)
def test_a_bad_shard_ends_the_run_with_exit_code_3(run_binary, tmp_path, make, words):
    make(tmp_path / "train_0.bin")
    result = run_binary(*on_shards(tmp_path, out=tmp_path / "run", train__steps=200), code=3)
    for word in words:
        assert word in result.stderr
    if (tmp_path / "run").exists():  # found by the check in the background, while training
        assert not list((tmp_path / "run").rglob("summary.json"))


@pytest.fixture
def as_ordinary_user(binary):
    """Runs the program as a user whom permissions bind (root is not), in a folder that this user may
    enter."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    program = shutil.copy(binary, folder / "program")
    Path(program).chmod(0o755)  # whatever the umask was when it was built
    user = {"user": 65534} if os.geteuid() == 0 else {}
    yield (
        folder,
        lambda *words: subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=300, cwd=folder, **user
        ),
    )
    shutil.rmtree(folder)


def test_an_unreadable_shard_is_named(as_ordinary_user):
    folder, run = as_ordinary_user
    write_shard(folder / "train_0.bin", GOOD)
    (folder / "train_0.bin").chmod(0)
    result = run(*on_shards(folder, out=folder / "run"))
    assert result.returncode == 3 and "train_0.bin" in result.stderr


def test_a_read_only_folder_is_named(as_ordinary_user):
    folder, run = as_ordinary_user
    (folder / "locked").mkdir(0o555)
    result = run("--config", "copy_mixture", "--out", folder / "locked/run", *flags(TINY))
    assert result.returncode == 1 and "locked/run" in result.stderr


def test_a_set_shorter_than_one_batch_is_used_as_a_stream(run_binary, tmp_path):
    write_shard(tmp_path / "train_0.bin", GOOD[:20])
    write_shard(tmp_path / "train_1.bin", GOOD[20:23])
    run_binary(*on_shards(tmp_path, out=tmp_path / "run"))
    assert len(metrics_of(tmp_path / "run")) == TINY["train.steps"]


def test_shards_beyond_4_gib_are_opened_with_64_bit_sizes(run_binary, tmp_path):
    """Sparse: all but the header and the last tokens is a hole, read as zeros. --dry-run opens and checks
    the header."""
    count = (1 << 31) - 8
    write_shard(tmp_path / "train_0.bin", [], count=count)
    os.truncate(tmp_path / "train_0.bin", 1024 + 2 * count)
    write_shard(tmp_path / "val_0.bin", GOOD)
    result = run_binary(
        *on_shards(tmp_path, out=tmp_path / "run", data__val=f"{tmp_path}/val*.bin"), "--dry-run"
    )
    assert f"{count:,}" in result.stdout.replace(str(count), f"{count:,}")


def test_a_shard_that_changes_during_training_ends_the_run_with_the_last_checkpoint_intact(binary, tmp_path):
    write_shard(tmp_path / "train_0.bin", GOOD)
    run = tmp_path / "run"
    command = [binary, *on_shards(tmp_path, out=run, train__steps=1000000, checkpoint__interval=20)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(run.glob("checkpoints/step_*")):
        time.sleep(0.005)
    os.truncate(tmp_path / "train_0.bin", 1500)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 3 and "train_0.bin" in stderr
    assert len(metrics_of(run)) == int(
        max(run.glob("checkpoints/step_*")).name[5:]
    )  # what was reached is saved
    checkpoint = max(run.glob("checkpoints/step_*"))
    assert (
        subprocess.run(
            [binary, "eval", "--checkpoint", checkpoint, "--data", tmp_path / "none.bin"],
            capture_output=True,
            text=True,
        ).returncode
        == 3
    )
    assert all(np.isfinite(tensor).all() for tensor in load_file(checkpoint / "model.safetensors").values())


@pytest.fixture(scope="module")
def trained(binary, tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    subprocess.run(
        [binary, "--config", "copy_mixture", "--out", run, *flags(TINY)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return run


def damage(path, change):
    data = bytearray(path.read_bytes())
    path.write_bytes(bytes(change(data)))


def flipped(data):
    data[len(data) // 2] ^= 4
    return data


DAMAGES = pytest.mark.parametrize(
    "change",
    [lambda data: data[: len(data) // 2], flipped, lambda data: data + b"\0", lambda data: b""],
    ids=["cut", "flipped", "trailing", "empty"],
)


@DAMAGES
@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
@pytest.mark.parametrize("command", ["eval", "analyze", "sample"])
def test_a_damaged_checkpoint_is_refused_with_exit_code_3(
    run_binary, tmp_path, trained, name, change, command
):
    shutil.copytree(trained, tmp_path / "run")
    damage(tmp_path / f"run/checkpoints/step_00000012/{name}", change)
    assert (
        name in run_binary(command, "--checkpoint", tmp_path / "run/checkpoints/step_00000012", code=3).stderr
    )


@DAMAGES
def test_damaged_optimizer_state_keeps_nobody_from_looking_at_the_model_but_from_resuming(
    run_binary, tmp_path, trained, change
):
    shutil.copytree(trained, tmp_path / "run")
    damage(tmp_path / "run/checkpoints/step_00000012/optimizer.safetensors", change)
    for command in ("eval", "analyze", "sample"):
        run_binary(command, "--checkpoint", tmp_path / "run")
    assert "optimizer.safetensors" in run_binary("--resume", "--out", tmp_path / "run", code=3).stderr


@pytest.fixture
def rewritable(tmp_path, trained):
    """A checkpoint, its tensors, and rewrite(tensors): with matching checksums, as another program might."""
    xxhash = pytest.importorskip("xxhash")
    shutil.copytree(trained, tmp_path / "run")
    folder = tmp_path / "run/checkpoints/step_00000012"

    def rewrite(tensors):
        save_file(tensors, folder / "model.safetensors")
        state = json.loads((folder / "state.json").read_text())
        for file in state["files"]:
            content = (folder / file["name"]).read_bytes()
            file["bytes"], file["xxh3_64"] = len(content), xxhash.xxh3_64_hexdigest(content)
        state.pop("xxh3_64")
        compact = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        state["xxh3_64"] = xxhash.xxh3_64_hexdigest(compact.encode())
        (folder / "state.json").write_text(json.dumps(state))

    return folder, load_file(folder / "model.safetensors"), rewrite


def test_a_huge_loss_leaves_the_table_of_perplexities_narrow(run_binary, rewritable):
    folder, good, rewrite = rewritable
    rewrite(good | {"final_norm.weight": 300 * good["final_norm.weight"]})
    *_, row = run_binary("eval", "--checkpoint", folder).stdout.rstrip().splitlines()
    loss, perplexity = map(float, row.split()[3:5])
    assert perplexity == pytest.approx(math.exp(loss), rel=1e-3) and perplexity > 1e20
    assert len(row) < 80


def test_a_model_of_other_shapes_or_types_is_refused_naming_the_tensor(run_binary, rewritable):
    folder, good, rewrite = rewritable
    name = "blocks.0.attn.q.weight"
    rewrite(good)
    run_binary("eval", "--checkpoint", folder)
    rewrite(good | {name: good[name].T.copy()})
    assert name in run_binary("eval", "--checkpoint", folder, code=3).stderr
    rewrite(good | {name: good[name].astype(np.float16)})
    assert "F16" in run_binary("eval", "--checkpoint", folder, code=3).stderr
    rewrite({key: value for key, value in good.items() if key != name})
    assert "tensors" in run_binary("eval", "--checkpoint", folder, code=3).stderr


def test_a_device_that_is_not_there_is_refused(run_binary, tmp_path):
    absent = ["tpu"] if shutil.which("nvidia-smi") else ["tpu", "cuda"]
    for device in absent:
        result = run_binary("--config", "copy_mixture", "--device", device, "--out", tmp_path / "run", code=2)
        assert device in result.stderr and "cpu" in result.stderr
        assert not (tmp_path / "run").exists()


def test_the_simulated_gpu_trains(run_binary, tmp_path):
    if "make SIMT=ON" in run_binary("--version").stdout:
        pytest.skip("the program was built without the simulated GPU: make SIMT=ON")
    few = [
        "--set",
        "train.steps=2",
        "--set",
        "train.warmup=1",
        "--set",
        "train.batch=1",
        "--set",
        "eval.tokens=16",
    ]
    result = run_binary("--config", "copy_mixture", "--device", "simt", "--out", tmp_path / "run", *few)
    assert "simt: the CUDA kernels, simulated" in result.stdout
    assert "computes in bf16" in result.stdout
    model = ["--checkpoint", tmp_path / "run", "--device", "simt"]
    for precision in ("bf16", "fp32"):
        at = ["--precision", precision, "--json", tmp_path / f"{precision}.json"]
        run_binary("eval", *model, *at, "--tokens", 256)
    first, second = (
        json.loads((tmp_path / f"{precision}.json").read_text())["results"][0]["nll"]
        for precision in ("bf16", "fp32")
    )
    assert first != second and first == pytest.approx(second, abs=1e-3)
    run_binary("analyze", *model, "--length", 16, "--out", tmp_path / "analysis")
    prompt = ["--tokenizer", "ids", "--prompt", "1 2 3", "--tokens", 4, "--temperature", 0]
    continued = [run_binary("sample", *model, *prompt, *more).stdout for more in ((), ("--no-cache",))]
    assert continued[0] == continued[1]
    result = run_binary("--resume", "--out", tmp_path / "run", "--device", "cpu", "--set", "train.steps=3")
    assert "resuming in fp32; the steps before were computed in bf16" in result.stderr
    on_cpu = ["--checkpoint", tmp_path / "run", "--device", "cpu"]
    losses = []
    for precision in ("bf16", "fp32"):
        at = ["--precision", precision, "--json", tmp_path / "cpu.json"]
        run_binary("eval", *on_cpu, *at, "--tokens", 256)
        losses.append(json.loads((tmp_path / "cpu.json").read_text())["results"][0]["nll"])
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], abs=1e-3)
