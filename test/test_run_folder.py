"""A run's folder: what an overwrite, a failed start, changed data and a second process may do to it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import numpy as np
import pytest

from prepared import write_shard
from test_train import TINY, changed, flags, metrics_of

SMALL = TINY | {"train.steps": 6, "checkpoint.keep": 0}
LONG = TINY | {"train.steps": 10_000_000, "eval.tokens": 0, "log.interval": 1_000_000}


def on(settings, *extra):
    return ["--config", "copy_mixture", *flags(settings), *extra]


def everything_in(folder):
    """Every file's path and bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def finished(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    subprocess.run([binary, *on(SMALL, "--out", folder)], check=True, capture_output=True, timeout=300)
    (folder / "figures/prior.png").write_bytes(b"a figure")
    (folder / "analysis").mkdir()
    (folder / "analysis/analysis.json").write_text("{}")
    return folder


@pytest.fixture
def run(tmp_path, finished):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_shard(folder / "train_0.bin", np.arange(2000) % 16)
    write_shard(folder / "val_0.bin", np.arange(500) % 16)
    return folder


def shards(folder, **changes):
    settings = SMALL | {
        "data.source": "shards",
        "data.block": "window",
        "data.train": f"{folder}/train*.bin",
        "data.val": f"{folder}/val*.bin",
    }
    return changed(settings, changes)


FAILING_STARTS = {
    "no data": ({"data.source": "shards", "data.block": "window", "data.train": "nowhere/*.bin"}, 3),
    "too much memory": ({"model.width": 65536, "model.layers": 100, "model.heads": 64}, 1),
    "a bad token in the first step": ("bad data", 3),
    "a graph on the cpu": ({"train.cuda_graph": "on"}, 2),
}


@pytest.mark.parametrize("how", [[], ["--overwrite"], ["--resume"]], ids=["fresh", "overwrite", "resume"])
@pytest.mark.parametrize("name", FAILING_STARTS)
def test_a_failed_start_leaves_no_trace(run_binary, tmp_path, finished, name, how):
    settings, code = FAILING_STARTS[name]
    if settings == "bad data":
        (tmp_path / "data").mkdir()
        write_shard(tmp_path / "data/train_0.bin", np.full(1000, 16))
        settings = {"data.source": "shards", "data.block": "window", "data.train": f"{tmp_path}/data/*.bin"}
    folder = tmp_path / "a/b/run"
    if how:
        shutil.copytree(finished, folder)
        before = everything_in(folder)
    code = 2 if how == ["--resume"] and any(key.startswith("model.") for key in settings) else code
    run_binary(*on(SMALL | settings | {"train.steps": 8, "eval.tokens": 0}, "--out", folder, *how), code=code)
    if how:
        assert everything_in(folder) == before and not (folder / ".lock").exists()
    else:
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("metrics", ["", None], ids=["empty metrics", "no metrics"])
def test_a_killed_start_is_no_run(run_binary, tmp_path, metrics):
    """A config without a step: an earlier version, or a kill at the worst moment, has left it."""
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/figures").mkdir()
    (tmp_path / "run/config.toml").write_text("[train]\nsteps = 5  # mine\n")
    if metrics is not None:
        (tmp_path / "run/metrics.jsonl").write_text(metrics)
    (tmp_path / "run/.lock").write_text("process 1 on host nowhere\n")
    run_binary(*on(SMALL, "--out", tmp_path / "run"))
    assert len(metrics_of(tmp_path / "run")) == 6 and not (tmp_path / "run/.lock").exists()
    assert "# mine" in (tmp_path / "run/config.toml.before").read_text()


def test_a_config_of_ones_own_trains_in_its_folder(run_binary, binary, tmp_path):
    text = run_binary(*on(SMALL, "--print-config")).stdout
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.toml").write_text(text)
    subprocess.run([binary, "--config", "config.toml"], cwd=tmp_path / "own", check=True, timeout=300)
    assert len(metrics_of(tmp_path / "own")) == 6


