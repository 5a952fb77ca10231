#!/usr/bin/env python3
"""Plants small faults, one at a time, and sees whether the tests notice: make mutate, or

    .venv/bin/python dev/mutate.py [--list kernels|host] [--only TEXT] [--plain]
                                   [--record dev/results/mutations.md]

dev/mutations.toml lists faults of the CUDA kernels, for tests on the simulated GPU; dev/mutations_host.toml
those of train/, data/, scripts/, dev/ and kernels/cpu, for tests on the cpu or where `device` says. The
sources stay as they are. A C++ file is compiled on its own, with the command of an existing build, and linked
in front of that build's objects; a script is changed in a copy of the tree. Then the tests of the named
files run. Fails if fewer than 95 % of a list are noticed, if one that is not says nothing in `explained`,
if the text of one no longer stands exactly once in its file, if one does not compile, or if a test fails
without a fault.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
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
LISTS = {"kernels": "dev/mutations.toml", "host": "dev/mutations_host.toml"}
WANTED = 0.95
SCRIPTS = (".py", ".sh")
TIME_LIMIT = 600  # seconds for the tests of one file; a fault that makes them hang is noticed
SIGNS = (  # of a failure, the most telling first
    r"ERROR: AddressSanitizer: [\w-]+",
    r"runtime error: .*",
    r"unexpected exception with message:\s*\n.*",
    r"\S+\.cpp:\d+: FAILED",
    r"^(?:FAILED|ERROR) \S+",
)
LIBRARIES = {"goat_kernels", "goat_open_device"}
TRAINING = LIBRARIES | {"goat_data", "goat_train", "goat_version"}
EXECUTABLES = {  # which targets' objects they hold
    "kernel_tests": LIBRARIES | {"kernel_tests", "goat_test_support"},
    "goat_tests": TRAINING | {"goat_tests", "goat_test_support"},
    "train_gpt_goat": TRAINING | {"train_gpt_goat"},
}


class CannotRun(Exception):
    """A fault, or the tests without one, could not be tried."""


@dataclass(frozen=True)
class Mutation:
    file: str
    old: str
    new: str
    tests: tuple  # names of test files: test_shard (test_shard.cpp), test_resume (test_resume.py)
    build: str = ""  # "", "address" or "race": what it takes to see it
    explained: str = ""  # why the tests need not see it
    device: str = ""  # on which the C++ tests run; "": the list's

    def __str__(self):
        words = f"{Path(self.file).name}: {self.old} -> {self.new.strip() or '(nothing)'}".split()
        return " ".join(words)


def read_mutations(path, root=REPOSITORY):
    mutations, stale = [], []
    for entry in tomllib.loads(Path(path).read_text(encoding="utf-8"))["mutation"]:
        test = entry.pop("test")
        mutation = Mutation(**entry, tests=tuple([test] if isinstance(test, str) else test))
        source = root / mutation.file
        if (
            not source.is_file()
            or source.read_text(encoding="utf-8").count(mutation.old) != 1
            or mutation.old == mutation.new
        ):
            stale.append(str(mutation))
        mutations.append(mutation)
    if stale:
        raise CannotRun("not exactly once in its file:\n  " + "\n  ".join(stale))
    return mutations


def write_changed(mutation, folder):
    """Writes the changed file below `folder`, at its place in the tree."""
    changed = folder / mutation.file
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(
        (REPOSITORY / mutation.file).read_text(encoding="utf-8").replace(mutation.old, mutation.new),
        encoding="utf-8",
    )


def run(words, directory, complaint):
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"{complaint}:\n{(done.stderr or done.stdout)[-3000:]}")


class Build:
    """An existing build, plain or with a sanitizer."""

    def __init__(self, directory, targets, options, current):
        self.directory = directory
        if not current:
            run(
                ["cmake", "-S", REPOSITORY, "-B", directory, *options],
                REPOSITORY,
                f"{directory} cannot be configured",
            )
            run(
                ["cmake", "--build", directory, "--parallel", str(os.cpu_count()), "--target", *targets],
                REPOSITORY,
                f"{directory} does not build",
            )
        self.commands = []  # (target, source, object, words)
        for entry in json.loads((directory / "compile_commands.json").read_text()):
            # Without -Werror: a fault may leave a name unused.
            words = [word for word in shlex.split(entry["command"]) if word != "-Werror"]
            output = Path(entry["directory"]) / words[words.index("-o") + 1]
            target = re.search(r"CMakeFiles/(\w+)\.dir/", str(output))[1]
            self.commands.append((target, Path(entry["file"]), output, words))

    def executable_of(self, test):
        """The Catch2 program that holds the tests of test/TEST.cpp."""
        name = f"{test}.cpp"
        found = (t for t, file, *_ in self.commands if file.name == name and file.parent.name == "test")
        return next(found, None)

    def link_command(self, name):
        folder = self.directory / "test" if name.endswith("_tests") else self.directory
        return folder, shlex.split((folder / f"CMakeFiles/{name}.dir/link.txt").read_text())

    def path_of(self, name):
        folder, words = self.link_command(name)
        return folder / words[words.index("-o") + 1]

    def users_of(self, files, targets):
        """(source, object, words) of each object of `targets` that a change of `files` changes."""
        written = re.compile(rf"\S*/({'|'.join(re.escape(file) for file in files)})(?=\s|$)")
        for target, source, output, words in self.commands:
            if target not in targets:
                continue
            depends = Path(f"{output}.d")
            if any(source == REPOSITORY / file for file in files) or (
                depends.exists() and written.search(depends.read_text())
            ):
                yield source, output, words

    def new_sources(self, files, targets):
        """The same for those of `files` that the build does not know: (source, None, a neighbour's words)."""
        for source in (REPOSITORY / file for file in files if file.endswith(".cpp")):
            if all(known != source for _, known, *_ in self.commands):
                beside = (
                    words
                    for target, known, _, words in self.commands
                    if known.parent == source.parent and target in targets
                )
                yield source, None, next(beside)

    def make(self, name, files, folder, targets, what):
        """The executable `name`, written to `folder`, with `files` as they stand there. `what` names the
        change in complaints."""
        directory, link = self.link_command(name)
        binary = folder / name
        link[link.index("-o") + 1] = str(binary)
        first = link.index("-o") + 2
        units = [*self.users_of(files, targets), *self.new_sources(files, targets)]
        for i, (source, output, words) in enumerate(units):
            compiled = folder / f"{name}-{i}-{source.name}.o"
            changed = str(source.relative_to(REPOSITORY)) in files
            words = list(words)
            words[words.index("-o") + 1] = str(compiled)
            words[words.index("-c") + 1] = str(folder / source.relative_to(REPOSITORY) if changed else source)
            # Headers are found here first: #include "train/config/config.h"
            words.insert(next(i for i, word in enumerate(words) if word.startswith("-")), f"-I{folder}")
            run(words, REPOSITORY, f"{what} does not compile")
            own = [i for i, word in enumerate(link) if word.endswith(".o") and directory / word == output]
            if own:
                link[own[0]] = str(compiled)
            else:  # a library's: what stands in front of it is taken first
                link.insert(first, str(compiled))
        run(link, directory, f"{what} does not link")
        return binary


def how_it_fails(command, directory=REPOSITORY, **environment):
    """A sign of the failure of a test program; empty if it passes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000", **environment}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        errors="replace", env=environment, cwd=directory, start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "does not end"
    if process.returncode == 0:
        return ""
    for sign in SIGNS:
        if match := re.search(sign, text, re.MULTILINE):
            return (
                " ".join(match[0].split())
                .replace(str(REPOSITORY) + "/", "")
                .replace("unexpected exception with message: ", "")
                .replace("|", "/")[:120]
            )
    return f"exit code {process.returncode}"


def run_catch(program, test, device):
    reduced = {"GOAT_TEST_REDUCED": "1"} if Path(program).name == "kernel_tests" else {}
    return how_it_fails(
        [program, "--filenames-as-tags", f"[#{test}]", "--abort", "--warn", "NoTests"],
        GOAT_TEST_DEVICES=device,
        **reduced,
    )


def run_pytest(tree, test, binary):
    """Of the tests in `tree`, with `binary` as the program."""
    words = [REPOSITORY / ".venv/bin/python", "-m", "pytest", "-q", "-x", "-rfE", "--tb=line"]
    words += ["-p", "no:cacheprovider", f"test/{test}.py"]
    sign = how_it_fails(words, tree, TRAIN_GPT_GOAT=str(binary), PYTHONDONTWRITEBYTECODE="1")
    if sign in ("exit code 4", "exit code 5"):  # usage, no tests
        raise CannotRun(f"pytest {test}: {sign}")
    return sign


def copy_tree(folder):
    """The repository's files without a build, in `folder`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    (folder / ".venv").symlink_to(REPOSITORY / ".venv")


class Trial:
    """Tries the faults of one list against one build."""

    def __init__(self, name, build):
        self.build = build
        self.kernels = name == "kernels"

    def device_of(self, mutation):
        return mutation.device or ("simt" if self.kernels else "cpu")

    def targets_of(self, mutation, executable):
        if self.kernels:
            return {"goat_simt"}
        return EXECUTABLES[executable] | ({"goat_simt"} if mutation.device == "simt" else set())

    def without_fault(self, test, device):
        executable = self.build.executable_of(test)
        if executable:
            return run_catch(self.build.path_of(executable), test, device)
        return run_pytest(REPOSITORY, test, self.binary())

    def binary(self):
        return self.build.path_of("train_gpt_goat")

    def with_fault(self, mutation):
        """(test, sign) of the first test file that notices; ("", "") if none does."""
        with tempfile.TemporaryDirectory(prefix="goat_mutation_") as folder:
            folder, made = Path(folder), {}
            if mutation.file.endswith(SCRIPTS):
                copy_tree(folder)
                write_changed(mutation, folder)
            for test in mutation.tests:
                executable = self.build.executable_of(test)
                if mutation.file.endswith(SCRIPTS):
                    sign = run_pytest(folder, test, self.binary())
                else:
                    name = executable or "train_gpt_goat"
                    if name not in made:
                        write_changed(mutation, folder)
                        made[name] = self.build.make(
                            name, [mutation.file], folder, self.targets_of(mutation, name), mutation
                        )
                    sign = (
                        run_catch(made[name], test, self.device_of(mutation))
                        if executable
                        else run_pytest(REPOSITORY, test, made[name])
                    )
                if sign:
                    return test, sign
        return "", ""


def try_all(mutations, trials, pool):
    """Prints and returns the table's rows and how many were noticed; `trials` by build."""
    bare = sorted({(m.build, trials[m.build].device_of(m), test) for m in mutations for test in m.tests})
    signs = pool.map(lambda run: trials[run[0]].without_fault(run[2], run[1]), bare)
    for (_, _, test), sign in zip(bare, signs):
        if sign:
            raise CannotRun(f"{test} fails without a fault: {sign}")
    rows, outcome, unexplained = [], Counter(), []
    for mutation, (test, sign) in zip(
        mutations, pool.map(lambda m: trials[m.build].with_fault(m), mutations)
    ):
        outcome[bool(sign)] += 1
        if not sign and not mutation.explained:
            unexplained.append(mutation)
        named = test or ", ".join(mutation.tests)
        rows.append(
            f"| `{str(mutation).replace('|', '/')}` | {named} | {mutation.build or 'plain'} "
            f"| {sign or f'**not noticed**: {mutation.explained}'} |"
        )
        print(
            f"{'noticed    ' if sign else 'NOT NOTICED'} {mutation} [{named} {mutation.build}] "
            f"{sign or mutation.explained}",
            flush=True,
        )
    return rows, outcome[True], unexplained


TITLES = {"kernels": "The CUDA kernels, on the simulated GPU", "host": "The host side and the CPU kernels"}


def record(path, sections):
    """Writes {list: text} to the page; the section of a list that was not tried stays as it is."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    text = (
        "# Faults planted to see whether the tests notice\n\nThe tables are written by "
        "`dev/mutate.py --record`: each fault alone, under the tests of one file or a few.\n"
    )
    for name, title in TITLES.items():
        if name in sections:
            text += f"\n## {title}\n\n{sections[name]}"
        elif kept := re.search(rf"\n## {re.escape(title)}\n(?:(?!\n## ).)*", old, re.DOTALL):
            text += kept[0].rstrip() + "\n"
    path.write_text(text, encoding="utf-8")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", choices=LISTS, help="one of the lists (default: both)")
    parser.add_argument(
        "--only", default="", help="those whose description (file: old -> new) or test holds this text"
    )
    parser.add_argument(
        "--plain", action="store_true", help="leave out those that take a sanitizer or the race checker"
    )
    parser.add_argument(
        "--build", type=Path, default=REPOSITORY / "build", help="the plain build (default: build)"
    )
    parser.add_argument(
        "--build-asan", type=Path, default=REPOSITORY / "build-asan", help="the build of make test-asan"
    )
    parser.add_argument(
        "--build-race", type=Path, default=REPOSITORY / "build-race", help="the build of make test-race"
    )
    parser.add_argument(
        "--as-built",
        action="store_true",
        help="take the builds as they are, without bringing them up to date",
    )
    parser.add_argument("--record", type=Path, help="write the outcome as tables to this page")
    options = parser.parse_args()
    if options.record and (options.only or options.plain):
        parser.error("--record writes a whole list: leave --only and --plain out")
    return options


def prepare_build(options, name, needs_simt):
    directory = {"": options.build, "address": options.build_asan, "race": options.build_race}[name]
    if name:
        return Build(
            directory.resolve(),
            ["kernel_tests"],
            [f"-DGOAT_SANITIZE={name}", "-DGOAT_CUDA=OFF", "-DGOAT_SIMT=ON"],
            options.as_built,
        )
    return Build(
        directory.resolve(),
        list(EXECUTABLES),
        ["-DGOAT_SIMT=ON"] if needs_simt else [],
        options.as_built,
    )


def main():
    options = parse_arguments()
    lists = {
        name: read_mutations(REPOSITORY / path)
        for name, path in LISTS.items()
        if options.list in (None, name)
    }
    for name, mutations in lists.items():
        lists[name] = [
            m for m in mutations if options.only in f"{m} {m.tests}" and not (options.plain and m.build)
        ]
    if not any(lists.values()):
        raise CannotRun("no such mutation")
    needs_simt = "kernels" in lists or any(m.device == "simt" for m in lists["host"])
    builds = {
        name: prepare_build(options, name, needs_simt)
        for name in sorted({m.build for mutations in lists.values() for m in mutations})
    }
    failed, sections = False, {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, mutations in lists.items():
            if not mutations:
                continue
            started = time.monotonic()
            rows, noticed, unexplained = try_all(
                mutations, {key: Trial(name, build) for key, build in builds.items()}, pool
            )
            share, seconds = noticed / len(mutations), time.monotonic() - started
            summary = f"{noticed} of {len(mutations)} faults noticed ({share:.0%}), {seconds:.0f} s"
            notes = [f"  not explained: {mutation}" for mutation in unexplained]
            print(f"{name}: {summary}", *notes, sep="\n", flush=True)
            failed = failed or noticed < WANTED * len(mutations) or bool(unexplained)
            sections[name] = (
                f"{summary}.\n\n| fault | noticed by | build | sign |\n|---|---|---|---|\n"
                + "\n".join(rows)
                + "\n"
            )
    if options.record:
        record(options.record, sections)
    sys.exit(failed)


if __name__ == "__main__":
    try:
        main()
    except CannotRun as problem:
        sys.exit(f"mutate: {problem}")
