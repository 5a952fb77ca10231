"""Reads the folder of a run: the checkpoint that the program itself would take, the metrics and the summary.

A checkpoint is a folder with state.json and model.safetensors. It counts only if state.json is whole (its own
checksum) and the weights are those that state.json lists (size and checksum). The newest such one is a run's.
"""

import json
import math
import re
import stat
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from console import DataError, UsageError, one_line

METRICS = "metrics.jsonl"
MANIFEST, WEIGHTS, CHECKSUM = "state.json", "model.safetensors", "xxh3_64"
CONFIG = "config.toml"
FORMAT_OF_FILES, FORMAT_OF_PIECES = 1, 2  # a checksum for each file, or for each of its pieces
LARGEST_MANIFEST = 64 << 20  # bytes
LARGEST_COUNT = 1 << 62
LARGEST_JSON = 64 << 20  # bytes
LARGEST_CONFIG = 1 << 20  # bytes
READ_BYTES = 1 << 20
STEP_FOLDER = re.compile(r"step_([0-9]{8}|[1-9][0-9]{8,17})")  # as printf's %08d writes it


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    step: int
    config: dict  # by section and key: the model's, as it was when the checkpoint was written
    state: dict = field(default_factory=dict)  # all of state.json, but for its checksum

    @property
    def run(self):
        """The folder of the run it belongs to; the checkpoint's own where it stands alone."""
        parent = self.folder.absolute().parent
        stands_in_run = parent.name == "checkpoints" and STEP_FOLDER.fullmatch(self.folder.name)
        return parent.parent if stands_in_run else self.folder

    def value(self, key, kind, allowed=lambda value: True):
        """The value of section.key; raises DataError if it is missing, of another type or not `allowed`."""
        section, _, name = key.partition(".")
        table = self.config.get(section)
        value = table.get(name) if isinstance(table, dict) else None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or not allowed(value):
            shown = "is missing" if value is None else f"= {value!r} cannot be"
            raise DataError(
                f"{self.folder / MANIFEST}: config: {key} {shown}; was it written by another version?"
            )
        return value

    def tensors(self, shapes):
        """float64 arrays by name; `shapes` gives the name and shape of each."""
        path = self.folder / WEIGHTS
        with open_tensors(path) as file:
            found = set(file.keys())
            return {name: read_tensor(path, file, found, name, shape) for name, shape in shapes.items()}

    def shapes(self):
        """The shape of every tensor of the model, by name."""
        with open_tensors(self.folder / WEIGHTS) as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}


@contextmanager
def open_tensors(path):
    """A safetensors file, which is no dict. Raises DataError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: {error}") from None


def read_tensor(path, file, found, name, shape):
    if name not in found:
        raise DataError(f"{path}: tensor '{name}' is missing")
    stored = file.get_slice(name)
    if stored.get_dtype() != "F32" or tuple(stored.get_shape()) != shape:
        is_now = f"{stored.get_dtype()} {list(stored.get_shape())}"
        raise DataError(f"{path}: tensor '{name}' is {is_now}, expected F32 {list(shape)}")
    values = file.get_tensor(name).astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"{path}: tensor '{name}' holds values that are not finite; the run has diverged")
    return values


def read_bytes(path, limit=None):
    """A regular file's contents. Raises DataError: a pipe would be waited for, a folder cannot be read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: is not a regular file")
        if limit is not None and status.st_size > limit:
            raise DataError(f"{path}: {status.st_size:,} bytes are more than such a file has")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


# Checkpoints


class Number(float):
    """A number of a JSON text that remembers how it was written there."""

    def __new__(cls, text):
        number = super().__new__(cls, text)
        number.text = text
        return number


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def parse_json(contents, parse_float=float):
    """Strict JSON in UTF-8. Raises ValueError, also for what is nested too deeply."""
    try:
        text = contents.decode("utf-8-sig")
        return json.loads(text, parse_float=parse_float, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, limit=LARGEST_JSON):
    """The JSON object in a file. Raises DataError."""
    try:
        found = parse_json(read_bytes(Path(path), limit))
    except ValueError as error:
        raise DataError(f"{path}: not JSON; the file is damaged ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a JSON object")
    return found


def canonical(value):
    """The compact text whose checksum state.json holds: keys in order, no spaces.

    Numbers with a fraction or exponent stay as they are written. The program writes the short form that
    nlohmann's JSON library finds, which is not always Python's. So a state.json that another tool has
    rewritten is refused, even if the values are the same.
    """
    if isinstance(value, dict):
        members = (f"{json.dumps(key, ensure_ascii=False)}:{canonical(value[key])}" for key in sorted(value))
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, Number):
        return value.text
    return json.dumps(value, ensure_ascii=False)


