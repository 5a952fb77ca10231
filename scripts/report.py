#!/usr/bin/env python3
"""One HTML page that compares runs of train_gpt_goat: what they are, where their configs differ, losses,
evaluations, learned priors, and the commands that repeat them.

  report.py RUN ...                                writes report.html
  report.py RUN ... --eval FILE --out page.html    with an evaluation that stands elsewhere

RUN is the folder that the trainer wrote. Its evaluation is RUN/eval.json, where
`train_gpt_goat eval --checkpoint RUN --json RUN/eval.json` has made one. FILE is what eval --json wrote, or
{"evaluations": [...]} with several of them. The page needs no other file and no network. What a run lacks is
said in it.

Exit codes: 0 done, 1 failure (disk, memory, interrupted, missing package), 2 wrong use, 3 bad data.
"""

import argparse
import shlex
import sys
from pathlib import Path

import console


def parse_layers(text):
    try:
        return sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}': expected numbers of layers, as 0,3") from None


def parse_arguments(words):
    parser = console.Parser(
        prog="report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        default=Path("report.html"),
        help="the page (default: report.html)",
    )
    parser.add_argument(
        "--eval", type=Path, metavar="FILE", action="append", default=[], dest="evaluations",
        help="more evaluations, of any of the runs; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--layers", type=parse_layers, default=[0], metavar="L,...",
        help="layers whose prior is drawn, from 0 (default: 0)",
    )  # fmt: skip
    return parser.parse_args(words)


def run(words):
    words = sys.argv[1:] if words is None else words
    arguments = parse_arguments(words)
    from figure_file import check_output_path, write_output
    from report_page import page
    from report_runs import gather_evaluations, read_runs

    check_output_path(arguments.out)
    runs = read_runs(arguments.runs, arguments.layers)
    measured = gather_evaluations(runs, arguments.evaluations)
    own_command = shlex.join([".venv/bin/python", "scripts/report.py", *map(str, words)])
    write_output(arguments.out, page(runs, measured, own_command), "page")
    console.say(str(arguments.out))
    for each in runs:
        for message in [*each.warnings, *each.notes]:
            console.say(f"{each.name}: {message}")


def main(words=None):
    return console.run_script("report.py", lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
