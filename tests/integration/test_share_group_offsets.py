"""Tests of lag, resets and deletions of share group offsets.

They use the admin client and the command line.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.main import main
from millrace.clients import AcknowledgeType, Admin, ConsumerRecord, Producer, ShareConsumer, TopicPartition
from millrace.errors import (
    GroupIdNotFoundError,
    InvalidRequestError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
    UsageError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from .waiting import Stall

OPTIONS = {"share.auto.offset.reset": "earliest"}
FIRST, SECOND = TopicPartition("jobs", 0), TopicPartition("jobs", 1)


def _fill(admin: Admin, bootstrap_servers: str) -> None:
    """Append ten records of 1970, a second apart, in the first of two partitions, each in its own batch."""
    admin.create_topic("jobs", partitions=2, configs={"retention.ms": "-1"})
    with Producer(bootstrap_servers) as producer:
        for number in range(10):
            producer.send("jobs", b"x" * 100, partition=0, timestamp_ms=number * 1000)
            producer.flush()


def _consumer(bootstrap_servers: str, group: str = "workers") -> ShareConsumer:
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe("jobs")
    return consumer


def _take(consumer: ShareConsumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    stall = Stall("records")
    while len(records) < count:
        stall.check(len(records))
        records += consumer.poll(200)
    return records


def _accept(consumer: ShareConsumer, offsets: set[int]) -> None:
    """Acquire all ten records, accept some, and release the others."""
    for record in _take(consumer, 10):
        consumer.acknowledge(record, AcknowledgeType.ACCEPT if record.offset in offsets else AcknowledgeType.RELEASE)
    assert all(error is None for error in consumer.commit().values())


def test_lag_counts_unacknowledged_records_also_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker", options=OPTIONS) as broker, Admin(broker.bootstrap_servers) as admin:
        _fill(admin, broker.bootstrap_servers)
        with _consumer(broker.bootstrap_servers) as consumer:
            _accept(consumer, {0, 1, 5})
            before = {TopicPartition(lag.topic, lag.partition): lag for lag in admin.group_lag("workers")}
        lag = before[FIRST]
        assert (lag.committed, lag.log_end, lag.lag) == (2, 10, 7)
        assert lag.lag_bytes is not None
        assert lag.lag_bytes > 8 * 100
        # The oldest record that is not acknowledged has the time 00:00:02.
        assert lag.lag_seconds == pytest.approx(time.time() - 2, abs=60)
        assert before[SECOND].committed in (None, 0)  # the record may be read by now
    with EmbeddedBroker(tmp_path / "broker", options=OPTIONS) as broker, Admin(broker.bootstrap_servers) as admin:
        (after,) = [each for each in admin.group_lag("workers", measure=False) if each.partition == 0]
        assert (after.committed, after.lag, after.lag_bytes) == (2, 7, None)
        admin.delete_topic("jobs")
        assert admin.list_share_group_offsets("workers") == {}


def test_offsets_are_altered_and_forgotten_of_groups_without_members(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, options=OPTIONS) as broker, Admin(broker.bootstrap_servers) as admin:
        _fill(admin, broker.bootstrap_servers)
        with pytest.raises(GroupIdNotFoundError):
            admin.delete_share_group_offsets("nobody", ["jobs"])
        admin.alter_share_group_offsets("nobody", {FIRST: 1})
        assert admin.list_share_group_offsets("nobody")[FIRST].start_offset == 1
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_share_group_offsets("nobody", ["nothing"])
        with _consumer(broker.bootstrap_servers) as consumer:
            _accept(consumer, set(range(10)))
            with pytest.raises(NonEmptyGroupError):
                admin.alter_share_group_offsets("workers", {FIRST: 1})
            with pytest.raises(NonEmptyGroupError):
                admin.delete_share_group_offsets("workers", ["jobs"])
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.alter_share_group_offsets("workers", {TopicPartition("jobs", 7): 1})
        with pytest.raises(UsageError):
            admin.alter_share_group_offsets("workers", {FIRST: -1})
        admin.alter_share_group_offsets("workers", {FIRST: 7, SECOND: 0})
        assert {key: place.start_offset for key, place in admin.list_share_group_offsets("workers").items()} == {
            FIRST: 7,
            SECOND: 0,
        }
        assert list(admin.list_share_group_offsets("workers", [SECOND])) == [SECOND]
        with _consumer(broker.bootstrap_servers) as consumer:
            assert [record.offset for record in _take(consumer, 3)] == [7, 8, 9]
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_share_group_offsets("workers", ["nothing"])
        admin.delete_share_group_offsets("workers", ["jobs"])
        assert admin.list_share_group_offsets("workers") == {}
        with _consumer(broker.bootstrap_servers) as consumer:
            assert [record.offset for record in _take(consumer, 10)] == list(range(10))


def test_a_negative_start_is_refused_by_the_broker(broker: EmbeddedBroker, calls_to: Any) -> None:
    with Admin(broker.bootstrap_servers) as admin, _consumer(broker.bootstrap_servers) as consumer:
        admin.create_topic("jobs")
        consumer.poll(0)
        stall = Stall("the group")
        while not [group for group in admin.list_groups() if group.group_id == "workers"]:
            stall.check()
            consumer.poll(50)
    request = pb.AlterShareGroupOffsetsRequest(
        group_id="workers",
        topics=[
            pb.AlterShareGroupOffsetsRequest.TopicOffsets(
                name="jobs",
                partitions=[pb.AlterShareGroupOffsetsRequest.PartitionOffset(partition=0, start_offset=-5)],
            )
        ],
    )
    answer = calls_to(broker.bootstrap_servers).call("AlterShareGroupOffsets", request)
    assert answer.topics[0].partitions[0].error.code == InvalidRequestError.code


def test_commands_describe_and_reset_offsets_of_share_groups(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert main(("groups", *arguments)) == code, capfd.readouterr()
        captured = capfd.readouterr()
        return captured.err if code else captured.out

    def starts() -> list[tuple[int, int]]:
        return [(row["current_offset"], row["lag"]) for row in json.loads(run("describe", "workers", "--json"))]

    with EmbeddedBroker(tmp_path, options=OPTIONS) as broker, Admin(broker.bootstrap_servers) as admin:
        monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
        _fill(admin, broker.bootstrap_servers)
        with _consumer(broker.bootstrap_servers) as consumer:
            _accept(consumer, {0, 1, 5})
            assert "stop them first" in run("reset-offsets", "workers", "--all-topics", "--to-earliest", code=2)
        described = run("describe", "workers")
        assert "START-OFFSET" in described
        assert "CONSUMER-ID" not in described
        assert "NEW-OFFSET" in run("reset-offsets", "workers", "--topic", "jobs", "--to-latest")
        assert starts()[0] == (2, 7)  # a dry run
        run("reset-offsets", "workers", "--topic", "jobs", "--to-latest", "--execute")
        assert starts() == [(10, 0), (0, 0)]
        run("reset-offsets", "workers", "--topic", "jobs:0", "--to-datetime", "1970-01-01T00:00:04", "--execute")
        assert starts() == [(4, 6), (0, 0)]
        run("reset-offsets", "workers", "--all-topics", "--to-earliest", "--execute")
        assert starts() == [(0, 10), (0, 0)]
        assert "are deleted by topic" in run("delete-offsets", "workers", "--topic", "jobs:0", code=2)
        run("delete-offsets", "workers", "--topic", "jobs")
        assert "has read nothing" in run("describe", "workers")
        run("delete", "workers")
        assert "there is no group workers" in run("describe", "workers", code=1)
