"""Random texts that tokenizers may disagree on, and the tokens that data/bpe_tokenizer.h makes of them."""

import functools
import os
import struct
import subprocess
import unicodedata
from pathlib import Path

SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0"
SPACES += "\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
EDGES = "\0\x7f\x80\u07ff\u0800\ud7ff\ue000\ufffd\ufffe\uffff\U00010000\U0001ffff\U00020000\U0010ffff"
EMOJI = ["👩\u200d👩\u200d👧\u200d👦", "👍🏽", "🇫🇷", "❤\ufe0f", "🏳\ufe0f\u200d🌈"]
EMOJI += ["1\ufe0f\u20e3", "🐐"]
CONTRACTIONS = "'s 'S '\u017f 't 'RE 're 'Ve 'm 'lL 'll 'd 'D \u2019s ''".split()
WORDS = "The goat's 3 kids DIDN'T eat 1234567 leaves, naïve café don't HTTPServer".split()
WORDS += ["x=y;", "<|endoftext|>", "<tool>"]
LETTERS = "eésßſKİıǅʰªaåÅñΩжЯאبकกㅎ가日本語龥ーﬁ"


@functools.cache
def characters_of(initial):
    """All characters whose general category begins so, as this Python knows them."""
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c))[0] == initial]


def any_character(random):
    code = random.randrange(0x110000 - 0x800)
    return chr(code if code < 0xD800 else code + 0x800)


def a_part(random):
    kind = random.randrange(14)
    if kind == 0:
        return any_character(random)
    if kind == 1:
        return random.choice(characters_of(random.choice("LMNPSZ")))
    if kind == 2:
        return random.choice(SPACES) * random.choice((1, 1, 2, 3))
    if kind == 3:
        return random.choice(LETTERS) + random.choice(characters_of("M")) * random.choice((1, 2))
    if kind == 4:
        return random.choice(EMOJI)
    if kind == 5:
        return random.choice(EDGES)
    if kind == 6:
        return "".join(random.choices(characters_of("N"), k=random.randrange(1, 5)))
    if kind == 7:
        return str(random.randrange(10 ** random.randrange(1, 12)))
    if kind == 8:
        return random.choice(CONTRACTIONS)
    if kind == 9:
        return random.choice(WORDS)
    if kind == 10:
        return chr(random.randrange(128))
    if kind == 11:
        return random.choice(("\n", "\r\n", "\n\n", " ", "  ", "\n ", " \n"))
    if kind == 12:
        return "".join(random.choices(LETTERS, k=random.randrange(1, 6)))
    return " " + random.choice(WORDS)


def a_text(random):
    if random.randrange(200) == 0:  # a long run
        return a_part(random) * random.randrange(1, 300)
    return "".join(a_part(random) for _ in range(random.randrange(12)))


# No character elsewhere is a letter, a number or white space.
ASSIGNED = ((0, 0xD800), (0xF900, 0x33500), (0xE0000, 0xE0200))


def all_characters(ranges=((0, 0xD800), (0xE000, 0x110000))):
    """Every character of the ranges: after a space, between letters, twice."""
    return [
        "".join(f" {chr(c)}a{chr(c)}{chr(c)}" for c in range(start, min(start + 256, last)))
        for first, last in ranges
        for start in range(first, last, 256)
    ]


class Encoder:
    """The program test/programs/encode_texts.cpp: encode(texts) -> a list of (tokens, decoded bytes) each."""

    def __init__(self, path, build=None):
        build = build or os.environ.get("GOAT_BUILD") or Path(__file__).resolve().parent.parent / "build"
        self.command = [str(Path(build) / "test" / "encode_texts"), str(path)]

    def encode(self, texts):
        texts = [text if isinstance(text, bytes) else text.encode() for text in texts]
        asked = b"".join(struct.pack("=i", len(text)) + text for text in texts)
        result = subprocess.run(self.command, input=asked, capture_output=True, timeout=600)
        if result.returncode != 0:
            raise RuntimeError(result.stderr.decode())
        answers, position = [], 0
        for _ in texts:
            count, position = self._number(result.stdout, position)
            if count < 0:
                answers.append((None, None))
                continue
            ids = list(struct.unpack_from(f"={count}i", result.stdout, position))
            length, position = self._number(result.stdout, position + 4 * count)
            answers.append((ids, result.stdout[position : position + length]))
            position += length
        assert position == len(result.stdout)
        return answers

    @staticmethod
    def _number(data, position):
        return struct.unpack_from("=i", data, position)[0], position + 4


def first_difference(texts, encoder, encode, normal=None):
    """None, or what is wrong with the first text whose tokens are not those of encode(texts), or do not
    decode to normal(text) (if that is given)."""
    for text, (ids, decoded), wanted in zip(texts, encoder.encode(texts), encode(texts), strict=True):
        if ids != list(wanted):
            return f"{text!r}: got {ids}, wanted {list(wanted)}"
        if normal and decoded != normal(text).encode():
            return f"{text!r} decodes to {decoded!r}"
    return None


