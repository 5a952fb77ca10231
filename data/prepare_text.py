"""prepare.py text: shards from plain text files."""

import os
from fractions import Fraction

from console import DataError, UsageError
from prepare_arguments import check_common_arguments, fraction
from prepare_documents import END, DocumentFile
from prepare_pipeline import add_common_arguments, prepare_documents
from prepare_sources import STANDARD_INPUT, byte_blocks, decoded, stored_size


def add_parser(subparsers):
    parser = subparsers.add_parser(
        "text",
        help="plain text files (.gz too)",
        description="Tokenizes text files and writes FOLDER/train_000000.bin ..., val_000000.bin ..., "
        "meta.json and the tokenizer's files. The texts form one stream in the order given; the end of it "
        "becomes the validation split. The same files and options give the same bytes.",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="UTF-8 text, plain or .gz; - is standard input"
    )
    add_common_arguments(parser)
    parser.add_argument(
        "--document-separator",
        metavar="TEXT",
        help=r"what separates documents within a file, as '<|endoftext|>' or '\n\n' (default: nothing); not "
        "for bytes",
    )
    parser.add_argument(
        "--val-fraction",
        type=fraction,
        default=Fraction(1, 10),
        metavar="F",
        help="share of the tokens for validation (default: 0.1)",
    )
    parser.set_defaults(prepare=prepare)


def check_arguments(arguments):
    if arguments.tokenizer == "bytes" and arguments.document_separator is not None:
        raise UsageError(
            "--document-separator: the tokenizer bytes has no token to put between documents; use gpt2, or "
            "leave the option out"
        )
    if arguments.document_separator == "":
        raise UsageError("--document-separator: is empty")
    if arguments.files.count(STANDARD_INPUT) > 1:
        raise UsageError("FILE: standard input (-) can be read once")
    for name in arguments.files:
        if name != STANDARD_INPUT:
            check_file(name)


def check_file(name):
    """Does not open it: a pipe can be opened once."""
    if os.path.isdir(name):
        raise DataError(f"{name}: is a folder; name the files in it, as {name.rstrip('/')}/*.txt")
    if not os.access(name, os.R_OK):
        raise DataError(f"{name}: {'no permission to read it' if os.path.exists(name) else 'no such file'}")


def prepare(arguments):
    """Makes the shards. Returns the lines that say what was made and how to go on."""
    check_common_arguments(arguments)
    check_arguments(arguments)
    separator = arguments.document_separator
    separator = separator and separator.replace(r"\n", "\n").replace(r"\t", "\t")
    files = [TextFile(name, separator, arguments.tokenizer == "bytes") for name in arguments.files]
    meta = {"document_separator": separator}
    return prepare_documents(arguments, files, val_fraction=arguments.val_fraction, extra_meta=meta)


class TextFile(DocumentFile):
    """A text file is a document, or several with a separator between them. `as_bytes`: whatever is in it."""

    can_skip = False

    def __init__(self, name, separator, as_bytes):
        self.name, self.size = name, stored_size(name)
        self.separator, self.as_bytes = separator, as_bytes

    def pieces(self, skip, progress, findings):
        if self.as_bytes:
            yield from byte_blocks(self.name, progress, findings)
            yield END
        else:
            yield from split_documents(decoded(self.name, progress, findings), self.separator, findings)


def split_documents(pieces, separator, findings):
    """Yields the text without separators, and END at the end of each document.

    What follows the last separator is a document if it is not empty. Notes how many separators there were.
    """
    held = ""  # the end of what came, where a separator may have begun
    keep = len(separator) - 1 if separator else 0
    unfinished = True
    for piece in pieces:
        held += piece
        if separator:
            *documents, held = held.split(separator)
            findings.separators += len(documents)
            for document in documents:
                yield document
                yield END
            unfinished = unfinished and not documents
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
            unfinished = True
    if held:
        yield held
    if held or unfinished:
        yield END
