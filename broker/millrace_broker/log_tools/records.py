"""Records of a batch as rows: typed columns, or key and value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from millrace_broker.log_tools.decoders import RecordDecoder, content_of
from millrace_broker.log_tools.findings import Finding, Note, Problem, Row

_NO_COLUMNS: Final[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class RecordView:
    """Selection of the record fields to show.

    ``with_data`` shows the content, decoded by ``decoder`` if set. ``with_metadata`` also shows offset, timestamp,
    headers and similar fields.
    """

    with_data: bool
    decoder: RecordDecoder | None = None
    with_metadata: bool = True

    def row(self, kind: str, metadata: dict[str, Any], content: dict[str, Any]) -> Row:
        """Build a row."""
        return Row(kind, metadata | content if self.with_metadata else content)

    def content(self, key: bytes | None, value: bytes | None, offset: int) -> tuple[dict[str, Any], Note | None]:
        """Return key and value, or their sizes, and a note if they cannot be decoded."""
        if not self.with_data:
            sizes = {
                "key_bytes": -1 if key is None else len(key),
                "value_bytes": -1 if value is None else len(value),
            }
            return sizes, None
        shown, problem = content_of(self.decoder, key, value)
        return shown, None if problem is None else Note(f"offset {offset} cannot be decoded: {problem}")


def records(entry: Entry, schema_of: SchemaOf, view: RecordView) -> Iterator[Finding]:
    """Read the records of an entry with a correct checksum.

    A typed batch whose schema is unknown to ``schema_of`` gets a note. A batch that cannot be decoded is a problem.
    """
    batch, header = entry.batch, entry.header
    try:
        if isinstance(batch, BatchEntry) and header is not None and not header.is_control:
            yield from _decoded(entry, header, schema_of, view)
        elif header is not None:
            yield from (_control(record) for record in read_rows(entry.data, 0, header))
        else:
            for record in batch.records():
                content, note = view.content(record.key, record.value, record.offset)
                yield view.row("record", {"offset": record.offset, "timestamp": record.timestamp_ms}, content)
                if note is not None:
                    yield note
    except UnknownSchemaError as error:
        yield Note(error.message)
    except MillraceError as error:
        yield Problem(error.message, entry.position, None if header is None else header.base_offset)


def _control(record: Record) -> Row:
    type_ = read_control_type(record.key)
    values = {"offset": record.offset, "timestamp": record.timestamp_ms, "control": type_.name.lower()}
    if type_ in (ControlType.ABORT, ControlType.COMMIT):
        values["coordinator_epoch"] = read_end_marker(record).coordinator_epoch
    return Row("control record", values)


def _decoded(entry: Entry, header: BatchHeader, schema_of: SchemaOf, view: RecordView) -> Iterator[Finding]:
    wanted = None if view.with_data or not header.is_columnar else _NO_COLUMNS
    decoded = decode_batch(pa.py_buffer(entry.data), 0, header, schema_of, wanted)
    is_opaque = decoded.schema_id == OPAQUE_SCHEMA_ID
    if is_opaque and wanted is not None:
        decoded = decode_batch(pa.py_buffer(entry.data), 0, header, schema_of)
    beside = zip(decoded.offsets().to_pylist(), decoded.timestamps_ms().to_pylist(), strict=True)
    headers = _lists(decoded.headers, decoded) if view.with_data else None
    tombstones = _lists(decoded.tombstones, decoded)
    rows = decoded.columns.to_pylist() if view.with_data or is_opaque else [None] * decoded.num_rows
    for number, ((offset, timestamp), values) in enumerate(zip(beside, rows, strict=True)):
        metadata: dict[str, Any] = {"offset": offset, "timestamp": timestamp}
        content: dict[str, Any] = {}
        note = None
        if is_opaque:
            content, note = view.content(values["key"], values["value"], offset)
        elif view.with_data:  # nested, because a topic may have a column "offset"
            content = {"value": values}
        after: dict[str, Any] = {}
        if headers is not None:
            after["headers"] = [[item["key"], item["value"]] for item in headers[number] or ()]
        if tombstones is not None:
            after["tombstone"] = tombstones[number]
        yield view.row("record", metadata, content | after if view.with_metadata else content)
        if note is not None:
            yield note


def _lists(array: pa.Array | None, decoded: DecodedBatch) -> list[Any] | None:
    return None if array is None else array.to_pylist()[: decoded.num_rows]
