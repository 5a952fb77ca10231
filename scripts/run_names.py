"""What pages and figures call runs: one rule for all of them."""

import os
from pathlib import Path

from console import one_line


def real(path):
    """The path without symbolic links, as the system knows it; also where there is nothing."""
    return Path(os.path.realpath(path))


def shown(name):
    """A name that matplotlib shows: its legends leave out what begins with "_"."""
    return one_line(f"./{name}" if name.startswith("_") else name)


def end_of(path, count):
    """The last `count` folders of a path, or all."""
    parts = path.parts[-count:]
    return "/".join(parts) if len(parts) < len(path.parts) else str(path)


def shortest_name(path, paths):
    """The fewest last folders of a path that no other of the paths ends with."""
    others = [other for other in paths if other != path]
    for count in range(1, len(path.parts)):
        if all(end_of(other, count) != end_of(path, count) for other in others):
            return end_of(path, count)
    return str(path)


def names_of(runs):
    """A name for each folder: its own, after as many of those above it as tell it from the others."""
    paths = [real(run) for run in runs]
    return [shown(shortest_name(path, paths)) for path in paths]