def is_count(value):
    return type(value) is int and 0 <= value < LARGEST_COUNT


def read_manifest(path):
    """state.json, checked against its own checksum. Raises DataError."""
    try:
        manifest = parse_json(read_bytes(path, LARGEST_MANIFEST), Number)
    except ValueError as error:
        raise DataError(f"{path}: not a JSON object; the file is damaged or cut short ({error})") from None
    if not isinstance(manifest, dict):
        raise DataError(f"{path}: not a JSON object; the file is damaged")
    version = manifest.get("format")
    if isinstance(version, bool) or version not in (FORMAT_OF_FILES, FORMAT_OF_PIECES):
        raise DataError(f"{path}: format {version!r}, this script reads the formats 1 and 2")
    checksum = manifest.pop(CHECKSUM, None)
    try:
        actual = xxhash.xxh3_64_hexdigest(canonical(manifest).encode())
    except UnicodeEncodeError:  # half of a surrogate pair, spelled as an escape
        actual = None
    if actual is None or actual != checksum:
        raise DataError(
            f"{path}: its checksum does not match; the file is damaged, or another tool rewrote it"
        )
    if not is_count(manifest.get("step")) or not isinstance(manifest.get("config"), str):
        raise DataError(f"{path}: 'step' or 'config' is missing or not what a checkpoint's manifest holds")
    return manifest


def listed_pieces(manifest, file):
    """(bytes, checksum) of each piece of a file, in order. Raises ValueError if they do not cover it."""
    if manifest["format"] == FORMAT_OF_FILES:
        pieces = [{"offset": 0, "bytes": file["bytes"], CHECKSUM: file.get(CHECKSUM)}]
    else:
        pieces = file.get("pieces")
    end = 0
    for piece in pieces if isinstance(pieces, list) else []:
        if (
            not isinstance(piece, dict)
            or not (is_count(piece.get("offset")) and is_count(piece.get("bytes")))
            or not isinstance(piece.get(CHECKSUM), str)
            or piece["offset"] != end
            or (manifest["format"] == FORMAT_OF_PIECES and piece["bytes"] == 0)
        ):
            raise ValueError
        end += piece["bytes"]
    if not pieces or end != file["bytes"]:
        raise ValueError
    return [(piece["bytes"], piece[CHECKSUM]) for piece in pieces]


def listed_weights(manifest, path):
    """Bytes and pieces of model.safetensors according to state.json."""
    files = manifest.get("files")
    for file in files if isinstance(files, list) else []:
        if isinstance(file, dict) and file.get("name") == WEIGHTS and is_count(file.get("bytes")):
            try:
                return file["bytes"], listed_pieces(manifest, file)
            except ValueError:
                raise DataError(
                    f"{path}: the checksums of {WEIGHTS} do not cover it once; the file is damaged"
                ) from None
    raise DataError(f"{path}: does not list {WEIGHTS}; the file is damaged")


def checksum_of(file, count):
    """The checksum of the next `count` bytes of an open file."""
    digest = xxhash.xxh3_64()
    while block := file.read(min(READ_BYTES, count)):
        digest.update(block)
        count -= len(block)
    return digest.hexdigest()


def verify_weights(path, size, pieces):
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: is not a regular file")
        if status.st_size != size:
            raise DataError(f"{path}: {status.st_size:,} bytes, expected {size:,}")
        with open(path, "rb") as file:
            if not all(checksum_of(file, count) == checksum for count, checksum in pieces):
                raise DataError(f"{path}: its checksum does not match {MANIFEST}; the file is damaged")
    except FileNotFoundError:
        raise DataError(f"{path}: listed in {MANIFEST} but missing") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def read_checkpoint(folder):
    """The checkpoint in `folder`, verified. Raises DataError."""
    path = folder / MANIFEST
    if not path.exists():
        raise DataError(f"{folder}: no {MANIFEST}: not a complete checkpoint")
    manifest = read_manifest(path)
    verify_weights(folder / WEIGHTS, *listed_weights(manifest, path))
    try:
        config = tomllib.loads(manifest["config"])
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"{path}: config: {error}") from None
    return Checkpoint(folder, manifest["step"], config, manifest)


