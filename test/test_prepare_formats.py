"""data/prepare.py: JSON lines, Parquet and FASTA, whole and damaged."""

import gzip
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import REPOSITORY
from console import DataError
from prepared import nothing_left, prepare, stream

import prepare_fasta
import prepare_jsonl
import prepare_parquet
from prepare_documents import END
from prepare_jsonl import JsonLines
from prepare_parquet import ParquetFile
from prepare_sets import DocumentRange
from prepare_sources import Findings
from prepare_storage import LocalFile, LocalReader

DNA = REPOSITORY.parent / "shared" / "data" / "dna" / "lambda_virus.fa.gz"  # present on some machines only
BYTES = ["--tokenizer", "bytes", "--val-fraction", "0"]


def documents(file, skip=0, findings=None):
    """The texts of a file; all of its stored bytes are reported as read."""
    read = []
    pieces = list(file.pieces(skip, read.append, Findings() if findings is None else findings))
    assert sum(read) == file.size and min(read, default=0) >= 0
    assert not pieces or pieces[-1] is END
    return "\0".join("\1" if piece is END else piece for piece in pieces).replace("\0", "").split("\1")[:-1]


def failure(file):
    with pytest.raises(DataError) as error:
        documents(file)
    return str(error.value)


def text_of(folder):
    return bytes(stream(folder)[0].astype(np.uint8)).decode()


# JSON lines


def json_lines(path, data, column="text"):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return JsonLines(LocalFile(path), column)


LINES = [
    '{"text": "first", "url": "u"}',
    '{"url": "u", "text": "zweites \\u00fc\\ud83d\\ude00"}',
    '{"text": ""}',
]


@pytest.mark.parametrize(
    "stored",
    [
        lambda data: data,
        gzip.compress,
        lambda data: gzip.compress(data[:40]) + gzip.compress(data[40:]) + gzip.compress(b""),
        lambda data: zstd(data),
        lambda data: zstd(data[:40]) + zstd(data[40:]),
        lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
        lambda data: b"\n \n" + data.rstrip(b"\n"),
    ],
    ids=["plain", "gzip", "gzip members", "zstd", "zstd frames", "mark and CRLF", "blank lines"],
)
def test_json_lines_are_read_however_they_are_stored(tmp_path, stored):
    file = json_lines(tmp_path / "a.jsonl", stored(("\n".join(LINES) + "\n").encode()))
    assert documents(file) == ["first", "zweites ü😀", ""]
    assert [documents(file, skip) for skip in (1, 2, 3)] == [["zweites ü😀", ""], [""], []]


def test_a_null_text_is_an_empty_document_and_is_noted(tmp_path):
    findings = Findings()
    file = json_lines(tmp_path / "a.jsonl", '{"text": null}\n\n{"text": "a"}\n{"text": null}\n')
    assert documents(file, 1, findings) == ["a", ""]
    assert findings.others == {"skipped: documents whose text is null": [1, f"{file.name}, line 4"]}


def test_what_is_not_utf8_is_replaced_and_noted(tmp_path):
    findings = Findings()
    data = b'{"text": "a"}\n{"text": "\xff\xef\xbf\xbd"}\n{"text": "\xff"}\n'
    file = json_lines(tmp_path / "a.jsonl", data)
    assert documents(file, 0, findings) == ["a", "\ufffd\ufffd", "\ufffd"]
    assert (findings.replaced, findings.first_invalid) == (2, f"{file.name}, line 2")


