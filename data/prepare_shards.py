"""Writing token shards: 256 int32 (magic 20240520, version 1, token count, zeros), then the tokens as uint16, little-endian; see data/shard.h.

A set of shards appears in its folder all at once, at the end: tokens are first spooled, then cut into files named *.partial, and renamed when
everything is on the disk; meta.json is renamed last. Whatever ends a run early, no pattern such as train_*.bin matches half a shard, and the next
run clears what is left.
"""

import fcntl
import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np

MAGIC, VERSION, HEADER_INTS = 20240520, 1, 256
LARGEST_SHARD = 2**31 - 1  # the count is an int32
COPY_TOKENS = 1 << 22
PARTIAL = ".partial"
SHARD_NAME = re.compile(r"(train|val)_\d{6,}\.bin")


class UsageError(Exception):
    """Wrong arguments; exit code 2."""


class DataError(Exception):
    """Input that cannot be used; exit code 3."""


def sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ShardFolder:
    """The output folder, as a context manager: locked against a second run, without leftovers, cleaned up if the run fails.

    Usage: append() tokens, then publish() once.
    """

    def __init__(self, path, overwrite):
        self.path = Path(path)
        self.overwrite = overwrite
        self.tokens = 0

    def __enter__(self):
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"--out {self.path}: is a file, expected a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.path, os.O_RDONLY)
        try:
            self._lock()
            self._remove_partial()
            if (old := self._published()) and not self.overwrite:
                raise UsageError(
                    f"--out {self.path}: holds shards already ({old[0].name}, {len(old)} files): give another folder, or --overwrite to replace them"
                )
            self.spool = open(self.path / f"tokens{PARTIAL}", "w+b")
        except BaseException:
            os.close(self.lock)
            raise
        return self

    def __exit__(self, *_):
        self.spool.close()
        self._remove_partial()
        os.close(self.lock)

    def _lock(self):
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--out {self.path}: another prepare.py is writing there") from None
        except OSError:
            pass  # a file system without locks

    def _published(self):
        """Shards and meta.json in place, by name."""
        return sorted(p for p in self.path.iterdir() if SHARD_NAME.fullmatch(p.name) or p.name == "meta.json")

    def _remove_partial(self):
        """Removes what an unfinished run left. Its meta.json.partial exists only while shards are being renamed, and lists them: half a set."""
        partial_meta = self.path / f"meta.json{PARTIAL}"
        try:
            names = [shard["file"] for shard in json.loads(partial_meta.read_bytes())["shards"]]
        except (OSError, ValueError, KeyError, TypeError):
            names = []
        for name in names:
            if isinstance(name, str) and SHARD_NAME.fullmatch(name):
                (self.path / name).unlink(missing_ok=True)
        for path in list(self.path.glob(f"*{PARTIAL}")):
            if SHARD_NAME.fullmatch(path.name.removesuffix(PARTIAL)) or path.name == f"tokens{PARTIAL}":
                path.unlink()
        partial_meta.unlink(missing_ok=True)  # last: until here the shards it lists can be found again

    def append(self, tokens):
        """tokens: uint16 array; continues the stream."""
        self.spool.write(tokens.astype("<u2", copy=False).data)
        self.tokens += tokens.size

    def publish(self, splits, shard_tokens, meta):
        """Cuts the stream into splits, [(name, tokens)] in order, and these into shards of at most shard_tokens. Returns meta with the shards."""
        self.spool.seek(0)
        shards = []
        for split, tokens in splits:
            for index, first in enumerate(range(0, tokens, shard_tokens)):
                shards.append(self._write_shard(split, index, min(shard_tokens, tokens - first)))
        meta = meta | {split + "_tokens": tokens for split, tokens in splits} | {"shards": shards}
        with open(self.path / f"meta.json{PARTIAL}", "w", encoding="utf-8") as file:
            file.write(json.dumps(meta, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path)
        for old in self._published():
            old.unlink()
        for name in [shard["file"] for shard in shards] + ["meta.json"]:
            os.rename(self.path / f"{name}{PARTIAL}", self.path / name)
        sync_folder(self.path)
        return meta

    def _write_shard(self, split, index, tokens):
        name = f"{split}_{index:06d}.bin"
        header = np.zeros(HEADER_INTS, "<i4")
        header[:3] = MAGIC, VERSION, tokens
        digest = hashlib.sha256(header)
        with open(self.path / f"{name}{PARTIAL}", "wb") as file:
            file.write(header.data)
            for first in range(0, tokens, COPY_TOKENS):
                block = self.spool.read(2 * min(COPY_TOKENS, tokens - first))
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return {"file": name, "split": split, "tokens": tokens, "sha256": digest.hexdigest()}
