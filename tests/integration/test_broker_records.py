"""Tests of produce, fetch and offset lookup over the wire."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace import errors
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Compression, Record, build_columnar_batch, build_rows_batch, decode_range
from millrace.schemas import parse_schema
from millrace_broker.log import PartitionLog
from millrace_broker.log.files import OsFile
from millrace_broker.log.read_threads import LogReads, ReadPlace
from millrace_broker.testing import EmbeddedBroker

from .waiting import AN_HOUR_MS, STALL_S, eventually

NOW_MS = 1_700_000_000_000


def test_batches_get_the_next_offsets_and_come_back_as_they_were_sent(calls: Any, topic: str) -> None:
    calls.create(topic)
    assert calls.produce(topic, calls.batch(b"a", b"b")).base_offset == 0
    assert calls.produce(topic, calls.batch(b"c"), acks=1).base_offset == 2
    fetched = calls.fetch(topic, 0)
    assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (3, 3, 0)
    batches = list(decode_range(pa.py_buffer(fetched.records), 0, 3, pytest.fail))
    assert [value for batch in batches for value in batch.columns.column("value").to_pylist()] == [b"a", b"b", b"c"]


def test_several_partitions_are_answered_each_by_itself(calls: Any, topic: str) -> None:
    calls.create(topic, partitions=2)
    good, corrupt = calls.batch(b"a"), bytearray(calls.batch(b"a"))
    corrupt[100] ^= 1
    data = [
        pb.ProduceRequest.PartitionData(partition=number, records=bytes(records))
        for number, records in enumerate([good, corrupt, good])
    ]
    request = pb.ProduceRequest(acks=-1, topics=[pb.ProduceRequest.TopicData(name=topic, partitions=data)])
    results = calls.call("Produce", request).topics[0].partitions
    assert [(r.partition, r.base_offset, r.error.code) for r in results] == [(0, 0, 0), (1, -1, 2), (2, -1, 3)]
    assert "0 to 1" in results[2].error.message
    assert calls.offset(topic, -1, partition=1).offset == 0


def test_without_acks_the_answer_is_empty_and_the_records_are_there(calls: Any, topic: str) -> None:
    calls.create(topic)
    data = [pb.ProduceRequest.PartitionData(partition=p, records=calls.batch(b"a")) for p in (0, 9)]
    request = pb.ProduceRequest(acks=0, topics=[pb.ProduceRequest.TopicData(name=topic, partitions=data)])
    assert calls.call("Produce", request) == pb.ProduceResponse()
    assert calls.offset(topic, -1).offset == 1


def test_a_wrong_produce_request_fails_as_a_whole(calls: Any) -> None:
    assert isinstance(calls.error("Produce", pb.ProduceRequest(acks=2)), errors.InvalidRequiredAcksError)


def _typed(schema_id: int, ddl: str, values: dict[str, list[Any]]) -> bytes:
    columns = pa.RecordBatch.from_pydict(values, schema=parse_schema(ddl))
    return bytes(build_columnar_batch(columns, schema_id=schema_id, timestamps_ms=NOW_MS))


def test_a_typed_topic_takes_batches_of_any_of_its_schema_versions(calls: Any, topic: str) -> None:
    old = calls.create(topic, ddl="id INT NOT NULL").schema_id
    from millrace.schemas import serialize_schema

    new_ddl = "id INT NOT NULL, name STRING"
    request = pb.EvolveSchemaRequest(topic=topic, arrow_schema=serialize_schema(parse_schema(new_ddl)))
    new = calls.call("EvolveSchema", request).schema.id
    assert calls.produce(topic, _typed(old, "id INT NOT NULL", {"id": [1, 2]})).base_offset == 0
    assert calls.produce(topic, _typed(new, new_ddl, {"id": [3], "name": ["x"]})).base_offset == 2


def test_records_that_do_not_fit_a_typed_topic_are_refused(calls: Any, topic: str) -> None:
    schema_id = calls.create(topic, ddl="id INT NOT NULL, name STRING").schema_id
    other = calls.create(f"{topic}-other", ddl="id INT").schema_id
    rows = build_rows_batch([Record(key=None, value=b"x", headers=(), timestamp_ms=NOW_MS, offset=0)])
    null = _typed(schema_id, "id INT, name STRING", {"id": [1, None], "name": ["a", "b"]})
    for records, code, message in (
        (calls.batch(b"opaque"), 1001, "typed"),
        (rows, 43, "set kafka.value.format"),
        (null, 1001, "row 1, column id"),
        (_typed(other, "id INT", {"id": [1]}), 1003, f"schema {other}"),
        (_typed(9999, "id INT", {"id": [1]}), 1003, "9999"),
        (_typed(schema_id, "id INT NOT NULL", {"id": [1]}), 87, ""),
        (_typed(schema_id, "name STRING, id INT NOT NULL", {"id": [1], "name": ["a"]}), 87, ""),
    ):
        result = calls.produce(topic, bytes(records))
        assert (result.error.code, message in result.error.message) == (code, True), result.error.message
    assert calls.offset(topic, -1).offset == 0


def test_an_opaque_topic_takes_rows_and_columns_but_no_schema(calls: Any, topic: str) -> None:
    calls.create(topic)
    rows = build_rows_batch([Record(key=b"k", value=b"x", headers=(), timestamp_ms=NOW_MS, offset=0)])
    assert calls.produce(topic, bytes(rows)).base_offset == 0
    assert calls.produce(topic, calls.batch(b"y")).base_offset == 1
    assert calls.produce(topic, _typed(1, "id INT", {"id": [1]})).error.code == errors.SchemaMismatchError.code


@pytest.mark.parametrize("compression", ["lz4", "zstd", "uncompressed"])
def test_a_topic_with_a_compression_of_its_own_stores_that(calls: Any, topic: str, compression: str) -> None:
    calls.create(topic, configs={"compression.type": compression})
    sent = calls.batch(*[b"v" * 100] * 50, compression=Compression.LZ4)
    rows = build_rows_batch(
        [Record(key=None, value=b"w" * 100, headers=(), timestamp_ms=NOW_MS, offset=n) for n in range(50)],
        compression=Compression.GZIP,
    )
    for records in (sent, bytes(rows)):
        assert calls.produce(topic, records).error.code == 0
    stored = calls.fetch(topic, 0).records
    batches = list(decode_range(pa.py_buffer(stored), 0, 100, pytest.fail))
    expected = Compression.NONE if compression == "uncompressed" else Compression.parse(compression)
    assert [batch.header.compression for batch in batches] == [expected] * 2
    values = [value for batch in batches for value in batch.columns.column("value").to_pylist()]
    assert values == [b"v" * 100] * 50 + [b"w" * 100] * 50


def test_log_append_time_is_answered_where_the_topic_has_it(calls: Any, topic: str) -> None:
    calls.create(topic, configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000
    result = calls.produce(topic, calls.batch(b"a"))
    assert before_ms <= result.log_append_time_ms <= time.time_ns() // 1_000_000
    calls.create(f"{topic}-create-time")
    assert calls.produce(f"{topic}-create-time", calls.batch(b"a")).log_append_time_ms == -1


def _sequenced(calls: Any, producer_id: int, sequence: int, count: int = 2, epoch: int = 0) -> bytes:
    batch: bytes = calls.batch(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return batch


def test_a_batch_sent_again_is_stored_once(calls: Any, topic: str) -> None:
    calls.create(topic)
    producer = calls.call("InitProducerId", pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1))
    assert (
        calls.call("InitProducerId", pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)).producer_id
        > producer.producer_id
    )
    batches = [_sequenced(calls, producer.producer_id, sequence) for sequence in (0, 2)]
    assert [calls.produce(topic, batch).base_offset for batch in (*batches, *batches)] == [0, 2, 0, 2]
    assert calls.offset(topic, -1).offset == 4


def test_a_batch_that_overtook_its_predecessor_waits_for_it(calls: Any, topic: str) -> None:
    calls.create(topic)
    producer_id = calls.call("InitProducerId", pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)).producer_id
    calls.produce(topic, _sequenced(calls, producer_id, 0))

    def request(sequence: int) -> pb.ProduceRequest:
        data = pb.ProduceRequest.PartitionData(partition=0, records=_sequenced(calls, producer_id, sequence))
        return pb.ProduceRequest(acks=-1, topics=[pb.ProduceRequest.TopicData(name=topic, partitions=[data])])

    futures = [calls.stub.Produce.future(request(sequence), timeout=STALL_S) for sequence in (6, 4, 2)]
    results = [future.result().topics[0].partitions[0] for future in futures]
    assert [(result.base_offset, result.error.code) for result in results] == [(6, 0), (4, 0), (2, 0)]


def test_a_gap_in_the_sequence_is_refused_in_the_end(calls: Any, topic: str) -> None:
    calls.create(topic)
    producer_id = calls.call("InitProducerId", pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)).producer_id
    calls.produce(topic, _sequenced(calls, producer_id, 0))
    assert calls.produce(topic, _sequenced(calls, producer_id, 9)).error.code == errors.OutOfOrderSequenceError.code


def test_a_fetch_keeps_its_limits_but_returns_at_least_one_batch(calls: Any, topic: str) -> None:
    calls.create(topic, partitions=3)
    big, small = calls.batch(b"x" * 5000), calls.batch(b"y" * 100)
    for partition in (0, 1, 2):
        for records in (big, small, small):
            calls.produce(topic, records, partition=partition)
    offsets = {topic: {0: 0, 1: 1, 2: 0}}

    def sizes(**limits: int) -> list[int]:
        response = calls.call("Fetch", calls.fetch_request(offsets, **limits))
        return [len(partition.records) for partition in response.topics[0].partitions]

    assert sizes() == [len(big) + 2 * len(small), 2 * len(small), len(big) + 2 * len(small)]
    assert sizes(max_bytes=1) == [len(big), 0, 0], "the first batch of the first partition comes whole"
    assert sizes(partition_max_bytes=len(small)) == [len(big), len(small), 0]
    assert sizes(max_bytes=len(big) + len(small)) == [len(big) + len(small), 0, 0]


def test_a_fetch_without_room_left_waits_for_no_other_reads(
    calls: Any, topic: str, module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.create(topic, partitions=2)
    records = calls.batch(b"x" * 100)
    for partition in (0, 1):
        calls.produce(topic, records, partition=partition)
    places = (ReadPlace.IO_THREAD, ReadPlace.REMOTE_READER)
    monkeypatch.setattr(LogReads, "place_of_read", lambda reads, log, offset: places[log.partition])
    reads = module_broker.server.broker.reads
    before = reads.statistics().done

    def sizes(**limits: int) -> list[int]:
        response = calls.call("Fetch", calls.fetch_request({topic: {0: 0, 1: 0}}, **limits))
        return [len(partition.records) for partition in response.topics[0].partitions]

    assert sizes() == [len(records), len(records)]
    assert reads.statistics().done == before + 1
    assert sizes(max_bytes=len(records)) == [len(records), 0]
    assert reads.statistics().done == before + 1


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_fetch_takes_a_thread_unless_the_records_are_in_the_page_cache(
    calls: Any, topic: str, module_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    calls.create(topic, partitions=2)
    records = calls.batch(b"x" * 100)
    for partition in (0, 1):
        calls.produce(topic, records, partition=partition)
    threads: set[str] = set()
    read = PartitionLog.read

    def noted(log: PartitionLog, *args: Any, **kwargs: Any) -> bytes:
        threads.add(threading.current_thread().name.rpartition("_")[0] or "event loop")
        return read(log, *args, **kwargs)

    monkeypatch.setattr(PartitionLog, "read", noted)
    monkeypatch.setattr(PartitionLog, "is_recent", lambda log, offset: False)
    monkeypatch.setattr(OsFile, "is_cached", lambda file, position, size_bytes: is_cached)
    response = calls.call("Fetch", calls.fetch_request({topic: {0: 0, 1: 0}}))
    assert [len(each.records) for each in response.topics[0].partitions] == [len(records), len(records)]
    assert len(threads) == 1
    assert ("millrace-io" in threads) is not is_cached, threads


def test_a_fetch_in_the_middle_of_a_batch_gives_the_whole_batch(calls: Any, topic: str) -> None:
    calls.create(topic)
    calls.produce(topic, calls.batch(*[b"v"] * 10))
    calls.produce(topic, calls.batch(*[b"v"] * 10))
    assert calls.offsets_in(calls.fetch(topic, 7).records) == [range(10), range(10, 20)]


def test_fetch_errors_stand_beside_their_partition(calls: Any, topic: str) -> None:
    created = calls.create(topic)
    calls.produce(topic, calls.batch(b"a"))
    assert calls.fetch(topic, 5).error.code == errors.OffsetOutOfRangeError.code
    assert calls.fetch(topic, 0, partition=7).error.code == errors.UnknownTopicOrPartitionError.code
    assert calls.fetch(topic, 0, epoch=1).error.code == errors.UnknownLeaderEpochError.code
    request = calls.fetch_request({topic: {0: 0}, "never-there": {0: 0}}, max_wait_ms=10_000)
    request.topics[0].topic_id = bytes(16)
    response = calls.call("Fetch", request)
    assert [t.partitions[0].error.code for t in response.topics] == [103, 3]
    request.topics[0].topic_id = created.topic_id
    assert calls.call("Fetch", request).topics[0].partitions[0].records


def _later(work: Any) -> threading.Thread:
    thread = threading.Timer(0.2, work)
    thread.start()
    return thread


def test_a_long_poll_is_answered_when_records_arrive(calls: Any, topic: str) -> None:
    calls.create(topic, partitions=2)
    thread = _later(lambda: calls.produce(topic, calls.batch(b"late"), partition=1))
    response = calls.call("Fetch", calls.fetch_request({topic: {0: 0, 1: 0}}, max_wait_ms=AN_HOUR_MS))
    thread.join()
    assert [len(partition.records) > 0 for partition in response.topics[0].partitions] == [False, True]


def test_a_long_poll_waits_for_min_bytes_or_its_time(calls: Any, topic: str) -> None:
    calls.create(topic)
    calls.produce(topic, calls.batch(b"few"))
    started = time.monotonic()
    fetched = calls.fetch(topic, 0, max_wait_ms=300, min_bytes=100_000)
    assert time.monotonic() - started >= 0.29
    assert fetched.records, "the available records come at the end of the wait"
    enough = calls.batch(b"x" * 100_000)
    thread = _later(lambda: calls.produce(topic, enough))
    assert len(calls.fetch(topic, 0, max_wait_ms=AN_HOUR_MS, min_bytes=100_000).records) > 100_000
    thread.join()


def test_a_long_poll_ends_when_its_topic_is_deleted(calls: Any, topic: str) -> None:
    calls.create(topic)
    thread = _later(lambda: calls.call("DeleteTopics", pb.DeleteTopicsRequest(names=[topic], timeout_ms=AN_HOUR_MS)))
    assert calls.fetch(topic, 0, max_wait_ms=AN_HOUR_MS).error.code == errors.UnknownTopicOrPartitionError.code
    thread.join()


def test_a_cancelled_long_poll_leaves_no_waiter(calls: Any, module_broker: Any, topic: str) -> None:
    calls.create(topic)
    future = calls.stub.Fetch.future(calls.fetch_request({topic: {0: 0}}, max_wait_ms=60_000))
    broker = module_broker.server.broker
    eventually(lambda: broker.statistics().delayed_fetches.delayed == 1)
    future.cancel()
    eventually(lambda: broker.statistics().delayed_fetches.delayed == 0)
    eventually(lambda: broker.statistics().admission.bytes_in_use == 0)


def test_offsets_are_found_by_time(calls: Any, topic: str) -> None:
    calls.create(topic)
    assert (calls.offset(topic, -3).offset, calls.offset(topic, 0).offset) == (-1, -1)
    for step in range(3):
        columns = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"], pa.binary())})
        times = pa.array([1000 * step, 1000 * step + 10], pa.int64())
        calls.produce(topic, bytes(build_columnar_batch(columns, timestamps_ms=times)))
    assert [calls.offset(topic, when).offset for when in (-1, -2, -3)] == [6, 0, 5]
    found = [calls.offset(topic, when) for when in (0, 5, 1000, 1011, 2010, 2011)]
    assert [(f.offset, f.timestamp) for f in found] == [(0, 0), (1, 10), (2, 1000), (4, 2000), (5, 2010), (-1, -1)]
    assert calls.offset(topic, -7).error.code == errors.InvalidRequestError.code
    assert calls.offset("never-there", -1).error.code == 3


def test_a_range_is_located_in_files_and_streamed_alike(calls: Any, topic: str) -> None:
    topic_id = calls.create(topic, configs={"segment.bytes": "20000"}).topic_id
    for _ in range(20):
        calls.produce(topic, calls.batch(*[b"x" * 500] * 10))
    located = calls.call("LocateRange", pb.LocateRangeRequest(topic=topic, start_offset=15, end_offset=-1))
    assert (located.topic_id, located.high_watermark) == (topic_id, 200)
    assert len(located.extents) > 3
    assert located.extents[0].start_offset == 15
    assert [e.end_offset for e in located.extents[:-1]] == [e.start_offset for e in located.extents[1:]]
    assert located.extents[-1].end_offset == 200
    mapped = b"".join(Path(e.path).read_bytes()[e.start_position : e.end_position] for e in located.extents)
    request = pb.ReadRangeRequest(topic=topic, topic_id=topic_id, start_offset=15, end_offset=200)
    streamed = b"".join(chunk.records for chunk in calls.stub.ReadRange(request))
    assert streamed == mapped
    assert calls.offsets_in(streamed) == [range(10 * n, 10 * n + 10) for n in range(1, 20)]


@pytest.mark.parametrize("call", ["LocateRange", "ReadRange"])
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"end_offset": 11}, errors.OffsetOutOfRangeError),
        ({"start_offset": -5}, errors.OffsetOutOfRangeError),
        ({"start_offset": 5, "end_offset": 3}, errors.InvalidRequestError),
        ({"partition": 4}, errors.UnknownTopicOrPartitionError),
        ({"topic": "never-there"}, errors.UnknownTopicOrPartitionError),
        ({"topic_id": bytes(16)}, errors.InconsistentTopicIdError),
    ],
)
def test_a_range_that_is_not_there_is_refused(
    calls: Any, topic: str, call: str, fields: dict[str, Any], error: type[errors.MillraceError]
) -> None:
    import grpc

    from millrace.protocol.status import error_from_rpc

    calls.create(topic)
    calls.produce(topic, calls.batch(*[b"x"] * 10))
    values = {"topic": topic, "start_offset": 0, "end_offset": 10, **fields}
    if call == "LocateRange":
        assert isinstance(calls.error(call, pb.LocateRangeRequest(**values)), error)
        return
    with pytest.raises(grpc.RpcError) as caught:
        list(calls.stub.ReadRange(pb.ReadRangeRequest(**values)))
    assert isinstance(error_from_rpc(caught.value), error)


def test_an_empty_range_has_no_extents_and_no_chunks(calls: Any, topic: str) -> None:
    calls.create(topic)
    assert not calls.call("LocateRange", pb.LocateRangeRequest(topic=topic, end_offset=-1)).extents
    assert list(calls.stub.ReadRange(pb.ReadRangeRequest(topic=topic))) == []
