"""The program train_gpt_goat, as scripts call it."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def program_path():
    """TRAIN_GPT_GOAT, else the program that make leaves in the root of the repository."""
    return Path(os.environ.get("TRAIN_GPT_GOAT", ROOT / "train_gpt_goat"))


def as_settings(values):
    """The --set words for values by section.key."""

    def text(value):
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [word for key, value in values.items() for word in ("--set", f"{key}={text(value)}")]
