"""Tests of groups and share groups on a broker that is killed.

The kill is SIGKILL.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import BrokerUnavailableError, RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb

from .group_calls import Groups, Share, acquired
from .test_broker_process import Process

TOPIC = "t"
PARTITIONS = 3
OPTIONS = (
    "-o",
    "offsets.topic.num.partitions=3",
    "-o",
    "share.coordinator.state.topic.num.partitions=3",
    "-o",
    "group.initial.rebalance.delay.ms=0",
    "-o",
    "share.auto.offset.reset=earliest",
)
SEVERED = (BrokerUnavailableError, RequestTimedOutError)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    started: list[Process] = []

    def start() -> Process:
        started.append(Process(tmp_path / "data", *OPTIONS))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def chance() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.dial("BROKER_KILL_ROUNDS", seconds=10)
def test_committed_offsets_survive_kill_9_and_never_regress(
    start: Callable[[], Process], calls_to: Callable[[str], Any], rounds: int
) -> None:
    dice = chance()
    acknowledged: dict[tuple[str, int], int] = {}
    tried: dict[tuple[str, int], int] = {}
    member: tuple[str, int] | None = None
    for round_number in range(rounds):
        process = start()
        calls = calls_to(process.address)
        if not round_number:
            assert calls.create(TOPIC, PARTITIONS).error.code == 0
        groups = {name: Groups(calls, name) for name in ("simple", "members", "other")}
        check(groups, acknowledged, tried)
        joined = pb.JoinGroupResponse()
        if member is not None:  # the group continues unchanged
            joined = pb.JoinGroupResponse(member_id=member[0], generation_id=member[1])
            groups["members"].heartbeat(joined)
        else:
            joined = groups["members"].join(session_timeout_ms=300_000)
            groups["members"].sync(joined, {joined.member_id: b"all"})
            member = joined.member_id, joined.generation_id
        killer = threading.Timer(dice.uniform(0.1, 0.6), process.kill)
        if round_number % 2:  # at any moment, perhaps before an acknowledgement
            killer.start()
        try:
            for number in range(100_000):
                if number == 1 and not round_number % 2:
                    killer.start()
                name, partition = dice.choice(sorted(groups)), dice.randrange(PARTITIONS)
                offset = tried.get((name, partition), 0) + dice.randint(1, 5)
                tried[name, partition] = offset
                error = (
                    groups[name].commit(TOPIC, offset, joined if name == "members" else None, partition=partition).error
                )
                assert error.code == 0, error.message
                acknowledged[name, partition] = offset
        except SEVERED:
            pass
        assert process.wait() == -signal.SIGKILL
        killer.join()
    calls = calls_to(start().address)
    check({name: Groups(calls, name) for name, _ in acknowledged}, acknowledged, tried)
    assert acknowledged


def check(
    groups: dict[str, Groups], acknowledged: dict[tuple[str, int], int], tried: dict[tuple[str, int], int]
) -> None:
    """Check that the committed offset is the acknowledged one, or one that was tried later.

    From now on it counts as acknowledged.
    """
    for (name, partition), offset in tried.items():
        found = groups[name].committed(TOPIC, partition).committed.offset
        least = acknowledged.get((name, partition), -1)
        assert found in (least, offset), f"{name}: {found} is committed, {least} was acknowledged, {offset} was tried"
        if found >= 0:
            acknowledged[name, partition] = found


@pytest.mark.dial("BROKER_KILL_ROUNDS", seconds=10)
def test_accepted_records_are_not_delivered_again_after_kill_9(
    start: Callable[[], Process], calls_to: Callable[[str], Any], rounds: int
) -> None:
    dice = chance()
    accepted: Counter[int] = Counter()
    released: Counter[int] = Counter()
    doubtful: set[int] = set()
    for round_number in range(rounds):
        process = start()
        calls = calls_to(process.address)
        if not round_number:
            assert calls.create(TOPIC).error.code == 0
        share = Share(calls, "g")
        share.join("m", TOPIC)
        killer = threading.Timer(dice.uniform(0.1, 0.6), process.kill)
        if round_number % 2:  # at any moment, perhaps before an acknowledgement
            killer.start()
        try:
            for number in range(100_000):
                if number == 1 and not round_number % 2:
                    killer.start()
                assert calls.produce(TOPIC, calls.batch(*[b"x"] * 10)).error.code == 0
                for offset in share.offsets("m", TOPIC, most=dice.randint(1, 20)):
                    assert not accepted[offset], f"{offset} was accepted, and is delivered again"
                    if released[offset] < 3 and dice.random() < 0.1:
                        released[offset] += 1
                        assert share.acknowledge("m", TOPIC, offset, offset, pb.RELEASE) == 0
                        continue
                    doubtful.add(offset)
                    assert share.acknowledge("m", TOPIC, offset, offset) == 0
                    doubtful.discard(offset)
                    accepted[offset] += 1
        except SEVERED:
            pass
        assert process.wait() == -signal.SIGKILL
        killer.join()
    calls = calls_to(start().address)
    share = Share(calls, "g")
    share.join("m", TOPIC)
    left: set[int] = set()
    while batch := acquired(share.fetch("m", TOPIC, most=1000)):
        left |= set(batch)
        for offset in batch:
            assert share.acknowledge("m", TOPIC, offset, offset) == 0
    assert not left & accepted.keys(), "a record was accepted and then delivered again"
    end = calls.offset(TOPIC, -1).offset
    assert set(range(end)) <= left | accepted.keys() | doubtful, "records are neither accepted nor delivered"
    assert accepted