def test_halves_of_surrogate_pairs_are_replaced_and_noted(tmp_path):
    json_lines(tmp_path / "a.jsonl", '{"text": "a\\uD800b\\udc00"}\n{"text": "\\ud83d\\ude00"}\n')
    output = prepare("jsonl", "--out", tmp_path / "o", *BYTES, "--input", tmp_path / "a.jsonl")
    assert text_of(tmp_path / "o") == "a\ufffdb\ufffd😀"
    assert "replaced by U+FFFD: texts with half of a surrogate pair: 1" in output


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "cut', "is not JSON (Unterminated string starting at, at character 10)"),
        ("plain text", "is not JSON (Expecting value, at character 1)"),
        ('{"text": "a"} {"text": "b"}', "is not JSON (Extra data, at character 15)"),
        ('["a"]', "is a list, not an object such as"),
        ("3", "is a number, not an object"),
        ("null", "is null, not an object"),
        ('{"content": "a", "id": 1}', "no key 'text'; it has 'content', 'id'; see --column"),
        ("{}", "no key 'text'; it has none"),
        ('{"text": 1}', "'text' is a number, not a string"),
        ('{"text": true}', "'text' is a boolean, not a string"),
        ('{"text": {"a": 1}}', "'text' is an object, not a string"),
        ('{"text": ["a"]}', "'text' is a list, not a string"),
        ("[" * 100_000, "is not JSON (maximum recursion depth"),
        ('{"text": ' + "1" * 5000 + "}", "is not JSON (Exceeds the limit"),
        ("\0\1\2", "is not JSON"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line, problem):
    file = json_lines(tmp_path / "a.jsonl", '{"text": "good"}\n\n' + line + "\n")
    assert f"{file.name}, line 3: " in failure(file) and problem in failure(file)


