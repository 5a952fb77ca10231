"""prepare.py text: shards from plain text files."""

import argparse
import codecs
import gzip
import hashlib
import os
import shlex
import sys
import zlib
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from prepare_shards import LARGEST_SHARD, DataError, ShardFolder, UsageError
from prepare_tokenizers import CUT_CHARACTERS, Gpt2Tokenizer, TextCutter

READ_BYTES = 1 << 20
BATCH_CHARACTERS = 1 << 22  # encoded at once, by all cores
STANDARD_INPUT = "-"


def add_parser(subparsers):
    parser = subparsers.add_parser(
        "text",
        help="plain text files (.gz too)",
        description="Tokenizes text files and writes FOLDER/train_000000.bin ..., val_000000.bin ... and meta.json. The files form one stream in the "
        "order given; the end of it becomes the validation split. The same files and options give the same bytes.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text, plain or .gz; - is standard input")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where the shards go")
    parser.add_argument(
        "--tokenizer",
        required=True,
        choices=["gpt2", "bytes"],
        help="gpt2: byte-pair encoding, 50,257 tokens, 50256 before each document; bytes: a token is a byte, files follow each other without a mark",
    )
    parser.add_argument("--tokenizer-dir", metavar="DIR", help="gpt2 from DIR/vocab.bpe and DIR/encoder.json instead of the network")
    parser.add_argument(
        "--document-separator", metavar="TEXT", help=r"gpt2: what separates documents within a file, as '<|endoftext|>' or '\n\n' (default: nothing)"
    )
    parser.add_argument(
        "--val-fraction", type=fraction, default=Fraction(1, 10), metavar="F", help="share of the tokens for validation (default: 0.1)"
    )
    parser.add_argument("--shard-tokens", type=shard_size, default=100_000_000, metavar="N", help="tokens in a shard (default: 100000000)")
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


@dataclass
class Findings:
    """What was unusual about the text, and what became of it."""

    documents: int = 0
    empty_documents: int = 0
    nul_bytes: int = 0
    crlf: int = 0
    invalid: int = 0
    first_invalid: str = ""
    forced_cuts: int = 0
    sources: list = field(default_factory=list)

    def lines(self):
        if self.invalid:
            yield f"replaced by U+FFFD: {count(self.invalid, 'invalid UTF-8 sequence')}, the first in {self.first_invalid}"
        if self.empty_documents:
            yield f"skipped: {count(self.empty_documents, 'empty document')}"
        if self.crlf:
            yield f"kept: {count(self.crlf, 'CRLF line end')}"
        if self.nul_bytes:
            yield f"kept: {count(self.nul_bytes, 'NUL byte')}"
        if self.forced_cuts:
            yield f"cut: {count(self.forced_cuts, 'run')} of {CUT_CHARACTERS:,} characters without a space; the tokens at the cut may not be GPT-2's"


def count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def check_arguments(arguments):
    if arguments.tokenizer == "bytes" and arguments.document_separator is not None:
        raise UsageError("--document-separator: the tokenizer bytes has no token to put between documents; use gpt2, or leave the option out")
    if arguments.tokenizer == "bytes" and arguments.tokenizer_dir is not None:
        raise UsageError("--tokenizer-dir: the tokenizer bytes has no files")
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
    check_arguments(arguments)
    findings = Findings()
    if arguments.tokenizer == "gpt2":
        tokenizer = Gpt2Tokenizer(arguments.tokenizer_dir)
        vocabulary, end_of_text = tokenizer.vocabulary, tokenizer.end_of_text
        separator = arguments.document_separator and arguments.document_separator.replace(r"\n", "\n").replace(r"\t", "\t")
        stream = encoded_text(arguments.files, tokenizer, separator, findings)
    else:
        vocabulary, end_of_text, separator = 256, None, None
        stream = encoded_bytes(arguments.files, findings)

    with ShardFolder(arguments.out, arguments.overwrite) as folder:
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
            "notes": list(findings.lines()),
        }
        meta = folder.publish(splits, arguments.shard_tokens, meta)
    return summary(folder.path, meta)