@pytest.mark.parametrize("how", [[], ["--overwrite"], ["--resume"]], ids=["fresh", "overwrite", "resume"])
def test_a_folder_with_a_foreign_config_is_no_run(run_binary, tmp_path, how):
    (tmp_path / "site/figures").mkdir(parents=True)
    (tmp_path / "site/config.toml").write_text('baseURL = "x"\n')
    (tmp_path / "site/figures/a.png").write_text("a picture")
    before = everything_in(tmp_path / "site")
    assert "no run" in run_binary(*on(SMALL, "--out", tmp_path / "site", *how), code=2).stderr
    assert everything_in(tmp_path / "site") == before


def test_an_overwrite_removes_all_of_the_old_run_once_the_new_one_has_a_checkpoint(run_binary, run):
    assert "--overwrite" in run_binary(*on(SMALL, "--out", run), code=2).stderr
    run_binary(*on(SMALL | {"train.steps": 3}, "--out", run, "--overwrite"))
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_00000003"]
    assert len(metrics_of(run)) == 3
    assert (
        not list(run.glob("figures/*"))
        and not (run / "analysis").exists()
        and not (run / ".replaced").exists()
    )


def wait_for(process, happened):
    deadline = time.monotonic() + 300
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.001)


def has_steps(folder, count=1):
    return (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").read_bytes().count(
        b"\n"
    ) >= count


@pytest.fixture
def start_long_run(binary):
    """start_long_run(folder, ...): a run that goes on until it is stopped; killed after the test at the
    latest."""
    started = []

    def start(folder, *extra):
        command = [binary, *on(LONG, "--out", folder, *extra)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_an_overwrite_that_is_killed_before_its_first_checkpoint_keeps_the_old_run(
    start_long_run, run_binary, run, finished
):
    process = start_long_run(run, "--overwrite")
    wait_for(process, lambda: (run / ".replaced").exists() and has_steps(run))
    process.kill()
    process.wait()
    assert everything_in(run / ".replaced") == everything_in(finished)
    assert ".replaced" in run_binary("eval", "--checkpoint", run, code=3).stderr
    run_binary("eval", "--checkpoint", run / ".replaced")
    run_binary(*on(SMALL | {"train.cuda_graph": "on"}, "--out", run, "--overwrite"), code=2)
    assert everything_in(run / ".replaced") == everything_in(finished)
    run_binary(*on(SMALL | {"train.steps": 3}, "--out", run, "--overwrite"))
    assert not (run / ".replaced").exists() and len(metrics_of(run)) == 3


def test_a_run_that_was_half_moved_aside_goes_back(run_binary, run, finished):
    (run / ".replaced.partial").mkdir()
    os.rename(run / "metrics.jsonl", run / ".replaced.partial/metrics.jsonl")
    os.rename(run / "config.toml", run / ".replaced.partial/config.toml")
    assert "nothing to do" in run_binary(*on(SMALL, "--out", run, "--resume")).stdout
    assert everything_in(run) == everything_in(finished)


def test_an_overwrite_does_not_replace_a_link_and_a_resume_writes_through_it(run_binary, run, tmp_path):
    elsewhere = tmp_path / "large disk"
    (run / "checkpoints").rename(elsewhere)
    (run / "checkpoints").symlink_to(elsewhere)
    before = everything_in(run) | everything_in(elsewhere)
    error = run_binary(*on(SMALL, "--out", run, "--overwrite"), code=2).stderr
    assert "checkpoints is a link to" in error and str(elsewhere) in error and "--out" in error
    assert everything_in(run) | everything_in(elsewhere) == before
    run_binary("--resume", "--out", run, "--set", "train.steps=8")
    assert (run / "checkpoints").is_symlink() and (elsewhere / "step_00000008").is_dir()


def test_a_resume_with_nothing_to_do_that_nobody_can_read_fails(binary, run):
    with open("/dev/full", "wb") as full:
        resumed = subprocess.run([binary, "--resume", "--out", run], stdout=full, stderr=subprocess.PIPE)
    assert resumed.returncode == 1 and b"No space left on device" in resumed.stderr


def test_a_run_moved_aside_by_an_overwrite_that_had_nothing_yet_goes_back(run_binary, run, finished):
    (run / ".replaced").mkdir()
    for path in list(run.iterdir()):
        if path.name != ".replaced":
            os.rename(path, run / ".replaced" / path.name)
    assert "another run" in run_binary(*on(SMALL, "--out", run), code=2).stderr
    assert everything_in(run / ".replaced") == everything_in(finished)
    assert "holds a run" in run_binary(*on(SMALL, "--out", run, "--dry-run")).stdout
    assert "nothing to do" in run_binary("--resume", "--out", run).stdout
    assert everything_in(run) == everything_in(finished)


@pytest.mark.parametrize("how", ["--resume", "--overwrite", None])
def test_a_second_process_in_a_runs_folder_is_refused_and_told_who_is_there(
    start_long_run, run_binary, tmp_path, how
):
    run = tmp_path / "run"
    process = start_long_run(run)
    wait_for(process, lambda: has_steps(run, 3))
    before = (run / "config.toml").read_bytes()
    result = run_binary(*on(SMALL, "--out", run, *([how] if how else [])), code=2)
    if how:
        assert f"process {process.pid} on host {socket.gethostname()}" in result.stderr
    assert (run / "config.toml").read_bytes() == before
    assert f"process {process.pid}" in run_binary(*on(SMALL, "--out", run, "--dry-run")).stdout
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 4
    assert not (run / ".lock").exists()
    lines = metrics_of(run)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))