def zstd(data):
    return pa.compress(data, "zstd", asbytes=True)


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_compressed_lines_that_are_cut_short_or_damaged_are_named(tmp_path, compress):
    lines = [json.dumps({"text": f"document {i} {hash((i, 7))}"}) for i in range(20_000)]
    data = compress("\n".join(lines).encode())
    cut = failure(json_lines(tmp_path / "a.gz", data[: len(data) // 2]))
    row = int(cut.split("after line ")[1].split(":")[0])
    assert 1000 < row < 19_000 and "is cut short: copy or download the file again" in cut
    assert "after line 0: the compressed data is cut short" in failure(json_lines(tmp_path / "a.gz", b""))
    damaged = data[:4] + b"\xff" * 10 + data[14:]
    assert "after line 0: the compressed data is damaged (" in failure(json_lines(tmp_path / "a.gz", damaged))


def test_gzip_checks_what_it_holds(tmp_path):
    data = gzip.compress(b'{"text": "a"}\n' * 1000)
    wrong_sum = data[:-8] + b"\0\0\0\0" + data[-4:]
    said = failure(json_lines(tmp_path / "a.gz", wrong_sum))
    assert "after line 1000: the compressed data is damaged (CRC check failed" in said
    said = failure(json_lines(tmp_path / "a.gz", data + b"more"))
    assert "after line 1000: the compressed data is damaged (Not a gzipped file" in said


def test_other_files_than_json_lines_are_refused(tmp_path, monkeypatch):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.jsonl")
    file = JsonLines(LocalFile(tmp_path / "a.jsonl"), "text")
    assert "is a Parquet file; use prepare.py parquet" in failure(file)
    assert "compressed by xz" in failure(json_lines(tmp_path / "b.jsonl", b"\xfd7zXZ\0"))
    assert "is UTF-16" in failure(json_lines(tmp_path / "c.jsonl", LINES[0].encode("utf-16")))
    monkeypatch.setattr(prepare_jsonl, "LONGEST_LINE", 1 << 20)
    assert "d.jsonl, line 1: longer than 1 MiB" in failure(json_lines(tmp_path / "d.jsonl", b" " * (1 << 21)))


def test_json_lines_become_shards(tmp_path):
    for name, texts in {"b.jsonl": ["three"], "a.jsonl": ["one", "two"]}.items():
        (tmp_path / name).write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    words = ["jsonl", "--out", tmp_path / "o", "--tokenizer", "bytes", "--column", "body", "--overwrite"]
    prepare(*words, "--val-fraction", "0", "--input", f"{tmp_path}/*.jsonl")
    assert text_of(tmp_path / "o") == "onetwothree"
    prepare(*words, "--input", tmp_path / "b.jsonl", "--val-input", tmp_path / "a.jsonl")
    assert text_of(tmp_path / "o") == "threeonetwo" and stream(tmp_path / "o")[1]["val_tokens"] == 6
    prepare(*words, "--input", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--val-documents", 1)
    assert text_of(tmp_path / "o") == "twothreeone" and stream(tmp_path / "o")[1]["val_tokens"] == 3
    meta = stream(tmp_path / "o")[1]
    assert meta["source"] == {"kind": "jsonl", "files": 2, "val_documents": 1}
    assert sum(source["bytes"] for source in meta["sources"]) == 32 + 18


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--input", "{}/gone*.jsonl"], 3, "--input {}/gone*.jsonl: no such file"),
        (["--input", "{}"], 3, "is a folder; give a pattern, as '{}/*'"),
        (["--input", "{}/a.jsonl", "{}/*"], 2, "--input: names {}/a.jsonl twice"),
        (["--input", "{}/a.jsonl", "{}/./a*"], 2, "--input: names {0}/a.jsonl twice, as {0}/./a.jsonl"),
        (["--input", "{}/a.jsonl", "--val-input", "{}/a*"], 2, "validation: {}/a.jsonl is among both"),
        (["--input", "{}/a.jsonl", "--val-documents", "3"], 3, "a.jsonl: has no more than 3 documents"),
        (["--input", "{}/a.jsonl", "--val-documents", "1", "--val-fraction", "0.1"], 2, "one of them"),
        (["--input", "{}/a.jsonl", "--revision", "main"], 2, "--input and --revision"),
        (["--val-input", "{}/a.jsonl", "--dataset", "a/b", "--files", "*"], 2, "--val-input: is for"),
        ([], 2, "give --input GLOB for files on this disk, or --dataset"),
        (["--dataset", "allenai/c4"], 2, "--dataset: give --files PATTERN too"),
        (["--input", "{}/a.jsonl", "--column", "body"], 3, "a.jsonl, line 1: no key 'body'"),
    ],
)
def test_wrong_use_is_named(tmp_path, words, code, problem):
    (tmp_path / "a.jsonl").write_text("\n".join(LINES))
    words = [word.format(tmp_path) for word in words]
    said = prepare("jsonl", "--out", tmp_path / "o", "--tokenizer", "bytes", *words, code=code)
    assert problem.format(tmp_path) in said and nothing_left(tmp_path / "o")


def test_pipes_are_refused_where_they_would_be_read_twice(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    words = ["--out", tmp_path / "o", "--tokenizer", "bytes", "--input", tmp_path / "pipe"]
    said = prepare("jsonl", *words, "--val-documents", 1, code=2)
    assert f"--val-documents: {tmp_path}/pipe is a pipe, which can be read once" in said
    assert "is a pipe, and Parquet is read from its end on" in prepare("parquet", *words, code=3)


def test_each_source_explains_itself_with_a_command():
    for source in ("c4", "fineweb", "jsonl", "parquet", "fasta"):
        text = prepare(source, "--help")
        assert f"  prepare.py {source} --out data/" in text.split("from nothing to shards")[1]
        assert max(map(len, text.splitlines())) <= 110


# Parquet


def parquet(path, columns, column="text", **how):
    pq.write_table(pa.table(columns), path, **how)
    return ParquetFile(LocalFile(path), column)


FINEWEB = dict(row_group_size=1000, compression="snappy")
NANOCHAT = dict(row_group_size=1024, compression="zstd", use_dictionary=False, write_statistics=False)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (pa.string(), FINEWEB),
        (pa.string(), NANOCHAT),
        (pa.large_string(), NANOCHAT),
        (pa.string_view(), FINEWEB),
        (pa.dictionary(pa.int32(), pa.string()), FINEWEB),
        (pa.dictionary(pa.int32(), pa.large_string()), dict(row_group_size=700, compression="gzip")),
        (pa.string(), dict(row_group_size=5000, compression="none", data_page_version="2.0")),
    ],
    ids=str,
)
def test_parquet_files_are_read_from_any_row(tmp_path, kind, how):
    texts = [f"document {i % 1500} ü" * (i % 3) for i in range(2500)]
    texts[7] = texts[1234] = None
    id_column = [f"<urn:uuid:{i}>" for i in range(2500)]
    file = parquet(tmp_path / "a.parquet", {"id": id_column, "text": pa.array(texts).cast(kind)}, **how)
    want = [text or "" for text in texts]
    for skip in (0, 1, 999, 1000, 1001, 1024, 1300, 2499, 2500):
        findings = Findings()
        assert documents(file, skip, findings) == want[skip:]
        nulls = [row for row in (7, 1234) if row >= skip]
        noted = [[len(nulls), f"{file.name}, row {nulls[0] + 1}"]] if nulls else []
        assert list(findings.others.values()) == noted


def test_row_groups_passed_over_are_not_read(tmp_path):
    file = parquet(tmp_path / "a.parquet", {"text": [f"{i} " * 200 for i in range(3000)]}, **FINEWEB)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    group = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    data[start : start + group.total_compressed_size] = b"\xaa" * group.total_compressed_size
    (tmp_path / "a.parquet").write_bytes(data)
    assert documents(file, 2000) == [f"{i} " * 200 for i in range(2000, 3000)]
    assert f"{file.name}, after row 1000: damaged (" in failure(file)


def test_memory_is_bounded_by_a_few_rows_of_a_large_group(tmp_path, monkeypatch):
    columns = {"text": ["x" * 10_000] * 5000}
    file = parquet(tmp_path / "a.parquet", columns, compression="none", use_dictionary=False)
    reads, readinto = [], LocalReader.readinto
    monkeypatch.setattr(LocalReader, "readinto", lambda self, to: reads.append(len(to)) or readinto(self, to))
    before, most = pa.total_allocated_bytes(), 0
    for _ in file.pieces(0, lambda size: None, Findings()):
        most = max(most, pa.total_allocated_bytes() - before)
    assert max(reads) < 10e6 and most < 20e6  # of 50
    monkeypatch.setattr(prepare_parquet, "BATCH_BYTES", 4 << 20)
    pages = dict(compression="none", use_dictionary=False, write_batch_size=1)
    file, most = parquet(tmp_path / "a.parquet", {"text": ["x" * 2_000_000] * 30}, **pages), 0
    for _ in file.pieces(0, lambda size: None, Findings()):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 20e6  # of 60: 2 rows, and what pyarrow takes to join them


def test_parquet_text_that_is_not_utf8_is_replaced_and_noted(tmp_path):
    raw = pa.array([b"good", b"\xff\xef\xbf\xbd", None], pa.binary())
    for kind in (pa.string(), pa.dictionary(pa.int32(), pa.string())):
        texts = pa.Array.from_buffers(pa.string(), 3, raw.buffers(), raw.null_count)
        texts = texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts
        file, findings = parquet(tmp_path / "a.parquet", {"text": texts}), Findings()
        assert documents(file, 0, findings) == ["good", "\ufffd\ufffd", ""]
        assert (findings.replaced, findings.first_invalid) == (1, f"{file.name}, row 2")


def test_a_range_of_documents_is_the_same_from_any_start(tmp_path):
    numbers = [str(i) for i in range(9)]
    lines = json_lines(tmp_path / "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in numbers))
    for file in (lines, parquet(tmp_path / "a.parquet", {"text": numbers}, row_group_size=2)):
        for skip in range(5):
            assert documents(DocumentRange(file, 0, 5), skip) == numbers[:5][skip:]
            assert documents(DocumentRange(file, 4), skip) == numbers[4:][skip:]
        read = []
        assert not list(DocumentRange(file, 0, 5).pieces(5, read.append, Findings()))
        assert "has no more than 9 documents" in failure(DocumentRange(file, 9))
        assert "has no more than 10 documents" in failure(DocumentRange(file, 0, 10))


TWENTY = ", ".join(f"'c{i}'" for i in range(20))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"content": ["a"], "id": [1]}, "no column 'text'; it has 'content', 'id'; see --column"),
        ({"text": [1]}, "column 'text' is of type int64, not string"),
        ({"text": [["a"]]}, "column 'text' is of type list<"),
        ({"text": [b"a"]}, "column 'text' is of type binary, not string"),
        ({f"c{i}": ["a"] for i in range(500)}, f"no column 'text'; it has {TWENTY}, ... (480 more); see"),
    ],
)
def test_parquet_files_without_the_column_are_named(tmp_path, columns, problem):
    file = parquet(tmp_path / "a.parquet", columns)
    assert failure(file).startswith(f"{file.name}: {problem}")


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    said = failure(ParquetFile(LocalFile(tmp_path / "a.parquet"), "text"))
    assert "a.parquet: several columns are called 'text'" in said


