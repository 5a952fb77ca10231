"""Reads token shards (data/shard.h), and finds the validation shards of a run as the program does."""

import glob
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from console import DataError

HEADER_INTS, HEADER_BYTES = 256, 1024
TYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}  # magic and version: type of a token


@dataclass(frozen=True)
class Shard:
    path: Path
    tokens: np.ndarray  # mapped, read only


def open_shard(path):
    """The tokens of a shard, without reading them. Raises DataError."""
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: is not a regular file")
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    if len(header) < HEADER_BYTES:
        raise DataError(f"{path}: {len(header)} bytes are too few for the header of a shard")
    magic, version, tokens = (int(word) for word in np.frombuffer(header, "<i4")[:3])
    kind = TYPES.get((magic, version))
    if kind is None:
        raise DataError(f"{path}: begins with {magic}, {version}: not a shard of tokens")
    size = HEADER_BYTES + tokens * np.dtype(kind).itemsize
    if tokens < 1 or status.st_size != size:
        raise DataError(f"{path}: {status.st_size:,} bytes do not fit the {tokens:,} tokens of its header")
    return Shard(path, np.memmap(path, kind, "r", HEADER_BYTES, (tokens,)))


def validation_files(checkpoint):
    """The files of data.val: an absolute pattern, or one looked for in the current folder, in the one where
    the run was started, and in those above the run. Raises DataError."""
    pattern = checkpoint.value("data.val", str)
    if not pattern:
        raise DataError(f"{checkpoint.run}: the run has no validation data (data.val is empty)")
    data = checkpoint.state.get("data")
    started = data.get("working_folder") if isinstance(data, dict) else None
    run = checkpoint.run.absolute()
    folders = [Path(), *([Path(started)] if isinstance(started, str) and started else []), *run.parents]
    for folder in folders:
        found = sorted(glob.glob(str(Path(glob.escape(str(folder))) / Path(pattern).expanduser())))
        if found:
            return [Path(file) for file in found]
    raise DataError(
        f"no file matches the run's validation data, data.val = '{pattern}', in the current folder, in that "
        f"where the run was started, or above {run}"
    )
