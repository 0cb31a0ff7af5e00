"""Tests of DeleteRecords over the wire, by admin client and by command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from millrace import errors
from millrace.cli.main import app
from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.protocol import millrace_pb2 as pb
from millrace.records import decode_range
from millrace.segments import map_extent
from millrace_broker.replication.runtime import Appends
from millrace_broker.testing import EmbeddedBroker

SMALL = {"segment.bytes": "4000", "file.delete.delay.ms": "0"}


def fill(calls: Any, topic: str, batches: int, partition: int = 0) -> None:
    for number in range(batches):
        assert not calls.produce(topic, calls.batch(b"%04d" % number * 100), partition=partition).error.code


def values(records: bytes, start: int, end: int) -> list[bytes]:
    batches = decode_range(pa.py_buffer(records), start, end, pytest.fail)
    return [value for batch in batches for value in batch.columns.column("value").to_pylist()]


def test_records_before_an_offset_are_gone_and_the_rest_is_there(admin: Admin, calls: Any, topic: str) -> None:
    calls.create(topic, partitions=2, configs=SMALL)
    fill(calls, topic, 30)
    fill(calls, topic, 5, partition=1)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.delete_records({first: 17, second: "latest"}) == {first: 17, second: 5}
    assert admin.delete_records({first: 3}) == {first: 17}
    assert calls.offset(topic, -2).offset == 17
    assert calls.fetch(topic, 16).error.code == errors.OffsetOutOfRangeError.code
    assert values(calls.fetch(topic, 17).records, 17, 30)[0] == b"0017" * 100
    assert calls.fetch(topic, 17).log_start_offset == 17
    assert calls.produce(topic, calls.batch(b"next"), partition=1).base_offset == 5


def test_partitions_wait_for_their_replicas_at_the_same_time(
    calls: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.create(topic, partitions=2)
    for partition in (0, 1):
        fill(calls, topic, 2, partition=partition)
    delete, is_second_done = Appends.delete_records, asyncio.Event()

    async def deleted(self: Appends, partition: Any, *args: Any) -> int:
        """Let the replicas of the first partition be late."""
        if partition.info.partition == 0:
            await is_second_done.wait()
        start_offset = await delete(self, partition, *args)
        is_second_done.set()
        return start_offset

    monkeypatch.setattr(Appends, "delete_records", deleted)
    request = pb.DeleteRecordsRequest(topics=[pb.DeleteRecordsRequest.TopicOffsets(name=topic)])
    for partition in (0, 1):
        request.topics[0].partitions.add(partition=partition, offset=-1)
    results = calls.call("DeleteRecords", request).topics[0].partitions
    assert [(each.partition, each.low_watermark) for each in results] == [(0, 2), (1, 2)]


def test_each_partition_is_answered_by_itself(calls: Any, topic: str) -> None:
    calls.create(topic, partitions=2)
    fill(calls, topic, 3)
    offsets = [(0, -1), (1, 1), (2, 0), (0, -2)]
    request = pb.DeleteRecordsRequest(topics=[pb.DeleteRecordsRequest.TopicOffsets(name=topic)])
    for partition, offset in offsets:
        request.topics[0].partitions.add(partition=partition, offset=offset)
    results = calls.call("DeleteRecords", request).topics[0].partitions
    codes = (0, errors.OffsetOutOfRangeError.code, errors.UnknownTopicOrPartitionError.code)
    assert [result.low_watermark for result in results] == [3, -1, -1, -1]
    assert tuple(result.error.code for result in results) == (*codes, errors.OffsetOutOfRangeError.code)


def test_topics_that_are_only_compacted_refuse(admin: Admin, calls: Any, topic: str) -> None:
    calls.create(topic, configs={"cleanup.policy": "compact"})
    with pytest.raises(errors.PolicyViolationError, match=r"cleanup\.policy is compact"):
        admin.delete_records({TopicPartition(topic, 0): 0})


def test_topics_without_a_cleanup_policy_keep_records_until_a_client_deletes_them(
    admin: Admin, calls: Any, topic: str, module_broker: EmbeddedBroker
) -> None:
    calls.create(topic, configs={"cleanup.policy": "", "retention.ms": "1", "segment.bytes": "1000"})
    fill(calls, topic, 3)
    log = module_broker.server.broker.logs.get(topic, 0)
    assert log is not None
    log.apply_retention()
    assert log.log_start_offset == 0
    assert admin.delete_records({TopicPartition(topic, 0): 2}) == {TopicPartition(topic, 0): 2}


def test_the_log_start_offset_after_a_deletion_survives_a_restart(tmp_path: Path) -> None:
    partition = TopicPartition("orders", 0)
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=1)
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number)
        assert admin.delete_records({partition: 4}) == {partition: 4}
        checkpoint = (tmp_path / "log-start-offset-checkpoint").read_text()
    assert checkpoint == "0\n1\norders 0 4\n"
    with EmbeddedBroker(tmp_path) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers})
        assert consumer.beginning_offsets([partition]) == {partition: 4}
        consumer.close()


def test_a_reader_of_deleted_segments_continues(
    admin: Admin, calls: Any, topic: str, module_broker: EmbeddedBroker
) -> None:
    # The readers are mapped files, as Spark's tasks read them, and a started stream.
    calls.create(topic, configs=SMALL)
    fill(calls, topic, 30)
    located = admin.locate_range(topic, 0, 0, 30)
    mapped = [map_extent(Path(e.path), e.start_position, e.end_position) for e in located.extents]
    stream = admin.read_range(topic, 0, 0, 30)
    read = values(next(stream), 0, 30)
    assert admin.delete_records({TopicPartition(topic, 0): 29}) == {TopicPartition(topic, 0): 29}
    log = module_broker.server.broker.logs.get(topic, 0)
    assert log is not None
    log.tick(producer_expiration_ms=86_400_000)
    assert not Path(located.extents[0].path).exists()
    found = [value for buffer in mapped for value in values(buffer, 0, 30)]
    assert found == [b"%04d" % number * 100 for number in range(30)]
    with contextlib.suppress(errors.OffsetOutOfRangeError):  # unless all records had been sent by then
        for chunk in stream:
            read += values(chunk, 0, 30)
    assert read == found[: len(read)]


def test_a_waiting_fetch_is_answered_at_once_after_a_deletion(calls: Any, admin: Admin, topic: str) -> None:
    calls.create(topic)
    fill(calls, topic, 3)
    fetching: list[Any] = []
    request = calls.fetch_request({topic: {0: 3}}, max_wait_ms=30_000)
    waiting = threading.Thread(target=lambda: fetching.append(calls.call("Fetch", request)))
    waiting.start()
    while not fetching:  # the fetch may not have begun to wait at the first deletion
        admin.delete_records({TopicPartition(topic, 0): "latest"})
        waiting.join(0.05)
    assert fetching[0].topics[0].partitions[0].log_start_offset == 3


def test_the_command_deletes_records_and_prints_the_low_watermarks(
    module_broker: EmbeddedBroker, calls: Any, topic: str, tmp_path: Path
) -> None:
    calls.create(topic, partitions=2)
    fill(calls, topic, 5)
    fill(calls, topic, 3, partition=1)

    def run(*arguments: str) -> Any:
        chosen = ["topics", "delete-records", *arguments, "-b", module_broker.bootstrap_servers]
        return CliRunner().invoke(app, chosen)

    done = run(topic, "--before", "0:2", "--before", "1:latest", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [
        {"topic": topic, "partition": 0, "low_watermark": 2},
        {"topic": topic, "partition": 1, "low_watermark": 3},
    ]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": -1}], "version": 1}))
    done = run("--offset-json-file", str(file))
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == ["TOPIC", "PARTITION", "STARTS", "AT", topic, "0", "5"]
    for wrong in ([topic], [topic, "--before", "x:1"], [], [topic, "--offset-json-file", str(file)]):
        assert isinstance(run(*wrong).exception, errors.UsageError), wrong
    file.write_text("[]")
    assert "expected" in str(run("--offset-json-file", str(file)).exception)
