#!/usr/bin/env python3
"""How fast data/prepare.py is, next to tiktoken's own batch encoding of the same text on as many threads.

  dev/bench/bench_tokenize.py --tokenizer-dir GPT2 --megabytes 40 --rounds 5 text.txt

tiktoken has the text in memory, cut as prepare.py cuts it. prepare.py text does all of its work: it loads the
tokenizer, reads and checks the text, encodes it, writes the shards and their checksums. Then parts of that:
the batches, in memory, encoded by threads, as it does, and by processes; and reading the text. They take
turns; the ratios are of the same round.
"""

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent

sys.path[:0] = [str(REPOSITORY / "data"), str(REPOSITORY / "scripts")]

import prepare  # noqa: E402
import prepare_encoding  # noqa: E402
import prepare_reading  # noqa: E402
import prepare_text  # noqa: E402
import prepare_tokenizers  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", help="UTF-8 text")
    parser.add_argument("--tokenizer-dir", required=True, help="a folder with vocab.bpe and encoder.json")
    parser.add_argument("--megabytes", type=int, default=40, help="of the text (default: 40)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="(default: cores)")
    return parser.parse_args()


class Sides:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.file = folder / "text.txt"
        with open(arguments.text, "rb") as source:
            self.file.write_bytes(source.read(arguments.megabytes * 1_000_000))
        self.tokenizer = prepare_tokenizers.Gpt2Tokenizer(arguments.tokenizer_dir)
        self.batches = [batch.texts for batch in self.reader().batches()]
        self.texts = [text for batch in self.batches for text, _ in batch]
        where = arguments.tokenizer_dir
        self.pool = ProcessPoolExecutor(arguments.workers, initializer=load, initargs=(where,))
        list(self.pool.map(encode_in_process, self.batches[: arguments.workers]))

    def reader(self):
        file = prepare_text.TextFile(str(self.file), None, False)
        start = prepare_reading.Position()
        return prepare_reading.Reader([file], self.tokenizer.new_cutter, start, lambda stored: None)

    def tiktoken(self):
        encoded = self.tokenizer.encoding.encode_ordinary_batch(
            self.texts, num_threads=self.arguments.workers
        )
        return sum(map(len, encoded))

    def command(self):
        words = ["text", "--out", self.folder / "shards", "--overwrite", "--tokenizer", "gpt2", self.file]
        words += ["--tokenizer-dir", self.arguments.tokenizer_dir, "--workers", self.arguments.workers]
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            if prepare.main([str(word) for word in words]) != 0:
                sys.exit("prepare.py failed")

    def reading(self):
        for _ in self.reader().batches():
            pass

    def threads(self):
        batches, workers = map(Texts, self.batches), self.arguments.workers
        for _ in prepare_encoding.encoded(batches, self.tokenizer.encode, workers):
            pass

    def processes(self):
        list(self.pool.map(encode_in_process, self.batches))


@dataclass
class Texts:
    texts: list


def load(folder):
    global tokenizer
    tokenizer = prepare_tokenizers.Gpt2Tokenizer(folder)


def encode_in_process(texts):
    return tokenizer.encode(texts)


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main():
    arguments = parse()
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(arguments, Path(folder))
        size, tokens = sides.file.stat().st_size / 1e6, sides.tiktoken()
        print(f"{size:.1f} MB, {tokens:,} tokens, {arguments.workers} workers, load {os.getloadavg()[0]:.1f}")
        names = ["tiktoken", "command", "threads", "processes", "reading"]
        times = {name: [] for name in names}
        for number in range(arguments.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                times[name].append(seconds(getattr(sides, name)))
            print("  round", *(f"{name} {times[name][-1]:.2f} s" for name in names), flush=True)
        for name in names:
            middle = statistics.median(times[name])
            ratio = statistics.median(a / b for a, b in zip(times[name], times["tiktoken"], strict=True))
            rate = f"{size / middle:6.1f} MB/s {tokens / middle / 1e6:6.2f} M tokens/s"
            print(f"{name:10} {middle:6.2f} s {rate}   {ratio:.2f} x the time of tiktoken")


if __name__ == "__main__":
    main()
