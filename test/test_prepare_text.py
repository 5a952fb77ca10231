"""data/prepare.py: odd text, what becomes of it and what the user is told; and the command that goes on."""

import codecs
import gzip
import random
import subprocess
import sys
from pathlib import Path

import pytest

from console import DataError
from prepared import make_set, END, SCRIPT, nothing_left, prepare, stream

import prepare_sources


def decoded(name, data):
    """A file's text and the findings."""
    name = str(name)
    Path(name).write_bytes(data)
    findings = prepare_sources.Findings()
    return "".join(prepare_sources.decoded(name, lambda stored: None, findings)), findings


def notes(folder, *files, tokenizer=("bytes",)):
    """The notes of a set made of these files; they are printed as well."""
    printed = prepare("text", "--out", folder / "o", "--overwrite", "--tokenizer", *tokenizer, *files)
    found = stream(folder / "o")[1]["notes"]
    assert [line[2:] for line in printed.splitlines()[1 : len(found) + 1]] == found
    return found


def write(folder, **files):
    """Files named a.txt, ... of these bytes."""
    for name, data in files.items():
        (folder / f"{name}.txt").write_bytes(data)
    return [folder / f"{name}.txt" for name in files]


def test_invalid_utf8_is_replaced_counted_and_located(tmp_path):
    name = str(tmp_path / "a.txt")
    ok = b"x" * (prepare_sources.READ_BYTES - 1)
    for bad, sequences in [
        (b"\xff\xfe", 2),
        (b"\xe2\x82", 1),
        (b"\xc0\x80", 2),
        (b"\xed\xa0\x80", 3),
        (b"\xf0\x9f\x98", 1),
        ("é".encode(), 0),
    ]:
        for data in (
            b"ab" + bad + b"cd",
            ok + bad + b"cd",
            b"ab" + bad,
            ok + bad,
        ):  # within a block, across two, at the end
            text, findings = decoded(name, data)
            assert text == data.decode(errors="replace")
            assert findings.replaced == sequences
            assert findings.first_invalid == (f"{name} at byte {data.index(bad)}" if sequences else "")


def test_invalid_utf8_is_reported(tmp_path, tiny, byte_ids):
    (tmp_path / "a.txt").write_bytes(b"good")
    (tmp_path / "b.txt").write_bytes(b"b\xffb\xff")
    output = make_set(tmp_path / "o", tmp_path / "a.txt", tmp_path / "b.txt", vocabulary=tiny)
    assert f"2 invalid UTF-8 sequences, the first in {tmp_path / 'b.txt'} at byte 1" in output
    b, replacement = byte_ids[ord("b")], [byte_ids[x] for x in "\ufffd".encode()]
    assert stream(tmp_path / "o")[0].tolist()[5:] == [END, b, *replacement, b, *replacement]


def test_bytes_keep_what_is_no_utf8_and_say_where_it_begins(tmp_path):
    ok = b"x" * (prepare_sources.READ_BYTES - 1)
    for data, position in [
        (b"a\xff\x00\r\nb\xff", 1),
        (ok + b"\xc3x", len(ok)),  # across two blocks
        (ok + b"\xc3", len(ok)),  # not finished at the end
        (b"\xef\xbb\xbf\xe9", 3),
    ]:
        files = write(tmp_path, a=b"fine \xc3\xa9", b=data, c=b"\xe9")
        (note, *_) = notes(tmp_path, *files)
        assert note.startswith(
            f"kept: what is not UTF-8 in 2 files, the first in {files[1]} at byte {position}; "
        )
        assert "iconv -f LATIN1 -t UTF-8" in note
        text = data.removeprefix(codecs.BOM_UTF8)
        assert bytes(stream(tmp_path / "o")[0].tolist()) == b"fine \xc3\xa9" + text + b"\xe9"
    assert notes(tmp_path, *write(tmp_path, a=ok + "é".encode())) == []


def test_nul_crlf_and_empty_files_are_kept_or_skipped_and_counted(tmp_path, tiny, byte_ids):
    text = b"a\0\0\r\nb\r\nc\r"
    edge = b"y" * (prepare_sources.READ_BYTES - 1) + b"\r\n"  # CRLF across two blocks
    for name, data in [("a", text), ("empty1", b""), ("edge", edge), ("empty2", b"")]:
        (tmp_path / name).write_bytes(data)
    files = [tmp_path / name for name in ("a", "empty1", "edge", "empty2")]
    for options in (["bytes"], ["gpt2", "--tokenizer-dir", tiny]):
        output = prepare("text", "--out", tmp_path / "o", "--overwrite", *files, "--tokenizer", *options)
        tokens, meta = stream(tmp_path / "o")
        assert (
            "kept: 2 NUL bytes" in output
            and "kept: 3 CRLF line ends" in output
            and "skipped: 2 empty documents" in output
        )
        assert meta["documents"] == 2
    assert tokens[: len(text) + 2].tolist() == [END, *(byte_ids[b] for b in text), END]


