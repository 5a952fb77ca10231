"""Tokenizers of prepare.py: bytes, GPT-2's byte-pair encoding through tiktoken; and text cut into pieces."""

import json
import os
import re
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from console import DataError, ScriptError, count

# Words with the space before them, numbers, punctuation, English contractions, and runs of space of which
# the last belongs to the next word.
GPT2_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END_OF_TEXT = "<|endoftext|>"
LARGEST_VOCABULARY = 1 << 16  # tokens are stored as uint16
PUBLISHED = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
GPT2_FILES = {  # with the sha256 of the published ones
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}

CUT_CHARACTERS = 1 << 16
# No match of the pattern goes on from a character that is no white space to a space or line feed: text cut
# there gives the same tokens.
SAFE_CUT = re.compile(r".*\S(?=[ \n])", re.DOTALL)


class Tokenizer(ABC):
    """name: for meta.json; vocabulary: number of tokens; end_of_text: the token between documents, or None;
    files: contents, by name, of what it was made from."""

    name: str
    vocabulary: int
    end_of_text: int | None
    files: dict

    @property
    def token_bytes(self):
        return 2 if self.vocabulary <= LARGEST_VOCABULARY else 4

    @abstractmethod
    def encode(self, texts):
        """An array of the tokens of texts that follow each other, (text, whether a document starts with it):
        the end-of-text token before each that does. Special tokens spelled out in the text are ordinary text.
        May be called by several threads.
        """

    def documents_from(self, first, texts, tokens):
        """How many of the documents in `texts` begin at token number `first` of theirs or after it."""
        return int(np.count_nonzero(tokens[first:] == self.end_of_text))

    @abstractmethod
    def new_cutter(self):
        """What cuts a document into texts that can be encoded on their own (TextCutter)."""

    def cuts(self, number):
        """Says that so many cuts were where tokens may change."""
        runs = f"{count(number, 'run')} of {CUT_CHARACTERS:,} characters without a space"
        return f"{runs}; the tokens at the cut may not be those of the whole"


class ByteTokenizer(Tokenizer):
    name, vocabulary, end_of_text, files = "bytes", 256, None, {}

    def encode(self, texts):
        data = b"".join(text if isinstance(text, bytes) else text.encode() for text, _ in texts)
        return np.frombuffer(data, np.uint8)

    def documents_from(self, first, texts, tokens):
        places = np.cumsum([0] + [len(self.encode([text])) for text in texts[:-1]])
        return sum(bool(starts and place >= first) for (_, starts), place in zip(texts, places, strict=True))

    def new_cutter(self):
        return NoCutter()


class Gpt2Tokenizer(Tokenizer):
    name = "gpt2"

    def __init__(self, folder=None):
        self.encoding, self.files = download() if folder is None else load_folder(Path(folder))
        self.end_of_text = self.encoding.eot_token
        self.vocabulary = self.encoding.n_vocab
        if self.vocabulary > LARGEST_VOCABULARY:
            largest = f"GPT-2's shards hold at most {LARGEST_VOCABULARY} (16 bits)"
            raise DataError(f"the tokenizer has {self.vocabulary} tokens; {largest}")

    def encode(self, texts):
        """Many documents in one call, joined by the special token: the other threads need Python's lock."""
        tokens, joined = [], []

        def encode_joined():
            if joined:
                tokens.append(
                    self.encoding.encode_to_numpy(
                        "".join(joined), allowed_special={END_OF_TEXT}, disallowed_special=()
                    )
                )
                joined.clear()

        for text, starts in texts:
            if starts:
                joined.append(END_OF_TEXT)
            else:
                encode_joined()
            if END_OF_TEXT in text:
                encode_joined()
                tokens.append(self.encoding.encode_to_numpy(text, disallowed_special=()))
            else:
                joined.append(text)
        encode_joined()
        return np.concatenate(tokens)

    def new_cutter(self):
        return TextCutter()

    def cuts(self, number):
        return super().cuts(number).replace("those of the whole", "GPT-2's")


def download():
    """The published encoding and its files, from the network or tiktoken's cache."""
    import tiktoken
    from tiktoken.load import read_file_cached

    try:
        encoding = tiktoken.get_encoding("gpt2")
        return encoding, {
            name: read_file_cached(PUBLISHED + name, sha256) for name, sha256 in GPT2_FILES.items()
        }
    except Exception as error:  # whatever the download runs into
        raise ScriptError(
            f"cannot download GPT-2's vocabulary ({type(error).__name__}: {error}). Without a network, give "
            "--tokenizer-dir with a folder that holds vocab.bpe and encoder.json (elsewhere called "
            "merges.txt and vocab.json)"
        ) from None


def load_folder(folder):
    """The encoding in folder/vocab.bpe (merges) and folder/encoder.json (ids), and the contents of both."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    paths = [folder / name for name in GPT2_FILES]
    for path in paths:
        if not path.is_file():
            raise DataError(f"--tokenizer-dir: no file {path}")
    merges, ids = paths
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # its cache goes by path, and returns a changed file's old contents
    try:
        files = {path.name: path.read_bytes() for path in paths}
        ranks = data_gym_to_mergeable_bpe_ranks(str(merges), str(ids))
        special = {END_OF_TEXT: json.loads(files[ids.name]).get(END_OF_TEXT, len(ranks))}
        encoding = tiktoken.Encoding(
            "gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=special
        )
        return encoding, files
    except AssertionError:
        raise DataError(
            f"{merges} and {ids} do not belong together: the merges do not give the ids"
        ) from None
    except OSError as error:
        raise DataError(f"--tokenizer-dir: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{merges}, {ids}: not a GPT-2 vocabulary ({reason})") from None


class TextCutter:
    """Cuts a document that arrives in pieces into texts of at most `limit` characters (CUT_CHARACTERS), at
    what `safe` matches: there no token changes.

    A run of so many characters without such a place (base64, a genome, a page of spaces) is cut where the
    limit falls; `forced_cuts` counts these, and a token or two at each may differ from those of the whole
    run. Where the cuts are depends on the text alone, not on its pieces.
    """

    def __init__(self, limit=None, safe=SAFE_CUT):
        self.limit, self.safe = limit or CUT_CHARACTERS, safe
        self.text = ""
        self.forced_cuts = 0

    def add(self, piece):
        text = self.text + piece
        start = 0
        while len(text) - start > self.limit:
            limit = start + self.limit
            safe = self.safe.match(text, start, limit + 1)
            self.forced_cuts += safe is None
            end = safe.end() if safe else limit
            yield text[start:end]
            start = end
        self.text = text[start:]

    def finish(self):
        if self.text:
            yield self.text
        self.text = ""

    def take_forced_cuts(self):
        cuts, self.forced_cuts = self.forced_cuts, 0
        return cuts


class NoCutter:
    """Passes the pieces of a document on."""

    def add(self, piece):
        if piece:
            yield piece

    def finish(self):
        return ()

    def take_forced_cuts(self):
        return 0
