#!/usr/bin/env python3
"""Plants small faults in the kernels, one at a time, and sees whether the tests notice: make mutate, or

    .venv/bin/python dev/mutate.py [--only TEXT] [--plain] [--record dev/results/mutations.md]

dev/mutations.toml lists them. The sources stay as they are: the changed file is compiled on its own, with the command of an existing build, and linked in
front of that build's objects; the tests of one file then run on the simulated GPU. Fails if fewer than 95 % are noticed, if the text of one no longer
stands exactly once in its file, if one does not compile, or if a test fails without a fault.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
WANTED = 0.95
SIGNS = (  # of a failure, the most telling first
    r"ERROR: AddressSanitizer: [\w-]+",
    r"runtime error: .*",
    r"unexpected exception with message:\s*\n.*",
    r"\S+\.cpp:\d+: FAILED",
)


@dataclass(frozen=True)
class Mutation:
    file: str
    old: str
    new: str
    test: str
    build: str = ""  # "", "address" or "race": what it takes to see it

    def __str__(self):
        words = f"{Path(self.file).name}: {self.old} -> {self.new.strip() or '(nothing)'}".split()
        return " ".join(words)


def read_mutations():
    mutations = [Mutation(**entry) for entry in tomllib.loads((REPOSITORY / "dev/mutations.toml").read_text())["mutation"]]
    stale = [str(m) for m in mutations if (REPOSITORY / m.file).read_text().count(m.old) != 1 or m.old == m.new]
    if stale:
        sys.exit("not exactly once in its file:\n  " + "\n  ".join(stale))
    return mutations


class Build:
    """An existing build of kernel_tests, plain or with a sanitizer."""

    def __init__(self, directory, sanitizer, current):
        self.directory = directory
        if not current:
            if not (directory / "CMakeCache.txt").exists():
                options = [f"-DGOAT_SANITIZE={sanitizer}", *(["-DGOAT_CUDA=OFF"] if sanitizer else [])]
                subprocess.run(["cmake", "-S", REPOSITORY, "-B", directory, *options], check=True, stdout=subprocess.DEVNULL)
            jobs = str(os.cpu_count())
            subprocess.run(["cmake", "--build", directory, "--target", "kernel_tests", "--parallel", jobs], check=True, stdout=subprocess.DEVNULL)
        commands = json.loads((directory / "compile_commands.json").read_text())
        self.commands = {Path(c["file"]): c for c in commands if "goat_simt.dir" in c["command"]}
        self.link = shlex.split((directory / "test/CMakeFiles/kernel_tests.dir/link.txt").read_text())

    def users_of(self, file):
        """The kernel files whose objects a change of `file` changes."""
        if file.suffix == ".cu":
            return [file]
        name, users = f"kernels/cuda/{file.name}", set()
        for source, command in self.commands.items():
            depends = Path(command["directory"]) / (shlex.split(command["command"])[-3] + ".d")
            if depends.exists() and name in depends.read_text():
                users.add(source)
        return sorted(users)

    def compile(self, mutation, folder):
        """kernel_tests with the mutation, in `folder`."""
        original = REPOSITORY / mutation.file
        changed = folder / mutation.file  # headers are found here first: #include "kernels/cuda/norm.cuh"
        changed.parent.mkdir(parents=True)
        changed.write_text(original.read_text().replace(mutation.old, mutation.new))
        objects = []
        for source in self.users_of(original):
            words = [word for word in shlex.split(self.commands[source]["command"]) if word != "-Werror"]  # a fault may leave a name unused
            objects.append(folder / f"{source.name}.o")
            words[words.index("-o") + 1] = str(objects[-1])
            words[words.index("-c") + 1] = str(changed if source == original else source)
            words.insert(1, f"-I{folder}")
            run(words, self.commands[source]["directory"], f"{mutation} does not compile")
        binary = folder / "kernel_tests"
        link = list(self.link)
        link[link.index("-o") + 1] = str(binary)
        link[link.index("-o") + 2 : link.index("-o") + 2] = [str(o) for o in objects]
        run(link, self.directory / "test", f"{mutation} does not link")
        return binary


def run(words, directory, complaint):
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{complaint}:\n{done.stderr[-3000:]}")


def how_it_fails(binary, test):
    """Empty if the tests of one file pass on the simulated GPU."""
    environment = {**os.environ, "GOAT_TEST_DEVICES": "simt", "GOAT_TEST_REDUCED": "1", "OMP_NUM_THREADS": "1"}
    command = [binary, "--filenames-as-tags", f"[#{test}]", "--abort", "--warn", "NoTests"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, errors="replace")
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode == 0:
        return ""
    text = done.stderr + done.stdout
    for sign in SIGNS:
        if match := re.search(sign, text):
            return " ".join(match[0].split()).replace(str(REPOSITORY) + "/", "").replace("unexpected exception with message: ", "").replace("|", "/")[:120]
    return f"exit code {done.returncode}"


def try_out(build, mutation):
    with tempfile.TemporaryDirectory(prefix="goat_mutation_") as folder:
        return how_it_fails(build.compile(mutation, Path(folder)), mutation.test)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those whose description (file: old -> new) or test holds this text")
    parser.add_argument("--plain", action="store_true", help="leave out those that take a sanitizer or the race checker")
    parser.add_argument("--build", type=Path, default=REPOSITORY / "build", help="the plain build (default: build)")
    parser.add_argument("--build-asan", type=Path, default=REPOSITORY / "build-asan", help="the build of make test-asan")
    parser.add_argument("--build-race", type=Path, default=REPOSITORY / "build-race", help="the build of make test-race")
    parser.add_argument("--as-built", action="store_true", help="take the builds as they are, without bringing them up to date")
    parser.add_argument("--record", type=Path, help="write the outcome as a table to this file")
    options = parser.parse_args()
    mutations = [m for m in read_mutations() if options.only in f"{m} {m.test}" and not (options.plain and m.build)]
    if not mutations:
        sys.exit("no such mutation")

    started, rows, outcome = time.monotonic(), [], Counter()
    directories = {"": options.build, "address": options.build_asan, "race": options.build_race}
    builds = {name: Build(directories[name], name, options.as_built) for name in sorted({m.build for m in mutations})}
    for name, test in sorted({(m.build, m.test) for m in mutations}):
        if problem := how_it_fails(builds[name].directory / "test/kernel_tests", test):
            sys.exit(f"{test} fails without a fault: {problem}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutation, sign in zip(mutations, pool.map(lambda m: try_out(builds[m.build], m), mutations)):
            outcome[bool(sign)] += 1
            rows.append(f"| `{str(mutation).replace('|', '/')}` | {mutation.test} | {mutation.build or 'plain'} | {sign or '**not noticed**'} |")
            print(f"{'noticed    ' if sign else 'NOT NOTICED'} {mutation} [{mutation.test} {mutation.build}] {sign}", flush=True)

    noticed = outcome[True] / len(mutations)
    summary = f"{outcome[True]} of {len(mutations)} faults noticed ({noticed:.0%}), {time.monotonic() - started:.0f} s"
    print(summary)
    if options.record:
        head = "# Faults planted in the kernels\n\nWritten by `dev/mutate.py --record`: each fault alone, on the simulated GPU, under the tests of one file.\n\n"
        options.record.write_text(f"{head}{summary}.\n\n| fault | test | build | sign |\n|---|---|---|---|\n" + "\n".join(rows) + "\n")
    sys.exit(noticed < WANTED)


if __name__ == "__main__":
    main()
