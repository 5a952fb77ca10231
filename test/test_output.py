"""What commands print and where they write: full disks, closed pipes and descriptors, devices, links."""

import json
import os
import resource
import subprocess
import threading
import time

import numpy as np
import pytest

from test_train import metrics_of, tiny_run

PRINTING = ["--help", "--list-configs", "--print-config", "--dry-run", "eval", "analyze"]


@pytest.fixture(scope="module")
def run(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("output") / "run"
    subprocess.run([binary, *map(str, tiny_run(folder))], check=True, capture_output=True, timeout=300)
    return folder


def arguments(command, run, tmp_path):
    if command in ("--print-config", "--dry-run"):
        return ["--config", "copy_mixture", "--out", tmp_path / "new", command]
    if command == "analyze":
        return [command, "--checkpoint", run, "--out", tmp_path / "analysis"]
    return [command, "--checkpoint", run] if command in ("eval", "sample") else [command]


def call(binary, words, stdout, shell_redirection="", **options):
    """Exit code and stderr of a call whose stdout is a file object, or what a shell makes of it."""
    argv = [str(word) for word in (binary, *words)]
    if shell_redirection:
        argv = ["sh", "-c", f'exec "$@" {shell_redirection}', "sh", *argv]
    result = subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300, **options)
    return result.returncode, result.stderr


@pytest.mark.parametrize("command", [*PRINTING, "sample"])
def test_a_result_that_cannot_be_written_is_a_failure_with_its_reason(binary, run, tmp_path, command):
    words = arguments(command, run, tmp_path)
    with open("/dev/full", "wb") as full:
        code, stderr = call(binary, words, full)
    assert code == 1 and "error: cannot write to stdout: No space left on device" in stderr
    code, stderr = call(binary, words, None, ">&-")
    assert code == 1 and "error: cannot write to stdout: Bad file descriptor" in stderr


@pytest.mark.parametrize("command", [*PRINTING, "sample"])
def test_a_reader_that_leaves_is_no_failure(binary, run, tmp_path, command):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb") as nobody_reads:
        code, stderr = call(binary, arguments(command, run, tmp_path), nobody_reads)
    assert code == 0 and "error" not in stderr


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-", ">&- 2>&- <&-", "| true"])
def test_training_needs_nobody_who_reads(binary, run_binary, tmp_path, redirection):
    words = [str(word) for word in (binary, *tiny_run(tmp_path / "run"))]
    piped = '{ "$@"; echo $? > code; } | true; exit $(cat code)'
    script = piped if "|" in redirection else f'"$@" {redirection}'
    result = subprocess.run(
        ["sh", "-c", script, "sh", *words], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert len(metrics_of(tmp_path / "run")) == 12
    assert json.loads((tmp_path / "run/summary.json").read_text())["steps"] == 12
    run_binary("eval", "--checkpoint", tmp_path / "run")


@pytest.mark.parametrize("closed", [[1], [0, 1, 2]])
def test_no_file_of_a_run_gets_the_number_of_a_closed_descriptor(binary, tmp_path, closed):
    words = [str(word) for word in (binary, *tiny_run(tmp_path / "run", train__steps=1_000_000))]
    redirection = {0: "<&-", 1: ">&-", 2: "2>&-"}
    script = 'exec "$@" ' + " ".join(redirection[number] for number in closed)
    process = subprocess.Popen(["sh", "-c", script, "sh", *words], stderr=subprocess.DEVNULL)
    while process.poll() is None and not (tmp_path / "run/metrics.jsonl").exists():
        time.sleep(0.01)
    descriptors = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in closed]
    process.kill()
    process.wait()
    assert descriptors == ["/dev/null"] * len(closed)


