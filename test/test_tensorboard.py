"""export_tensorboard.py: TensorBoard's own reader finds every number of metrics.jsonl, once, also after the
file was cut back and while it grows."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import console
import export_tensorboard
from conftest import REPOSITORY
from fabricated_run import write_metrics

SCRIPT = REPOSITORY / "scripts" / "export_tensorboard.py"
reads_back = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None,
    reason="TensorBoard is missing: pip install -r scripts/requirements_tensorboard.txt",
)
TAGS = {
    "loss": "loss/training",
    "val_loss": "loss/validation",
    "lr": "optimizer/learning_rate",
    "grad_norm": "optimizer/gradient_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "tokens": "progress/tokens",
    "seconds": "progress/seconds",
    "odd": "other/odd",
}


@pytest.fixture(autouse=True)
def signals_stay_as_they_are():
    before = {stop: signal.getsignal(stop) for stop in console.STOPS}
    yield
    for stop, handler in before.items():
        signal.signal(stop, handler)


def line_of(step, seed=0):
    """A line as the trainer writes it, with a validation at every fifth step."""
    rng = np.random.default_rng([seed, step])
    line = {"step": step, "tokens": 4096 * step, "seconds": 1.5 * step + rng.uniform()}
    line |= {key: rng.normal() for key in ("loss", "lr", "grad_norm", "tokens_per_second")}
    return line | ({"val_loss": rng.normal()} if step % 5 == 0 else {})


def lines_of(first, last, seed=0):
    return [line_of(step, seed) for step in range(first, last + 1)]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.toml").write_text('[model]\nattention = "goat"  # <b>\n')
    write_metrics(folder, lines_of(1, 12))
    return folder


def append(run, entries):
    with open(run / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries))


def events_in(folder):
    """A reader that has read all event files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def shown(folder):
    """{tag: [(step, value)]} as TensorBoard shows them; repeated steps would stand twice."""
    found = events_in(folder)
    scalars = {
        tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]
    }
    assert scalars == shown_by_its_server(folder)
    return scalars


def losses_so_far(folder):
    """How many there are. One reader alone: between two, a script that follows may write more."""
    found = events_in(folder)
    return len(found.Scalars("loss/training")) if "loss/training" in found.Tags()["scalars"] else 0


