"""Independent reader of a topic's segment files, written by ``docs/formats.md`` alone.

It returns the records that readers may see, and uses none of our code.
"""

import struct
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

HEADER = struct.Struct(">qiibIhiqqqhii")
COLUMNAR, CONTROL, TRANSACTIONAL = 1 << 14, 1 << 5, 1 << 4
OPTIONAL_COLUMNS = (
    pa.field("__offset", pa.int32(), nullable=False),
    pa.field("__timestamp", pa.int64(), nullable=False),
    pa.field("__headers", pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]))),
    pa.field("__tombstone", pa.bool_(), nullable=False),
    pa.field("key", pa.binary()),
)
COMMIT = 1


class Batch(NamedTuple):
    """A record batch.

    A batch has offsets, attributes, a producer, and its bytes from the header on.
    """

    first: int
    last: int
    attributes: int
    producer: int
    body: bytes


def committed_values(data_dir, topic):
    """Return the values of an opaque topic that are committed or outside of any transaction."""
    found = []
    for directory in sorted(Path(data_dir).glob(f"{topic}-*")):
        found += _committed(_batches(directory))
    return found


def _committed(batches):
    """Return committed values. A transaction's records count at its marker, if that is a commit."""
    values, open_batches, end = [], {}, 0
    for batch in batches:
        assert batch.first >= end, "batches overlap"
        end = batch.last + 1
        if batch.attributes & CONTROL:
            ended = open_batches.pop(batch.producer, [])
            if _marker(batch) == COMMIT:
                values += [value for each in ended for value in _values(each)]
        elif batch.attributes & TRANSACTIONAL:
            open_batches.setdefault(batch.producer, []).append(batch)
        else:
            values += _values(batch)
    return values


def _batches(directory):
    for segment in sorted(directory.glob("*.log")):
        data, position = segment.read_bytes(), 0
        while position + HEADER.size <= len(data):
            base, length, _, magic, _, attributes, delta, _, _, producer, _, _, _ = HEADER.unpack_from(data, position)
            if length == 0:
                break  # preallocated space
            assert magic == 2
            end = position + 12 + length
            yield Batch(base, base + delta, attributes, producer, data[position + HEADER.size : end])
            position = end


def _marker(batch):
    """Return the type of a marker.

    It is the second number in the key of its only record, after five varints of one byte.
    """
    assert not batch.attributes & COLUMNAR
    _, kind = struct.unpack_from(">hh", batch.body, 5)
    return kind


def _values(batch):
    assert batch.attributes & COLUMNAR
    bits, schema_id, message, size = batch.body[1], *struct.unpack_from(">iii", batch.body, 3)
    assert schema_id == 0
    columns = [column for bit, column in enumerate(OPTIONAL_COLUMNS) if bits >> bit & 1]
    at = message - HEADER.size
    read = pa.ipc.read_message(pa.py_buffer(batch.body[at : at + size]))
    rows = pa.ipc.read_record_batch(read, pa.schema([*columns, pa.field("value", pa.binary())]))
    return rows["value"].to_pylist()
