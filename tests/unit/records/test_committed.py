"""Tests of the filter of aborted records.

It is compared with the producers' history and with the algorithm of Kafka's consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.records import (
    AbortedTransaction,
    BatchHeader,
    CommittedFilter,
    ControlType,
    EndTransactionMarker,
    Record,
    build_columnar_batch,
    build_end_marker_batch,
    build_rows_batch,
    decode_range,
    read_control_type,
    read_rows,
    scan_headers,
)

PRODUCERS = (7, 8, 9)


@dataclass
class Log:
    """A log under construction.

    The log also has the records that a read_committed reader must get.
    """

    data: bytearray = field(default_factory=bytearray)
    next_offset: int = 0
    open: dict[int, list[int]] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    visible: set[int] = field(default_factory=set)

    def write(self, producer_id: int, count: int, *, is_transactional: bool, is_columnar: bool) -> None:
        offsets = list(range(self.next_offset, self.next_offset + count))
        values = [b"%d" % offset for offset in offsets]
        options = {
            "base_offset": self.next_offset,
            "producer_id": producer_id,
            "producer_epoch": 0,
            "base_sequence": 0,
            "is_transactional": is_transactional,
        }
        if is_columnar:
            columns = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
            self.data += build_columnar_batch(columns, timestamps_ms=1, **options)  # type: ignore[arg-type]
        else:
            records = [Record(key=None, value=value, timestamp_ms=1) for value in values]
            self.data += build_rows_batch(records, **options)  # type: ignore[arg-type]
        self.next_offset += count
        if is_transactional:
            self.open.setdefault(producer_id, []).extend(offsets)
        else:
            self.visible.update(offsets)

    def end(self, producer_id: int, *, committed: bool) -> None:
        marker = EndTransactionMarker(type=ControlType.COMMIT if committed else ControlType.ABORT, coordinator_epoch=0)
        self.data += build_end_marker_batch(
            marker, base_offset=self.next_offset, timestamp_ms=1, producer_id=producer_id, producer_epoch=0
        )
        offsets = self.open.pop(producer_id, [])
        if committed:
            self.visible.update(offsets)
        elif offsets:
            self.aborted.append(AbortedTransaction(producer_id, offsets[0], self.next_offset))
        self.next_offset += 1

    def reaching_into(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return a broker's answer for a range."""
        return [each for each in self.aborted if each.last_offset >= start and each.first_offset < end]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(PRODUCERS), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans()),
        st.tuples(st.just("plain"), st.integers(1, 3), st.booleans()),
    ),
    max_size=40,
)


def log_of(history: list[tuple[object, ...]]) -> Log:
    log = Log()
    for step in history:
        match step:
            case ("write", int(producer), int(count), bool(columnar)):
                log.write(producer, count, is_transactional=True, is_columnar=columnar)
            case ("end", int(producer), bool(committed)):
                log.end(producer, committed=committed)
            case ("plain", int(count), bool(columnar)):
                log.write(-1 if count == 1 else 6, count, is_transactional=False, is_columnar=columnar)
    for producer in list(log.open):
        log.end(producer, committed=False)
    return log


def no_schema(schema_id: int) -> pa.Schema:
    raise AssertionError(f"no batch is typed, but schema {schema_id} was requested")


def read(log: Log, start: int, end: int, aborted: list[AbortedTransaction]) -> list[int]:
    buffer = pa.py_buffer(bytes(log.data))
    found = decode_range(buffer, start, end, no_schema, aborted=aborted)
    return [int(value) for batch in found for value in batch.columns.column("value").to_pylist()]


@given(steps, st.data())
def test_only_committed_records_are_read_from_any_offset(
    history: list[tuple[object, ...]], data: st.DataObject
) -> None:
    log = log_of(history)
    start = data.draw(st.integers(0, log.next_offset))
    end = data.draw(st.integers(start, log.next_offset))
    expected = [offset for offset in sorted(log.visible) if start <= offset < end]
    assert read(log, start, end, log.reaching_into(start, end)) == expected
    assert read(log, start, end, log.aborted) == expected, "transactions beyond the range do no harm"


@given(steps)
def test_committed_records_are_those_that_kafkas_consumer_reads(history: list[tuple[object, ...]]) -> None:
    log = log_of(history)
    committed = CommittedFilter(log.aborted)
    ours = [header.base_offset for _, header in scan_headers(bytes(log.data)) if committed.admits(header)]
    assert ours == _kafka(bytes(log.data), log.aborted)


def _kafka(data: bytes, aborted: list[AbortedTransaction]) -> list[int]:
    """Read as ``CompletedFetch.nextFetchedRecord``, which only knows where aborted transactions begin."""
    waiting = sorted(((each.first_offset, each.producer_id) for each in aborted), reverse=True)
    aborting: set[int] = set()
    admitted = []
    for position, header in scan_headers(data):
        if header.producer_id >= 0:
            while waiting and waiting[-1][0] <= header.last_offset:
                aborting.add(waiting.pop()[1])
            if _is_abort_marker(data, position, header):
                aborting.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in aborting:
                continue
        if not header.is_control:
            admitted.append(header.base_offset)
    return admitted


def _is_abort_marker(data: bytes, position: int, header: BatchHeader) -> bool:
    if not header.is_control:
        return False
    record = next(iter(read_rows(data, position, header)))
    return read_control_type(record.key) is ControlType.ABORT


def test_the_rest_of_a_compacted_batch_is_still_aborted() -> None:
    # Compaction may have removed the record at which the transaction began.
    records = [Record(key=b"k", value=b"v", timestamp_ms=1, offset=12)]
    data = build_rows_batch(
        records, base_offset=None, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    header = next(scan_headers(data))[1]
    assert CommittedFilter([AbortedTransaction(1, 12, 20)]).is_aborted(header)
    assert CommittedFilter([AbortedTransaction(1, 5, 12)]).is_aborted(header)
    assert CommittedFilter([AbortedTransaction(1, 10, 20)]).is_aborted(header)
    assert not CommittedFilter([AbortedTransaction(1, 13, 20)]).is_aborted(header)
    assert not CommittedFilter([AbortedTransaction(1, 5, 11)]).is_aborted(header)
    assert not CommittedFilter([AbortedTransaction(2, 5, 20)]).is_aborted(header)
