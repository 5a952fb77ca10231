"""What prepare.py says at the end: what was made, and the command that goes on from there."""

import os
import re
import shlex
from pathlib import Path

from console import count, one_line

REPOSITORY = Path(__file__).resolve().parent.parent
# Of the trainer, by kind of source, with the tokens in a sequence.
PRESETS = {"c4": ("c4_125m", 2048), "fineweb": ("fineweb_1b", 2048), "fasta": ("genome_25m", 1024)}
ANY_PRESET = ("shakespeare", 128)


def summary(out, meta):
    """Lines for the terminal."""
    size = sum(source["bytes"] for source in meta["sources"])
    tokens = meta["train_tokens"] + meta["val_tokens"]
    names = {source["name"] for source in meta["sources"]}
    files, documents = count(len(names), "file"), count(meta["documents"], "document")
    yield f"{files}, {size:,} bytes, {documents} -> {tokens:,} tokens (vocabulary {meta['vocab']:,})"
    for note in meta["notes"]:
        yield f"  {one_line(note)}"
    for split in ("train", "val"):
        shards = [shard for shard in meta["shards"] if shard["split"] == split]
        place = str(Path(out) / f"{split}_*.bin") if shards else ""
        tokens = f"{meta[split + '_tokens']:>15,} tokens"
        yield f"  {split:5} {tokens} in {count(len(shards), 'shard')} {place}".rstrip()
    yield from what_next(out, meta)


def what_next(out, meta):
    _, length = preset(meta)
    needed = length + (meta["end_of_text"] is None)  # a plain window needs a token more
    if meta["train_tokens"] == 0:
        yield "All of it is for validation. Evaluate a run on it with:"
        yield "  " + shlex.join([program(), "eval", "--checkpoint", "RUN", "--data", pattern(out, "val")])
        return
    for split, advice in [
        ("train", "give more text"),
        ("val", "the command does without; see --val-fraction"),
    ]:
        if 0 < meta[split + "_tokens"] < needed:
            yield f"  {split}: too few tokens for a sequence of {length} and its targets; {advice}"
    if meta["train_tokens"] >= needed:
        yield "Train with this, or with another preset (--list-configs) or file:"
        yield "  " + shlex.join(training_command(out, meta, validate=meta["val_tokens"] >= needed))


def preset(meta):
    return PRESETS.get(meta.get("source", {}).get("kind"), ANY_PRESET)


def training_command(out, meta, validate):
    settings = [
        f"data.train={pattern(out, 'train')}",
        f"data.val={pattern(out, 'val')}" if validate else 'data.val=""',
        f"model.vocab={meta['vocab']}",
    ]
    if "record_tokens" in meta:
        settings += ["data.block=crop", f"data.record_tokens={meta['record_tokens']}"]
    elif meta["end_of_text"] is None:
        settings.append("data.block=window")
    else:
        settings += ["data.block=bos", f"data.bos={meta['end_of_text']}"]
    name, _ = preset(meta)
    command = [program(), "--config", name, "--out", f"runs/{Path(out).resolve().name or name}"]
    return command + [word for setting in settings for word in ("--set", setting)]


def program():
    """How the trainer is called from the current folder."""
    return "./train_gpt_goat" if Path.cwd() == REPOSITORY else str(REPOSITORY / "train_gpt_goat")


def pattern(out, split):
    """The shards of a split, for the trainer's glob(3). What is special to it in the folder's name is
    escaped.

    It begins with '/', '.' or a plain character: '~' would be the home folder, and a quote would be taken
    off.
    """
    folder = re.sub(r"([\\*?\[])", r"\\\1", str(Path(out)))
    if not re.match(r"[A-Za-z0-9_/.]", folder):
        folder = f"./{folder}"
    return os.path.join(folder, f"{split}_*.bin")