def test_a_lock_whose_holder_was_killed_holds_nobody_up(start_long_run, run_binary, tmp_path):
    run = tmp_path / "run"
    process = start_long_run(run)
    wait_for(process, lambda: has_steps(run))
    process.kill()
    process.wait()
    assert (run / ".lock").exists()
    run_binary(*on(SMALL, "--out", run, "--overwrite"))
    assert not (run / ".lock").exists()


def test_a_run_whose_folder_was_moved_saves_nothing_in_the_folder_that_took_its_place(
    start_long_run, tmp_path
):
    run = tmp_path / "run"
    first = start_long_run(run)
    wait_for(first, lambda: has_steps(run))
    run.rename(tmp_path / "moved")
    second = start_long_run(run)
    wait_for(second, lambda: has_steps(run))
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=300) == 1
    assert (run / ".lock").read_text().startswith(f"process {second.pid} ")
    assert not list((run / "checkpoints").iterdir())


@pytest.fixture
def no_locks(tmp_path):
    """The environment of a file system without flock."""
    (tmp_path / "no_locks.c").write_text(
        "#include <errno.h>\nint flock(int f, int o) { errno = ENOLCK; return -1; }\n"
    )
    library = tmp_path / "no_locks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "no_locks.c"], check=True)
    return os.environ | {"LD_PRELOAD": str(library), "LD_BIND_NOW": "1"}


def test_without_locks_the_file_itself_is_the_lock_and_the_message_says_what_to_do(
    binary, tmp_path, no_locks
):
    def start(*words):
        return subprocess.run(
            [binary, *on(SMALL, "--out", tmp_path / "run", *words)],
            env=no_locks,
            capture_output=True,
            text=True,
            timeout=300,
        )

    assert start().returncode == 0 and not (tmp_path / "run/.lock").exists()
    (tmp_path / "run/.lock").write_text("process 4711 on host elsewhere\n")
    refused = start("--overwrite")
    assert refused.returncode == 2
    assert (
        "process 4711 on host elsewhere" in refused.stderr
        and f"remove {tmp_path}/run/.lock" in refused.stderr
    )
    (tmp_path / "run/.lock").unlink()
    assert start("--overwrite").returncode == 0


