"""Parquet files for prepare.py: a document in each row, read row group by row group."""

import contextlib
import io

from console import DataError, ScriptError, some
from prepare_documents import END
from prepare_storage import BLOCK_BYTES, NULL_TEXT, StoredDocuments, in_pieces

BATCH_ROWS = 64  # read at once, but for long ones
BATCH_BYTES = 1 << 24  # of text in them


class ParquetFile(StoredDocuments):
    """A document in each row; rows count from 1."""

    def pieces(self, skip, progress, findings):
        import pyarrow.parquet

        if self.size is None:
            problem = "is a pipe, and Parquet is read from its end on; save it as a file"
            raise DataError(f"{self.name}: {problem}")
        row = 0
        with io.BufferedReader(self.stored.open(), BLOCK_BYTES) as stored:
            with arrow_damage_named(lambda: f"{self.name}: not a whole Parquet file"):
                file = pyarrow.parquet.ParquetFile(stored, pre_buffer=False, buffer_size=BLOCK_BYTES)
                self._check_column(file.schema_arrow)
            reported = 0
            for group in range(file.num_row_groups):
                about = file.metadata.row_group(group)
                skipped = min(skip, about.num_rows)
                if skipped < about.num_rows:
                    yield from self._group(file, group, row, skipped, findings)
                skip -= skipped
                row += about.num_rows
                size = sum(about.column(i).total_compressed_size for i in range(about.num_columns))
                progress(size)
                reported += size
            progress(max(0, self.size - reported))  # what lies between and after the row groups

    def _check_column(self, schema):
        if self.column not in schema.names:
            names = some(map(repr, schema.names)) or "none"
            raise DataError(f"{self.name}: no column {self.column!r}; it has {names}; see --column")
        if schema.names.count(self.column) > 1:
            raise DataError(f"{self.name}: several columns are called {self.column!r}; rename all but one")
        kind = schema.field(self.column).type
        if not is_text(kind):
            raise DataError(f"{self.name}: column {self.column!r} is of type {kind}, not string")

    def _group(self, file, group, row, skip, findings):
        """The documents of a row group after its first `skip`; it begins after `row` rows of the file."""
        rows = self._batch_rows(file.metadata.row_group(group))
        batches = file.iter_batches(rows, [group], columns=[self.column], use_threads=False)
        while (batch := self._next(batches, row)) is not None:
            skipped = min(skip, batch.num_rows)
            skip -= skipped
            row += skipped
            for text in self._texts(batch.column(0).slice(skipped), row, findings):
                row += 1
                if text is None:
                    findings.note(NULL_TEXT, f"{self.name}, row {row}")
                else:
                    yield from in_pieces(text)
                yield END

    def _batch_rows(self, about):
        """How many rows of a row group to read at once: fewer where they are long."""
        columns = map(about.column, range(about.num_columns))
        sizes = [column.total_uncompressed_size for column in columns if column.path_in_schema == self.column]
        return min(max(BATCH_BYTES * about.num_rows // max(sum(sizes), 1), 1), BATCH_ROWS)

    def _next(self, batches, row):
        with arrow_damage_named(lambda: f"{self.name}, after row {row}: damaged"):
            return next(batches, None)

    def _texts(self, column, row, findings):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:
            return [
                self._decoded(value, row + i, findings) for i, value in enumerate(as_bytes(column), start=1)
            ]

    def _decoded(self, value, row, findings):
        if value is None:
            return None
        text = value.decode(errors="replace")
        if invalid := text.count("\ufffd") - value.count("\ufffd".encode()):
            findings.replaced += invalid
            findings.first_invalid = findings.first_invalid or f"{self.name}, row {row}"
        return text


def is_text(kind):
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def as_bytes(column):
    import pyarrow

    return column.cast(pyarrow.large_binary()).to_pylist()


@contextlib.contextmanager
def arrow_damage_named(problem):
    """What pyarrow says of a damaged file, as a DataError with problem() in front."""
    import pyarrow

    try:
        yield
    except ScriptError:
        raise
    except (pyarrow.ArrowException, OSError, MemoryError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{problem()} ({reason}); copy or download it again") from None