def test_results_are_whole_although_every_standard_descriptor_is_closed(binary, run, tmp_path):
    words = [
        "eval",
        "--checkpoint",
        run,
        "--json",
        tmp_path / "eval.json",
        "--per-token",
        tmp_path / "nll.npy",
    ]
    assert call(binary, words, None, ">&- 2>&- <&-")[0] == 1
    assert json.loads((tmp_path / "eval.json").read_text())["step"] == 12
    assert np.load(tmp_path / "nll.npy").shape == (12, 16)


def test_results_go_through_pipes_devices_and_links_and_never_replace_them(binary, run_binary, run, tmp_path):
    def evaluate(option, path):
        return run_binary("eval", "--checkpoint", run, option, path)

    os.mkfifo(tmp_path / "fifo")
    for option in ("--json", "--per-token"):
        received = []
        reader = threading.Thread(
            target=lambda: received.append((tmp_path / "fifo").read_bytes()), daemon=True
        )
        reader.start()
        evaluate(option, tmp_path / "fifo")
        reader.join(timeout=300)
        assert received[0].startswith(b"{" if option == "--json" else b"\x93NUMPY")
        assert (tmp_path / "fifo").is_fifo()

    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/eval.json")
    for _ in range(2):  # the link leads to no file at first
        evaluate("--json", tmp_path / "link")
        assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "there/eval.json").read_text())[
            "step"
        ] == 12

    said = evaluate("--json", "/dev/stdout").stdout
    table, report = said.split("{", 1)
    assert "perplexity" in table and json.loads("{" + report)["step"] == 12
    with open(tmp_path / "all.txt", "w") as file:  # the table is not written over
        assert call(binary, ["eval", "--checkpoint", run, "--json", "/dev/stdout"], file)[0] == 0
    assert (tmp_path / "all.txt").read_text() == said
    evaluate("--json", "/dev/null")
    stderr = run_binary("eval", "--checkpoint", run, "--json", "/dev/full", code=1).stderr
    assert "/dev/full" in stderr and "No space left" in stderr
    assert {path.name for path in tmp_path.iterdir()} == {"fifo", "there", "link", "all.txt"}


def test_where_results_cannot_go_is_said_before_anything_is_computed(run_binary, run, tmp_path):
    (tmp_path / "folder").mkdir()
    for words, text in [
        (["eval", "--json", tmp_path / "folder"], "is a folder"),
        (["eval", "--per-token", tmp_path / "none" / "nll.npy"], "there is no folder"),
        (["eval", "--per-token", "/dev/null", "--lengths", "8,16"], "several lengths"),
        (["eval", "--per-token", tmp_path / "same", "--json", tmp_path / "same"], "same file"),
        (["sample", "--json", tmp_path / "folder"], "is a folder"),
    ]:
        result = run_binary(words[0], "--checkpoint", run, *words[1:], code=2)
        assert text in result.stderr and result.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_leaves_the_old_analysis(binary, run_binary, run, tmp_path):
    out = tmp_path / "out"
    run_binary("analyze", "--checkpoint", run, "--out", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    words = ["analyze", "--checkpoint", run, "--length", "60"]
    code, stderr = call(binary, [*words, "--out", out], subprocess.DEVNULL, preexec_fn=small_files)
    assert code == 1 and "log_prior.npy" in stderr and "File too large" in stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    code, _ = call(binary, [*words, "--out", tmp_path / "new"], subprocess.DEVNULL, preexec_fn=small_files)
    assert code == 1 and not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["eval", "analyze", "sample"])
def test_an_empty_name_is_refused_rather_than_taken_for_the_default(run_binary, run, command):
    options = {
        "eval": ["--data", "--json", "--per-token"],
        "analyze": ["--data", "--out"],
        "sample": ["--json", "--tokenizer-dir", "--prompt-file"],
    }
    for option in options[command]:
        assert (
            f"{option}: the name is empty"
            in run_binary(command, "--checkpoint", run, option, "", code=2).stderr
        )
    assert "--checkpoint: the name is empty" in run_binary(command, "--checkpoint", "", code=2).stderr
