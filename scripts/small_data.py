#!/usr/bin/env python3
"""Small files in the formats of the real data sets, for the run_*.sh scripts with --small.

  small_data.py FOLDER

C4 (gzip JSON lines, training and validation), FineWeb (Parquet, snappy, row groups of 1,000), a genome
(FASTA, gzip) and a tokenizer.json of 400 tokens. The same bytes each time. Exit codes as the other scripts.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path

import console
import numpy as np

VOCABULARY, END_OF_TEXT = 400, "<|endoftext|>"
DOCUMENTS, WORDS = 2500, 300  # a set's documents, and the words that they are made of
BASES, CONTIGS = 30_000, 4


def make_documents(rng, documents=DOCUMENTS):
    """Texts of words that follow each other more or less often, with Zipf's frequencies."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(1, 9))) for _ in range(WORDS)]
    share = 1 / np.arange(1, WORDS + 1)
    texts = []
    for _ in range(documents):
        order = rng.choice(WORDS, rng.integers(5, 60), p=share / share.sum())
        texts.append(" ".join(words[n] for n in order).capitalize() + ".\n")
    return texts


def write_gzip(path, text):
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(text.encode())


def write_c4(folder, texts):
    """en/c4-train.00000-of-01024.json.gz and en/c4-validation.00000-of-00008.json.gz of allenai/c4."""
    lines = [
        json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": f"https://a.example/{n}"})
        for n, text in enumerate(texts)
    ]
    for name, part in (("train.00000-of-01024", lines[300:]), ("validation.00000-of-00008", lines[:300])):
        write_gzip(folder / f"c4-{name}.json.gz", "\n".join(part) + "\n")


def write_fineweb(folder, texts):
    """sample/10BT/000_00000.parquet of HuggingFaceFW/fineweb."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = range(len(texts))
    table = pa.table({
        "text": texts,
        "id": [f"<urn:uuid:{n}>" for n in rows],
        "dump": ["CC-MAIN-2024-10" for _ in rows],
        "url": [f"https://a.example/{n}" for n in rows],
        "date": ["2024-02-20T22:40:08Z" for _ in rows],
        "file_path": ["s3://commoncrawl/crawl-data/a.warc.gz" for _ in rows],
        "language": ["en" for _ in rows],
        "language_score": [0.9 for _ in rows],
        "token_count": [len(text) // 4 for text in texts],
    })  # fmt: skip
    parquet.write_table(table, folder / "000_00000.parquet", compression="snappy", row_group_size=1000)


def write_genome(folder, rng):
    lines = []
    for n in range(CONTIGS):
        bases = "".join(rng.choice(list("ACGTacgt"), BASES + n))
        lines += [f">chr{n + 1}", *(bases[first : first + 60] for first in range(0, len(bases), 60))]
    write_gzip(folder / "genome.fa.gz", "\n".join(lines) + "\n")


def write_tokenizer(folder, texts):
    """A byte-level BPE as Hugging Face's tokenizers write it; the end-of-text token is 0."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, vocab_size=VOCABULARY, special_tokens=[END_OF_TEXT], show_progress=False
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def run(words):
    description, _, rest = __doc__.partition("\n\n")
    parser = console.Parser(
        prog="small_data.py",
        description=description,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files go")
    folder = parser.parse_args(words).folder
    if folder.exists() and not folder.is_dir():
        raise console.UsageError(f"{folder}: is not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    texts = make_documents(rng)
    write_c4(folder, texts)
    write_fineweb(folder, texts)
    write_genome(folder, rng)
    write_tokenizer(folder, texts)
    console.say(str(folder))


def main(words=None):
    return console.run_script("small_data.py", lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
