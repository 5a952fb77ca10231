#!/usr/bin/env python3
"""Lets a model of genomes continue pieces of its validation data, and compares with how they go on in truth.

  genome_completions.py RUN      3 prompts of 200 bases, 3 continuations of 200 -> RUN/completions.json
  genome_completions.py RUN --prompts 8 --seed 2
  plot.py genome RUN                            the figure of it

Prompts are cut from the run's validation shards (data.val), where neither prompt nor truth has an N; which
ones follows from --seed. `train_gpt_goat sample` draws at temperature 1. The file has prompts, truths,
completions, their GC content, its correlation with the truth (null where a GC content is constant) and the
shares of matching bases; `definitions` in it says what each key means. Loss and bits a base are those of
RUN/eval.json, if there is one. TRAIN_GPT_GOAT names another program than ./train_gpt_goat.

Exit codes: 0 done, 1 failure (the program failed, disk, interrupted), 2 wrong use, 3 bad data.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import console
import numpy as np
from console import DataError, ScriptError, UsageError
from eval_reader import find_runs, read_evaluations
from genome_measures import (
    BASES, DEFINITIONS, WINDOW, gc_content, matches, mean_or_none, pearson_r,
)  # fmt: skip
from program import program_path
from run_reader import finite, open_checkpoint, parse_json, read_bytes
from shard_reader import open_shard, validation_files
from whole_file import replace_file

SCRIPT = "genome_completions.py"
FILE = "completions.json"
UNKNOWN = BASES.index("N")
TRIES = 1000  # places looked at for each prompt before the data count as all N
LARGEST_SAMPLES = 1 << 30  # bytes
warn = partial(console.warn, SCRIPT)


def check_model(checkpoint):
    """Refuses a model that does not speak of bases."""
    data = checkpoint.state.get("data")
    tokenizer = data.get("tokenizer") if isinstance(data, dict) else None
    vocabulary = checkpoint.value("model.vocab", int)
    is_genome = tokenizer == "dna" if tokenizer else vocabulary == len(BASES)
    if checkpoint.value("data.source", str) != "shards" or not is_genome:
        raise UsageError(
            f"{checkpoint.run}: is no model of genomes (tokenizer {tokenizer or 'unknown'}, vocabulary "
            f"{vocabulary}); expected shards made by prepare.py fasta"
        )


def letters_of(shard, tokens):
    if tokens.max() >= len(BASES):
        raise DataError(f"{shard.path}: token {tokens.max()} is no base; expected 0 to {len(BASES) - 1}")
    return "".join(BASES[token] for token in tokens)


def draw_places(shards, record, length, prompts, seed):
    """Pairs of shard and first token: pieces without N that lie in one record each and do not overlap."""
    rng = np.random.default_rng(seed)
    records = np.array([len(shard.tokens) // record for shard in shards])
    if length > record or records.sum() == 0:
        raise UsageError(
            f"--prompt-length and --new: {length} bases are more than a record of the validation data has "
            f"({record:,} bases)"
        )
    places = []
    for _ in range(TRIES * prompts):
        shard = shards[rng.choice(len(shards), p=records / records.sum())]
        first = int(rng.integers(len(shard.tokens) // record)) * record
        start = first + int(rng.integers(record - length + 1))
        is_free = all(shard is not other or abs(start - there) >= length for other, there in places)
        if is_free and (shard.tokens[start : start + length] != UNKNOWN).all():
            places.append((shard, start))
        if len(places) == prompts:
            return places
    raise DataError(
        f"{shards[0].path} and on: only {len(places)} of {prompts} pieces of {length} bases without N, apart "
        f"from each other, were found in {TRIES * prompts:,} tries"
    )


def read_samples(path, samples, new):
    """The texts that `sample --json` wrote. Raises DataError."""
    try:
        texts = [entry["text"] for entry in parse_json(read_bytes(path, LARGEST_SAMPLES))]
        is_good = len(texts) == samples and all(len(t) == new and set(t) <= set(BASES) for t in texts)
    except (ValueError, KeyError, TypeError):
        is_good = False
    if not is_good:
        raise DataError(f"train_gpt_goat sample did not write {samples} continuations of {new} bases")
    return texts


def continue_prompt(program, checkpoint, prompt, seed, options):
    """Continuations with the seeds seed, seed + 1, ..."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.json"
        words = [
            program, "sample", "--checkpoint", checkpoint.folder, "--tokenizer", "dna", "--prompt", prompt,
            "--tokens", options.new, "--samples", options.samples, "--seed", seed, "--temperature", "1",
            "--json", path,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise ScriptError(
                f"{program}: {error.strerror}; build it with make, or name it in TRAIN_GPT_GOAT"
            ) from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise ScriptError(f"train_gpt_goat sample ended with code {done.returncode}: {last}")
        return read_samples(path, options.samples, options.new)


def compare(truth, texts, seed):
    """What completions.json says of one prompt's continuations."""
    gc = gc_content(truth)
    hits = np.array([matches(truth, text) for text in texts])
    completions = []
    for n, text in enumerate(texts):
        own = gc_content(text)
        completions.append({
            "seed": seed + n, "text": text, "gc": own.tolist(), "pearson_r": pearson_r(gc, own),
            "matches": float(hits[n].mean()),
        })  # fmt: skip
    return {
        "truth": truth,
        "gc_truth": gc.tolist(),
        "completions": completions,
        "mean_pearson_r": mean_or_none([completion["pearson_r"] for completion in completions]),
        "mean_matches": float(hits.mean()),
        "matches_by_position": hits.mean(axis=0).tolist(),
    }


def evaluation_of(checkpoint, path):
    """Its perplexities in the run's eval.json: of its own step where there are others, recut before paper."""
    evaluations = read_evaluations(path)
    found = [
        each
        for each, run in zip(
            evaluations, find_runs(evaluations, [checkpoint.run], checkpoint.run), strict=True
        )
        if run is not None and not each.is_task
    ]
    return min(
        found, key=lambda each: (each.step != str(checkpoint.step), each.protocol == "paper"), default=None
    )


def measured_loss(checkpoint):
    """Loss and bits a base from RUN/eval.json, at the training length or else the shortest; None without."""
    path = checkpoint.run / "eval.json"
    if not path.exists():
        return None
    evaluation = evaluation_of(checkpoint, path)
    if evaluation is None:
        warn(f"warning: {path}: holds no perplexity of this run; it is left out")
        return None
    rows = evaluation.rows
    row = next((row for row in rows if row["length"] == evaluation.train_length), rows[0])
    nll = finite(row["nll"])
    if math.isnan(nll):
        warn(f"warning: {path}: holds no finite loss; it is left out")
        return None
    step = evaluation.contents.get("step")
    if step != checkpoint.step:
        warn(f"warning: {path}: is of step {step}, the completions are of step {checkpoint.step}")
    return {"step": step, "length": row["length"], "nll": nll, "bits_per_base": nll / math.log(2)}


def complete(options):
    """The contents of completions.json."""
    checkpoint = open_checkpoint(options.run, None, warn)
    check_model(checkpoint)
    shards = [open_shard(path) for path in validation_files(checkpoint)]
    is_cut = checkpoint.value("data.block", str) == "crop"
    record = checkpoint.value("data.record_tokens", int, lambda value: value > 0) if is_cut else 0
    record = record or min(len(shard.tokens) for shard in shards)
    length = options.prompt_length + options.new
    evaluation = measured_loss(checkpoint)
    program = program_path()
    found = []
    for n, (shard, start) in enumerate(draw_places(shards, record, length, options.prompts, options.seed)):
        bases = letters_of(shard, shard.tokens[start : start + length])
        prompt, truth = bases[: options.prompt_length], bases[options.prompt_length :]
        seed = options.seed + n * options.samples
        texts = continue_prompt(program, checkpoint, prompt, seed, options)
        place = {"shard": shard.path.name, "position": start, "prompt": prompt}
        found.append(place | compare(truth, texts, seed))
    return {
        "step": checkpoint.step, "prompt_length": options.prompt_length, "new": options.new,
        "samples": options.samples, "seed": options.seed, "temperature": 1.0, "window": WINDOW,
        "definitions": DEFINITIONS, "evaluation": evaluation, "prompts": found,
        "mean_pearson_r": mean_or_none([r["pearson_r"] for p in found for r in p["completions"]]),
        "mean_matches": float(np.mean([prompt["mean_matches"] for prompt in found])),
    }  # fmt: skip


def whole_number(least, most):
    def parse(text):
        if not text.isdecimal() or len(text) > 18 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected {least} to {most:,}")
        return int(text)

    return parse


def parse_arguments(words):
    parser = console.Parser(
        prog=SCRIPT, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run on a genome")
    for name, least, most, default, meaning in [
        ("--prompts", 1, 10_000, 3, "pieces of validation data"),
        ("--prompt-length", 1, 1_000_000, 200, "bases of each that the model is given"),
        ("--new", WINDOW + 1, 1_000_000, 200, "bases that it writes, and is compared by"),
        ("--samples", 1, 1000, 3, "continuations of each"),
        ("--seed", 0, 10**12, 1, "of the places and the draws"),
    ]:
        kind = whole_number(least, most)
        help_text = f"{meaning} (default: {default})"
        parser.add_argument(name, type=kind, metavar="N", default=default, help=help_text)
    parser.add_argument("--out", type=Path, metavar="FILE", help="(default: RUN/completions.json)")
    return parser.parse_args(words)


def run(words):
    options = parse_arguments(words)
    path = options.out or options.run / FILE
    if path.is_dir():
        raise UsageError(f"--out {path}: is a folder; give the name of a file in it")
    found = complete(options)
    replace_file(Path(os.path.realpath(path)), (json.dumps(found, indent=1) + "\n").encode())
    console.say(str(path))
    r = found["mean_pearson_r"]
    said = "without a value (a GC content is constant)" if r is None else f"{r:.3f}"
    console.say(
        f"Pearson r of GC content {said}, matches {found['mean_matches']:.1%}, means of all completions."
    )


def main(words=None):
    return console.run_script(SCRIPT, lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
