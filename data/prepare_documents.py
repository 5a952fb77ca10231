"""The files of documents that prepare.py reads, whatever their format."""

import os
from abc import ABC, abstractmethod

END = None  # stands in a stream of text where a document ends


class DocumentFile(ABC):
    """A file of documents, on this disk or behind a URL. Making one does not open it."""

    name: str  # the path or URL, for messages and meta.json
    size: int | None  # bytes as they are stored; None if that is not known (a pipe)
    # Whether pieces() can pass over documents. Otherwise it is always called with skip = 0, and a run that
    # is continued reads the file from its start, without encoding what has been encoded.
    can_skip: bool = True

    @abstractmethod
    def pieces(self, skip, progress, findings):
        """Yields the text of the documents after the first `skip`, in order: strings, and END after each.

        An empty document is END alone. progress(n) is called as n more stored bytes have been read. What is
        unusual is noted in `findings` (prepare_sources.Findings), about a document after the END before it
        and before its own. Raises DataError that names the file and the row or byte.

        A long document comes in pieces of a few megabytes, so that memory stays bounded. Strings are valid
        Unicode: half of a surrogate pair is replaced by U+FFFD and noted. `bytes` in place of strings are
        for the tokenizer "bytes" alone. The same file gives the same pieces every time.

        At its end it may add an entry to findings.sources: {"name", "bytes", "sha256"} of what was read;
        otherwise the name and size stand there.
        """

    @property
    def can_reread(self):
        """Whether a run that was interrupted can be continued: the same bytes come again."""
        return self.size is not None

    def identity(self):
        """What changes if the file does; a list that JSON can hold."""
        try:
            return [self.name, self.size, os.stat(self.name).st_mtime_ns]
        except (OSError, ValueError):  # a URL
            return [self.name, self.size]
