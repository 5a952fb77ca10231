"""The house: which folder may include which, and how many sources one holds."""

import re
from collections import defaultdict

import pytest

from conftest import REPOSITORY

# From the ground up: a folder includes itself and what stands before it.
FLOORS = [
    "kernels",
    "data",
    "train/files",
    "train/config",
    "train/memory",
    "train/positions",
    "train/model",
    "train/run",
    "train/training",
    "train/commands",
]
MOST_SOURCES = 13  # of a folder in train/


def floor_of(path):
    return max((floor for floor in FLOORS if path.startswith(floor + "/")), key=len, default=None)


def includes():
    """{file: the files of this repository that it includes}"""
    found = {}
    for top in ("train_gpt_goat.cu", "train", "data", "kernels"):
        root = REPOSITORY / top
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                names = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
                found[str(path.relative_to(REPOSITORY))] = names
    return found


def wrong_arrows(graph):
    for path, names in graph.items():
        here = floor_of(path)
        for name in names:
            there = floor_of(name)
            if path == "train_gpt_goat.cu":
                inside = there == "kernels" and name.startswith(("kernels/cuda/", "kernels/simt/"))
            elif here == "kernels":
                inside = there != "kernels"
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


def test_no_arrow_runs_up_the_house():
    assert not list(wrong_arrows(includes()))


def test_no_file_includes_itself_by_a_detour():
    assert cycle_in(includes()) is None


def test_every_file_of_train_stands_in_a_room_that_can_be_overlooked():
    sources = defaultdict(list)
    for path in (REPOSITORY / "train").rglob("*"):
        if path.suffix in (".h", ".cpp"):
            sources[str(path.parent.relative_to(REPOSITORY))].append(path.name)
    assert set(sources) == {floor for floor in FLOORS if floor.startswith("train/")}
    for room, names in sources.items():
        assert len([name for name in names if name.endswith(".cpp")]) <= MOST_SOURCES, room


@pytest.mark.parametrize(
    ("graph", "wrong"),
    [
        ({"train/run/a.h": ["train/training/b.h"]}, 1),
        ({"kernels/a.h": ["data/b.h"]}, 1),
        ({"data/a.h": ["kernels/cuda/b.cuh"]}, 1),
        ({"train/run/a.h": ["train/config/b.h", "data/c.h", "kernels/device.h"]}, 0),
    ],
)
def test_an_arrow_that_runs_up_is_seen(graph, wrong):
    assert len(list(wrong_arrows(graph))) == wrong


def test_a_circle_is_seen():
    assert cycle_in({"a.h": ["b.h"], "b.h": ["c.h"], "c.h": ["a.h"]}) == ["a.h", "b.h", "c.h", "a.h"]
    assert cycle_in({"a.h": ["b.h", "c.h"], "b.h": ["c.h"], "c.h": []}) is None
