"""JSON lines for prepare.py: a document in each line, as {"text": "..."}; plain, gzip or zstd."""

import codecs
import json

from console import DataError, some
from prepare_documents import END
from prepare_sources import damage_named
from prepare_storage import NULL_TEXT, StoredDocuments, decompressed, in_pieces

LONGEST_LINE = 1 << 28  # bytes


class JsonLines(StoredDocuments):
    """A document in each line; blank lines are none."""

    def pieces(self, skip, progress, findings):
        for row, line in self._lines(progress):
            if not line.strip():
                continue
            if skip > 0:
                skip -= 1
                continue
            text = self._text(row, line, findings)
            if text is None:
                findings.note(NULL_TEXT, f"{self.name}, line {row}")
            else:
                yield from in_pieces(text)
            yield END

    def _lines(self, progress):
        """(row, bytes) of each line."""
        row = 0
        with damage_named(lambda: f"{self.name}, after line {row}"):
            file = decompressed(self.stored, progress)
            while line := file.readline(LONGEST_LINE):
                row += 1
                if len(line) == LONGEST_LINE:
                    limit = f"longer than {LONGEST_LINE >> 20} MiB"
                    raise DataError(f"{self.name}, line {row}: {limit}: a document in each line is expected")
                line = line.rstrip(b"\r\n")
                yield row, line.removeprefix(codecs.BOM_UTF8) if row == 1 else line

    def _text(self, row, line, findings):
        """The text in a line; None if it is null."""
        where = f"{self.name}, line {row}"
        document = self._document(where, line, findings)
        if not isinstance(document, dict):
            raise DataError(f'{where}: is {kind(document)}, not an object such as {{"{self.column}": "..."}}')
        if self.column not in document:
            keys = some(map(repr, document)) or "none"
            raise DataError(f"{where}: no key {self.column!r}; it has {keys}; see --column")
        text = document[self.column]
        if text is not None and not isinstance(text, str):
            raise DataError(f"{where}: {self.column!r} is {kind(text)}, not a string")
        return text

    def _document(self, where, line, findings):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = line.decode(errors="replace")
            findings.replaced += text.count("\ufffd") - line.count("\ufffd".encode())
            findings.first_invalid = findings.first_invalid or where
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            problem = f"{error.msg}, at character {error.colno}"
        except (ValueError, RecursionError) as error:  # a number of too many digits; nested too deep
            problem = str(error)
        raise DataError(f"{where}: is not JSON ({problem}); a document in each line is expected")


def kind(value):
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object")
