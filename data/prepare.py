#!/usr/bin/env python3
"""Makes token shards, the files that train_gpt_goat trains on.

  prepare.py text --out data/shakespeare --tokenizer bytes shakespeare.txt
  prepare.py text --out data/books --tokenizer gpt2 books/*.txt.gz
  zcat dump.gz | prepare.py text --out data/dump --tokenizer gpt2 --document-separator '<|endoftext|>' -

Exit codes: 0 done, 1 failure (disk, interrupted, missing package), 2 wrong use, 3 bad data. Only 0 leaves shards behind.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

FAILURE, WRONG_USE, BAD_DATA = 1, 2, 3


def report(message, code):
    print(f"prepare.py: {message}", file=sys.stderr)
    return code


def interrupt(_signal, _frame):
    raise KeyboardInterrupt


def parse(add_subcommands):
    description, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(prog="prepare.py", description=description, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter)
    sources = parser.add_subparsers(dest="source", required=True, metavar="SOURCE")
    for add_subcommand in add_subcommands:
        add_subcommand(sources)
    return parser.parse_args()


def run():
    import prepare_text
    from prepare_shards import DataError, UsageError

    arguments = parse([prepare_text.add_parser])
    signal.signal(signal.SIGTERM, interrupt)  # clean up as for Ctrl-C
    try:
        summary = arguments.prepare(arguments)
    except UsageError as error:
        return report(error, WRONG_USE)
    except DataError as error:
        return report(error, BAD_DATA)
    except OSError as error:
        where = "" if error.filename or error.errno is None else f" (writing to {arguments.out})"
        return report(f"{error}{where}; no shards were written", FAILURE)
    except MemoryError:
        return report("out of memory; no shards were written", FAILURE)
    except KeyboardInterrupt:
        return report("interrupted; no shards were written", FAILURE)
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(summary, flush=True)
    except BrokenPipeError:  # the reader has seen enough; the shards are there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def main():
    try:
        return run()
    except ImportError as missing:
        requirements = Path(__file__).resolve().parent.parent / "scripts" / "requirements.txt"
        return report(f"{missing}. Install what it needs: pip install -r {requirements}", FAILURE)


if __name__ == "__main__":
    sys.exit(main())
