#!/usr/bin/env python3
"""Part extrapolate of dev/gpu_check.sh, which trains and evaluates between these:

    dev/gpu_extrapolate.py text FOLDER --longest T         the tokens of the shards, if they will do
    dev/gpu_extrapolate.py pack FOLDER INTO --longest T    the same, and copies them
    dev/gpu_extrapolate.py plan TEXT SPEED SPEED [...]     the steps that the slower of two runs has time for
    dev/gpu_extrapolate.py words PLAN train|eval           the plan as words of the program, one a line
    dev/gpu_extrapolate.py table PLAN RUN RUN              losses and perplexities of both models

Prints a JSON (`words`: lines); exits with 1, saying why, if the text or the runs are not as wanted. Needs
nothing but Python.
"""

import argparse
import json
import math
import shutil
import struct
import sys
from pathlib import Path

from gpu_run import read_metrics
from random_shards import HEADER, MAGIC, VERSION

VOCAB = 50257  # of c4_125m, and of GPT-2's tokens
PACKED = 30_000_000  # tokens that are carried to another machine at most
MAKE = f"data/prepare.py text --tokenizer gpt2 --max-tokens {PACKED} --out FOLDER FILE... makes such shards"
LEAST_STEPS = 20  # fewer are no training
WARM_UP = 0.1  # share of the steps
END = 0.02  # share of the steps, the last ones, whose mean loss is that of the end
FLAT = 1.05  # times the perplexity at the training length, at the longest one
# To evaluate a token at the training length takes a third of what training takes. At most a third of that is
# attention, which grows with the length.
FORWARD, ATTENTION = 1 / 3, 1 / 3


class Unfit(Exception):
    """The text or the runs are not as wanted."""


def tokens_of(shard):
    """How many tokens the shard has, by its header and by its size."""
    with shard.open("rb") as file:
        header = file.read(4 * HEADER)
    if len(header) < 4 * HEADER or struct.unpack("<2i", header[:8]) != (MAGIC, VERSION):
        raise Unfit(f"{shard}: is no shard of 16-bit tokens; {MAKE}")
    (tokens,) = struct.unpack("<i", header[8:12])
    size, wanted = shard.stat().st_size, 4 * HEADER + 2 * tokens
    if size != wanted:
        raise Unfit(f"{shard}: {size:,} bytes, and {wanted:,} by its header; copy or make it again")
    return tokens


def meta_of(folder):
    """What prepare.py has noted of the shards, {} where they come from elsewhere."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
    except FileNotFoundError:
        return {}
    except ValueError as problem:
        raise Unfit(f"{folder / 'meta.json'}: is damaged: {problem}") from problem
    return meta if isinstance(meta, dict) else {}


def text(folder, longest):
    """What the folder's shards hold, if models can train on them and be evaluated at length `longest`."""
    if not folder.is_dir():
        raise Unfit(f"{folder}: there is no such folder of shards; {MAKE}")
    found = {"folder": str(folder)}
    for split in ("train", "val"):
        shards = sorted(folder.glob(f"{split}_*.bin"))
        if not shards:
            raise Unfit(f"{folder}: has no {split}_*.bin; {MAKE}")
        found[f"{split}_tokens"] = sum(tokens_of(shard) for shard in shards)
    meta = meta_of(folder)
    if meta.get("vocab", VOCAB) != VOCAB:
        raise Unfit(
            f"{folder}: tokens of {meta.get('tokenizer')}, of {meta['vocab']} kinds; c4_125m has GPT-2's "
            f"{VOCAB:,}; {MAKE}"
        )
    if found["val_tokens"] < 2 * longest + 1:
        raise Unfit(
            f"{folder}: {found['val_tokens']:,} tokens for validation; two sequences of {longest:,} and one "
            "token more are needed: take more text, or a larger --val-fraction of prepare.py"
        )
    return found | ({"made_by": meta["command"]} if "command" in meta else {})


def pack(folder, into, longest):
    found = text(folder, longest)
    tokens = found["train_tokens"] + found["val_tokens"]
    if tokens > PACKED:
        raise Unfit(
            f"{folder}: {tokens:,} tokens; at most {PACKED:,} are carried along; {MAKE}"
        )
    into.mkdir(parents=True)
    for pattern in ("train_*.bin", "val_*.bin", "meta.json"):
        for file in folder.glob(pattern):
            shutil.copyfile(file, into / file.name)
    if (folder / "tokenizer").is_dir():
        shutil.copytree(folder / "tokenizer", into / "tokenizer")
    return found


