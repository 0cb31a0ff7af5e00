"""Tests of share groups on a real broker, over gRPC."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.coordinator_records import read_assignment, read_subscription
from millrace.errors import (
    CoordinatorLoadInProgressError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidRecordStateError,
    InvalidRequestError,
    MillraceError,
    NonEmptyGroupError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from .group_calls import Share, acquired
from .passing_time import pass_time
from .waiting import AN_HOUR_MS, STALL_S, Stall, eventually

OPTIONS = {
    "share.auto.offset.reset": "earliest",
    "group.share.record.lock.duration.ms": "60000",
    "group.share.max.size": "8",
    "share.coordinator.state.topic.num.partitions": "3",
}


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=OPTIONS) as running:
        yield running


@pytest.fixture
def group() -> str:
    return f"share-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def filled(calls: Any, topic: str) -> str:
    """Create a topic with ten records, in batches of five."""
    calls.create(topic)
    for _ in range(2):
        calls.produce(topic, calls.batch(*[b"x"] * 5))
    return topic


def test_members_share_the_records_of_a_partition(calls: Any, group: str, filled: str) -> None:
    share = Share(calls, group)
    for member in "ab":
        assert share.join(member, filled) > 0
    first = share.fetch("a", filled, most=4)
    assert acquired(first) == [0, 1, 2, 3]
    assert calls.offsets_in(first.records) == [range(5)]
    second = share.fetch("b", filled)
    assert acquired(second) == [4, 5, 6, 7, 8, 9]
    assert calls.offsets_in(second.records) == [range(5), range(5, 10)]
    assert share.offsets("a", filled) == []
    assert share.acknowledge("a", filled, 0, 3) == 0
    assert share.acknowledge("a", filled, 0, 3) == 0  # before the start offset
    assert share.acknowledge("a", filled, 3, 4) == InvalidRecordStateError.code
    assert share.acknowledge("b", filled, 4, 4, pb.RELEASE) == 0
    again = share.fetch("a", filled)
    assert [(run.first_offset, run.delivery_count) for run in again.acquired] == [(4, 2)]


def test_an_acknowledgement_of_an_unknown_type_is_refused(calls: Any, group: str, filled: str) -> None:
    share = Share(calls, group)
    share.join("a", filled)
    assert len(share.offsets("a", filled)) == 10
    assert share.acknowledge("a", filled, 0, 4, 7) == InvalidRequestError.code
    assert share.acknowledge("a", filled, 0, 4) == 0


def test_acknowledgements_in_a_fetch_are_done_first(calls: Any, group: str, filled: str) -> None:
    share = Share(calls, group)
    share.join("a", filled)
    assert len(share.offsets("a", filled)) == 10
    result = share.fetch("a", filled, acknowledge=[(0, 4, pb.ACCEPT), (5, 9, pb.RELEASE)])
    assert acquired(result) == [5, 6, 7, 8, 9]
    result = share.fetch("a", filled, acknowledge=[(5, 5, pb.ACCEPT), (5, 5, pb.ACCEPT)], wait_ms=10_000)
    assert result.acknowledge_error.code == InvalidRecordStateError.code


def test_records_are_given_out_a_limited_number_of_times(calls: Any, group: str, filled: str) -> None:
    share = Share(calls, group)
    share.join("a", filled)
    counts = []
    while result := share.fetch("a", filled, most=1).acquired:
        if result[0].first_offset != 0:
            break
        counts.append(result[0].delivery_count)
        assert share.acknowledge("a", filled, 0, 0, pb.RELEASE) == 0
    assert counts == [1, 2, 3, 4, 5]


def test_a_fetch_waits_for_records(calls: Any, group: str, topic: str) -> None:
    calls.create(topic)
    share = Share(calls, group)
    share.join("a", topic)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(share.offsets, "a", topic, wait_ms=20_000)
        calls.produce(topic, calls.batch(b"x"))
        assert waiting.result() == [0]


def test_a_waiting_fetch_gets_released_records(calls: Any, group: str, filled: str) -> None:
    share = Share(calls, group)
    for member in "ab":
        share.join(member, filled)
    assert len(share.offsets("a", filled)) == 10
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(share.offsets, "b", filled, wait_ms=20_000)
        assert share.acknowledge("a", filled, 3, 4, pb.RELEASE) == 0
        assert waiting.result() == [3, 4]
        waiting = pool.submit(share.offsets, "b", filled, wait_ms=20_000)
        assert share.beat("a", -1).member_epoch == -1  # the member leaves, and its acquired records are available again
        assert waiting.result() == [0, 1, 2, 5, 6, 7, 8, 9]


def test_members_get_their_assignment_by_heartbeats(calls: Any, group: str, topic: str) -> None:
    calls.create(topic, 4)
    share = Share(calls, group)
    first = share.beat("a", 0, topic)
    assert [(each.name, list(each.partitions)) for each in first.assignment] == [(topic, [0, 1, 2, 3])]
    assert not share.beat("a", first.member_epoch).has_assignment
    share.join("b", topic)
    changed = share.beat("a", first.member_epoch)
    assert [list(each.partitions) for each in changed.assignment] == [[0, 2]]
    assert changed.member_epoch > first.member_epoch
    for member in "cde":
        share.join(member, topic)
    assert len(share.beat("a", changed.member_epoch).assignment[0].partitions) == 4


def test_groups_are_listed_described_and_deleted(calls: Any, group: str, filled: str) -> None:
    share = Share(calls, group)
    share.join("a", filled)
    assert share.offsets("a", filled)
    listed = calls.call("ListGroups", pb.ListGroupsRequest(types=["share"])).groups
    assert [(each.state, each.type) for each in listed if each.group_id == group] == [("Stable", "share")]
    described = calls.call("DescribeGroups", pb.DescribeGroupsRequest(group_ids=[group])).groups[0]
    assert (described.type, described.state) == ("share", "Stable")
    assert read_subscription(described.members[0].metadata)[1].topics == (filled,)
    assert read_assignment(described.members[0].assignment)[1].assigned_partitions[0].partitions == (0,)

    def delete() -> int:
        return calls.call("DeleteGroups", pb.DeleteGroupsRequest(group_ids=[group])).results[0].error.code

    assert delete() == NonEmptyGroupError.code
    share.beat("a", -1)
    assert delete() == 0
    assert delete() == GroupIdNotFoundError.code


def test_invalid_requests_of_share_groups_are_refused(calls: Any, group: str, filled: str) -> None:
    share = Share(calls, group)

    def refusal(call: Callable[[], Any]) -> type[MillraceError]:
        with pytest.raises(MillraceError) as raised:
            call()
        return type(raised.value)

    assert refusal(lambda: share.beat("a", 1)) is UnknownMemberError
    assert refusal(lambda: share.beat("", 0, filled)) is InvalidRequestError
    assert refusal(lambda: share.beat("a", -2, filled)) is InvalidRequestError
    assert refusal(lambda: share.fetch("a", filled)) is UnknownMemberError
    epoch = share.join("a", filled)
    assert refusal(lambda: share.beat("a", epoch + 5)) is FencedMemberEpochError
    assert share.fetch("a", "nothing").error.code == UnknownTopicOrPartitionError.code
    assert share.fetch("a", filled, partition=7).error.code == UnknownTopicOrPartitionError.code
    assert share.acknowledge("a", filled, 0, 0) == InvalidRequestError.code
    assert share.acknowledge("a", filled, 1, 0) in (InvalidRequestError.code, InvalidRecordStateError.code)
    for number in range(7):
        share.join(f"m{number}", filled)
    assert refusal(lambda: share.join("one too many", filled)) is GroupMaxSizeReachedError
    nameless = pb.ShareGroupHeartbeatRequest(member_id="a", subscribed_topics=[filled])
    assert type(calls.error("ShareGroupHeartbeat", nameless)) is InvalidGroupIdError
    calls.call("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.GROUP, keys=[group]))
    joining = pb.JoinGroupRequest(group_id=group, session_timeout_ms=10_000, protocol_type="consumer")
    eventually(lambda: type(calls.error("JoinGroup", joining)) is not CoordinatorLoadInProgressError, "the coordinator")
    assert type(calls.error("JoinGroup", joining)) is InconsistentGroupProtocolError


LOCK_S, SESSION_S = 60, 3600


def test_record_locks_and_sessions_of_silent_members_expire(
    tmp_path: Path, calls_to: Callable[[str], Any], topic: str
) -> None:
    options = {
        **OPTIONS,
        "group.share.record.lock.duration.ms": str(LOCK_S * 1000),
        "group.share.session.timeout.ms": str(SESSION_S * 1000),
    }
    with EmbeddedBroker(tmp_path, options=options) as broker, ThreadPoolExecutor(1) as pool:
        calls = calls_to(broker.bootstrap_servers)
        calls.create(topic)
        calls.produce(topic, calls.batch(b"a", b"b"))
        share = Share(calls, "g")
        share.join("silent", topic)
        share.join("b", topic)
        assert share.offsets("silent", topic) == [0, 1]
        waiting = pool.submit(share.fetch, "b", topic, wait_ms=AN_HOUR_MS)
        eventually(lambda: broker.server.broker.statistics().admission.parked == 1, "the fetch that waits")
        pass_time(broker, LOCK_S)
        result = waiting.result(STALL_S)
        assert [(run.first_offset, run.last_offset, run.delivery_count) for run in result.acquired] == [(0, 1, 2)]
        assert share.acknowledge("silent", topic, 0, 1) == InvalidRecordStateError.code

        pass_time(broker, SESSION_S)
        with pytest.raises(UnknownMemberError):
            share.beat("silent", 1)


def test_a_group_begins_at_the_end_by_default(tmp_path: Path, calls_to: Callable[[str], Any], topic: str) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create(topic)
        calls.produce(topic, calls.batch(b"before"))
        share = Share(calls, "g")
        share.join("a", topic)
        assert share.offsets("a", topic) == []
        calls.produce(topic, calls.batch(b"after"))
    with EmbeddedBroker(tmp_path) as broker:
        share = Share(calls_to(broker.bootstrap_servers), "g")
        share.join("a", topic)
        assert share.offsets("a", topic) == [1]


def test_a_group_may_say_where_it_begins(tmp_path: Path, calls_to: Callable[[str], Any], topic: str) -> None:
    def alter(calls: Any, **values: str) -> int:
        resource = pb.ConfigResource(type=pb.GROUP_RESOURCE, name="g/1")
        options = {name.replace("_", "."): value for name, value in values.items()}
        alteration = pb.AlterConfigsRequest.Alteration(resource=resource, set=options)
        return calls.call("AlterConfigs", pb.AlterConfigsRequest(alterations=[alteration])).results[0].error.code

    def described(calls: Any) -> dict[str, tuple[str, str]]:
        resource = pb.ConfigResource(type=pb.GROUP_RESOURCE, name="g/1")
        result = calls.call("DescribeConfigs", pb.DescribeConfigsRequest(resources=[resource])).results[0]
        return {entry.name: (entry.value, entry.source) for entry in result.entries}

    with EmbeddedBroker(tmp_path) as broker:
        calls = calls_to(broker.bootstrap_servers)
        assert described(calls)["share.auto.offset.reset"] == ("latest", "DEFAULT_CONFIG")
        assert described(calls)["share.renew.acknowledge.enable"] == ("true", "DEFAULT_CONFIG")
        assert alter(calls, share_auto_offset_reset="sometimes") == InvalidConfigError.code
        assert alter(calls, retention_ms="1") == InvalidConfigError.code
        assert alter(calls, share_auto_offset_reset="earliest") == 0
    with EmbeddedBroker(tmp_path) as broker:
        calls = calls_to(broker.bootstrap_servers)
        assert described(calls)["share.auto.offset.reset"] == ("earliest", "DYNAMIC_GROUP_CONFIG")
        calls.create(topic)
        calls.produce(topic, calls.batch(b"before"))
        share = Share(calls, "g/1")
        share.join("a", topic)
        assert share.offsets("a", topic) == [0]


def test_accepted_records_stay_accepted_after_a_restart(
    tmp_path: Path, calls_to: Callable[[str], Any], topic: str
) -> None:
    with EmbeddedBroker(tmp_path, options=OPTIONS) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create(topic)
        calls.produce(topic, calls.batch(*[b"x"] * 10))
        share = Share(calls, "g")
        share.join("a", topic)
        assert len(share.offsets("a", topic)) == 10
        assert share.acknowledge("a", topic, 0, 2) == 0
        assert share.acknowledge("a", topic, 5, 5) == 0
        assert share.acknowledge("a", topic, 7, 7, pb.REJECT) == 0
        assert share.acknowledge("a", topic, 8, 8, pb.RELEASE) == 0
    with EmbeddedBroker(tmp_path, options=OPTIONS) as broker:
        share = Share(calls_to(broker.bootstrap_servers), "g")
        share.join("b", topic)
        result = share.fetch("b", topic)
        assert acquired(result) == [3, 4, 6, 8, 9]
        counts = {run.first_offset: run.delivery_count for run in result.acquired}
        assert (counts[3], counts[8]) == (1, 2)


def test_many_members_process_every_record_once(calls: Any, group: str, topic: str) -> None:
    # No member fails here, so the member that acquired a record accepts it exactly once.
    calls.create(topic)
    for _ in range(10):
        calls.produce(topic, calls.batch(*[b"x"] * 30))
    share = Share(calls, group)
    processed: Counter[int] = Counter()
    lock = threading.Lock()

    def work(member: str) -> None:
        share.join(member, topic)
        accept: list[tuple[int, int, int]] = []
        stall = Stall("all records")
        while True:
            stall.check(sum(processed.values()))
            result = share.fetch(member, topic, most=7, wait_ms=50, acknowledge=accept)
            assert result.acknowledge_error.code == 0
            accept = [(run.first_offset, run.last_offset, pb.ACCEPT) for run in result.acquired]
            with lock:
                processed.update(acquired(result))
                if sum(processed.values()) >= 300 and not accept:
                    return

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, [f"m{number}" for number in range(6)]))
    assert processed == Counter(range(300))
