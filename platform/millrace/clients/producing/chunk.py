"""Chunk of records gathered into columns, with the outcome of each record.

A chunk has two phases. While it is open, ``RecordBuffer`` appends records under its lock. After it is taken, it is
cut into batches, and each batch's outcome applies to its rows. Invariants: a row belongs to at most one batch, the
last that it was assigned to. An outcome never changes after it is set. The callbacks of a row are called once, after
its outcome is set, in the order of the rows of a batch. If a chunk becomes a single batch, as most small chunks do, it
keeps no state per row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.clients.model import BatchMetadata, RecordMetadata, TopicDescription
from millrace.clients.producing.batching import HEADERS, PARTITION, TIMESTAMP, Fitted, Rows
from millrace.clients.producing.futures import Outcomes, SendFuture, call_safely
from millrace.errors import MillraceError, SchemaMismatchError
from millrace.records import OPAQUE_SCHEMA
from millrace.records.arrays import binary_array, headers_array, int32_array
from millrace.schemas import conform

Headers = Sequence[tuple[str, bytes | None]]
OnDelivery = Callable[[RecordMetadata | None, MillraceError | None], Any]
"""Callback with the metadata of an acknowledged record, or the error of a failed one."""

_NO_BATCH: Final = -1
_VALUES_SCHEMA: Final = pa.schema([OPAQUE_SCHEMA.field("value")])


class _Fate(NamedTuple):
    metadata: BatchMetadata | None
    append_time_ms: int
    error: MillraceError | None


class Chunk:
    """Records of one topic in the order of their sends.

    Each column is a list. Rare columns (``keys``, ``headers``, ``partitions``) exist only from the first record that
    needs them. Timestamps are runs: records from ``stamp_rows[n]`` up to the next run have timestamp ``stamps_ms[n]``.
    """

    __slots__ = (
        "_batch_of",
        "_callbacks",
        "_condition",
        "_fates",
        "_monotonic",
        "_num_rows",
        "_position_of",
        "_timestamps_ms",
        "_unsettled_rows",
        "_when_settled",
        "created",
        "headers",
        "is_plain",
        "keys",
        "partitions",
        "reserved_bytes",
        "size_bytes",
        "stamp_rows",
        "stamp_until",
        "stamps_ms",
        "values",
    )

    def __init__(self, condition: Outcomes, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.values: list[Any] = []
        self.keys: list[Any] | None = None
        self.headers: list[Headers] | None = None
        self.partitions: list[int] | None = None
        self.is_plain = True
        self.stamp_rows: list[int] = []
        self.stamps_ms: list[int] = []
        self.stamp_until = 0.0
        self.size_bytes = 0
        self.reserved_bytes = 0
        self.created = 0.0
        self._num_rows: int | None = None
        self._timestamps_ms: npt.NDArray[np.int64] | None = None
        self._condition = condition
        self._monotonic = monotonic
        self._callbacks: dict[int, list[OnDelivery]] = {}
        self._batch_of: npt.NDArray[np.int32] | None = None
        self._position_of: npt.NDArray[np.int32] | None = None
        self._fates: list[_Fate | None] = []
        self._unsettled_rows = 0
        self._when_settled: Callable[[], None] | None = None

    # --- while it is open ----------------------------------------------------------------------------------------

    def stamp_now(self, row: int, now_s: float) -> None:
        """Set the current time for the records from ``row`` on, until the next millisecond."""
        if not row:
            self.created = self._monotonic()
        now_ms = int(now_s * 1000)
        self.stamp_until = (now_ms + 1) / 1000
        self.stamp_rows.append(row)
        self.stamps_ms.append(now_ms)

    def stamp(self, row: int, timestamp_ms: int) -> None:
        """Set the timestamp of the record ``row``."""
        if not row:
            self.created = self._monotonic()
        self.stamp_until = 0.0
        self.stamp_rows.append(row)
        self.stamps_ms.append(timestamp_ms)

    def set_beside(self, row: int, key: Any, headers: Headers, partition: int) -> None:
        """Set key, headers and partition of the record ``row``, which is appended next.

        Columns are cut at ``row`` first, because an interrupt may have left one longer than the values.
        """
        if key is not None or self.keys is not None:
            self.keys = self._column(self.keys, row, None)
            self.keys.append(key)
        if headers or self.headers is not None:
            self.headers = self._column(self.headers, row, ())
            self.headers.append(headers)
        if partition >= 0 or self.partitions is not None:
            self.partitions = self._column(self.partitions, row, -1)
            self.partitions.append(partition)

    def _column(self, column: list[Any] | None, row: int, absent: Any) -> list[Any]:
        self.is_plain = False
        if column is None:
            return [absent] * row
        del column[row:]
        return column

    def tell(self, row: int, callback: OnDelivery) -> None:
        """Register ``callback`` for the outcome of a record that is about to be appended."""
        self._condition.will_call()
        self._callbacks[row] = [callback]

    def add_callback(self, row: int, callback: OnDelivery) -> bool:
        """Register ``callback`` for the outcome of a record; returns false if the outcome is known already."""
        with self._condition:
            if self.is_done(row):
                return False
            self._condition.will_call()
            self._callbacks.setdefault(row, []).append(callback)
            return True

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Register ``callback`` for the time when the outcomes of all records are known; call this before sending."""
        self._when_settled = callback

    # --- becoming batches ----------------------------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return len(self.values) if self._num_rows is None else self._num_rows

    def close(self) -> None:
        """Close the chunk for further records."""
        count = self._num_rows = self._unsettled_rows = len(self.values)
        if len(self.stamps_ms) > 1:
            runs = np.array([*self.stamp_rows, count], np.int64)
            self._timestamps_ms = np.repeat(np.array(self.stamps_ms, np.int64), np.diff(runs))

    def fit(self, topic: TopicDescription, rows: Rows | None = None) -> Fitted:
        """Return the records, or some of them, in the form from which batches are built; raises
        ``SchemaMismatchError``.
        """
        beside: dict[str, pa.ChunkedArray] = {}
        if self._timestamps_ms is not None:
            stamps = self._timestamps_ms if rows is None else self._timestamps_ms[rows]
            buffers = [None, pa.py_buffer(stamps)]
            beside[TIMESTAMP] = pa.chunked_array([pa.Array.from_buffers(pa.int64(), len(stamps), buffers)])
        if self.headers is not None:
            beside[HEADERS] = pa.chunked_array([headers_array(_pick(self.headers, rows))])
        if self.partitions is not None:
            beside[PARTITION] = pa.chunked_array([int32_array(_pick(self.partitions, rows))])
        columns = self._opaque_columns(rows) if topic.schema is None else self._typed_columns(topic, rows)
        timestamp_ms = self.stamps_ms[0] if self.stamps_ms else 0
        return Fitted(topic=topic, columns=columns, beside=beside, timestamp_ms=timestamp_ms)

    def _opaque_columns(self, rows: Rows | None) -> pa.RecordBatch:
        values = binary_array(_pick(self.values, rows))
        if self.keys is None:
            return pa.RecordBatch.from_arrays([values], schema=_VALUES_SCHEMA)
        return pa.RecordBatch.from_arrays([binary_array(_pick(self.keys, rows)), values], schema=OPAQUE_SCHEMA)

    def _typed_columns(self, topic: TopicDescription, rows: Rows | None) -> pa.Table:
        try:
            columns = pa.Table.from_pylist(_pick(self.values, rows), schema=topic.schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatchError(f"a record does not fit topic {topic.name}: {error}") from error
        return conform(columns, topic.schema)

    def drop_records(self) -> None:
        """Drop the records after they have become batches."""
        self.values, self.keys, self.headers, self.partitions = [], None, None, None

    def assign(self, rows: Rows) -> int:
        """Register that some rows have become a batch; returns its number for ``settle``.

        The rows may have been in a batch that was too large and has no outcome.
        """
        with self._condition.lock:  # parts of an earlier batch may become batches at the same time
            number = len(self._fates)
            self._fates.append(None)
            if self._batch_of is None and len(rows) < self.num_rows:
                self._position_of = np.zeros(self.num_rows, np.int32)
                self._batch_of = np.full(self.num_rows, _NO_BATCH if not number else 0, np.int32)
            if self._batch_of is not None and self._position_of is not None:
                self._position_of[rows] = np.arange(len(rows))
                self._batch_of[rows] = number
            return number

    def _place(self, row: int) -> tuple[int, int]:
        """Return the number of a record's batch (``_NO_BATCH`` for none) and its position there."""
        if self._batch_of is None or self._position_of is None:
            return (0 if self._fates else _NO_BATCH), row
        return int(self._batch_of[row]), int(self._position_of[row])

    def _timestamp_ms(self, row: int) -> int:
        return self.stamps_ms[0] if self._timestamps_ms is None else int(self._timestamps_ms[row])

    # --- fates ---------------------------------------------------------------------------------------------------

    def settle(
        self,
        number: int,
        rows: Rows,
        metadata: BatchMetadata | None = None,
        append_time_ms: int = -1,
        error: MillraceError | None = None,
    ) -> None:
        """Set the outcome of a batch: wake the waiting threads, and call the callbacks of its rows."""
        with self._condition:
            self._fates[number] = _Fate(metadata, append_time_ms, error)
            self._unsettled_rows -= len(rows)
            is_settled = not self._unsettled_rows
            told = []
            if self._callbacks:
                pop = self._callbacks.pop
                told = [(at, found) for at, row in enumerate(_numbers(rows)) if (found := pop(row, None))]
            self._condition.notify_all()
        if told:
            self._call(told, rows, metadata, append_time_ms, error)
        if is_settled and self._when_settled is not None:
            self._when_settled()

    def _call(
        self,
        told: list[tuple[int, list[OnDelivery]]],
        rows: Rows,
        batch: BatchMetadata | None,
        append_time_ms: int,
        error: MillraceError | None,
    ) -> None:
        """Call the callbacks of a batch's rows, given by their positions in it."""
        if batch is None:
            for _, callbacks in told:
                for callback in callbacks:
                    call_safely(callback, None, error)
            return
        for at, callbacks in told:
            offset = batch.base_offset + at if batch.base_offset >= 0 else -1
            stamp = self._timestamp_ms(int(rows[at])) if append_time_ms < 0 else append_time_ms
            metadata = RecordMetadata(batch.topic, batch.partition, offset, stamp)
            for callback in callbacks:
                call_safely(callback, metadata, None)

    def refuse(self, rows: Rows, error: MillraceError) -> None:
        """Fail rows that are not in a batch."""
        self.settle(self.assign(rows), rows, error=error)

    def refuse_rest(self, error: MillraceError) -> None:
        """Fail all rows that are not in a batch yet."""
        rows: Rows = range(0 if self._fates else self.num_rows)
        if self._batch_of is not None:
            rows = np.flatnonzero(self._batch_of == _NO_BATCH)
        if len(rows):
            self.refuse(rows, error)

    def is_done(self, row: int) -> bool:
        """Return whether the outcome of a record is known."""
        number, _ = self._place(row)
        return number != _NO_BATCH and self._fates[number] is not None

    def fate(self, row: int) -> tuple[RecordMetadata | None, MillraceError | None]:
        """Return the metadata of a record or its error, after its outcome is known."""
        number, position = self._place(row)
        fate = self._fates[number]
        assert fate is not None
        batch = fate.metadata
        if batch is None:
            return None, fate.error
        offset = batch.base_offset + position if batch.base_offset >= 0 else -1
        stamp = fate.append_time_ms if fate.append_time_ms >= 0 else self._timestamp_ms(row)
        return RecordMetadata(batch.topic, batch.partition, offset, stamp), None

    @property
    def condition(self) -> Outcomes:
        """Condition that is notified when outcomes become known."""
        return self._condition


class RecordFuture(SendFuture[RecordMetadata]):
    """Outcome of one record's send.

    The object holds only the record's place in its chunk.
    """

    __slots__ = ("_chunk", "_row")

    def __init__(self, chunk: Chunk, row: int) -> None:
        self._chunk = chunk
        self._row = row

    def done(self) -> bool:
        """Return whether there is a result or an error."""
        return self._chunk.is_done(self._row)

    def add_done_callback(self, callback: Callable[[Self], Any]) -> None:
        """Call ``callback`` with this future once it is done, in the producer's own thread, or now if it is done."""
        if not self._chunk.add_callback(self._row, lambda metadata, error: callback(self)):
            call_safely(callback, self)

    def _get_condition(self) -> Outcomes:
        return self._chunk.condition

    def _outcome(self) -> tuple[Any, Exception | None]:
        return self._chunk.fate(self._row)


def _pick(column: list[Any], rows: Rows | None) -> list[Any]:
    return column if rows is None else [column[row] for row in _numbers(rows)]


def _numbers(rows: Rows) -> Sequence[int]:
    if isinstance(rows, range):
        return rows
    numbers: list[int] = rows.tolist()
    return numbers
