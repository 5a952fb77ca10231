"""What two ranks cost on a machine with two cores: tokens/s of one rank with two threads, of two ranks with
one thread each, the same model and batch, in turns. Beside them two runs of one rank each, at once, with half
the batch: they compute what the ranks compute, and exchange nothing.

    .venv/bin/python dev/bench/rank_cost.py [--rounds 5] [--record dev/results/ranks.md] [--before BINARY]

With --before, the same run of one rank by another build of the program, in turns: what one rank pays."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAM = REPOSITORY / "train_gpt_goat"
WARM_UP = 3  # steps that are not counted

SMALL = ["model.width=64", "model.layers=2", "model.heads=2", "data.seq_len=128"]
MIDDLE = ["model.width=384", "model.layers=6", "model.heads=6", "data.seq_len=256", "model.vocab=256"]
LARGE = ["model.width=768", "model.layers=6", "model.heads=12", "data.seq_len=256", "model.vocab=8192"]
MODELS = {
    "2 layers, width 64, T = 128": (SMALL, 32, 60),
    "6 layers, width 384, T = 256": (MIDDLE, 16, 8),
    "6 layers, width 768, T = 256, V = 8192": (LARGE, 8, 4),
}


def command(program, folder, settings, batch, steps, ranks):
    keys = [*settings, f"train.batch={batch}", f"train.micro_batch={min(batch, 4)}", f"train.steps={steps}"]
    keys += ["train.warmup=1", "eval.tokens=0", "checkpoint.minutes=0", "distributed.check_interval=0"]
    words = [word for key in keys for word in ("--set", key)]
    return [
        program,
        "--config",
        "copy_mixture",
        *words,
        "--out",
        folder,
        "--ranks",
        str(ranks),
        "--device",
        "cpu",
    ]


def start(program, folder, settings, batch, steps, ranks, threads):
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    words = command(program, folder, settings, batch, steps, ranks)
    if program != PROGRAM:  # a build before ranks
        words = [word for word in words if word != "distributed.check_interval=0"]
        words = [w for i, w in enumerate(words) if not (w == "--set" and words[i + 1].startswith("--"))]
        del words[words.index("--ranks") : words.index("--ranks") + 2]
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def step_seconds(process, folder, batch, length):
    _, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(errors)
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(batch * length / line["tokens_per_second"] for line in lines[WARM_UP:])


def measure(settings, batch, steps):
    """Seconds a step: one rank with two threads, two ranks with one thread, two runs of half the batch."""
    length = int(next(key for key in settings if key.startswith("data.seq_len=")).partition("=")[2])
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for name, ranks, threads in (("one", 1, 2), ("two", 2, 1)):
            run = start(PROGRAM, f"{folder}/{name}", settings, batch, steps + WARM_UP, ranks, threads)
            seconds.append(step_seconds(run, f"{folder}/{name}", batch, length))
        halves = [
            start(PROGRAM, f"{folder}/half{i}", settings, batch // 2, steps + WARM_UP, 1, 1) for i in (0, 1)
        ]
        times = [step_seconds(run, f"{folder}/half{i}", batch // 2, length) for i, run in enumerate(halves)]
        seconds.append(max(times))
    return seconds


def table_of(rounds):
    rows = []
    for name, (settings, batch, steps) in MODELS.items():
        tokens = batch * int(
            next(key for key in settings if key.startswith("data.seq_len=")).partition("=")[2]
        )
        measured = [measure(settings, batch, steps) for _ in range(rounds)]
        one, two, halves = (statistics.median(column) for column in zip(*measured, strict=True))
        ratio = statistics.median(m[0] / m[1] for m in measured)
        rows.append(
            f"| {name}, {tokens} tokens a step | {tokens / one:,.0f} | {tokens / two:,.0f} | {ratio:.2f} "
            f"| {1000 * two:.1f} ms | {1000 * halves:.1f} ms | {100 * (two - halves) / two:.0f} % |"
        )
        print(rows[-1], flush=True)
    return rows


def cpu_seconds(program, folder, settings, batch, steps):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = start(program, folder, settings, batch, steps, 1, 1)
    _, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(errors)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def paid_by_one(before, rounds):
    rows = []
    for name, (settings, batch, steps) in MODELS.items():
        ratios = []
        for number in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                programs = [(before, "before"), (PROGRAM, "now")]
                taken = {}
                for program, label in programs if number % 2 else reversed(programs):
                    taken[label] = cpu_seconds(program, f"{folder}/{label}", settings, batch, steps)
                ratios.append(taken["now"] / taken["before"])
        rows.append(f"| {name} | {statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} |")
        print(rows[-1], flush=True)
    return rows


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return f"{model}, {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--before", type=Path)
    arguments = parser.parse_args()
    text = [
        "# What ranks cost",
        "",
        f"{processor()}; `dev/bench/rank_cost.py --rounds {arguments.rounds}`",
        "",
    ]
    text += ["| model, batch | 1 rank, 2 threads: tokens/s | 2 ranks, 1 thread | ratio | step of 2 ranks "]
    text[-1] += "| of two runs with half the batch, at once | exchange and the rest |"
    text += ["|---|---|---|---|---|---|---|", *table_of(arguments.rounds), ""]
    if arguments.before:
        text += ["One rank, processor time now / before there were ranks (median, range):", ""]
        text += [
            "| model | ratio | range |",
            "|---|---|---|",
            *paid_by_one(arguments.before, arguments.rounds),
            "",
        ]
    if arguments.record:
        arguments.record.write_text("\n".join(text))


if __name__ == "__main__":
    main()
