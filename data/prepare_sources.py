"""The text files of prepare.py, read in blocks, and what is unusual about the text in them."""

import codecs
import contextlib
import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass, field, replace

from console import DataError, count
from prepare_tokenizers import END_OF_TEXT

READ_BYTES = 1 << 20
STANDARD_INPUT = "-"
MARK = codecs.BOM_UTF8
MARKER = END_OF_TEXT.encode()
# What begins like this is no text; each with what to do.
OTHER_FORMATS = [
    (b"\x1f\x8b\x08", "is compressed by gzip", "name it FILE.gz, or pipe it: zcat FILE | prepare.py ... -"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd", "decompress it first: unzstd FILE"),
    (b"\xfd7zXZ\0", "is compressed by xz", "decompress it first: unxz FILE"),
    (
        b"PK\x03\x04",
        "is a zip archive (or a document of an office program)",
        "unpack it, or save it as text, first",
    ),
    (b"%PDF-", "is a PDF", "convert it first: pdftotext FILE"),
    ((20240520).to_bytes(4, "little"), "is a token shard already", "give the text that it was made from"),
    ((20240801).to_bytes(4, "little"), "is a token shard already", "give the text that it was made from"),
] + [
    (b"BZh%d1AY&SY" % level, "is compressed by bzip2", "decompress it first: bunzip2 FILE")
    for level in range(1, 10)
]
MARKED_ENCODINGS = [  # UTF-32's mark begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]


@dataclass
class Findings:
    """What was unusual about the text, and what became of it."""

    documents: int = 0
    empty_documents: int = 0
    bytes: int = 0
    nul_bytes: int = 0
    crlf: int = 0
    carriage_returns: int = 0  # those of CRLF too
    markers: int = 0  # END_OF_TEXT spelled out
    separators: int = 0
    dropped_marks: int = 0  # byte-order marks at the start of a file
    marks: int = 0  # all of them
    replaced: int = 0
    not_utf8: int = 0  # files
    first_invalid: str = ""
    forced_cuts: int = 0
    sources: list = field(default_factory=list)
    others: dict = field(default_factory=dict)  # what a format notes: [times, where first] by what it is
    listed: int | None = None  # of a snapshot: how many of `sources` it has

    def snapshot(self):
        """As it is now, without a copy of `sources`: entries are only added to it."""
        return replace(self, others=dict(self.others), listed=len(self.sources))

    def as_dict(self):
        """For JSON; Findings(**it) has the same."""
        values = dict(vars(self))
        listed = values.pop("listed")
        return values | {"sources": self.sources[:listed], "others": dict(self.others)}

    def note(self, what, where=""):
        """Counts something: note("skipped: rows without text", "a.jsonl line 7")."""
        times, first = self.others.get(what, (0, where))
        self.others[what] = [times + 1, first]

    def lines(self, tokenizer, separator):
        """The notes, a line each."""
        yield from self.encoding_lines()
        for what, (times, first) in self.others.items():
            yield f"{what}: {times:,}" + (f", the first in {first}" if first else "")
        if self.markers and END_OF_TEXT not in (separator or ""):
            option = f"--document-separator '{END_OF_TEXT}'"
            advice = f"--tokenizer gpt2 {option}" if tokenizer.name == "bytes" else option
            tokens = len(tokenizer.encode([(END_OF_TEXT, False)]))
            times = f"{count(self.markers, 'time')}, {tokens} tokens each"
            yield f"kept as ordinary text: '{END_OF_TEXT}' ({times}); to separate documents there: {advice}"
        if separator is not None and not self.separators:
            yield f"never found: the document separator {separator!r}; each file is one document"
        if self.empty_documents:
            yield f"skipped: {count(self.empty_documents, 'empty document')}"
        if self.crlf:
            yield f"kept: {count(self.crlf, 'CRLF line end')}"
        if self.carriage_returns > self.crlf:
            yield f"kept: {count(self.carriage_returns - self.crlf, 'carriage return')} without a line feed"
        if self.forced_cuts:
            yield f"cut: {tokenizer.cuts(self.forced_cuts)}"
        yield from self.repeated_sources()

    def repeated_sources(self):
        names = {}
        for source in self.sources:
            if source["bytes"] and (sha256 := source.get("sha256")):
                if sha256 in names:
                    yield f"kept: the same text twice, {names[sha256]} and {source['name']}"
                names.setdefault(sha256, source["name"])

    def encoding_lines(self):
        latin1 = "if it is Latin-1: iconv -f LATIN1 -t UTF-8 FILE"
        if self.replaced:
            sequences = count(self.replaced, "invalid UTF-8 sequence")
            yield f"replaced by U+FFFD: {sequences}, the first in {self.first_invalid}; {latin1}"
        if self.not_utf8:
            files = count(self.not_utf8, "file")
            yield f"kept: what is not UTF-8 in {files}, the first in {self.first_invalid}; {latin1}"
        if self.dropped_marks:
            yield f"dropped: the byte-order mark at the start of {count(self.dropped_marks, 'file')}"
        if self.marks > self.dropped_marks:
            yield f"kept: {count(self.marks - self.dropped_marks, 'byte-order mark')} within the text"
        if self.nul_bytes:
            utf16 = (
                "; if it is UTF-16: iconv -f UTF-16LE -t UTF-8 FILE"
                if 5 * self.nul_bytes > self.bytes
                else ""
            )
            yield f"kept: {count(self.nul_bytes, 'NUL byte')}{utf16}"


def stored_size(name):
    """Bytes of a file on this disk; None for what is not one."""
    return os.path.getsize(name) if name != STANDARD_INPUT and os.path.isfile(name) else None


@contextlib.contextmanager
def damage_named(place):
    """Errors of reading and decompressing, as a DataError that says how far it came: place()."""
    try:
        yield
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{place()}: cannot read it: {error.strerror}") from None
        cut = isinstance(error, EOFError) or "Truncated" in str(error)
        damage = "is cut short" if cut else f"is damaged ({error})"
        raise DataError(f"{place()}: the compressed data {damage}: copy or download the file again") from None


def raw_blocks(name, progress):
    """The bytes of a source, decompressed; all blocks but the last have READ_BYTES. progress(n) is told of
    bytes as they are stored."""
    compressed, size = name.endswith(".gz"), stored_size(name)
    with damage_named(lambda: name):
        if compressed and size == 0:
            raise EOFError
        with open(0 if name == STANDARD_INPUT else name, "rb", closefd=name != STANDARD_INPUT) as file:
            source = gzip.GzipFile(fileobj=file) if compressed else file
            before = 0
            while block := source.read(READ_BYTES):
                position = before + len(block) if size is None else file.tell()
                progress(position - before)
                before = position
                yield block


def refuse_other_formats(name, head):
    """head: the first block. Raises DataError if it is no text, or is in UTF-16 or UTF-32."""
    for start, what, advice in OTHER_FORMATS:
        if head.startswith(start):
            raise DataError(f"{name}: {what}; {advice}")
    for mark, encoding in MARKED_ENCODINGS:
        if head.startswith(mark) and decodes(head, encoding):
            kind = encoding[:6].upper()  # iconv takes the byte order from the mark
            raise DataError(
                f"{name}: is {kind}, not UTF-8; convert it: iconv -f {kind} -t UTF-8 FILE > NEW_FILE"
            )


def decodes(data, encoding):
    try:
        codecs.getincrementaldecoder(encoding)().decode(data)  # the last character may be unfinished
    except UnicodeDecodeError:
        return False
    return True


def occurrences(pattern, before, block):
    """How often a pattern is in the block or ends there; `before` is the end of what came before it."""
    reach = len(pattern) - 1
    across = before[len(before) - reach :] + block[:reach]
    return block.count(pattern) + across.count(pattern)


def text_blocks(name, progress, findings):
    """Yields (position, bytes) of a source without its byte-order mark; notes its size, hash and oddities."""
    digest, size, before = hashlib.sha256(), 0, b""
    for block in raw_blocks(name, progress):
        digest.update(block)
        if size == 0:
            refuse_other_formats(name, block)
        findings.nul_bytes += block.count(b"\0")
        findings.carriage_returns += block.count(b"\r")
        findings.crlf += occurrences(b"\r\n", before, block)
        findings.marks += occurrences(MARK, before, block)
        findings.markers += occurrences(MARKER, before, block)
        before = (before + block)[-len(MARKER) :]
        is_marked = size == 0 and block.startswith(MARK)
        findings.dropped_marks += is_marked
        skipped = len(MARK) if is_marked else 0
        yield size + skipped, block[skipped:]
        size += len(block)
    findings.bytes += size
    findings.sources.append({"name": name, "bytes": size, "sha256": digest.hexdigest()})


def decoded(name, progress, findings):
    """Yields text; an invalid UTF-8 sequence becomes U+FFFD and is noted."""
    start = 0  # in the source, of the decoder's input

    def replace(error):
        findings.replaced += 1
        findings.first_invalid = findings.first_invalid or f"{name} at byte {start + error.start}"
        return "\ufffd", error.end

    codecs.register_error("replace and note", replace)
    pending = b""  # an unfinished sequence at the end of a block
    for position, block in text_blocks(name, progress, findings):
        start = position - len(pending)
        data = pending + block
        text, used = codecs.utf_8_decode(data, "replace and note", False)
        pending = data[used:]
        start += used
        yield text
    yield codecs.utf_8_decode(pending, "replace and note", True)[0]


class Utf8Check:
    """Finds the first byte of a source that is not UTF-8."""

    def __init__(self, name, findings):
        self.name, self.findings = name, findings
        self.pending = b""
        self.failed = False

    def add(self, position, block, is_last=False):
        if self.failed:
            return
        data = self.pending + block
        try:
            _, used = codecs.utf_8_decode(data, "strict", is_last)
            self.pending = data[used:]
        except UnicodeDecodeError as error:
            self.failed = True
            where = f"{self.name} at byte {position - len(self.pending) + error.start}"
            self.findings.not_utf8 += 1
            self.findings.first_invalid = self.findings.first_invalid or where


def byte_blocks(name, progress, findings):
    """Yields the bytes of a source; notes whether they are UTF-8."""
    check, end = Utf8Check(name, findings), 0
    for position, block in text_blocks(name, progress, findings):
        check.add(position, block)
        end = position + len(block)
        if block:
            yield block
    check.add(end, b"", is_last=True)
