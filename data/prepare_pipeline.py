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
is put into meta.json. Errors are raised as DataError, UsageError or ScriptError.
"""

import console
import numpy as np
from console import DataError
from prepare_advice import summary
from prepare_arguments import add_common_arguments, check_common_arguments
from prepare_documents import END
from prepare_shards import ShardFolder
from prepare_sources import Findings
from prepare_tokenizers import Gpt2Tokenizer, TextCutter

__all__ = ["add_common_arguments", "prepare_documents"]


def prepare_documents(arguments, train_files, val_files=(), val_fraction=0, extra_meta=None):
    """Makes the shards. Returns the lines that say what was made and how to go on."""
    check_common_arguments(arguments)
    is_bytes = arguments.tokenizer == "bytes"
    tokenizer = None if is_bytes else Gpt2Tokenizer(arguments.tokenizer_dir)
    findings = Findings()
    with ShardFolder(arguments.out, arguments.overwrite, {}) as folder:
        for tokens in encoded(train_files, tokenizer, findings):
            folder.append(tokens)
        total = train_tokens = folder.tokens
        for tokens in encoded(val_files, tokenizer, findings):
            folder.append(tokens)
        if folder.tokens == 0:
            raise DataError("no text in " + ", ".join(file.name for file in train_files))
        if not val_files:
            train_tokens = int(total * (1 - val_fraction))
        splits = [("train", train_tokens), ("val", folder.tokens - train_tokens)]
        meta = {
            "tokenizer": arguments.tokenizer,
            "vocab": 256 if is_bytes else tokenizer.vocabulary,
            "end_of_text": None if is_bytes else tokenizer.end_of_text,
            "documents": findings.documents,
            "sources": findings.sources,
            "notes": list(findings.lines(arguments.tokenizer, None, 0)),
        } | (extra_meta or {})
        meta = folder.publish(splits, arguments.shard_tokens, meta, before_sealing=console.ignore_stops)
    return list(summary(arguments.out, meta))


def encoded(files, tokenizer, findings):
    for file in files:
        sources = len(findings.sources)
        cutter, starts = TextCutter(), True
        for piece in file.pieces(0, lambda n: None, findings):
            if piece is END:
                texts, ends = cutter.finish(), True
            else:
                texts, ends = cutter.add(piece), False
            for text in texts:
                findings.documents += starts
                if tokenizer is None:
                    yield np.frombuffer(text.encode(), np.uint8).astype(np.uint16)
                else:
                    yield np.array([tokenizer.end_of_text] * starts + tokenizer.encode_batch([text])[0], np.uint16)
                starts = False
            if ends:
                findings.empty_documents += starts
                starts = True
        if len(findings.sources) == sources:
            findings.sources.append({"name": file.name, "bytes": file.size})
