"""The command that data/prepare.py prints at its end, as a shell and the program take it."""

import os
import shlex
import subprocess

import pytest

import prepare_advice
from conftest import REPOSITORY
from prepared import make_set, prepare, stream

TEXT = b"the cat and the dog\n" * 200


def printed_command(output):
    """The last line, which is the command."""
    return output.splitlines()[-1].strip()


def dry_run(command, binary, cwd, code=0):
    """Runs the printed command, through a shell, with --dry-run; it names the program by its place."""
    assert command.startswith(f"{REPOSITORY}/train_gpt_goat ")
    command = shlex.quote(str(binary)) + command.removeprefix(f"{REPOSITORY}/train_gpt_goat") + " --dry-run"
    result = subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert result.returncode == code, command + "\n" + result.stdout + result.stderr
    return result.stdout + result.stderr


NAMES = [
    "plain", "with space", "run[1]", "a*b?c", "back\\slash", "tick's", 'quo"ted', "~", "~root", "$HOME",
    "-dash", "{a,b}", "'quoted'", '"double"', "caf\u00e9", " space ", "#", "=", "a;b", "[!x]", "x]", "\\[",
    "d/run[1]/deep", "..dots", "\u6587",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_command_works_whatever_the_folder_is_called(tmp_path, binary, name):
    """Relative and from the root; decoys stand where an unescaped pattern would look."""
    for decoy in ("run1", "axbyc", "ab", "x", "backslash", "a", "b", "d/run1/deep"):
        (tmp_path / decoy).mkdir(parents=True)
        (tmp_path / decoy / "train_000000.bin").write_bytes(b"decoy")
    for out in (name, f"{tmp_path}/{name}") if name == "run[1]" else (name,):
        options = ["--tokenizer", "bytes", "--overwrite"]
        command = printed_command(prepare("text", f"--out={out}", *options, "-", stdin=TEXT, cwd=tmp_path))
        assert "3600 tokens" in dry_run(command, binary, tmp_path)
        words = shlex.split(command)
        assert words[words.index("--out") + 1] == f"runs/{os.path.basename(name)}"


def test_a_folder_behind_a_link_is_found(tmp_path, binary):
    (tmp_path / "deep" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/real")
    output = make_set("link/../d", "-", stdin=TEXT, cwd=tmp_path)
    assert (tmp_path / "deep" / "d" / "meta.json").exists()
    assert "3600 tokens" in dry_run(printed_command(output), binary, tmp_path)


@pytest.mark.parametrize("name", ["line\nend", "tab\there", "\x1b[1m", os.fsdecode(b"\xff")])
def test_a_folder_that_the_config_cannot_name_is_refused(tmp_path, name):
    error = make_set(tmp_path / name, "-", stdin=TEXT, code=2)
    assert "the trainer's config could not name it" in error and "\x1b" not in error
    assert not os.listdir(tmp_path)


def test_the_command_for_bytes_is_complete(tmp_path, binary):
    output = make_set("d", "-", stdin=TEXT, cwd=tmp_path)
    assert shlex.split(printed_command(output)) == [
        f"{REPOSITORY}/train_gpt_goat", "--config", "shakespeare", "--out", "runs/d",
        "--set", "data.train=d/train_*.bin", "--set", "data.val=d/val_*.bin",
        "--set", "model.vocab=256", "--set", "data.block=window",
    ]  # fmt: skip
    assert output.splitlines()[-2] == "Train with this, or with another preset (--list-configs) or file:"
    assert output.splitlines()[1:3] == [
        "  train           3,600 tokens in 1 shard d/train_*.bin",
        "  val               400 tokens in 1 shard d/val_*.bin",
    ]


def test_the_command_for_gpt2_is_complete(tmp_path, binary, tiny):
    options = ["--tokenizer", "gpt2", "--tokenizer-dir", tiny]
    command = printed_command(prepare("text", "--out", "d", *options, "-", stdin=TEXT, cwd=tmp_path))
    assert shlex.split(command)[5:] == [
        "--set", "data.train=d/train_*.bin", "--set", "data.val=d/val_*.bin", "--set", "model.vocab=263",
        "--set", "data.block=bos", "--set", "data.bos=262",
    ]  # fmt: skip
    tokens = stream(tmp_path / "d")[1]["train_tokens"]
    assert f"{tokens} tokens" in dry_run(command, binary, tmp_path)


def test_in_the_repository_the_program_is_called_from_there(monkeypatch, tmp_path):
    monkeypatch.chdir(REPOSITORY)
    assert prepare_advice.program() == "./train_gpt_goat"
    monkeypatch.chdir(tmp_path)
    assert prepare_advice.program() == f"{REPOSITORY}/train_gpt_goat"


@pytest.mark.parametrize(("tokenizer", "needed"), [("bytes", 129), ("gpt2", 128)])
def test_splits_too_small_for_a_sequence_are_said_and_left_out(tmp_path, binary, tiny, tokenizer, needed):
    """One token less than a sequence of the preset needs, and just enough."""
    options = ["--tokenizer", tokenizer, *(["--tokenizer-dir", tiny] if tokenizer == "gpt2" else [])]
    extra = tokenizer == "gpt2"  # the token that begins the document
    for train, val in [(needed, needed), (needed, needed - 1), (needed - 1, needed)]:
        total = train + val
        fraction = ["--val-fraction", repr((val - 0.5) / total)]
        text = b"b" * (total - extra)
        words = ["text", "--out", "d", "--overwrite", *options, *fraction, "-"]
        output = prepare(*words, stdin=text, cwd=tmp_path)
        meta = stream(tmp_path / "d")[1]
        assert (meta["train_tokens"], meta["val_tokens"]) == (train, val)
        assert ("val: too few tokens for a sequence of 128" in output) == (val < needed)
        assert ("train: too few tokens for a sequence of 128" in output) == (train < needed)
        if train < needed:
            assert "train_gpt_goat" not in output
        else:
            assert ('data.val=""' in output) == (val < needed)
            dry_run(printed_command(output), binary, tmp_path)
    assert stream(tmp_path / "d")[1]["train_tokens"] == needed - 1  # what the program says to that:
    words = [
        binary,
        "--config",
        "shakespeare",
        "--set",
        "data.train=d/train_*.bin",
        "--set",
        "model.vocab=263",
    ]
    block = ["--set", f"data.block={'bos' if extra else 'window'}", "--set", "data.bos=262", "--dry-run"]
    assert subprocess.run([*words, *block], cwd=tmp_path, capture_output=True, timeout=300).returncode == 3


def test_without_validation_the_command_does_without(tmp_path, binary):
    options = ["--tokenizer", "bytes", "--val-fraction", "0"]
    output = prepare("text", "--out", "d", *options, "-", stdin=TEXT, cwd=tmp_path)
    assert "too few" not in output and 'data.val=""' in output
    assert "  val                 0 tokens in 0 shards\n" in output
    dry_run(printed_command(output), binary, tmp_path)


def test_validation_alone_is_for_eval(tmp_path):
    options = ["--tokenizer", "bytes", "--val-fraction", "1"]
    output = prepare("text", "--out", "d[1]", *options, "-", stdin=TEXT, cwd=tmp_path)
    assert shlex.split(printed_command(output))[1:] == [
        "eval",
        "--checkpoint",
        "RUN",
        "--data",
        r"d\[1]/val_*.bin",
    ]


def test_the_presets_lengths_are_the_programs(run_binary):
    listed = run_binary("--list-configs").stdout
    presets = [prepare_advice.ANY_PRESET, *prepare_advice.PRESETS.values()]
    presets = [(name, length) for name, length in presets if name in listed]
    assert {"shakespeare", "c4_125m", "fineweb_1b"} <= {name for name, _ in presets}
    for name, length in presets:
        assert f"seq_len = {length} " in run_binary("--config", name, "--print-config").stdout
