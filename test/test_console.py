"""scripts/console.py, seen through plot.py: output that cannot be written, stopping, missing packages."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from conftest import REPOSITORY
from fabricated_run import fails, peaked_tensors, run, write_run

SCRIPT = REPOSITORY / "scripts" / "plot.py"


def test_a_reader_that_leaves_early_does_no_harm(run):
    for words in (f"loss '{run}'", "--help"):
        command = f"'{sys.executable}' '{SCRIPT}' {words} | true; exit ${{PIPESTATUS[0]}}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=300)
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
            result = subprocess.run(
                ["bash", "-c", command], capture_output=True, timeout=300, env=environment
            )
            assert result.returncode == 1 and part in result.stderr and len(result.stderr.splitlines()) == 1
    for where in ("2>/dev/full", "2>&-"):
        command = f"'{sys.executable}' '{SCRIPT}' prior nowhere {where}"
        assert subprocess.run(["bash", "-c", command], timeout=300, env=environment).returncode == 2


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
        limit = time.monotonic() + 300
        while path and not (tmp_path / "here").exists():
            assert time.monotonic() < limit
            time.sleep(0.02)
        time.sleep(seconds)
        process.send_signal(stop)
        _, error = process.communicate(timeout=300)
        assert (process.returncode, error) == (1, b"plot.py: interrupted\n")


def test_an_ignored_signal_stays_ignored(run):
    command = f"trap '' HUP; '{sys.executable}' -c \"import signal, console; console.catch_stops(); " \
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)\""  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parent)}
    assert (
        subprocess.run(["bash", "-c", command], capture_output=True, env=environment, timeout=300).stdout
        == b"True\n"
    )


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
