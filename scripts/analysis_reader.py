"""Reads what `train_gpt_goat analyze` left in a run's folder, if it is of the run's newest checkpoint."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from console import DataError, UsageError
from run_reader import MANIFEST, check_folder, first_whole, is_count, read_json, read_manifest, step_folders

SUMMARY = "analysis.json"
MOST_VALUES = 1 << 31  # of a file; more than the longest analysis of a large model


@dataclass(frozen=True)
class Analysis:
    run: Path
    step: int
    attention: str
    layers: int
    heads: int
    length: int  # T

    @property
    def folder(self):
        return self.run / "analysis"

    @property
    def name(self):
        return self.run.resolve().name

    def has(self, name):
        return (self.folder / name).exists()

    def array(self, name, kind, *shape):
        """The array in a .npy file. Raises DataError if it is damaged, or of another type or shape; None in
        `shape` stands for any number."""
        path = self.folder / name
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, SyntaxError, TypeError) as error:
            raise DataError(f"{path}: not a .npy file, or a damaged one ({error})") from None
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None
        if not isinstance(values, np.ndarray):
            raise DataError(f"{path}: not a .npy file")
        fits = len(values.shape) == len(shape) and all(
            want in (None, have) for want, have in zip(shape, values.shape, strict=True)
        )
        if values.dtype != kind or not fits or math.prod(values.shape) > MOST_VALUES:
            wanted = f"{np.dtype(kind)} [{', '.join('any' if n is None else str(n) for n in shape)}]"
            raise DataError(f"{path}: is {values.dtype} {list(values.shape)}, expected {wanted}")
        values = np.array(values)
        if not np.isfinite(values).all():
            raise DataError(f"{path}: holds values that are not finite; the model has diverged")
        return values


def command_for(run):
    """What a shell in the repository's folder takes."""
    return shlex.join(["./train_gpt_goat", "analyze", "--checkpoint", str(run)])


def read_summary_of_analysis(run):
    path = run / "analysis" / SUMMARY
    found = read_json(path)
    for key in ("step", "layers", "heads", "length"):
        if not is_count(found.get(key)) or (key != "step" and found[key] == 0):
            raise DataError(f"{path}: '{key}' is missing or not a count; it is written by {command_for(run)}")
    if not isinstance(found.get("attention"), str):
        raise DataError(f"{path}: 'attention' is missing; it is written by {command_for(run)}")
    keys = {key: found[key] for key in ("step", "attention", "layers", "heads", "length")}
    return Analysis(run=run, **keys)


def newer_checkpoint(run, step, warn):
    """The step of the newest whole checkpoint after `step`; None if there is none."""
    if (run / MANIFEST).exists():  # a checkpoint that was passed on
        alone = read_manifest(run / MANIFEST)["step"]
        return alone if alone != step else None
    later = [folder for newer, folder in step_folders(run).items() if newer > step]
    checkpoint = first_whole(later, warn)
    return checkpoint.step if checkpoint else None


def open_analysis(run, warn):
    """The analysis of a run. Raises UsageError with the command that makes one, if there is none or the run
    has gone on since."""
    run = Path(run)
    check_folder(run)
    if not (run / "analysis" / SUMMARY).exists():
        raise UsageError(f"{run / 'analysis'}: no analysis of the run; make one with: {command_for(run)}")
    analysis = read_summary_of_analysis(run)
    newer = newer_checkpoint(run, analysis.step, warn)
    if newer is not None:
        raise UsageError(
            f"{analysis.folder}: is of step {analysis.step}, and the run has a checkpoint of step {newer}; "
            f"make it anew with: {command_for(run)}"
        )
    return analysis
