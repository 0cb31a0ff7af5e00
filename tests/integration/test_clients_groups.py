"""Consumers that share topics as a group, against a real broker: rebalances, commits, death and return."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import (
    Admin,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    ConsumerRecords,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from millrace.errors import (
    ClientClosedError,
    CommitFailedError,
    ConcurrentUseError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    InvalidConfigError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
    UsageError,
    WakeupError,
)
from millrace_broker.embedded import EmbeddedBroker

WAIT_S = 30
QUICK = {
    "auto.offset.reset": "earliest",
    "session.timeout.ms": "1000",
    "heartbeat.interval.ms": "50",
    "metadata.max.age.ms": "200",
    "retry.backoff.ms": "20",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    directory = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(directory, group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=100) as running:
        yield running


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def group(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group(broker, re.sub(r"\W+", "-", request.node.name))
    yield made
    made.close()


class Group:
    """A topic and the consumers of one group, all polled from the test's thread."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.consumers: list[Consumer] = []

    def create_topic(self, partitions: int, records: int, topic: str | None = None) -> None:
        name = topic or self.name
        with Admin(self.broker.bootstrap_servers) as admin, Producer(self.broker.bootstrap_servers) as producer:
            admin.create_topic(name, partitions=partitions)
            for partition in range(partitions):
                producer.send_table(name, {"value": [b"%d" % n for n in range(records)]}, partition=partition)

    def config(self, **options: Any) -> dict[str, Any]:
        named = {name.replace("_", "."): value for name, value in options.items()}
        return {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": self.name, **QUICK, **named}

    def consumer(self, **options: Any) -> Consumer:
        consumer = Consumer(self.config(**options))
        self.consumers.append(consumer)
        return consumer

    def member(self, listener: RebalanceListener | None = None, **options: Any) -> Consumer:
        consumer = self.consumer(**options)
        consumer.subscribe(self.name, listener)
        return consumer

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


def poll_until(done: Callable[[], bool], *consumers: Consumer) -> list[ConsumerRecord]:
    """Poll all of them in turn until something is so; returns what they had."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            records += consumer.poll(10)
    return records


def read(count: int, *consumers: Consumer) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + WAIT_S
    while len(records) < count:
        assert time.monotonic() < deadline, len(records)
        for consumer in consumers:
            records += consumer.poll(10)
    return records


def places(records: Sequence[ConsumerRecord]) -> list[tuple[str, int, int]]:
    return sorted((record.topic, record.partition, record.offset) for record in records)


@pytest.mark.parametrize(
    "strategy", ["range", "roundrobin", "sticky", "cooperative-sticky", "range,cooperative-sticky"]
)
def test_members_share_partitions_and_take_over_from_those_that_leave(group: Group, strategy: str) -> None:
    group.create_topic(4, 100)
    options = {"partition_assignment_strategy": strategy, "max_poll_records": 10}
    first = group.member(**options)
    records = read(40, first)
    assert len(first.assignment()) == 4
    second, third = group.member(**options), group.member(**options)
    everybody = (first, second, third)
    records += poll_until(lambda: sorted(len(each.assignment()) for each in everybody) == [1, 1, 2], *everybody)
    second.close()
    left = (first, third)
    records += poll_until(lambda: [len(each.assignment()) for each in left] == [2, 2], *left)
    records += read(400 - len(records), *left)
    # Everybody let go cleanly, and committed: nothing was read twice.
    assert places(records) == [(group.name, partition, n) for partition in range(4) for n in range(100)]


class Told(RebalanceListener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("assigned", [partition.partition for partition in partitions]))

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("revoked", [partition.partition for partition in partitions]))

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("lost", [partition.partition for partition in partitions]))


def test_cooperative_members_keep_what_they_keep(group: Group) -> None:
    group.create_topic(4, 0)
    told = Told()
    first = group.member(told, partition_assignment_strategy="cooperative-sticky")
    poll_until(lambda: len(first.assignment()) == 4, first)
    second = group.member(partition_assignment_strategy="cooperative-sticky")
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    assert told.events[0] == ("assigned", [0, 1, 2, 3])
    ((_, gone),) = [event for event in told.events if event[0] == "revoked"]
    assert len(gone) == 2
    assert all(not partitions for kind, partitions in told.events[1:] if kind == "assigned")


def test_eager_members_give_up_everything(group: Group) -> None:
    group.create_topic(2, 0)
    told = Told()
    first = group.member(told, partition_assignment_strategy="range")
    poll_until(lambda: len(first.assignment()) == 2, first)
    second = group.member(partition_assignment_strategy="range")
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
    first.close()
    kept = [0] if told.events[2] == ("assigned", [0]) else [1]
    assert told.events == [("assigned", [0, 1]), ("revoked", [0, 1]), ("assigned", kept), ("revoked", kept)]


@pytest.mark.timeout(120)
def test_what_a_killed_member_read_is_read_on_by_the_others(group: Group, tmp_path: Path) -> None:
    group.create_topic(4, 3000)
    outputs = [tmp_path / f"{number}.txt" for number in range(3)]
    program = Path(__file__).with_name("consuming_process.py")
    options = group.config(max_poll_records=50, enable_auto_commit="false")
    command = [sys.executable, str(program), json.dumps(options), group.name]
    processes = [subprocess.Popen([*command, str(output)]) for output in outputs]
    try:
        for victim, output in zip(processes[:2], outputs[:2], strict=True):
            _wait(lambda output=output: output.exists() and len(output.read_text().splitlines()) >= 300)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
        with Admin(group.broker.bootstrap_servers) as admin:
            _wait(lambda: _lag(admin, group.name) == 0, 90)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [tuple(map(int, line.split())) for output in outputs for line in output.read_text().splitlines()]
    assert set(lines) == {(partition, n) for partition in range(4) for n in range(3000)}
    # What was read and not yet committed is read again, and nothing else.
    assert len(lines) <= 12000 + 2 * 50


def _lag(admin: Admin, group_id: str) -> int | None:
    lags = [lag.lag for lag in admin.group_lag(group_id, measure=False)]
    return None if len(lags) < 4 or None in lags else sum(lag or 0 for lag in lags)


def _wait(done: Callable[[], bool], seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not done():
        assert time.monotonic() < deadline
        pause.wait(0.02)


def test_a_static_member_comes_back_without_a_rebalance(group: Group, admin: Admin) -> None:
    group.create_topic(2, 10)
    told = Told()
    stays = group.member(told, group_instance_id="stays", session_timeout_ms="20000")
    back = group.member(group_instance_id="back", session_timeout_ms="20000")
    poll_until(lambda: len(stays.assignment()) == len(back.assignment()) == 1, stays, back)
    generation = stays.group_metadata().generation_id
    had = back.assignment()
    back.close()
    told.events.clear()
    again = group.member(group_instance_id="back", session_timeout_ms="20000")
    poll_until(lambda: again.assignment() == had, stays, again)
    assert told.events == []
    assert again.group_metadata().generation_id == generation
    assert {member.name for member in admin.describe_group(group.name).members} == {"stays", "back"}


def test_a_member_that_another_with_its_name_replaced_is_fenced(group: Group) -> None:
    group.create_topic(1, 10)
    old = group.member(group_instance_id="one")
    read(10, old)
    new = group.member(group_instance_id="one")
    poll_until(lambda: len(new.assignment()) == 1, new)
    with pytest.raises(FencedInstanceIdError):
        _poll_for(old, WAIT_S)
    with pytest.raises(FencedInstanceIdError):
        old.poll(100)
    assert new.poll(10) is not None


def _poll_for(consumer: Consumer, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        consumer.poll(50)


def test_a_member_that_is_not_polled_leaves_and_its_commit_fails(group: Group) -> None:
    group.create_topic(2, 10)
    told = Told()
    slow = group.member(told, max_poll_interval_ms="300", enable_auto_commit="false")
    read(20, slow)
    other = group.member(enable_auto_commit="false")
    records = poll_until(lambda: len(other.assignment()) == 2, other)
    records += read(20 - len(records), other)
    with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms"):
        slow.commit()
    other.commit()
    # The process goes on: it joins again, and is told what it lost.
    poll_until(lambda: len(slow.assignment()) == 1, slow, other)
    assert ("lost", [0, 1]) in told.events
    slow.commit()


def test_commits(group: Group) -> None:
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


def test_reading_goes_on_where_the_group_has_committed(group: Group) -> None:
    group.create_topic(1, 100)
    for start in range(0, 100, 20):
        # Automatically: at polls, and when the consumer is closed.
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
    assert admin.list_group_offsets(group.name) == {TopicPartition(group.name, 0): OffsetAndMetadata(offset=10)}
    assert admin.describe_group(group.name).state == "Empty"


def test_topics_and_partitions_that_come_later_are_read(group: Group, admin: Admin) -> None:
    group.create_topic(1, 5, f"{group.name}.a")
    consumer = group.consumer()
    consumer.subscribe(re.compile(rf"{group.name}\.\w"))
    assert len(read(5, consumer)) == 5
    group.create_topic(1, 5, f"{group.name}.b")
    group.create_topic(1, 5, f"{group.name}.other")
    assert {record.topic for record in read(5, consumer)} == {f"{group.name}.b"}
    admin.create_partitions(f"{group.name}.a", 3)
    poll_until(lambda: len(consumer.assignment()) == 4, consumer)
    admin.delete_topic(f"{group.name}.b")
    with pytest.raises(UnknownTopicOrPartitionError, match="does not exist"):
        _poll_for(consumer, WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while len(consumer.assignment()) != 3:
        assert time.monotonic() < deadline
        with contextlib.suppress(UnknownTopicOrPartitionError):
            consumer.poll(10)


def test_a_topic_that_is_not_there_is_said_and_waited_for(group: Group) -> None:
    consumer = group.member()
    with pytest.raises(UnknownTopicOrPartitionError, match="no such topic"):
        consumer.poll(100)
    assert not consumer.poll(10)
    assert consumer.poll_table(10).num_columns == 0
    group.create_topic(1, 3)
    assert len(read(3, consumer)) == 3


def test_tables_of_a_subscription(group: Group) -> None:
    group.create_topic(2, 50)
    consumer = group.member()
    rows = 0
    deadline = time.monotonic() + WAIT_S
    while rows < 100:
        assert time.monotonic() < deadline
        rows += consumer.poll_table(100, columns=["value"], metadata=["__partition"]).num_rows
    assert consumer.poll_table(0).column_names == ["key", "value"]
    with pytest.raises(UsageError, match="column nope"):
        consumer.poll_table(columns=["nope"])


def test_paused_partitions_wait(group: Group) -> None:
    group.create_topic(2, 20)
    consumer = group.member(max_poll_records=5)
    read(5, consumer)
    consumer.pause([(group.name, 0)])
    assert consumer.paused() == [TopicPartition(group.name, 0)]
    position = consumer.position((group.name, 0))
    records = read(20 - consumer.position((group.name, 1)), consumer)
    assert {record.partition for record in records} == {1}
    assert not consumer.poll(100)
    consumer.resume([(group.name, 0)])
    assert [record.offset for record in read(20 - position, consumer)] == list(range(position, 20))
    with pytest.raises(UsageError, match="not assigned"):
        consumer.pause([(group.name, 7)])


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


def test_what_a_listener_raises_is_raised_by_the_poll_once_the_rebalance_is_done(group: Group) -> None:
    group.create_topic(1, 3)

    class Fails(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            raise RuntimeError("not today")

    consumer = group.member(Fails())
    with pytest.raises(RuntimeError, match="not today"):
        _poll_for(consumer, WAIT_S)
    assert len(read(3, consumer)) == 3


def test_a_poll_is_woken_up(group: Group) -> None:
    group.create_topic(1, 0)
    consumer = group.member()
    timer = threading.Timer(0.3, consumer.wakeup)
    timer.start()
    started = time.monotonic()
    with pytest.raises(WakeupError):
        consumer.poll(60_000)
    assert time.monotonic() - started < 30
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.poll(0)
    consumer.poll(0)
    timer.join()


def test_a_consumer_is_for_one_thread_at_a_time(group: Group) -> None:
    group.create_topic(1, 0)
    consumer = group.member()
    thread = threading.Thread(target=_poll_until_woken, args=[consumer])
    thread.start()
    _wait(lambda: _is_refused(consumer))
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


def test_what_a_consumer_needs_a_group_for_says_so(broker: EmbeddedBroker) -> None:
    with Consumer(broker.bootstrap_servers) as consumer:
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
def test_wrong_options_are_said_when_the_consumer_is_made(options: dict[str, str], message: str) -> None:
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
            raise RuntimeError("an interceptor's fault is its own")

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


def test_members_live_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    options = {"group_initial_rebalance_delay_ms": 0, "group_min_session_timeout_ms": 100}
    broker = EmbeddedBroker(tmp_path / "data", **options).start()
    port = broker.port
    try:
        group = Group(broker, "survivors")
        group.create_topic(2, 100)
        one, two = group.member(max_poll_records=10), group.member(max_poll_records=10)
        records = poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 1, one, two)
        one.commit()
        two.commit()
        broker.stop()
        broker = EmbeddedBroker(tmp_path / "data", port=port, **options).start()
        records += read(200 - len(records), one, two)
        assert places(records) == [("survivors", partition, n) for partition in range(2) for n in range(100)]
        group.close()
    finally:
        broker.stop()
