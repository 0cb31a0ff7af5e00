"""Tests of each Kafka call in each version.

The broker's answer can be encoded and decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from millrace.config.broker import BrokerConfig
from millrace.errors import (
    InvalidRecordError,
    InvalidRequestError,
    UnknownTopicIdError,
    UnsupportedCompressionError,
    UnsupportedVersionError,
)
from millrace.kafka_protocol.calls.describe_groups import DescribeGroupsRequest
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.kafka_protocol.calls.init_producer_id import InitProducerIdRequest
from millrace.kafka_protocol.calls.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.kafka_protocol.calls.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.kafka_protocol.calls.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.kafka_protocol.lookup import request_class
from millrace.records import Compression, Record, build_entries, build_rows_batch, read_header, read_rows
from millrace_broker.kafka_api import KafkaState, kafka_calls
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import create_topic
from .kafka_share_members import NOT_YET
from .kafka_wire import KafkaWire, find_coordinator
from .waiting import Stall

_VERSIONS = {key: call.versions for key, call in kafka_calls(KafkaState(BrokerConfig.load({}))).items()}
_ACKS = {"acks": -1}
_OTHERS: dict[int, dict[str, Any]] = {ApiKey.PRODUCE: _ACKS, ApiKey.METADATA: {"topics": ()}}
"""Request fields without a default, or with an unusual one."""
_UNKNOWN_ID = UUID(int=7)


@pytest.fixture
def wire(module_broker: EmbeddedBroker) -> Iterator[KafkaWire]:
    with KafkaWire(module_broker) as opened:
        yield opened


def _data(topic: str, topic_id: UUID = NIL_UUID) -> TopicProduceData:
    batch = bytes(build_rows_batch([Record(value=b"x", timestamp_ms=1)]))
    partitions = (PartitionProduceData(index=0, records=batch),)
    return TopicProduceData(name=topic, topic_id=topic_id, partition_data=partitions)


def _topic_id(wire: KafkaWire, topic: str) -> UUID:
    (found,) = wire.call(MetadataRequest(topics=(MetadataRequestTopic(name=topic),)), 12).topics
    topic_id: UUID = found.topic_id
    return topic_id


@pytest.mark.parametrize("key", sorted(_VERSIONS), ids=lambda key: ApiKey(key).name.lower())
def test_a_request_of_defaults_is_answered_in_each_version(wire: KafkaWire, key: int) -> None:
    for version in _VERSIONS[key]:
        request = request_class(key).of_defaults()
        for name, value in _OTHERS.get(key, {}).items():
            setattr(request, name, value)
        assert wire.call(request, version) is not None, version


@pytest.mark.parametrize("version", _VERSIONS[ApiKey.LIST_OFFSETS])
def test_offsets_are_listed_in_each_version(wire: KafkaWire, module_broker: EmbeddedBroker, version: int) -> None:
    topic = f"list-{version}"
    create_topic(module_broker, topic)
    wire.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=(_data(topic),)), 9)
    for timestamp, offset in ((-2, 0), (-1, 1), (1, 0)):
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(partition,)),))
        (found,) = wire.call(request, version).topics[0].partitions
        assert (found.error_code, found.offset) == (0, offset)
        if offset == 0:
            assert found.leader_epoch == (0 if version >= 4 else -1)
    # The largest timestamp, the first on the broker's disk, the last in the remote store, the first not yet in it.
    for timestamp, since, offset in ((-3, 7, 0), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)):
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(partition,)),))
        (found,) = wire.call(request, version).topics[0].partitions
        expected = (0, offset) if version >= since else (UnsupportedVersionError.code, -1)
        assert (found.error_code, found.offset) == expected, timestamp


@pytest.mark.parametrize("version", _VERSIONS[ApiKey.DESCRIBE_GROUPS])
def test_a_group_that_does_not_exist_is_dead_or_unknown_by_the_version(wire: KafkaWire, version: int) -> None:
    find_coordinator(wire, 0, "no-such-group")
    request = DescribeGroupsRequest(groups=("no-such-group",), include_authorized_operations=version >= 3)
    stall = Stall("the coordinator's groups")
    while (group := wire.call(request, version).groups[0]).error_code in NOT_YET:
        stall.check()
    assert (group.group_id, group.group_state) == ("no-such-group", "Dead")
    assert group.error_code == (69 if version >= 6 else 0)
    assert (group.authorized_operations > 0) == (3 <= version < 6), "a group that may be created"


@pytest.mark.parametrize("version", _VERSIONS[ApiKey.PRODUCE])
def test_records_are_appended_in_each_version(wire: KafkaWire, module_broker: EmbeddedBroker, version: int) -> None:
    topic = f"produce-{version}"
    create_topic(module_broker, topic)
    data = _data(topic, _topic_id(wire, topic) if version >= 13 else NIL_UUID)
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=(data,))
    (found,) = wire.call(request, version).responses[0].partition_responses
    assert (found.error_code, found.base_offset) == (0, 0)
    unknown = _data("no-such-topic", _UNKNOWN_ID)
    (found,) = wire.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=(unknown,)), version).responses
    assert found.partition_responses[0].error_code == (100 if version >= 13 else 3)
    (found,) = wire.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=(_data(""),)), version).responses
    assert found.partition_responses[0].error_code == (100 if version >= 13 else 3)


@pytest.mark.parametrize("version", _VERSIONS[ApiKey.FETCH])
def test_records_are_fetched_in_each_version(wire: KafkaWire, module_broker: EmbeddedBroker, version: int) -> None:
    topic = f"fetch-{version}"
    create_topic(module_broker, topic)
    wire.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=(_data(topic),)), 9)
    topic_id = _topic_id(wire, topic)

    def fetch(offset: int, wanted_id: Any = topic_id, session: tuple[int, int] = (0, -1)) -> Any:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
        wanted = FetchTopic(topic=topic, topic_id=wanted_id, partitions=(partition,))
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, session_id=session[0], session_epoch=session[1], topics=(wanted,)
        )
        return wire.call(request, version)

    (found,) = fetch(0).responses[0].partitions
    assert [record.value for record in read_rows(found.records, 0, read_header(found.records))] == [b"x"]
    assert (found.error_code, found.high_watermark) == (0, 1)
    assert fetch(9).responses[0].partitions[0].error_code == 1
    if version >= 7:
        first = fetch(1, session=(0, 0))
        assert first.session_id
        assert not fetch(1, session=(first.session_id, 1)).responses, "nothing has changed"
        assert fetch(1, session=(first.session_id, 1)).error_code == 71
        assert fetch(1, session=(first.session_id ^ 1, 1)).error_code == 70
    if version >= 13:
        for unknown in (_UNKNOWN_ID, NIL_UUID):
            assert fetch(0, unknown).responses[0].partitions[0].error_code == 100


@pytest.mark.parametrize("version", [6, 7])
def test_only_the_zstd_batch_of_an_old_producer_is_refused(
    wire: KafkaWire, module_broker: EmbeddedBroker, topic: str, version: int
) -> None:
    create_topic(module_broker, topic, 5)
    partitions = tuple(
        PartitionProduceData(
            index=number,
            records=bytes(build_rows_batch([Record(value=b"x", timestamp_ms=1)], compression=compression)),
        )
        for number, compression in enumerate(Compression)
    )
    data = TopicProduceData(name=topic, partition_data=partitions)
    (answer,) = wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(data,)), version).responses
    refused = UnsupportedCompressionError.code if version < 7 else 0
    assert [each.error_code for each in answer.partition_responses] == [0, 0, 0, 0, refused]
    assert [each.base_offset for each in answer.partition_responses] == [0, 0, 0, 0, -1 if refused else 0]


@pytest.mark.parametrize("timestamp_ms", [0, Compression.ZSTD << 24])
def test_a_message_of_an_old_format_is_refused_and_not_taken_for_a_zstd_batch(
    wire: KafkaWire, module_broker: EmbeddedBroker, topic: str, timestamp_ms: int
) -> None:
    """Such a message has a part of its timestamp where a batch has its compression."""
    create_topic(module_broker, topic)
    message = build_entries([Record(value=b"x", timestamp_ms=timestamp_ms)], magic=1)
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=message),))
    (answer,) = wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(data,)), 6).responses
    assert answer.partition_responses[0].error_code == InvalidRecordError.code


@pytest.mark.parametrize("second", ["batch", "old format", "part"])
def test_a_partition_takes_one_batch_of_a_request(
    wire: KafkaWire, module_broker: EmbeddedBroker, topic: str, second: str
) -> None:
    """Kafka's ``ProduceRequest`` refuses several. Kafka ignores an incomplete batch, and millrace refuses it."""
    create_topic(module_broker, topic)
    batch = bytes(build_rows_batch([Record(value=b"x", timestamp_ms=1)]))
    rest = {"batch": batch, "old format": build_entries([Record(value=b"x", timestamp_ms=1)], magic=1)}
    records = batch + rest.get(second, batch[:30])
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=records),))
    (answer,) = wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(data,)), 9).responses
    assert answer.partition_responses[0].error_code == InvalidRecordError.code
    assert module_broker.server.broker.logs.get(topic, 0).log_end_offset == 0