def test_a_finished_run_is_left_alone_and_so_is_one_with_fewer_steps_asked_for(run_binary, run, finished):
    assert "nothing to do" in run_binary("--resume", "--out", run).stdout
    fewer = run_binary("--resume", "--out", run, "--set", "train.steps=4")
    assert "has done 6 steps" in fewer.stdout and "asks for 4" in fewer.stdout
    assert everything_in(run) == everything_in(finished)


def test_resume_takes_the_runs_own_config_and_needs_a_run(run_binary, run, tmp_path):
    run_binary("--resume", "--out", run, "--set", "train.steps=8")
    assert len(metrics_of(run)) == 8
    assert "steps = 8" in (run / "config.toml").read_text()
    missing = run_binary("--resume", "--out", tmp_path / "nothing", code=2)
    assert "no run" in missing.stderr and not (tmp_path / "nothing").exists()


def test_data_made_again_in_place_are_refused_until_they_are_allowed(run_binary, tmp_path, data):
    run = tmp_path / "run"
    run_binary(*on(shards(data), "--out", run))
    before = everything_in(run)
    more = ["--resume", "--out", run, "--set", "train.steps=8"]

    write_shard(data / "train_0.bin", np.arange(400) % 16)  # fewer tokens
    assert re.search("train_0.bin has 400 tokens and had 2000", run_binary(*more, code=3).stderr)
    write_shard(data / "train_0.bin", (np.arange(2000) + 1) % 16)  # as many, others
    assert "other contents" in run_binary(*more, code=3).stderr
    write_shard(data / "train_0.bin", np.arange(2000) % 16)
    write_shard(data / "train_1.bin", np.arange(100) % 16)  # one more shard
    assert "1 shard before, 2 shards now" in run_binary(*more, code=3).stderr
    assert everything_in(run) == before

    allowed = run_binary(*more, "--allow-changed-data")
    assert "the training data have changed" in allowed.stderr and len(metrics_of(run)) == 8


def test_the_same_shards_elsewhere_are_the_same_data_and_other_shards_are_reported(
    run_binary, tmp_path, data
):
    run = tmp_path / "run"
    run_binary(*on(shards(data), "--out", run))
    shutil.copytree(data, tmp_path / "moved")
    result = run_binary(
        "--resume", "--out", run, *flags({"train.steps": 8, "data.train": f"{tmp_path}/moved/train*.bin"})
    )
    assert "have changed" not in result.stderr
    write_shard(tmp_path / "moved/train_0.bin", np.arange(700) % 16)
    shutil.rmtree(data)
    result = run_binary(
        "--resume",
        "--out",
        run,
        *flags(
            {
                "train.steps": 9,
                "data.train": f"{tmp_path}/moved/train_*.bin",
                "data.val": f"{tmp_path}/moved/val*.bin",
            }
        ),
    )
    assert "the training data have changed: train_0.bin has 700 tokens and had 2000" in result.stderr


def test_changed_validation_data_are_reported(run_binary, tmp_path, data):
    run_binary(*on(shards(data), "--out", tmp_path / "run"))
    write_shard(data / "val_0.bin", np.arange(600) % 16)
    result = run_binary("--resume", "--out", tmp_path / "run", "--set", "train.steps=8")
    assert "validation data have changed" in result.stderr


