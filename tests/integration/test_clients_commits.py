"""Tests of group members against a real broker.

They cover commits, wake-ups, interceptors, refusals and administration.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from millrace.clients import (
    Admin,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecords,
    OffsetAndMetadata,
    RebalanceListener,
    TopicPartition,
)
from millrace.clients.membership.coordinator import Coordinator
from millrace.errors import (
    ClientClosedError,
    ConcurrentUseError,
    GroupIdNotFoundError,
    InvalidConfigError,
    InvalidGroupIdError,
    MillraceError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
    UsageError,
    WakeupError,
)
from millrace_broker.testing import EmbeddedBroker

from .consumer_groups import QUICK_GROUPS, Group, poll_until, read
from .waiting import AN_HOUR_MS, eventually

BROKER_OPTIONS = QUICK_GROUPS


def test_committed_offsets_are_those_of_sync_and_async_commits(group: Group) -> None:
    group.create_topic(2, 100)
    consumer = group.member(enable_auto_commit="false", max_poll_records=30)
    one, two = TopicPartition(group.name, 0), TopicPartition(group.name, 1)
    read(30, consumer)
    assert consumer.committed([one, two]) == {one: None, two: None}
    consumer.commit()
    assert sum(place.offset for place in consumer.committed([one, two]).values() if place) == 30
    consumer.commit({one: OffsetAndMetadata(offset=7, metadata="half way")})
    assert consumer.committed([one])[one] == OffsetAndMetadata(offset=7, metadata="half way")
    done: list[tuple[Any, Any]] = []
    for offset in range(8, 60):
        consumer.commit_async({one: offset}, lambda offsets, error: done.append((offsets[one].offset, error)))
    poll_until(lambda: len(done) == 52, consumer)
    assert done == [(offset, None) for offset in range(8, 60)]
    assert consumer.committed([one])[one] == OffsetAndMetadata(offset=59)
    with pytest.raises(UsageError, match="offsets start at 0"):
        consumer.commit({one: -1})
    with pytest.raises(OffsetMetadataTooLargeError):
        consumer.commit({one: OffsetAndMetadata(offset=1, metadata="x" * 5000)})
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.commit({TopicPartition("nowhere", 0): 1})
    failed: list[Any] = []
    consumer.commit_async({TopicPartition("nowhere", 0): 1}, lambda _, error: failed.append(error))
    poll_until(lambda: bool(failed), consumer)
    assert isinstance(failed[0], UnknownTopicOrPartitionError)
    consumer.commit()


def test_reading_continues_where_the_group_has_committed(group: Group) -> None:
    group.create_topic(1, 100)
    for start in range(0, 100, 20):
        # Commits are automatic: at polls, and when the consumer is closed.
        with Consumer(group.config(max_poll_records=20)) as consumer:
            consumer.subscribe([group.name])
            assert [record.offset for record in read(20, consumer)] == list(range(start, start + 20))


def test_automatic_commits_are_made_by_polls(group: Group, admin: Admin) -> None:
    group.create_topic(1, 10)
    consumer = group.member(auto_commit_interval_ms="50")
    read(10, consumer)
    poll_until(lambda: any(lag.committed == 10 for lag in admin.group_lag(group.name)), consumer)


def test_partitions_assigned_by_hand_commit_without_membership(group: Group, admin: Admin) -> None:
    group.create_topic(1, 10)
    for _ in range(2):
        with Consumer(group.config(max_poll_records=5)) as consumer:
            consumer.assign([(group.name, 0)])
            assert len(read(5, consumer)) == 5
    assert admin.list_group_offsets(group.name) == {
        TopicPartition(group.name, 0): OffsetAndMetadata(offset=10, leader_epoch=0)
    }
    assert admin.describe_group(group.name).state == "Empty"


def test_a_listener_may_seek_and_commit(group: Group) -> None:
    group.create_topic(1, 20)

    class Seeks(RebalanceListener):
        consumer: Consumer

        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            for partition in partitions:
                self.consumer.seek(partition, 15)

        def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            self.consumer.commit({partitions[0]: 17})

    listener = Seeks()
    listener.consumer = group.member(listener, enable_auto_commit="false")
    assert [record.offset for record in read(5, listener.consumer)] == list(range(15, 20))
    listener.consumer.unsubscribe()
    assert listener.consumer.assignment() == []
    assert listener.consumer.committed([(group.name, 0)])[TopicPartition(group.name, 0)] == OffsetAndMetadata(offset=17)


def test_a_poll_is_woken_up(group: Group) -> None:
    group.create_topic(1, 0)
    consumer = group.member()
    timer = threading.Timer(0.3, consumer.wakeup)
    timer.start()
    with pytest.raises(WakeupError):
        consumer.poll(AN_HOUR_MS)
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.poll(0)
    consumer.poll(0)
    timer.join()


def _wake_at_coordinator_look_up(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``wakeup`` just before the next look-up of the coordinator, as another thread may."""
    look_up, calls = Coordinator.address, iter([consumer.wakeup])

    def address(coordinator: Coordinator, timeout_ms: int | None = None) -> str:
        if consumer._signal.is_mine and (call := next(calls, None)):
            coordinator.forget()
            call()
        return look_up(coordinator, timeout_ms)

    monkeypatch.setattr(Coordinator, "address", address)


