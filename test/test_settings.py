"""Every key of the config: that it has an effect, and what a resumed run makes of another value
(docs/resume.md)."""

import re
import shutil
import subprocess
import tomllib

import numpy as np
import pytest

from conftest import REPOSITORY
from prepared import write_shard
from test_train import TINY, flags, metrics_of

BASE = TINY | {"train.steps": 8, "checkpoint.interval": 4, "checkpoint.keep": 0}
SHARDS = {
    "data.source": "shards",
    "data.block": "window",
    "data.bos": 1,
    "data.train": "{shards}/train_*.bin",
    "data.val": "{shards}/val_0.bin",
}
MIXTURE = "1 {shards}/train_0.bin, 1 {shards}/train_1.bin"
MIXED = SHARDS | {"data.train": "", "data.mixture": MIXTURE}
WILD = {
    "train.lr": 10,
    "train.min_lr": 10,
    "train.clip": 0,
    "train.weight_decay": 100,
    "train.steps": 40,
}  # soon not finite
SPIKES = {"train.spike_z": 1, "train.spike_window": 3, "train.max_skips": 30, "train.steps": 30}

TASK = {"model.vocab": 70, "data.seq_len": 80}
PASSKEY = TASK | {"data.source": "passkey"}
NIAH = TASK | {"data.source": "niah"}

# Another value of each key, and the settings beside which it shows.
OTHER = {
    "model.block": ("llama", {}),
    "model.layers": (2, {}),
    "model.heads": (1, {}),
    "model.kv_heads": (1, {}),
    "model.width": (32, {}),
    "model.ff_width": (48, {}),
    "model.vocab": (32, {}),
    "model.tied": ("false", {}),
    "model.bias": ("false", {}),
    "model.norm_eps": (0.1, {}),
    "model.qk_norm": ("true", {}),
    "model.attention": ("none", {}),
    "model.rope_base": (100, {"model.attention": "rope"}),
    "model.rope_fraction": (0.5, {"model.attention": "rope"}),
    "model.attn_scale": ("none", {}),
    "model.precision": ("bf16", {}),
    "model.tf32": ("all", {}),
    "model.epilogue": ("library", {}),
    "model.recompute": ("block", {"model.layers": 4}),
    "prior.pos_rank": (2, {}),
    "prior.abs_rank": (3, {}),
    "prior.lane_dim": (6, {}),
    "prior.base": (100, {"prior.pos_rank": 2}),
    "prior.abs_base": (100, {}),
    "prior.init": ("random", {}),
    "prior.recency": ("free", {}),
    "prior.learned_frequencies": ("true", {}),
    "prior.sink_hidden": (9, {}),
    "prior.sink_init_scale": (0.5, {}),
    "prior.lr_scale": (5, {}),
    "prior.forget_lr_scale": (5, {"model.attention": "forget"}),
    "data.source": ("shards", {key: value for key, value in SHARDS.items() if key != "data.source"}),
    "data.train": ("{shards}/train_0.bin", SHARDS),
    "data.mixture": (MIXTURE.replace("1 {shards}/train_1", "3 {shards}/train_1"), MIXED),
    "data.val": ("{shards}/train_0.bin", SHARDS),
    "data.seq_len": (24, {}),
    "data.block": ("bos", SHARDS),
    "data.bos": (2, SHARDS | {"data.block": "bos"}),
    "data.record_tokens": (50, SHARDS | {"data.block": "crop", "data.record_tokens": 100}),
    "data.copy_mixture.p_first": (0.75, {}),
    "data.copy_mixture.p_prev": (0.75, {}),
    "data.passkey.digits": (5, PASSKEY),
    "data.passkey.max_depth": (0.1, PASSKEY),
    "data.niah.letters": (5, NIAH),
    "data.niah.min_depth": (0.8, NIAH),
    "data.niah.max_depth": (0.2, NIAH),
    "train.steps": (10, {}),
    "train.tokens": (1000, {}),
    "train.batch": (6, {}),
    "train.micro_batch": (1, {}),
    "train.lr": (0.5, {}),
    "train.min_lr": (0.009, {}),
    "train.warmup": (6, {}),
    "train.schedule": ("constant", {}),
    "train.decay_share": (0.5, {"train.schedule": "wsd"}),
    "train.beta1": (0.2, {}),
    "train.beta2": (0.5, {}),
    "train.eps": (0.5, {}),
    "train.weight_decay": (10, {}),
    "train.clip": (1e-3, {}),
    "train.loss": ("span", PASSKEY),
    "train.span_weight": (1, PASSKEY | {"train.loss": "mixed"}),
    "train.rounding": ("stochastic", {}),
    "train.seed": (2, {}),
    "train.deterministic": ("false", {}),
    "train.cuda_graph": ("off", {}),
    "train.spike_z": (1, {key: value for key, value in SPIKES.items() if key != "train.spike_z"}),
    "train.spike_window": (4, SPIKES),
    "train.max_skips": (3, WILD),
    "eval.interval": (3, {}),
    "eval.tokens": (48, {}),
    "checkpoint.interval": (3, {}),
    "checkpoint.minutes": (1e-9, {}),
    "checkpoint.keep": (1, {}),
    "checkpoint.milestone": (4, {"checkpoint.keep": 1}),
    "distributed.leaves": (4, {}),
    "distributed.bucket_mib": (1, {}),
    "distributed.overlap": ("false", {}),
    "distributed.reduce": ("nccl", {}),
    "distributed.wire": ("bf16", {}),
    "distributed.levels": (2, {}),
    "distributed.check_interval": (3, {}),
    "distributed.start_timeout": (50, {}),
    "distributed.heartbeat_timeout": (5, {}),
    "distributed.progress_timeout": (70, {}),
    "log.interval": (3, {}),
}
AMONG_RANKS = {key for key in OTHER if key.startswith("distributed.") and key != "distributed.leaves"}
# The cpu takes no other value of it: one shows by its refusal, and cannot be resumed with.
EFFECT = OTHER | {"train.cuda_graph": ("on", {})}


