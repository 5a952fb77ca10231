"""Tokenizers of prepare.py: GPT-2's byte-pair encoding through tiktoken, and text cut so that it can be encoded piece by piece."""

import os
import re
from pathlib import Path

from prepare_shards import DataError

# Words with the space before them, numbers, punctuation, English contractions, and runs of space of which the last belongs to the next word.
GPT2_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END_OF_TEXT = "<|endoftext|>"
LARGEST_VOCABULARY = 1 << 16  # tokens are stored as uint16

CUT_CHARACTERS = 1 << 16
# No match of the pattern goes on from a character that is no white space to a space or line feed: text cut there gives the same tokens.
SAFE_CUT = re.compile(r".*\S(?=[ \n])", re.DOTALL)


class Gpt2Tokenizer:
    """tokens = vocabulary size, end_of_text = the token between documents."""

    def __init__(self, folder=None):
        import tiktoken

        if folder is None:
            try:
                self.encoding = tiktoken.get_encoding("gpt2")
            except Exception as error:  # whatever the download runs into
                raise OSError(
                    f"cannot download GPT-2's vocabulary ({type(error).__name__}: {error}). Without a network, give --tokenizer-dir "
                    "with a folder that holds vocab.bpe and encoder.json (elsewhere called merges.txt and vocab.json)"
                ) from None
        else:
            self.encoding = load_encoding(Path(folder))
        self.end_of_text = self.encoding.eot_token
        self.vocabulary = self.encoding.n_vocab
        if self.vocabulary > LARGEST_VOCABULARY:
            raise DataError(f"the tokenizer has {self.vocabulary} tokens; shards hold at most {LARGEST_VOCABULARY} (16 bits)")

    def encode_batch(self, texts):
        """A list of tokens for each text; special tokens spelled out in the text are ordinary text."""
        return self.encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count() or 1)


def load_encoding(folder):
    """The encoding in folder/vocab.bpe (merges) and folder/encoder.json (ids)."""
    import json

    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    merges, ids = folder / "vocab.bpe", folder / "encoder.json"
    for path in (merges, ids):
        if not path.is_file():
            raise DataError(f"--tokenizer-dir: no file {path}")
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # its cache goes by path, and would return the old contents of a file that has changed
    try:
        ranks = data_gym_to_mergeable_bpe_ranks(str(merges), str(ids))
        end_of_text = json.loads(ids.read_bytes()).get(END_OF_TEXT, len(ranks))
        return tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: end_of_text})
    except AssertionError:
        raise DataError(f"{merges} and {ids} do not belong together: the merges do not give the ids") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{merges}, {ids}: not a GPT-2 vocabulary ({type(error).__name__}: {error})") from None


class TextCutter:
    """Cuts a document that arrives in pieces into texts of at most CUT_CHARACTERS, at places that do not change the tokens.

    A run of so many characters without such a place (base64, a genome, a page of spaces) is cut where the limit falls; `forced_cuts` counts
    these, and a token or two at each may differ from those of the whole run. Where the cuts are depends on the text alone, not on its pieces.
    """

    def __init__(self):
        self.text = ""
        self.forced_cuts = 0

    def add(self, piece):
        text = self.text + piece
        start = 0
        while len(text) - start > CUT_CHARACTERS:
            limit = start + CUT_CHARACTERS
            safe = SAFE_CUT.match(text, start, limit + 1)
            self.forced_cuts += safe is None
            end = safe.end() if safe else limit
            yield text[start:end]
            start = end
        self.text = text[start:]

    def finish(self):
        if self.text:
            yield self.text
        self.text = ""
