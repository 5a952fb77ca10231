"""The retrieval tasks in NumPy: every character of every sample is a pure function of (seed, sample,
place)."""

from dataclasses import dataclass

import numpy as np

from reference.copy_mixture_numpy import WORD, philox4x32

SIGNS = ":;,.?+-_=/'\"[](){}<>#@!$%^&*|\\"
ALPHABET = "abcdefghijklmnopqrstuvwxyz" + "0123456789" + " " + SIGNS  # from id 3 on
LATIN = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Needle:
    stream: int
    filler: str
    opening: str
    label: str
    answer: str
    question: str
    seq_len: int  # T
    answer_length: int
    least: float  # depth
    greatest: float
    seed: int

    def words(self, index, block, count):
        blocks = block + np.arange((count + 3) // 4)
        counter = (blocks, self.stream, index & WORD, index >> 32)
        words = philox4x32(counter, (self.seed & WORD, self.seed >> 32))
        return np.stack(words, axis=1).ravel()[:count] / 2.0**32

    def characters(self, allowed, index, block, count):
        return "".join(allowed[int(u * len(allowed))] for u in self.words(index, block, count))

    def text(self, index):
        """The T + 1 characters of sample `index`."""
        answer = self.characters(self.answer, index, 1, self.answer_length)
        beside = len(self.opening + self.label + self.question) + 2 * self.answer_length + 1
        filler = self.characters(self.filler, index, 1 << 31, self.seq_len + 1 - beside)
        depth = self.least + self.words(index, 0, 1)[0] * (self.greatest - self.least)
        place = int(depth * len(filler))
        needle = self.label + answer + " "
        return self.opening + filler[:place] + needle + filler[place:] + self.question + answer

    def tokens(self, index):
        return np.array([3 + ALPHABET.index(character) for character in self.text(index)])


def passkey(seq_len, digits=8, depths=(0, 0.8), seed=1):
    text = (" system log: ", "passkey: ", "0123456789", " q: what is the passkey? a: ")
    return Needle(10, LATIN + " ", *text, seq_len, digits, *depths, seed)


def niah(seq_len, letters=12, depths=(0.1, 0.9), seed=1):
    text = (" doc: ", "needle: ", "abcd", " q: what is the needle? a: ")
    return Needle(11, "abcd ", *text, seq_len, letters, *depths, seed)
