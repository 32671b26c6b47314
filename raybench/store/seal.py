"""Seals: what a cells file says of itself and of its curves, so that damage and strangers are found.

The cells file of a shard is its commit record. Beside its rows it holds the shard's name, the results
folder it was written into, size and SHA-256 of its curves file, and a SHA-256 of its own bytes, computed
with zeros in the place of that digest. All pages bear checksums as well, for readers that look at them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from raybench.store.schema import SCHEMA_VERSION, version_of
from raybench.store.table import encode
from raybench.store.upgrades import readable, upgrade

SEAL, DIGEST = "raybench_seal", "raybench_digest"
BLANK = b"0" * 64


class Damaged(ValueError):
    """A file is not what was written."""


class Foreign(ValueError):
    """A file is sound, but not raybench's, or not this folder's."""


class OtherVersion(ValueError):
    """A file is of a version of the schema that this raybench does not read."""


@dataclass(frozen=True)
class Seal:
    """What a cells file says: its shard, the folder's id (empty: any), its curves file's digest and size.

    curves is empty where no cell of the shard has any.
    """

    shard: str
    folder: str = ""
    curves: str = ""
    size: int = 0

    def fits(self, data: bytes | None) -> bool:
        """Return whether these are the bytes of its curves file."""
        if not self.curves:
            return True
        return data is not None and len(data) == self.size and digest(data) == self.curves


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sealed(cells: pa.Table, shard: str, folder: str = "", curves: bytes | None = None) -> bytes:
    """Return the file of a shard's cells with its seal; curves are the bytes of its curves file."""
    seal = Seal(shard, folder)
    if curves is not None:
        seal = dataclasses.replace(seal, curves=digest(curves), size=len(curves))
    data = encode(cells, {SEAL: json.dumps(dataclasses.asdict(seal)), DIGEST: BLANK.decode()})
    at = data.rindex(BLANK)
    return data[:at] + digest(data).encode() + data[at + len(BLANK) :]


def opened(data: bytes) -> tuple[Seal, pq.ParquetFile]:
    """Return the seal of a cells file and its reader. Raises Damaged, Foreign or OtherVersion."""
    file = parquet(data)
    said = file.metadata.metadata or {}
    own = said.get(DIGEST.encode(), b"")
    at = data.rfind(own)
    if len(own) != len(BLANK) or digest(data[:at] + BLANK + data[at + len(own) :]) != own.decode():
        raise Damaged("its bytes are not those that were written")
    try:
        seal = Seal(**json.loads(said[SEAL.encode()]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged("its seal cannot be read") from error
    texts = (seal.shard, seal.folder, seal.curves)
    if not all(isinstance(text, str) for text in texts) or not isinstance(seal.size, int):
        raise Damaged("its seal cannot be read")
    return seal, file


def parquet(data: bytes, coded: Sequence[str] = ()) -> pq.ParquetFile:
    """Return the reader of a file of raybench's. Raises Damaged, Foreign or OtherVersion.

    coded: columns of texts that are to be read as places in a list of distinct texts; a column that
    the file lacks, as files of older versions may, is none of them.
    """
    try:
        buffer = pa.BufferReader(data)
        metadata = pq.read_metadata(buffer)
        file = pq.ParquetFile(
            buffer,
            metadata=metadata,
            read_dictionary=[name for name in coded if name in metadata.schema.names],
            page_checksum_verification=True,
        )
        schema = file.schema_arrow  # made anew each time it is asked for
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged("it is not a readable Parquet file") from error
    version = version_of(schema)
    if not version or "cell" not in schema.names:
        raise Foreign("raybench did not write it")
    if not readable(version):
        raise OtherVersion(f"it has schema version {version}, this raybench reads {SCHEMA_VERSION}")
    return file


def rows(file: pq.ParquetFile, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file in today's schema, or some of its columns. Raises Damaged.

    Columns that the file is read with as coded stay so.
    """
    names = list(columns or schema.names)
    version = version_of(file.schema_arrow)
    try:
        if version == SCHEMA_VERSION:
            table = file.read(names, use_threads=False)
        else:
            table = upgrade(file.read(use_threads=False), version, schema)
        table = table.select(names).replace_schema_metadata(None)
        wanted = pa.schema([_as_read(schema.field(n), table.schema.field(n)) for n in names])
        return table if table.schema.equals(wanted) else table.cast(wanted)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise Damaged("its pages cannot be read") from error


def _as_read(field: pa.Field, read: pa.Field) -> pa.Field:
    """Return the field of a column: with its own type where it was read as coded."""
    coded = pa.types.is_dictionary(read.type) and read.type.value_type == field.type
    return field.with_type(read.type) if coded else field
