"""Files of Hugging Face folders: safetensors in fp32, fp16 and bf16, read and written tensor by tensor, and
folders that appear whole or not at all."""

import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from console import DataError, UsageError, some
from run_reader import parse_json, read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
STORED_AS = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
DTYPES = {"fp32": "F32", "bf16": "BF16"}  # by the names of --dtype
LONGEST_HEADER = 100_000_000  # bytes


def to_bf16(values):
    """float32 to bf16 as uint16, rounded to nearest, ties to even. The values are finite."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        "<u2"
    )


def from_bf16(stored):
    """bf16 as uint16 to float32, exactly."""
    return (stored.astype("<u4") << np.uint32(16)).view("<f4")


# Reading


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its bytes begin .. end - 1 of the file."""

    path: Path
    dtype: str
    shape: tuple
    begin: int
    end: int

    def read(self, name):
        """The values, float32. Raises DataError if they cannot be read or are not finite."""
        with open(self.path, "rb") as file:
            file.seek(self.begin)
            contents = file.read(self.end - self.begin)
        if len(contents) != self.end - self.begin:
            raise DataError(f"{self.path}: tensor '{name}' is cut short")
        raw = np.frombuffer(contents, STORED_AS[self.dtype]).reshape(self.shape)
        values = from_bf16(raw) if self.dtype == "BF16" else raw.astype("<f4", copy=False)
        if not np.isfinite(values).all():
            raise DataError(f"{self.path}: tensor '{name}' holds values that are not finite")
        return values


def is_counts(value, length=None):
    counts = isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
    return counts and length in (None, len(value))


def read_header(path):
    """The tensors of a safetensors file, by name. Raises DataError."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(LONGEST_HEADER, size - 8):
                raise DataError(f"{path}: the file is cut short, damaged or no safetensors file")
            header = parse_json(file.read(length))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: its header is not JSON; the file is damaged ({error})") from None
    if not isinstance(header, dict):
        raise DataError(f"{path}: its header is no JSON object; the file is damaged")
    header.pop("__metadata__", None)
    return {name: stored_tensor(path, name, fields, 8 + length, size) for name, fields in header.items()}


def stored_tensor(path, name, fields, start, size):
    refuse = f"{path}: tensor '{name}'"
    if not isinstance(fields, dict) or not is_counts(fields.get("shape")):
        raise DataError(f"{refuse} has no shape; the file is damaged")
    dtype, shape, offsets = fields.get("dtype"), tuple(fields["shape"]), fields.get("data_offsets")
    if dtype not in STORED_AS:
        raise DataError(f"{refuse} is {dtype}; expected one of {', '.join(STORED_AS)}")
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if not is_counts(offsets, 2) or offsets[1] - offsets[0] != count * STORED_AS[dtype].itemsize:
        raise DataError(f"{refuse} of shape {list(shape)} does not fill its bytes; the file is damaged")
    if start + offsets[1] > size:
        raise DataError(f"{refuse} is cut short: the file has {size:,} bytes")
    return Stored(path, dtype, shape, start + offsets[0], start + offsets[1])


def read_tensors(folder):
    """The tensors of a folder by name, of one file or of those that its index lists. Raises DataError."""
    folder = Path(folder)
    if not (folder / INDEX).exists():
        if not (folder / WEIGHTS).exists():
            raise DataError(
                f"{folder}: has neither {WEIGHTS} nor {INDEX}; weights in another format (pytorch_model.bin, "
                "GGUF) have to be saved as safetensors first: model.save_pretrained(FOLDER)"
            )
        return read_header(folder / WEIGHTS)
    listed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise DataError(f"{folder / INDEX}: has no 'weight_map' of names; the file is damaged")
    tensors = {}
    for name in sorted(set(listed.values())):
        if Path(name).name != name:
            raise DataError(f"{folder / INDEX}: '{name}' is not a plain file name")
        if not (folder / name).exists():
            raise DataError(f"{folder / name}: listed in {INDEX} but missing; download the whole folder")
        tensors |= read_header(folder / name)
    absent = sorted(set(listed) - set(tensors))
    if absent:
        raise DataError(f"{folder / INDEX}: lists tensors that its files lack: {some(absent, 5)}")
    return tensors


# Writing


def write_tensors(path, tensors, metadata, write=lambda file, contents: file.write(contents)):
    """Writes a safetensors file. tensors: (name, shape, dtype, values()) in the order of the file; dtype is
    "F32" or "BF16", and values() gives float32 of that shape. write(file, bytes) does the writing."""
    header, end = {"__metadata__": metadata}, 0
    for name, shape, dtype, _ in tensors:
        begin, end = end, end + int(np.prod(shape, dtype=object)) * STORED_AS[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        write(file, len(text).to_bytes(8, "little") + text)
        for name, shape, dtype, values in tensors:
            array = values()
            if array.shape != tuple(shape):
                raise ValueError(f"{name}: {array.shape}, expected {shape}")
            write(file, to_bf16(array) if dtype == "BF16" else np.ascontiguousarray(array, "<f4"))
        file.flush()
        os.fsync(file.fileno())


def write_json(path, value):
    write_bytes(path, json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def write_bytes(path, contents):
    with open(path, "xb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())


def check_new_folder(path, overwrite=False, mark=None):
    """Refuses a place where a folder cannot be made. What is there is only replaced with `overwrite`, and if
    it holds the file `mark`, which such a folder has."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UsageError(f"{path}: is there and is no folder; give another name")
    if not path.exists() or not any(path.iterdir()):
        return
    if not overwrite:
        replace = "; --overwrite replaces it" if mark and (path / mark).exists() else ""
        raise UsageError(f"{path}: is there and is not empty; give another name{replace}")
    if not (path / mark).exists():
        raise UsageError(f"--overwrite {path}: has no {mark}, so that it is not such a folder; it stays")


@contextmanager
def new_folder(path):
    """Gives a hidden folder beside `path`, which takes its place at the end. After an error nothing is left,
    and what was at `path` stays."""
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden, old = (path.with_name(f".{path.name}.{os.getpid()}.{kind}") for kind in ("partial", "old"))
    hidden.mkdir()
    try:
        yield hidden
        sync_folder(hidden)
        if path.exists():
            os.rename(path, old)
        os.rename(hidden, path)
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if old.exists() and not path.exists():
            os.rename(old, path)
        shutil.rmtree(hidden, ignore_errors=True)


def sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