@pytest.mark.parametrize("version", [9, 10])
def test_a_topic_of_zstd_is_not_read_by_an_old_consumer(
    wire: KafkaWire, module_broker: EmbeddedBroker, topic: str, version: int
) -> None:
    names = (f"{topic}-zstd", f"{topic}-lz4")
    for name, compression in zip(names, ("zstd", "lz4"), strict=True):
        create_topic(module_broker, name, compression_type=compression)
        wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(_data(name),)), 9)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = tuple(FetchTopic(topic=name, partitions=(partition,)) for name in names)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=2**20, topics=topics, forgotten_topics_data=())
    found = [each.partitions[0] for each in wire.call(request, version).responses]
    refused = UnsupportedCompressionError.code if version < 10 else 0
    assert [(each.error_code, bool(each.records)) for each in found] == [(refused, not refused), (0, True)]


@pytest.mark.parametrize("version", _VERSIONS[ApiKey.OFFSET_COMMIT])
def test_offsets_are_committed_and_fetched_in_each_version(
    wire: KafkaWire, module_broker: EmbeddedBroker, version: int
) -> None:
    topic = group = f"commit-{version}"
    create_topic(module_broker, topic)
    find_coordinator(wire, 0, group)
    topic_id = _topic_id(wire, topic)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata=None)
    wanted = OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=(partition,))
    request = OffsetCommitRequest(group_id=group, member_id="", topics=(wanted,))
    assert wire.call(request, version).topics[0].partitions[0].error_code == 0
    for fetch_version in _VERSIONS[ApiKey.OFFSET_FETCH]:
        if fetch_version < 8:
            only = OffsetFetchRequestTopic(name=topic, partition_indexes=(0,))
            asked = OffsetFetchRequest(group_id=group, topics=(only,))
            (found,) = wire.call(asked, fetch_version).topics
        else:
            each = OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=(0,))
            asked = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group, topics=(each,)),))
            (found,) = wire.call(asked, fetch_version).groups[0].topics
        assert found.partitions[0].committed_offset == 5, fetch_version


