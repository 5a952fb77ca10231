"""The tokenizer of a run for the libraries `tokenizers` and `transformers`.

It makes the tokens that `train_gpt_goat sample` makes of a text, the BOS token before it included where the
training blocks begin with one (data.block = "bos").
"""

import json
from dataclasses import dataclass

from console import DataError

JSON_FILE = "tokenizer.json"
FILES = {"gpt2": ("vocab.bpe", "encoder.json"), JSON_FILE: (JSON_FILE,)}
END_OF_TEXT = "<|endoftext|>"
# The characters of the tasks passkey and niah: ids 3, 4, .. ; 0, 1 and 2 are these names.
TASK_NAMES = ("<pad>", "<bos>", "<eos>")
TASK_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 :;,.?+-_=/'\"[](){}<>#@!$%^&*|\\"
BASES = "ACGNT"
ASSUMED = {5: "dna", 256: "bytes", 50257: "gpt2"}  # by vocabulary, which may be padded
PADDING = 128


@dataclass(frozen=True)
class ExportedTokenizer:
    files: dict  # contents by name; empty if there is no tokenizer
    about: str  # a sentence for the folder's README
    bos: int | None = None
    eos: int | None = None


def tokenizer_name(config, recorded):
    """Which tokenizer made a run's tokens: what its data recorded, else by the vocabulary; None: unknown, or
    the tokens are no text."""
    source, vocab = config["data"]["source"], config["model"]["vocab"]
    if source in ("passkey", "niah"):
        return "characters"
    if source != "shards":
        return None
    known = {*ASSUMED.values(), *FILES}
    if recorded in known:
        return recorded
    fitting = (name for size, name in ASSUMED.items() if size <= vocab < size + (PADDING if size > 5 else 1))
    return next(fitting, None)


def export_tokenizer(config, recorded, folders):
    """The tokenizer of a run. recorded: its name in the run's data; folders: where its files may be."""
    name = tokenizer_name(config, recorded)
    if name is None:
        return ExportedTokenizer({}, "There is none: the model's tokens are ids without a text.")
    if name in FILES:
        complete = (f for f in folders if all((f / file).is_file() for file in FILES[name]))
        folder = next(complete, None)
        if folder is None:
            files = " and ".join(FILES[name])
            return ExportedTokenizer(
                {}, f"There is none: the run has not kept the files of its tokenizer, {name} ({files})."
            )
        loaded, about = (gpt2 if name == "gpt2" else from_json)(folder)
    else:
        loaded, about = {"bytes": byte_level, "dna": dna, "characters": characters}[name]()
    return with_bos(config, name, loaded, about)


def with_bos(config, name, loaded, about):
    """Adds the BOS token where the training blocks begin with it, and packs the files."""
    data, special = config["data"], {}
    bos = data["bos"] if data["source"] == "shards" and data["block"] == "bos" else None
    from tokenizers import decoders, processors

    loaded.no_truncation()
    loaded.no_padding()
    end = loaded.token_to_id(END_OF_TEXT) if name == "gpt2" else bos if name == JSON_FILE else None
    steps = (
        [processors.ByteLevel(trim_offsets=False)] if isinstance(loaded.decoder, decoders.ByteLevel) else []
    )
    text = loaded.id_to_token(bos) if bos is not None else None
    if text is not None:
        steps.append(
            processors.TemplateProcessing(
                single=f"{text} $A", pair=f"{text} $A $B", special_tokens=[(text, bos)]
            )
        )
        special["bos_token"] = text
        about += f" A text begins with the BOS token, id {bos}, as the training blocks did."
    if steps:
        loaded.post_processor = processors.Sequence(steps)
    if end is not None:
        special["eos_token"] = loaded.id_to_token(end)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": data["seq_len"],
        **special,
    }
    files = {
        JSON_FILE: loaded.to_str(pretty=True).encode() + b"\n",
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False).encode() + b"\n",
    }
    return ExportedTokenizer(files, about, bos, end)


# Each returns a tokenizers.Tokenizer, and a sentence about it.


def from_json(folder):
    from tokenizers import Tokenizer

    path = folder / JSON_FILE
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8")), "The run's tokenizer.json."
    except Exception as error:  # the package raises plain ones
        raise DataError(f"{path}: is no {JSON_FILE} ({error})") from None


def gpt2(folder):
    """GPT-2's byte-pair encoding, from OpenAI's vocab.bpe and encoder.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges, ids = (folder / name for name in FILES["gpt2"])
    try:
        vocabulary = json.loads(ids.read_text(encoding="utf-8"))
        lines = merges.read_text(encoding="utf-8").split("\n")
        pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        vocabulary.setdefault(END_OF_TEXT, len(vocabulary))
        loaded = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    except Exception as error:  # of the package, or of damaged files
        raise DataError(f"{merges}, {ids}: no GPT-2 vocabulary ({error})") from None
    loaded.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded.decoder = decoders.ByteLevel()
    loaded.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False)])
    return loaded, f"GPT-2's; the text {END_OF_TEXT} is that token, which `sample` takes as ordinary text."


def byte_alphabet():
    """The character that stands for each byte in byte-level vocabularies, as a string of 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(byte) for byte in printable} | {b: chr(256 + n) for n, b in enumerate(others)}
    return "".join(spelled[byte] for byte in range(256))


def byte_level():
    """A token is a byte, and its id the byte's value."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    loaded = Tokenizer(models.BPE(vocab={c: byte for byte, c in enumerate(byte_alphabet())}, merges=[]))
    loaded.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    loaded.decoder = decoders.ByteLevel()
    return loaded, "A token is a byte of the text in UTF-8, and its id is the byte's value."


def of_characters(tokens):
    """A token is a character. Others are an error, for there is no token for what is unknown."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    loaded = Tokenizer(
        models.WordLevel(vocab={token: n for n, token in enumerate(tokens)}, unk_token="<unk>")
    )
    loaded.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    loaded.decoder = decoders.Fuse()
    return loaded


def dna():
    from tokenizers import Regex, normalizers

    loaded = of_characters(BASES)
    capitals = [normalizers.Replace(base.lower(), base) for base in BASES]
    loaded.normalizer = normalizers.Sequence([normalizers.Replace(Regex("[ \t-\r]"), ""), *capitals])
    return (
        loaded,
        "A token is a base, A C G N T; lower case too, white space is skipped, others are an error.",
    )


def characters():
    loaded = of_characters([*TASK_NAMES, *TASK_CHARACTERS])
    return loaded, "A token is a character; one that the task does not have is an error."


def import_tokenizer(folder, is_gpt2):
    """(name, contents by file name) of the tokenizer in a folder of `transformers`, as the program reads it;
    ("", {}) if there is none that it could read."""
    pair = (folder / "merges.txt", folder / "vocab.json")
    if is_gpt2 and all(path.is_file() for path in pair):
        return "gpt2", dict(zip(FILES["gpt2"], (path.read_bytes() for path in pair), strict=True))
    path = folder / JSON_FILE
    return (JSON_FILE, {JSON_FILE: path.read_bytes()}) if path.is_file() else ("", {})
