"""Small tokenizer.json files as models have them, trained here on the text of this repository's documents."""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + "?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + "?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
    r"\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"]
ODD = [r"[^\S\n]+|\P{L}{2}x|(?<=a)b|[\d\P{N}-]{1,2}+", r"(?i:[a-k]s|ſt)|.(?:\u00e9|\x{1F410}|\.)*?"]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(*steps, prefix=False, regex=False):
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    return pre_tokenizers.Sequence([*steps, last]) if steps else last


# name: (pre-tokenizer, normalizer, ignore_merges)
STYLES = {
    "gpt2": (byte_level(regex=True), None, False),
    "gpt2_prefix": (byte_level(regex=True, prefix=True), None, False),
    "no_pattern": (byte_level(), None, False),
    "llama3": (byte_level(split(LLAMA3)), None, True),
    "qwen2": (byte_level(split(QWEN2)), normalizers.NFC(), False),
    "gpt4o": (byte_level(split(GPT4O, "removed", invert=True)), None, False),
    "cl100k": (byte_level(split(CL100K)), None, False),
    "deepseek": (byte_level(*map(split, DEEPSEEK)), normalizers.Sequence([]), False),
    "deepseek_coder": (
        byte_level(*map(split, DEEPSEEK_CODER), pre_tokenizers.Digits(individual_digits=True)),
        None,
        False,
    ),
    "digits": (byte_level(pre_tokenizers.Digits(), regex=True), None, False),
    "odd": (byte_level(*map(split, ODD)), None, False),
    "prefix_of_pieces": (byte_level(pre_tokenizers.Split(".", "isolated"), prefix=True), None, True),
}
NON_SPECIAL = [AddedToken("<tool>", special=False, normalized=False), AddedToken("naïve", special=False)]


def trained(style, text, vocabulary=600):
    pre_tokenizer, normalizer, ignore_merges = STYLES[style]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    tokenizer.add_tokens(NON_SPECIAL)
    tokenizer.encode_special_tokens = True  # special tokens spelled out in a text are ordinary text
    return tokenizer


def reference(tokenizer):
    """The tokens of a list of texts."""
    return lambda texts: [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def training_text():
    root = Path(__file__).resolve().parent.parent
    text = (root / "README.md").read_text(encoding="utf-8")
    extra = "I'll we've DON'T 日本語の テキスト 가나다 12345 ½ ٣٤ naïve café façade\r\n\t  x == y_1;\n\n"
    return [text, extra * 20]
