"""From files of documents to a folder of token shards. A source of prepare.py needs two things of it:

    add_common_arguments(parser)                # --out, --tokenizer, --shard-tokens, --workers, ...
    lines = prepare_documents(                  # what is to be printed at the end
        arguments,
        train_files,                            # lists of DocumentFile (prepare_documents.py)
        val_files=[...],                        # tokenized into val_*.bin; or instead of it
        val_fraction=Fraction(1, 10),           # the last tenth of all tokens becomes the validation split
        extra_meta={"source": {"kind": "c4", "dataset": "allenai/c4", "revision": "...", "files": 1024}},
    )

All text is encoded in the order given, the end-of-text token before each document. What `extra_meta` holds
is put into meta.json. Errors are raised as DataError, UsageError or ScriptError. Standard input and what
else cannot be read again (DocumentFile.can_reread) makes a run that starts again where it is interrupted.
"""

import contextlib
import time

import console
from console import DataError, ScriptError
from prepare_advice import summary
from prepare_arguments import add_common_arguments, check_common_arguments, claim, command, workers
from prepare_encoding import encoded
from prepare_progress import Progress, Space
from prepare_reading import Position, Reader
from prepare_shards import ENCODING, ShardFolder
from prepare_sources import Findings
from prepare_tokenizer_json import make_tokenizer

__all__ = ["add_common_arguments", "prepare_documents"]

SAVE_SECONDS = 10  # of work at most are lost where a run is interrupted
SAVE_SHARE = 0.05  # of the time may go into saving


def prepare_documents(arguments, train_files, val_files=(), val_fraction=0, extra_meta=None):
    """Makes the shards. Returns the lines that say what was made and how to go on."""
    check_common_arguments(arguments)
    tokenizer = make_tokenizer(arguments)
    files = {"train": list(train_files), "val": list(val_files)}
    can_go_on = all(file.can_reread for split in files.values() for file in split)
    folder = ShardFolder(
        arguments.out,
        arguments.overwrite,
        {f"tokenizer/{name}": contents for name, contents in tokenizer.files.items()},
        shard_tokens=arguments.shard_tokens,
        token_bytes=tokenizer.token_bytes,
        claim=claim(arguments, files, tokenizer) if can_go_on else None,
        command=command(arguments),
        restart=arguments.restart,
    )
    with what_is_kept(folder), folder:
        meta = folder.done
        if meta is None:
            meta = Preparation(arguments, files, tokenizer, folder).run(val_fraction, extra_meta or {})
    return list(summary(arguments.out, meta))


@contextlib.contextmanager
def what_is_kept(folder):
    """Adds to the message of a failure what becomes of the work."""
    try:
        yield
    except (ScriptError, OSError, MemoryError, KeyboardInterrupt) as error:
        if folder.sealed or not folder.streams:
            raise
        note = "; what was done is kept: the same command goes on from there"
        if not folder.kept:
            note = "" if folder.claim else "; standard input and pipes cannot be continued"
        if isinstance(error, ScriptError):
            error.args = (f"{error}{note if folder.kept else ''}",)
            raise
        if isinstance(error, KeyboardInterrupt):
            console.ignore_stops()
        what = {KeyboardInterrupt: "interrupted", MemoryError: "out of memory"}.get(type(error), error)
        raise ScriptError(f"{what}; no shards were written{note}") from None


