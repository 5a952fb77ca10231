"""prepare.py c4, fineweb, jsonl and parquet: documents from files on this disk or from the hub."""

import itertools
from dataclasses import dataclass
from fractions import Fraction

from console import DataError, UsageError
from prepare_arguments import described, fraction, whole_number
from prepare_documents import END, DocumentFile
from prepare_hub import Dataset
from prepare_jsonl import JsonLines
from prepare_parquet import ParquetFile
from prepare_pipeline import add_common_arguments, prepare_documents
from prepare_shards import unfinished_claim
from prepare_storage import matching_files

HUB = "the hub (huggingface.co; HF_ENDPOINT names another, HF_TOKEN or 'hf auth login' opens gated datasets)"


@dataclass(frozen=True)
class PublicSet:
    """A dataset on the hub, and how much of it the trainer's preset of that name trains on."""

    dataset: str
    subset: str
    train_files: str
    val_files: str | None
    val_documents: int  # where there are no files of them
    max_tokens: int


C4 = PublicSet(
    dataset="allenai/c4",
    subset="en",
    train_files="{subset}/c4-train.*.json.gz",
    val_files="{subset}/c4-validation.00000-of-*.json.gz",  # 45,576 documents
    val_documents=45_000,
    max_tokens=4_100_000_000,
)
FINEWEB = PublicSet(
    dataset="HuggingFaceFW/fineweb",
    subset="sample/10BT",
    train_files="{subset}/*.parquet",
    val_files=None,
    val_documents=145_000,
    max_tokens=3_250_000_000,
)


def add_parsers(subparsers):
    add_c4(subparsers)
    add_fineweb(subparsers)
    add_jsonl(subparsers)
    add_parquet(subparsers)


def add_c4(subparsers):
    parser = add_parser(
        subparsers,
        "c4",
        "the public dataset C4, from the hub or downloaded",
        f"Tokenizes C4 as it comes from {HUB}, without a copy on this disk, or from files already downloaded "
        f"(--input). By default it is as much as the trainer's preset c4_125m needs ({C4.max_tokens:,} "
        "tokens), and validation is the first of C4's validation files (with --input: the first "
        f"{C4.val_documents:,} documents).",
        """from nothing to shards, and training:
  prepare.py c4 --out data/c4
  train_gpt_goat --config c4_125m""",
        tokenizer="gpt2",
    )
    add_public_arguments(parser, C4, "en, en.noblocklist, en.noclean, realnewslike")
    parser.set_defaults(read=JsonLines)


def add_fineweb(subparsers):
    parser = add_parser(
        subparsers,
        "fineweb",
        "the public dataset FineWeb, from the hub or downloaded",
        f"Tokenizes FineWeb as it comes from {HUB}, without a copy on this disk, or from files already "
        "downloaded (--input). By default it is as much as the trainer's preset fineweb_1b needs "
        f"({FINEWEB.max_tokens:,} tokens), and validation is the first {FINEWEB.val_documents:,} documents, "
        "about 100 million tokens (llm.c takes as many, its first shard).",
        """from nothing to shards, and training:
  prepare.py fineweb --out data/fineweb
  train_gpt_goat --config fineweb_1b""",
        tokenizer="gpt2",
    )
    add_public_arguments(parser, FINEWEB, "sample/10BT, sample/100BT, data/CC-MAIN-2024-10")
    parser.set_defaults(read=ParquetFile)


def add_jsonl(subparsers):
    parser = add_parser(
        subparsers,
        "jsonl",
        "files of JSON lines (.gz and .zst too)",
        'Tokenizes files with a JSON object in each line, such as {"text": "..."}: plain or compressed by '
        f"gzip or zstd, on this disk (--input) or on {HUB}.",
        """from nothing to shards:
  prepare.py jsonl --out data/wiki --tokenizer gpt2 --input 'wiki/*.jsonl.gz' --val-fraction 0.01
  prepare.py jsonl --out data/news --tokenizer gpt2 --dataset allenai/c4 \\
      --files 'realnewslike/c4-train.*.json.gz' --val-files 'realnewslike/c4-validation.*.json.gz'""",
    )
    add_dataset_arguments(parser)
    parser.set_defaults(read=JsonLines)


