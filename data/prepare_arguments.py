"""The options that all sources of prepare.py share."""

import argparse
import hashlib
import json
import os
import shlex
import textwrap
from fractions import Fraction

from console import UsageError
from prepare_stream import LARGEST_SHARD

DEFAULT_SHARD = 100_000_000
# Options that the shards do not depend on, and what is no option.
WITHOUT_EFFECT = ("--out", "--workers", "--overwrite", "--restart")
NO_OPTIONS = ("out", "workers", "overwrite", "restart", "words", "files", "prepare")


def add_folder_arguments(add, shard="tokens in a shard"):
    """--out, --shard-tokens, --overwrite, --restart."""
    add("--out", required=True, metavar="FOLDER", help="where the shards go")
    add(
        "--shard-tokens",
        type=shard_size,
        default=DEFAULT_SHARD,
        metavar="N",
        help=f"{shard} (default: {DEFAULT_SHARD})",
    )
    add("--overwrite", action="store_true", help="replace the shards that FOLDER holds")
    add(
        "--restart",
        action="store_true",
        help="begin again where an interrupted run left its work in FOLDER (default: go on from there)",
    )


def add_common_arguments(parser, tokenizer=None):
    """`tokenizer` is the default; without one, it has to be named.

    Those of add_folder_arguments(), --tokenizer, --tokenizer-dir, --end-of-text, --max-tokens, --workers.
    prepare_documents() checks them."""
    add = parser.add_argument
    add_folder_arguments(add)
    add(
        "--tokenizer",
        required=tokenizer is None,
        default=tokenizer,
        metavar="NAME",
        help="gpt2: byte-pair encoding, 50,257 tokens, 50256 before each document; bytes: a token is a byte, "
        "documents follow each other without a mark; or a tokenizer.json, or a folder that holds one"
        + (f" (default: {tokenizer})" if tokenizer else ""),
    )
    add(
        "--tokenizer-dir",
        metavar="DIR",
        help="gpt2 from DIR/vocab.bpe and DIR/encoder.json instead of the network",
    )
    add(
        "--end-of-text",
        metavar="TOKEN",
        help="tokenizer.json: the token before each document (default: <|endoftext|> or the like)",
    )
    add("--max-tokens", type=whole_number, metavar="N", help="stop after N tokens (default: take all)")
    add("--workers", type=whole_number, metavar="N", help="cores that encode (default: all of them)")


def described(description, example):
    """Arguments of add_parser() for a long description and commands that are shown as they are written."""
    return {
        "description": textwrap.fill(description, 100),
        "epilog": example,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def fraction(text):
    """A decimal number as it is written: 0.1 is a tenth, not the nearest binary fraction."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return Fraction(repr(value))


def whole_number(text, largest=2**62):
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= largest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {largest}")
    return int(text)


def shard_size(text):
    return whole_number(text, LARGEST_SHARD)


def check_common_arguments(arguments):
    if arguments.out == "":
        raise UsageError("--out: is empty")
    # A byte that is no UTF-8 comes as half a surrogate pair, which cannot be printed either.
    if not arguments.out.isprintable():
        problem = "holds what cannot be printed, and the trainer's config could not name it"
        raise UsageError(f"--out {arguments.out}: {problem}; choose another name")
    if arguments.tokenizer != "gpt2" and arguments.tokenizer_dir is not None:
        raise UsageError(f"--tokenizer-dir: is for gpt2, not for the tokenizer {arguments.tokenizer}")
    if arguments.tokenizer in ("gpt2", "bytes") and arguments.end_of_text is not None:
        raise UsageError(f"--end-of-text: is for a tokenizer.json, not for {arguments.tokenizer}")


def workers(arguments):
    return arguments.workers or len(os.sched_getaffinity(0))


def command(arguments):
    """The words that make this set again, but for where it goes."""
    kept, words = ["prepare.py"], iter(getattr(arguments, "words", []))
    for word in words:
        name, is_joined, _ = word.partition("=")
        option = next((full for full in WITHOUT_EFFECT if name[2:] and full.startswith(name)), None)
        if option is None:
            kept.append(word)
        elif option in ("--out", "--workers") and not is_joined:
            next(words, None)
    return shlex.join(kept)


def claim(arguments, files, tokenizer):
    """What a run must have in common with the one that it continues."""
    options = {name: str(value) for name, value in vars(arguments).items() if name not in NO_OPTIONS}
    identities = {split: [file.identity() for file in listed] for split, listed in files.items()}
    names = {split: [file.name for file in listed] for split, listed in files.items()}
    contents = {name: hashlib.sha256(data).hexdigest() for name, data in tokenizer.files.items()}
    return {
        "format": 1,
        "options": options,
        "tokenizer": contents,
        "names": hashlib.sha256(json.dumps(names).encode()).hexdigest(),
        "files": hashlib.sha256(json.dumps(identities).encode()).hexdigest(),
    }
