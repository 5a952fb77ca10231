"""`eval` from outside: its numbers against an independent float64 model, its files, and what it refuses."""

import json
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from reference.copy_mixture_numpy import VALIDATION_BIT, CopyMixture
from reference.goat_numpy import Model, ModelConfig
from prepared import write_shard

TRAIN_LENGTH = 24
MODEL = {
    "model.layers": 2,
    "model.heads": 2,
    "model.width": 32,
    "model.vocab": 50,
    "prior.pos_rank": 3,
    "prior.abs_rank": 4,
    "prior.init": "random",
    "prior.sink_init_scale": 0.5,
    "prior.recency": "free",
    "data.seq_len": TRAIN_LENGTH,
    "data.bos": 49,
    "train.steps": 12,
    "train.batch": 4,
    "train.micro_batch": 2,
    "train.lr": 0.03,
    "train.min_lr": 0.03,
    "train.warmup": 2,
    "eval.tokens": 144,
    "log.interval": 100,
}
VARIANTS = {
    "goat, free slope, bos": {"data.block": "bos"},
    "goat, free slope, window": {"data.block": "window"},
    "goat, softplus slope from alibi": {"prior.recency": "softplus", "prior.init": "alibi"},
    "goat, no slope": {"prior.recency": "off"},
    "goat, learned frequencies": {"prior.learned_frequencies": "true"},
    "goat, spare lanes": {"prior.lane_dim": 10},
    "rope": {"model.attention": "rope", "model.rope_base": 100},
    "rope_pi, in part, with the prior": {"model.attention": "goat+rope_pi", "model.rope_fraction": 0.5},
    "alibi": {"model.attention": "alibi"},
    "alibi_learned, sinusoidal": {"model.attention": "alibi_learned+sinusoidal"},
    "none, unscaled": {"model.attention": "none", "model.attn_scale": "none"},
    "llama, goat": {"model.block": "llama", "model.ff_width": 40},
    "llama, rope, untied": {"model.block": "llama", "model.attention": "rope", "model.tied": "false"},
}


def some_text(rng, count, vocab):
    """Tokens of which some are frequent and many follow from the one before: there is something to learn."""
    fresh = rng.integers(vocab, size=count) * rng.integers(vocab, size=count) // vocab
    tokens = fresh.copy()
    for t in np.flatnonzero(rng.random(count) < 0.5)[1:]:
        tokens[t] = (3 * tokens[t - 1] + 1) % vocab
    return tokens


@pytest.fixture
def train_run(run_binary, tmp_path):
    """train_run(tokens, changes={}): trains MODEL with `changes` on the tokens, also the validation data.

    Returns the run's folder."""

    def train(tokens, changes={}):
        write_shard(tmp_path / "tokens.bin", tokens)
        data = {
            "data.source": "shards",
            "data.train": tmp_path / "tokens.bin",
            "data.val": tmp_path / "tokens.bin",
        }
        settings = [
            word for key, value in (MODEL | data | changes).items() for word in ("--set", f"{key}={value}")
        ]
        run_binary("--config", "copy_mixture", "--device", "cpu", "--out", tmp_path / "run", *settings)
        return tmp_path / "run"

    return train


def reference_model(run):
    """The model a run's files describe, in float64; only config.toml and model.safetensors are used."""
    config = tomllib.loads((run / "config.toml").read_text())
    newest = max((run / "checkpoints").glob("step_*/model.safetensors"))
    return Model(ModelConfig.from_run(config), load_file(newest))


