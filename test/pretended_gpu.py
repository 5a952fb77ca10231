"""Running dev/gpu_check.sh without a GPU: with programs that pretend, or on the simulated GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "dev"))
import gpu_check_report  # noqa: E402

PRETENDED = REPOSITORY / "test/pretended_program.py"


def gpu_check(*words, environment=None):
    """(exit status, what was printed, the JSON or None)"""
    words = [str(word) for word in words]
    ran = subprocess.run(
        [REPOSITORY / "dev/gpu_check.sh", *words],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
    )
    out = words[words.index("--out") + 1] if "--out" in words else None
    check = json.loads(open(out).read()) if out and os.path.exists(out) else None
    return ran.returncode, ran.stdout + ran.stderr, check


def environment_of(folder):
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PRETENDED": str(folder)}


@pytest.fixture(scope="module")
def pretended_gpu(tmp_path_factory):
    """The folder of the programs that pretend."""
    folder = tmp_path_factory.mktemp("pretended")
    for name in ("nvidia-smi", "train_gpt_goat", "nccl_ranks"):
        (folder / name).symlink_to(PRETENDED)
    return folder


def outcomes(check):
    """name of a section -> "passed", "failed" or why it was not run"""
    return {
        name: section.get("not_run") or ("failed" if section["exit"] else "passed")
        for name, section in gpu_check_report.sections_of(check).items()
    }


def has_simt(binary):
    return "simt     built" in subprocess.run([binary, "--version"], capture_output=True, text=True).stdout


@pytest.fixture
def wrapped(binary, tmp_path):
    """wrapped(LINES) makes a folder with a train_gpt_goat that runs these lines of bash first, which may
    change the array `words`; $run is the name of the run."""
    if not has_simt(binary):
        pytest.skip("this build has no simulated device: make test SIMT=ON")

    def write(lines):
        folder = tmp_path / "bin"
        folder.mkdir()
        script = folder / "train_gpt_goat"
        script.write_text(
            '#!/bin/bash\nwords=("$@")\nfor ((i = 0; i < $#; ++i)); do\n'
            '  [[ ${words[i]} != --out ]] || run=$(basename "${words[i + 1]}")\ndone\n'
            f'{lines}\nexec {binary} "${{words[@]}}"\n'
        )
        script.chmod(0o755)
        return folder

    return write