def test_damaged_parquet_files_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    file = parquet(path, {"text": ["a" * 50] * 3000}, **FINEWEB)
    data = path.read_bytes()
    for damaged in (b"", b"PAR1", b"no parquet file, but text", data[:-20], data[: len(data) // 2], data[4:]):
        path.write_bytes(damaged)
        file = ParquetFile(LocalFile(path), "text")
        assert failure(file).startswith(f"{path}: not a whole Parquet file (") or damaged == data[4:]
        assert failure(file).startswith(str(path))


def test_parquet_files_become_shards(tmp_path, tiny, byte_ids):
    parquet(tmp_path / "a.parquet", {"text": ["a", None, "b"]})
    words = ["--tokenizer", "gpt2", "--tokenizer-dir", tiny, "--val-fraction", "0"]
    output = prepare("parquet", "--out", tmp_path / "o", *words, "--input", tmp_path / "a.parquet")
    end = 262
    assert stream(tmp_path / "o")[0].tolist() == [end, byte_ids[ord("a")], end, byte_ids[ord("b")]]
    assert f"skipped: documents whose text is null: 1, the first in {tmp_path}/a.parquet, row 2" in output


# FASTA


def fasta(folder, data, *words, code=0):
    """The sequences of a FASTA file of these bytes, or what was said about it."""
    (folder / "a.fa").write_bytes(data)
    words = [*words, "--input", folder / "a.fa", "--overwrite"]
    said = prepare("fasta", "--out", folder / "o", *words, code=code)
    return said if code else stream(folder / "o")


def test_bases_become_tokens(tmp_path):
    text = b">one\nACGNT\r\n\nacgnt\n>two\nRYKM\nUXN-"[:-1] + b"A\n"
    tokens, meta = fasta(tmp_path, text, "--record-tokens", 2, "--max-unknown", 1, "--val-fraction", 0)
    assert tokens.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4] + [3] * 7 + [0]
    assert (meta["tokenizer"], meta["vocab"], meta["end_of_text"]) == ("dna", 5, None)
    assert (meta["token_bytes"], meta["record_tokens"], meta["documents"]) == (2, 2, 9)
    assert meta["notes"] == [
        "2 contigs, 18 bases, cut into sequences of 2",
        "replaced by N: 6 letters other than A, C, G, T and N",
    ]


def test_contigs_are_cut_from_their_start_and_the_rest_is_dropped(tmp_path):
    text = b">a\nAAAAC\nCCCGG\n>short\nTTT\n>empty\n>b\nNNNTGNNT\n>c\nTTTT\n"
    tokens, meta = fasta(tmp_path, text, "--record-tokens", 4, "--val-fraction", "0.3")
    assert tokens.reshape(-1, 4).tolist() == [[0] * 4, [1] * 4, [2, 3, 3, 4], [4] * 4]
    assert (meta["train_tokens"], meta["val_tokens"]) == (8, 8)  # floor(0.7 * 4) sequences
    assert meta["notes"] == [
        "5 contigs, 25 bases, cut into sequences of 4",
        "dropped: 5 bases left over at the ends of contigs, 1 contig as a whole",
        "dropped: 1 sequence with more than 0.5 of it N",
    ]


def test_splits_and_shards_hold_whole_sequences(tmp_path):
    text = b">a\n" + b"ACGT" * 25 + b"\n"
    _, meta = fasta(tmp_path, text, "--record-tokens", 7, "--shard-tokens", 30, "--val-fraction", "0.2")
    assert [(shard["split"], shard["tokens"]) for shard in meta["shards"]] == [
        ("train", 28),
        ("train", 28),
        ("train", 21),
        ("val", 21),
    ]


def test_blocks_of_any_size_give_the_same_sequences(tmp_path, monkeypatch, rng):
    letters = np.frombuffer(b"acgtACGTN", np.uint8)
    contigs = [bytes(rng.choice(letters, rng.integers(0, 90))) for _ in range(30)]
    text = b""
    for i, contig in enumerate(contigs):
        width = rng.integers(1, 40)
        lines = [contig[at : at + width] for at in range(0, len(contig), width)]
        text += b"\n".join([b">contig %d > x" % i, *lines]) + rng.choice([b"\n", b"\r\n", b"\n\n"])
    want = []
    for contig in contigs:
        codes = [b"ACGNT".index(base) for base in contig.upper()]
        rows = [codes[at : at + 6] for at in range(0, len(codes) - 5, 6)]
        want += [row for row in rows if row.count(3) <= 3]
    for size in (1, 2, 7, 64, 1 << 20):
        monkeypatch.setattr(prepare_fasta, "BLOCK_BYTES", size)
        tokens, meta = fasta(tmp_path, text, "--record-tokens", 6, "--val-fraction", 0)
        assert tokens.reshape(-1, 6).tolist() == want
        assert meta["notes"][0].startswith(f"30 contigs, {sum(map(len, contigs)):,} bases")
    (tmp_path / "b.fa.gz").write_bytes(gzip.compress(text[:99]) + gzip.compress(text[99:]))
    words = ["--record-tokens", 6, "--val-fraction", 0, "--input", tmp_path / "b.fa.gz"]
    prepare("fasta", "--out", tmp_path / "gz", *words)
    assert stream(tmp_path / "gz")[0].reshape(-1, 6).tolist() == want


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"ACGT\n>late\nACGT\n", "a.fa, line 1: no header line ('>' and a name) before the sequence"),
        (b"\n \n  ACGT\n", "a.fa, line 3: no header line"),
        (b"@read\nACGT\n+\nIIII\n", "a.fa: is FASTQ, not FASTA"),
        (b">a\nACGT\nAC-GT\n", "a.fa, line 3: '-' is no letter"),
        (b">a\nACGT\nACGT>b\nACGT\n", "a.fa, line 3: '>' is no letter"),
        (b">a\nACGT\n>b\n\n\nAC\xc3\xa9\n", "a.fa, line 6: '\\xc3' is no letter"),
        (b">p\nMKVL\nACGT\n", "a.fa, line 2: 'L' stands for an amino acid, not a base: is this a protein?"),
        (b">p\nACGT\nACe\n", "a.fa, line 3: 'e' stands for an amino acid"),
        (b">a\nACG\n>b\nT\n", "no sequence of 4 bases in the files (2 contigs, 4 bases"),
        (b">only a header", "no sequence of 4 bases"),
        (b"", "no sequence of 4 bases"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "a.fa, after line 0: the compressed data is cut short"),
    ],
)
def test_damaged_fasta_is_named(tmp_path, monkeypatch, text, problem):
    for size in (1 << 20, 1):
        monkeypatch.setattr(prepare_fasta, "BLOCK_BYTES", size)
        assert problem in fasta(tmp_path, text, "--record-tokens", 4, code=3)
        assert nothing_left(tmp_path / "o")