def write_meta(folder, **changes):
    meta = {"tokenizer": "bytes", "vocab": 16, "end_of_text": None, "shards": []} | changes
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["train", "dry run"])
def test_shards_of_another_vocabulary_are_refused_at_the_start(run_binary, tmp_path, data, dry):
    write_meta(data, tokenizer="gpt2", vocab=50257)
    result = run_binary(*on(shards(data), "--out", tmp_path / "run", *dry), code=3)
    assert "gpt2" in result.stderr and "50257" in result.stderr and "model.vocab = 16" in result.stderr
    write_meta(data, vocab=16)
    result = run_binary(*on(shards(data, model__vocab=50257), "--out", tmp_path / "run", *dry), code=3)
    assert "bytes" in result.stderr and "model.vocab=16" in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_tokenizer_is_read_from_meta_json_or_said_to_be_assumed(run_binary, tmp_path, data):
    assert re.search(
        "tokenizer +unknown: no meta.json of prepare.py",
        run_binary(*on(shards(data), "--out", tmp_path / "a")).stdout,
    )
    assumed = run_binary(*on(shards(data, model__vocab=256), "--out", tmp_path / "b")).stdout
    assert re.search("tokenizer +bytes, assumed from model.vocab = 256", assumed)
    write_meta(data, end_of_text=3)
    padded = run_binary(
        *on(shards(data, model__vocab=64, data__block="bos", data__bos=0), "--out", tmp_path / "c")
    )
    assert re.search("tokenizer +bytes, as meta.json", padded.stdout)
    assert "data.bos" in padded.stderr and "token 3" in padded.stderr
    state = json.loads(next((tmp_path / "c/checkpoints").glob("*/state.json")).read_text())
    assert state["data"]["tokenizer"] == "bytes" and state["data"]["working_folder"] == os.getcwd()
    assert [shard["tokens"] for shard in state["data"]["training"]] == [2000]


def test_a_foreign_meta_json_is_no_obstacle_a_damaged_one_is_named(run_binary, tmp_path, data):
    for text in ("[]", '{"vocab": "many"}'):
        (data / "meta.json").write_text(text)
        assert "no meta.json of prepare.py" in run_binary(*on(shards(data), "--dry-run")).stdout
    for text in ("{", '{"tokenizer": "bytes", "vocab": 16, "end_of_text": null, "shards": [1]}'):
        (data / "meta.json").write_text(text)
        assert str(data / "meta.json") in run_binary(*on(shards(data), "--dry-run"), code=3).stderr


def test_checkpoints_by_time(run_binary, tmp_path):
    run_binary(*on(SMALL | {"checkpoint.minutes": 1e-9}, "--out", tmp_path / "every"))
    assert len(list((tmp_path / "every/checkpoints").iterdir())) == 6
    run_binary(*on(SMALL, "--out", tmp_path / "last"))
    assert len(list((tmp_path / "last/checkpoints").iterdir())) == 1
    printed = run_binary("--config", "c4_125m", "--print-config").stdout
    assert "minutes = 10" in printed  # nobody loses more


def test_a_run_that_diverges_without_a_single_nan_says_so(run_binary, tmp_path):
    wild = {"train.lr": 10, "train.min_lr": 10, "train.clip": 0, "train.weight_decay": 0, "train.steps": 40}
    result = run_binary(*on(TINY | wild, "--out", tmp_path / "run"))
    assert "diverges" in result.stderr and "ln V = 2.77" in result.stderr and "train.lr" in result.stderr
    assert result.stderr.count("diverges") <= 3
    calm = run_binary(*on(TINY | {"train.steps": 40}, "--out", tmp_path / "calm"))
    assert "diverges" not in calm.stderr


def test_the_validation_loss_depends_on_the_data_alone_and_is_what_eval_finds(run_binary, tmp_path, data):
    """500 tokens are 31 windows of 16, of which 25 are asked for; no micro-batch divides that but 1 and 5."""
    values = []
    for micro_batch in (1, 2, 4, 8):
        run = tmp_path / f"run{micro_batch}"
        run_binary(
            *on(
                shards(
                    data,
                    train__batch=8,
                    train__micro_batch=micro_batch,
                    train__lr=1e-9,
                    train__min_lr=1e-9,
                    eval__tokens=25 * 16 + 7,
                ),
                "--out",
                run,
            )
        )
        values.append(metrics_of(run)[-1]["val_loss"])
        run_binary("eval", "--checkpoint", run, "--tokens", 25 * 16 + 7, "--json", tmp_path / "eval.json")
        (result,) = json.loads((tmp_path / "eval.json").read_text())["results"]
        assert result["tokens"] == 25 * 16 and result["nll"] == pytest.approx(values[-1], rel=1e-6)
    assert values == pytest.approx([values[0]] * 4, rel=1e-6)


