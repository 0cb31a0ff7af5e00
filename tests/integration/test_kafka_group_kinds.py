"""Tests of Kafka's calls for a group of another kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.errors import (
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    NotCoordinatorError,
)
from millrace.kafka_protocol.calls.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from millrace.kafka_protocol.calls.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.kafka_protocol.calls.delete_groups import DeleteGroupsRequest
from millrace.kafka_protocol.calls.describe_groups import DescribeGroupsRequest
from millrace.kafka_protocol.calls.init_producer_id import InitProducerIdRequest
from millrace.kafka_protocol.calls.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.kafka_protocol.calls.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.kafka_protocol.calls.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.kafka_protocol.calls.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millrace_broker.groups import GroupCoordinator
from millrace_broker.testing import EmbeddedBroker

from .group_calls import subscription
from .kafka_clients import create_topic
from .kafka_share_members import NOT_YET, Member
from .kafka_wire import KafkaWire, find_coordinator, join_consumer_group
from .waiting import Stall

_CONCURRENT_TRANSACTIONS = 51


@pytest.fixture
def wire(module_broker: EmbeddedBroker, topic: str) -> Iterator[KafkaWire]:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as opened:
        yield opened


def _answered(call: Any, *not_yet: int) -> int:
    """Call until the coordinator is loaded, and return the error code."""
    stall = Stall("the coordinator")
    while (code := call()) in (*NOT_YET, *not_yet):
        stall.check()
    found: int = code
    return found


def _beat(wire: KafkaWire, topic: str, epoch: int = 0) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id=topic,
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=(topic,),
        topic_partitions=(),
    )
    return _answered(lambda: wire.call(request, 1).error_code)


def _join(wire: KafkaWire, topic: str, version: int = 4) -> Any:
    """Join a classic group. From version 4 the first call only gives a member id."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=subscription(topic))
    request = JoinGroupRequest(
        group_id=topic,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )
    answers: list[Any] = []

    def call() -> int:
        answers.append(wire.call(request, version))
        code: int = answers[-1].error_code
        return code

    _answered(call)
    return answers[-1]


def _commit(wire: KafkaWire, topic: str, **member: Any) -> int:
    """Commit an offset, without a member as a simple consumer does."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    topics = (OffsetCommitRequestTopic(name=topic, partitions=(partition,)),)
    request = OffsetCommitRequest(group_id=topic, topics=topics, **{"member_id": "", **member})
    return _answered(lambda: wire.call(request, 9).topics[0].partitions[0].error_code)


def _commit_in_transaction(wire: KafkaWire, topic: str) -> int:
    find_coordinator(wire, 1, topic)
    init = InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=60_000)
    answers: list[Any] = []

    def call() -> int:
        answers.append(wire.call(init, 5))
        code: int = answers[-1].error_code
        return code

    assert _answered(call) == 0
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    request = TxnOffsetCommitRequest(
        transactional_id=topic,
        group_id=topic,
        producer_id=answers[-1].producer_id,
        producer_epoch=answers[-1].producer_epoch,
        topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
    )
    return _answered(lambda: wire.call(request, 5).topics[0].partitions[0].error_code, _CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("is_empty", [False, True])
def test_the_id_of_a_share_group_is_refused_to_consumers(wire: KafkaWire, topic: str, is_empty: bool) -> None:
    find_coordinator(wire, 0, topic)
    share = Member(wire, topic, topic)
    share.join()
    if is_empty:
        assert share.beat(-1).error_code == 0
    not_found = GroupIdNotFoundError.code
    assert _beat(wire, topic) == not_found
    assert _commit(wire, topic) == not_found
    assert _commit(wire, topic, member_id="m", generation_id_or_member_epoch=1) == not_found
    assert _commit_in_transaction(wire, topic) == not_found
    assert _join(wire, topic).error_code == InconsistentGroupProtocolError.code
    assert share.beat(0, (topic,)).error_code == 0, "the share group is as before"


def test_groups_of_both_kinds_from_an_earlier_version_go_on(
    wire: KafkaWire, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def allow(*_: Any, **__: Any) -> None: ...

    find_coordinator(wire, 0, topic)
    share = Member(wire, topic, topic)
    share.join()
    with monkeypatch.context() as patch:
        patch.setattr("millrace_broker.api.offset_commit.check_is_not", allow)
        assert _commit(wire, topic) == 0
    assert _commit(wire, topic) == 0
    assert _join(wire, topic, 3).error_code == 0
    assert share.beat(0, (topic,)).error_code == 0


def test_the_id_of_a_deleted_share_group_is_free(wire: KafkaWire, topic: str) -> None:
    find_coordinator(wire, 0, topic)
    share = Member(wire, topic, topic)
    share.join()
    assert share.beat(-1).error_code == 0
    (deleted,) = wire.call(DeleteGroupsRequest(groups_names=(topic,)), 2).results
    assert deleted.error_code == 0
    assert _commit(wire, topic) == 0


@pytest.mark.parametrize("has_share_group", [False, True])
def test_a_broker_that_is_not_the_coordinator_does_not_answer_that_a_group_does_not_exist(
    wire: KafkaWire, topic: str, has_share_group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: GroupCoordinator, group_id: str) -> None:
        raise NotCoordinatorError(f"another broker coordinates {group_id}")

    find_coordinator(wire, 0, topic)
    if has_share_group:
        Member(wire, topic, topic).join()
    monkeypatch.setattr(GroupCoordinator, "find", refuse)
    for version in (5, 6):
        (described,) = wire.call(DescribeGroupsRequest(groups=(topic,)), version).groups
        assert described.error_code == NotCoordinatorError.code
    if not has_share_group:
        (deleted,) = wire.call(DeleteGroupsRequest(groups_names=(topic,)), 2).results
        assert deleted.error_code == NotCoordinatorError.code


def _make_members(wire: KafkaWire, topic: str) -> None:
    join_consumer_group(wire, topic)


def _make_empty(wire: KafkaWire, topic: str) -> None:
    join_consumer_group(wire, topic)
    assert _beat(wire, topic, -1) == 0


def _make_classic(wire: KafkaWire, topic: str) -> None:
    assert _join(wire, topic, 3).error_code == 0


def _make_empty_classic(wire: KafkaWire, topic: str) -> None:
    leaving = MemberIdentity(member_id=_join(wire, topic, 3).member_id)
    assert wire.call(LeaveGroupRequest(group_id=topic, members=(leaving,)), 4).error_code == 0


def _make_pending(wire: KafkaWire, topic: str) -> None:
    assert _join(wire, topic).error_code == MemberIdRequiredError.code


def _make_offsets(wire: KafkaWire, topic: str) -> None:
    assert _commit(wire, topic) == 0


@pytest.mark.parametrize(
    "make", [_make_members, _make_empty, _make_classic, _make_empty_classic, _make_pending, _make_offsets]
)
def test_the_id_of_a_group_of_consumers_is_refused_to_share_consumers(wire: KafkaWire, topic: str, make: Any) -> None:
    find_coordinator(wire, 0, topic)
    make(wire, topic)
    share = Member(wire, topic, topic)
    assert _answered(lambda: share.beat(0, (topic,)).error_code) == GroupIdNotFoundError.code
    offset = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topics = (AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=(offset,)),)
    request = AlterShareGroupOffsetsRequest(group_id=topic, topics=topics)
    assert _answered(lambda: wire.call(request, 0).error_code) == GroupIdNotFoundError.code