def cut(tokens, length, sequences, block, bos):
    """Inputs and targets, [sequences, length] each."""
    stream = np.concatenate([[bos], tokens]) if block == "bos" else tokens
    targets = stream[1 : 1 + sequences * length].reshape(sequences, length)
    inputs = stream[: sequences * length].reshape(sequences, length).copy()
    if block == "bos":
        inputs[:, 0] = bos
    return inputs, targets


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_tokens_loss_equals_float64_from_the_files_of_the_run_also_beyond_the_training_length(
    train_run, run_binary, tmp_path, rng, variant
):
    tokens = some_text(rng, 24 * 20 + 7, 50)
    run = train_run(tokens, VARIANTS[variant])
    run_binary(
        "eval",
        "--checkpoint",
        run,
        "--lengths",
        "12,24,96",
        "--per-token",
        tmp_path / "nll.npy",
        "--json",
        tmp_path / "eval.json",
    )
    model = reference_model(run)
    block = tomllib.loads((run / "config.toml").read_text())["data"]["block"]
    results = json.loads((tmp_path / "eval.json").read_text())["results"]
    assert [line["length"] for line in results] == [12, 24, 96]
    for line in results:
        got = np.load(line["per_token"])
        assert got.dtype == np.float32 and got.shape == (line["sequences"], line["length"])
        want = model.token_losses(*cut(tokens, line["length"], line["sequences"], block, 49))
        assert np.abs(got - want).max() <= 1e-4
        assert want.std() > 0.1
        assert line["nll"] == pytest.approx(want.mean(), abs=1e-5)
        assert line["perplexity"] == pytest.approx(np.exp(want.mean()), rel=1e-5)


def test_learned_positions_are_those_of_training_and_no_more(train_run, run_binary, tmp_path, rng):
    tokens = some_text(rng, 24 * 20 + 7, 50)
    run = train_run(tokens, {"model.attention": "learned", "data.block": "window"})
    out = tmp_path / "eval.json"
    command = ("eval", "--checkpoint", run, "--json", out, "--per-token", tmp_path / "nll.npy", "--lengths")
    run_binary(*command, "12,24")
    for line in json.loads(out.read_text())["results"]:
        want = reference_model(run).token_losses(
            *cut(tokens, line["length"], line["sequences"], "window", 49)
        )
        assert np.abs(np.load(line["per_token"]) - want).max() <= 1e-4
    refused = run_binary(*command, "12,25", code=2)
    assert "--lengths 25" in refused.stderr and "up to 24 tokens" in refused.stderr
    assert refused.stdout == ""  # before anything is evaluated
    sample = ("sample", "--checkpoint", run, "--tokenizer", "ids", "--prompt", "1 2 3", "--tokens")
    too_long = run_binary(*sample, 22, code=2)
    assert "prompt of 3 tokens" in too_long.stderr and "up to 24 tokens, not 25" in too_long.stderr
    assert len(run_binary(*sample, 21).stdout.split()) == 24
    assert "--length 25" in run_binary("analyze", "--checkpoint", run, "--length", 25, code=2).stderr


def test_results_files_and_table_agree_and_every_length_sees_the_same_tokens(
    train_run, run_binary, tmp_path, rng
):
    tokens = some_text(rng, 500, 50)
    run = train_run(tokens, {"data.block": "bos"})
    result = run_binary(
        "eval",
        "--checkpoint",
        run,
        "--lengths",
        "48,24,6",
        "--per-token",
        tmp_path / "nll.npy",
        "--json",
        tmp_path / "eval.json",
    )
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["step"] == 12 and report["train_length"] == 24 and report["protocol"] == "recut"
    assert report["tokens_left_out"] == 500 - 480 and "20 at the end left out" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.split() and line.split()[0].isdigit()]
    for row, line in zip(rows, report["results"], strict=True):
        assert [int(cell) for cell in row[:3]] == [line["length"], line["sequences"], line["tokens"]]
        assert [float(cell) for cell in row[3:]] == pytest.approx([line["nll"], line["perplexity"]], abs=6e-5)
        assert line["tokens"] == 480 and "bits_per_byte" not in line
        losses = np.load(line["per_token"]).astype(np.float64)
        assert line["nll"] == pytest.approx(losses.mean(), rel=1e-12)
        assert line["curve"][0]["first"] == 0 and line["curve"][-1]["end"] == line["length"]
        for one, following in zip(line["curve"], line["curve"][1:]):
            assert one["end"] == following["first"]
        for entry in line["curve"]:
            assert entry["nll"] == pytest.approx(losses[:, entry["first"] : entry["end"]].mean(), rel=1e-12)
    assert {path.name for path in tmp_path.glob("*.npy")} == {"nll_48.npy", "nll_24.npy", "nll_6.npy"}


