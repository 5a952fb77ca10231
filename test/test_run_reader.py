"""Which checkpoint of a run is read: plot.py's choice against the program's, over many damaged runs."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
import xxhash

import run_reader
from conftest import REPOSITORY
from console import DataError, UsageError
from test_train import flags

PLOT = REPOSITORY / "scripts" / "plot.py"
STEPS = (2, 4, 6)
TINY = {
    "model.width": 16, "model.vocab": 16, "prior.pos_rank": 1, "prior.abs_rank": 2, "data.seq_len": 16,
    "train.batch": 4, "train.steps": 6, "train.warmup": 1, "eval.batches": 1, "checkpoint.interval": 2,
    "checkpoint.keep": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(binary, tmp_path_factory):
    """A run with three checkpoints."""
    import subprocess

    folder = tmp_path_factory.mktemp("run_reader") / "run"
    words = [binary, "--config", "copy_mixture", "--out", folder, *flags(TINY)]
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def checkpoint(run, step):
    return run / "checkpoints" / f"step_{step:08d}"


def seal(path, change=lambda manifest: None):
    """Changes state.json and gives it the checksum that belongs to it."""
    manifest = json.loads(path.read_text())
    change(manifest)
    del manifest["xxh3_64"]
    manifest |= {
        "seconds": 1.5,
        "loss": 2.5,
        "val_loss": None,
        "spike_window": [],
        "latest_losses": [],
    }  # the same in every JSON library
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    path.write_text(json.dumps(manifest | {"xxh3_64": xxhash.xxh3_64_hexdigest(text.encode())}, indent=2))


def edit(path, change):
    path.write_bytes(change(path.read_bytes()))


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def replace_by_link(path, target):
    path.unlink()
    path.symlink_to(target)


def weights(folder):
    return folder / "model.safetensors"


def state(folder):
    return folder / "state.json"


def list_elsewhere(manifest):
    manifest["files"][0]["name"] = "../model.safetensors"


def in_pieces(folder, change=lambda pieces: None):
    """Gives state.json the form that several ranks write: a checksum for each piece of a file."""

    def split(manifest):
        manifest["format"] = 2
        for file in manifest["files"]:
            del file["xxh3_64"]
            contents = (folder / file["name"]).read_bytes()
            starts = [0, 1000, 1008, len(contents) - 500]
            file["pieces"] = [
                {"offset": a, "bytes": b - a, "xxh3_64": xxhash.xxh3_64_hexdigest(contents[a:b])}
                for a, b in zip(starts, [*starts[1:], len(contents)], strict=True)
            ]
        change(manifest["files"][0]["pieces"])

    seal(state(folder), split)


# What happens to the newest checkpoint, and whether it can still be used.
BATTERY = {
    "untouched": (lambda f: None, True),
    "no state.json": (lambda f: state(f).unlink(), False),
    "state.json is empty": (lambda f: state(f).write_bytes(b""), False),
    "state.json is cut short": (lambda f: edit(state(f), lambda d: d[: len(d) // 2]), False),
    "state.json is a folder": (lambda f: replace_by_folder(state(f)), False),
    "a letter of the config has changed": (lambda f: edit(state(f), lambda d: flip(d, 20)), False),
    "a digit of the loss has changed": (
        lambda f: edit(state(f), lambda d: flip(d, d.index(b'"loss": ') + 8)), False,
    ),
    "a NUL behind the end": (lambda f: edit(state(f), lambda d: d + b"\0"), False),
    "text behind the end": (lambda f: edit(state(f), lambda d: d + b"x"), False),
    "a byte order mark": (lambda f: edit(state(f), lambda d: b"\xef\xbb\xbf" + d), True),
    "not UTF-8": (lambda f: edit(state(f), lambda d: d.replace(b"# L, ", b"# \xff, ", 1)), False),
    "half a surrogate pair": (
        lambda f: edit(state(f), lambda d: d.replace(b"# L, ", b"# \\ud800, ", 1)), False,
    ),
    "NaN in it": (lambda f: edit(state(f), lambda d: d.replace(b'"loss": ', b'"loss": NaN, "x": ')), False),
    "a list": (lambda f: state(f).write_bytes(b"[1]"), False),
    "nested deeply": (lambda f: state(f).write_bytes(b"[" * 5000), False),
    "white space has changed": (lambda f: edit(state(f), lambda d: d.replace(b"\n", b"\r\n\t ")), True),
    "sealed again": (lambda f: seal(state(f)), True),
    "new members": (
        lambda f: seal(state(f), lambda m: m.update(x={"a": ["\u00e9\u007f\t\u2028", 7, -1, True]})), True,
    ),
    "another format": (lambda f: seal(state(f), lambda m: m.update(format=3)), False),
    "the format of pieces without them": (lambda f: seal(state(f), lambda m: m.update(format=2)), False),
    "in pieces": (in_pieces, True),
    "in pieces, one of them damaged": (
        lambda f: (in_pieces(f), edit(weights(f), lambda d: flip(d, 1004))), False,
    ),
    "in pieces, the last one missing": (lambda f: in_pieces(f, lambda pieces: pieces.pop()), False),
    "in pieces, the first one missing": (lambda f: in_pieces(f, lambda pieces: pieces.pop(0)), False),
    "in pieces, one twice": (lambda f: in_pieces(f, lambda pieces: pieces.insert(1, pieces[1])), False),
    "in pieces, out of order": (lambda f: in_pieces(f, lambda pieces: pieces.reverse()), False),
    "in pieces, one empty": (
        lambda f: in_pieces(f, lambda pieces: pieces.insert(1, pieces[1] | {"bytes": 0})), False,
    ),
    "in pieces, an offset is wrong": (
        lambda f: in_pieces(f, lambda pieces: pieces[1].update(offset=1001)), False,
    ),
    "in pieces, none": (lambda f: in_pieces(f, lambda pieces: pieces.clear()), False),
    "in pieces, a checksum is a number": (
        lambda f: in_pieces(f, lambda pieces: pieces[2].update(xxh3_64=1)), False,
    ),
    "format true": (lambda f: seal(state(f), lambda m: m.update(format=True)), False),
    "no step": (lambda f: seal(state(f), lambda m: m.pop("step")), False),
    "a negative step": (lambda f: seal(state(f), lambda m: m.update(step=-6)), False),
    "config is a number": (lambda f: seal(state(f), lambda m: m.update(config=3)), False),
    "files are missing": (lambda f: seal(state(f), lambda m: m.pop("files")), False),
    "a size is text": (lambda f: seal(state(f), lambda m: m["files"][0].update(bytes="1")), False),
    "a checksum is a number": (lambda f: seal(state(f), lambda m: m["files"][0].update(xxh3_64=1)), False),
    "no weights": (lambda f: weights(f).unlink(), False),
    "weights are cut short": (lambda f: edit(weights(f), lambda d: d[:-4]), False),
    "weights are longer": (lambda f: edit(weights(f), lambda d: d + b"\0"), False),
    "a bit of the weights has changed": (lambda f: edit(weights(f), lambda d: flip(d, len(d) - 3)), False),
    "weights of another step": (
        lambda f: shutil.copy(f.parent / "step_00000004" / "model.safetensors", f), False,
    ),
    "weights are a folder": (lambda f: replace_by_folder(weights(f)), False),
    "weights are a link to nothing": (lambda f: replace_by_link(weights(f), "nothing"), False),
    "no optimizer state": (lambda f: (f / "optimizer.safetensors").unlink(), True),
    "a damaged optimizer state": (lambda f: edit(f / "optimizer.safetensors", lambda d: d[:9]), True),
    "a name without zeros": (lambda f: f.rename(f.parent / "step_6"), False),
    "a name with too many zeros": (lambda f: f.rename(f.parent / "step_000000006"), False),
    "a name with a letter": (lambda f: f.rename(f.parent / "step_0000000x"), False),
    "a hidden name": (lambda f: f.rename(f.parent / ".step_00000006"), False),
    "a file by a newer name": (lambda f: (f.parent / "step_00000009").write_bytes(b""), True),
    "an empty newer folder": (lambda f: (f.parent / "step_00000009").mkdir(), True),
    "a longer name": (lambda f: f.rename(f.parent / "step_123456789"), True),
    "the folder is a link": (lambda f: (f.rename(f.parent / "x"), f.symlink_to("x")), True),
}  # fmt: skip


@pytest.mark.parametrize("case", BATTERY)
def test_a_damaged_run_is_read_as_the_program_reads_it(run, run_binary, run_command, tmp_path, case):
    damage, usable = BATTERY[case]
    damage(checkpoint(run, 6))
    run_binary("eval", "--checkpoint", run, "--tokens", 16, "--json", tmp_path / "eval.json")
    warnings = []
    found = run_reader.open_checkpoint(run, None, warnings.append)
    assert found.step == json.loads((tmp_path / "eval.json").read_text())["step"] == (6 if usable else 4)
    assert found.config["model"]["width"] == 16
    for warning in warnings:
        assert (
            warning.startswith(f"warning: {run / 'checkpoints'}")
            and "trying the checkpoint before it" in warning
        )
    skipped = [] if usable or " name" in case else ["6"]
    skipped += ["9"] if case == "an empty newer folder" else []
    assert len(warnings) == len(skipped) and all(step in w for step, w in zip(skipped, warnings, strict=True))


@pytest.mark.parametrize(
    "case", ["a bit of the weights has changed", "state.json is cut short", "no weights"]
)
def test_a_damaged_checkpoint_that_is_asked_for_is_refused_by_both(run, run_binary, case):
    folder = checkpoint(run, 6)
    BATTERY[case][0](folder)
    for path, step in [(run, 6), (folder, None)]:
        with pytest.raises(DataError, match=str(folder)):
            run_reader.open_checkpoint(path, step, print)
    run_binary("eval", "--checkpoint", folder, "--tokens", 16, code=3)


def test_the_drawing_says_which_step_it_took_and_why(run, run_command):
    BATTERY["a bit of the weights has changed"][0](checkpoint(run, 6))
    result = run_command([sys.executable, PLOT, "prior", run])
    assert f"plot.py: warning: {weights(checkpoint(run, 6))}: its checksum does not match" in result.stderr
    assert f"Layer 0 at step 4, from {checkpoint(run, 4)}." in result.stdout
    assert len(result.stderr.splitlines()) == 1


def test_a_run_without_any_whole_checkpoint_is_refused(run, run_command):
    for step in STEPS:
        BATTERY["state.json is cut short"][0](checkpoint(run, step))
    error = run_command([sys.executable, PLOT, "prior", run], code=3).stderr
    assert len(error.splitlines()) == 4 and "none of its 3 checkpoints" in error.splitlines()[-1]
    assert not (run / "figures" / "prior.png").exists()


def test_every_state_that_the_program_writes_is_accepted(run_binary, tmp_path):
    """Many numbers: with a spike filter each holds the losses and norms of the updates before it, in full."""
    settings = TINY | {
        "train.steps": 200, "checkpoint.interval": 1, "train.spike_z": 9, "train.spike_window": 128,
    }  # fmt: skip
    run_binary("--config", "copy_mixture", "--out", tmp_path / "run", *flags(settings))
    folders = run_reader.step_folders(tmp_path / "run")
    assert list(folders) == list(range(200, 0, -1))
    numbers = set()
    for step, folder in folders.items():
        assert run_reader.read_checkpoint(folder).step == step
        manifest = json.loads(state(folder).read_text())
        numbers |= {manifest["seconds"], manifest["loss"], *manifest["spike_window"]}
    assert len(numbers) > 500


def test_numbers_keep_the_form_they_are_written_in():
    """The program's JSON library may write another form than Python's shortest, as 5e-324 as 4.9e-324."""
    for text in ["1.0", "1e-05", "1e-5", "0.00001", "4.9e-324", "1.7976931348623157e+308", "-0.0", "12.50"]:
        value = run_reader.parse_json(
            b'{"b": [' + text.encode() + b', 1, null, true], "a": "\\u00e9\\n"}', run_reader.Number
        )
        assert run_reader.canonical(value) == '{"a":"\u00e9\\n","b":[' + text + ",1,null,true]}"
        assert value["b"][0] == float(text)


def test_any_state_with_random_numbers_is_accepted_and_any_change_to_them_is_seen(run, rng):
    path = state(checkpoint(run, 6))
    values = np.frombuffer(rng.bytes(8 * 300), np.float64)
    manifest = json.loads(path.read_text())
    del manifest["xxh3_64"]
    manifest["spike_window"] = [float(value) for value in values if np.isfinite(value)]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    manifest["xxh3_64"] = xxhash.xxh3_64_hexdigest(text.encode())
    path.write_text(json.dumps(manifest, indent=1))
    assert run_reader.read_checkpoint(path.parent).step == 6
    manifest["spike_window"][7] = float(np.nextafter(manifest["spike_window"][7], 0))
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="checksum"):
        run_reader.read_checkpoint(path.parent)


def test_a_checkpoint_that_stands_alone_is_enough(run, tmp_path, run_command, run_binary):
    """To share a model: two files in a folder, whatever its name."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("model.safetensors", "state.json"):
        shutil.copy(checkpoint(run, 4) / name, shared)
    for path in (shared, shared / "model.safetensors"):
        out = run_command([sys.executable, PLOT, "prior", path]).stdout
        assert out.splitlines()[:2] == [
            str(shared / "figures" / "prior.png"),
            f"Layer 0 at step 4, from {shared}.",
        ]
        run_binary("eval", "--checkpoint", path, "--tokens", 16)
    inside = run_command([sys.executable, PLOT, "prior", checkpoint(run, 2)]).stdout
    assert inside.splitlines()[0] == str(run / "figures" / "prior.png") and "step 2" in inside
    with pytest.raises(UsageError, match="--checkpoint 5: .* step 4"):
        run_reader.open_checkpoint(shared, 5, print)
    assert run_reader.open_checkpoint(shared, 4, print).step == 4