def test_validation_takes_all_there_is_where_more_is_asked_for(run_binary, tmp_path, data):
    run_binary(*on(shards(data, train__batch=8, eval__tokens=10**9), "--out", tmp_path / "run"))
    run_binary("eval", "--checkpoint", tmp_path / "run", "--json", tmp_path / "eval.json")
    (result,) = json.loads((tmp_path / "eval.json").read_text())["results"]
    assert result["tokens"] == 31 * 16
    assert result["nll"] == pytest.approx(metrics_of(tmp_path / "run")[-1]["val_loss"], rel=1e-6)


def test_the_old_name_of_a_key_is_understood_and_reported(run_binary, tmp_path, run):
    """On the command line a batch is train.batch sequences; in a file of the version that had the key, a
    micro-batch."""
    settings = {"eval.batches": 2, "train.batch": 8, "train.micro_batch": 2, "data.seq_len": 16}
    result = run_binary("--config", "copy_mixture", *flags(settings), "--print-config")
    assert "tokens = 256" in result.stdout and "batches" not in result.stdout
    assert "eval.batches is now eval.tokens" in result.stderr and "256" in result.stderr
    later = run_binary(
        "--config", "copy_mixture", *flags({"eval.batches": 2, "eval.tokens": 99}), "--print-config"
    )
    assert "tokens = 99" in later.stdout and not later.stderr
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub("(?m)^tokens = 192.*$", "batches = 3", config))
    resumed = run_binary("--resume", "--out", run, "--set", "train.steps=8")
    assert "eval.batches is now eval.tokens" in resumed.stderr and len(metrics_of(run)) == 8
    (tmp_path / "old.toml").write_text(
        "[eval]\nbatches = 2\n[train]\nbatch = 8\nmicro_batch = 2\nsteps = 5\nwarmup = 0\n"
        "[data]\nseq_len = 16\nsource = 'copy_mixture'\n"
    )
    assert "tokens = 64" in run_binary("--config", tmp_path / "old.toml", "--print-config").stdout
    (tmp_path / "both.toml").write_text("[eval]\ntokens = 5\nbatches = 2\n")
    assert (
        "eval.batches = 2" in run_binary("--config", tmp_path / "both.toml", "--print-config", code=2).stderr
    )


def test_lines_say_whether_their_loss_is_a_mean(run_binary, tmp_path):
    result = run_binary(*on(TINY | {"train.steps": 12, "log.interval": 4}, "--out", tmp_path / "run"))
    lines = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    losses = [line["loss"] for line in metrics_of(tmp_path / "run")]
    assert f"  loss {losses[0]:.4f}" in lines[0] and "mean loss" not in lines[0]
    assert f"mean loss {np.mean(losses[8:12]):.4f}" in lines[-1]
    assert f"loss of the last step {losses[-1]:.4f}" in result.stdout


def test_the_advice_on_missing_data_is_the_configs_own_command(run_binary):
    for config, words in {
        "shakespeare": "--tokenizer bytes --out data/shakespeare FILE",
        "c4_125m": "--tokenizer gpt2 --out data/mine FILE",
        "genome_25m": "--input FILE.fa.gz --out data/mine\n",
    }.items():
        assert (
            words
            in run_binary(
                "--config", config, "--set", "data.train=" + words.split()[3] + "/train_0*.bin", code=3
            ).stderr
        )
    for pattern, words in {
        "my data/*.bin": "--out 'my data' FILE",
        "d/*/train*.bin": "--out FOLDER FILE",
        "d/other*.bin": "--out FOLDER FILE",
    }.items():
        assert words in run_binary("--config", "shakespeare", "--set", f"data.train={pattern}", code=3).stderr


