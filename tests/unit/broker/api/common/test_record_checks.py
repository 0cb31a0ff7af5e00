from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import CorruptBatchError, InvalidRecordError, InvalidTimestampError, MillraceError
from millrace.records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    Compression,
    Record,
    build_columnar_batch,
    build_rows_batch,
    read_header,
    seal,
)
from millrace_broker.api.common.record_checks import check_bodies, check_records
from millrace_broker.log import ProducedBatches
from millrace_broker.metadata import RecordCodecs, TopicInfo
from millrace_broker.metadata.topics import SchemaVersion
from millrace_broker.runtime import Executors
from millrace_broker.runtime.small_work import SMALL_BYTES

NOW_MS = 1_700_000_000_000
NO_CODECS = RecordCodecs(dict)


def topic(**overrides: Any) -> TopicInfo:
    named = {name.replace("_", "."): str(value) for name, value in overrides.items()}
    config = TopicConfig.load(dict(named))
    return TopicInfo(name="t", topic_id=uuid.UUID(int=1), partitions={}, overrides=named, config=config)


def batch(*times_ms: int, value: bytes = b"v", compression: Compression = Compression.NONE) -> bytes:
    records = [Record(key=None, value=value, timestamp_ms=each) for each in times_ms]
    return bytes(build_rows_batch(records, compression=compression))


@pytest.mark.parametrize("too_far_ms", [-1001, 501])
def test_timestamps_too_far_from_now_are_refused(too_far_ms: int) -> None:
    limited = topic(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    near = ProducedBatches(batch(NOW_MS - 1000, NOW_MS + 500), limited.config)
    assert check_bodies(NO_CODECS, limited, near, NOW_MS) is near
    far = ProducedBatches(batch(NOW_MS, NOW_MS + too_far_ms), limited.config)
    with pytest.raises(InvalidTimestampError, match=r"message.timestamp.(before|after).max.ms"):
        check_bodies(NO_CODECS, limited, far, NOW_MS)


def test_each_record_whose_timestamp_is_refused_is_named() -> None:
    limited = topic(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    times = (NOW_MS, NOW_MS - 1001, NO_TIMESTAMP, NOW_MS + 501, NOW_MS - 1000, NOW_MS + 500)
    with pytest.raises(InvalidTimestampError) as caught:
        check_bodies(NO_CODECS, limited, ProducedBatches(batch(*times), limited.config), NOW_MS)
    reason = f"the topic takes records with times from {NOW_MS - 1000} to {NOW_MS + 500}"
    assert caught.value.record_errors == {1: reason, 3: reason}
    stamped = topic(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1000)
    check_bodies(NO_CODECS, stamped, ProducedBatches(batch(*times), stamped.config), NOW_MS)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("times_ms", [(NO_TIMESTAMP, NO_TIMESTAMP), (NOW_MS, NOW_MS - 5)])
def test_the_largest_timestamp_of_rows_is_corrected(times_ms: tuple[int, ...], compression: Compression) -> None:
    sound = batch(*times_ms, compression=compression)
    claimed = seal(read_header(sound)._replace(max_timestamp=NOW_MS + 7), sound[HEADER_BYTES:])
    produced = ProducedBatches(sound + claimed + sound, topic().config)
    found = check_bodies(NO_CODECS, topic(), produced, NOW_MS)
    assert bytes(found.data) == sound * 3
    assert [header.max_timestamp for _, header in found.headers] == [max(times_ms)] * 3


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("position", [61, 62, 63, 68])
def test_columns_whose_header_breaks_its_rules_are_an_error_of_their_producer(position: int, is_typed: bool) -> None:
    # The producer has made a checksum for them, so that it would send the same bytes again.
    columns = pa.record_batch({"value": pa.array([b"v"])})
    damaged = bytearray(build_columnar_batch(columns, timestamps_ms=NOW_MS, schema_id=7 if is_typed else 0))
    damaged[position] = 0xFF
    of_columns = (SchemaVersion(id=7, version=1, arrow_schema=columns.schema.serialize().to_pybytes()),)
    where = replace(topic(), schemas=of_columns) if is_typed else topic()
    produced = ProducedBatches(seal(read_header(damaged), bytes(damaged[HEADER_BYTES:])), where.config)
    with pytest.raises(InvalidRecordError):
        check_bodies(NO_CODECS, where, produced, NOW_MS)


@pytest.mark.parametrize(("name", "low", "high"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -500, 22)])
def test_rows_are_compressed_with_the_level_of_the_topic(name: str, low: int, high: int) -> None:
    value = b" ".join(b"%d of %d" % (row * row % 977, row % 31) for row in range(3000))

    def stored_bytes(**levels: int) -> int:
        levelled = topic(compression_type=name, **levels)
        return len(check_bodies(NO_CODECS, levelled, ProducedBatches(batch(1, value=value), levelled.config), 1).data)

    option = f"compression_{name}_level"
    fast, small = stored_bytes(**{option: low}), stored_bytes(**{option: high})
    assert small < fast
    assert small <= stored_bytes() <= fast, "the default"


@pytest.mark.parametrize("value_bytes", [10, SMALL_BYTES])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_small_and_large_batches_are_verified_once(value_bytes: int, is_damaged: bool, verified: list[int]) -> None:
    large = topic(max_message_bytes=2 * SMALL_BYTES)
    data = bytearray(batch(NOW_MS, value=b"v" * value_bytes))
    data[-1] ^= is_damaged

    async def checked() -> ProducedBatches | MillraceError:
        executors = Executors(1, asyncio.get_running_loop().time)
        try:
            return await check_records(executors, NO_CODECS, large, bytes(data), NOW_MS, in_transaction=False)
        except MillraceError as error:
            return error
        finally:
            executors.close()

    found = asyncio.run(checked())
    assert isinstance(found, CorruptBatchError if is_damaged else ProducedBatches)
    assert verified == [0]


@pytest.mark.parametrize(
    ("value_bytes", "is_in_thread"), [(10, False), (SMALL_BYTES, True)], ids=["small", "large when decompressed"]
)
def test_small_compressed_rows_are_checked_in_the_event_loop(value_bytes: int, is_in_thread: bool) -> None:
    data = batch(NOW_MS, value=bytes(value_bytes), compression=Compression.LZ4)
    threads: list[bool] = []

    class Counted(Executors):
        async def run_io(self, function: Any, *args: Any, **kwargs: Any) -> Any:
            threads.append(True)
            return await super().run_io(function, *args, **kwargs)

    async def checked() -> ProducedBatches:
        executors = Counted(1, asyncio.get_running_loop().time)
        try:
            return await check_records(executors, NO_CODECS, topic(), data, NOW_MS, in_transaction=False)
        finally:
            executors.close()

    assert bytes(asyncio.run(checked()).data) == data
    assert bool(threads) == is_in_thread
