"""prepare.py text: shards from plain text files."""

import argparse
import os
from fractions import Fraction

import console
import numpy as np
from console import DataError, UsageError
from prepare_advice import summary
from prepare_shards import LARGEST_SHARD, ShardFolder
from prepare_sources import STANDARD_INPUT, Findings, byte_blocks, decoded, progress_bar
from prepare_tokenizers import END_OF_TEXT, Gpt2Tokenizer, TextCutter

BATCH_CHARACTERS = 1 << 22  # encoded at once, by all cores


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
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where the shards go")
    parser.add_argument(
        "--tokenizer",
        required=True,
        choices=["gpt2", "bytes"],
        help="gpt2: byte-pair encoding, 50,257 tokens, 50256 before each document; bytes: a token is a byte, "
        "files follow each other without a mark",
    )
    parser.add_argument(
        "--tokenizer-dir",
        metavar="DIR",
        help="gpt2 from DIR/vocab.bpe and DIR/encoder.json instead of the network",
    )
    parser.add_argument(
        "--document-separator",
        metavar="TEXT",
        help=r"gpt2: what separates documents within a file, as '<|endoftext|>' or '\n\n' (default: nothing)",
    )
    parser.add_argument(
        "--val-fraction",
        type=fraction,
        default=Fraction(1, 10),
        metavar="F",
        help="share of the tokens for validation (default: 0.1)",
    )
    parser.add_argument(
        "--shard-tokens",
        type=shard_size,
        default=100_000_000,
        metavar="N",
        help="tokens in a shard (default: 100000000)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the shards that FOLDER holds")
    parser.set_defaults(prepare=prepare)


def fraction(text):
    """A decimal number as it is written: 0.1 is a tenth, not the nearest binary fraction."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return Fraction(repr(value))


def shard_size(text):
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LARGEST_SHARD:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {LARGEST_SHARD}")
    return int(text)


def check_arguments(arguments):
    if arguments.tokenizer == "bytes" and arguments.document_separator is not None:
        raise UsageError(
            "--document-separator: the tokenizer bytes has no token to put between documents; use gpt2, or "
            "leave the option out"
        )
    if arguments.tokenizer == "bytes" and arguments.tokenizer_dir is not None:
        raise UsageError("--tokenizer-dir: the tokenizer bytes has no files")
    if arguments.document_separator == "":
        raise UsageError("--document-separator: is empty")
    if arguments.out == "":
        raise UsageError("--out: is empty")
    # A byte that is no UTF-8 comes as half a surrogate pair, which cannot be printed either.
    if not arguments.out.isprintable():
        problem = "holds what cannot be printed, and the trainer's config could not name it"
        raise UsageError(f"--out {arguments.out}: {problem}; choose another name")
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
    check_arguments(arguments)
    findings = Findings()
    if arguments.tokenizer == "gpt2":
        tokenizer = Gpt2Tokenizer(arguments.tokenizer_dir)
        vocabulary, end_of_text = tokenizer.vocabulary, tokenizer.end_of_text
        tokenizer_files = {f"tokenizer/{name}": contents for name, contents in tokenizer.files.items()}
        tokens_of_marker = len(tokenizer.encode_batch([END_OF_TEXT])[0])
        separator = arguments.document_separator
        separator = separator and separator.replace(r"\n", "\n").replace(r"\t", "\t")
        stream = encoded_text(arguments.files, tokenizer, separator, findings)
    else:
        vocabulary, end_of_text, separator = 256, None, None
        tokenizer_files, tokens_of_marker = {}, len(END_OF_TEXT)
        stream = encoded_bytes(arguments.files, findings)

    with ShardFolder(arguments.out, arguments.overwrite, tokenizer_files) as folder:
        for tokens in stream:
            folder.append(tokens)
        if folder.tokens == 0:
            raise DataError("no text in " + ", ".join(arguments.files))
        train_tokens = int(folder.tokens * (1 - arguments.val_fraction))
        splits = [("train", train_tokens), ("val", folder.tokens - train_tokens)]
        meta = {
            "tokenizer": arguments.tokenizer,
            "vocab": vocabulary,
            "end_of_text": end_of_text,
            "document_separator": separator,
            "val_fraction": float(arguments.val_fraction),
            "documents": findings.documents,
            "sources": findings.sources,
            "notes": list(findings.lines(arguments.tokenizer, separator, tokens_of_marker)),
        }
        meta = folder.publish(splits, arguments.shard_tokens, meta, before_sealing=console.ignore_stops)
    return summary(arguments.out, meta)


def encoded_bytes(files, findings):
    """Yields uint16 arrays: the bytes of all files."""
    with progress_bar(files) as bar:
        for name in files:
            empty = True
            for block in byte_blocks(name, bar, findings):
                empty = False
                yield np.frombuffer(block, np.uint8).astype(np.uint16)
            findings.documents += not empty
            findings.empty_documents += empty


def encoded_text(files, tokenizer, separator, findings):
    """Yields uint16 arrays: for each document that is not empty, the end-of-text token, then its tokens."""
    batch, characters = [], 0
    with progress_bar(files) as bar:
        for text, starts_document in document_texts(files, separator, bar, findings):
            batch.append((text, starts_document))
            characters += len(text)
            if characters >= BATCH_CHARACTERS:
                yield encode_batch(batch, tokenizer)
                batch, characters = [], 0
        if batch:
            yield encode_batch(batch, tokenizer)


def encode_batch(batch, tokenizer):
    tokens = []
    for (_, starts_document), encoded in zip(
        batch, tokenizer.encode_batch([text for text, _ in batch]), strict=True
    ):
        if starts_document:
            tokens.append(tokenizer.end_of_text)
        tokens += encoded
    return np.array(tokens, np.uint16)


def document_texts(files, separator, bar, findings):
    """Yields (text, whether a document starts with it) of a bounded length, documents one after the other."""
    for name in files:
        cutter = TextCutter()
        starts = True
        for piece in split_documents(decoded(name, bar, findings), separator, findings):
            for text in cutter.finish() if piece is None else cutter.add(piece):
                findings.documents += starts
                yield text, starts
                starts = False
            if piece is None:
                findings.empty_documents += starts
                starts = True
        findings.forced_cuts += cutter.forced_cuts


def split_documents(pieces, separator, findings):
    """Yields the text without separators, and None at the end of each document.

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
                yield None
            unfinished = unfinished and not documents
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
            unfinished = True
    if held:
        yield held
    if held or unfinished:
        yield None
