"""Tests of group consumers against a real broker.

The tests cover rebalances, crashes and restarts.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.clients import (
    Admin,
    Consumer,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from millrace.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    UnknownTopicOrPartitionError,
    UsageError,
)
from millrace_broker.testing import EmbeddedBroker

from .consumer_groups import QUICK_GROUPS, Group, Told, places, poll_on, poll_until, read
from .passing_time import expire_member
from .waiting import AN_HOUR_MS, STALL_S, Stall, eventually

BROKER_OPTIONS = QUICK_GROUPS


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
    # All members revoked and committed cleanly, so no record was read twice.
    assert places(records) == [(group.name, partition, n) for partition in range(4) for n in range(100)]


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


def test_other_members_continue_the_partitions_of_a_killed_member(group: Group, tmp_path: Path) -> None:
    group.create_topic(4, 3000)
    outputs = [tmp_path / f"{number}.txt" for number in range(3)]
    program = Path(__file__).with_name("consuming_process.py")
    options = group.config(max_poll_records=50, enable_auto_commit="false", session_timeout_ms="600000")
    given = [json.dumps(options | {"client.id": str(output)}) for output in outputs]
    processes = [
        subprocess.Popen([sys.executable, program, each, group.name, output])
        for each, output in zip(given, outputs, strict=True)
    ]
    try:
        alive = dict(zip(processes, outputs, strict=True))
        for _ in range(2):
            # Any member may be the one that reads, because a process that starts late may find no record left.
            eventually(lambda: any(map(_has_read_much, alive.values())), progress=lambda: _sizes(outputs))
            victim = next(process for process, output in alive.items() if _has_read_much(output))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            expire_member(group.broker, group.name, str(alive.pop(victim)))
        with Admin(group.broker.bootstrap_servers) as admin:
            eventually(lambda: _lag(admin, group.name) == 0, progress=lambda: _lag(admin, group.name))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [tuple(map(int, line.split())) for output in outputs for line in output.read_text().splitlines()]
    assert set(lines) == {(partition, n) for partition in range(4) for n in range(3000)}
    # Only records that were read and not committed are read again.
    assert len(lines) <= 12000 + 2 * 50


def _has_read_much(output: Path) -> bool:
    return output.exists() and len(output.read_text().splitlines()) >= 300


def _sizes(outputs: list[Path]) -> list[int]:
    return [output.stat().st_size if output.exists() else 0 for output in outputs]


def _lag(admin: Admin, group_id: str) -> int | None:
    lags = [lag.lag for lag in admin.group_lag(group_id, measure=False)]
    return None if len(lags) < 4 or None in lags else sum(lag or 0 for lag in lags)


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
        poll_on(old)
    with pytest.raises(FencedInstanceIdError):
        old.poll(100)
    assert new.poll(10) is not None


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
    # The process continues: it rejoins, and its listener gets the lost partitions.
    poll_until(lambda: len(slow.assignment()) == 1, slow, other)
    assert ("lost", [0, 1]) in told.events
    slow.commit()


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
    stall = Stall("the assignment")
    while len(consumer.assignment()) != 3:
        stall.check(consumer.assignment())
        with contextlib.suppress(UnknownTopicOrPartitionError):  # unless the rebalance comes first
            consumer.poll(10)


def test_a_missing_topic_is_reported_and_waited_for(group: Group) -> None:
    consumer = group.member()
    with pytest.raises(UnknownTopicOrPartitionError, match="no such topic"):
        consumer.poll(100)
    assert not consumer.poll(10)
    assert consumer.poll_table(10).num_columns == 0
    group.create_topic(1, 3)
    assert len(read(3, consumer)) == 3


def test_a_subscription_is_polled_as_tables_with_the_chosen_columns(group: Group) -> None:
    group.create_topic(2, 50)
    consumer = group.member()
    rows = 0
    stall = Stall("records")
    while rows < 100:
        stall.check(rows)
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


def test_a_listeners_error_is_raised_by_the_poll_after_the_rebalance(group: Group) -> None:
    group.create_topic(1, 3)

    class Fails(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            raise RuntimeError("not today")

    consumer = group.member(Fails())
    with pytest.raises(RuntimeError, match="not today"):
        poll_on(consumer)
    assert len(read(3, consumer)) == 3


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


def test_closing_in_time_does_not_wait_for_a_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker(tmp_path, options={"group.initial.rebalance.delay.ms": "0"}) as broker:
        servers = broker.bootstrap_servers
        with Admin(servers) as admin, Producer(servers) as producer:
            admin.create_topic("t", partitions=1)
            producer.send("t", b"1").result(STALL_S)
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "auto.offset.reset": "earliest",
                "group.id": "g",
                "heartbeat.interval.ms": 100,
                "socket.connection.setup.timeout.ms": AN_HOUR_MS,
                "request.timeout.ms": AN_HOUR_MS,
            }
        )
        consumer.subscribe("t")
        eventually(lambda: consumer.poll(100), "the record")
        coordinator, is_looking = consumer._group._coordinator, threading.Event()
        find = coordinator.address

        def noticed(timeout_ms: int | None = None) -> str:
            if not coordinator.is_known:
                is_looking.set()
            return find(timeout_ms)

        monkeypatch.setattr(coordinator, "address", noticed)
    assert is_looking.wait(STALL_S)
    closing = threading.Thread(target=consumer.close, args=(500,), daemon=True)
    closing.start()
    closing.join(STALL_S)
    assert not closing.is_alive()


def test_the_first_commits_wait_until_the_offsets_topic_has_leaders(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", **QUICK_GROUPS) as broker:
        groups = [Group(broker, f"group-{number}") for number in range(8)]
        groups[0].create_topic(1, 1, "topic")
        partition = TopicPartition("topic", 0)
        consumers = [group.consumer() for group in groups]
        with ThreadPoolExecutor(len(consumers)) as threads:
            list(threads.map(lambda consumer: consumer.commit({partition: 1}), consumers))
        assert [each.committed([partition])[partition] for each in consumers] == [OffsetAndMetadata(offset=1)] * 8
        for group in groups:
            group.close()