def keys_of(table, prefix=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key


@pytest.fixture(scope="module")
def all_keys(binary):
    printed = subprocess.run(
        [binary, "--config", "copy_mixture", "--print-config"], capture_output=True, text=True, check=True
    )
    return list(keys_of(tomllib.loads(printed.stdout)))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    draw = np.random.default_rng(5)
    for name in ("train_0", "train_1", "val_0"):
        write_shard(folder / f"{name}.bin", draw.integers(0, 16, 1000))
    return folder


def settings_of(shards, settings):
    return flags({key: str(value).replace("{shards}", str(shards)) for key, value in settings.items()})


def start(binary, folder, words):
    command = [str(word) for word in [binary, *words, "--out", folder]]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def what_shows(result, folder):
    """What a person or a script can see of a run, but for speeds."""
    printed = re.sub(
        r"[\d.]+ (tokens/s|GFLOP/s|s\b|GiB)|ETA.*|trained in.*", "", result.stdout + result.stderr
    )
    lines = metrics_of(folder) if (folder / "metrics.jsonl").exists() else []
    seen = [
        {
            key: value
            for key, value in line.items()
            if key not in ("tokens_per_second", "flops_per_second", "seconds")
        }
        for line in lines
    ]
    saved = sorted(path.name for path in folder.glob("checkpoints/*"))
    return result.returncode, printed.replace(str(folder), ""), seen, saved


def test_every_key_is_in_both_tables(all_keys):
    assert set(OTHER) == set(all_keys)
    assert [key for key, _ in documented()] == all_keys


def test_every_key_has_an_effect(binary, shards, tmp_path, all_keys):
    """Those that matter only among several ranks are in test_rank_settings."""
    before = {}
    for number, key in enumerate(key for key in all_keys if key not in AMONG_RANKS):
        value, beside = EFFECT[key]
        name = str(sorted(beside.items()))
        if name not in before:
            folder = tmp_path / f"base{number}"
            words = ["--config", "copy_mixture", *settings_of(shards, BASE | beside)]
            before[name] = what_shows(start(binary, folder, words), folder)
        folder = tmp_path / f"changed{number}"
        after = what_shows(
            start(
                binary,
                folder,
                ["--config", "copy_mixture", *settings_of(shards, BASE | beside | {key: value})],
            ),
            folder,
        )
        assert after != before[name], f"{key} = {value} changes nothing that shows"
    again = tmp_path / "again"
    assert (
        what_shows(start(binary, again, ["--config", "copy_mixture", *settings_of(shards, BASE)]), again)
        == before["[]"]
    )


def documented():
    """(key, what a change does) as docs/resume.md says."""
    return re.findall(
        r"^\| `([\w.]+)` \| (.+?) \|$", (REPOSITORY / "docs/resume.md").read_text(), re.MULTILINE
    )


@pytest.fixture(scope="module")
def interrupted(binary, shards, tmp_path_factory):
    """interrupted(settings): a run of 8 steps whose newest checkpoint is that of step 4."""
    made = {}

    def make(beside):
        name = str(sorted(beside.items()))
        if name not in made:
            folder = tmp_path_factory.mktemp("interrupted") / "run"
            result = start(binary, folder, ["--config", "copy_mixture", *settings_of(shards, BASE | beside)])
            assert result.returncode in (0, 1), result.stderr
            for path in folder.glob("checkpoints/*"):
                if path.name != "step_00000004":
                    shutil.rmtree(path)
            made[name] = folder
        return made[name]

    return make


@pytest.mark.parametrize("kind", ["silent", "reported", "no effect", "refused"])
def test_a_changed_key_does_what_its_row_says(binary, shards, tmp_path, interrupted, kind):
    keys = [(key, says) for key, says in documented() if says.split(":")[0] == kind]
    assert keys
    for key, says in keys:
        value, beside = OTHER[key]
        steps = {"train.steps": 8} if key not in ("train.steps", "train.tokens") else {}
        old = interrupted(beside | steps)
        folder = tmp_path / key
        shutil.copytree(old, folder)
        result = start(binary, folder, ["--resume", *settings_of(shards, {key: value})])
        told = f"{key} = "
        if kind == "refused":
            assert (
                result.returncode == 2 and told in result.stderr and says.split(": ", 1)[1] in result.stderr
            ), (key, result.stderr)
            continue
        assert result.returncode == 0, (key, result.stderr)
        assert (told in result.stderr) == (kind != "silent"), (key, result.stderr)
        assert ("no effect" in result.stderr and key in result.stderr) == (
            kind == "no effect"
            or key in ("model.tf32", "model.epilogue", "train.rounding", "train.deterministic")
        ), key
        ours, theirs = ([(line["step"], line["loss"]) for line in metrics_of(run)] for run in (folder, old))
        assert ours[:4] == theirs[:4], key
        if kind in ("silent", "no effect"):
            assert ours == theirs, key


def test_zeros_that_mean_the_default_are_the_default(binary, shards, tmp_path, interrupted):
    old = interrupted({})
    same = {"model.kv_heads": 2, "model.ff_width": 64, "model.bias": "true"}
    for key, value in (same | {"prior.lane_dim": 4, "train.micro_batch": 4}).items():
        folder = tmp_path / key
        shutil.copytree(old, folder)
        result = start(binary, folder, ["--resume", *settings_of(shards, {key: value})])
        assert result.returncode == 0 and key not in result.stderr, result.stderr


def test_a_changed_batch_goes_on_where_the_data_were_left(binary, tmp_path):
    """4 steps of 4 sequences, then steps of 2: the sixth step of the second run is the first half of the
    fifth one's sequences of the first.

    With a learning rate of next to nothing a step's loss tells which sequences it read."""
    still = {
        "train.lr": 1e-12,
        "train.min_lr": 1e-12,
        "train.warmup": 0,
        "train.weight_decay": 0,
        "eval.tokens": 0,
    }
    whole, split = tmp_path / "whole", tmp_path / "split"
    assert start(binary, whole, ["--config", "copy_mixture", *flags(BASE | still)]).returncode == 0
    assert (
        start(
            binary, split, ["--config", "copy_mixture", *flags(BASE | still | {"train.steps": 4})]
        ).returncode
        == 0
    )
    result = start(binary, split, ["--resume", *flags({"train.batch": 2, "train.steps": 12})])
    assert result.returncode == 0 and "train.batch = 2" in result.stderr
    one, other = (metrics_of(folder) for folder in (whole, split))
    assert [line["tokens"] for line in other] == [64, 128, 192, 256, *range(288, 513, 32)]
    for step in range(4, 8):
        pair = [other[4 + 2 * (step - 4) + half]["loss"] for half in (0, 1)]
        assert np.mean(pair) == pytest.approx(one[step]["loss"], rel=1e-6)
    assert "training sequences" not in result.stderr


def test_the_length_in_tokens_counts_those_that_were_trained(binary, tmp_path):
    """640 tokens: 4 steps of 64, then 384 more in steps of 128."""
    settings = BASE | {"train.steps": 0, "train.tokens": 256, "eval.tokens": 0}
    assert start(binary, tmp_path / "run", ["--config", "copy_mixture", *flags(settings)]).returncode == 0
    result = start(binary, tmp_path / "run", ["--resume", *flags({"train.tokens": 640, "train.batch": 8})])
    assert result.returncode == 0, result.stderr
    lines = metrics_of(tmp_path / "run")
    assert [line["tokens"] for line in lines] == [64, 128, 192, 256, 384, 512, 640]
    assert lines[-1]["lr"] == pytest.approx(TINY.get("train.min_lr", 1e-3))
    again = start(binary, tmp_path / "run", ["--resume"])
    assert again.returncode == 0 and "nothing to do" in again.stdout
