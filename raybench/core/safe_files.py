"""Files of people: what is written appears as a whole, and what others wrote is bounded, and runs nothing, as it is read."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from raybench.core.errors import InputError
from raybench.core.limits import check_fits, check_growth

# Equal values take next to no space in a Parquet file, so that a table may outgrow it by so many times.
REPETITION = 10_000


@contextmanager
def replacement(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a place beside ``path`` with the same ending, to write to; at the end it takes the place of ``path``.

    If the block fails, what was there stays. A link is followed; what is no file, such as a pipe, is yielded itself.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        yield place
        return
    beside = place.with_name(f".{uuid.uuid4().hex[:8]}.{place.name}")
    try:
        yield beside
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def load_tensors(file: str | Path | IO[bytes], where: str, what: str, fix: str) -> Any:
    """Return what a file of ``torch.save`` holds, on the CPU: tensors and plain values alone, so that nothing in it runs.

    Raises InputError, with ``where`` as its key and what the file is called, for what could run code or is no such file.
    """
    import torch

    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # whose text advises to read it unsafely
        kind = "is no file of torch.save, or holds objects that could run code as they are read"
        raise InputError.of(where, f"{what} {kind}", fix) from None


class BoundedParquet:
    """A Parquet file in memory. where, what: key and name of what is refused, as InputError, since it is too large.

    Sizes are those that the file states; that of a page which states less than it unpacks to (2 GB at most) shows too
    late. What pyarrow raises passes through.
    """

    def __init__(self, data: bytes, where: str, what: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._size, self._named = len(data), (where, what)
        buffer = pa.BufferReader(data)
        about = pq.read_metadata(buffer)
        groups = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
        self._check(max(sum(groups), 8 * about.num_rows * about.num_columns))
        leaves = map(about.schema.column, range(about.num_columns))
        # a text that a file holds once for a million rows is held once in memory too
        strings = [leaf.path for leaf in leaves if leaf.logical_type.type == "STRING"]
        texts = [path for path in strings if path.count(".") == 2 * path.endswith(".key_value.key")]
        how: dict[str, Any] = {"read_dictionary": texts, "page_checksum_verification": True}
        self.file = pq.ParquetFile(buffer, metadata=about, **how)
        self.metadata = about.metadata or {}
        self.schema = about.schema.to_arrow_schema()

    def read(self, columns: Sequence[str], coded: bool) -> Any:
        """Return columns as an Arrow table, texts as such; coded: each once, as a dictionary."""
        import pyarrow.types as kinds

        table = self.file.read(list(columns), use_threads=False)
        table.validate(full=True)  # texts that are no UTF-8, too
        self._check(sum(_spread(chunk) for column in table.columns for chunk in column.chunks))
        for i, field in enumerate(table.schema):
            plain = self.schema.field(field.name)
            kind = plain.type.value_type if kinds.is_dictionary(plain.type) else plain.type
            if not (coded and kinds.is_dictionary(field.type)) and field.type != kind:
                table = table.set_column(i, plain.with_type(kind), table[i].cast(kind))
        return table

    def _check(self, count: int) -> None:
        where, what = self._named
        check_growth(where, what, self._size, count, times=REPETITION)
        check_fits(where, f"{what} unpacked", count, "take fewer rows, or a larger machine")


def _spread(chunk: Any) -> int:
    """Return the bytes of texts that are held once, as often as they stand there, and of a map with a column for each key."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    texts = chunk.keys if kinds.is_map(chunk.type) else chunk
    if not kinds.is_dictionary(texts.type):
        return 0
    each = pc.binary_length(texts.dictionary)
    columns = len(each) if texts is not chunk else 0
    return 8 * len(chunk) * columns + (pc.sum(each.take(texts.indices)).as_py() or 0)