def step_folders(run):
    """The step_* folders of a run by step, the newest first."""
    checkpoints = run / "checkpoints"
    names = [entry.name for entry in checkpoints.iterdir() if entry.is_dir()] if checkpoints.is_dir() else []
    found = {int(match[1]): checkpoints / match[0] for match in map(STEP_FOLDER.fullmatch, names) if match}
    return dict(sorted(found.items(), reverse=True))


def first_whole(folders, warn):
    """The first checkpoint of these folders that can be used, or None; warn(message) is told of others."""
    for folder in folders:
        try:
            return read_checkpoint(folder)
        except DataError as error:
            warn(f"warning: {error}; trying the checkpoint before it")
    return None


def newest_checkpoint(run, warn):
    """The newest checkpoint that can be used; warn(message) is told of others. Raises DataError."""
    folders = step_folders(run)
    if checkpoint := first_whole(folders.values(), warn):
        return checkpoint
    if folders:
        raise DataError(f"{run / 'checkpoints'}: none of its {len(folders)} checkpoints can be used")
    raise DataError(
        f"{run / 'checkpoints'}: no checkpoint step_*; train first, or wait until the run has saved one"
    )


def check_folder(path):
    if not path.is_dir():
        problem = "is not a folder" if path.exists() else "no such folder"
        raise UsageError(f"{path}: {problem}; expected the one given to train_gpt_goat --out")


def open_checkpoint(path, step, warn):
    """The checkpoint that `path` means: a run's newest one or that of `step`, or what it is itself."""
    path = Path(path)
    if path.name == WEIGHTS and path.is_file():
        path = path.parent
    check_folder(path)
    if (path / MANIFEST).exists():
        checkpoint = read_checkpoint(path)
        if step not in (None, checkpoint.step):
            raise UsageError(f"--checkpoint {step}: {path} is the checkpoint of step {checkpoint.step}")
        return checkpoint
    if not (path / CONFIG).exists() and not (path / "checkpoints").exists():
        raise UsageError(
            f"{path}: holds no run (config.toml, checkpoints) and no checkpoint ({MANIFEST}, {WEIGHTS})"
        )
    if step is None:
        return newest_checkpoint(path, warn)
    folders = step_folders(path)
    if step not in folders:
        steps = ", ".join(map(str, sorted(folders))) or "none"
        raise UsageError(f"--checkpoint {step}: {path / 'checkpoints'} has no such step; there are: {steps}")
    return read_checkpoint(folders[step])


def check_run_folder(path):
    """Refuses what is no folder of a run, begun or finished."""
    check_folder(path)
    if not (path / CONFIG).exists() and not (path / METRICS).exists():
        raise UsageError(f"{path}: holds no run ({CONFIG}, {METRICS})")


# Configs


def flat(table, prefix=""):
    """A config's values by section.key."""
    values = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        values |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return values


def read_config(run):
    """The values of a run's config.toml by section.key. Raises DataError."""
    path = Path(run) / CONFIG
    try:
        return flat(tomllib.loads(read_bytes(path, LARGEST_CONFIG).decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not TOML; the file is damaged ({error})") from None


def differing_keys(configs):
    """The keys that are not the same in all configs, in their order."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({json.dumps(config.get(key), default=str) for config in configs}) > 1]


# Metrics


def is_number(value):
    return type(value) in (int, float)


def parse_metrics(path, number, line):
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: not JSON ({error})") from None
    if not isinstance(entry, dict):
        raise DataError(f"{path}, line {number}: expected an object, found {one_line(line.decode())[:40]}")
    if ("loss" in entry or "val_loss" in entry) and not is_count(entry.get("step")):
        raise DataError(f"{path}, line {number}: 'step' is missing or not a count")
    for key in ("loss", "val_loss"):
        if entry.get(key) is not None and not is_number(entry[key]):
            raise DataError(f"{path}, line {number}: {key} is {entry[key]!r}, expected a number")
    return entry


def read_metrics(run):
    """The lines of metrics.jsonl, a dict each, without a last line that has no end: it is being written."""
    path = Path(run) / METRICS
    if not path.exists():
        raise UsageError(f"{path}: no such file; expected the folder given to train_gpt_goat --out")
    lines = read_bytes(path).split(b"\n")
    return [parse_metrics(path, number, line) for number, line in enumerate(lines[:-1], 1) if line.strip()]


def finite(value):
    """A loss as float, NaN for one that is missing, null or beyond float64."""
    try:
        number = float(value) if is_number(value) else math.nan
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def read_summary(run):
    """summary.json, which a run writes at its end; {} before that."""
    path = Path(run) / "summary.json"
    return read_json(path) if path.exists() else {}