def test_a_wakeup_while_a_commit_is_sent_ends_the_poll_and_not_the_commit(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.create_topic(1, 0)
    partition = TopicPartition(group.name, 0)
    consumer = group.consumer(enable_auto_commit="false")
    consumer.assign([partition])
    done: list[MillraceError | None] = []
    # An asynchronous commit is not sent again while a new broker still elects its first coordinators, and this is.
    assert consumer.committed([partition]) == {partition: None}
    _wake_at_coordinator_look_up(consumer, monkeypatch)
    consumer.commit_async({partition: 5}, lambda _, error: done.append(error))
    with pytest.raises(WakeupError):
        consumer.poll(0)
    poll_until(lambda: bool(done), consumer)
    assert done == [None]
    _wake_at_coordinator_look_up(consumer, monkeypatch)
    with pytest.raises(WakeupError):
        consumer.commit({partition: 6})
    assert consumer.committed([partition])[partition] == OffsetAndMetadata(offset=5)


def test_a_wakeup_while_a_member_leaves_ends_the_next_poll(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.create_topic(1, 1)
    consumer = group.member(enable_auto_commit="false")
    read(1, consumer)
    _wake_at_coordinator_look_up(consumer, monkeypatch)
    consumer.unsubscribe()
    consumer.assign([(group.name, 0)])
    with pytest.raises(WakeupError):
        consumer.poll(0)


def test_a_consumer_is_for_one_thread_at_a_time(group: Group) -> None:
    group.create_topic(1, 0)
    consumer = group.member()
    thread = threading.Thread(target=_poll_until_woken, args=[consumer])
    thread.start()
    eventually(lambda: _is_refused(consumer))
    consumer.wakeup()
    thread.join()
    consumer.poll(0)


def _poll_until_woken(consumer: Consumer) -> None:
    with contextlib.suppress(WakeupError):
        consumer.poll(60_000)


def _is_refused(consumer: Consumer) -> bool:
    try:
        consumer.assignment()
    except ConcurrentUseError:
        return True
    return False


def test_calls_that_need_a_group_say_so(module_broker: EmbeddedBroker) -> None:
    with Consumer(module_broker.bootstrap_servers) as consumer:
        for call in (
            lambda: consumer.subscribe("t"),
            lambda: consumer.commit({("t", 0): 1}),
            lambda: consumer.committed([("t", 0)]),
            lambda: consumer.group_metadata(),
        ):
            with pytest.raises(InvalidGroupIdError, match=r"set group\.id"):
                call()


def test_subscribing_and_assigning_exclude_each_other(group: Group) -> None:
    group.create_topic(1, 0)
    consumer = group.member()
    with pytest.raises(UsageError, match="unsubscribe before"):
        consumer.assign([(group.name, 0)])
    consumer.unsubscribe()
    with pytest.raises(UsageError, match="no partitions are assigned"):
        consumer.poll()
    consumer.assign([(group.name, 0)])
    with pytest.raises(UsageError, match="unsubscribe before"):
        consumer.subscribe(group.name)
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.subscribe(group.name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition.assignment.strategy": "fair"}, "choose from range"),
        ({"heartbeat.interval.ms": "50000"}, r"below session\.timeout\.ms"),
        ({"group.id": "", "group.instance.id": "i"}, r"set group\.id"),
        ({"interceptor.classes": "no.such:Class"}, r"interceptor\.classes"),
    ],
)
def test_invalid_options_are_refused_at_the_creation_of_the_consumer(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        Consumer({"bootstrap.servers": "localhost:1", "group.id": "g", **options})


def test_interceptors_see_records_and_commits(group: Group) -> None:
    group.create_topic(1, 10)
    seen: list[Any] = []

    class Halves(ConsumerInterceptor):
        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            return ConsumerRecords({tp: records.records(tp)[::2] for tp in records.partitions()})

        def on_commit(self, offsets: Any) -> None:
            seen.append({partition.partition: place.offset for partition, place in offsets.items()})
            raise RuntimeError("an error of an interceptor affects only the interceptor")

    consumer = group.member(interceptor_classes=[Halves], enable_auto_commit="false")
    assert [record.offset for record in read(5, consumer)] == [0, 2, 4, 6, 8]
    consumer.commit()
    assert seen == [{0: 10}]


def test_groups_are_listed_described_reset_and_deleted(group: Group, admin: Admin) -> None:
    group.create_topic(2, 100)
    consumer = group.member(max_poll_records=50, enable_auto_commit="false", client_id="tester")
    read(50, consumer)
    consumer.commit()
    one, two = TopicPartition(group.name, 0), TopicPartition(group.name, 1)
    described = admin.describe_group(group.name)
    assert (described.state, described.type, described.assignor) == ("Stable", "classic", "range")
    (member,) = described.members
    assert (member.client_id, member.partitions, member.topics) == ("tester", (one, two), (group.name,))
    assert group.name in {each.group_id for each in admin.list_groups(states=["Stable"])}
    lags = admin.group_lag(group.name)
    assert sum(lag.lag or 0 for lag in lags) == 150
    for lag in lags:
        assert lag.member == member
        assert lag.lag_bytes is not None
        assert lag.lag_seconds is not None
        assert lag.lag_bytes > 0
        assert 0 < lag.lag_seconds < 600
    with pytest.raises(UnknownMemberError):
        admin.alter_group_offsets(group.name, {one: 3})
    with pytest.raises(NonEmptyGroupError):
        admin.delete_groups([group.name])
    admin.remove_members(group.name)
    consumer.close()
    admin.alter_group_offsets(group.name, {one: 100, two: 99})
    assert [(lag.lag, lag.lag_seconds == 0) for lag in admin.group_lag(group.name)] == [(0, True), (1, False)]
    admin.delete_group_offsets(group.name, [two])
    assert admin.list_group_offsets(group.name) == {one: OffsetAndMetadata(offset=100)}
    admin.delete_groups([group.name])
    with pytest.raises(GroupIdNotFoundError):
        admin.group_lag(group.name)
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_groups([group.name])
