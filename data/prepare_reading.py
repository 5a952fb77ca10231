"""Documents, read in batches that are encoded at once."""

from dataclasses import dataclass, field

from prepare_documents import END
from prepare_sources import Findings

BATCH_CHARACTERS = 1 << 20


@dataclass
class Position:
    """Where a run can go on: after `documents` documents of file number `file`, and then after `texts` of the
    texts that the documents from there on, of that file and of those after it, are cut into. `findings`: what
    had been found by those documents."""

    file: int = 0
    documents: int = 0
    texts: int = 0
    findings: Findings = field(default_factory=Findings)

    def as_dict(self):
        return vars(self) | {"findings": self.findings.as_dict()}

    @staticmethod
    def of(values):
        return Position(**values | {"findings": Findings(**values["findings"])})


@dataclass
class Batch:
    """texts: (text, whether a document starts with it). The rest is as of its end."""

    texts: list
    position: Position
    findings: Findings
    file: int


class Reader:
    """Reads files from a position on. The batches do not depend on where that is, but for the first."""

    def __init__(self, files, new_cutter, position, progress):
        self.files, self.new_cutter, self.progress = files, new_cutter, progress
        self.findings = Findings(**position.findings.as_dict())
        self.mark = self._place(position.file, position.documents)
        self.known = position.texts  # texts to be read and dropped
        self.texts = 0  # since the mark

    def batches(self):
        batch, characters = [], 0
        for text in self._texts():
            self.texts += 1
            if self.texts <= self.known:
                continue
            batch.append(text)
            characters += len(text[0])
            if characters >= BATCH_CHARACTERS:
                yield self._batch(batch)
                batch, characters = [], 0
                self.wants_mark = True
        if batch:
            yield self._batch(batch)

    def _batch(self, texts):
        mark = self.mark
        position = Position(mark.file, mark.documents, self.texts, mark.findings)
        return Batch(texts, position, self.findings.snapshot(), self.file)

    def _place(self, file, documents):
        """A mark: the texts are counted from here."""
        self.wants_mark = False
        self.texts = self.known = 0
        return Position(file, documents, 0, self.findings.snapshot())

    def _texts(self):
        first = self.mark.file
        for self.file in range(first, len(self.files)):
            file = self.files[self.file]
            if self.wants_mark:
                self.mark = self._place(self.file, 0)
            documents = self.mark.documents if self.file == first else 0
            sources = len(self.findings.sources)
            yield from self._texts_of_file(file, documents)
            if len(self.findings.sources) == sources:
                self.findings.sources.append({"name": file.name, "bytes": file.size or 0})

    def _texts_of_file(self, file, documents):
        cutter, starts = self.new_cutter(), True
        for piece in file.pieces(documents, self.progress, self.findings):
            for text in cutter.finish() if piece is END else cutter.add(self._unicode(piece)):
                self.findings.documents += starts
                yield text, starts
                starts = False
            if piece is END:
                self.findings.empty_documents += starts
                self.findings.forced_cuts += cutter.take_forced_cuts()
                documents, starts = documents + 1, True
                if self.wants_mark and file.can_skip:
                    self.mark = self._place(self.file, documents)

    def _unicode(self, piece):
        """Without halves of surrogate pairs, which some formats can spell, and which cannot be encoded."""
        if isinstance(piece, bytes) or piece.isascii():
            return piece
        try:
            piece.encode()
            return piece
        except UnicodeEncodeError:
            self.findings.note("replaced by U+FFFD: texts with half of a surrogate pair")
            return piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