def test_the_preset_for_dna_is_named(tmp_path):
    (tmp_path / "a.fa").write_bytes(b">a\n" + b"ACGT" * 3000)
    words = ["--record-tokens", 1500, "--val-fraction", "0.25", "--input", tmp_path / "a.fa"]
    command = prepare("fasta", "--out", tmp_path / "o", *words).splitlines()[-1]
    assert "train_gpt_goat --config genome_25m --out runs/o " in command
    assert command.endswith(" --set model.vocab=5 --set data.block=crop --set data.record_tokens=1500")


def test_the_work_of_another_command_is_thrown_away_where_that_is_asked_for(tmp_path):
    stream_state = {"tokens": 0, "sha256": []}
    progress = {"claim": {}, "command": "prepare.py c4", "stage": "encoding", "state": {}}
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "progress.partial").write_text(
        json.dumps(progress | {"train": stream_state, "val": stream_state})
    )
    words = ["--record-tokens", 2]
    assert "another command: prepare.py c4." in fasta(tmp_path, b">a\nACGT\n", *words, code=2)
    assert fasta(tmp_path, b">a\nACGT\n", *words, "--restart")[0].tolist() == [0, 1, 2, 4]


def test_a_shard_holds_a_sequence_at_least(tmp_path):
    said = fasta(tmp_path, b">a\nACGT\n", "--shard-tokens", 5999, code=2)
    assert "--shard-tokens 5999: holds no sequence of 6000 bases" in said


@pytest.mark.skipif(not DNA.exists(), reason="needs /work/shared")
def test_a_genome_becomes_sequences_of_6000(tmp_path):
    prepare("fasta", "--out", tmp_path, "--input", DNA)
    tokens, meta = stream(tmp_path)
    bases = b"".join(gzip.decompress(DNA.read_bytes()).splitlines()[1:])
    assert bytes(b"ACGNT"[token] for token in tokens) == bases[:48_000]
    assert (meta["train_tokens"], meta["val_tokens"], meta["record_tokens"]) == (42_000, 6_000, 6_000)
