"""Tests of share groups with Kafka's clients (KIP-932).

The tests use librdkafka's share consumer, and the calls of Kafka's protocol.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import confluent_kafka
import pytest
from confluent_kafka import ShareConsumer

from millrace.clients import Admin, Producer
from millrace.clients import ShareConsumer as OwnShareConsumer
from millrace.errors import CoordinatorNotAvailableError
from millrace.kafka_protocol.calls.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from millrace.kafka_protocol.calls.api_versions import ApiVersionsRequest
from millrace.kafka_protocol.calls.delete_groups import DeleteGroupsRequest
from millrace.kafka_protocol.calls.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from millrace.kafka_protocol.calls.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from millrace.kafka_protocol.calls.list_groups import ListGroupsRequest
from millrace.kafka_protocol.calls.share_fetch import FetchPartition, FetchTopic
from millrace.kafka_protocol.calls.share_group_describe import ShareGroupDescribeRequest
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.records import Record, build_rows_batch, read_header, read_rows, scan_headers
from millrace_broker.kafka_api import share_coordinators
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import address, create_topic, producer, send
from .kafka_share_members import ACCEPT, BATCHES, NOT_YET, RECORDS, REJECT, RELEASE, RENEW, Member, acquired, error_of
from .kafka_wire import KafkaWire
from .waiting import STALL_S, Stall, eventually

BROKER_OPTIONS = {
    "share.auto.offset.reset": "earliest",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.max.share.sessions": "6",
    "share.coordinator.state.topic.num.partitions": "1",
}


@pytest.fixture
def wire(module_broker: EmbeddedBroker) -> Iterator[KafkaWire]:
    with KafkaWire(module_broker) as opened:
        yield opened


@pytest.fixture
def group() -> str:
    return f"share-{uuid4().hex[:12]}"


@pytest.fixture
def member(module_broker: EmbeddedBroker, wire: KafkaWire, calls: Any, group: str, topic: str) -> Member:
    """Join a group whose topic has ten records, in batches of five."""
    create_topic(module_broker, topic)
    for _ in range(2):
        calls.produce(topic, bytes(build_rows_batch([Record(value=b"%d" % n) for n in range(5)])))
    joined = Member(wire, group, topic)
    joined.join()
    stall = Stall("all groups to be loaded")
    while (error_code := wire.call(ListGroupsRequest(), 5).error_code) in NOT_YET:
        stall.check()
    assert error_code == 0
    return joined


# --- librdkafka ----------------------------------------------------------------------------------------------------


def _consumer(broker: EmbeddedBroker, group: str, topic: str, **options: Any) -> ShareConsumer:
    named = {name.replace("_", "."): value for name, value in options.items()}
    client = ShareConsumer({"bootstrap.servers": address(broker), "group.id": group} | named)
    client.subscribe([topic])
    return client


def _poll(client: ShareConsumer, found: Counter[bytes]) -> list[Any]:
    messages = list(client.poll(0.2))
    for message in messages:
        assert message.error() is None, message.error()
        found[message.value()] += 1
    return messages


def test_share_consumers_of_librdkafka_and_of_millrace_share_the_records_of_a_group(
    module_broker: EmbeddedBroker, topic: str, group: str
) -> None:
    create_topic(module_broker, topic)
    theirs: Counter[bytes] = Counter()
    ours: Counter[bytes] = Counter()
    client = _consumer(module_broker, group, topic)
    own_options = {"bootstrap.servers": module_broker.bootstrap_servers, "group.id": group, "max.poll.records": 10}
    writer = producer(module_broker, linger_ms=0)
    with OwnShareConsumer(own_options) as own:
        own.subscribe(topic)
        stall = Stall("records of both members")
        sent = 0
        while not (theirs and ours and theirs.total() + ours.total() >= sent):
            stall.check((theirs.total(), ours.total()))
            send(writer, topic, [{"value": b"%d" % n} for n in range(sent, sent + 20)])
            sent += 20
            _poll(client, theirs)
            ours.update(each.value or b"" for each in own.poll(50))
        client.commit_sync(STALL_S)
        own.commit()
    client.close()
    assert theirs + ours == Counter({b"%d" % n: 1 for n in range(sent)})


def test_explicit_acknowledgements_of_librdkafka_accept_release_and_reject(
    module_broker: EmbeddedBroker, topic: str, group: str
) -> None:
    create_topic(module_broker, topic)
    send(producer(module_broker), topic, [{"value": b"%d" % n} for n in range(3)])
    found: Counter[bytes] = Counter()
    kinds = {b"0": confluent_kafka.AcknowledgeType.ACCEPT, b"2": confluent_kafka.AcknowledgeType.REJECT}
    client = _consumer(module_broker, group, topic, share_acknowledgement_mode="explicit")
    stall = Stall("the deliveries")
    while found[b"1"] < 5:  # group.share.delivery.count.limit
        stall.check(found.total())
        for message in _poll(client, found):
            client.acknowledge(message, kinds.get(message.value(), confluent_kafka.AcknowledgeType.RELEASE))
    client.commit_sync(STALL_S)
    client.close()
    assert found == {b"0": 1, b"1": 5, b"2": 1}


# --- sessions ------------------------------------------------------------------------------------------------------


def test_a_session_is_incremental(member: Member, calls: Any) -> None:
    first = member.fetch(max_records=2)
    assert acquired(first) == [0, 1]
    assert first.acquisition_lock_timeout_ms == 30_000
    assert acquired(member.fetch()) == list(range(2, 10))
    assert member.fetch().responses == ()
    calls.produce(member.topic, bytes(build_rows_batch([Record(value=b"x")])))
    assert acquired(member.fetch(forgotten=(0,))) == []
    assert acquired(member.fetch()) == []
    again = FetchPartition(partition_index=0, acknowledgement_batches=())
    topics = (FetchTopic(topic_id=member.topic_id, partitions=(again,)),)
    assert acquired(member.fetch(topics=topics)) == [10]


def test_requests_outside_of_a_session_get_the_codes_of_kafka(member: Member) -> None:
    assert member.fetch(epoch=1).error_code == 122
    assert member.fetch(epoch=-1).error_code == 122
    assert member.acknowledge((0, 0, (ACCEPT,)), epoch=1).error_code == 122
    assert member.acknowledge((0, 0, (ACCEPT,)), epoch=0).error_code == 123
    assert member.fetch((0, 0, ACCEPT), epoch=0).error_code == 42
    member.fetch(epoch=0)
    assert member.fetch(epoch=5).error_code == 123
    assert member.acknowledge((0, 0, (ACCEPT,)), epoch=5).error_code == 123
    assert error_of(member.acknowledge((0, 0, (ACCEPT,)))) == 0
    assert member.fetch(epoch=1).error_code == 123


def test_the_last_request_of_a_session_releases_the_records(member: Member) -> None:
    assert len(member.offsets()) == 10
    assert error_of(member.acknowledge((0, 2, (ACCEPT,)), epoch=-1)) == 0
    assert member.fetch(epoch=1).error_code == 122
    assert member.offsets(epoch=0) == list(range(3, 10))
    assert member.fetch((3, 3, ACCEPT), epoch=-1).responses[0].partitions[0].acknowledge_error_code == 0
    assert member.offsets(epoch=0) == list(range(4, 10))


def test_records_of_a_lost_connection_are_released(module_broker: EmbeddedBroker, member: Member, group: str) -> None:
    with KafkaWire(module_broker) as other:
        lost = Member(other, group, member.topic)
        lost.join()
        assert len(lost.offsets()) == 10
        assert member.offsets() == []
    found: list[int] = []

    def fetch() -> bool:
        found.extend(member.offsets(max_wait_ms=100))
        return len(found) == 10

    eventually(fetch, "the records", progress=lambda: len(found))


def test_a_member_waits_while_there_are_too_many_sessions(
    module_broker: EmbeddedBroker, member: Member, group: str
) -> None:
    wires = [KafkaWire(module_broker) for _ in range(6)]
    members = [Member(each, group, member.topic) for each in wires]
    for each in members:
        each.join()
        assert each.fetch().error_code == 0
    assert member.fetch(max_wait_ms=10).error_code == 133
    wires[0].sock.close()
    eventually(lambda: member.fetch(epoch=0).error_code == 0, "a place")
    for each in wires[1:]:
        each.sock.close()


def test_a_fetch_of_a_member_that_the_group_does_not_have_is_refused(
    wire: KafkaWire, member: Member, group: str
) -> None:
    assert Member(wire, group, member.topic).fetch().error_code == 25


# --- records -------------------------------------------------------------------------------------------------------


def test_the_acquire_mode_limits_records_exactly_or_by_batches(member: Member) -> None:
    assert member.offsets(max_records=2, share_acquire_mode=RECORDS) == [0, 1]
    assert member.offsets(max_records=2, share_acquire_mode=BATCHES) == [2, 3, 4]
    assert member.offsets(max_records=1, version=1) == [5, 6, 7, 8, 9]
    assert member.fetch(share_acquire_mode=2).error_code == 42


def test_records_are_accepted_released_and_rejected_with_a_type_for_each(member: Member) -> None:
    assert len(member.offsets()) == 10
    kinds = (ACCEPT, ACCEPT, RELEASE, REJECT, RELEASE)
    assert error_of(member.acknowledge((0, 4, kinds))) == 0
    answer = member.fetch((5, 9, ACCEPT))
    assert acquired(answer) == [2, 4]
    assert [each.delivery_count for each in answer.responses[0].partitions[0].acquired_records] == [2, 2]
    (header,) = (each for _, each in scan_headers(answer.responses[0].partitions[0].records))
    assert (header.base_offset, header.last_offset) == (0, 4)


def test_acknowledgements_that_are_wrong_get_the_codes_of_kafka(member: Member) -> None:
    assert len(member.offsets(max_records=5)) == 5
    assert error_of(member.acknowledge((3, 2, (ACCEPT,)))) == 42
    assert error_of(member.acknowledge((0, 0, (9,)))) == 42
    assert error_of(member.acknowledge((0, 0, (RENEW,)))) == 42
    assert error_of(member.acknowledge((3, 5, (ACCEPT,)))) == 42  # past what was acquired
    assert error_of(member.acknowledge((0, 1, (ACCEPT,)), (3, 3, (ACCEPT,)))) == 0
    assert error_of(member.acknowledge((0, 1, (ACCEPT,)))) == 0  # before the start offset
    refused = member.fetch((2, 3, ACCEPT), max_wait_ms=60_000)
    assert refused.responses[0].partitions[0].acknowledge_error_code == 121
    member.topic_id = uuid4()
    assert error_of(member.acknowledge((2, 2, (ACCEPT,)))) == 100


def test_a_lock_is_renewed_by_a_request_without_a_fetch(member: Member) -> None:
    assert len(member.offsets()) == 10
    limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    answer = member.fetch((0, 4, RENEW), is_renew_ack=True, **limits)
    assert [each.acknowledge_error_code for each in answer.responses[0].partitions] == [0]
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert member.fetch((0, 4, RENEW), is_renew_ack=True).error_code == 42
    renewed = member.acknowledge((0, 4, (RENEW,)), is_renew_ack=True)
    assert (error_of(renewed), renewed.acquisition_lock_timeout_ms) == (0, 30_000)
    assert error_of(member.acknowledge((0, 9, (ACCEPT,)))) == 0


def test_options_of_a_group_are_in_force_at_once(member: Member, admin: Admin, calls: Any) -> None:
    options = {
        "share.record.lock.duration.ms": "15001",
        "share.heartbeat.interval.ms": "5001",
        "share.partition.max.record.locks": "100",
        "share.renew.acknowledge.enable": "false",
    }
    calls.produce(member.topic, bytes(build_rows_batch([Record(value=b"%d" % n) for n in range(200)])))
    admin.alter_configs(member.group, options, resource="group")
    answer = member.fetch(max_records=1000)
    assert (acquired(answer), answer.acquisition_lock_timeout_ms) == (list(range(100)), 15001)
    assert member.beat(0, (member.topic,)).heartbeat_interval_ms == 5001
    assert error_of(member.acknowledge((0, 0, (RENEW,)), is_renew_ack=True)) == 121


def test_read_committed_members_get_records_of_transactions_after_the_commit(
    module_broker: EmbeddedBroker, member: Member, admin: Admin
) -> None:
    admin.alter_configs(member.group, {"share.isolation.level": "read_committed"}, resource="group")
    aborts, commits = (producer(module_broker, transactional_id=f"{member.topic}-{each}") for each in range(2))
    for writer in (aborts, commits):
        writer.init_transactions(STALL_S)
        writer.begin_transaction()
    send(aborts, member.topic, [{"value": b"a"}])  # offset 10
    send(commits, member.topic, [{"value": b"b"}])
    assert member.offsets() == list(range(10))
    assert member.offsets((0, 9, ACCEPT)) == []
    aborts.abort_transaction(STALL_S)
    assert member.offsets() == []
    commits.commit_transaction(STALL_S)
    assert member.offsets(max_bytes=1, max_wait_ms=5000) == [11]  # a read for each batch
    send(producer(module_broker), member.topic, [{"value": b"c"}])  # after two markers
    assert member.offsets((11, 11, ACCEPT), max_wait_ms=5000) == [14]


def test_released_records_of_an_aborted_transaction_are_archived_when_the_group_reads_committed_records(
    module_broker: EmbeddedBroker, member: Member, admin: Admin
) -> None:
    aborts = producer(module_broker, transactional_id=member.topic)
    aborts.init_transactions(STALL_S)
    aborts.begin_transaction()
    send(aborts, member.topic, [{"value": b"a"}])
    assert member.offsets() == list(range(11))
    admin.alter_configs(member.group, {"share.isolation.level": "read_committed"}, resource="group")
    assert member.offsets((0, 9, ACCEPT), (10, 10, RELEASE)) == []
    aborts.abort_transaction(STALL_S)
    send(producer(module_broker), member.topic, [{"value": b"b"}])
    assert member.offsets(max_wait_ms=5000) == [12]


def test_a_group_begins_at_the_first_record_that_is_not_older_than_the_duration(
    module_broker: EmbeddedBroker, wire: KafkaWire, admin: Admin, topic: str, group: str
) -> None:
    create_topic(module_broker, topic)
    now_ms = int(time.time() * 1000)
    ages_s = (7200, 3000, 10)
    records = [{"value": b"", "timestamp": now_ms - 1000 * age_s} for age_s in ages_s]
    send(producer(module_broker), topic, records)
    for reset, offsets in {"by_duration:PT1H": [1, 2], "by_duration:PT5S": [], "by_duration:P1D": [0, 1, 2]}.items():
        member = Member(wire, f"{group}-{reset[-2:]}", topic)
        admin.alter_configs(member.group, {"share.auto.offset.reset": reset}, resource="group")
        member.join()
        assert member.offsets() == offsets


def test_columnar_batches_are_fetched_as_rows(member: Member, calls: Any) -> None:
    calls.produce(member.topic, calls.batch(b"c0", b"c1", b"c2", b"c3"))
    assert len(member.offsets(max_records=10)) == 10
    answer = member.fetch()
    assert acquired(answer) == [10, 11, 12, 13]
    records = answer.responses[0].partitions[0].records
    assert [each.value for each in read_rows(records, 0, read_header(records))] == [b"c0", b"c1", b"c2", b"c3"]


def test_a_typed_topic_gives_its_payloads_or_is_refused_before_records_are_acquired(
    module_broker: EmbeddedBroker, wire: KafkaWire, admin: Admin, topic: str, group: str
) -> None:
    for name, configs in ((topic, {"kafka.value.format": "json"}), (f"{topic}-none", {})):
        admin.create_topic(name, partitions=1, schema="n BIGINT NOT NULL", configs=configs)
        with Producer(module_broker.bootstrap_servers) as writer:
            writer.send(name, {"n": 7})
    reader = Member(wire, group, topic)
    reader.join()
    records = reader.fetch().responses[0].partitions[0].records
    assert [each.value for each in read_rows(records, 0, read_header(records))] == [b'{"n":7}']
    refused = Member(wire, f"{group}-none", f"{topic}-none")
    refused.join()
    (partition,) = refused.fetch().responses[0].partitions
    assert partition.error_code == 43
    assert "kafka.value.format" in partition.error_message


def test_partitions_that_do_not_exist_have_an_error(member: Member) -> None:
    partitions = tuple(FetchPartition(partition_index=number, acknowledgement_batches=()) for number in (0, 7))
    topics = (
        FetchTopic(topic_id=member.topic_id, partitions=partitions),
        FetchTopic(topic_id=UUID(int=7), partitions=partitions[:1]),
    )
    answer = member.fetch(topics=topics)
    found = {
        (topic.topic_id, each.partition_index): each.error_code
        for topic in answer.responses
        for each in topic.partitions
    }
    assert found == {(member.topic_id, 0): 0, (member.topic_id, 7): 3, (UUID(int=7), 0): 100}
    assert len(acquired_of(answer, member.topic_id)) == 10


def acquired_of(answer: Any, topic_id: UUID) -> list[int]:
    return [
        offset
        for topic in answer.responses
        if topic.topic_id == topic_id
        for partition in topic.partitions
        for each in partition.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    ]


# --- groups --------------------------------------------------------------------------------------------------------


def test_members_learn_their_partitions_and_leave(member: Member) -> None:
    joined = member.beat(0, (member.topic,), rack_id="r1")
    assert joined.member_id == member.member_id
    assert [(each.topic_id, each.partitions) for each in joined.assignment.topic_partitions] == [
        (member.topic_id, (0,))
    ]
    assert member.beat(joined.member_epoch).assignment is None
    unsubscribed = member.beat(joined.member_epoch, ())
    assert unsubscribed.assignment.topic_partitions == ()
    assert member.beat(-1).member_epoch == -1
    assert member.beat(1).error_code == 25


@pytest.mark.parametrize(
    ("epoch", "topics", "fields", "code"),
    [
        (0, None, {}, 42),
        (0, (), {}, 42),
        (0, ("t",), {"member_id": ""}, 42),
        (0, ("t",), {"member_id": "x" * 37}, 42),
        (0, ("t",), {"group_id": ""}, 42),
        (0, ("t",), {"rack_id": ""}, 42),
        (-2, None, {}, 42),
        (99, None, {}, 110),
        (5, None, {"member_id": "other"}, 25),
    ],
)
def test_heartbeats_that_are_wrong_get_the_codes_of_kafka(
    member: Member, epoch: int, topics: tuple[str, ...] | None, fields: dict[str, Any], code: int
) -> None:
    assert member.beat(epoch, topics, **fields).error_code == code


def test_a_heartbeat_whose_coordinator_is_on_a_dead_broker_is_to_be_sent_again(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_coordinators, "_leader", lambda topic, group_id: 5)
    answer = member.beat(1)
    assert answer.error_code == CoordinatorNotAvailableError.code
    assert "broker 5 is not alive" in answer.error_message


def test_groups_are_listed_described_and_deleted(member: Member, wire: KafkaWire) -> None:
    listed = wire.call(ListGroupsRequest(types_filter=("share",)), 5).groups
    found = {each.group_id: (each.protocol_type, each.group_state, each.group_type) for each in listed}
    assert found[member.group] == ("share", "Stable", "share")
    request = ShareGroupDescribeRequest(group_ids=(member.group, "none"), include_authorized_operations=True)
    stall = Stall("all groups to be loaded")
    while (answer := wire.call(request, 1)).groups[1].error_code in NOT_YET:
        stall.check()
    described, missing = answer.groups
    assert (described.error_code, described.group_state, described.assignor_name) == (0, "Stable", "simple")
    (seen,) = described.members
    assert (seen.member_id, seen.client_id, seen.client_host) == (member.member_id, "wire", "/127.0.0.1")
    assert (seen.member_epoch, seen.subscribed_topic_names) == (1, (member.topic,))
    (partitions,) = seen.assignment.topic_partitions
    assert (partitions.topic_id, partitions.topic_name, partitions.partitions) == (member.topic_id, member.topic, (0,))
    assert (missing.error_code, missing.group_state) == (69, "")
    delete = DeleteGroupsRequest(groups_names=(member.group, "none"))
    assert [each.error_code for each in wire.call(delete, 2).results] == [68, 69]
    member.beat(-1)
    assert [each.error_code for each in wire.call(delete, 2).results] == [0, 69]


def test_offsets_are_described_altered_and_deleted(member: Member, wire: KafkaWire) -> None:
    def described(*partitions: int, group: str = member.group, version: int = 1) -> Any:
        topics = tuple(
            DescribeShareGroupOffsetsRequestTopic(topic_name=member.topic, partitions=(each,)) for each in partitions
        )
        wanted = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics or None)
        return wire.call(DescribeShareGroupOffsetsRequest(groups=(wanted,)), version).groups[0]

    def altered(offset: int, partition: int = 0) -> Any:
        each = AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
        topic = AlterShareGroupOffsetsRequestTopic(topic_name=member.topic, partitions=(each,))
        return wire.call(AlterShareGroupOffsetsRequest(group_id=member.group, topics=(topic,)), 0)

    def deleted(*names: str) -> Any:
        topics = tuple(DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names)
        return wire.call(DeleteShareGroupOffsetsRequest(group_id=member.group, topics=topics), 0)

    assert [each.start_offset for each in described().topics[0].partitions] == [-1]
    assert len(member.offsets()) == 10
    assert error_of(member.acknowledge((0, 2, (ACCEPT,)), (5, 6, (ACCEPT,)))) == 0
    (topic,) = described().topics
    assert (topic.topic_name, topic.topic_id) == (member.topic, member.topic_id)
    assert [(each.start_offset, each.lag) for each in topic.partitions] == [(3, 5)]
    assert [(each.start_offset, each.lag) for each in described(0, version=0).topics[0].partitions] == [(3, -1)]
    assert [topic.partitions[0].start_offset for topic in described(1, 0).topics] == [-1, 3]
    assert (described(group="none").error_code, described(group="none").topics) == (0, ())
    unread = described(0, group="none")
    assert (unread.error_code, unread.topics[0].partitions[0].start_offset) == (0, -1)
    assert altered(0).error_code == deleted(member.topic).error_code == 68
    member.beat(-1)
    assert altered(1).responses[0].partitions[0].error_code == 0
    assert altered(1, partition=9).responses[0].partitions[0].error_code == 3
    assert described().topics[0].partitions[0].start_offset == 1
    results = deleted(member.topic, "no-such-topic").responses
    assert [(each.topic_id, each.error_code) for each in results] == [(member.topic_id, 0), (NIL_UUID, 3)]
    assert described().topics == ()
    assert deleted(member.topic).responses[0].error_code == 3
    member.group = f"{member.group}-new"
    assert deleted(member.topic).error_code == 69
    assert altered(7).responses[0].partitions[0].error_code == 0  # the group begins to exist
    assert described(group=member.group).topics[0].partitions[0].start_offset == 7


def test_the_feature_of_share_groups_is_announced(wire: KafkaWire) -> None:
    answer = wire.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
    assert ("share.version", 1) in {(each.name, each.max_version_level) for each in answer.finalized_features}
