"""Tests of groups and committed offsets on a real broker, over gRPC."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from millrace.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    MillraceError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from .group_calls import Groups, subscription
from .passing_time import pass_time
from .waiting import AN_HOUR_MS, STALL_S, eventually

OPTIONS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "5",
}


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=OPTIONS) as running:
        yield running


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def refusal(call: Callable[[], Any]) -> type[MillraceError]:
    with pytest.raises(MillraceError) as raised:
        call()
    return type(raised.value)


def test_a_new_state_topic_causes_no_retriable_error(broker: EmbeddedBroker, calls_to: Callable[[str], Any]) -> None:
    calls = calls_to(broker.bootstrap_servers)
    keys = [f"g{number}" for number in range(20)]
    for kind in (pb.GROUP, pb.SHARE):
        calls.call("FindCoordinator", pb.FindCoordinatorRequest(key_type=kind, keys=keys))
    for begin in range(0, len(keys), 5):
        joining, reading, committing, transactional, sharing = keys[begin : begin + 5]
        joined = calls.call(
            "JoinGroup",
            pb.JoinGroupRequest(
                group_id=joining,
                session_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[pb.JoinGroupRequest.Protocol(name="range", metadata=subscription("t"))],
            ),
        )
        assert joined.error.code == MemberIdRequiredError.code
        wanted = pb.OffsetFetchRequest.Group(group_id=reading, all_topics=True)
        assert not calls.call("OffsetFetch", pb.OffsetFetchRequest(groups=[wanted])).groups[0].error.code
        calls.call("OffsetCommit", pb.OffsetCommitRequest(group_id=committing, generation_id=-1))
        begun = pb.InitProducerIdRequest(transactional_id=transactional, transaction_timeout_ms=10_000)
        assert calls.call("InitProducerId", begun).producer_id >= 0
        beat = pb.ShareGroupHeartbeatRequest(group_id=sharing, member_id="m", subscribed_topics=["t"])
        assert calls.call("ShareGroupHeartbeat", beat).member_epoch > 0


def test_one_member_joins_and_gets_its_assignment(calls: Any, group: str) -> None:
    groups = Groups(calls, group)
    joined = groups.join()
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert [member.member_id for member in joined.members] == [joined.member_id]
    assert groups.sync(joined, {joined.member_id: b"mine"}) == b"mine"
    groups.heartbeat(joined)
    described = groups.describe()
    assert (described.state, described.protocol, described.type) == ("Stable", "range", "classic")
    assert described.members[0].assignment == b"mine"
    assert described.members[0].client_host == "/127.0.0.1"
    assert groups.leave(joined.member_id) == 0
    assert groups.describe().state == "Empty"


def test_committed_offsets_are_fetched(calls: Any, group: str, topic: str) -> None:
    calls.create(topic, 2)
    groups = Groups(calls, group)
    assert groups.committed(topic).committed.offset == -1
    assert groups.commit(topic, 5, metadata="m", partition=1).error.code == 0
    found = groups.committed(topic, 1)
    assert (found.committed.offset, found.committed.metadata) == (5, "m")
    assert found.commit_timestamp_ms > 0


def rebalanced(
    groups: Groups, threads: ThreadPoolExecutor, *joins: Callable[[], pb.JoinGroupResponse]
) -> list[pb.JoinGroupResponse]:
    """Let members join at once. The leader assigns each member its own id."""
    joined = [future.result() for future in [threads.submit(join) for join in joins]]
    leader = next(each for each in joined if each.leader == each.member_id)
    assignments = {member.member_id: member.member_id.encode() for member in leader.members}
    syncs = [threads.submit(groups.sync, each, assignments if each is leader else None) for each in joined]
    assert [sync.result() for sync in syncs] == [each.member_id.encode() for each in joined]
    return joined


def test_a_second_member_makes_a_second_generation(calls: Any, group: str, threads: ThreadPoolExecutor) -> None:
    groups = Groups(calls, group)
    [first] = rebalanced(groups, threads, groups.join)
    new_id = groups.member_id()
    second = threads.submit(groups.join, new_id)
    groups.wait_for("PreparingRebalance")
    assert refusal(lambda: groups.heartbeat(first)) is RebalanceInProgressError
    assert refusal(lambda: groups.sync(first)) is RebalanceInProgressError
    again = groups.join(first.member_id)
    assert {again.generation_id, second.result().generation_id} == {first.generation_id + 1}
    assert refusal(lambda: groups.heartbeat(first)) is IllegalGenerationError
    assert len(again.members or second.result().members) == 2


def test_a_member_without_heartbeats_is_removed_after_its_session(
    module_broker: EmbeddedBroker, calls: Any, group: str, threads: ThreadPoolExecutor
) -> None:
    groups = Groups(calls, group)
    [joined] = rebalanced(groups, threads, lambda: groups.join(session_timeout_ms=300_000))
    groups.heartbeat(joined)
    pass_time(module_broker, 300)
    groups.wait_for("Empty")
    assert refusal(lambda: groups.heartbeat(joined)) is UnknownMemberError


def test_a_static_member_comes_back_and_fences_the_one_before(
    calls: Any, group: str, threads: ThreadPoolExecutor
) -> None:
    groups = Groups(calls, group)
    [before] = rebalanced(groups, threads, lambda: groups.join(group_instance_id="i"))
    now = groups.join(group_instance_id="i")
    assert (now.generation_id, now.skip_assignment) == (before.generation_id, True)
    assert groups.sync(now, group_instance_id="i") == before.member_id.encode()
    assert refusal(lambda: groups.heartbeat(before, group_instance_id="i")) is FencedInstanceIdError
    assert groups.leave(instance="i") == 0
    assert groups.leave(instance="i") == UnknownMemberError.code


def test_a_cancelled_call_leaves_no_state(
    module_broker: EmbeddedBroker, calls: Any, group: str, threads: ThreadPoolExecutor
) -> None:
    groups = Groups(calls, group)
    [first] = rebalanced(groups, threads, groups.join)
    waiting = calls.stub.JoinGroup.future(groups.join_request(groups.member_id(), session_timeout_ms=200))
    groups.wait_for("PreparingRebalance")
    waiting.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        waiting.result()
    again = groups.join(first.member_id)  # answered once the other member's session has ended
    assert len(again.members) == 1
    assert module_broker.server.broker.statistics().admission.requests == 0


def test_an_invalid_join_is_refused(calls: Any, group: str, threads: ThreadPoolExecutor) -> None:
    groups = Groups(calls, group)
    assert refusal(lambda: groups.join(session_timeout_ms=99)) is InvalidSessionTimeoutError
    assert refusal(lambda: groups.join(session_timeout_ms=10**8)) is InvalidSessionTimeoutError
    assert refusal(lambda: groups.join("unknown")) is UnknownMemberError
    assert refusal(lambda: groups.join(group_id="")) is InvalidGroupIdError
    assert refusal(lambda: groups.join(protocol_type="")) is InconsistentGroupProtocolError
    rebalanced(groups, threads, groups.join)
    assert refusal(lambda: groups.join(protocols=[("other", b"")])) is InconsistentGroupProtocolError


def test_an_invalid_commit_is_refused(calls: Any, group: str, topic: str, threads: ThreadPoolExecutor) -> None:
    calls.create(topic)
    groups = Groups(calls, group)
    assert groups.commit("nothing", 1).error.code == UnknownTopicOrPartitionError.code
    assert groups.commit(topic, 1, partition=1).error.code == UnknownTopicOrPartitionError.code
    assert groups.commit(topic, 1, metadata="m" * 5000).error.code == OffsetMetadataTooLargeError.code
    # None of these has created the group: as in Kafka, it is not asked without a partition to commit.
    assert refusal(lambda: groups.commit(topic, 1, generation_id=3, member_id="m")) is IllegalGenerationError
    [joined] = rebalanced(groups, threads, groups.join)
    assert groups.commit(topic, 1, joined).error.code == 0
    assert refusal(lambda: groups.commit(topic, 2)) is UnknownMemberError
    assert refusal(lambda: groups.commit(topic, 2, joined, generation_id=9)) is IllegalGenerationError
    assert groups.committed(topic).committed.offset == 1


def test_offsets_are_fetched_of_several_groups_at_once(calls: Any, group: str, topic: str) -> None:
    calls.create(topic, 3)
    for number in range(2):
        assert Groups(calls, f"{group}-{number}").commit(topic, number, partition=number).error.code == 0
    wanted = [pb.OffsetFetchRequest.Group(group_id=f"{group}-{number}", all_topics=True) for number in range(3)]
    Groups(calls, f"{group}-2")
    found = calls.call("OffsetFetch", pb.OffsetFetchRequest(groups=wanted, require_stable=True)).groups
    partitions = [
        [each.committed.partition for topic in answer.topics for each in topic.partitions] for answer in found
    ]
    assert partitions == [[0], [1], []]
    twice = [pb.TopicPartitions(name=topic, partitions=[number]) for number in (1, 0)]
    asked = pb.OffsetFetchRequest.Group(group_id=f"{group}-0", topics=twice)
    (answer,) = calls.call("OffsetFetch", pb.OffsetFetchRequest(groups=[asked])).groups
    offsets = [(each.committed.partition, each.committed.offset) for each in (t.partitions[0] for t in answer.topics)]
    assert offsets == [(1, -1), (0, 0)]


def test_offsets_are_deleted_unless_the_group_reads_them(
    calls: Any, group: str, topic: str, threads: ThreadPoolExecutor
) -> None:
    calls.create(topic, 2)
    groups = Groups(calls, group)
    [joined] = rebalanced(groups, threads, lambda: groups.join(protocols=[("range", subscription(topic))]))
    groups.commit(topic, 7, joined)

    def delete(partition: int = 0) -> int:
        partitions = [pb.TopicPartitions(name=topic, partitions=[partition])]
        response = calls.call("OffsetDelete", pb.OffsetDeleteRequest(group_id=group, topics=partitions))
        return response.topics[0].partitions[0].error.code

    assert delete() == GroupSubscribedToTopicError.code
    assert delete(9) == UnknownTopicOrPartitionError.code
    groups.leave(joined.member_id)
    assert delete() == 0
    assert groups.committed(topic).committed.offset == -1
    partitions = [pb.TopicPartitions(name=topic, partitions=[0])]
    unknown = pb.OffsetDeleteRequest(group_id=group + "-unknown", topics=partitions)
    Groups(calls, group + "-unknown")
    assert type(calls.error("OffsetDelete", unknown)) is GroupIdNotFoundError
    unknown.topics[0].partitions[:] = [9]
    (result,) = calls.call("OffsetDelete", unknown).topics[0].partitions
    assert result.error.code == UnknownTopicOrPartitionError.code, "the group is not asked"


def test_groups_are_listed_and_deleted(calls: Any, group: str, topic: str, threads: ThreadPoolExecutor) -> None:
    calls.create(topic)
    groups = Groups(calls, group)
    [joined] = rebalanced(groups, threads, groups.join)
    groups.commit(topic, 7, joined)

    def states(**filters: Any) -> list[str]:
        listed = calls.call("ListGroups", pb.ListGroupsRequest(**filters)).groups
        return [each.state for each in listed if each.group_id == group]

    assert states() == states(states=["stable"]) == states(types=["classic"]) == ["Stable"]
    assert states(states=["Empty"]) == states(types=["share"]) == []
    assert groups.delete() == NonEmptyGroupError.code
    groups.leave(joined.member_id)
    assert groups.delete() == 0
    assert states() == []
    assert groups.delete() == GroupIdNotFoundError.code
    assert (groups.describe().state, groups.describe().error.code) == ("Dead", GroupIdNotFoundError.code)
    assert groups.committed(topic).committed.offset == -1


def test_committed_offsets_of_a_deleted_topic_are_deleted(calls: Any, group: str, topic: str) -> None:
    calls.create(topic)
    groups = Groups(calls, group)
    groups.commit(topic, 7)
    calls.call("DeleteTopics", pb.DeleteTopicsRequest(names=[topic], timeout_ms=AN_HOUR_MS))
    eventually(lambda: groups.committed(topic).committed.offset == -1, "the broker to expire the offsets")
    calls.create(topic)
    assert groups.committed(topic).committed.offset == -1


def test_a_group_continues_after_a_restart(tmp_path: Path, calls_to: Callable[[str], Any], topic: str) -> None:
    with EmbeddedBroker(tmp_path, options=OPTIONS) as broker, ThreadPoolExecutor(4) as threads:
        calls = calls_to(broker.bootstrap_servers)
        calls.create(topic)
        groups = Groups(calls, "g")
        [joined] = rebalanced(groups, threads, lambda: groups.join(session_timeout_ms=300_000))
        groups.commit(topic, 7, joined)
    with EmbeddedBroker(tmp_path, options=OPTIONS) as broker:
        groups = Groups(calls_to(broker.bootstrap_servers), "g")
        groups.heartbeat(joined)
        assert groups.describe().state == "Stable"
        assert groups.sync(joined) == joined.member_id.encode()
        assert groups.commit(topic, 8, joined).error.code == 0
        assert groups.committed(topic).committed.offset == 8
        pass_time(broker, 300)
        groups.wait_for("Empty")  # its session started again, and has expired


def test_waiting_members_are_answered_when_the_broker_stops(tmp_path: Path, calls_to: Callable[[str], Any]) -> None:
    options = {**OPTIONS, "group.initial.rebalance.delay.ms": "60000"}
    with EmbeddedBroker(tmp_path, options=options) as broker, ThreadPoolExecutor(1) as threads:
        groups = Groups(calls_to(broker.bootstrap_servers), "g")
        waiting: Future[Any] = threads.submit(groups.join)
        groups.wait_for("PreparingRebalance")
        broker.stop()
        assert isinstance(waiting.exception(), CoordinatorNotAvailableError)  # and not disconnected


def test_many_members_join_at_once(tmp_path: Path, calls_to: Callable[[str], Any]) -> None:
    # More members wait for each other than requests may be in progress.
    count = 120
    options = {
        **OPTIONS,
        "group.initial.rebalance.delay.ms": "1500",
        "queued.max.requests": "60",
    }
    with EmbeddedBroker(tmp_path, options=options) as broker:
        groups = [Groups(calls_to(broker.bootstrap_servers), "g") for _ in range(4)]
        ids = [groups[number % 4].member_id(session_timeout_ms=30_000) for number in range(count)]
        parked = [
            groups[number % 4].calls.stub.JoinGroup.future(groups[0].join_request(member_id))
            for number, member_id in enumerate(ids)
        ]
        answers = [each.result(STALL_S) for each in parked]
        assert {answer.generation_id for answer in answers} == {1}
        assert [len(answer.members) for answer in answers if answer.members] == [count]
        statistics = broker.server.broker.statistics().groups
        assert statistics.by_state == {"CompletingRebalance": 1}
        assert statistics.heartbeats.delayed == count
        assert statistics.rebalances.delayed == 1