class Preparation:
    """One run: from the files into the folder."""

    def __init__(self, arguments, files, tokenizer, folder):
        self.arguments, self.files, self.tokenizer, self.folder = arguments, files, tokenizer, folder
        # Of what is in the folder; splits: train, val, end.
        self.split, self.position, self.findings = "train", Position(), Findings()
        if folder.state is not None:
            self._go_on(folder.state)
            tokens = f"{sum(folder.tokens.values()):,} tokens"
            console.warn("prepare.py", f"note: {folder.path}: going on after the {tokens} of an earlier run")
        self.save_at = time.monotonic() + SAVE_SECONDS

    def _go_on(self, state):
        try:
            self.split, self.position = state["split"], Position.of(state["position"])
            self.findings = Findings(**state["findings"])
        except (KeyError, TypeError):
            problem = "progress.partial is damaged; --restart begins again"
            raise DataError(f"{self.folder.path}: {problem}") from None

    def run(self, val_fraction, extra_meta):
        """Returns what is in meta.json."""
        has_val_files = bool(self.files["val"])
        limit = self.arguments.max_tokens
        with Progress(*self._sizes(), sum(self.folder.tokens.values()), limit) as self.progress:
            most = limit and limit + sum(file.size or 0 for file in self.files["val"])
            copied = 0 if has_val_files else float(val_fraction)
            self.space = Space(self.folder, self.progress, self.tokenizer, most, copied)
            if self.folder.stage == ENCODING:
                self.space.check_before()
            if self.split == "train":
                self._encode("train", "val", limit)
            if self.split == "val":
                self._encode("val", "end", None)
        total = sum(self.folder.tokens.values())
        if total == 0:
            raise DataError("no text in " + console.some(file.name for file in self.files["train"]))
        tail = 0 if has_val_files else total - int(total * (1 - val_fraction))
        meta = self._meta(val_fraction, extra_meta)
        return self.folder.publish(meta, tail, before_sealing=console.ignore_stops)

    def _sizes(self):
        """Stored bytes of all files, and of those that have been read."""
        files = self.files["train"] + self.files["val"]
        if any(file.size is None for file in files):
            return None, 0
        first = {"train": 0, "val": len(self.files["train"]), "end": len(files)}[self.split]
        sizes = [file.size for file in files]
        return sum(sizes), sum(sizes[: first + self.position.file])

    def _encode(self, split, following, limit):
        """Encodes what is left of a split; then `following` is the one to go on with."""
        reader = Reader(self.files[split], self.tokenizer.new_cutter, self.position, self.progress.read)
        stream = encoded(reader.batches(), self.tokenizer.encode, workers(self.arguments))
        with contextlib.closing(stream):
            for batch, tokens in stream:
                if limit is not None and self.folder.tokens[split] + tokens.size >= limit:
                    self._stop(split, batch, tokens, limit)
                    break
                self.folder.append(split, tokens)
                self.position, self.findings = batch.position, batch.findings
                self.progress.written(tokens.size)
                if time.monotonic() >= self.save_at:
                    self._save()
            else:
                self.findings = reader.findings
        self.split, self.position = following, Position(findings=self.findings.snapshot())
        self._save()

    def _stop(self, split, batch, tokens, limit):
        """Takes what is missing from the last batch; documents that begin after it count as not read."""
        kept = limit - self.folder.tokens[split]
        self.folder.append(split, tokens[:kept])
        self.progress.written(kept)
        self.findings = Findings(**batch.findings.as_dict())
        self.findings.documents -= self.tokenizer.documents_from(kept, batch.texts, tokens)
        if len(self.findings.sources) <= batch.file:
            file = self.files[split][batch.file]
            self.findings.sources.append({"name": file.name, "bytes": file.size or 0})

    def _save(self):
        if not any(self.folder.tokens.values()):
            return
        before = time.monotonic()
        self.folder.save(
            {
                "split": self.split,
                "position": self.position.as_dict(),
                "findings": self.findings.snapshot().as_dict(),
            }
        )
        self.space.check()
        after = time.monotonic()
        self.save_at = after + max(SAVE_SECONDS, (after - before) / SAVE_SHARE)

    def _meta(self, val_fraction, extra_meta):
        separator = extra_meta.get("document_separator")
        return {
            "tokenizer": self.tokenizer.name,
            "vocab": self.tokenizer.vocabulary,
            "end_of_text": self.tokenizer.end_of_text,
            "token_bytes": self.tokenizer.token_bytes,
            "source": {"kind": self.arguments.source, "files": sum(map(len, self.files.values()))},
            "command": command(self.arguments),
            "val_fraction": None if self.files["val"] else float(val_fraction),
            "documents": self.findings.documents,
            "sources": self.findings.as_dict()["sources"],
            "notes": list(self.findings.lines(self.tokenizer, separator)),
        } | extra_meta