def add_parquet(subparsers):
    parser = add_parser(
        subparsers,
        "parquet",
        "Parquet files with a column of text",
        f"Tokenizes a column of Parquet files, on this disk (--input) or on {HUB}.",
        """from nothing to shards:
  prepare.py parquet --out data/books --tokenizer gpt2 --input 'books/*.parquet' --val-documents 1000
  prepare.py parquet --out data/climb --tokenizer gpt2 --dataset karpathy/climbmix-400b-shuffle \\
      --files 'shard_0000[0-9].parquet' --val-files shard_06542.parquet""",
    )
    add_dataset_arguments(parser)
    parser.set_defaults(read=ParquetFile)


def add_parser(subparsers, name, summary, description, example, tokenizer=None):
    parser = subparsers.add_parser(
        name,
        help=summary,
        **described(
            description + " Writes FOLDER/train_000000.bin ..., val_000000.bin ..., meta.json and the "
            "tokenizer's files. The same files and options give the same bytes; the same command goes on "
            "with a run that was interrupted.",
            example,
        ),
    )
    add_common_arguments(parser, tokenizer)
    parser.set_defaults(prepare=prepare, public=None, subset=None, dataset=None, files=None, val_files=None)
    add_document_arguments(parser.add_argument)
    return parser


def add_document_arguments(add):
    add("--column", default="text", metavar="NAME", help="key or column of the text (default: text)")
    add(
        "--input",
        nargs="+",
        metavar="GLOB",
        help="files on this disk, in this order; those of a pattern by name",
    )
    add("--val-input", nargs="+", metavar="GLOB", help="files on this disk for validation")
    add(
        "--val-documents",
        type=whole_number,
        metavar="N",
        help="the first N documents of the first file are for validation, not for training",
    )
    add(
        "--val-fraction",
        type=fraction,
        metavar="F",
        help="share of the tokens for validation: the last ones (default where no other option says: 0.1)",
    )
    add(
        "--revision",
        metavar="NAME",
        help="hub: branch, tag or commit of the dataset (default: the commit that 'main' is now, or that an "
        "interrupted run began with; meta.json tells it)",
    )


def add_public_arguments(parser, public, subsets):
    parser.add_argument("--subset", metavar="NAME", help=f"hub: such as {subsets} (default: {public.subset})")
    parser.set_defaults(public=public)


def add_dataset_arguments(parser):
    add = parser.add_argument
    add("--dataset", metavar="OWNER/NAME", help="dataset on the hub, in place of --input")
    add("--files", nargs="+", metavar="PATTERN", help="its files, as 'data/train-*'; * stays within a folder")
    add("--val-files", nargs="+", metavar="PATTERN", help="its files for validation")


# From arguments to files


def prepare(arguments):
    """Makes the shards. Returns the lines that say what was made and how to go on."""
    check_arguments(arguments)
    if arguments.public:
        apply_defaults(arguments, arguments.public)
    source = {"kind": arguments.source}
    if arguments.dataset:
        train, val = hub_files(arguments, source)
    else:
        train = matching_files("--input", arguments.input)
        val = matching_files("--val-input", arguments.val_input or [])
        source["files"] = len(train) + len(val)
    refuse_common_files(train, val)
    if arguments.val_documents and train[0].size is None:
        raise UsageError(f"--val-documents: {train[0].name} is a pipe, which can be read once; save it first")
    read = arguments.read
    train, val = ([read(file, arguments.column) for file in files] for files in (train, val))
    if arguments.val_documents:
        number = arguments.val_documents
        val = [DocumentRange(train[0], 0, number)]
        train[0] = DocumentRange(train[0], number)
        source["val_documents"] = number
    val_fraction = 0 if val else Fraction(1, 10) if arguments.val_fraction is None else arguments.val_fraction
    return prepare_documents(arguments, train, val, val_fraction, extra_meta={"source": source})


