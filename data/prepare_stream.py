"""The shards of a split, written as the tokens come, into files named *.partial.

A shard is a header of 256 int32 (magic, version, token count, zeros), then the tokens, little-endian: uint16
(magic 20240520, version 1), or uint32 (20240801, 7) where a vocabulary needs that; see data/shard.h. The
header is written last: until then a file's first bytes are zeros.
"""

import hashlib
import os
import re
from pathlib import Path

import numpy as np
from console import DataError

LARGEST_SHARD = 2**31 - 1  # tokens; the count is an int32
HEADER_INTS, HEADER_BYTES = 256, 1024
FORMATS = {2: (20240520, 1), 4: (20240801, 7)}  # magic and version by the bytes of a token
PARTIAL = ".partial"
COPY_BYTES = 1 << 23


def header(tokens, token_bytes):
    words = np.zeros(HEADER_INTS, "<i4")
    words[:3] = *FORMATS[token_bytes], tokens
    return words.tobytes()


def write_all(file, data):
    view = memoryview(data).cast("B")
    while view.nbytes:
        view = view[file.write(view) :]


class ShardStream:
    """tokens: how many there are; sha256: of the shards that are full.

    `state`, from state_at() of an earlier stream, continues from there: what was written after it is cut off.
    """

    def __init__(self, folder, split, shard_tokens, token_bytes, state=None):
        self.folder, self.split = Path(folder), split
        self.shard_tokens, self.token_bytes = shard_tokens, token_bytes
        self.pattern = re.compile(rf"{split}_([0-9]{{6,}})\.bin{re.escape(PARTIAL)}")
        self.file = None
        self._go_back_to(state or {"tokens": 0, "sha256": []})

    def state_at(self, tokens):
        return {"tokens": tokens, "sha256": self.sha256[: tokens // self.shard_tokens]}

    def append(self, tokens):
        """tokens: array of unsigned integers."""
        tokens = tokens.astype(f"<u{self.token_bytes}", copy=False)
        while tokens.size:
            if self.file is None:
                self.file = open(self._path(len(self.sha256)), "w+b", buffering=0)
                write_all(self.file, bytes(HEADER_BYTES))
                self.digest = hashlib.sha256(header(self.shard_tokens, self.token_bytes))
            room = self.shard_tokens - self.tokens % self.shard_tokens
            part, tokens = tokens[:room], tokens[room:]
            data = np.ascontiguousarray(part).data
            write_all(self.file, data)
            self.digest.update(data)
            if part.size == room:
                self._complete(self.shard_tokens)
                self.sha256.append(self.digest.hexdigest())
                self.close()
            self.tokens += part.size

    def sync(self):
        if self.file:
            os.fsync(self.file.fileno())

    def read(self, first):
        """Yields the tokens from number `first` on, in blocks."""
        while first < self.tokens:
            index, place = divmod(first, self.shard_tokens)
            end = min(self.tokens, (index + 1) * self.shard_tokens) - index * self.shard_tokens
            with open(self._path(index), "rb") as file:
                file.seek(HEADER_BYTES + place * self.token_bytes)
                while place < end:
                    wanted = min(COPY_BYTES, (end - place) * self.token_bytes)
                    block = np.frombuffer(file.read(wanted), f"<u{self.token_bytes}")
                    yield block
                    place += block.size
                    first += block.size

    def cut(self, tokens):
        """Drops all but so many tokens."""
        self.close()
        self._go_back_to(self.state_at(tokens))

    def finish(self):
        """Completes the last shard. Returns the list of shards for meta.json; all of it is on the disk."""
        rest = self.tokens % self.shard_tokens
        hashes = list(self.sha256)
        if rest:
            self._complete(rest)
            hashes.append(self._hash_of_file(rest))
        sizes = [self.shard_tokens] * len(self.sha256) + [rest] * (rest > 0)
        return [
            {"file": self._name(index), "split": self.split, "tokens": size, "sha256": sha256}
            for index, (size, sha256) in enumerate(zip(sizes, hashes, strict=True))
        ]

    def close(self):
        if self.file:
            self.file.close()
            self.file = None

    def _name(self, index):
        return f"{self.split}_{index:06d}.bin"

    def _path(self, index):
        return self.folder / f"{self._name(index)}{PARTIAL}"

    def _complete(self, tokens):
        os.pwrite(self.file.fileno(), header(tokens, self.token_bytes), 0)
        os.fsync(self.file.fileno())

    def _hash_of_file(self, tokens):
        digest = hashlib.sha256(header(tokens, self.token_bytes))
        for block in self.read(self.tokens - tokens):
            digest.update(block.data)
        return digest.hexdigest()

    def _go_back_to(self, state):
        self.tokens, self.sha256 = state["tokens"], list(state["sha256"])
        rest = self.tokens % self.shard_tokens
        size = HEADER_BYTES + self.shard_tokens * self.token_bytes
        for index in range(len(self.sha256)):
            self._check(index, size, size)
        if rest:
            needed = HEADER_BYTES + rest * self.token_bytes
            self._check(len(self.sha256), needed, size)
            self._reopen(needed)
        files = len(self.sha256) + (rest > 0)
        for path in sorted(self.folder.iterdir()):
            if (name := self.pattern.fullmatch(path.name)) and int(name[1]) >= files:
                path.unlink()

    def _check(self, index, smallest, largest):
        path = self._path(index)
        if not path.exists() or not smallest <= path.stat().st_size <= largest:
            raise DataError(
                f"{path}: is missing or damaged, and the unfinished run here needs it; --restart begins again"
            )

    def _reopen(self, size):
        self.file = open(self._path(len(self.sha256)), "r+b", buffering=0)
        self.file.truncate(size)
        self.file.seek(size)
        self.digest = hashlib.sha256(header(self.shard_tokens, self.token_bytes))
        for block in self.read(len(self.sha256) * self.shard_tokens):
            self.digest.update(block.data)