def test_the_training_length_is_the_default_and_gives_the_runs_validation_loss(
    train_run, run_binary, tmp_path, rng
):
    run = train_run(some_text(rng, 6 * 24, 50))  # eval.tokens: all that there is
    run_binary(
        "eval", "--checkpoint", run, "--json", tmp_path / "eval.json", "--per-token", tmp_path / "nll.npy"
    )
    (line,) = json.loads((tmp_path / "eval.json").read_text())["results"]
    assert (line["length"], line["sequences"]) == (24, 6)
    assert line["nll"] == pytest.approx(json.loads((run / "summary.json").read_text())["val_loss"], abs=1e-6)
    assert np.load(tmp_path / "nll.npy").shape == (6, 24)


def test_other_data_fewer_tokens_and_the_papers_protocol(train_run, run_binary, tmp_path, rng):
    run = train_run(some_text(rng, 400, 50))
    for n in range(2):
        write_shard(tmp_path / f"other_{n}.bin", some_text(rng, 1500, 50))

    def results(*arguments):
        run_binary(
            "eval",
            "--checkpoint",
            run,
            "--data",
            tmp_path / "other_*.bin",
            "--json",
            tmp_path / "eval.json",
            *arguments,
        )
        return [
            (line["length"], line["sequences"])
            for line in json.loads((tmp_path / "eval.json").read_text())["results"]
        ]

    assert results("--lengths", "24,48") == [(24, 124), (48, 62)]
    assert results("--lengths", "24,48", "--tokens", "200") == [(24, 8), (48, 4)]
    assert results("--lengths", "24,48", "--protocol", "paper") == [(24, 100), (48, 62)]


def test_a_glob_that_the_shell_expands_means_the_same_as_one_in_quotes(train_run, run_binary, tmp_path, rng):
    run = train_run(some_text(rng, 400, 50), {"train.steps": 2})
    names = [tmp_path / f"more_{n}.bin" for n in range(3)]
    for name in names:
        write_shard(name, some_text(rng, 240, 50))

    def loss(*arguments):
        run_binary("eval", *arguments, "--json", tmp_path / "eval.json")
        return json.loads((tmp_path / "eval.json").read_text())["results"][0]

    quoted = loss("--checkpoint", run, "--data", tmp_path / "more_*.bin")
    assert quoted["tokens"] == 720
    assert quoted == loss("--checkpoint", run, "--data", *names)
    assert quoted == loss(
        "--data", *reversed(names), "--checkpoint", run
    )  # in whatever order, before whatever follows
    assert quoted == loss(
        "--data", names[1], "--checkpoint", run, "--data", tmp_path / "more_*.bin"
    )  # each shard once
    assert loss("--checkpoint", run, "--data", *names[:2])["tokens"] == 480
    stderr = run_binary("eval", "--checkpoint", run, "--data", *names, tmp_path / "none.bin", code=3).stderr
    assert f"--data '{tmp_path}/none.bin': no file matches" in stderr

    odd = tmp_path / "more [1].bin"  # a name that is no pattern
    odd.write_bytes(names[0].read_bytes())
    assert loss("--checkpoint", run, "--data", odd) == loss("--checkpoint", run, "--data", names[0])


