"""The files of documents that prepare.py reads, whatever their format."""

from abc import ABC, abstractmethod

END = None  # stands in a stream of text where a document ends


class DocumentFile(ABC):
    """A file of documents, on this disk or behind a URL. Making one does not open it."""

    name: str  # the path or URL, for messages and meta.json
    size: int | None  # bytes as they are stored; None if that is not known (a pipe)

    @abstractmethod
    def pieces(self, skip, progress, findings):
        """Yields the text of the documents after the first `skip`, in order: strings, and END after each.

        An empty document is END alone. progress(n) is called as n more stored bytes have been read. What is
        unusual is noted in `findings`. Raises DataError that names the file and the row or byte.
        """
