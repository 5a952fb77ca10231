"""Texts become the tokens that the libraries make of them which made the training data: tiktoken for GPT-2's
two files, Hugging Face's tokenizers for a tokenizer.json."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from random import Random

import pytest
from prepare_tokenizers import PUBLISHED, load_folder
from prepared import prepare  # noqa: F401  makes data/ importable
from random_texts import ASSIGNED, Encoder, a_text, all_characters, first_difference
from tokenizer_files import STYLES, reference, trained, training_text

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "gpt2"


@pytest.fixture
def texts(rng):
    random = Random(int(rng.integers(1 << 62)))
    return [a_text(random) for _ in range(2000)]


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    """GPT-2's two files, of a vocabulary that is trained here."""
    model = json.loads(trained("gpt2", training_text()).to_str())["model"]
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in printable]
    tokens = [*map(chr, printable), *(chr(256 + i) for i in range(len(others)))]
    tokens += [a + b for a, b in merges] + ["<|endoftext|>"]
    folder = tmp_path_factory.mktemp("trained")
    lines = "".join(f"{a} {b}\n" for a, b in merges)
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + lines, encoding="utf-8")
    (folder / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    return folder


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory):
    """GPT-2's own files, from shared/ or from tiktoken's cache."""
    if (SHARED / "encoder.json").is_file():
        return SHARED
    cache = Path(os.environ.get("TIKTOKEN_CACHE_DIR") or Path(tempfile.gettempdir()) / "data-gym-cache")
    folder = tmp_path_factory.mktemp("published")
    for name in ("vocab.bpe", "encoder.json"):
        cached = cache / hashlib.sha1((PUBLISHED + name).encode()).hexdigest()
        if not cached.is_file():
            pytest.skip("GPT-2's tokenizer files are not at hand")
        (folder / name).write_bytes(cached.read_bytes())
    return folder


def ordinary(folder):
    encoding, _ = load_folder(folder)
    return lambda texts: encoding.encode_ordinary_batch(texts, num_threads=1)


@pytest.mark.parametrize("folder", ["trained_folder", "published_folder"])
def test_gpt2_files_give_the_tokens_of_tiktoken(folder, texts, request):
    path = request.getfixturevalue(folder)
    difference = first_difference(texts, Encoder(path), ordinary(path), normal=str)
    assert difference is None, difference


def test_every_character_is_cut_as_tiktoken_cuts_it(trained_folder):
    texts = all_characters(ASSIGNED)
    difference = first_difference(texts, Encoder(trained_folder), ordinary(trained_folder), normal=str)
    assert difference is None, difference


@pytest.mark.parametrize("style", STYLES)
def test_a_tokenizer_json_gives_the_tokens_of_its_library(style, texts, tmp_path):
    tokenizer = trained(style, training_text())
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    normal = None if style in ("gpt2_prefix", "prefix_of_pieces") else str  # these add spaces
    if tokenizer.normalizer:
        normal = tokenizer.normalizer.normalize_str
    difference = first_difference(texts, Encoder(path), reference(tokenizer), normal)
    assert difference is None, difference


def test_merges_in_pairs_and_in_one_string_are_the_same(texts, tmp_path):
    tokenizer = trained("gpt2", training_text())
    file = json.loads(tokenizer.to_str())
    spelled = [pair if isinstance(pair, list) else pair.split(" ") for pair in file["model"]["merges"]]
    for merges in (spelled, [" ".join(pair) for pair in spelled]):
        file["model"]["merges"] = merges
        (tmp_path / "tokenizer.json").write_text(json.dumps(file))
        encoder = Encoder(tmp_path / "tokenizer.json")
        assert first_difference(texts[:200], encoder, reference(tokenizer), normal=str) is None


def test_a_large_vocabulary_is_read_in_a_moment(tmp_path):
    """Of the size of Llama 3's, 128,000 tokens and 280,000 merges."""
    file = json.loads(trained("llama3", training_text()).to_str())
    tokens = file["model"]["vocab"]
    words = [f"Ġword{i:x}" for i in range(128_000 - len(tokens))]
    file["added_tokens"] = []
    file["model"]["vocab"] = tokens | {word: len(tokens) + i for i, word in enumerate(words)}
    merge = file["model"]["merges"]
    file["model"]["merges"] = (merge * (280_000 // len(merge) + 1))[:280_000]
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    start = os.times().children_user
    (answer,) = Encoder(tmp_path / "tokenizer.json").encode([" the"])
    assert answer[1] == b" the"
    assert os.times().children_user - start < 2  # half a second on an idle machine


def test_what_is_no_utf8_is_refused(trained_folder):
    assert Encoder(trained_folder).encode([b"a\xff", b"\xed\xa0\x80", b"ok"])[:2] == [(None, None)] * 2