def test_a_topic_without_an_id_is_unknown_in_versions_with_ids(wire: KafkaWire) -> None:
    group = "no-topic"
    find_coordinator(wire, 0, group)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata=None)
    commit = OffsetCommitRequest(
        group_id=group, member_id="", topics=(OffsetCommitRequestTopic(topic_id=NIL_UUID, partitions=(partition,)),)
    )
    assert wire.call(commit, 10).topics[0].partitions[0].error_code == UnknownTopicIdError.code
    each = OffsetFetchRequestTopics(topic_id=NIL_UUID, partition_indexes=(0,))
    asked = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group, topics=(each,)),))
    assert wire.call(asked, 10).groups[0].topics[0].partitions[0].error_code == UnknownTopicIdError.code


@pytest.mark.parametrize("version", _VERSIONS[ApiKey.METADATA])
def test_a_topic_that_metadata_names_twice_is_answered_once(
    wire: KafkaWire, module_broker: EmbeddedBroker, version: int
) -> None:
    topic = f"twice-{version}"
    create_topic(module_broker, topic)
    named = MetadataRequestTopic(name=topic)
    assert [each.name for each in wire.call(MetadataRequest(topics=(named, named)), version).topics] == [topic]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_an_idempotent_producer_that_sends_its_id_gets_a_new_one(wire: KafkaWire, version: int) -> None:
    """kafka-python asks so after a gap in its sequence numbers (KIP-360)."""

    def init(producer_id: int, epoch: int) -> Any:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000, producer_id=producer_id, producer_epoch=epoch
        )
        return wire.call(request, version)

    first = init(-1, -1)
    again = init(first.producer_id, first.producer_epoch)
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id > first.producer_id
    assert init(first.producer_id, -1).error_code == init(-1, 0).error_code == InvalidRequestError.code
