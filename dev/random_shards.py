#!/usr/bin/env python3
"""Shards of random tokens, to train at speed where there are no data: dev/random_shards.py FOLDER

FOLDER/train_000000.bin and so on, in the format of data/shard.h. The same seed gives the same tokens. Needs
nothing but Python.
"""

import argparse
import array
import random
import struct
import sys
from pathlib import Path

MAGIC, VERSION, HEADER = 20240520, 1, 256  # of data/shard.h


def write_shard(path, tokens):
    """`tokens` are numbers below 65536."""
    data = array.array("H", tokens)
    if sys.byteorder == "big":
        data.byteswap()
    header = [MAGIC, VERSION, len(data), *[0] * (HEADER - 3)]
    path.write_bytes(struct.pack(f"<{HEADER}i", *header) + data.tobytes())


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vocab", type=int, default=50257, help="tokens are below it (%(default)s)")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of each shard (%(default)s)")
    parser.add_argument("--shards", type=int, default=2, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(words)
    if not 1 <= arguments.vocab <= 65536:
        parser.error(f"--vocab {arguments.vocab}: a shard holds 16 bits of a token, so 1 to 65536")
    if arguments.tokens < 1 or arguments.shards < 1:
        parser.error("--tokens and --shards are at least 1")
    generator = random.Random(arguments.seed)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for number in range(arguments.shards):
        tokens = generator.choices(range(arguments.vocab), k=arguments.tokens)
        write_shard(arguments.folder / f"train_{number:06d}.bin", tokens)


if __name__ == "__main__":
    main()
