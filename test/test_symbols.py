"""What the libraries define: a name that two of them define is one or the other, as the linker happens to
choose, or an error once a program takes both files."""

import os
import subprocess
from collections import Counter
from pathlib import Path

from conftest import REPOSITORY


def test_no_function_or_variable_is_defined_twice():
    build = Path(os.environ.get("GOAT_BUILD", REPOSITORY / "build"))
    libraries = sorted(build.rglob("libgoat_*.a"))
    assert len(libraries) >= 3, libraries
    listed = subprocess.run(["nm", "--defined-only", *libraries], capture_output=True, text=True, check=True)
    words = (line.split() for line in listed.stdout.splitlines())
    strong = Counter(word[2] for word in words if len(word) == 3 and word[1] in "TDBR")
    assert len(strong) > 500
    twice = [name for name, times in strong.items() if times > 1]
    names = subprocess.run(["c++filt"], input="\n".join(twice), capture_output=True, text=True, check=True)
    assert names.stdout.splitlines() == []
