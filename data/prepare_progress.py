"""How far a run is: for the terminal, and for the space that it will need on the disk."""

import errno
import shutil
import sys

from console import ScriptError, warn

TYPICAL_LEAST = 1 / 6  # tokens from a stored byte of text, where a token is not a byte


class Progress:
    """A bar on a terminal, as a context manager. `whole`: stored bytes of all files, None if not known;
    `before`: those that an earlier run has read; `tokens`: those it has written; `limit`: of the tokens, or
    None."""

    def __init__(self, whole, before, tokens, limit):
        self.whole, self.bytes, self.limit = whole, before, limit
        self.before, self.tokens = tokens, tokens

    def __enter__(self):
        from tqdm import tqdm

        disable = sys.stderr is None or not sys.stderr.isatty()
        counted = dict(total=self.whole, initial=self.bytes, unit="B")
        if self.limit is not None:
            counted = dict(total=self.limit, initial=self.tokens, unit=" tokens")
        self.bar = tqdm(**counted, unit_scale=True, disable=disable, leave=False)
        return self

    def __exit__(self, *_):
        self.bar.close()

    def read(self, stored_bytes):
        self.bytes += stored_bytes
        if self.limit is None:
            self.bar.update(stored_bytes)

    def written(self, tokens):
        self.tokens += tokens
        if self.limit is not None:
            self.bar.update(tokens)
        if not self.bar.disable and (seconds := self.bar.format_dict["elapsed"]):
            self.bar.set_postfix_str(f"{(self.tokens - self.before) / seconds:,.0f} tokens/s", refresh=False)


class Space:
    """Watches the disk. `copied`: share of the tokens that stands there twice for a while, when the
    validation split is cut off."""

    def __init__(self, folder, progress, tokenizer, most_tokens, copied):
        self.path, self.progress = folder.path, progress
        self.least = 1 if tokenizer.name == "bytes" else TYPICAL_LEAST
        self.token_bytes, self.most_tokens, self.copied = tokenizer.token_bytes, most_tokens, copied
        self.has_warned = False
        folder.explain = self.explain

    def check_before(self):
        """Refuses what cannot fit even if the text is easy on the tokenizer."""
        needed, free = self._missing(self.least), self._free()
        if needed is not None and needed > free:
            raise ScriptError(
                f"--out {self.path}: about {size(needed)} are needed there, and {size(free)} are free"
            )

    def check(self):
        needed, free = self._missing(), self._free()
        if needed is not None and needed > free and not self.has_warned:
            warn("prepare.py", f"warning: {self.path}: {self._said(needed, free)}")
            self.has_warned = True

    def explain(self, error):
        """What to add to the message of a failure to write."""
        needed = self._missing()
        if error.errno != errno.ENOSPC or needed is None:
            return ""
        return f" ({self._said(needed, self._free())})"

    def _missing(self, tokens_per_byte=None):
        """Bytes still to be written; None if that is not known."""
        progress = self.progress
        if progress.whole is None:
            return None
        if tokens_per_byte is None:
            is_known = progress.bytes and progress.tokens
            tokens_per_byte = progress.tokens / progress.bytes if is_known else self.least
        left = max(progress.whole - progress.bytes, 0) * tokens_per_byte
        if self.most_tokens is not None:
            left = min(left, max(self.most_tokens - progress.tokens, 0))
        return int(self.token_bytes * (left + self.copied * (left + progress.tokens)))

    def _free(self):
        return shutil.disk_usage(self.path).free

    @staticmethod
    def _said(needed, free):
        return f"about {size(needed)} more are needed, {size(free)} are free"


def size(number):
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:,.1f} {units[0]}" if units[0] != "bytes" else f"{number} bytes"
