"""The output folder of prepare.py: a set of token shards appears in it at the end, and an older set goes
only then.

Tokens are written, as they come, into files named *.partial (prepare_stream.py). When all of them are on the
disk, meta.json.partial, which lists the set, takes its name by a rename: from there on the new set is the one
that counts. Its files then take their names one by one, over the old ones, and meta.json comes last. A run
that ends before meta.json.partial stands has changed nothing. After that, the next run on the folder
finishes what is left. So all of one set is on the disk at every moment.

A run that can be continued says in progress.partial how far it is, and which command it belongs to. It is
replaced as a whole, after what it speaks of is on the disk, and removed first where the run is given up.
Its stages: "encoding", until the tokens are complete; "cut", when the validation split is complete and the
training shards have to lose its tokens; "sealing", when the list of the set is written: if that is gone and
meta.json.partial too, the run has ended well.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from pathlib import Path

from console import DataError, ScriptError, UsageError, count, warn
from prepare_stream import HEADER_BYTES, PARTIAL, ShardStream

META = "meta.json"
PROGRESS = f"progress{PARTIAL}"
NEW_PROGRESS = f"progress.new{PARTIAL}"  # before it takes the name above
SEALED = f"{META}{PARTIAL}"
UNSEALED = f"unsealed{PARTIAL}"  # meta.json before it becomes meta.json.partial
SHARD_NAME = re.compile(r"(train|val)_\d{6,}\.bin")
TOKENIZER_FILES = ("tokenizer/vocab.bpe", "tokenizer/encoder.json", "tokenizer/tokenizer.json")
ENCODING, CUT, SEALING = "encoding", "cut", "sealing"


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

    `tokenizer_files` are kept beside the shards: contents by name (TOKENIZER_FILES), or nothing. `claim`, a
    dictionary for JSON, is what a run that continues this one must have in common with it, and `command` is
    for the message where it has not; None: it cannot be continued.

    Then `done` is the meta.json of the set if an earlier run of the same claim has completed it, and there is
    nothing to do; `state` is what that run gave to save() last, or None. Usage: append() tokens and save(),
    then publish() once.
    """

    def __init__(self, path, overwrite, tokenizer_files=None, *, shard_tokens, token_bytes=2, claim=None,
                 command="", restart=False):  # fmt: skip
        self.path = Path(path)
        self.overwrite, self.restart = overwrite, restart
        self.tokenizer_files = tokenizer_files or {}
        self.shard_tokens, self.token_bytes = shard_tokens, token_bytes
        self.claim, self.command = claim, command
        self.stage, self.state, self.done = ENCODING, None, None
        self.kept = False  # whether a later run can go on from what is there
        self.sealed = False  # whether the new set is the one that counts
        self.streams = {}
        self.explain = lambda error: ""  # what to add to the message of a failure to write

    def __enter__(self):
        self._check_path()
        self.is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.path, os.O_RDONLY)
        try:
            self._lock()
            self._check_contents()
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_):
        for stream in self.streams.values():
            stream.close()
        if not self.sealed and not self.kept and self.done is None:
            self._remove_partial()
        self._leave()

    def _begin(self):
        progress = self._read_progress()
        is_ours = progress is not None and self.claim is not None and progress["claim"] == self.claim
        finished = self._finish_interrupted_run()
        if progress is not None and progress["stage"] == SEALING:
            finished = finished or not any((self.path / name).exists() for name in (UNSEALED, SEALED))
        if finished and is_ours and not self.restart and (found := self._read_set(META)):
            self.done = found[0]
            (self.path / PROGRESS).unlink(missing_ok=True)
            return
        if progress is not None and not finished and not self.restart:
            self._refuse_others(progress, is_ours)
        if progress is None or finished:
            self._remove_partial()
        # A set that no run has reported as done may be replaced by the run that is repeated.
        self._refuse_old_set(may_replace=finished and (progress is None or is_ours))
        self._open_streams(None if finished or self.restart else progress)

    def _refuse_others(self, progress, is_ours):
        if is_ours:
            return
        what = "the unfinished work of another command"
        if self.claim and self.claim | {"files": None} == progress["claim"] | {"files": None}:
            what = "the unfinished work of this command, but the files (sizes, times) are others now"
        raise UsageError(
            f"--out {self.path}: holds {what}: {progress['command']}. Repeat that to go on, give another "
            "folder, or --restart to throw it away and begin again"
        )

    def _refuse_old_set(self, may_replace):
        if (old := self._in_the_way()) and not (may_replace or self.overwrite):
            raise UsageError(
                f"--out {self.path}: holds shards already ({old[0]}, {count(len(old), 'file')}): "
                "give another folder, or --overwrite to replace them"
            )

    def _open_streams(self, progress):
        if progress is None:
            self._remove_partial()
        else:
            self.stage, self.state, self.kept = progress["stage"], progress["state"], True
        for split in ("train", "val"):
            state = progress and progress[split]
            self.streams[split] = ShardStream(
                self.path, split, self.shard_tokens, self.token_bytes, state
            )

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
                name in (PROGRESS, NEW_PROGRESS, UNSEALED)
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
            token_bytes = meta.get("token_bytes", 2)
            sizes = {shard["file"]: HEADER_BYTES + token_bytes * shard["tokens"] for shard in meta["shards"]}
            sizes |= {file["file"]: file["bytes"] for file in meta.get("tokenizer_files", [])}
            is_good = all(SHARD_NAME.fullmatch(file) or file in TOKENIZER_FILES for file in sizes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return (meta, sizes) if is_good else None

    # Publishing

    def append(self, split, tokens):
        """tokens: array of unsigned integers; continues the stream of the split."""
        with self._writing():
            self.streams[split].append(tokens)

    @property
    def tokens(self):
        return {split: stream.tokens for split, stream in self.streams.items()}

    def save(self, state):
        """Makes sure that a later run can go on from here. Does nothing where that is not possible."""
        if self.claim is None:
            return
        self.state = state
        with self._writing():
            for stream in self.streams.values():
                stream.sync()
            self._write_progress(ENCODING, self.tokens["train"])

    def publish(self, meta, tail=0, before_sealing=lambda: None):
        """Completes the set. The last `tail` training tokens become the validation split, unless an earlier
        run has moved them.

        Returns meta with the shards. before_sealing() is called when all is written and the renames are next.
        """
        with self._writing():
            if tail and self.stage == ENCODING:
                self._move_tail(tail)
            shards = [shard for stream in self.streams.values() for shard in stream.finish()]
            files = [self._write_tokenizer_file(*file) for file in self.tokenizer_files.items()]
            meta = meta | {f"{split}_tokens": tokens for split, tokens in self.tokens.items()}
            meta |= {"shards": shards, "tokenizer_files": files}
            text = json.dumps(meta, indent=1, ensure_ascii=False) + "\n"
            write_synced(self.path / UNSEALED, [text.encode(errors="replace")])
            self._sync()
            self._write_progress(SEALING, self.tokens["train"])
            before_sealing()
            os.rename(self.path / UNSEALED, self.path / SEALED)
            self.sealed = True
            self._sync()
            self._move_into_place()
        return meta

    def _move_tail(self, tail):
        train, val = self.streams["train"], self.streams["val"]
        kept = train.tokens - tail
        for block in train.read(kept):
            val.append(block)
        val.finish()
        sync_folder(self.path)
        self._write_progress(CUT, kept)
        train.cut(kept)

    def _write_progress(self, stage, train_tokens):
        if self.state is None:
            return
        progress = {
            "claim": self.claim,
            "command": self.command,
            "stage": stage,
            "train": self.streams["train"].state_at(train_tokens),
            "val": self.streams["val"].state_at(self.tokens["val"]),
            "state": self.state,
        }
        write_synced(self.path / NEW_PROGRESS, [json.dumps(progress).encode()])
        os.rename(self.path / NEW_PROGRESS, self.path / PROGRESS)
        sync_folder(self.path)
        self.stage, self.kept = stage, True

    def _read_progress(self):
        try:
            progress = json.loads((self.path / PROGRESS).read_bytes())
            states = [progress["train"], progress["val"]]
            complete = all(state["tokens"] >= 0 and isinstance(state["sha256"], list) for state in states)
            complete = complete and {"command", "stage", "state"} <= progress.keys()
            complete = complete and isinstance(progress["claim"], dict)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return progress if complete else None

    @contextlib.contextmanager
    def _writing(self):
        try:
            yield
        except OSError as error:
            left = "no shards were written"
            if self.sealed:
                left = "the new set is complete but not all in place: prepare.py on this folder finishes it"
            reason = f"{error.strerror or error}{self.explain(error)}"
            raise ScriptError(f"{self.path}: cannot write: {reason}; {left}") from None

    def _write_tokenizer_file(self, name, contents):
        path = self.path / f"{name}{PARTIAL}"
        path.parent.mkdir(exist_ok=True)
        size, sha256 = write_synced(path, [contents])
        return {"file": name, "bytes": size, "sha256": sha256}

    def _move_into_place(self):
        """Gives the files that meta.json.partial lists their names, and removes those of the old set."""
        _, new = self._read_set(SEALED)
        _, old = self._read_set(META) or (None, {})
        for name in new:
            if (partial := self.path / f"{name}{PARTIAL}").exists():
                os.rename(partial, self.path / name)
        for name in {*self._shard_names(), *old} - set(new):
            (self.path / name).unlink(missing_ok=True)
        self._remove_empty_tokenizer_folder()
        self._sync()
        os.rename(self.path / SEALED, self.path / META)
        self._sync()
        (self.path / PROGRESS).unlink(missing_ok=True)

    def _sync(self):
        if (self.path / "tokenizer").is_dir():
            sync_folder(self.path / "tokenizer")
        sync_folder(self.path)

    # What an interrupted run left

    def _finish_interrupted_run(self):
        """Puts the set of a run that ended between its renames into place. Returns whether there was one."""
        found = self._read_set(SEALED)
        if found is None:
            return False
        for name, size in found[1].items():
            partial = self.path / f"{name}{PARTIAL}"
            path = partial if partial.exists() else self.path / name
            if not path.exists() or path.stat().st_size != size:
                raise DataError(
                    f"{self.path}: an interrupted run left {SEALED}, but {name}, which it lists, is "
                    f"missing or damaged; remove {SEALED} to give that set up, then give --overwrite"
                )
        with self._writing():
            self.sealed = True
            self._move_into_place()
            self.sealed = False
        warn("prepare.py", f"note: {self.path}: the set of an interrupted run was ready; it is in place now")
        return True

    def _remove_partial(self):
        """Removes what a run left that ended before its set was sealed."""
        # First, as without its files it would mean another set; then what speaks of the others:
        (self.path / SEALED).unlink(missing_ok=True)
        (self.path / PROGRESS).unlink(missing_ok=True)
        for path in self._files():
            if path.name.endswith(PARTIAL):
                path.unlink()
        self._remove_empty_tokenizer_folder()

    def _remove_empty_tokenizer_folder(self):
        with contextlib.suppress(OSError):  # there is none, or it holds something
            (self.path / "tokenizer").rmdir()


def unfinished_claim(path):
    """The claim of a run in this folder that can be continued; None without one."""
    progress = ShardFolder(path, False, shard_tokens=1)._read_progress()
    return progress and progress["claim"]
