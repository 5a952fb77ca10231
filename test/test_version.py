"""--version: what a report of a fault needs to say."""

import json
import re
import subprocess

from conftest import REPOSITORY


def test_version_tells_commit_compiler_devices_and_libraries(run_binary):
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in run_binary("--version").stdout.splitlines())
    assert lines.keys() == {"train_gpt_goat", "compiler", "device cpu", "device cuda", "device simt", "nccl"}
    assert re.fullmatch(r"\S+ \d+\.\d+\S*, \w+", lines["compiler"])
    assert re.search(r"\d threads?, .*oneDNN \d+\.\d+\.\d+", lines["device cpu"])
    assert re.fullmatch(
        r"sm_\d+.* \(CUDA \d+\.\d.*, cuBLASLt \d+\.\d.*\)|not built \(make CUDA=ON\)", lines["device cuda"]
    )
    assert lines["device simt"] in ("built", "not built (make SIMT=ON)")
    nccl = r"built with 2\.\d+\.\d+, (found 2\.\d+\.\d+ in /.*|several GPUs .* not found .*)"
    assert re.fullmatch(rf"{nccl}|not built \(nccl.h and CUDA=ON\)", lines["nccl"])


def test_version_says_whether_the_simulated_gpu_is_there(binary, run_binary, tmp_path):
    built = re.search(r"device simt +built", run_binary("--version").stdout)
    opened = subprocess.run(
        [binary, "--config", "copy_mixture", "--device", "simt", "--dry-run"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert opened.returncode == (0 if built else 2)
    if not built:
        assert "make SIMT=ON" in opened.stderr


def test_the_commit_is_written_anew_only_when_it_changes(run_command, tmp_path):
    """The script that every build runs, in a repository of its own."""
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "commit.cmake").write_bytes((REPOSITORY / "train/commands/commit.cmake").read_bytes())
    source = tmp_path / "build/commit.cpp"
    script = ["cmake", f"-DOUTPUT={source}", "-P", tmp_path / "commit.cmake"]

    def commit():
        run_command(script)
        return re.search('"(.*)"', source.read_text())[1]

    run_command([*git, "init", "-q"])
    (tmp_path / ".gitignore").write_text("build/\n")
    for message in ("first", "second"):
        run_command([*git, "add", "-A"])
        run_command([*git, "commit", "-q", "--allow-empty", "-m", message])
        head = run_command([*git, "rev-parse", "HEAD"]).stdout.strip()
        assert head.startswith(commit())
        written = source.stat().st_mtime_ns
        assert head.startswith(commit()) and source.stat().st_mtime_ns == written
    (tmp_path / ".gitignore").write_text("build/\n*.o\n")
    assert commit().endswith("-dirty")
    run_command([*git, "rm", "-q", "--cached", "commit.cmake"])
    assert "unknown" in commit()


def test_a_run_says_which_program_trained_it_and_on_how_many_ranks(run_binary, tmp_path):
    version = run_binary("--version").stdout.splitlines()[0].split(maxsplit=1)[1]
    small = ("--set", "train.steps=2", "--set", "train.warmup=1", "--set", "eval.tokens=0", "--device", "cpu")
    for ranks in (1, 2):
        run = tmp_path / f"of_{ranks}"
        run_binary("--config", "copy_mixture", "--out", run, "--ranks", ranks, *small)
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["program"], summary["ranks"]) == (version, ranks)
