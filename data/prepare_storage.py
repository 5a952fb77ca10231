"""The stored bytes of prepare.py's files of documents: on this disk, and what a compressed one holds."""

import glob
import gzip
import io
import os
from collections import Counter

from console import DataError, UsageError
from prepare_documents import DocumentFile
from prepare_sources import damage_named, refuse_other_formats, stored_size

BLOCK_BYTES = 1 << 20
PIECE_CHARACTERS = 1 << 20
NULL_TEXT = "skipped: documents whose text is null"
GZIP, ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"


class LocalFile:
    """A file on this disk. `size` is None for what has none: a pipe. `place` is the same by all its names."""

    def __init__(self, path):
        self.name = str(path)
        self.place = os.path.realpath(path)
        self.size = stored_size(path)

    def identity(self):
        """What changes if the file does."""
        return [self.name, self.size, self.size and os.stat(self.name).st_mtime_ns]

    def open(self, progress=None):
        """Its bytes as a raw file; progress(n) is told of n bytes read."""
        return LocalReader(self.name, progress)


class LocalReader(io.FileIO):
    """Says of a file that cannot be read which one it is."""

    def __init__(self, path, progress):
        with damage_named(lambda: path):
            super().__init__(path, "rb")
        self.progress = progress

    def readinto(self, buffer):
        with damage_named(lambda: self.name):
            size = super().readinto(buffer)
        if self.progress:
            self.progress(size)
        return size


class StoredDocuments(DocumentFile):
    """The documents in a key or column of a LocalFile or a prepare_hub.HubFile."""

    def __init__(self, stored, column):
        self.stored, self.column = stored, column
        self.name, self.size = stored.name, stored.size

    def identity(self):
        return self.stored.identity()


def decompressed(stored, progress):
    """A buffered file of what a stored one holds; its first bytes say whether it is compressed."""
    file = io.BufferedReader(stored.open(progress), BLOCK_BYTES)
    head = file.peek(4)
    if not head and stored.name.endswith((".gz", ".zst")):
        raise EOFError
    if head.startswith(GZIP):
        file = gzip.GzipFile(fileobj=file)
    elif head.startswith(ZSTD):
        import pyarrow

        stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
        file = io.BufferedReader(stream, 1 << 16)  # as much is lost before the place of some damage
    head = file.peek(BLOCK_BYTES)
    if head.startswith(PARQUET):
        raise DataError(f"{stored.name}: is a Parquet file; use prepare.py parquet")
    refuse_other_formats(stored.name, head)
    return file


def in_pieces(text):
    """The text in strings of a bounded length."""
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield text[start : start + PIECE_CHARACTERS]


def matching_files(option, patterns):
    """The files that glob patterns name, those of each in order. A file's own name is no pattern."""
    paths = []
    for pattern in patterns:
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        found = [path for path in found if not os.path.isdir(path)]
        if not found:
            advice = f"is a folder; give a pattern, as '{pattern.rstrip('/')}/*'"
            problem = advice if os.path.isdir(pattern) else "no such file"
            raise DataError(f"{option} {pattern}: {problem}")
        paths += found
    files = [LocalFile(path) for path in paths]
    times = Counter(file.place for file in files)
    if twice := [file.name for file in files if times[file.place] > 1]:
        raise UsageError(f"{option}: names {twice[0]} twice" + f", as {twice[1]}" * (twice[0] != twice[1]))
    return files
