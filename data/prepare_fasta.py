"""prepare.py fasta: shards of DNA sequences of one length from FASTA files, a token for each base."""

import codecs
import hashlib
from dataclasses import dataclass, field
from fractions import Fraction

import console
import numpy as np
from console import DataError, UsageError, count
from prepare_advice import summary
from prepare_arguments import (
    add_folder_arguments,
    check_common_arguments,
    command,
    described,
    fraction,
    whole_number,
)
from prepare_progress import Progress
from prepare_shards import ShardFolder
from prepare_sources import damage_named
from prepare_storage import BLOCK_BYTES, decompressed, matching_files

DESCRIPTION = (
    "Cuts the contigs of FASTA files into sequences of one length and writes FOLDER/train_000000.bin ..., "
    "val_000000.bin ... and meta.json. A base is a token: A 0, C 1, G 2, N 3, T 4; lower case counts as "
    "upper case, other letters as N. The same files and options give the same bytes."
)
EXAMPLE = """from nothing to shards, the human genome (GRCh38, 1 GB compressed), and training:
  wget https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.fa.gz
  prepare.py fasta --out data/genome --val-fraction 0.01 --input hg38.fa.gz
  train_gpt_goat --config genome_25m"""
BASES = "ACGNT"  # in the order of their tokens
UNKNOWN = BASES.index("N")
LONGEST_SEQUENCE = 1 << 24
SPACE, OTHER, AMINO, WRONG = range(len(BASES), len(BASES) + 4)  # classes of bytes that are no base
AMINO_ACIDS = "EFIJLOPQZ"  # letters that stand for no base nor for a choice of bases


def classes():
    """What each byte of a sequence is: a token or one of the classes above."""
    table = np.full(256, WRONG, np.uint8)
    for letters, kind in [
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", OTHER),
        (AMINO_ACIDS, AMINO),
        *((base, token) for token, base in enumerate(BASES)),
    ]:
        for letter in letters.encode():
            table[letter] = table[letter | 0x20] = kind
    table[list(b"\r\n\t ")] = SPACE
    return table


CLASSES = classes()


@dataclass
class Findings:
    contigs: int = 0
    bases: int = 0
    other_letters: int = 0
    left_over: int = 0  # bases at the ends of contigs
    short_contigs: int = 0
    unknown: int = 0  # sequences dropped for their N
    sources: list = field(default_factory=list)

    def lines(self, length, largest_share):
        contigs, bases = count(self.contigs, "contig"), count(self.bases, "base")
        yield f"{contigs}, {bases}, cut into sequences of {length:,}"
        if self.other_letters:
            yield f"replaced by N: {count(self.other_letters, 'letter')} other than A, C, G, T and N"
        if self.left_over:
            short = f", {count(self.short_contigs, 'contig')} as a whole" if self.short_contigs else ""
            yield f"dropped: {count(self.left_over, 'base')} left over at the ends of contigs{short}"
        if self.unknown:
            share = f"more than {float(largest_share):g} of it N"
            yield f"dropped: {count(self.unknown, 'sequence')} with {share}"


class FastaFile:
    """Reads the contigs of stored bytes in FASTA format."""

    def __init__(self, stored):
        self.stored, self.name = stored, stored.name
        self.line = 0  # how many line feeds came before the part being read

    def contigs(self, progress, findings):
        """Yields arrays of tokens in order, and None before each contig."""
        begun = False
        for part in self._parts(progress, findings):
            if part is None:
                begun = True
                findings.contigs += 1
                yield None
                continue
            kinds = CLASSES[np.frombuffer(part, np.uint8)]
            tokens = kinds[kinds != SPACE]
            if tokens.size and not begun:
                self._refuse_start(part)
            if tokens.size:
                self._check(part, kinds, tokens)
                others = tokens == OTHER
                findings.other_letters += int(others.sum())
                findings.bases += tokens.size
                tokens[others] = UNKNOWN
                yield tokens
            self.line += part.count(b"\n")

    def _parts(self, progress, findings):
        """Yields bytes of sequence lines, and None for each header line, which it counts."""
        in_header, at_start = False, True  # of a line
        for block in self._blocks(progress, findings):
            position = 0
            while position < len(block):
                if in_header:
                    end = block.find(b"\n", position)
                    in_header = end < 0
                    self.line += not in_header
                    position = len(block) if in_header else end + 1
                    at_start = not in_header
                elif at_start and block[position] == ord(">"):
                    in_header = True
                    yield None
                else:
                    end = block.find(b"\n>", position) + 1 or len(block)
                    yield block[position:end]
                    position, at_start = end, block[end - 1] == ord("\n")

    def _blocks(self, progress, findings):
        digest, size = hashlib.sha256(), 0
        with damage_named(lambda: f"{self.name}, after line {self.line}"):
            file = decompressed(self.stored, progress)
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
                yield block if size else block.removeprefix(codecs.BOM_UTF8)
                size += len(block)
        findings.sources.append({"name": self.name, "bytes": size, "sha256": digest.hexdigest()})

    def _refuse_start(self, part):
        line = self.line + 1 + part[: len(part) - len(part.lstrip())].count(b"\n")
        start = part.lstrip()[:1]
        if start == b"@":
            raise DataError(f"{self.name}: is FASTQ, not FASTA; convert it: seqtk seq -A FILE > NEW_FILE.fa")
        raise DataError(f"{self.name}, line {line}: no header line ('>' and a name) before the sequence")

    def _check(self, part, kinds, tokens):
        if tokens.max() < AMINO:
            return
        at = int(np.argmax(kinds >= AMINO))
        line = self.line + 1 + part.count(b"\n", 0, at)
        character = chr(part[at])
        if kinds[at] == AMINO:
            problem = f"{character!r} stands for an amino acid, not a base: is this a protein?"
        else:
            problem = f"{ascii(character)} is no letter, and a sequence is made of letters"
        raise DataError(f"{self.name}, line {line}: {problem}")


