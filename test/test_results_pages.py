"""The tables of README.md and docs/results.md are what reproduce.py makes of the files in dev/results."""

import re
import shlex
import sys

import pytest

import reproduce
from conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/results.md").read_text()
README = (REPOSITORY / "README.md").read_text()
COMMAND = re.compile(r"^\.venv/bin/python scripts/reproduce\.py (.* --table.*)$", re.MULTILINE)
# Whose results are those of the project, not of a reader's own run.
COMMANDS = [words for words in COMMAND.findall(PAGE) if "--results" not in words]
README_KINDS = {
    "`rope`": "rope",
    "`alibi`": "alibi",
    "`alibi_learned`": "alibi_learned",
    "`goat`, zero start (as published)": "goat",
    "`forget`": "forget",
    "`goat+forget`, zero start": "goat+forget",
    "`goat`, zero start, `prior.lr_scale=20`": "goat, lr x20",
}


@pytest.fixture
def output_of(monkeypatch, capsys):
    """output_of(words): what reproduce.py prints."""

    def run(words):
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *shlex.split(words, comments=True)])
        assert reproduce.main() == 0
        return capsys.readouterr().out

    return run


def rows_of(text):
    """The cells of each row of its tables."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def means_of(output_of):
    """{kind: {length: perplexity}} as the study of extrapolation prints them."""
    header, _, *rows = rows_of(tables_of(output_of("extrapolation --table"))[0])
    return {row[0]: dict(zip(header[2:], row[2:], strict=True)) for row in rows}


def tables_of(text):
    """Each table, as it stands."""
    return [table.strip() for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)]


@pytest.mark.parametrize("words", COMMANDS)
def test_the_page_has_the_tables_that_its_commands_print(output_of, words):
    printed, page = tables_of(output_of(words)), tables_of(PAGE)
    assert printed and [table for table in printed if table not in page] == []


def test_the_page_has_a_command_for_each_study():
    assert {words.split()[0] for words in COMMANDS} == set(reproduce.STUDIES)


def test_what_is_compared_with_the_other_implementation_is_the_mean_of_the_page(output_of):
    means = means_of(output_of)
    (table,) = [each for each in tables_of(PAGE) if "trial" in each.splitlines()[0]]
    _, *rows = rows_of(table)
    assert len(rows) == 8
    for kind, _, short, _, long in rows:
        assert (short, long) == (means[kind]["128"], means[kind]["2,048"]), kind


def test_the_readme_has_the_means_of_the_page(output_of):
    means = means_of(output_of)
    at = next(n for n, row in enumerate(rows_of(README)) if row[0] == "positions" and "32,768" in row)
    lengths, *shown = rows_of(README)[at : at + 1 + len(README_KINDS)]
    assert [row[0] for row in shown] == list(README_KINDS)
    for kind, *cells in shown:
        expected = [means[README_KINDS[kind]][length] for length in lengths[1:]]
        expected[:-1] = [cell.split(" ± ")[0] for cell in expected[:-1]]  # the last column shows the spread
        assert [cell.replace("**", "") for cell in cells] == expected, kind