def tokens_to_evaluate(lengths, available, speed, seconds):
    """A multiple of every length: what there is, or what takes about so many seconds, of training's speed."""
    longest = max(lengths)
    work = sum(1 - ATTENTION + ATTENTION * length / lengths[0] for length in lengths)
    affordable = seconds * speed / (FORWARD * work)
    return max(1, int(min(available, affordable) // longest)) * longest


def plan(text, runs, step_tokens, seconds, lengths, eval_seconds):
    """Steps for `seconds` of the slower run, and tokens for `eval_seconds`. The first length is that of
    training."""
    if wrong := [length for length in lengths if max(lengths) % length]:
        raise Unfit(f"length {wrong[0]} does not divide {max(lengths)}")
    if missing := [run.stem for run in runs if not run.exists()]:
        raise Unfit(f"{missing[0]} did not run: its speed was not measured")
    found = json.loads(text.read_text())
    speeds = {run.stem: json.loads(run.read_text())["tokens_per_second"] for run in runs}
    slower = min(speeds, key=speeds.get)
    steps = int(seconds * speeds[slower] / step_tokens)
    if steps < LEAST_STEPS:
        raise Unfit(
            f"{slower}: {speeds[slower]:,.0f} tokens/s are {steps} steps of {step_tokens:,} tokens in "
            f"{seconds:g} s; {LEAST_STEPS} are needed at least"
        )
    return {
        "text": found,
        "tokens_per_second": speeds,
        "slower": slower,
        "steps": steps,
        "warmup": max(1, int(WARM_UP * steps)),
        "tokens": steps * step_tokens,
        "epochs": steps * step_tokens / found["train_tokens"],
        "lengths": lengths,
        "eval_tokens": tokens_to_evaluate(lengths, found["val_tokens"] - 1, speeds[slower], eval_seconds),
    }


def words(plan, command):
    if command == "train":
        return ["--set", f"train.steps={plan['steps']}", "--set", f"train.warmup={plan['warmup']}"]
    return ["--lengths", ",".join(map(str, plan["lengths"])), "--tokens", str(plan["eval_tokens"])]


def trained(run, planned):
    """What the run was, if it has trained all that was planned, and learned from it."""
    report = run.with_name(run.name + ".json")
    if not report.exists():
        raise Unfit(f"{run.name} did not train to its end")
    lines = read_metrics(run)
    if (lines[-1]["step"], lines[-1]["tokens"]) != (planned["steps"], planned["tokens"]):
        raise Unfit(
            f"{run.name} ended at step {lines[-1]['step']} with {lines[-1]['tokens']:,} tokens, and not at "
            f"{planned['steps']} with {planned['tokens']:,}"
        )
    last = lines[-max(1, int(END * len(lines))) :]
    first_loss, loss = lines[0]["loss"], sum(line["loss"] for line in last) / len(last)
    if not loss < first_loss:
        raise Unfit(
            f"{run.name}: training did not take: loss {first_loss:.4f} at step 1, and {loss:.4f} in the mean "
            f"of the last {len(last)}"
        )
    speed = json.loads(report.read_text())["tokens_per_second"]
    return {"tokens": lines[-1]["tokens"], "first_loss": first_loss, "loss": loss, "tokens_per_second": speed}


def evaluated(run, planned):
    """Its perplexity at each length, if those are of the tokens that were planned."""
    file = run / "eval.json"
    if not file.exists():
        raise Unfit(f"{run.name} was not evaluated to its end")
    rows = json.loads(file.read_text())["results"]
    if [(row["length"], row["tokens"]) for row in rows] != [
        (length, planned["eval_tokens"]) for length in planned["lengths"]
    ]:
        found = ", ".join(f"{row['tokens']:,} at {row['length']:,}" for row in rows)
        raise Unfit(f"{run.name}: evaluated tokens {found}; wanted {planned['eval_tokens']:,} at each length")
    perplexity = [row["perplexity"] for row in rows]
    for length, value in zip(planned["lengths"], perplexity):
        if value is None or not math.isfinite(value):  # JSON has null for what is not finite
            raise Unfit(f"{run.name}: the perplexity at length {length:,} is not finite")
    return {"perplexity": perplexity, "ratio": perplexity[-1] / perplexity[0]}


def table(plan, runs):
    result = {key: plan[key] for key in ("text", "steps", "tokens", "epochs", "lengths", "eval_tokens")}
    result |= {"flat_within": FLAT, "models": {}}
    for run in runs:
        model = trained(run, plan) | evaluated(run, plan)
        result["models"][run.name] = model | {"flat": model["ratio"] <= FLAT}
    return result


def numbers(text):
    return [int(number) for number in text.split(",")]


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    kind = kinds.add_parser("text")
    kind.add_argument("folder", type=Path)
    kind.add_argument("--longest", type=int, required=True, help="length of an evaluation")
    kind = kinds.add_parser("pack")
    kind.add_argument("folder", type=Path)
    kind.add_argument("into", type=Path, help="a folder that is not there yet")
    kind.add_argument("--longest", type=int, required=True, help="length of an evaluation")
    kind = kinds.add_parser("plan")
    kind.add_argument("text", type=Path, help="what `text` has printed")
    kind.add_argument("runs", nargs="+", type=Path, help="what dev/gpu_run.py has written of each model")
    kind.add_argument("--step-tokens", type=int, required=True, help="tokens of a step")
    kind.add_argument("--seconds", type=float, required=True, help="of each model's training")
    kind.add_argument("--lengths", type=numbers, required=True, help="of the evaluation, the first trained")
    kind.add_argument("--eval-seconds", type=float, required=True, help="of each model's evaluation")
    kind = kinds.add_parser("words")
    kind.add_argument("plan", type=Path, help="what `plan` has printed")
    kind.add_argument("command", choices=("train", "eval"))
    kind = kinds.add_parser("table")
    kind.add_argument("plan", type=Path, help="what `plan` has printed")
    kind.add_argument("runs", nargs="+", type=Path, help="folders of runs, with an eval.json in each")
    return vars(parser.parse_args(words))


def main(words_given=None):
    arguments = arguments_of(words_given)
    kind = arguments.pop("kind")
    if kind in ("words", "table"):
        arguments["plan"] = json.loads(arguments["plan"].read_text())
    try:
        result = {"text": text, "pack": pack, "plan": plan, "words": words, "table": table}[kind](**arguments)
    except Unfit as what:
        sys.exit(f"gpu_extrapolate: {what}")
    except OSError as problem:
        sys.exit(f"gpu_extrapolate: {problem.filename}: {problem.strerror}")
    print("\n".join(result) if kind == "words" else json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