def test_relative_validation_data_are_found_from_every_folder(binary, run_command, tmp_path, rng):
    project, elsewhere = tmp_path / "pro[j]ect", tmp_path / "elsewhere"
    (project / "data").mkdir(parents=True)
    elsewhere.mkdir()
    write_shard(project / "data/tokens.bin", some_text(rng, 300, 50))
    data = {
        "data.source": "shards",
        "data.train": "data/*.bin",
        "data.val": "data/tok*.bin",
        "train.steps": 2,
    }
    settings = [word for key, value in (MODEL | data).items() for word in ("--set", f"{key}={value}")]

    def call(folder, *words, code=0):
        return run_command(
            ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, binary, *words], code=code
        )

    def loss(folder, run):
        call(folder, "eval", "--checkpoint", run, "--json", tmp_path / "eval.json")
        return json.loads((tmp_path / "eval.json").read_text())["results"]

    for out in ("runs/a", tmp_path / "far/away"):  # below the working folder, and far from it
        call(project, "--config", "copy_mixture", "--out", out, *settings)
        assert loss(elsewhere, project / out) == loss(project, project / out)
    write_shard(tmp_path / "here.bin", some_text(rng, 300, 50))
    (elsewhere / "data").mkdir()
    (tmp_path / "here.bin").rename(
        elsewhere / "data/tokens.bin"
    )  # of the same name, where the command is given
    assert "not those" in call(elsewhere, "eval", "--checkpoint", project / "runs/a").stderr
    (elsewhere / "data/tokens.bin").unlink()
    assert "not those" not in call(elsewhere, "eval", "--checkpoint", project / "runs/a").stderr
    moved = tmp_path / "moved"
    project.rename(moved)  # the folder of the past is gone, but the data are still beside the runs
    assert loss(elsewhere, moved / "runs/a")[0]["tokens"] == 288
    assert (moved / "runs/a").is_dir()
    call(elsewhere, "analyze", "--checkpoint", moved / "runs/a")
    assert (moved / "runs/a/analysis/signal_vs_sink.npy").exists()
    stderr = call(elsewhere, "eval", "--checkpoint", tmp_path / "far/away", code=3).stderr
    for word in (
        "data/tok*.bin",
        "the current folder",
        str(project),
        str(tmp_path / "far/away"),
        "--data GLOB",
    ):
        assert word in stderr, stderr


def test_validation_during_training_is_the_same_number_and_eval_says_how(
    train_run, run_binary, tmp_path, rng
):
    run = train_run(some_text(rng, 30 * 24, 50), {"eval.tokens": 5 * 24 + 7})
    said = run_binary("eval", "--checkpoint", run).stdout
    assert (
        "validation during training used the first 120 tokens: --lengths 24 --tokens 120 gives the same loss"
        in said
    )
    said = run_binary(
        "eval", "--checkpoint", run, "--lengths", 24, "--tokens", 120, "--json", tmp_path / "eval.json"
    ).stdout
    assert "validation during training" not in said
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["validation_tokens"] == 120
    assert report["results"][0]["nll"] == pytest.approx(
        json.loads((run / "summary.json").read_text())["val_loss"], abs=1e-6
    )
    assert (
        "validation during training"
        not in run_binary("eval", "--checkpoint", run, "--data", tmp_path / "tokens.bin").stdout
    )


def test_a_model_that_is_passed_on_needs_no_optimizer_state(train_run, run_binary, tmp_path, rng):
    run = train_run(some_text(rng, 200, 50), {"train.steps": 2})
    step = run / "checkpoints/step_00000002"
    flat = tmp_path / "shared"
    flat.mkdir()
    for name in (step / "model.safetensors", step / "state.json", run / "config.toml"):
        (flat / name.name).write_bytes(name.read_bytes())
    wanted = run_binary("eval", "--checkpoint", run).stdout.split("length  ")[-1]
    assert "step 2" in run_binary("eval", "--checkpoint", run).stdout
    for path in (flat, f"{flat}/", flat / "model.safetensors", step, step / "model.safetensors"):
        assert run_binary("eval", "--checkpoint", path).stdout.split("length  ")[-1] == wanted
    run_binary("analyze", "--checkpoint", flat)
    assert (flat / "analysis/analysis.json").exists() and not (tmp_path / "analysis").exists()
    run_binary("analyze", "--checkpoint", step)
    assert (run / "analysis/analysis.json").exists()
    (tmp_path / "best").symlink_to(step)
    (run / "analysis/analysis.json").unlink()
    run_binary("analyze", "--checkpoint", tmp_path / "best")  # through a link as well
    assert (run / "analysis/analysis.json").exists()
    (flat / "state.json").unlink()
    assert "state.json" in run_binary("eval", "--checkpoint", flat, code=3).stderr


