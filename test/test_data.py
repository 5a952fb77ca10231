"""Shards of 32-bit tokens, mixtures, records and checksums, given to the program itself."""

import hashlib
import json
import re

import numpy as np
import pytest

from prepared import write_shard
from test_train import TINY, flags, metrics_of

SHARDS = TINY | {"data.source": "shards", "data.block": "window", "train.steps": 6, "checkpoint.keep": 0}


def on(*words, **changes):
    settings = SHARDS | {key.replace("__", "."): value for key, value in changes.items()}
    return ["--config", "copy_mixture", *flags(settings), *words]


def write_wide_shard(path, tokens):
    header = np.zeros(256, "<i4")
    header[:3] = 20240801, 7, len(tokens)
    path.write_bytes(header.tobytes() + np.asarray(tokens).astype("<u4").tobytes())


def write_meta(folder, **changes):
    names = sorted(path.name for path in folder.glob("*.bin"))
    shards = [
        {"file": name, "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()} for name in names
    ]
    meta = {"tokenizer": "bytes", "vocab": 16, "end_of_text": None, "shards": shards} | changes
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.fixture
def sets(tmp_path):
    """Two sets, a and b, of a training shard each."""
    draw = np.random.default_rng(3)
    for name, count in (("a", 2000), ("b", 1000)):
        (tmp_path / name).mkdir()
        write_shard(tmp_path / name / "train_0.bin", draw.integers(0, 16, count))
        write_meta(tmp_path / name)
    return tmp_path


def mixture(sets, *, a=3, b=1):
    return f"{a} {sets}/a/train_*.bin, {b} {sets}/b/train_*.bin"


def losses(run):
    return [line["loss"] for line in metrics_of(run)]


def test_the_width_of_a_shard_changes_nothing_but_its_size(run_binary, tmp_path):
    tokens = np.random.default_rng(4).integers(0, 16, 1000)
    write_shard(tmp_path / "narrow.bin", tokens)
    write_wide_shard(tmp_path / "wide.bin", tokens)
    for name in ("narrow", "wide"):
        run_binary(*on("--out", tmp_path / name, data__train=tmp_path / f"{name}.bin"))
    assert losses(tmp_path / "wide") == losses(tmp_path / "narrow")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), ["1000 tokens of 4 bytes", "cut short"]),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0" * 4), ["5028", "trailing"]),
        (
            lambda path: write_wide_shard(path, np.where(np.arange(1000) == 600, 2**31 + 3, 1)),
            ["token 600", "2147483651"],
        ),
    ],
    ids=["cut short", "trailing bytes", "id above 2^31"],
)
def test_a_bad_shard_of_wide_tokens_ends_the_run_with_exit_code_3(run_binary, tmp_path, make, words):
    write_wide_shard(tmp_path / "train_0.bin", np.arange(1000) % 16)
    make(tmp_path / "train_0.bin")
    path = tmp_path / "train_0.bin"
    result = run_binary(*on("--out", tmp_path / "run", data__train=path, train__steps=2000), code=3)
    for word in [str(path), *words]:
        assert word in result.stderr


def test_a_shard_that_is_not_the_one_prepared_ends_the_run_with_exit_code_3(run_binary, sets):
    train = sets / "a" / "train_0.bin"
    tokens = bytearray(train.read_bytes())
    tokens[-2] ^= 1  # still in the vocabulary
    train.write_bytes(tokens)
    found = hashlib.sha256(tokens).hexdigest()
    result = run_binary(*on("--out", sets / "run", data__train=train, train__steps=20000), code=3)
    assert str(train) in result.stderr and found in result.stderr
    assert "copy or prepare it again" in result.stderr