def summary(path, meta):
    """What was made and how to go on, for the terminal."""
    size = sum(source["bytes"] for source in meta["sources"])
    tokens = meta["train_tokens"] + meta["val_tokens"]
    files, documents = count(len(meta["sources"]), "file"), count(meta["documents"], "document")
    lines = [f"{files}, {size:,} bytes, {documents} -> {tokens:,} tokens (vocabulary {meta['vocab']:,})"]
    lines += [f"  {note}" for note in meta["notes"]]
    command = ["./train_gpt_goat", "--config", "shakespeare"]
    for split in ("train", "val"):
        shards = [shard for shard in meta["shards"] if shard["split"] == split]
        pattern = f"{path}/{split}_*.bin" if shards else ""
        lines.append(f"  {split:5} {meta[split + '_tokens']:>15,} tokens in {count(len(shards), 'shard')} {pattern}".rstrip())
        command += ["--set", f"data.{split}={pattern}" if shards else f'data.{split}=""']
    command += ["--set", f"model.vocab={meta['vocab']}"]
    if meta["end_of_text"] is None:
        command += ["--set", "data.block=window"]
    else:
        command += ["--set", "data.block=bos", "--set", f"data.bos={meta['end_of_text']}"]
    lines += ["Train with this, or with another preset (--list-configs) or file:", "  " + shlex.join(command)]
    return "\n".join(lines)


def progress_bar(files):
    """Counts bytes of text; knows the end where no file is compressed."""
    from tqdm import tqdm

    plain = all(name != STANDARD_INPUT and not name.endswith(".gz") for name in files)
    total = sum(os.path.getsize(name) for name in files) if plain else None
    return tqdm(total=total, unit="B", unit_scale=True, disable=not sys.stderr.isatty(), leave=False)


def read_blocks(name, bar, findings):
    """The bytes of a source, decompressed, in blocks; notes its size, hash, NUL bytes and CRLF line ends."""
    digest, size, last = hashlib.sha256(), 0, b""
    for block in raw_blocks(name):
        digest.update(block)
        size += len(block)
        findings.nul_bytes += block.count(b"\0")
        findings.crlf += block.count(b"\r\n") + (last == b"\r" and block.startswith(b"\n"))
        last = block[-1:]
        bar.update(len(block))
        yield block
    findings.sources.append({"name": name, "bytes": size, "sha256": digest.hexdigest()})


def raw_blocks(name):
    compressed = name.endswith(".gz")
    try:
        if compressed and Path(name).stat().st_size == 0:
            raise EOFError
        with open(0 if name == STANDARD_INPUT else name, "rb", closefd=name != STANDARD_INPUT) as file:
            source = gzip.GzipFile(fileobj=file) if compressed else file
            while block := source.read(READ_BYTES):
                yield block
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        what = "the compressed data is cut short" if isinstance(error, EOFError) else f"the compressed data is damaged ({error})"
        raise DataError(f"{name}: {what}: copy or download the file again") from None
    except OSError as error:
        raise DataError(f"{name}: cannot read it: {error.strerror}") from None


def encoded_bytes(files, findings):
    """Yields uint16 arrays: the bytes of all files."""
    with progress_bar(files) as bar:
        for name in files:
            empty = True
            for block in read_blocks(name, bar, findings):
                empty = False
                yield np.frombuffer(block, np.uint8).astype(np.uint16)
            findings.documents += not empty
            findings.empty_documents += empty


def encoded_text(files, tokenizer, separator, findings):
    """Yields uint16 arrays: for each document that is not empty, the end-of-text token and then the document's tokens."""
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
    for (_, starts_document), encoded in zip(batch, tokenizer.encode_batch([text for text, _ in batch]), strict=True):
        if starts_document:
            tokens.append(tokenizer.end_of_text)
        tokens += encoded
    return np.array(tokens, np.uint16)


def document_texts(files, separator, bar, findings):
    """Yields (text, whether a document starts with it) of a bounded length, documents one after the other."""
    for name in files:
        cutter = TextCutter()
        starts = True
        for piece in split_documents(decoded(name, bar, findings), separator):
            for text in cutter.finish() if piece is None else cutter.add(piece):
                findings.documents += starts
                yield text, starts
                starts = False
            if piece is None:
                findings.empty_documents += starts
                starts = True
        findings.forced_cuts += cutter.forced_cuts


def split_documents(pieces, separator):
    """Yields the text without separators, and None at the end of each document; what follows the last separator is one if it is not empty."""
    held = ""  # the end of what came, where a separator may have begun
    keep = len(separator) - 1 if separator else 0
    unfinished = True
    for piece in pieces:
        held += piece
        if separator:
            *documents, held = held.split(separator)
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


def decoded(name, bar, findings):
    """Yields text; an invalid UTF-8 sequence becomes U+FFFD and is noted."""
    position = 0  # in the source, of the byte that the decoder's next input starts with

    def replace(error):
        findings.invalid += 1
        findings.first_invalid = findings.first_invalid or f"{name} at byte {position + error.start}"
        return "\ufffd", error.end

    codecs.register_error("replace and note", replace)
    pending = b""  # an unfinished sequence at the end of a block
    for block in read_blocks(name, bar, findings):
        data = pending + block
        text, used = codecs.utf_8_decode(data, "replace and note", False)
        pending = data[used:]
        position += used
        yield text
    yield codecs.utf_8_decode(pending, "replace and note", True)[0]