@pytest.mark.parametrize("command", ["eval", "analyze", "sample"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_the_step_is_said(
    train_run, run_binary, rng, command
):
    run = train_run(some_text(rng, 200, 50), {"train.steps": 6, "checkpoint.interval": 2})
    newest, before = run / "checkpoints/step_00000006", run / "checkpoints/step_00000004"
    (newest / "model.safetensors").write_bytes(b"cut short")
    (before / "optimizer.safetensors").unlink()  # which nobody needs here
    options = ["--tokenizer", "ids", "--tokens", 1] if command == "sample" else []
    result = run_binary(command, "--checkpoint", run, *options)
    assert "warning:" in result.stderr and "step_00000006/model.safetensors" in result.stderr
    assert "step_00000004, step 4" in (result.stderr if command == "sample" else result.stdout)
    assert (
        "step_00000006" in run_binary(command, "--checkpoint", newest, *options, code=3).stderr
    )  # a step that is named is not replaced
    for step in (before, run / "checkpoints/step_00000002"):
        (step / "state.json").unlink()
    stderr = run_binary(command, "--checkpoint", run, *options, code=3).stderr
    assert "no complete checkpoint" in stderr and ".replaced" not in stderr
    (run / ".replaced").mkdir()
    assert str(run / ".replaced") in run_binary(command, "--checkpoint", run, *options, code=3).stderr


def test_generated_data_are_the_validation_sequences_of_the_run(run_binary, tmp_path):
    run = tmp_path / "run"
    settings = [word for key, value in MODEL.items() for word in ("--set", f"{key}={value}")]
    run_binary("--config", "copy_mixture", "--device", "cpu", "--out", run, *settings)
    result = run_binary(
        "eval",
        "--checkpoint",
        run,
        "--lengths",
        "24,72",
        "--json",
        tmp_path / "eval.json",
        "--per-token",
        tmp_path / "nll.npy",
    )
    summary = json.loads((run / "summary.json").read_text())
    lines = json.loads((tmp_path / "eval.json").read_text())["results"]
    assert [(line["length"], line["sequences"]) for line in lines] == [(24, 6), (72, 2)]
    assert lines[0]["nll"] == pytest.approx(summary["val_loss"], abs=1e-6)
    assert lines[0]["bayes_optimal_loss"] == pytest.approx(summary["bayes_optimal_loss"], rel=1e-6)
    assert "optimal loss" in result.stdout

    data = tomllib.loads((run / "config.toml").read_text())["data"]
    source = CopyMixture(50, 72, **data["copy_mixture"], seed=1)
    x = np.stack([source.tokens(VALIDATION_BIT | n) for n in range(2)])
    want = reference_model(run).token_losses(x[:, :-1], x[:, 1:])
    assert np.abs(np.load(tmp_path / "nll_72.npy") - want).max() <= 1e-4


def test_bits_per_byte_for_a_vocabulary_of_bytes(train_run, run_binary, tmp_path, rng):
    run = train_run(some_text(rng, 300, 256), {"model.vocab": 256, "train.steps": 2})
    result = run_binary("eval", "--checkpoint", run, "--json", tmp_path / "eval.json")
    (line,) = json.loads((tmp_path / "eval.json").read_text())["results"]
    assert (
        line["bits_per_byte"] == pytest.approx(line["nll"] / np.log(2), rel=1e-12)
        and "bits/byte" in result.stdout
    )


def test_bad_input_is_explained_and_leaves_no_file(train_run, run_binary, tmp_path, rng):
    run = train_run(some_text(rng, 200, 50), {"train.steps": 2})
    write_shard(tmp_path / "foreign.bin", np.arange(100))
    write_shard(tmp_path / "bad_end.bin", np.append(np.zeros(199, dtype=int), 50))
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    json_file = ["--json", tmp_path / "out.json", "--per-token", tmp_path / "out.npy"]
    for code, arguments, words in [
        (2, ["--lengths", "0"], ["--lengths", "0"]),
        (2, ["--lengths", "24,-8"], ["--lengths", "-8"]),
        (2, ["--lengths", "24,48,24"], ["--lengths", "24", "twice"]),
        (2, ["--lengths", "12k"], ["12k"]),
        (2, ["--protocol", "papr"], ["papr", "recut", "paper"]),
        (2, ["--tokens", "-1"], ["--tokens", "-1"]),
        (2, ["--tokens", "0"], ["--tokens", "0 is not allowed", "from 1 to"]),
        (2, ["--tokens", "1e3"], ["--tokens", "1e3 is not allowed", "integer from 1 to"]),
        (2, ["--lengths", "16000001"], ["--lengths", "from 1 to 16000000"]),
        (2, ["--lengths="], ["--lengths"]),
        (2, ["--tokens", "23"], ["--tokens", "23", "24"]),
        (2, ["--tokens", "48", "--protocol", "paper"], ["--tokens", "--protocol"]),
        (2, ["--json", tmp_path / "nowhere" / "out.json"], ["--json", "nowhere"]),
        (2, ["--per-token", tmp_path / "folder"], ["--per-token", "is a folder"]),
        (3, ["--lengths", "24,201"], ["201", "200 tokens"]),
        (3, ["--lengths", "24,25"], ["200", "divide"]),
        (3, ["--data", tmp_path / "nothing_*.bin"], ["nothing_*.bin"]),
        (3, ["--data", tmp_path / "foreign.bin"], ["foreign.bin", "50", "vocabulary"]),
        (3, ["--data", tmp_path / "bad_end.bin", "--tokens", "24"], ["bad_end.bin", "199", "50"]),
    ]:
        options = (
            arguments if {"--json", "--per-token"} & set(map(str, arguments)) else [*arguments, *json_file]
        )
        stderr = run_binary("eval", "--checkpoint", run, *options, code=code).stderr
        for word in words:
            assert word in stderr, stderr
        assert sorted(tmp_path.rglob("*")) == before, arguments
    for path in (tmp_path / "nowhere", tmp_path / "folder"):
        assert str(path) in run_binary("eval", "--checkpoint", path, code=3).stderr
    assert "--checkpoint" in run_binary("eval", code=2).stderr


def test_a_run_without_validation_data_or_with_generated_data_says_what_data_it_takes(
    train_run, run_binary, tmp_path, rng
):
    tokens = some_text(rng, 200, 50)
    run = train_run(tokens, {"data.val": "", "train.steps": 2})
    assert "--data" in run_binary("eval", "--checkpoint", run, code=2).stderr
    run_binary("eval", "--checkpoint", run, "--data", tmp_path / "tokens.bin")
    settings = [
        word for key, value in (MODEL | {"train.steps": 2}).items() for word in ("--set", f"{key}={value}")
    ]
    run_binary("--config", "copy_mixture", "--out", tmp_path / "generated", *settings)
    refused = run_binary(
        "eval", "--checkpoint", tmp_path / "generated", "--data", tmp_path / "tokens.bin", code=2
    )
    assert "copy_mixture" in refused.stderr