def test_a_dry_run_tells_of_epochs_folder_memory_and_tokenizer_before_all_else(
    run_binary, tmp_path, data, run
):
    result = run_binary(*on(shards(data), "--out", run, "--dry-run"))
    assert result.stdout.startswith("parameters") and "[model]" not in result.stdout
    assert "0.1935 epochs" in result.stdout  # 6 steps of 4 windows, of the 124 that fit at any shift
    assert (
        "holds a run (newest checkpoint step_00000006)" in result.stdout
        and "memory: there is" in result.stdout
    )
    with_config = run_binary(
        *on(shards(data), "--out", tmp_path / "new", "--dry-run", "--print-config")
    ).stdout
    assert with_config.startswith("parameters") and "[model]" in with_config and "new: new" in with_config
    (tmp_path / "files").mkdir()
    (tmp_path / "files/thesis.tex").write_text("")
    assert (
        "choose another folder"
        in run_binary(*on(shards(data), "--out", tmp_path / "files", "--dry-run")).stdout
    )


def test_a_run_keeps_the_tokenizer_that_lies_beside_its_shards(run_binary, tmp_path, data):
    odd = data.rename(tmp_path / "data[1]")
    (odd / "tokenizer").mkdir()
    for name in ("vocab.bpe", "encoder.json"):
        (odd / "tokenizer" / name).write_text(name)
    run_binary(*on(shards(tmp_path / r"data\[1]"), "--out", tmp_path / "run"))
    kept = {path.name: path.read_text() for path in (tmp_path / "run/tokenizer").iterdir()}
    assert kept == {"vocab.bpe": "vocab.bpe", "encoder.json": "encoder.json"}


def test_resume_finds_the_data_where_the_run_was_first_started(binary, tmp_path, data):
    """The data lie in no folder above the run; the second resume must still know the first start's folder."""
    start, elsewhere, run = tmp_path / "start", tmp_path / "elsewhere", tmp_path / "runs/run"
    for folder in (start, elsewhere):
        folder.mkdir()
    data.rename(start / "data")
    subprocess.run([binary, *on(shards("data"), "--out", run)], cwd=start, check=True, timeout=300)
    for steps in (8, 10):
        command = [binary, "--resume", "--out", run, "--set", f"train.steps={steps}"]
        subprocess.run(command, cwd=elsewhere, check=True, timeout=300)
    assert len(metrics_of(run)) == 10


def test_a_dry_run_of_a_resume_says_what_the_resume_would(run_binary, run):
    refused = run_binary("--resume", "--out", run, "--dry-run", "--set", "model.width=32", code=2)
    assert "model.width = 32" in refused.stderr
    reported = run_binary("--resume", "--out", run, "--dry-run", "--set", "train.lr=0.002")
    assert "train.lr = 0.002" in reported.stderr


def test_damaged_checkpoints_take_no_place_of_those_that_are_kept(run_binary, tmp_path):
    run = tmp_path / "run"
    run_binary(*on(SMALL | {"train.steps": 20, "checkpoint.interval": 5}, "--out", run))
    for step in (15, 20):
        (run / f"checkpoints/step_{step:08d}/model.safetensors").write_bytes(b"")
    more = {"train.steps": 23, "checkpoint.keep": 2, "checkpoint.interval": 6}
    run_binary("--resume", "--out", run, *flags(more))
    left = sorted(int(path.name[5:]) for path in (run / "checkpoints").iterdir())
    assert [step for step in left if step not in (15, 20)] == [18, 23]
    run_binary("eval", "--checkpoint", run / "checkpoints/step_00000018")


def test_an_empty_folder_name_is_refused(run_binary):
    assert "--out" in run_binary(*on(SMALL, "--out", ""), code=2).stderr
