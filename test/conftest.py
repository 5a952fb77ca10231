"""Fixtures of the tests that drive the program from outside. Run with: pytest test"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prepared import byte_ids, tiny  # noqa: F401  fixtures
from pretended_gpu import pretended_gpu, wrapped  # noqa: F401  fixtures

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models here are tiny, and tests may run side by side

# A caller (nohup, a background job of a script) may have pytest ignore or block signals, and programs
# inherit that. A signal that is caught is the
# default again in a program that is started: pytest goes on ignoring it, the programs under test do not.
for _signal in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
    if signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, lambda *_: None)
signal.pthread_sigmask(signal.SIG_SETMASK, [])


@pytest.fixture(scope="session")
def binary():
    """Path of the program: $TRAIN_GPT_GOAT if that is set, else train_gpt_goat in the root of the
    repository."""
    chosen = os.environ.get("TRAIN_GPT_GOAT")
    path = Path(chosen) if chosen else REPOSITORY / "train_gpt_goat"
    if not path.is_file():
        pytest.fail(f"{path} is missing: build it with make")
    return path.resolve()


@pytest.fixture
def rng():
    """A generator with a fresh seed, which pytest shows when the test fails."""
    seed = np.random.SeedSequence().entropy
    print("seed of this test:", seed)
    return np.random.default_rng(seed)


@pytest.fixture
def run_command():
    """run_command(argv, timeout=300, code=0): runs a command; fails the test, showing the output, unless it
    exits with `code`."""

    def run(argv, timeout=300, code=0):
        argv = [str(word) for word in argv]
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            pytest.fail(f"{' '.join(argv)}\nstill running after {timeout} s\n{stdout}{stderr}")
        if process.returncode != code:
            pytest.fail(
                f"{' '.join(argv)}\nexit code {process.returncode}, expected {code}\n{stdout}{stderr}"
            )
        return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)

    return run


@pytest.fixture
def run_binary(binary, run_command):
    """run_binary(*arguments, timeout=300, code=0): the same for the program itself."""
    return lambda *arguments, **options: run_command([binary, *arguments], **options)
