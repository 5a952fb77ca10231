"""docs/extending.md: its walk, done on a copy of the sources, compiles, agrees with its oracle and trains."""

import os
import re
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "dev"))
import mutate  # noqa: E402

PAGE = REPOSITORY / "docs/extending.md"
BUILD = Path(os.environ.get("GOAT_BUILD", REPOSITORY / "build"))


def steps():
    """(file, kind, text) of each code block of the walk. A block belongs to the file named last before it."""
    walk = PAGE.read_text(encoding="utf-8").split("\n## A block")[0]
    file = None
    for name, kind, text in re.findall(
        r"(?:New file|In) `([^`]+)`|^```(cpp|diff)\n(.*?)^```$", walk, re.MULTILINE | re.DOTALL
    ):
        if name:
            file = name
        else:
            yield file, kind, text


def edited(source, diff):
    """`source` after a diff block, whose lines without the added ones must stand there exactly once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    new = "".join(line[1:] for line in lines if line[0] != "-")
    assert source.count(old) == 1, f"not exactly once:\n{old}"
    return source.replace(old, new)


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """(folder, files): the sources that the walk writes or changes, as it leaves them."""
    folder, files = tmp_path_factory.mktemp("extended"), []
    for file, kind, text in steps():
        target = folder / file
        if kind == "diff":
            before = target if file in files else REPOSITORY / file
            text = edited(before.read_text(encoding="utf-8"), text)
        else:
            assert not (REPOSITORY / file).exists(), file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        files += [file] * (file not in files)
    return folder, files


@pytest.fixture(scope="module")
def build():
    if not (BUILD / "compile_commands.json").is_file():
        pytest.skip(f"{BUILD} is no build folder; GOAT_BUILD names another")
    return mutate.Build(BUILD, [], [], current=True)


def made(build, extended, name):
    folder, files = extended
    return build.make(name, files, folder, mutate.EXECUTABLES[name], "the walk of docs/extending.md")


def test_the_walk_touches_few_places(extended):
    assert len(extended[1]) == 7


def test_the_part_trains(build, extended, run_command, tmp_path):
    program = made(build, extended, "train_gpt_goat")
    words = ["--config", "copy_mixture", "--set", "train.steps=40", "--set", "train.warmup=5"]
    for attention in ("tilt", "tilt+rope"):
        out = tmp_path / attention
        run_command([program, *words, "--set", f"model.attention={attention}", "--out", out])
        run_command([program, "sample", "--checkpoint", out, "--tokens", "8"])


def test_the_part_agrees_with_its_oracle(build, extended, run_command):
    """Loss and every tensor's gradient, for both blocks with the new attention."""
    program = made(build, extended, "goat_tests")
    report = run_command([program, "model: loss and every tensor's gradient *", "--success"], timeout=300)
    assert "gpt, tilt" in report.stdout and "llama, tilt" in report.stdout
