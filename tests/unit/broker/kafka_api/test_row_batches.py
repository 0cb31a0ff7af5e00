"""Tests of columnar batches as rows for Kafka's consumers.

Batches of rows are passed on unchanged.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest

from millrace.errors import CorruptBatchError, UnsupportedForFormatError
from millrace.records import (
    ROWS_BYTES_MAX,
    Compression,
    Record,
    build_columnar_batch,
    build_rows_batch,
    read_rows,
    rows_of_opaque,
    scan_headers,
    verify_crc,
)
from millrace_broker.kafka_api.row_batches import (
    EVERY_OFFSET,
    OPAQUE_ROWS,
    ReadBatches,
    ResponseRoom,
    RowBatches,
    RowConversion,
    WantedOffsets,
)
from millrace_broker.quotas import ByteBudget, Lease
from millrace_broker.runtime import Executors

_TOPIC = b"t" * 16


def _columnar(*values: bytes, compression: Compression = Compression.NONE) -> bytes:
    columns = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    return bytes(build_columnar_batch(columns, timestamps_ms=5, compression=compression))


def _rows(*values: bytes) -> bytes:
    return bytes(build_rows_batch([Record(key=None, value=value, timestamp_ms=5) for value in values]))


def _read(
    records: bytes,
    conversion: RowConversion = OPAQUE_ROWS,
    partition: int = 0,
    wanted: WantedOffsets = EVERY_OFFSET,
) -> ReadBatches:
    return ReadBatches(_TOPIC, partition, records, conversion, wanted)


def _room(max_bytes: int = 2**40, budget_bytes: int = 2**40) -> ResponseRoom:
    return ResponseRoom(Lease(ByteBudget(budget_bytes)), max_bytes)


def _converted(
    batches: RowBatches, records: bytes, room: ResponseRoom | None = None, wanted: WantedOffsets = EVERY_OFFSET
) -> bytes:
    async def convert() -> bytes:
        executors = Executors(1, time.monotonic)
        try:
            return b"".join(await batches.as_rows(executors, _read(records, wanted=wanted), room=room or _room()))
        finally:
            executors.close()

    return asyncio.run(convert())


def _values(records: bytes) -> list[bytes | None]:
    return [
        record.value for position, header in scan_headers(records) for record in read_rows(records, position, header)
    ]


def test_batches_of_rows_are_the_same_bytes() -> None:
    records = _rows(b"a", b"b") + _rows(b"c")
    assert _converted(RowBatches(), records) == records


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
def test_columnar_batches_between_rows_become_rows_in_their_place(compression: Compression) -> None:
    records = _rows(b"a") + _columnar(b"b", b"c", compression=compression) + _rows(b"d") + _columnar(b"e")
    found = _converted(RowBatches(), records)
    assert not any(header.is_columnar for _, header in scan_headers(found))
    assert _values(found) == [b"a", b"b", b"c", b"d", b"e"]
    assert found.startswith(_rows(b"a"))


def test_a_batch_is_converted_once() -> None:
    batches, records = RowBatches(), _columnar(b"x" * 1000)
    first = _converted(batches, records)
    held = batches.held_bytes
    assert held == len(first)
    assert _converted(batches, records) == first
    assert batches.held_bytes == held


def test_rows_that_are_converted_ahead_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, records, conversions = RowBatches(), _columnar(b"x" * 1000), list[bytes]()

    def rows_of(batch: memoryview, first_offset: int) -> Iterator[bytes]:
        conversions.append(bytes(batch))
        yield from rows_of_opaque(batch, first_offset)

    async def run() -> None:
        executors = Executors(1, time.monotonic)
        try:
            read = _read(records, RowConversion("counted", rows_of))
            await batches.convert_ahead(executors, [read])
            assert batches.held_bytes
            assert _values(b"".join(await batches.as_rows(executors, read, room=_room()))) == [b"x" * 1000]
        finally:
            executors.close()

    asyncio.run(run())
    assert len(conversions) == 1


def test_rows_that_nobody_has_read_take_half_of_the_cache() -> None:
    """Otherwise they would drop each other, and would be converted twice."""
    size_bytes = len(_converted(RowBatches(), _columnar(b"x" * 1000)))

    async def run() -> None:
        batches, executors = RowBatches(6 * size_bytes), Executors(1, time.monotonic)
        reads = [_read(_columnar(b"x" * 1000), partition=number) for number in range(9)]
        try:
            for read in reads:
                await batches.convert_ahead(executors, [read])
            assert batches.held_bytes == 4 * size_bytes, "more than half, when the last one began"
            await batches.as_rows(executors, reads[0], room=_room())
            await batches.convert_ahead(executors, [reads[8]])
            assert batches.held_bytes == 5 * size_bytes
            for read in reads[4:8]:  # these are fetched without having been converted, and drop others
                await batches.as_rows(executors, read, room=_room())
            await batches.convert_ahead(executors, [reads[2]])
            assert batches.held_bytes <= 6 * size_bytes
            assert sum(batches._unread.values()) <= 4 * size_bytes
        finally:
            executors.close()

    asyncio.run(run())


def test_one_batch_is_converted_at_a_time() -> None:
    running = threading.Lock()
    converted: list[bytes] = []

    def rows_of(batch: memoryview, first_offset: int) -> Iterator[bytes]:
        assert running.acquire(blocking=False), "two conversions run at the same time"
        try:
            converted.append(bytes(batch))
            yield from rows_of_opaque(batch, first_offset)
        finally:
            running.release()

    async def convert() -> None:
        batches, executors = RowBatches(), Executors(8, time.monotonic)
        try:
            conversion = RowConversion("alone", rows_of)
            await asyncio.gather(
                *(
                    batches.as_rows(executors, _read(_columnar(b"a"), conversion, number), room=_room())
                    for number in range(40)
                )
            )
        finally:
            executors.close()

    asyncio.run(convert())
    assert len(converted) == 40


def test_batches_of_several_partitions_are_converted_in_one_thread() -> None:
    threads: list[int] = []

    def rows_of(batch: memoryview, first_offset: int) -> Iterator[bytes]:
        threads.append(threading.get_ident())
        yield from rows_of_opaque(batch, first_offset)

    async def convert() -> None:
        batches, executors = RowBatches(), Executors(8, time.monotonic)
        conversion = RowConversion("counted", rows_of)
        reads = [_read(_columnar(b"%d" % number), conversion, number) for number in range(4)]
        try:
            await batches.convert(executors, reads, 2**20)
            assert len(threads) == 4
            assert len(set(threads)) == 1
            for number, read in enumerate(reads):
                assert _values(b"".join(await batches.as_rows(executors, read, room=_room()))) == [b"%d" % number]
            await batches.convert(executors, reads, 2**20)
            assert len(threads) == 4, "cached rows were converted again"
        finally:
            executors.close()

    asyncio.run(convert())


def test_conversions_of_several_partitions_end_at_their_limit() -> None:
    async def convert() -> int:
        batches, executors = RowBatches(), Executors(1, time.monotonic)
        try:
            await batches.convert(executors, [_read(_columnar(b"x" * 100), partition=number) for number in range(9)], 1)
        finally:
            executors.close()
        return batches.held_bytes

    assert 0 < asyncio.run(convert()) < 200


def test_a_damaged_batch_does_not_end_the_conversions_of_other_partitions() -> None:
    damaged = bytearray(_columnar(b"value"))
    damaged[damaged.index(b"value")] ^= 1

    async def convert() -> None:
        batches, executors = RowBatches(), Executors(1, time.monotonic)
        reads = [_read(bytes(damaged)), _read(_columnar(b"a"), partition=1)]
        try:
            await batches.convert(executors, reads, 2**20)
            with pytest.raises(CorruptBatchError, match="fails its checksum"):
                await batches.as_rows(executors, reads[0], room=_room())
            assert _values(b"".join(await batches.as_rows(executors, reads[1], room=_room()))) == [b"a"]
        finally:
            executors.close()

    asyncio.run(convert())


def test_a_damaged_batch_is_refused() -> None:
    damaged = bytearray(_columnar(b"value"))
    damaged[damaged.index(b"value")] ^= 1
    with pytest.raises(CorruptBatchError, match="fails its checksum"):
        _converted(RowBatches(), bytes(damaged))


@pytest.mark.parametrize("first", [_rows(b"a"), _columnar(b"a")])
def test_the_batches_before_a_damaged_one_are_sent(first: bytes) -> None:
    damaged = bytearray(_columnar(b"value"))
    damaged[damaged.index(b"value")] ^= 1
    assert _values(_converted(RowBatches(), first + damaged)) == [b"a"]


def test_a_batch_that_waits_for_its_turn_is_not_converted_again() -> None:
    converted: list[bytes] = []

    def rows_of(batch: memoryview, first_offset: int) -> Iterator[bytes]:
        converted.append(bytes(batch))
        yield converted[-1]

    async def convert() -> None:
        batches, executors = RowBatches(), Executors(8, time.monotonic)
        conversion = RowConversion("counted", rows_of)
        try:
            found = await asyncio.gather(
                *(batches.as_rows(executors, _read(_columnar(b"a"), conversion), room=_room()) for _ in range(3))
            )
        finally:
            executors.close()
        assert found == [converted] * 3

    asyncio.run(convert())
    assert len(converted) == 1


def test_the_batches_used_least_recently_are_dropped() -> None:
    batches = RowBatches(bytes_max=3000)
    for number in range(20):
        _converted(batches, _columnar(b"%d" % number * 500))
        assert batches.held_bytes <= 3000
    assert batches.held_bytes > 0


def test_batches_of_typed_topics_have_no_rows() -> None:
    columns = pa.RecordBatch.from_pydict({"price": pa.array([1.5])})
    records = bytes(build_columnar_batch(columns, timestamps_ms=5, schema_id=7))
    with pytest.raises(UnsupportedForFormatError):
        _converted(RowBatches(), records)


_COUNT = 60_000


def _large(*, compression: Compression = Compression.NONE) -> bytes:
    """Return a batch of one transaction, whose rows have some 3 MB, and whose last records were compacted away."""
    offsets = [10 + 2 * number for number in range(_COUNT)]
    columns = pa.RecordBatch.from_pydict({"value": pa.array([b"%050d" % offset for offset in offsets], pa.binary())})
    return bytes(
        build_columnar_batch(
            columns,
            timestamps_ms=pa.array(offsets, pa.int64()),
            offsets=pa.array(offsets, pa.int64()),
            last_offset_delta=2 * _COUNT + 7,
            base_offset=5,
            base_sequence=2**31 - 50,
            producer_id=3,
            producer_epoch=1,
            is_transactional=True,
            leader_epoch=4,
            compression=compression,
        )
    )


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_large_batch_becomes_several_batches_of_rows_that_cover_its_offsets(compression: Compression) -> None:
    records = _large(compression=compression)
    found = _converted(RowBatches(), records)
    batches = list(scan_headers(found))
    headers = [header for _, header in batches]
    assert len(headers) >= 3
    assert all(header.size_bytes <= ROWS_BYTES_MAX for header in headers)
    assert (headers[0].base_offset, headers[-1].last_offset) == (5, 5 + 2 * _COUNT + 7)
    assert all(before.next_offset == after.base_offset for before, after in pairwise(headers))
    for position, header in batches:
        verify_crc(found, position, header)
        assert (header.producer_id, header.producer_epoch, header.partition_leader_epoch) == (3, 1, 4)
        assert (header.is_transactional, header.compression) == (True, compression)
    assert headers[0].base_sequence == 2**31 - 50
    assert headers[1].base_sequence == headers[1].base_offset - 5 - 50, "sequence numbers wrap"
    rows = [record for position, header in batches for record in read_rows(found, position, header)]
    assert [each.offset for each in rows] == [10 + 2 * number for number in range(_COUNT)]
    assert all(each.timestamp_ms == each.offset and each.value == b"%050d" % each.offset for each in rows)


def test_rows_end_with_the_limit_of_the_response_and_go_on_from_the_offset_after_them() -> None:
    batches, records, offset, answers = RowBatches(), _large(), 5, []
    while offset <= 5 + 2 * _COUNT + 7:
        room = _room(2**24)
        room.begin_partition(2**20)
        answers.append(_converted(batches, records, room, WantedOffsets(offset)))
        assert len(answers[-1]) <= 3 * 2**19, "the last batch of rows may exceed the limit"
        headers = [header for _, header in scan_headers(answers[-1])]
        assert headers[0].base_offset == offset
        offset = headers[-1].next_offset
    assert len(answers) > 1
    assert b"".join(answers) == _converted(RowBatches(), records)


@pytest.mark.parametrize("offset", [5, 6, 60_000, 5 + 2 * _COUNT, 5 + 2 * _COUNT + 7])
def test_the_first_batch_has_the_offset_and_is_sent_whatever_its_size(offset: int) -> None:
    """Rows from the cache and newly converted ones follow the same rule."""
    batches, records = RowBatches(), _large()
    found = _converted(batches, records, _room(1), WantedOffsets(offset))
    ((_, header),) = scan_headers(found)
    assert header.base_offset <= offset <= header.last_offset
    _converted(batches, records)
    assert _converted(batches, records, _room(1), WantedOffsets(offset)) == found


def test_rows_after_the_last_wanted_offset_are_not_converted() -> None:
    batches = RowBatches()
    ((_, header),) = scan_headers(_converted(batches, _large(), wanted=WantedOffsets(20, 30)))
    assert header.base_offset <= 20 < 30 <= header.last_offset


def test_another_partition_gets_only_rows_that_have_room() -> None:
    batches, room = RowBatches(), _room(ROWS_BYTES_MAX)
    assert _converted(batches, _columnar(b"x" * 700_000), room)
    room.begin_partition(ROWS_BYTES_MAX)
    assert not _converted(batches, _columnar(b"y" * 700_000), room)
    assert _converted(batches, _columnar(b"z"), room), "a smaller one has room"


def test_a_response_with_records_takes_rows_only_while_there_is_memory() -> None:
    budget = ByteBudget(3 * ROWS_BYTES_MAX)
    lease, other = Lease(budget), Lease(budget)
    assert other.take_now(3 * ROWS_BYTES_MAX)
    found = _converted(RowBatches(), _large(), ResponseRoom(lease, 2**30))
    ((_, header),) = scan_headers(found)
    assert lease.held_bytes == header.size_bytes, "the first batch is sent all the same"
    other.release()
    lease.release()
    assert budget.in_use_bytes == 0


def test_memory_is_booked_before_a_conversion() -> None:
    lease, booked = Lease(ByteBudget(2**30)), list[int]()

    def rows_of(batch: memoryview, first_offset: int) -> Iterator[bytes]:
        booked.append(lease.held_bytes)
        return rows_of_opaque(batch, first_offset)

    async def convert() -> None:
        executors = Executors(1, time.monotonic)
        try:
            conversion, room = RowConversion("booked", rows_of), ResponseRoom(lease, 100)
            await RowBatches().as_rows(executors, _read(_columnar(b"a"), conversion), room=room)
        finally:
            executors.close()

    asyncio.run(convert())
    assert booked == [ROWS_BYTES_MAX]
    assert lease.held_bytes < 100