def shown_by_its_server(folder):
    """The same by the reader of `tensorboard --load_fast false`, which has other rules for restarts."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    tags = (tag for tag in found.Tags()["tensors"] if tag != "config")
    return {
        tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in found.Tensors(tag)]
        for tag in tags
    }


def expected(entries):
    """The same of lines of metrics.jsonl."""
    found = {}
    for entry in entries:
        for key, value in entry.items():
            if key in TAGS:
                found.setdefault(TAGS[key], []).append((entry["step"], float(np.float32(value))))
    return found


def config_in(folder):
    [tag] = events_in(folder).Tags()["tensors"]
    assert tag == "config"
    return [
        (event.step, event.tensor_proto.string_val[0].decode()) for event in events_in(folder).Tensors(tag)
    ]


@pytest.fixture
def export(run, tmp_path, capsys):
    """export(words...): what is printed when the run is exported to tmp_path / "log"."""

    def start(*words, code=0):
        ended = export_tensorboard.main([str(run), *map(str, words), "--out", str(tmp_path / "log")])
        captured = capsys.readouterr()
        assert ended == code and captured.err == "", captured
        return captured.out.splitlines()

    return start


@reads_back
def test_every_number_is_there_once_however_often_it_is_exported(run, export, tmp_path):
    log = tmp_path / "log" / "mine"
    assert export() == [f"{log}: 12 steps, 12 of them new"]
    assert shown(log) == expected(lines_of(1, 12))
    files = sorted(log.iterdir())
    assert export() == [f"{log}: 12 steps, 0 of them new"] and sorted(log.iterdir()) == files
    append(run, lines_of(13, 20))
    assert export() == [f"{log}: 20 steps, 8 of them new"]
    assert shown(log) == expected(lines_of(1, 20))


@reads_back
def test_points_are_as_far_apart_as_the_seconds_of_the_lines(run, export, tmp_path):
    os.utime(run / "metrics.jsonl", (1.7e9, 1.7e9))
    export()
    append(run, lines_of(13, 14))
    export()
    events = events_in(tmp_path / "log" / "mine").Scalars("loss/training")
    assert events[11].wall_time == pytest.approx(1.7e9, abs=1e-3)
    seconds = [line["seconds"] for line in lines_of(1, 14)]
    assert np.diff([event.wall_time for event in events]) == pytest.approx(np.diff(seconds), abs=1e-3)


@reads_back
def test_the_config_is_there_as_text_and_again_when_it_changes(run, export, tmp_path):
    export()
    export()
    first = '    [model]\n    attention = "goat"  # <b>\n'
    assert config_in(tmp_path / "log" / "mine") == [(0, first)]
    (run / "config.toml").write_text("[model]\n")
    append(run, [line_of(13)])
    export()
    assert config_in(tmp_path / "log" / "mine") == [(0, first), (12, "    [model]\n")]


@reads_back
def test_values_that_are_no_finite_numbers_are_left_out(run, export, tmp_path):
    odd = {"step": 1, "loss": None, "skipped": "spike", "flag": True, "odd": 7, "lr": 1e300, "grad_norm": 2}
    write_metrics(run, [odd, {"step": 2, "event": "saved"}, {"event": "no step", "odd": 1}])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('\n{"step": 3, "loss": 1e999}\n{"step": 4, "loss": 2.5}\n{"step": 5, "lo')
    export()
    assert shown(tmp_path / "log" / "mine") == {
        "other/odd": [(1, 7.0)],
        "optimizer/gradient_norm": [(1, 2.0)],
        "loss/training": [(4, 2.5)],
    }


@reads_back
@pytest.mark.parametrize("kept", [0, 7, 11])
def test_steps_that_a_resumed_run_repeats_replace_those_before(run, export, tmp_path, kept):
    export()
    lines = lines_of(1, kept) + lines_of(kept + 1, 15, seed=1)
    write_metrics(run, lines)
    log = tmp_path / "log" / "mine"
    assert export() == [
        f"{log}: metrics.jsonl has changed from step {kept + 1} on: replaced",
        f"{log}: 15 steps, {15 - kept} of them new",
    ]
    assert shown(log) == expected(lines)
    write_metrics(run, lines[:5])  # cut back, and nothing new yet
    export()
    assert shown(log) == expected(lines[:5])
    assert export() == [f"{log}: 5 steps, 0 of them new"]


@reads_back
def test_what_a_killed_export_lost_is_written_again(run, export, tmp_path):
    log = tmp_path / "log" / "mine"
    export()
    [file] = log.iterdir()
    file.write_bytes(file.read_bytes()[:-700])  # killed while it wrote
    assert set(shown(log)["loss/training"]) < set(expected(lines_of(1, 12))["loss/training"])
    export()
    assert shown(log) == expected(lines_of(1, 12))


# --follow


@pytest.fixture
def while_following(monkeypatch):
    """while_following(actions): the script does one of them each time that it would wait."""

    def plan(*actions):
        remaining = list(actions)
        monkeypatch.setattr(export_tensorboard.time, "sleep", lambda seconds: remaining.pop(0)())
        return remaining

    return plan


def interrupt():
    raise KeyboardInterrupt


@reads_back
def test_following_adds_lines_as_they_come_and_ends_with_the_summary(run, export, tmp_path, while_following):
    log = tmp_path / "log" / "mine"
    seen = []
    later = lines_of(13, 16)

    def half_a_line():
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps(later[0])[:20])

    def the_rest():
        seen.append(len(shown(log)["loss/training"]))
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps(later[0])[20:] + "\n")

    def finish():
        seen.append(len(shown(log)["loss/training"]))
        append(run, later[1:])
        (run / "summary.json").write_text("{}")

    remaining = while_following(half_a_line, the_rest, finish)
    assert export("--follow") == [f"{log}: 16 steps, 16 of them new"]
    assert seen == [12, 13] and not remaining
    assert shown(log) == expected(lines_of(1, 16)) and len(list(log.iterdir())) == 1


@reads_back
@pytest.mark.parametrize("last", [9, 12, 14])
def test_following_notices_a_file_that_was_cut_back(run, export, tmp_path, while_following, last):
    """Whether it is then shorter, as long, or longer than before."""
    lines = lines_of(1, 7) + lines_of(8, last, seed=1)
    while_following(lambda: write_metrics(run, lines), interrupt)
    log = tmp_path / "log" / "mine"
    out = export("--follow")
    assert out[0] == f"{log}: metrics.jsonl has changed from step 8 on: replaced"
    assert out[1] == "stopped; the same command goes on"
    assert shown(log) == expected(lines)


@reads_back
def test_following_waits_where_there_is_no_step_yet(run, export, tmp_path, while_following):
    (run / "metrics.jsonl").unlink()
    while_following(lambda: write_metrics(run, []), lambda: write_metrics(run, lines_of(1, 3)), interrupt)
    export("--follow")
    assert shown(tmp_path / "log" / "mine") == expected(lines_of(1, 3))


@reads_back
def test_following_may_begin_before_the_first_step(run, tmp_path, while_following, capsys):
    new = tmp_path / "new"
    new.mkdir()
    (new / ".lock").write_text("")
    command = [str(new), "--out", str(tmp_path / "log")]
    assert export_tensorboard.main(command) == 2 and "holds no run" in capsys.readouterr().err
    while_following(lambda: write_metrics(new, lines_of(1, 3)), interrupt)
    assert export_tensorboard.main([*command, "--follow"]) == 0
    assert shown(tmp_path / "log" / "new") == expected(lines_of(1, 3))


@reads_back
def test_following_several_runs_goes_on_until_all_have_finished(run, export, tmp_path, while_following):
    other = tmp_path / "other"
    other.mkdir()
    write_metrics(other, lines_of(1, 2, seed=2))
    (other / "summary.json").write_text("{}")
    remaining = while_following(lambda: (run / "summary.json").write_text("{}"))
    export(other, "--follow")
    assert not remaining
    assert shown(tmp_path / "log" / "other") == expected(lines_of(1, 2, seed=2))


@reads_back
def test_ctrl_c_ends_a_script_that_follows_with_0_and_two_do_not_write_at_once(run, tmp_path):
    log = tmp_path / "log" / "mine"
    command = [sys.executable, SCRIPT, run, "--out", tmp_path / "log", "--follow", "--interval", "0.1"]
    following = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (log.exists() and losses_so_far(log) == 12):
            assert following.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        second = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert second.returncode == 1 and "another export_tensorboard.py writes there" in second.stderr
        append(run, [line_of(13)])
        while losses_so_far(log) < 13:
            assert following.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        following.send_signal(signal.SIGINT)
        out, error = following.communicate(timeout=60)
    finally:
        following.kill()
    assert following.returncode == 0 and error == ""
    assert out.splitlines() == ["stopped; the same command goes on", f"{log}: 13 steps, 13 of them new"]
    assert shown(log) == expected(lines_of(1, 13))


@reads_back
def test_a_real_run_that_is_resumed(run_binary, tmp_path):
    run, log = tmp_path / "real", tmp_path / "log"
    small = ["batch=2", "micro_batch=2", "warmup=1"]
    words = [word for each in small for word in ("--set", f"train.{each}")]
    words += ["--set", "checkpoint.interval=4", "--set", "eval.tokens=128", "--device", "cpu", "--out", run]
    run_binary("--config", "copy_mixture", *words, "--set", "train.steps=6")
    command = [str(run), "--out", str(log)]
    assert export_tensorboard.main(command) == 0
    for file in (run / "checkpoints/step_00000006").iterdir():
        file.unlink()
    (run / "checkpoints/step_00000006").rmdir()
    run_binary("--resume", "--out", run, "--device", "cpu", "--set", "train.steps=9")
    assert export_tensorboard.main(command) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = shown(log / "real")
    for key, tag in TAGS.items():
        points = [(line["step"], float(np.float32(line[key]))) for line in lines if key in line]
        assert found.get(tag, []) == points, tag
    assert len(found["loss/training"]) == 9 and len(found["speed/flops_per_second"]) == 9
    assert "    steps = 9" in config_in(log / "real")[-1][1]


# Errors


def test_wrong_use_is_one_line_and_writes_nothing(run, tmp_path, capsys):
    same = tmp_path / "elsewhere" / "mine"
    same.mkdir(parents=True)
    (same / "config.toml").write_text("")
    log = tmp_path / "log"
    for words, part in [
        ([run], "--out"),
        (["--out", log], "RUN"),
        ([tmp_path / "nowhere", "--out", log], "no such folder"),
        ([tmp_path / "elsewhere", "--out", log], "holds no run"),
        ([run, same, "--out", log], "runs of one name (mine)"),
        ([run, "--out", run / "config.toml"], "is not a folder"),
        ([run, "--out", log, "--interval", "0"], "--interval 0"),
        ([run, "--out", log, "--interval", "nan"], "--interval nan"),
    ]:
        assert export_tensorboard.main([str(word) for word in words]) == 2, words
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) == 1 and part in captured.err
    assert not log.exists()


def test_without_the_package_the_script_says_what_to_install(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard_events", None)  # importing it fails
    assert export_tensorboard.main([str(run), "--out", str(tmp_path / "log")]) == 1
    captured = capsys.readouterr()
    assert "pip install -r" in captured.err and "requirements_tensorboard.txt" in captured.err
    assert len(captured.err.splitlines()) == 1 and not (tmp_path / "log").exists()


@reads_back
@pytest.mark.parametrize("line", [b"nonsense\n", b'{"loss": 1}\n', b"[1]\n", b'{"step": 3, "loss": "low"}\n'])
def test_damaged_metrics_exit_with_3_and_name_the_line(run, tmp_path, capsys, line):
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(line)
    assert export_tensorboard.main([str(run), "--out", str(tmp_path / "log")]) == 3
    assert f"{run / 'metrics.jsonl'}, line 13: " in capsys.readouterr().err
