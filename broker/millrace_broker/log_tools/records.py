"""The records of a batch as rows: decoded columns for typed topics, key and value for all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from millrace.errors import MillraceError, UnknownSchemaError
from millrace.records import (
    BatchEntry,
    BatchHeader,
    ControlType,
    DecodedBatch,
    Record,
    SchemaOf,
    decode_batch,
    read_control_type,
    read_end_marker,
    read_rows,
)
from millrace.records.columnar import OPAQUE_SCHEMA_ID
from millrace_broker.log_tools.batches import Entry
from millrace_broker.log_tools.findings import Finding, Note, Problem, Row

_NO_COLUMNS: Final[tuple[str, ...]] = ()


def records(entry: Entry, schema_of: SchemaOf, *, with_data: bool) -> Iterator[Finding]:
    """Read the records of an entry whose checksum is right; ``with_data`` shows their content, not only their sizes.

    A typed batch whose schema ``schema_of`` does not know gets a note; one that cannot be decoded is a problem.
    """
    batch, header = entry.batch, entry.header
    try:
        if isinstance(batch, BatchEntry) and header is not None and not header.is_control:
            yield from _decoded(entry, header, schema_of, with_data=with_data)
        elif header is not None:
            yield from (_control(record) for record in read_rows(entry.data, 0, header))
        else:
            yield from (_plain(record, with_data=with_data) for record in batch.records())
    except UnknownSchemaError as error:
        yield Note(error.message)
    except MillraceError as error:
        yield Problem(error.message, entry.position, None if header is None else header.base_offset)


def _plain(record: Record, *, with_data: bool) -> Row:
    values = {"offset": record.offset, "timestamp": record.timestamp_ms}
    return Row("record", values | _content(record.key, record.value, with_data=with_data))


def _content(key: bytes | None, value: bytes | None, *, with_data: bool) -> dict[str, Any]:
    if with_data:
        return {"key": key, "value": value}
    return {"key_bytes": -1 if key is None else len(key), "value_bytes": -1 if value is None else len(value)}


def _control(record: Record) -> Row:
    type_ = read_control_type(record.key)
    values = {"offset": record.offset, "timestamp": record.timestamp_ms, "control": type_.name.lower()}
    if type_ in (ControlType.ABORT, ControlType.COMMIT):
        values["coordinator_epoch"] = read_end_marker(record).coordinator_epoch
    return Row("control record", values)


def _decoded(entry: Entry, header: BatchHeader, schema_of: SchemaOf, *, with_data: bool) -> Iterator[Row]:
    wanted = None if with_data or not header.is_columnar else _NO_COLUMNS
    decoded = decode_batch(pa.py_buffer(entry.data), 0, header, schema_of, wanted)
    is_opaque = decoded.schema_id == OPAQUE_SCHEMA_ID
    if is_opaque and wanted is not None:
        decoded = decode_batch(pa.py_buffer(entry.data), 0, header, schema_of)
    beside = zip(decoded.offsets().to_pylist(), decoded.timestamps_ms().to_pylist(), strict=True)
    headers = _lists(decoded.headers, decoded) if with_data else None
    tombstones = _lists(decoded.tombstones, decoded)
    content = decoded.columns.to_pylist() if with_data or is_opaque else [None] * decoded.num_rows
    for number, ((offset, timestamp), values) in enumerate(zip(beside, content, strict=True)):
        row = {"offset": offset, "timestamp": timestamp}
        if is_opaque:
            row |= _content(values["key"], values["value"], with_data=with_data)
        elif with_data:  # under a name of their own: a topic may have a column "offset"
            row["value"] = values
        if headers is not None:
            row["headers"] = [[item["key"], item["value"]] for item in headers[number] or ()]
        if tombstones is not None:
            row["tombstone"] = tombstones[number]
        yield Row("record", row)


def _lists(array: pa.Array | None, decoded: DecodedBatch) -> list[Any] | None:
    return None if array is None else array.to_pylist()[: decoded.num_rows]
