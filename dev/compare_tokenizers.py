#!/usr/bin/env python3
"""Compares the tokens of random texts with those of tiktoken and of Hugging Face's tokenizers:

    .venv/bin/python dev/compare_tokenizers.py --gpt2 FOLDER [--texts 1000000] [--seed 1] [--json FILE ...]

FOLDER holds GPT-2's vocab.bpe and encoder.json. Besides them, every style of test/tokenizer_files.py is
compared, on a tenth of the texts, and each --json FILE, a tokenizer.json. Also compares every character of
Unicode. Needs build/test/encode_texts (cmake --build build --target encode_texts). Exits with 1 at the first
difference.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("test", "data", "scripts")]

from prepare_tokenizers import load_folder  # noqa: E402
from random_texts import Encoder, a_text, all_characters, first_difference  # noqa: E402
from tokenizer_files import STYLES, reference, trained, training_text  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

BLOCK = 20_000  # texts compared at once


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpt2", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--json", nargs="*", default=[], type=Path, metavar="FILE")
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    encoding, _ = load_folder(arguments.gpt2)

    print("| tokenizer | texts | characters | tokens | seconds |\n|---|---|---|---|---|")
    gpt2 = encoding.encode_ordinary_batch
    compare("GPT-2, tiktoken", arguments.gpt2, gpt2, arguments.texts, arguments.seed, normal=str)
    with tempfile.TemporaryDirectory() as folder:
        for style in STYLES:
            path = Path(folder) / f"{style}.json"
            tokenizer = trained(style, training_text())
            tokenizer.save(str(path))
            compare(f"{style}, tokenizers", path, reference(tokenizer), arguments.texts // 10, arguments.seed)
    for path in arguments.json:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode_special_tokens = True
        compare(path.name, path, reference(tokenizer), arguments.texts // 10, arguments.seed)


def compare(name, path, encode, count, seed, normal=None):
    """`normal`, if given: what a text decodes to."""
    start = time.monotonic()
    random, encoder = Random(seed), Encoder(path)
    characters = tokens = 0

    def counted(texts):
        nonlocal characters, tokens
        answer = encode(texts)
        characters += sum(map(len, texts))
        tokens += sum(map(len, answer))
        return answer

    check(name, first_difference(all_characters(), encoder, counted, normal))
    for done in range(0, count, BLOCK):
        texts = [a_text(random) for _ in range(min(BLOCK, count - done))]
        check(name, first_difference(texts, encoder, counted, normal))
    print(f"| {name} | {count} | {characters} | {tokens} | {time.monotonic() - start:.0f} |", flush=True)


def check(name, difference):
    if difference:
        sys.exit(f"{name}: {difference}")


if __name__ == "__main__":
    main()
