"""Tests of the adaptive partitioner, by Kafka's rules for queue sizes."""

from __future__ import annotations

import uuid
from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.model import PartitionInfo, TopicDescription
from millrace.clients.producing.adaptive import AdaptiveChoice, QueueState, load_table
from millrace.clients.producing.partitioning import StickyPartition
from millrace.config.client import ProducerConfig


def test_numbers_below_each_sum_stand_for_its_partition() -> None:
    # The example is from Kafka's BuiltInPartitioner.
    table = load_table({0: 0, 1: 3, 2: 1}, 3)
    assert table is not None
    assert list(table.cumulative) == [4, 5, 8]
    assert [table.draw(number) for number in range(9)] == [0, 0, 0, 0, 1, 2, 2, 2, 0]


@pytest.mark.parametrize(
    ("sizes", "partitions", "drawn"),
    [
        ({0: 5}, 1, None),  # only one partition
        ({0: 2, 1: 2, 2: 2}, 3, None),  # no difference between the queues
        ({}, 3, None),  # no partition is available
        ({0: 2, 2: 2}, 3, {0: 1, 2: 1}),  # the unavailable partition is not drawn
        ({1: 7}, 3, {1: 1}),
        ({3: 5, 1: 0, 0: 3, 2: 1}, 4, {3: 1, 1: 6, 0: 3, 2: 5}),  # as in Kafka's BuiltInPartitionerTest
    ],
)
def test_partitions_are_drawn_in_inverse_proportion_to_their_queues(
    sizes: dict[int, int], partitions: int, drawn: dict[int, int] | None
) -> None:
    table = load_table(sizes, partitions)
    if drawn is None:
        assert table is None
    else:
        assert table is not None
        assert Counter(map(table.draw, range(table.cumulative[-1]))) == drawn


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1), st.integers(0, 2**31))
def test_the_shorter_a_queue_the_oftener_and_each_at_times(sizes: dict[int, int], number: int) -> None:
    table = load_table(sizes, 10)
    if table is None:
        assert len(sizes) == 10
        return
    drawn = Counter(map(table.draw, range(table.cumulative[-1])))
    longest = max(sizes.values())
    assert drawn == {partition: longest + 1 - size for partition, size in sizes.items()}
    assert table.draw(number) in sizes


def _topic(partitions: int, without_leader: tuple[int, ...] = ()) -> TopicDescription:
    infos = tuple(
        PartitionInfo(
            partition=number, leader=-1 if number in without_leader else 0, leader_epoch=0, replicas=(0,), isr=(0,)
        )
        for number in range(partitions)
    )
    return TopicDescription(name="t", topic_id=uuid.UUID(int=1), partitions=infos)


def _choice(queues: dict[int, QueueState], **options: object) -> AdaptiveChoice:
    named = {name.replace("_", "."): value for name, value in options.items()}
    config = ProducerConfig.of({"bootstrap.servers": "127.0.0.1:1", **named})
    numbers = count()
    return AdaptiveChoice(config, lambda topic: queues, lambda: next(numbers))


BUSY, IDLE, SILENT = QueueState(3, 0.0), QueueState(0, 0.0), QueueState(1, 9.0)


def test_nothing_is_adapted_before_each_partition_had_a_batch_or_when_it_is_off() -> None:
    assert _choice({0: BUSY})(_topic(2)) is None
    assert _choice({0: BUSY, 1: IDLE})(_topic(2)) is not None
    assert _choice({0: BUSY, 1: IDLE}, partitioner_adaptive_partitioning_enable=False)(_topic(2)) is None
    assert _choice({0: IDLE})(_topic(1)) is None


def test_partitions_whose_leader_is_silent_or_not_there_get_nothing() -> None:
    queues = {0: IDLE, 1: SILENT, 2: BUSY}
    patient = _choice(queues)
    assert {patient(_topic(3)) for _ in range(20)} == {0, 1, 2}
    hasty = _choice(queues, partitioner_availability_timeout_ms=5000)
    assert {hasty(_topic(3)) for _ in range(20)} == {0, 2}
    without = _choice(queues)
    assert {without(_topic(3, without_leader=(0,))) for _ in range(20)} == {1, 2}


def test_a_sticky_partition_goes_where_the_choice_says_and_else_in_turn() -> None:
    chosen: list[int | None] = [2, None, None]
    sticky = StickyPartition(10, 0, choose=lambda topic: chosen.pop(0))
    assert [sticky.place(10, _topic(3)) for _ in range(3)] == [0, 2, 0]
