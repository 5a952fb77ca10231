"""Any tokenizer.json, through the package `tokenizers`; and the choice of a tokenizer."""

import json
import os
import re
from pathlib import Path

import numpy as np
from console import DataError, UsageError, count
from prepare_tokenizers import ByteTokenizer, Gpt2Tokenizer, TextCutter, Tokenizer

NAME = "tokenizer.json"
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<eos_token>")
WHOLE_CHARACTERS = 1 << 20  # a document up to here is encoded as a whole where cuts may change tokens

# Patterns that cut text into words, none of which goes on from a character that is no white space to a space,
# or looks back: text cut there gives the same tokens. (GPT-2's is a part of its pre-tokenizer.)
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
SAFE_PATTERNS = (LLAMA_3, QWEN_2)
SAFE_CUT = re.compile(r".*\S(?= )", re.DOTALL)


def make_tokenizer(arguments):
    """What --tokenizer names."""
    if arguments.tokenizer == "bytes":
        return ByteTokenizer()
    if arguments.tokenizer == "gpt2":
        return Gpt2Tokenizer(arguments.tokenizer_dir)
    path = Path(arguments.tokenizer)
    if path.is_dir():
        path /= NAME
    if not path.exists():
        raise UsageError(
            f"--tokenizer {arguments.tokenizer}: is neither gpt2 nor bytes, nor a {NAME}, nor a folder that "
            "holds one"
        )
    return JsonTokenizer(path, arguments.end_of_text)


class JsonTokenizer(Tokenizer):
    """The tokenizer in a file. `end_of_text`: the text of that token, or None for the usual ones."""

    name = NAME

    def __init__(self, path, end_of_text=None):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each of our threads encodes a text of its own
        from tokenizers import Tokenizer as Loaded

        try:
            contents = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot read it: {error.strerror}") from None
        try:
            self.loaded = Loaded.from_str(contents.decode())
            self.settings = json.loads(contents)
        except Exception as error:  # the package raises plain ones
            raise DataError(f"{path}: is no {NAME} ({error})") from None
        self.path, self.files = path, {NAME: contents}
        self.loaded.no_truncation()
        self.loaded.no_padding()
        self.loaded.encode_special_tokens = True
        if self.settings["model"].get("dropout"):  # for training: leaves merges out by chance
            self.loaded.model.dropout = None
        vocabulary = self.loaded.get_vocab(with_added_tokens=True)
        self.vocabulary = max(vocabulary.values(), default=-1) + 1
        self.end_of_text = self._find_end_of_text(vocabulary, end_of_text)
        self.cuts_are_safe = cuts_are_safe(self.settings)

    def _find_end_of_text(self, vocabulary, wanted):
        if wanted is not None and wanted not in vocabulary:
            raise UsageError(f"--end-of-text {wanted}: {self.path} has no such token")
        for name in ENDS_OF_TEXT if wanted is None else (wanted,):
            if name in vocabulary:
                return vocabulary[name]
        special = [token["content"] for token in self.settings.get("added_tokens") or []]
        choice = f"; it may be one of these: {' '.join(special[:20])}" if special else ""
        raise UsageError(
            f"{self.path}: has none of the usual end-of-text tokens ({' '.join(ENDS_OF_TEXT)}); name it by "
            f"--end-of-text{choice}"
        )

    def encode(self, texts):
        tokens = []
        for text, starts in texts:
            (encoding,) = self.loaded.encode_batch_fast([text], add_special_tokens=False)
            ids = np.array(encoding.ids, np.uint32)
            if (ids == self.end_of_text).any():
                raise DataError(
                    f"{self.path}: makes the end-of-text token itself out of text that spells it; choose "
                    "another by --end-of-text"
                )
            tokens += [np.array([self.end_of_text], np.uint32), ids] if starts else [ids]
        return np.concatenate(tokens)

    def new_cutter(self):
        return TextCutter(None, SAFE_CUT) if self.cuts_are_safe else TextCutter(WHOLE_CHARACTERS, SAFE_CUT)

    def cuts(self, number):
        if self.cuts_are_safe:
            return super().cuts(number)
        where = f"{count(number, 'time')}, in documents of more than {WHOLE_CHARACTERS:,} characters"
        return f"{where}; the tokens at the cut may not be those of the whole"


def cuts_are_safe(settings):
    """Whether the tokens of a text that is cut before a space, after a character that is none, are those of
    its parts, for this tokenizer.json."""
    if settings.get("normalizer") is not None:
        return False
    for token in settings.get("added_tokens") or []:
        if not token.get("special") and re.search(r"\S ", token["content"]):
            return False
    steps = settings.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = [step.get("type") for step in steps]
    if any(step.get("add_prefix_space") for step in steps):
        return False
    if kinds == ["ByteLevel"]:
        return steps[0].get("use_regex", True)
    if kinds != ["Split", "ByteLevel"]:
        return False
    split = steps[0]
    is_known = split["pattern"].get("Regex") in SAFE_PATTERNS
    return is_known and split["behavior"] == "Isolated" and not split["invert"]
