"""Gathering single records into the columns of a table, at a few list appends a record.

Invariant: a record is in exactly one chunk, and a chunk is taken exactly once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as pat

from millrace.clients.batching import HEADERS, PARTITION, TIMESTAMP
from millrace.clients.futures import SendFuture
from millrace.clients.model import RecordMetadata, TopicDescription
from millrace.errors import SchemaMismatchError
from millrace.records import headers_array
from millrace.schemas import spark_name

Headers = Sequence[tuple[str, bytes | None]]
_RECORD_BYTES: Final = 24
"""What a record takes beside its key and value, about."""


class Row(NamedTuple):
    """One record as it waits. ``partition`` is -1 where the key or the producer decides."""

    key: Any
    value: Any
    headers: Headers
    timestamp_ms: int
    partition: int
    future: SendFuture[RecordMetadata]


@dataclass(slots=True)
class Chunk:
    """Records of one topic in the order in which they were sent."""

    created: float
    rows: list[Row] = field(default_factory=list)
    size_bytes: int = 0

    def table(self, topic: TopicDescription) -> pa.Table:
        """The records as a table that ``fit_table`` takes; raises ``SchemaMismatchError``."""
        keys, values, headers, timestamps_ms, partitions, _ = zip(*self.rows, strict=True)
        typed = topic.schema is not None
        timestamp_name, headers_name, partition_name = (
            (TIMESTAMP, HEADERS, PARTITION) if typed else ("timestamp", "headers", "partition")
        )
        try:
            if typed:
                table = pa.Table.from_pylist(values, schema=topic.schema)
            else:
                table = pa.table({"value": pa.array(values, pa.binary())})
                key_array = pa.array(keys, pa.binary())
                if key_array.null_count < len(key_array):
                    table = table.append_column("key", key_array)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatchError(f"a record does not fit topic {topic.name}: {error}") from error
        table = table.append_column(timestamp_name, pa.array(timestamps_ms, pa.int64()))
        if any(headers):
            table = table.append_column(headers_name, headers_array(headers))
        if max(partitions) >= 0:
            table = table.append_column(partition_name, pa.array(partitions, pa.int32()))
        return table


class RecordBuffer:
    """The open chunk of one topic. ``drain_lock`` is held while a taken chunk becomes batches, to keep their order.

    ``limit_bytes`` is the size from which the sending thread makes batches of it.
    """

    def __init__(self, topic: TopicDescription, limit_bytes: int) -> None:
        self.name = topic.name
        self.limit_bytes = limit_bytes
        self.drain_lock = threading.Lock()
        self._lock = threading.Lock()
        self._chunk: Chunk | None = None
        self._checker: RecordChecker | None = None
        self._checked_id = -1
        self.use(topic)

    def use(self, topic: TopicDescription) -> None:
        """Check the records that follow against the topic as it is now."""
        if topic.schema_id != self._checked_id:
            self._checker = RecordChecker(topic.schema) if topic.schema is not None else None
            self._checked_id = topic.schema_id

    @property
    def size_bytes(self) -> int:
        """About how large the open chunk is."""
        chunk = self._chunk
        return chunk.size_bytes if chunk is not None else 0

    @property
    def age_s(self) -> float | None:
        """How long the oldest record has waited; ``None`` when there is none."""
        chunk = self._chunk
        return None if chunk is None else time.monotonic() - chunk.created

    def append(
        self,
        future: SendFuture[RecordMetadata],
        key: Any,
        value: Any,
        headers: Headers,
        timestamp_ms: int,
        partition: int | None,
    ) -> bool:
        """Add a record; true when it is the first of its chunk. Raises ``SchemaMismatchError`` naming the column."""
        if self._checker is not None:
            size_bytes = self._checker.check(value, key)
        else:
            key, value = _as_bytes("key", key), _as_bytes("value", value)
            size_bytes = len(value or b"") + len(key or b"")
        row = Row(key, value, headers, timestamp_ms, -1 if partition is None else partition, future)
        with self._lock:
            chunk = self._chunk
            if chunk is None:
                chunk = self._chunk = Chunk(time.monotonic())
            chunk.rows.append(row)
            chunk.size_bytes += size_bytes + _RECORD_BYTES
            return len(chunk.rows) == 1

    def take(self) -> Chunk | None:
        """Take the open chunk, leaving none."""
        with self._lock:
            chunk, self._chunk = self._chunk, None
        return chunk


def _as_bytes(what: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise SchemaMismatchError(
        f"the {what} of a record in an opaque topic is bytes, text or None, not {type(value).__name__}: serialize it"
    )


class RecordChecker:
    """Checks dicts against a typed topic's schema when they are sent, as far as that is quick.

    Names, nulls, kinds of values and ranges of whole numbers are checked; what only the cast finds (digits of a
    decimal, elements of an array) fails the record's future instead.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = {field.name: field for field in schema}
        self._kinds = {field.name: _accepted(field.type) for field in schema}
        self._ranges = {field.name: 2 ** (field.type.bit_width - 1) for field in schema if pat.is_integer(field.type)}

    def check(self, value: Any, key: Any) -> int:
        """Raise ``SchemaMismatchError`` naming the column, or return about how many bytes the record takes."""
        if key is not None:
            raise SchemaMismatchError("a typed topic's key is in its key columns: leave key out")
        if not isinstance(value, Mapping):
            raise SchemaMismatchError(f"a record of a typed topic is a dict of its columns, not {type(value).__name__}")
        size_bytes = 0
        for name, item in value.items():
            kinds = self._kinds.get(name)
            if kinds is None:
                raise SchemaMismatchError(
                    f"column {name} is not in the topic's schema: its columns are {', '.join(self._fields)}"
                )
            if item is not None:
                self._check_item(name, item, kinds)
                size_bytes += len(item) if isinstance(item, (str, bytes, list, tuple, dict)) else 8
        for name, field_ in self._fields.items():
            if not field_.nullable and value.get(name) is None:
                raise SchemaMismatchError(f"column {name} is NOT NULL and has no value in the record")
        return size_bytes

    def _check_item(self, name: str, item: Any, kinds: tuple[type, ...]) -> None:
        is_misplaced_bool = isinstance(item, bool) and bool not in kinds
        if kinds and (is_misplaced_bool or not isinstance(item, kinds)):
            wanted = spark_name(self._fields[name].type)
            raise SchemaMismatchError(f"column {name}: {item!r} is no {wanted}")
        if isinstance(item, datetime) and pat.is_date(self._fields[name].type):
            raise SchemaMismatchError(f"column {name}: {item} has a time, a DATE has none: use its date()")
        limit = self._ranges.get(name)
        if limit is not None and not -limit <= item < limit:
            raise SchemaMismatchError(f"column {name}: {item} does not fit {spark_name(self._fields[name].type)}")
        if isinstance(item, datetime) and pat.is_timestamp(self._fields[name].type):
            has_zone, needs_zone = item.tzinfo is not None, self._fields[name].type.tz is not None
            if has_zone != needs_zone:
                remedy = "give it a time zone" if needs_zone else "drop its time zone"
                raise SchemaMismatchError(f"column {name}: {item} for {spark_name(self._fields[name].type)}: {remedy}")


def _accepted(data_type: pa.DataType) -> tuple[type, ...]:
    """Python types that may become this Arrow type; none where that is left to Arrow."""
    for matches, kinds in _PYTHON_TYPES:
        if matches(data_type):
            return kinds
    return ()


_PYTHON_TYPES: Final[list[tuple[Any, tuple[type, ...]]]] = [
    (pat.is_boolean, (bool,)),
    (pat.is_integer, (int,)),
    (pat.is_floating, (float, int)),
    (pat.is_decimal, (Decimal, int)),
    (pat.is_string, (str,)),
    (pat.is_binary, (bytes, bytearray, memoryview)),
    (pat.is_timestamp, (datetime,)),
    (pat.is_date, (date,)),
    (pat.is_time, (time_of_day,)),
    (pat.is_duration, (timedelta,)),
    (pat.is_list, (list, tuple)),
    (pat.is_struct, (Mapping,)),
]