def check_arguments(arguments):
    given = [
        option
        for option in ("--val-input", "--val-files", "--val-documents", "--val-fraction")
        if getattr(arguments, option[2:].replace("-", "_")) is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]}: one of them chooses the documents for validation")
    hub_options = ["--dataset", "--files", "--val-files", "--subset", "--revision"]
    for option in hub_options:
        if arguments.input and getattr(arguments, option[2:].replace("-", "_")) is not None:
            raise UsageError(f"--input and {option}: the files are on this disk, or on the hub")
    if arguments.input is None and arguments.val_input is not None:
        raise UsageError("--val-input: is for files on this disk, as --input")
    if arguments.public is None and arguments.input is None:
        if arguments.dataset is None:
            raise UsageError("give --input GLOB for files on this disk, or --dataset OWNER/NAME for the hub")
        if arguments.files is None:
            raise UsageError("--dataset: give --files PATTERN too")


def apply_defaults(arguments, public):
    """What a public dataset makes of the options that were left out."""
    has_val = arguments.val_input or arguments.val_documents or arguments.val_fraction is not None
    if arguments.input is None:
        subset = arguments.subset or public.subset
        arguments.dataset = public.dataset
        arguments.files = [public.train_files.format(subset=subset)]
        if not has_val and public.val_files:
            arguments.val_files = [public.val_files.format(subset=subset)]
            has_val = True
    if not has_val:
        arguments.val_documents = public.val_documents
    arguments.max_tokens = arguments.max_tokens or public.max_tokens


def hub_files(arguments, source):
    """(training files, validation files); notes in `source` what they are."""
    dataset = Dataset(arguments.dataset, arguments.revision, commit=commit_of_unfinished(arguments))
    arguments.commit = dataset.commit  # part of what a run claims that continues this one
    source |= {"dataset": dataset.name, "revision": dataset.commit, "patterns": arguments.files}
    lists = [
        list(itertools.chain.from_iterable(map(dataset.files, patterns or [])))
        for patterns in (arguments.files, arguments.val_files)
    ]
    source["files"] = sum(map(len, lists))
    return lists


def refuse_common_files(train, val):
    """Text that is trained on says nothing in validation. They are LocalFile or HubFile."""
    places = {file.place for file in train}
    if both := [file.name for file in val if file.place in places]:
        raise UsageError(f"the files for training and for validation: {both[0]} is among both")


def commit_of_unfinished(arguments):
    """The commit that an interrupted run reads, so that it goes on with the same files though the branch has
    moved; None if there is no such run. Whether it is one of this command is seen later."""
    claim = None if arguments.restart else unfinished_claim(arguments.out)
    options = claim["options"] if claim else {}
    return options.get("commit") if options.get("dataset") == arguments.dataset else None


class DocumentRange(DocumentFile):
    """The documents of a file from number `first` on (the first is 0), up to but without `end`. The bytes of
    the file are those of the range without end; others are a part of it."""

    def __init__(self, file, first, end=None):
        self.file, self.first, self.end = file, first, end
        self.name = file.name
        self.size = file.size if end is None or file.size is None else 0

    def identity(self):
        return [*self.file.identity(), self.first, self.end]

    def pieces(self, skip, progress, findings):
        wanted = None if self.end is None else self.end - self.first
        if wanted is not None:
            progress = ignore
        documents = skip
        if documents == wanted:
            return
        for piece in self.file.pieces(self.first + skip, progress, findings):
            yield piece
            documents += piece is END
            if piece is END and documents == wanted:
                return
        if documents == 0 or wanted is not None:
            number = self.first or self.end
            raise DataError(f"{self.name}: has no more than {number:,} documents: see --val-documents")


def ignore(_size):
    """Progress in what has been counted."""
