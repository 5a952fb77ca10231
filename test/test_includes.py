"""The house: which folder may include which, how many sources one holds, and how long their lines are."""

import re
from collections import defaultdict

import pytest

from conftest import REPOSITORY

# From the ground up: a folder includes itself and what stands before it.
FLOORS = [
    "kernels",
    "data",
    "train/files",
    "train/ranks",
    "train/config",
    "train/memory",
    "train/replicas",
    "train/positions",
    "train/model",
    "train/speed",
    "train/run",
    "train/training",
    "train/profile",
    "train/eval",
    "train/commands",
]
MOST_SOURCES = 13  # of a folder in train/
TOP = ("train_gpt_goat.cu", "data", "dev", "kernels", "scripts", "test", "train")
CPP = (".h", ".cpp", ".cu", ".cuh")
MOST_COLUMNS = 110


def floor_of(path):
    return max((floor for floor in FLOORS if path.startswith(floor + "/")), key=len, default=None)


def sources(tops, suffixes):
    """(path from the root of the repository, text) of each."""
    for root in (REPOSITORY / top for top in tops):
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.suffix in suffixes:
                yield str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")


def includes():
    """{file: the files of this repository that it includes}"""
    return {
        path: re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)
        for path, text in sources(("train_gpt_goat.cu", "train", "data", "kernels"), CPP)
    }


def long_lines(files):
    return [
        f"{path}:{number}: {len(line)} columns"
        for path, text in files
        for number, line in enumerate(text.split("\n"), start=1)
        if len(line) > MOST_COLUMNS
    ]


def wrong_arrows(graph):
    for path, names in graph.items():
        here = floor_of(path)
        for name in names:
            there = floor_of(name)
            if path == "train_gpt_goat.cu":
                inside = there == "kernels" and name.startswith(("kernels/cuda/", "kernels/simt/"))
            elif here == "kernels":  # the seam itself knows no device
                inside = there != "kernels" or path.count("/") == 1 < name.count("/")
            else:
                inside = FLOORS.index(there) > FLOORS.index(here) or name.startswith(
                    ("kernels/cuda/", "kernels/simt/")
                )
            if inside:
                yield f"{path} includes {name}"


def cycle_in(graph):
    """The first circle of files that include each other, or None."""
    done, trail = set(), []

    def visit(path):
        if path in trail:
            return trail[trail.index(path) :] + [path]
        if path in done or path not in graph:
            return None
        trail.append(path)
        for name in graph[path]:
            if circle := visit(name):
                return circle
        trail.pop()
        done.add(path)
        return None

    return next((circle for path in graph if (circle := visit(path))), None)


def test_no_line_is_too_long_to_stand_beside_another():
    assert long_lines(sources(TOP, (*CPP, ".py"))) == []


def test_a_long_line_is_seen():
    assert long_lines([("a.py", "x" * 110 + "\n"), ("b.h", "y\n" + "ü" * 111)]) == ["b.h:2: 111 columns"]


def test_no_arrow_runs_up_the_house():
    assert not list(wrong_arrows(includes()))


def test_no_file_includes_itself_by_a_detour():
    assert cycle_in(includes()) is None


def test_every_file_of_train_stands_in_a_room_that_can_be_overlooked():
    rooms = defaultdict(list)
    for path in (REPOSITORY / "train").rglob("*"):
        if path.suffix in (".h", ".cpp"):
            rooms[str(path.parent.relative_to(REPOSITORY))].append(path.name)
    assert set(rooms) == {floor for floor in FLOORS if floor.startswith("train/")}
    for room, names in rooms.items():
        assert len([name for name in names if name.endswith(".cpp")]) <= MOST_SOURCES, room


@pytest.mark.parametrize(
    ("graph", "wrong"),
    [
        ({"train/run/a.h": ["train/training/b.h"]}, 1),
        ({"kernels/a.h": ["data/b.h"]}, 1),
        ({"data/a.h": ["kernels/cuda/b.cuh"]}, 1),
        ({"kernels/a.h": ["kernels/cpu/b.h"]}, 1),
        ({"kernels/cpu/b.h": ["kernels/a.h"]}, 0),
        ({"train/run/a.h": ["train/config/b.h", "data/c.h", "kernels/device.h"]}, 0),
    ],
)
def test_an_arrow_that_runs_up_is_seen(graph, wrong):
    assert len(list(wrong_arrows(graph))) == wrong


def test_a_circle_is_seen():
    assert cycle_in({"a.h": ["b.h"], "b.h": ["c.h"], "c.h": ["a.h"]}) == ["a.h", "b.h", "c.h", "a.h"]
    assert cycle_in({"a.h": ["b.h", "c.h"], "b.h": ["c.h"], "c.h": []}) is None
