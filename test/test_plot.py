"""plot.py as a command: the figure's file, what is printed, and every error in one line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import figure_file
import plot
from conftest import REPOSITORY
from fabricated_run import CONFIG, config_of, peaked_tensors, write_checkpoint, write_run

SCRIPT = REPOSITORY / "scripts" / "plot.py"


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    figure_file.plt.close("all")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", peaked_tensors())


@pytest.fixture
def fails(capsys):
    """fails(code, words...): the one line that plot.py says on stderr."""

    def check(code, *words):
        assert plot.main([str(word) for word in words]) == code, words
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) == 1, captured
        assert captured.err.startswith("plot.py: ")
        return captured.err

    return check


def is_picture(path, width, height):
    pixels = imread(path)[..., :3]
    return pixels.shape[1] >= width and pixels.shape[0] >= height and pixels.std() > 0.05


# What is printed and written


def test_prior_writes_its_figure_and_says_what_it_shows(run, run_command):
    result = run_command([sys.executable, SCRIPT, "prior", run, "--layer", "1"])
    path, where, sentences, losses = result.stdout.splitlines()
    assert Path(path) == run / "figures" / "prior_layer1.png" and is_picture(path, 1200, 800)
    assert where == f"Layer 1 at step 40, from {run / 'checkpoints' / 'step_00000040'}."
    assert "Head 0 puts 99" in sentences and "j = 0" in sentences
    assert "Head 1 puts" in sentences and "lag 1" in sentences
    assert "3.2000" in losses and "3.3000" in losses and "2.9000" in losses
    assert result.stderr == ""


def test_loss_writes_its_figure_beside_the_first_run(run, tmp_path, run_command):
    second = write_run(tmp_path / "second")
    (second / "metrics.jsonl").open("ab").write(b'{"step": 41, "lo\xc3')  # a run that is being written
    (second / "summary.json").unlink()
    result = run_command([sys.executable, SCRIPT, "loss", run, second])
    path, *sentences = result.stdout.splitlines()
    assert Path(path) == run / "figures" / "loss.png" and is_picture(path, 800, 400)
    assert [sentence.partition(": ")[0] for sentence in sentences] == [str(run), str(second)]
    assert "3.2000" in sentences[0] and "not finished" in sentences[1] and result.stderr == ""


@pytest.mark.parametrize("ending", ["png", "PNG", "pdf", "svg", "jpg"])
def test_the_name_gives_the_format(run, tmp_path, ending):
    path = tmp_path / "new" / "folder" / f"figure.{ending}"
    assert plot.main(["loss", str(run), "--out", str(path)]) == 0
    head = path.read_bytes()[:200]
    assert {"png": b"PNG", "pdf": b"%PDF", "svg": b"<?xml", "jpg": b"JFIF"}[ending.lower()] in head
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("name", ["$x_$", "a\nb", "\u6587", os.fsdecode(b"\xff"), "_x"])
def test_odd_names_of_runs_do_no_harm(tmp_path, capsys, recwarn, name):
    folder = write_run(tmp_path / name, peaked_tensors())
    for command in (["prior", "--length", "3"], ["loss"]):
        assert plot.main([*command, str(folder)]) == 0
        assert capsys.readouterr().err == ""
        assert (folder / "figures" / f"{command[0]}.png").stat().st_size > 10_000


def test_a_figure_of_many_heads_is_not_too_large_for_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_file, "MOST_PIXELS", 700)
    figure, _ = figure_file.plt.subplots(figsize=(2, 10))
    figure_file.write_figure(figure, tmp_path / "x.png")
    assert imread(tmp_path / "x.png").shape[:2] == (700, 140)


# The file of the figure


def test_a_failed_figure_leaves_the_old_one(run, tmp_path, monkeypatch):
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")
    figure, _ = figure_file.plt.subplots()
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(
                figure_file.os, name, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
            with pytest.raises(figure_file.ScriptError, match="No space left"):
                figure_file.write_figure(figure, path)
    with monkeypatch.context() as patch:
        patch.setattr(figure, "savefig", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            figure_file.write_figure(figure, path)
    assert path.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["figure.png", "run"]


def test_a_figure_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(figure_file.os, name, lambda *words, n=name, f=real: (calls.append(n), f(*words)))
    figure_file.replace_file(tmp_path / "x.png", b"new")
    assert calls == ["fsync", "replace"] and (tmp_path / "x.png").read_bytes() == b"new"


def test_a_figure_keeps_the_permissions_of_the_one_before(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(b"old")
    path.chmod(0o640)
    figure_file.replace_file(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640


def test_links_are_written_through(run, tmp_path, run_command):
    (tmp_path / "there").mkdir()
    old = tmp_path / "there" / "old.png"
    old.write_bytes(b"old")
    for link, target in [("a.png", old), ("b.png", tmp_path / "there" / "new.png")]:
        (tmp_path / link).symlink_to(target)
        run_command([sys.executable, SCRIPT, "loss", run, "--out", tmp_path / link])
        assert (tmp_path / link).is_symlink() and is_picture(target, 800, 400)


def test_pipes_and_devices_are_written_to(run, tmp_path, run_command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    run_command([sys.executable, SCRIPT, "loss", run, "--out", pipe])
    assert reader.communicate(timeout=20)[0].startswith(b"\x89PNG") and pipe.is_fifo()
    run_command([sys.executable, SCRIPT, "loss", run, "--out", "/dev/null"])
    error = run_command([sys.executable, SCRIPT, "loss", run, "--out", "/dev/full"], code=1).stderr
    assert (
        "/dev/full: cannot write the figure: No space left on device" in error
        and Path("/dev/full").is_char_device()
    )


def test_a_figure_that_cannot_be_written_is_refused(run, tmp_path, fails):
    (tmp_path / "file").touch()
    (tmp_path / "loop.png").symlink_to("loop.png")
    for out, code, part in [
        (tmp_path, 2, "is a folder"),
        (".", 2, "is a folder"),
        (tmp_path / "x", 2, ".png"),
        (tmp_path / ".png", 2, ".svg"),
        (tmp_path / "x.xyz", 2, ".pdf"),
        (tmp_path / "x.pgf", 2, ".pdf"),
        (tmp_path / "file" / "x.png", 2, f"{tmp_path / 'file'} is not a folder"),
        (tmp_path / "loop.png", 2, "circle"),
        (tmp_path / ("x" * 300 + ".png"), 1, "name too long"),
        ("/proc/x.png", 1, "cannot write the figure"),
    ]:
        assert part in fails(code, "loss", run, "--out", out)
        if code == 2:
            assert part in fails(code, "prior", run, "--out", out)
    (run / "figures").write_text("a file where the folder should be")
    assert "figures" in fails(1, "prior", run, "--length", 3) and "figures" in fails(1, "loss", run)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_places_are_named(run, fails):
    (run / "figures").mkdir(mode=0o555)
    assert "--out names another place" in fails(1, "loss", run)


def test_a_read_only_figure_is_not_replaced(run, tmp_path, fails, monkeypatch):
    (tmp_path / "x.png").write_bytes(b"mine")
    monkeypatch.setattr(figure_file.os, "access", lambda path, mode: mode != os.W_OK)
    assert "read-only" in fails(1, "loss", run, "--out", tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes() == b"mine"


def test_a_figure_does_not_go_where_the_sentences_go(run, run_command, tmp_path):
    error = run_command([sys.executable, SCRIPT, "loss", run, "--out", "/dev/stdout"], code=2).stderr
    assert "--out /dev/stdout" in error
    with open(tmp_path / "out.png", "wb") as out:
        words = [sys.executable, SCRIPT, "loss", run, "--out", tmp_path / "out.png"]
        assert subprocess.run(words, stdout=out, stderr=subprocess.PIPE, timeout=60).returncode == 2


# Errors


def test_wrong_use_is_one_line_and_exits_with_2(run, tmp_path, fails):
    rope = write_run(tmp_path / "rope", peaked_tensors(), config_of(model__attention="none"))
    for words, part in [
        ([], "COMMAND"),
        (["draw"], "draw"),
        (["prior"], "RUN"),
        (["loss"], "RUN"),
        (["prior", run, "more"], "more"),
        (["prior", rope], "model.attention is 'none'"),
        (["prior", run, "--layer", "2"], "--layer 2: "),
        (["prior", run, "--layer", "-1"], "0 to 1"),
        (["prior", run, "--layer", "x"], "--layer"),
        (["prior", run, "--length", "1"], "--length 1: "),
        (["prior", run, "--length", "1e3"], "--length"),
        (["prior", run, "--length", "9" * 5000], "--length"),
        (["prior", run, "--length", "9" * 30], "the limit here is --length"),
        (["prior", run, "--checkpoint", "7"], "5, 40"),
        (["prior", run, "--checkpoint", "-5"], "5, 40"),
        (["loss", tmp_path / "nowhere"], "metrics.jsonl"),
        (["loss", run, tmp_path / "nowhere"], "nowhere"),
    ]:
        assert part in fails(2, *words), words
    assert not (run / "figures").exists()


def damaged_tensors(**changes):
    return {name: changes.get(name.rsplit(".", 1)[-1], value) for name, value in peaked_tensors().items()}


def test_models_that_do_not_fit_their_config_exit_with_3(tmp_path, fails):
    zeros = np.zeros
    with_nan = peaked_tensors()["blocks.0.attn.prior.alpha"].copy()
    with_nan[0, 0] = np.nan
    for n, (tensors, config, part) in enumerate([
        ({"x": zeros(1, np.float32)}, CONFIG, "'blocks.0.attn.prior.alpha' is missing"),
        (damaged_tensors(alpha=zeros((3, 5), np.float32)), CONFIG, "F32 [3, 5], expected F32 [3, 4]"),
        (damaged_tensors(bump=zeros(3, np.float64)), CONFIG, "F64 [3], expected F32 [3]"),
        (damaged_tensors(bump=zeros((3, 1), np.float32)), CONFIG, "F32 [3, 1]"),
        (damaged_tensors(w1=zeros(0, np.float32)), CONFIG, "F32 [0], expected F32 [6, 6]"),
        (damaged_tensors(alpha=with_nan), CONFIG, "not finite"),
        (peaked_tensors(), config_of(model__heads=4), "expected F32 [4, 4]"),
        (peaked_tensors(), config_of(prior__learned_frequencies=True), "0.attn.prior.frequency' is missing"),
        (peaked_tensors(), config_of(model__layers="two"), "model.layers = 'two' cannot be"),
        (peaked_tensors(), config_of(model__heads=True), "model.heads = True"),
        (peaked_tensors(), config_of(model__heads=0), "model.heads = 0"),
        (peaked_tensors(), config_of(model__attention=1), "model.attention = 1"),
        (peaked_tensors(), config_of(prior__base=-1.0), "prior.base = -1.0"),
        (peaked_tensors(), config_of(prior__base="x"), "prior.base = 'x'"),
        (peaked_tensors(), config_of(prior__recency="often"), "prior.recency = 'often'"),
        (peaked_tensors(), config_of(data__seq_len=0), "data.seq_len = 0"),
        (peaked_tensors(), {"model": CONFIG["model"]}, "prior.abs_rank is missing"),
        (peaked_tensors(), {"model": {"attention": "goat", "layers": 2}}, "model.heads is missing"),
        (peaked_tensors(), {}, "model.attention is missing"),
    ]):  # fmt: skip
        run = write_run(tmp_path / str(n), tensors, config)
        assert part in fails(3, "prior", run) and not (run / "figures").exists()


def test_an_integer_stands_for_a_number_with_a_fraction(tmp_path):
    assert (
        plot.main(["prior", str(write_run(tmp_path / "run", peaked_tensors(), config_of(prior__base=10000)))])
        == 0
    )


def test_whole_checkpoints_with_unreadable_contents_exit_with_3(tmp_path, fails, monkeypatch):
    monkeypatch.setattr("fabricated_run.save", lambda tensors: b"no safetensors file")
    assert "model.safetensors" in fails(3, "prior", write_run(tmp_path / "weights", peaked_tensors()))
    monkeypatch.undo()
    monkeypatch.setattr("fabricated_run.toml", lambda config: "model = [1,\n")
    run = tmp_path / "config"
    (run / "checkpoints").mkdir(parents=True)
    write_checkpoint(run / "checkpoints" / "step_00000001", 1, peaked_tensors())
    assert "none of its 1 checkpoints" in plot_errors(run)[-1]


def plot_errors(run):
    result = subprocess.run(
        [sys.executable, SCRIPT, "prior", run], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 3 and "Traceback" not in result.stderr
    return result.stderr.splitlines()


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (b'{"step": 1, "loss": 2.0}\nnonsense\n{"step": 2, "loss": 2.0}\n', "line 2: not JSON"),
        (b"[1]\n", "line 1: expected an object, found [1]"),
        (b"3\n", "expected an object"),
        (b"\n\n\xff\n", "line 3: not JSON"),
        (b'{"loss": 2.0}\n', "'step' is missing"),
        (b'{"step": "1", "loss": 2.0}\n', "'step' is missing or not a count"),
        (b'{"step": -1, "loss": 2.0}\n', "not a count"),
        (b'{"step": true, "loss": 2.0}\n', "not a count"),
        (b'{"step": 1e999, "loss": 2.0}\n', "not a count"),
        (b'{"step": 1, "loss": "low"}\n', "loss is 'low', expected a number"),
        (b'{"step": 1, "val_loss": []}\n', "val_loss is [], expected a number"),
        (b'{"step": 1, "loss": NaN}\n', "NaN is not JSON"),
        (b'{"step": ' + b"1" * 5000 + b', "loss": 1}\n', "not JSON"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"step": 1, "loss": null}\n', "no finite loss"),
        (b'{"step": 1, "loss": ' + b"9" * 400 + b"}\n", "no finite loss"),
        (b'{"step": 1, "loss": 2.0}', "no finite loss"),  # not finished
        (b"", "no finite loss"),
    ],
)
def test_damaged_metrics_exit_with_3_and_name_the_line(run, fails, lines, part):
    (run / "metrics.jsonl").write_bytes(lines)
    error = fails(3, "loss", run)
    assert part in error and str(run / "metrics.jsonl") in error


@pytest.mark.parametrize("text", [b"{", b"[]", b"3", b"\xff", b"", b"[" * 100_000, b'{"loss": NaN}'])
def test_a_damaged_summary_exits_with_3(run, fails, text):
    (run / "summary.json").write_bytes(text)
    assert str(run / "summary.json") in fails(3, "loss", run)


def test_folders_where_files_should_be_exit_with_3(run, fails):
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    assert "is not a regular file" in fails(3, "loss", run)


def test_missing_packages_are_named(tmp_path, run_command):
    for name in ("matplotlib", "safetensors"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(f"raise ImportError(\"No module named '{name}'\")")
        run = write_run(folder / "run", peaked_tensors())
        error = run_command(
            ["env", f"PYTHONPATH={folder}", sys.executable, SCRIPT, "prior", run], code=1
        ).stderr
        assert name in error and "requirements.txt" in error and len(error.splitlines()) == 1


def test_too_little_memory_is_said(run, fails, monkeypatch):
    monkeypatch.setattr("plot_prior.key_bias", lambda *_: np.zeros((10**9, 10**9)))
    assert "out of memory" in fails(1, "prior", run)


# What is printed, and stopping


def test_a_reader_that_leaves_early_does_no_harm(run):
    for words in (f"loss '{run}'", "--help"):
        command = f"'{sys.executable}' '{SCRIPT}' {words} | true; exit ${{PIPESTATUS[0]}}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
        assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_a_failure(run, unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    for words in (f"loss '{run}'", "--help"):
        for where, part in [
            (">/dev/full", b"No space left on device"),
            (">&-", b"standard output is closed"),
        ]:
            command = f"'{sys.executable}' '{SCRIPT}' {words} {where}"
            result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, env=environment)
            assert result.returncode == 1 and part in result.stderr and len(result.stderr.splitlines()) == 1
    for where in ("2>/dev/full", "2>&-"):
        command = f"'{sys.executable}' '{SCRIPT}' prior nowhere {where}"
        assert subprocess.run(["bash", "-c", command], timeout=60, env=environment).returncode == 2


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopping_is_one_line(run, tmp_path, stop):
    """While it waits for the reader of a pipe, and while it loads its packages."""
    os.mkfifo(tmp_path / "pipe.png")
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "matplotlib.py").write_text(
        f"import time, pathlib; pathlib.Path({str(tmp_path / 'here')!r}).touch(); time.sleep(60)"
    )
    for path, seconds in [("", 3), (str(slow), 0)]:
        process = subprocess.Popen(
            [sys.executable, SCRIPT, "loss", run, "--out", tmp_path / "pipe.png"], stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path}, preexec_fn=lambda: signal.signal(stop, signal.SIG_DFL),
        )  # fmt: skip
        limit = time.monotonic() + 30
        while path and not (tmp_path / "here").exists():
            assert time.monotonic() < limit
            time.sleep(0.02)
        time.sleep(seconds)
        process.send_signal(stop)
        _, error = process.communicate(timeout=30)
        assert (process.returncode, error) == (1, b"plot.py: interrupted\n")


def test_an_ignored_signal_stays_ignored(run):
    command = f"trap '' HUP; '{sys.executable}' -c \"import signal, console; console.catch_stops(); " \
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)\""  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parent)}
    assert (
        subprocess.run(["bash", "-c", command], capture_output=True, env=environment, timeout=60).stdout
        == b"True\n"
    )


def test_settings_of_the_users_shell_do_not_matter(run, tmp_path, run_command):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.dpi: 3\n")
    environment = ["env", "MPLBACKEND=nonsense", f"MATPLOTLIBRC={tmp_path}", "PYTHONIOENCODING=ascii"]
    folder = write_run(tmp_path / "caf\u00e9", peaked_tensors())
    out = run_command([*environment, sys.executable, SCRIPT, "prior", folder]).stdout
    assert "caf\\xe9" in out and is_picture(folder / "figures" / "prior.png", 1200, 800)
