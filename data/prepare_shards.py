"""Writing token shards: a header of 256 int32 (magic 20240520, version 1, token count, zeros), then the
tokens as uint16, little-endian; see data/shard.h.

A set of files appears in its folder at the end, and an older set goes only then. Tokens are spooled, then
cut into files named *.partial. When all of them are on the disk, meta.json.partial, which lists the set,
takes its name by a rename: from there on the new set is the one that counts. Its files then take their names
one by one, over the old ones, and meta.json comes last. A run that ends before meta.json.partial stands has
changed nothing. After that, the next run on the folder finishes what is left. So all of one set is on the
disk at every moment.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
from console import DataError, ScriptError, UsageError, count, warn

MAGIC, VERSION, HEADER_INTS = 20240520, 1, 256
LARGEST_SHARD = 2**31 - 1  # the count is an int32
COPY_TOKENS = 1 << 22
META, PARTIAL = "meta.json", ".partial"
SPOOL, UNSEALED = f"tokens{PARTIAL}", f"unsealed{PARTIAL}"  # meta.json before it becomes meta.json.partial
SHARD_NAME = re.compile(r"(train|val)_\d{6,}\.bin")
TOKENIZER_FILES = ("tokenizer/vocab.bpe", "tokenizer/encoder.json")


def sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path, blocks):
    """Writes a file of these blocks, down to the disk. Returns its size and sha256."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for block in blocks:
            digest.update(block)
            size += len(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


class ShardFolder:
    """The output folder, as a context manager: locked against a second run, cleaned up if the run fails.

    `tokenizer_files` are kept beside the shards: contents by name (TOKENIZER_FILES), or nothing.
    Usage: append() tokens, then publish() once.
    """

    def __init__(self, path, overwrite, tokenizer_files=None):
        self.path = Path(path)
        self.overwrite = overwrite
        self.tokenizer_files = tokenizer_files or {}
        self.tokens = 0
        self.sealed = False  # whether the new set is the one that counts

    def __enter__(self):
        self._check_path()
        self.is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.path, os.O_RDONLY)
        try:
            self._lock()
            self._check_contents()
            # A set that no run has reported as done may be replaced by the run that is repeated.
            may_replace = self._finish_interrupted_run() or self.overwrite
            self._remove_partial()
            if (old := self._in_the_way()) and not may_replace:
                raise UsageError(
                    f"--out {self.path}: holds shards already ({old[0]}, {count(len(old), 'file')}): "
                    "give another folder, or --overwrite to replace them"
                )
            self.spool = open(self.path / SPOOL, "w+b")
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_):
        self.spool.close()
        if self.sealed:
            with contextlib.suppress(OSError):  # the next run removes it
                (self.path / SPOOL).unlink()
        else:
            self._remove_partial()
        self._leave()

    def _leave(self):
        if self.is_new and not self.sealed:
            with contextlib.suppress(OSError):  # it holds something
                self.path.rmdir()
        os.close(self.lock)

    def _check_path(self):
        if self.path.is_symlink() and not self.path.exists():
            raise UsageError(f"--out {self.path}: is a symbolic link that leads nowhere")
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"--out {self.path}: is not a folder")

    def _lock(self):
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--out {self.path}: another prepare.py is writing there") from None
        except OSError:
            pass  # a file system without locks

    # What is in the folder

    def _check_contents(self):
        """Refuses what publishing would replace though it is no file: a link, a pipe, a device, a folder."""
        folder = self.path / "tokenizer"
        if self.tokenizer_files and os.path.lexists(folder) and not folder.is_dir():
            raise UsageError(f"--out {self.path}: {folder} is not a folder")
        for path in self._files():
            if path.is_symlink() or not path.is_file():
                raise UsageError(f"--out {self.path}: {path} is not a regular file; move it away")

    def _files(self):
        """What is there by a name that a set or an unfinished one uses."""
        for path in [*self.path.iterdir(), *self.path.glob("tokenizer/*")]:
            name = str(path.relative_to(self.path))
            finished = name.removesuffix(PARTIAL)
            if (
                name in (SPOOL, UNSEALED)
                or finished in (META, *TOKENIZER_FILES)
                or SHARD_NAME.fullmatch(finished)
            ):
                yield path

    def _shard_names(self):
        return sorted(path.name for path in self.path.iterdir() if SHARD_NAME.fullmatch(path.name))

    def _in_the_way(self):
        """Names of the files in place that publishing would replace by others."""
        names = self._shard_names() + [META] * (self.path / META).exists()
        for name, contents in self.tokenizer_files.items():
            path = self.path / name
            if path.exists() and path.read_bytes() != contents:
                names.append(name)
        return names

    def _read_set(self, name):
        """The meta.json by this name and the sizes of the files it lists; None if missing or damaged."""
        try:
            meta = json.loads((self.path / name).read_bytes())
            sizes = {shard["file"]: 4 * HEADER_INTS + 2 * shard["tokens"] for shard in meta["shards"]}
            sizes |= {file["file"]: file["bytes"] for file in meta.get("tokenizer_files", [])}
            is_good = all(SHARD_NAME.fullmatch(file) or file in TOKENIZER_FILES for file in sizes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return (meta, sizes) if is_good else None

    # Publishing

    def append(self, tokens):
        """tokens: uint16 array; continues the stream."""
        with self._writing():
            self.spool.write(tokens.astype("<u2", copy=False).data)
        self.tokens += tokens.size

    def publish(self, splits, shard_tokens, meta, before_sealing=lambda: None):
        """Cuts the stream into splits, [(name, tokens)] in order, and each into shards of shard_tokens.

        Returns meta with the shards. before_sealing() is called when all is written and the renames are next.
        """
        with self._writing():
            self.spool.seek(0)
            shards = []
            for split, tokens in splits:
                for index, first in enumerate(range(0, tokens, shard_tokens)):
                    shards.append(self._write_shard(split, index, min(shard_tokens, tokens - first)))
            files = [self._write_tokenizer_file(*file) for file in self.tokenizer_files.items()]
            meta = meta | {split + "_tokens": tokens for split, tokens in splits}
            meta |= {"shards": shards, "tokenizer_files": files}
            write_synced(self.path / UNSEALED, [(json.dumps(meta, indent=1) + "\n").encode()])
            self._sync()
            before_sealing()
            os.rename(self.path / UNSEALED, self.path / f"{META}{PARTIAL}")
            self.sealed = True
            self._sync()
            self._move_into_place()
        return meta

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except OSError as error:
            left = "no shards were written"
            if self.sealed:
                left = "the new set is complete but not all in place: prepare.py on this folder finishes it"
            raise ScriptError(f"{self.path}: cannot write: {error.strerror or error}; {left}") from None

    def _write_shard(self, split, index, tokens):
        name = f"{split}_{index:06d}.bin"
        _, sha256 = write_synced(self.path / f"{name}{PARTIAL}", self._shard_blocks(tokens))
        return {"file": name, "split": split, "tokens": tokens, "sha256": sha256}

    def _shard_blocks(self, tokens):
        header = np.zeros(HEADER_INTS, "<i4")
        header[:3] = MAGIC, VERSION, tokens
        yield header.tobytes()
        for first in range(0, tokens, COPY_TOKENS):
            yield self.spool.read(2 * min(COPY_TOKENS, tokens - first))

    def _write_tokenizer_file(self, name, contents):
        path = self.path / f"{name}{PARTIAL}"
        path.parent.mkdir(exist_ok=True)
        size, sha256 = write_synced(path, [contents])
        return {"file": name, "bytes": size, "sha256": sha256}

    def _move_into_place(self):
        """Gives the files that meta.json.partial lists their names, and removes those of the old set."""
        _, new = self._read_set(f"{META}{PARTIAL}")
        _, old = self._read_set(META) or (None, {})
        for name in new:
            if (partial := self.path / f"{name}{PARTIAL}").exists():
                os.rename(partial, self.path / name)
        for name in {*self._shard_names(), *old} - set(new):
            (self.path / name).unlink(missing_ok=True)
        self._remove_empty_tokenizer_folder()
        self._sync()
        os.rename(self.path / f"{META}{PARTIAL}", self.path / META)
        self._sync()

    def _sync(self):
        if (self.path / "tokenizer").is_dir():
            sync_folder(self.path / "tokenizer")
        sync_folder(self.path)

    # What an interrupted run left

    def _finish_interrupted_run(self):
        """Puts the set of a run that ended between its renames into place. Returns whether there was one."""
        found = self._read_set(f"{META}{PARTIAL}")
        if found is None:
            return False
        for name, size in found[1].items():
            partial = self.path / f"{name}{PARTIAL}"
            path = partial if partial.exists() else self.path / name
            if not path.exists() or path.stat().st_size != size:
                raise DataError(
                    f"{self.path}: an interrupted run left {META}{PARTIAL}, but {name}, which it lists, is "
                    f"missing or damaged; remove {META}{PARTIAL} to give that set up, then give --overwrite"
                )
        with self._writing():
            self.sealed = True
            self._move_into_place()
            self.sealed = False
        warn("prepare.py", f"note: {self.path}: the set of an interrupted run was ready; it is in place now")
        return True

    def _remove_partial(self):
        """Removes what a run left that ended before its set was sealed."""
        # First, as without its files it would mean another set:
        (self.path / f"{META}{PARTIAL}").unlink(missing_ok=True)
        for path in self._files():
            if path.name.endswith(PARTIAL):
                path.unlink()
        self._remove_empty_tokenizer_folder()

    def _remove_empty_tokenizer_folder(self):
        with contextlib.suppress(OSError):  # there is none, or it holds something
            (self.path / "tokenizer").rmdir()