def test_one_line_of_50_mb_is_fast_and_needs_little_memory(tmp_path, tiny):
    with open(tmp_path / "line.txt", "wb") as file:
        for _ in range(25):
            file.write(b"the th " * 142_857 + b"x" * 1_000_000)
    script = f"""if True:
        import resource, sys
        sys.argv = ["prepare.py", "text", "--out", {str(tmp_path / "o")!r}, "--tokenizer", "gpt2"]
        sys.argv += ["--tokenizer-dir", {str(tiny)!r}, {str(tmp_path / "line.txt")!r}]
        sys.path.insert(0, {str(SCRIPT.parent)!r})
        import prepare
        code = prepare.main()
        print("peak MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        sys.exit(code)"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    tokens, _ = stream(tmp_path / "o")
    assert "cut: " in result.stdout
    # "the" " th" "the": 257, then " " "th" " the"
    assert len(tokens) == 1 + 25 * (1 + 3 * 142_857 - 1 + 1_000_000 + 1)
    assert int(result.stdout.split("peak MB")[1]) < 600


@pytest.mark.parametrize("damage", ["short", "empty", "no gzip", "flipped"])
def test_damaged_gz_is_refused_and_leaves_nothing(tmp_path, damage):
    data = gzip.compress(random.Random(4).randbytes(3_000_000))
    (tmp_path / "a.txt").write_bytes(b"whole")
    damaged = {
        "short": data[:-9],
        "empty": b"",
        "no gzip": b"plain text",
        "flipped": data[:50_000] + bytes([data[50_000] ^ 255]) + data[50_001:],
    }
    (tmp_path / "b.txt.gz").write_bytes(damaged[damage])
    output = make_set(tmp_path / "o", tmp_path / "a.txt", tmp_path / "b.txt.gz", code=3)
    assert "b.txt.gz" in output and "compressed data" in output
    assert nothing_left(tmp_path / "o")


def test_files_that_cannot_be_read_are_refused_before_anything_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    for name, part in [("missing", "no such file"), ("folder", "is a folder"), ("empty", "no text")]:
        output = make_set(tmp_path / "o", tmp_path / name, code=3)
        assert str(tmp_path / name) in output and part in output
        assert nothing_left(tmp_path / "o")


def test_a_leading_byte_order_mark_is_dropped_and_others_are_kept(tmp_path, tiny, byte_ids):
    mark = codecs.BOM_UTF8
    files = write(tmp_path, a=mark + b"a", b=b"b", c=mark + b"c" + mark, d=mark)
    for tokenizer in (["bytes"], ["gpt2", "--tokenizer-dir", tiny]):
        found = notes(tmp_path, *files, tokenizer=tokenizer)
        assert found[:2] == [
            "dropped: the byte-order mark at the start of 3 files",
            "kept: 1 byte-order mark within the text",
        ]
        tokens, meta = stream(tmp_path / "o")
        want = list(b"abc" + mark)
        if tokenizer != ["bytes"]:
            a, b, c, *rest = (byte_ids[x] for x in want)
            want = [END, a, END, b, END, c, *rest]
        assert tokens.tolist() == want
        assert (meta["documents"], [source["bytes"] for source in meta["sources"]]) == (3, [4, 1, 7, 3])


def test_a_byte_order_mark_at_the_start_of_a_later_block_is_text(tmp_path):
    text, findings = decoded(tmp_path / "a.txt", b"x" * prepare_sources.READ_BYTES + codecs.BOM_UTF8 + b"y")
    assert text.endswith("x\ufeffy") and (findings.marks, findings.dropped_marks) == (1, 0)


def test_positions_count_the_byte_order_mark(tmp_path):
    data = codecs.BOM_UTF8 + b"ab\xff" + b"x" * prepare_sources.READ_BYTES + b"\xff"
    text, findings = decoded(tmp_path / "a.txt", data)
    assert text[:3] == "ab\ufffd" and findings.first_invalid == f"{tmp_path / 'a.txt'} at byte 5"
    data = codecs.BOM_UTF8 + b"x" * prepare_sources.READ_BYTES + b"\xff"
    _, findings = decoded(tmp_path / "a.txt", data)
    assert findings.first_invalid == f"{tmp_path / 'a.txt'} at byte {len(data) - 1}"


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
def test_what_is_no_utf8_text_is_refused_with_what_to_do(tmp_path, tiny, tokenizer):
    text = "Text, café.".encode()
    options = ["--tokenizer", tokenizer, *(["--tokenizer-dir", tiny] if tokenizer == "gpt2" else [])]
    for data, part in [
        (
            codecs.BOM_UTF16_LE + text.decode().encode("utf-16-le"),
            "is UTF-16, not UTF-8; convert it: iconv -f UTF-16",
        ),
        (codecs.BOM_UTF16_BE + text.decode().encode("utf-16-be"), "is UTF-16"),
        (codecs.BOM_UTF16_LE + "👩".encode("utf-16-le")[:3], "is UTF-16"),
        (
            codecs.BOM_UTF32_LE + text.decode().encode("utf-32-le"),
            "is UTF-32, not UTF-8; convert it: iconv -f UTF-32",
        ),
        (codecs.BOM_UTF32_BE + text.decode().encode("utf-32-be"), "is UTF-32"),
        (gzip.compress(text), "is compressed by gzip; name it FILE.gz"),
        (b"\x28\xb5\x2f\xfd" + text, "zstd"),
        (b"\xfd7zXZ\0" + text, "unxz"),
        (b"BZh91AY&SY" + text, "bunzip2"),
        (b"PK\x03\x04" + text, "zip archive"),
        (b"%PDF-1.7" + text, "pdftotext"),
        ((20240520).to_bytes(4, "little") + bytes(1020), "is a token shard already"),
    ]:
        files = write(tmp_path, a=b"fine", b=data)
        error = prepare("text", "--out", tmp_path / "o", *options, *files, code=3)
        assert str(files[1]) in error and part in error
        assert nothing_left(tmp_path / "o")
    (tmp_path / "twice.gz").write_bytes(gzip.compress(gzip.compress(text)))
    assert "is compressed by gzip" in prepare(
        "text", "--out", tmp_path / "o", *options, tmp_path / "twice.gz", code=3
    )


def test_bytes_that_look_like_a_mark_of_utf16_but_are_not_utf16_are_kept(tmp_path):
    data = codecs.BOM_UTF16_LE + b"\x00\xd8" * 5
    notes(tmp_path, *write(tmp_path, a=data))
    assert stream(tmp_path / "o")[0].tolist() == list(data)
    with pytest.raises(DataError):
        prepare_sources.refuse_other_formats("a", codecs.BOM_UTF16_LE + b"\x00\xd8")  # may go on


def test_end_of_text_spelled_out_is_counted_and_the_option_named(tmp_path, tiny):
    edge = b"x" * (prepare_sources.READ_BYTES - 5) + b"<|endoftext|>y"  # across two blocks
    files = write(tmp_path, a=edge, b=b"<|endoftext|><|endoftext|>", c=b"<|endoftext| >", d=b"|endoftext|>")
    gpt2 = ["gpt2", "--tokenizer-dir", tiny]
    assert notes(tmp_path, *files) == [
        "kept as ordinary text: '<|endoftext|>' (3 times, 13 tokens each); to separate documents there: "
        "--tokenizer gpt2 --document-separator '<|endoftext|>'"
    ]
    assert notes(tmp_path, *write(tmp_path, a=b"the<|endoftext|>"), tokenizer=gpt2) == [
        "kept as ordinary text: '<|endoftext|>' (1 time, 13 tokens each); to separate documents there: "
        "--document-separator '<|endoftext|>'"
    ]
    assert notes(tmp_path, *files, tokenizer=[*gpt2, "--document-separator", "<|endoftext|>"])[-1].startswith(
        "skipped"
    )


def test_a_separator_that_never_comes_is_said(tmp_path, tiny):
    gpt2 = ["gpt2", "--tokenizer-dir", tiny, "--document-separator", r"\n\n"]
    files = write(tmp_path, a=b"one\r\n\r\ntwo", b=b"three")
    assert notes(tmp_path, *files, tokenizer=gpt2) == [
        "never found: the document separator '\\n\\n'; each file is one document",
        "kept: 2 CRLF line ends",
    ]
    for text in (b"one\n\ntwo", b"one\n\n"):
        assert notes(tmp_path, *write(tmp_path, a=text), tokenizer=gpt2) == []


def test_line_ends_nul_bytes_and_repeated_files_are_said(tmp_path):
    files = write(tmp_path, a=b"one\rtwo\r\nthree\r", b=b"other", c=b"other", d=b"", e=b"")
    assert notes(tmp_path, *files) == [
        "skipped: 2 empty documents",
        "kept: 1 CRLF line end",
        "kept: 2 carriage returns without a line feed",
        f"kept: the same text twice, {files[1]} and {files[2]}",
    ]
    utf16 = "abcdefgh".encode("utf-16-le")
    assert notes(tmp_path, *write(tmp_path, a=utf16)) == [
        "kept: 8 NUL bytes; if it is UTF-16: iconv -f UTF-16LE -t UTF-8 FILE"
    ]
    assert notes(tmp_path, *write(tmp_path, a=b"\0abcd")) == ["kept: 1 NUL byte"]


def test_names_of_files_do_not_reach_the_terminal_as_they_are(tmp_path):
    files = write(tmp_path, **{"a\x1b[31m\nb": b"x", "c": b"x"})
    printed = make_set(tmp_path / "o", *files)
    assert "\x1b" not in printed and "a\\x1b[31m\\nb.txt and " in printed


def test_ordinary_text_has_no_notes(tmp_path):
    assert notes(tmp_path, *write(tmp_path, a="Some text,\nnaïve 日本 👩.\n".encode())) == []


def test_missing_packages_are_named(tmp_path, run_command):
    for name in ("numpy", "tqdm"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(f"raise ImportError(\"No module named '{name}'\")")
        command = [sys.executable, SCRIPT, "text", "--out", tmp_path / "o", "--tokenizer", "bytes", SCRIPT]
        error = run_command(["env", f"PYTHONPATH={folder}", *command], code=1).stderr
        assert name in error and "requirements.txt" in error and len(error.splitlines()) == 1
        assert nothing_left(tmp_path / "o")