class Cutter:
    """Cuts contigs into sequences of one length; what is left at the end of a contig is dropped."""

    def __init__(self, length, largest_share, findings):
        self.length, self.findings = length, findings
        self.most_unknown = int(largest_share * length)
        self.held, self.is_short = np.empty(0, np.uint8), True

    def add(self, tokens):
        """Returns the sequences that are complete now, one after the other, without those dropped for N."""
        tokens = np.concatenate([self.held, tokens])
        whole = tokens.size // self.length * self.length
        self.held = tokens[whole:]
        self.is_short = self.is_short and whole == 0
        rows = tokens[:whole].reshape(-1, self.length)
        known = (rows == UNKNOWN).sum(axis=1) <= self.most_unknown
        self.findings.unknown += int((~known).sum())
        return rows[known].ravel()

    def end_contig(self):
        self.findings.left_over += self.held.size
        self.findings.short_contigs += self.held.size > 0 and self.is_short
        self.held, self.is_short = self.held[:0], True


def sequences(files, length, largest_share, progress, findings):
    """Yields uint16 arrays of whole sequences."""
    for file in files:
        cutter = Cutter(length, largest_share, findings)
        for tokens in file.contigs(progress, findings):
            if tokens is None:
                cutter.end_contig()
            else:
                yield cutter.add(tokens).astype(np.uint16)
        cutter.end_contig()


def add_parser(subparsers):
    parser = subparsers.add_parser(
        "fasta",
        help="DNA in FASTA files (.gz too)",
        **described(DESCRIPTION, EXAMPLE),
    )
    parser.set_defaults(prepare=prepare, tokenizer="dna", tokenizer_dir=None, end_of_text=None)
    add = parser.add_argument
    add_folder_arguments(add, shard="most tokens in a shard, which holds whole sequences")
    add(
        "--input",
        required=True,
        nargs="+",
        metavar="GLOB",
        help="FASTA files, plain or compressed by gzip or zstd; they are read in this order",
    )
    add(
        "--record-tokens",
        type=lambda text: whole_number(text, LONGEST_SEQUENCE),
        default=6000,
        metavar="N",
        help="bases in a sequence (default: 6000); what is left at the end of a contig is dropped",
    )
    add(
        "--max-unknown",
        type=fraction,
        default=Fraction(1, 2),
        metavar="F",
        help="largest share of N in a sequence; others are dropped (default: 0.5)",
    )
    add(
        "--val-fraction",
        type=fraction,
        default=Fraction(1, 10),
        metavar="F",
        help="share of the sequences for validation: the last ones (default: 0.1)",
    )


def prepare(arguments):
    """Makes the shards. Returns the lines that say what was made and how to go on."""
    length = arguments.record_tokens
    if arguments.shard_tokens < length:
        raise UsageError(f"--shard-tokens {arguments.shard_tokens}: holds no sequence of {length} bases")
    check_common_arguments(arguments)
    stored, findings = matching_files("--input", arguments.input), Findings()
    shard_tokens = arguments.shard_tokens // length * length
    with ShardFolder(
        arguments.out, arguments.overwrite, shard_tokens=shard_tokens, restart=arguments.restart
    ) as folder:
        append_sequences(folder, stored, arguments, findings)
        notes = list(findings.lines(length, arguments.max_unknown))
        number = folder.tokens["train"] // length
        if number == 0:
            raise DataError(f"no sequence of {length} bases in the files ({'; '.join(notes)})")
        meta = {
            "tokenizer": "dna",
            "vocab": len(BASES),
            "end_of_text": None,
            "token_bytes": folder.token_bytes,
            "alphabet": BASES,
            "record_tokens": length,
            "source": {"kind": "fasta", "files": len(stored)},
            "command": command(arguments),
            "val_fraction": float(arguments.val_fraction),
            "documents": number,
            "sources": findings.sources,
            "notes": notes,
        }
        held_out = number - int(number * (1 - arguments.val_fraction))
        meta = folder.publish(meta, held_out * length, before_sealing=console.ignore_stops)
    return summary(arguments.out, meta)


def append_sequences(folder, stored, arguments, findings):
    files, sizes = [FastaFile(file) for file in stored], [file.size for file in stored]
    with Progress(None if None in sizes else sum(sizes), 0, 0, None) as progress:
        for tokens in sequences(
            files, arguments.record_tokens, arguments.max_unknown, progress.read, findings
        ):
            folder.append("train", tokens)
            progress.written(tokens.size)
