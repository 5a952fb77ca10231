#!/usr/bin/env python3
"""Makes token shards, the files that train_gpt_goat trains on.

  prepare.py text --out data/shakespeare --tokenizer bytes shakespeare.txt
  prepare.py text --out data/books --tokenizer gpt2 books/*.txt.gz
  prepare.py c4 --out data/c4
  prepare.py parquet --out data/wiki --tokenizer gpt2 --input 'wiki/*.parquet' --val-documents 1000
  prepare.py fasta --out data/genome --input hg38.fa.gz
  zcat dump.gz | prepare.py text --out data/dump --tokenizer gpt2 --document-separator '<|endoftext|>' -

Exit codes: 0 done, 1 failure (disk, memory, interrupted, missing package), 2 wrong use, 3 bad data. Whatever
ends it early leaves the shards that were there as they were. The same command then goes on where it was; only
FASTA, standard input and pipes are read from their start again.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "scripts"))
import console  # noqa: E402


def parse(add_subcommands, words):
    description, _, rest = __doc__.partition("\n\n")
    parser = console.Parser(
        prog="prepare.py",
        description=description,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sources = parser.add_subparsers(dest="source", required=True, metavar="SOURCE")
    for add_subcommand in add_subcommands:
        add_subcommand(sources)
    arguments = parser.parse_args(words)
    arguments.words = sys.argv[1:] if words is None else words
    return arguments


def run(words):
    import prepare_fasta
    import prepare_sets
    import prepare_text

    subcommands = [prepare_text.add_parser, prepare_sets.add_parsers, prepare_fasta.add_parser]
    arguments = parse(subcommands, words)
    for line in arguments.prepare(arguments):
        console.say(line)


def main(words=None):
    return console.run_script("prepare.py", lambda: run(words), "no shards were written")


if __name__ == "__main__":
    sys.exit(main())