def test_the_config_is_the_checkpoints_own(run, run_command):
    (run / "config.toml").write_text("[model]\nlayers = 'many'\nattention = 'none'\n")
    assert run_reader.open_checkpoint(run, None, print).value("model.attention", str) == "goat"
    run_command([sys.executable, PLOT, "prior", run])


def test_what_is_no_run_is_wrong_use(tmp_path, run_command):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "started" / "checkpoints").mkdir(parents=True)
    for name, code, part in [
        ("nowhere", 2, "no such folder"),
        ("file", 2, "is not a folder"),
        ("empty", 2, "holds no run"),
        ("started", 3, "no checkpoint step_*"),
    ]:
        error = run_command([sys.executable, PLOT, "prior", tmp_path / name], code=code).stderr
        assert part in error and str(tmp_path / name) in error and len(error.splitlines()) == 1


def test_pipes_are_not_waited_for(run):
    for name in ("state.json", "model.safetensors"):
        path = checkpoint(run, 6) / name
        path.unlink()
        os.mkfifo(path)
        assert run_reader.open_checkpoint(run, None, lambda message: None).step == 4
        path.unlink()
        shutil.copy(checkpoint(run, 4) / name, path)
    for name, read in [("metrics.jsonl", run_reader.read_metrics), ("summary.json", run_reader.read_summary)]:
        (run / name).unlink()
        os.mkfifo(run / name)
        with pytest.raises(DataError, match="not a regular file"):
            read(run)


def test_a_huge_state_is_not_read(run, monkeypatch):
    monkeypatch.setattr(run_reader, "LARGEST_MANIFEST", state(checkpoint(run, 6)).stat().st_size - 1)
    with pytest.raises(DataError, match="bytes are more than such a file has"):
        run_reader.read_checkpoint(checkpoint(run, 6))
