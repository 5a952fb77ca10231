"""`sample` as a user meets it: the same text with and without the cache, streaming, prompts, tokenizers."""

import json
import os
import pty
import shutil
import subprocess
import termios
import unicodedata
from pathlib import Path

import pytest

from test_train import changed, flags, tiny_run
from prepared import write_shard

TEXT = "Der Bär 熊 isst Käse; die Ziege 🐐 isst Gras.\n"
GPT2_FILES = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "gpt2"

SHARDS = {
    "model.layers": 2,
    "model.width": 32,
    "data.seq_len": 32,
    "train.batch": 8,
    "train.steps": 150,
    "train.warmup": 5,
    "train.lr": 1e-2,
    "train.min_lr": 1e-3,
    "eval.tokens": 0,
    "log.interval": 1000,
    "prior.pos_rank": 2,
    "prior.abs_rank": 2,
}


def train_on(binary, folder, tokens, **settings):
    """A small model of a token stream; returns its run folder."""
    write_shard(folder / "train_000000.bin", tokens)
    settings = changed(SHARDS | {"data.train": folder / "train_*.bin", "data.val": ""}, settings)
    run = folder / "run"
    subprocess.run(
        [binary, "--config", "shakespeare", "--out", run, *flags(settings)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return run


@pytest.fixture(scope="module")
def byte_run(binary, tmp_path_factory):
    return train_on(binary, tmp_path_factory.mktemp("bytes"), list(TEXT.encode() * 100))


@pytest.fixture
def sample(binary):
    """sample(run, *options, code=0) -> (stdout, stderr), stdout as bytes."""

    def run_sample(run, *options, code=0):
        words = [str(word) for word in (binary, "sample", "--checkpoint", run, *options)]
        result = subprocess.run(words, capture_output=True, timeout=300)
        assert result.returncode == code, result.stderr.decode()
        return result.stdout, result.stderr.decode()

    return run_sample


HOT = ["--temperature", "4"]  # for a model that knows its text by heart


@pytest.mark.parametrize(
    "rule", [["--temperature", "0"], HOT, [*HOT, "--top-k", "5"], [*HOT, "--top-p", "0.9"]], ids=" ".join
)
def test_the_same_text_with_and_without_the_cache(sample, byte_run, rule):
    seeds = range(1, 7)
    texts = set()
    for seed in seeds:
        # the training length is 32
        options = ["--prompt", "Die Ziege", "--tokens", 100, "--seed", seed, *rule]
        cached, _ = sample(byte_run, *options)
        assert cached == sample(byte_run, *options)[0]
        assert cached == sample(byte_run, *options, "--no-cache")[0]
        texts.add(cached)
    assert len(texts) == (1 if rule == ["--temperature", "0"] else len(seeds))


def test_stdout_is_the_prompt_and_as_many_bytes_as_asked_for(sample, byte_run):
    out, err = sample(byte_run, "--prompt", "Die Ziege", "--tokens", 57, "--temperature", 1.5)
    assert out.startswith(b"Die Ziege") and len(out) == len(b"Die Ziege") + 57
    assert "made: 57 tokens" in err and "prompt: 9 tokens" in err


def test_a_model_that_knows_its_text_by_heart_continues_it(sample, byte_run):
    out, _ = sample(byte_run, "--prompt", TEXT, "--tokens", len(TEXT.encode()) + 12, "--temperature", 0)
    assert out == (TEXT + TEXT).encode() + TEXT.encode()[:12]
    out, _ = sample(
        byte_run, "--temperature", 0, "--tokens", 20
    )  # no prompt: after a newline, which is not shown
    assert TEXT.encode().startswith(out)


def test_prompts_come_from_a_file_or_from_stdin_byte_by_byte(binary, sample, byte_run, tmp_path):
    prompt = b"Die Ziege\n\n\0\xff \xf0\x9f"  # bytes of every kind; the newlines stay
    (tmp_path / "prompt").write_bytes(prompt)
    options = ["--tokens", 20, "--temperature", 0]
    wanted, _ = sample(byte_run, *options, "--prompt-file", tmp_path / "prompt")
    assert wanted.startswith(prompt) and len(wanted) == len(prompt) + 20
    for words in (["--prompt", "-"], ["--prompt-file", "-"]):
        argv = [str(word) for word in (binary, "sample", "--checkpoint", byte_run, *options, *words)]
        assert (
            subprocess.run(argv, input=prompt, capture_output=True, check=True, timeout=300).stdout == wanted
        )
    (tmp_path / "line").write_text("Die Ziege\n")
    assert (
        sample(byte_run, *options, "--prompt-file", tmp_path / "line")[0]
        == sample(byte_run, *options, "--prompt", "Die Ziege\n")[0]
    )
    for words, text in [
        (["--prompt-file", tmp_path / "none"], "No such file"),
        (["--prompt-file", tmp_path], "Is a directory"),
        (["--prompt-file", tmp_path / "line", "--prompt", ""], "--prompt and --prompt-file"),
    ]:
        assert text in sample(byte_run, *words, code=2)[1]


def test_several_samples_are_those_of_the_seeds_that_follow(sample, byte_run, tmp_path):
    options = ["--prompt", "Die Ziege", "--tokens", 40, *HOT]
    alone = [sample(byte_run, *options, "--seed", seed)[0] for seed in (7, 8, 9)]
    assert len(set(alone)) == 3
    out, err = sample(byte_run, *options, "--seed", 7, "--samples", 3, "--json", tmp_path / "samples.json")
    assert out == b"".join(
        b"=== sample %d of 3, seed %d\n%b\n" % (i + 1, i + 7, text) for i, text in enumerate(alone)
    )
    assert out == sample(byte_run, *options, "--seed", 7, "--samples", 3, "--no-cache")[0]
    assert err.count("made: 40 tokens") == 3
    entries = json.loads((tmp_path / "samples.json").read_text())
    assert [(entry["sample"], entry["seed"], entry["prompt"]) for entry in entries] == [
        (1, 7, "Die Ziege"),
        (2, 8, "Die Ziege"),
        (3, 9, "Die Ziege"),
    ]
    for entry, text in zip(entries, alone, strict=True):
        assert bytes(entry["tokens"]) == text[len("Die Ziege") :]
        assert entry["text"] == text[len("Die Ziege") :].decode(errors="replace")


def test_output_comes_as_it_is_made_and_in_whole_characters(binary, byte_run):
    process = subprocess.Popen(
        [
            binary,
            "sample",
            "--checkpoint",
            byte_run,
            "--prompt",
            "🐐",
            "--temperature",
            "0",
            "--tokens",
            "1500",
            "--no-cache",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    chunks = [os.read(process.stdout.fileno(), 65536) for _ in range(40)]
    assert process.poll() is None, "the first characters came only at the end"
    process.kill()
    process.wait()
    process.stdout.close()
    assert all(chunks)
    for chunk in chunks:
        chunk.decode()  # a write never ends inside a character
    assert b"".join(chunks).startswith("🐐 isst".encode())


def test_half_a_character_passes_at_the_end(sample, byte_run):
    half = b"\xf0\x9f".decode(errors="surrogateescape")
    options = ["--prompt", half, "--temperature", 0, "--tokens", 1]
    assert sample(byte_run, *options)[0] == b"\xf0\x9f\x90"
    several = sample(byte_run, *options, "--samples", 2)[0]
    assert several == b"".join(b"=== sample %d of 2, seed %d\n\xf0\x9f\x90\n" % (i, i) for i in (1, 2))


def on_a_terminal(binary, *options):
    """What a terminal is sent: stdout, with "\\n" for its line ends."""
    terminal, stdout = pty.openpty()
    attributes = termios.tcgetattr(stdout)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(stdout, termios.TCSANOW, attributes)
    process = subprocess.Popen(
        [str(word) for word in (binary, "sample", *options)], stdout=stdout, stderr=subprocess.DEVNULL
    )
    os.close(stdout)
    sent = b""
    try:
        while block := os.read(terminal, 65536):
            sent += block
    except OSError:  # nobody writes any more
        pass
    os.close(terminal)
    assert process.wait(timeout=300) == 0
    return sent


def test_a_terminal_gets_no_control_characters_and_no_broken_ones(binary, sample, byte_run, tmp_path):
    prompt = b"a\x1b]0;title\x07\r\n\t\xffb\xc2\x9b31m \xf0\x9f\x90\x90\x7f\xe2\x82 \xed\xa0\x80\xf0\x9f"
    (tmp_path / "prompt").write_bytes(prompt)
    options = ["--checkpoint", byte_run, "--prompt-file", tmp_path / "prompt", "--tokens", 1]
    piped, _ = sample(byte_run, *options[2:])
    assert piped.startswith(prompt) and len(piped) == len(prompt) + 1
    controls = [c for c in map(chr, range(0xA0)) if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    wanted = piped.decode(errors="replace").translate(str.maketrans(dict.fromkeys(controls, "\ufffd")))
    assert on_a_terminal(binary, *options).decode() == wanted


def test_what_is_held_back_at_the_end_is_shown_on_a_terminal(binary, byte_run):
    half = b"\xf0\x9f".decode(errors="surrogateescape")
    options = ["--checkpoint", byte_run, "--prompt", half, "--temperature", 0, "--tokens", 1]
    assert on_a_terminal(binary, *options).decode() == "\ufffd"


def test_a_reader_that_leaves_stops_it_quietly(binary, byte_run):
    process = subprocess.Popen(
        [binary, "sample", "--checkpoint", byte_run, "--tokens", "20000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=300) == 0
    assert process.stderr.read().count(b"\n") == 1  # which model it is
    process.stderr.close()


def test_a_full_disk_is_an_error(binary, byte_run):
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [binary, "sample", "--checkpoint", byte_run, "--tokens", "5"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=300,
        )
    assert result.returncode == 1 and b"cannot write to stdout" in result.stderr


def test_a_task_without_text_shows_token_ids(run_binary, sample, tmp_path):
    run_binary(*tiny_run(tmp_path / "run"))
    out, err = sample(tmp_path / "run", "--prompt", "5 9", "--tokens", 30)
    ids = [int(word) for word in out.split()]
    assert ids[:2] == [5, 9] and len(ids) == 32 and max(ids) < 16
    assert "tokenizer ids" in err
    assert sample(tmp_path / "run", "--tokens", 3)[0].startswith(b"0 ")
    _, err = sample(tmp_path / "run", "--prompt", "5 16", code=2)
    assert "--prompt" in err and '"16"' in err


def spelled(byte):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte if byte in printable else 256 + sum(b not in printable for b in range(byte)))


@pytest.fixture(scope="module")
def bpe_run(binary, tmp_path_factory):
    """(run, tokenizer folder): documents "ab, c" of bytes, "ab" (256) <|endoftext|> (257), padded to 400."""
    folder = tmp_path_factory.mktemp("bpe")
    ids = {spelled(byte): byte for byte in range(256)} | {"ab": 256, "<|endoftext|>": 257}
    (folder / "encoder.json").write_text(json.dumps(ids))
    (folder / "vocab.bpe").write_text("#version: 0.2\na b\n", encoding="utf-8")
    return (
        train_on(
            binary,
            folder,
            [257, 256, ord(","), ord(" "), ord("c")] * 200,
            model__vocab=400,
            data__block="bos",
            data__bos=257,
        ),
        folder,
    )


def test_gpt2_tokenizer_starts_from_bos_and_stops_at_the_end_of_text(sample, bpe_run):
    run, folder = bpe_run
    options = ["--tokenizer", "gpt2", "--tokenizer-dir", folder, "--temperature", 0]
    out, err = sample(run, *options, "--prompt", "ab")
    assert out == b"ab, c<|endoftext|>"
    assert "prompt: 2 tokens" in err and "made: 4 tokens" in err
    assert out == sample(run, *options, "--prompt", "ab", "--no-cache")[0]
    out, err = sample(run, *options)
    assert out and b"ab, c<|endoftext|>".endswith(
        out
    )  # training blocks, and so what follows their BOS, begin anywhere in a document
    assert "prompt: 1 token in" in err


def gpt2_sample(sample, run, *options, code=0):
    return sample(run, "--tokenizer", "gpt2", "--prompt", "ab", "--temperature", 0, *options, code=code)


def test_the_vocabulary_is_remembered_in_the_run(sample, bpe_run, tmp_path):
    source, files = bpe_run
    run = tmp_path / "run"
    shutil.copytree(source, run)
    shutil.rmtree(run / "tokenizer", ignore_errors=True)
    assert "--tokenizer-dir" in gpt2_sample(sample, run, code=2)[1]
    assert not (run / "tokenizer").exists()
    wanted, _ = gpt2_sample(sample, run, "--tokenizer-dir", files)
    assert {path.name for path in (run / "tokenizer").iterdir()} == {"vocab.bpe", "encoder.json"}
    assert gpt2_sample(sample, run)[0] == wanted
    shutil.copytree(files, tmp_path / "others", ignore=shutil.ignore_patterns("run"))
    ids = json.loads((tmp_path / "others/encoder.json").read_text())
    (tmp_path / "others/encoder.json").write_text(
        json.dumps(ids | {"<|endoftext|>": ids["ab"], "ab": ids["<|endoftext|>"]})
    )
    assert (
        gpt2_sample(sample, run, "--tokenizer-dir", tmp_path / "others")[0] != wanted
    )  # what is named goes first,
    assert gpt2_sample(sample, run)[0] == wanted  # and what is remembered stays
    (run / "tokenizer/vocab.bpe").unlink()
    (run / "tokenizer/encoder.json").unlink()
    (run / "tokenizer").rmdir()
    (run / "tokenizer").write_text("in the way")  # where nothing can be remembered, nothing is said
    out, err = gpt2_sample(sample, run, "--tokenizer-dir", files)
    assert out == wanted and "warning" not in err


def test_the_vocabulary_beside_the_training_shards_is_found(binary, sample, bpe_run, tmp_path):
    run = train_on(
        binary,
        tmp_path,
        [257, 256, ord(","), ord(" "), ord("c")] * 50,
        model__vocab=400,
        data__block="bos",
        data__bos=257,
        train__steps=6,
    )
    assert "--tokenizer-dir" in gpt2_sample(sample, run, code=2)[1]
    shutil.copytree(bpe_run[1], tmp_path / "tokenizer", ignore=shutil.ignore_patterns("run"))
    assert gpt2_sample(sample, run)[0].startswith(b"ab")
    assert not (run / "tokenizer").exists()


def test_a_genome_shows_bases_without_spaces(binary, sample, tmp_path):
    run = train_on(binary, tmp_path, [0, 1, 2, 3, 4] * 200, model__vocab=5, train__steps=60)
    out, err = sample(run, "--prompt", "nt\nA", "--tokens", 7, "--temperature", 0)
    assert out == b"NTACGNTACG" and "tokenizer dna" in err
    assert sample(run, "--tokens", 4, "--temperature", 0)[0] == b"TACG"  # after an N, which is not shown
    _, err = sample(run, "--prompt", "ACRT", code=2)
    assert "--prompt" in err and '"R" at byte 2' in err
    assert sample(run, "--tokenizer", "ids", "--prompt", "0 1", "--tokens", 1)[0].startswith(b"0 1 ")


@pytest.fixture(scope="module")
def json_run(binary, tmp_path_factory):
    """A run of documents "ab é" of a tokenizer.json that lies beside the shards; both are gone afterwards."""
    folder = tmp_path_factory.mktemp("json")
    ids = {spelled(byte): byte for byte in range(256)} | {"ab": 256}
    file = {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": ids, "merges": [["a", "b"]]},
        "added_tokens": [{"id": 257, "content": "<end>", "special": True}],
    }
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/tokenizer.json").write_text(json.dumps(file))
    meta = {"tokenizer": "tokenizer.json", "vocab": 258, "end_of_text": 257, "shards": []}
    (folder / "meta.json").write_text(json.dumps(meta))
    document = [257, 256, ord(" "), *"é".encode()]
    run = train_on(binary, folder, document * 200, model__vocab=258, data__block="bos", data__bos=257)
    shutil.rmtree(folder / "tokenizer")
    (folder / "meta.json").unlink()
    (folder / "train_000000.bin").unlink()
    return run, file


def test_a_tokenizer_json_is_kept_in_the_run(sample, json_run, tmp_path):
    run, file = json_run
    out, err = sample(run, "--prompt", "ab", "--temperature", 0)
    assert out == "ab é<end>".encode() and "tokenizer tokenizer.json" in err and "made: 4 tokens" in err
    assert json.loads((run / "tokenizer/tokenizer.json").read_text()) == file
    other = tmp_path / "other"
    shutil.copytree(run, other)
    shutil.rmtree(other / "tokenizer")
    _, err = sample(other, code=2)
    assert "tokenizer.json needs tokenizer.json" in err and "--tokenizer-dir" in err
    assert sample(other, "--tokenizer-dir", run / "tokenizer", "--prompt", "ab", "--temperature", 0)[0] == out
    assert sample(other, "--prompt", "ab", "--temperature", 0)[0] == out  # the folder was remembered


def test_a_tokenizer_json_that_is_not_supported_leaves_token_ids(sample, json_run, tmp_path):
    run, file = json_run
    named = tmp_path / "named"
    named.mkdir()
    (named / "tokenizer.json").write_text(json.dumps(file | {"model": {"type": "Unigram", "vocab": []}}))
    _, err = sample(run, "--tokenizer-dir", named, code=3)
    assert "named/tokenizer.json" in err and "Unigram" in err and "--tokenizer ids" in err
    out, _ = sample(run, "--tokenizer", "ids", "--prompt", "256", "--temperature", 0, "--tokens", 3)
    assert out == b"256 32 195 169 "


def test_padding_of_the_vocabulary_is_never_drawn(sample, bpe_run):
    run, folder = bpe_run
    made = 0
    for seed in range(20):  # 142 of 400 ids have no text; a hot draw would soon meet one
        _, err = sample(
            run, "--tokenizer", "gpt2", "--tokenizer-dir", folder, "--temperature", 1e6, "--seed", seed
        )
        made += int(err.split("made: ")[1].split()[0])
    assert made > 300


@pytest.mark.skipif(not GPT2_FILES.is_dir(), reason="GPT-2's tokenizer files are not at hand")
def test_gpt2_run_with_the_published_tokenizer(binary, sample, tmp_path):
    run = train_on(
        binary,
        tmp_path,
        [50256, 15496, 995] * 100,
        model__vocab=50257,
        train__steps=30,
        train__batch=2,
        data__block="bos",
        data__bos=50256,
    )
    assert "--tokenizer-dir" in sample(run, code=2)[1]
    out, err = sample(run, "--tokenizer-dir", GPT2_FILES, "--prompt", "Hello", "--temperature", 0)
    assert out == b"Hello world<|endoftext|>"
    assert "tokenizer gpt2" in err


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--temperature", "-0.5", 2),
        ("--temperature", "inf", 2),
        ("--temperature", "nan", 2),
        ("--top-p", "0", 2),
        ("--top-p", "1.5", 2),
        ("--top-k", "-1", 2),
        ("--seed", "-1", 2),
        ("--seed", "1.5", 2),
        ("--samples", "0", 2),
        ("--temperature", "hot", 2),
        ("--tokens", "0", 2),
        ("--tokens", "-3", 2),
        ("--tokens", "99999999999", 2),
        ("--tokenizer", "words", 2),
        ("--tokens", "many", 2),
        ("--checkpoint", "nowhere", 3),
    ],
)
def test_a_bad_option_is_named(binary, byte_run, option, value, code):
    checkpoint = [] if option == "--checkpoint" else ["--checkpoint", byte_run]
    result = subprocess.run(
        [binary, "sample", *checkpoint, f"{option}={value}"], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == code and result.stdout == ""
    assert option in result.stderr and value.lstrip("-")[:5] in result.stderr


def test_a_tokenizer_that_does_not_fit_is_refused(sample, byte_run, bpe_run, tmp_path):
    run, folder = bpe_run
    _, err = sample(byte_run, "--tokenizer", "gpt2", "--tokenizer-dir", folder, code=2)
    assert "258" in err and "256" in err
    _, err = sample(run, code=2)  # 400 tokens: neither bytes nor GPT-2
    assert "400" in err and "--tokenizer" in err
    _, err = sample(run, "--tokenizer", "gpt2", "--tokenizer-dir", tmp_path, code=3)
    assert "encoder.json" in err and "https://" in err
    invalid = b"\xff".decode(errors="surrogateescape")
    _, err = sample(run, "--tokenizer", "gpt2", "--tokenizer-dir", folder, "--prompt", invalid, code=2)
    assert "--prompt" in err and "UTF-8" in err
