"""Tests of Kafka requests that Kafka refuses or interprets specially.

The broker does the same as Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.errors import (
    DuplicateResourceError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    LeaderNotAvailableError,
    OffsetNotAvailableError,
    RebalanceInProgressError,
    ResourceNotFoundError,
    StaleMemberEpochError,
    TopicDeletionDisabledError,
    UnknownMemberError,
    UnknownTopicIdError,
    UnsupportedVersionError,
)
from millrace.kafka_protocol.calls import (
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    join_group,
    list_groups,
    list_offsets,
    list_transactions,
    offset_commit,
    offset_fetch,
)
from millrace.kafka_protocol.calls.find_coordinator import FindCoordinatorRequest
from millrace.kafka_protocol.calls.init_producer_id import InitProducerIdRequest
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.kafka_protocol.calls.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millrace_broker.api import list_offsets as offsets_handler
from millrace_broker.testing import EmbeddedBroker

from .conftest import NOW_MS
from .kafka_clients import create_topic
from .kafka_share_members import NOT_YET
from .kafka_wire import EVERY_ACL, KafkaWire, find_coordinator, join_consumer_group
from .waiting import Stall

BROKER_OPTIONS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
_MISMATCHED_ENDPOINT_TYPE, _UNSUPPORTED_ENDPOINT_TYPE = 114, 115


@pytest.fixture
def wire(module_broker: EmbeddedBroker, topic: str) -> Iterator[KafkaWire]:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as opened:
        yield opened


def test_new_topics_with_an_option_without_value_or_named_twice_are_refused(wire: KafkaWire, topic: str) -> None:
    names = (f"{topic}-bad", f"{topic}-twice", f"{topic}-good", f"{topic}-twice")
    values = (None, None, "60000", "60000")
    topics = tuple(
        create_topics.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=(create_topics.CreatableTopicConfig(name="retention.ms", value=value),),
        )
        for name, value in zip(names, values, strict=True)
    )
    answer = wire.call(create_topics.CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    assert sorted((each.name, each.error_code) for each in answer.topics) == [
        (names[0], InvalidConfigError.code),
        (names[2], 0),
        (names[1], InvalidRequestError.code),
    ]


def test_a_user_that_is_named_twice_is_not_described(wire: KafkaWire) -> None:
    users = tuple(describe_user_scram_credentials.UserName(name=name) for name in ("twice", "once", "twice"))
    answer = wire.call(describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=users), 0)
    assert [(each.user, each.error_code) for each in answer.results] == [
        ("twice", DuplicateResourceError.code),
        ("once", ResourceNotFoundError.code),
    ]


def test_a_topic_that_a_request_names_twice_or_by_name_and_id_is_not_deleted(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str
) -> None:
    known = module_broker.server.broker.catalog.topics
    by_name = delete_topics.DeleteTopicState(name=topic)
    by_id = delete_topics.DeleteTopicState(topic_id=known[topic].topic_id)
    by_both = delete_topics.DeleteTopicState(name=topic, topic_id=UUID(int=7))
    for named, name in (((by_name, by_name), topic), ((by_name, by_id), None), ((by_both,), topic)):
        (answer,) = wire.call(delete_topics.DeleteTopicsRequest(topics=named, timeout_ms=10_000), 6).responses
        assert (answer.name, answer.error_code) == (name, InvalidRequestError.code)
    request = delete_topics.DeleteTopicsRequest(topic_names=(topic, topic), timeout_ms=10_000)
    (answer,) = wire.call(request, 5).responses
    assert (answer.name, answer.error_code) == (topic, InvalidRequestError.code)
    neither = delete_topics.DeleteTopicsRequest(topics=(delete_topics.DeleteTopicState(),), timeout_ms=10_000)
    assert wire.call(neither, 6).responses[0].error_code == InvalidRequestError.code
    assert topic in known
    (answer,) = wire.call(delete_topics.DeleteTopicsRequest(topics=(by_id,), timeout_ms=10_000), 6).responses
    assert (answer.name, answer.error_code) == (topic, 0)


def test_a_disabled_deletion_has_the_error_of_its_version(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, options={"delete.topic.enable": "false"}) as broker, KafkaWire(broker) as opened:
        create_topic(broker, "kept")
        request = delete_topics.DeleteTopicsRequest(topic_names=("kept",), timeout_ms=10_000)
        codes = [opened.call(request, version).responses[0].error_code for version in (1, 2, 3, 5)]
    assert codes == [InvalidRequestError.code] * 2 + [TopicDeletionDisabledError.code] * 2


def test_a_topic_that_a_request_names_twice_gets_no_partitions(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str
) -> None:
    counts = [create_partitions.CreatePartitionsTopic(name=topic, count=count, assignments=None) for count in (2, 3)]
    request = create_partitions.CreatePartitionsRequest(topics=tuple(counts), timeout_ms=10_000, validate_only=False)
    assert {each.error_code for each in wire.call(request, 3).results} == {InvalidRequestError.code}
    assert len(module_broker.server.broker.catalog.topics[topic].partitions) == 1


@pytest.mark.parametrize("version", [10, 11, 12])
def test_metadata_of_a_topic_by_its_id_is_for_versions_since_12(wire: KafkaWire, version: int) -> None:
    by_id = MetadataRequestTopic(name=None, topic_id=UUID(int=7))
    (answer,) = wire.call(MetadataRequest(topics=(by_id,), allow_auto_topic_creation=False), version).topics
    assert answer.topic_id == UUID(int=7)
    assert answer.error_code == (UnknownTopicIdError if version >= 12 else InvalidRequestError).code


@pytest.mark.parametrize("election_type", [-1, 2, 127])
def test_an_election_of_an_unknown_type_is_refused(wire: KafkaWire, topic: str, election_type: int) -> None:
    partitions = (elect_leaders.TopicPartitions(topic=topic, partitions=(0,)),)
    request = elect_leaders.ElectLeadersRequest(election_type=election_type, topic_partitions=partitions)
    assert wire.call(request, 2).error_code == InvalidRequestError.code


def test_a_client_that_looks_for_controllers_is_told_that_this_is_a_broker(wire: KafkaWire) -> None:
    answers = [
        wire.call(
            describe_cluster.DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=endpoint_type
            ),
            1,
        )
        for endpoint_type in (1, 2, 3)
    ]
    assert [each.error_code for each in answers] == [0, _MISMATCHED_ENDPOINT_TYPE, _UNSUPPORTED_ENDPOINT_TYPE]
    assert [bool(each.error_message) for each in answers] == [False, True, True]


def test_a_request_that_is_refused_as_a_whole_has_the_reason(wire: KafkaWire) -> None:
    component = describe_client_quotas.ComponentData(entity_type="user", match_type=7, match=None)
    request = describe_client_quotas.DescribeClientQuotasRequest(components=(component,), strict=False)
    answer = wire.call(request, 1)
    assert answer.error_code == InvalidRequestError.code
    assert "match type 7 of user" in answer.error_message


def test_a_cursor_before_the_first_partition_is_refused(wire: KafkaWire, topic: str) -> None:
    cursor = describe_topic_partitions.DescribeTopicPartitionsRequestCursor(topic_name=topic, partition_index=-1)
    request = describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=(describe_topic_partitions.TopicRequest(name=topic),), cursor=cursor
    )
    (answer,) = wire.call(request, 0).topics
    assert (answer.name, answer.error_code) == (topic, InvalidRequestError.code)


@pytest.mark.parametrize(
    ("pattern", "is_listed"), [("a+", True), ("a", False), ("(a|a)*", True), ("(a*)*b", False), ("", True)]
)
def test_transactions_are_listed_by_patterns_whose_time_is_linear(
    wire: KafkaWire, pattern: str, is_listed: bool
) -> None:
    name = "a" * 60
    find_coordinator(wire, 1, name)
    stall = Stall("the producer id")
    while wire.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 5).error_code:
        stall.check()
    request = list_transactions.ListTransactionsRequest(
        state_filters=(), producer_id_filters=(), transactional_id_pattern=pattern
    )
    answer = wire.call(request, 2)
    assert (answer.error_code, name in {each.transactional_id for each in answer.transaction_states}) == (0, is_listed)


@pytest.mark.parametrize("pattern", ["[", "a(?=b)", "a++", "(a)\\1"])
def test_a_pattern_that_is_none_of_re2_is_refused(wire: KafkaWire, pattern: str) -> None:
    request = list_transactions.ListTransactionsRequest(
        state_filters=(), producer_id_filters=(), transactional_id_pattern=pattern
    )
    assert wire.call(request, 2).error_code == InvalidRegularExpressionError.code


def _list_offset(wire: KafkaWire, topic: str, timestamp: int, version: int) -> Any:
    partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = (list_offsets.ListOffsetsTopic(name=topic, partitions=(partition,)),)
    (found,) = wire.call(list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics), version).topics[0].partitions
    return found


@pytest.mark.parametrize("version", [1, 6, 11])
def test_an_unknown_special_timestamp_is_of_a_later_version(wire: KafkaWire, topic: str, version: int) -> None:
    for timestamp in (-7, -100):
        assert _list_offset(wire, topic, timestamp, version).error_code == UnsupportedVersionError.code


@pytest.mark.parametrize(("version", "error"), [(4, LeaderNotAvailableError), (5, OffsetNotAvailableError)])
def test_a_leader_without_a_known_high_watermark_answers_with_the_error_of_the_version(
    wire: KafkaWire, topic: str, monkeypatch: pytest.MonkeyPatch, version: int, error: Any
) -> None:
    def refuse(*args: Any) -> None:
        raise OffsetNotAvailableError("the high watermark is not known yet")

    monkeypatch.setattr(offsets_handler, "_check_known", refuse)
    assert _list_offset(wire, topic, -1, version).error_code == error.code
    assert _list_offset(wire, topic, 1, version).error_code == error.code, "no record below the high watermark"
    assert _list_offset(wire, topic, -2, version).error_code == 0, "earliest"


def test_a_leader_without_a_known_high_watermark_finds_records_below_it(
    wire: KafkaWire, topic: str, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.produce(topic, calls.batch(b"a"))

    def refuse(*args: Any) -> None:
        raise OffsetNotAvailableError("the high watermark is not known yet")

    monkeypatch.setattr(offsets_handler, "_check_known", refuse)
    timestamps = {NOW_MS: 0, -2: 0, -4: 0, -3: 0}  # of the record, earliest, earliest on the disk, largest
    for timestamp, offset in timestamps.items():
        found = _list_offset(wire, topic, timestamp, 8)
        assert (found.error_code, found.offset) == (0, offset), timestamp
    for timestamp in (NOW_MS + 1, -1):
        assert _list_offset(wire, topic, timestamp, 8).error_code == OffsetNotAvailableError.code, timestamp


def test_a_partition_that_is_named_twice_has_no_offset(
    module_broker: EmbeddedBroker, wire: KafkaWire, topic: str
) -> None:
    create_topic(module_broker, f"{topic}-2", 2)
    partitions = tuple(
        list_offsets.ListOffsetsPartition(partition_index=number, timestamp=timestamp)
        for number, timestamp in ((0, -1), (1, -1), (0, -2))
    )
    topics = (list_offsets.ListOffsetsTopic(name=f"{topic}-2", partitions=partitions),)
    (found,) = wire.call(list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics), 8).topics
    assert [(each.partition_index, each.error_code) for each in found.partitions] == [
        (0, InvalidRequestError.code),
        (1, 0),
        (0, InvalidRequestError.code),
    ]


@pytest.mark.parametrize(("version", "error"), [(8, UnsupportedVersionError), (9, StaleMemberEpochError)])
def test_a_commit_with_an_old_member_epoch_gets_the_error_of_its_version(
    wire: KafkaWire, topic: str, version: int, error: Any
) -> None:
    join_consumer_group(wire, topic)
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    request = offset_commit.OffsetCommitRequest(
        group_id=topic,
        member_id="m",
        generation_id_or_member_epoch=77,
        topics=(offset_commit.OffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
    )
    assert wire.call(request, version).topics[0].partitions[0].error_code == error.code


def _commit(wire: KafkaWire, topic: str, version: int, **member: Any) -> Any:
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    topics = (offset_commit.OffsetCommitRequestTopic(name=topic, partitions=(partition,)),)
    request = offset_commit.OffsetCommitRequest(group_id=topic, topics=topics, **member)
    return wire.call(request, version).topics[0].partitions[0].error_code


@pytest.mark.parametrize(("version", "error_code"), [(8, UnsupportedVersionError.code), (9, 0)])
def test_a_member_with_an_epoch_commits_with_versions_that_have_epochs(
    wire: KafkaWire, topic: str, version: int, error_code: int
) -> None:
    epoch = join_consumer_group(wire, topic).member_epoch
    assert _commit(wire, topic, version, member_id="m", generation_id_or_member_epoch=epoch) == error_code


@pytest.mark.parametrize(("version", "error"), [(8, IllegalGenerationError), (9, GroupIdNotFoundError)])
def test_a_commit_with_a_generation_of_no_group_gets_the_error_of_its_version(
    wire: KafkaWire, topic: str, version: int, error: Any
) -> None:
    find_coordinator(wire, 0, topic)
    found = _commit(wire, topic, version, member_id="m", generation_id_or_member_epoch=1)
    stall = Stall("the coordinator's groups")
    while found in NOT_YET:
        stall.check()
        found = _commit(wire, topic, version, member_id="m", generation_id_or_member_epoch=1)
    assert found == error.code


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("names", [(None, "range"), ("consumer", None)])
def test_a_sync_without_the_protocol_is_refused_by_versions_that_have_it(
    wire: KafkaWire, topic: str, version: int, names: tuple[str | None, str | None]
) -> None:
    find_coordinator(wire, 0, topic)
    protocol_type, protocol_name = names if version >= 5 else (None, None)
    request = SyncGroupRequest(
        group_id=topic,
        generation_id=1,
        member_id="m",
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=(),
    )
    # A coordinator that loads its groups has lost the rebalance, so a sync must join again (as in Kafka).
    not_yet = {*NOT_YET, RebalanceInProgressError.code}
    stall = Stall("the coordinator's groups")
    while (error_code := wire.call(request, version).error_code) in not_yet:
        stall.check()
    assert error_code == (InconsistentGroupProtocolError if version >= 5 else UnknownMemberError).code


def test_a_consumer_of_an_empty_group_id_finds_its_coordinator_and_commits(wire: KafkaWire, topic: str) -> None:
    find_coordinator(wire, 0, "")
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    committed = offset_commit.OffsetCommitRequestTopic(name=topic, partitions=(partition,))
    request = offset_commit.OffsetCommitRequest(group_id="", member_id="", topics=(committed,))
    stall = Stall("the group")
    while wire.call(request, 9).topics[0].partitions[0].error_code:
        stall.check()


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_leader_that_comes_back_does_not_assign_again(wire: KafkaWire, topic: str, version: int) -> None:
    """Versions before 9 have no way to tell a leader that its assignment stays."""

    def join() -> Any:
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
        request = join_group.JoinGroupRequest(
            group_id=topic,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            group_instance_id="i",
            protocol_type="consumer",
            protocols=(protocol,),
        )
        stall = Stall("the coordinator's groups")
        while (answer := wire.call(request, version)).error_code in NOT_YET:
            stall.check()
        return answer

    find_coordinator(wire, 0, topic)
    first = join()
    assigned = SyncGroupRequestAssignment(member_id=first.member_id, assignment=b"mine")
    request = SyncGroupRequest(
        group_id=topic,
        generation_id=first.generation_id,
        member_id=first.member_id,
        group_instance_id="i",
        assignments=(assigned,),
    )
    assert wire.call(request, 4).assignment == b"mine"
    again = join()
    assert (again.generation_id, again.member_id != first.member_id) == (first.generation_id, True)
    if version < 9:
        assert (again.leader, again.members) == (first.member_id, ())
    else:
        assert (again.leader, len(again.members), again.skip_assignment) == (again.member_id, 1, True)


def test_a_heartbeat_without_a_group_id_is_an_invalid_request(wire: KafkaWire, topic: str) -> None:
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id="",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=(topic,),
        topic_partitions=(),
    )
    assert wire.call(request, 1).error_code == InvalidRequestError.code


@pytest.mark.parametrize("offset", [-1, -2, -(2**63)])
def test_a_negative_offset_is_committed(wire: KafkaWire, topic: str, offset: int) -> None:
    """KafkaJS commits -2 or -1 after OFFSET_OUT_OF_RANGE, and reads from the beginning or the end."""
    find_coordinator(wire, 0, topic)
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    committed = offset_commit.OffsetCommitRequestTopic(name=topic, partitions=(partition,))
    request = offset_commit.OffsetCommitRequest(group_id=topic, member_id="", topics=(committed,))
    assert wire.call(request, 5).topics[0].partitions[0].error_code == 0
    wanted = offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=(0,))
    (found,) = wire.call(offset_fetch.OffsetFetchRequest(group_id=topic, topics=(wanted,)), 4).topics
    assert found.partitions[0].committed_offset == offset


@pytest.mark.parametrize(("version", "text"), [(1, "NONE"), (3, "NONE"), (4, ""), (6, "")])
def test_a_found_coordinator_has_kafkas_text_in_place_of_an_error(
    wire: KafkaWire, topic: str, version: int, text: str
) -> None:
    find_coordinator(wire, 0, topic)
    key = {"coordinator_keys": (topic,)} if version >= 4 else {"key": topic}
    answer = wire.call(FindCoordinatorRequest(key_type=0, **key), version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.error_message) == (0, text)


def test_answers_without_an_error_have_kafkas_empty_text(wire: KafkaWire, topic: str) -> None:
    """Kafka's other calls have no text then, which is another value of the protocol."""
    described = describe_configs.DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
    assert wire.call(describe_configs.DescribeConfigsRequest(resources=(described,)), 4).results[0].error_message == ""
    quotas = describe_client_quotas.DescribeClientQuotasRequest(components=(), strict=False)
    users = describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=None)
    for request, version in ((quotas, 1), (users, 0), (EVERY_ACL, 3)):
        answer = wire.call(request, version)
        assert (answer.error_code, answer.error_message) == (0, ""), request
    created = create_acls.AclCreation(
        resource_type=2,
        resource_name=topic,
        resource_pattern_type=3,
        principal="User:nobody",
        host="*",
        operation=3,
        permission_type=3,
    )
    (result,) = wire.call(create_acls.CreateAclsRequest(creations=(created,)), 3).results
    assert (result.error_code, result.error_message) == (0, "")


def test_groups_have_kafkas_names_of_their_types(wire: KafkaWire, topic: str) -> None:
    join_consumer_group(wire, topic)
    found = wire.call(list_groups.ListGroupsRequest(states_filter=(), types_filter=("CONSUMER",)), 5).groups
    assert {each.group_type for each in found} == {"consumer"}
    assert topic in {each.group_id for each in found}