def test_a_mixture_is_told_trained_resumed_and_its_data_are_guarded(run_binary, sets):
    settings = {"data__mixture": mixture(sets), "train__lr": 0.01, "train__min_lr": 0.01}
    told = run_binary(*on("--dry-run", **settings)).stdout
    # 24 sequences: 18 of a's 124 windows, 6 of b's 61
    assert re.search(r"75 %: 1 shard '.*/a/train_\*\.bin': 2000 tokens, .*; 0\.1452 epochs", told)
    assert re.search(r"25 %: 1 shard '.*/b/train_\*\.bin': 1000 tokens, .*; 0\.09836 epochs", told)
    assert "tokenizer:       bytes, as meta.json" in told
    whole = run_binary(*on("--out", sets / "whole", **settings))
    assert "mixture of 2 sources" in whole.stdout and "0.1452 epochs in this run" in whole.stdout
    run_binary(*on("--out", sets / "run", **settings | {"train__steps": 3}))
    run_binary("--resume", "--out", sets / "run", "--set", "train.steps=6")
    assert losses(sets / "run") == losses(sets / "whole") and len(losses(sets / "run")) == 6

    state = json.loads(next((sets / "run/checkpoints").glob("*6/state.json")).read_text())
    assert [shard["name"] for shard in state["data"]["training"]] == ["1/train_0.bin", "2/train_0.bin"]
    write_shard(sets / "b" / "train_0.bin", np.arange(1000) % 16)
    write_meta(sets / "b")
    more = ["--resume", "--out", sets / "run", "--set", "train.steps=8"]
    for weights in (mixture(sets), mixture(sets, a=1)):
        refused = run_binary(*more, "--set", f"data.mixture={weights}", code=3)
        assert f"data.mixture = '{weights}'" in refused.stderr and "2/train_0.bin" in refused.stderr
    run_binary(*more, "--allow-changed-data")


def test_a_mixture_is_found_from_another_folder(run_binary, sets, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(sets)
    run_binary(*on("--out", "run", data__mixture="1 a/*.bin, 1 b/*.bin"))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    run_binary("--resume", "--out", sets / "run", "--set", "train.steps=8")


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"data__train": "x", "data__mixture": "1 y"}, 2, ["data.train", "data.mixture", "both"]),
        ({"data__mixture": "1 a.bin, b.bin"}, 2, ['"b.bin" does not begin with a weight']),
        ({"data__mixture": "1 nowhere/*.bin"}, 3, ["nowhere/*.bin", "data.mixture"]),
    ],
)
def test_a_mixture_that_cannot_work_is_refused(run_binary, tmp_path, changes, code, words):
    result = run_binary(*on("--out", tmp_path / "run", **changes), code=code)
    for word in words:
        assert word in result.stderr
    assert not (tmp_path / "run").exists()


def test_sources_of_different_tokenizers_are_not_mixed(run_binary, sets):
    write_meta(sets / "b", tokenizer="gpt2")
    result = run_binary(*on("--out", sets / "run", data__mixture=mixture(sets)), code=3)
    assert "different tokenizers" in result.stderr and "gpt2" in result.stderr


def test_records_are_cropped_in_training_and_taken_from_their_start_by_eval(run_binary, sets):
    settings = {
        "data__block": "crop",
        "data__record_tokens": 50,
        "data__train": sets / "a" / "train_0.bin",
        "data__val": sets / "b" / "train_0.bin",
    }
    run = sets / "run"
    write_meta(sets / "a", record_tokens=50, tokenizer="dna")
    printed = run_binary(*on("--out", run, **settings)).stdout
    assert "crops of 16 from 40 records of 50, shuffled" in printed
    words = ["eval", "--checkpoint", run, "--json", sets / "eval.json"]
    run_binary(*words, "--lengths", "16,32", "--per-token", sets / "nll.npy")
    results = json.loads((sets / "eval.json").read_text())["results"]
    assert [(row["length"], row["sequences"]) for row in results] == [(16, 20), (32, 20)]
    for row in results:
        assert row["bits_per_base"] == pytest.approx(row["nll"] / np.log(2), rel=1e-12)
    short, long = (np.load(sets / f"nll_{length}.npy") for length in (16, 32))
    assert np.allclose(long[:, :16], short, atol=1e-3)  # the same records, from their starts on
    assert not np.allclose(long[:19, :16], short[1:], atol=1e-3)

    too_long = run_binary(*words, "--lengths", "16,50", code=3)
    assert "data.record_tokens = 50" in too_long.stderr and too_long.stdout == ""
    refused = run_binary(*on("--out", sets / "other", **settings | {"data__seq_len": 50}), code=2)
    assert "data.seq_len = 50" in refused.stderr
    refused = run_binary(*on("--out", sets / "other", **settings | {"data__record_tokens": 40}), code=3)
    assert "records of 50 tokens (meta.json)" in refused.stderr


def test_the_summary_has_the_time_that_was_spent_waiting_for_data(run_binary, sets):
    result = run_binary(*on("--out", sets / "run", data__train=sets / "a" / "train_0.bin"))
    waited = json.loads((sets / "run" / "summary.json").read_text())["seconds_waiting_for_data"]
    assert 0 <= waited < 1 and "waited" not in result.stderr
