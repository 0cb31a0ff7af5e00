"""Tests of the partition of records without a given partition."""

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.model import PartitionInfo, ProducerRecord, TopicDescription
from millrace.clients.producing.partitioning import (
    Partitioner,
    RoundRobinPartitioner,
    StickyPartition,
    check_choice,
    instances,
)
from millrace.errors import InvalidConfigError, UnknownTopicOrPartitionError


def _topic(partitions: int, without_leader: tuple[int, ...] = ()) -> TopicDescription:
    return TopicDescription(
        name="t",
        topic_id=uuid.UUID(int=1),
        partitions=tuple(
            PartitionInfo(
                partition=number,
                leader=-1 if number in without_leader else 0,
                leader_epoch=0,
                replicas=(0,),
                isr=(0,),
            )
            for number in range(partitions)
        ),
    )


@given(st.lists(st.integers(1, 300), min_size=1, max_size=200), st.integers(1, 5))
def test_a_partition_gets_about_a_batch_and_then_the_next_its_own(sizes: list[int], partitions: int) -> None:
    sticky, topic = StickyPartition(1000, 0), _topic(partitions)
    runs: list[list[int]] = []
    last = None
    for size in sizes:
        partition = sticky.place(size, topic)
        if partition != last or partitions == 1:
            if last is not None and partitions > 1:
                assert partition == (last + 1) % partitions
            runs.append([])
        runs[-1].append(size)
        last = partition
    if partitions > 1:
        for run in runs[:-1]:
            assert 1000 - max(run) <= sum(run) <= 1000 + max(run)


@pytest.mark.parametrize(("size", "groups"), [(399, 3), (400, 2), (666, 2), (667, 1), (999, 1), (1000, 1), (5000, 1)])
def test_a_partition_gets_another_group_while_less_than_half_of_it_is_too_much(size: int, groups: int) -> None:
    sticky, topic = StickyPartition(1000, 0), _topic(2)
    assert [sticky.place(size, topic) for _ in range(2 * groups)] == [0] * groups + [1] * groups


def test_partitions_without_a_leader_are_passed_over() -> None:
    sticky, topic = StickyPartition(10, 0), _topic(4, without_leader=(0, 2))
    assert [sticky.place(10, topic) for _ in range(4)] == [1, 3, 1, 3]
    none = _topic(2, without_leader=(0, 1))
    assert sticky.place(10, none) in (0, 1)


def test_the_partition_after_one_that_lost_its_leader_gets_a_whole_batch() -> None:
    sticky = StickyPartition(1000, 0)
    assert sticky.place(300, _topic(4)) == 0
    without_leader = _topic(4, without_leader=(0,))
    assert [sticky.place(400, without_leader) for _ in range(4)] == [1, 1, 2, 2]


def test_producers_begin_at_different_partitions() -> None:
    topic = _topic(16)
    assert len({StickyPartition(10).place(1, topic) for _ in range(60)}) > 1


def test_round_robin_counts_records_and_rows_alike() -> None:
    partitioner, topic = RoundRobinPartitioner(), _topic(3)
    record = ProducerRecord("t", b"x", key=b"the same")
    assert [partitioner.partition(record, topic) for _ in range(4)] == [0, 1, 2, 0]
    table = pa.table({"value": [b"x"] * 5})
    assert partitioner.partition_table(table, topic).tolist() == [1, 2, 0, 1, 2]
    assert partitioner.partition(record, topic) == 0


def test_round_robin_chooses_partitions_with_a_leader_if_there_are_any() -> None:
    partitioner, record = RoundRobinPartitioner(), ProducerRecord("t", b"x")
    degraded = _topic(3, without_leader=(1,))
    assert [partitioner.partition(record, degraded) for _ in range(3)] == [0, 2, 0]
    assert partitioner.partition_table(pa.table({"value": [b"x"] * 3}), degraded).tolist() == [2, 0, 2]
    assert [partitioner.partition(record, _topic(4)) for _ in range(3)] == [2, 3, 0]  # the 7th to the 9th record
    leaderless = _topic(3, without_leader=(0, 1, 2))
    assert [partitioner.partition(record, leaderless) for _ in range(3)] == [0, 1, 2]


def test_round_robin_looks_for_leaders_once_per_description() -> None:
    looks = []

    class Partitions(tuple[PartitionInfo, ...]):
        def __iter__(self) -> Iterator[PartitionInfo]:
            looks.append(len(self))
            return super().__iter__()

    partitioner, record = RoundRobinPartitioner(), ProducerRecord("t", b"x")
    degraded = replace(_topic(3), partitions=Partitions(_topic(3, without_leader=(1,)).partitions))
    assert [partitioner.partition(record, degraded) for _ in range(4)] == [0, 2, 0, 2]
    partitioner.partition_table(pa.table({"value": [b"x"] * 2}), degraded)
    assert looks == [3]
    # A refresh of the metadata makes another description.
    healthy = replace(degraded, partitions=Partitions(_topic(3).partitions))
    assert [partitioner.partition(record, healthy) for _ in range(3)] == [0, 1, 2]
    assert looks == [3, 3]


class _ByLength(Partitioner):
    def partition(self, record: ProducerRecord, topic: TopicDescription) -> int:
        return len(record.key or b"") % topic.num_partitions


def test_a_partitioner_of_records_serves_tables_too() -> None:
    table = pa.table({"key": pa.array([b"a", b"bb", None], pa.binary()), "value": [b"x"] * 3})
    assert _ByLength().partition_table(table, _topic(2)).tolist() == [1, 0, 0]
    assert Counter(_ByLength().partition_table(table, _topic(1)).tolist()) == {0: 3}


def test_a_choice_out_of_range_names_the_partitioner() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="_ByLength chose partition 7 of t"):
        check_choice(_ByLength(), _topic(2), 7)
    with pytest.raises(UnknownTopicOrPartitionError):
        check_choice(_ByLength(), _topic(2), 2)
    with pytest.raises(UnknownTopicOrPartitionError):
        check_choice(_ByLength(), _topic(2), -2)
    assert [check_choice(_ByLength(), _topic(2), choice) for choice in (-1, 0, 1)] == [-1, 0, 1]


def test_classes_are_found_by_name_and_configured() -> None:
    name = "millrace.clients.producing.partitioning:RoundRobinPartitioner"
    for given_as in (name, name.replace(":", "."), RoundRobinPartitioner, RoundRobinPartitioner()):
        (made,) = instances("partitioner.class", [given_as], Partitioner, {})
        assert isinstance(made, RoundRobinPartitioner)
    with pytest.raises(InvalidConfigError, match=r"partitioner\.class: no\.such:Thing cannot be imported"):
        instances("partitioner.class", ["no.such:Thing"], Partitioner, {})
    with pytest.raises(InvalidConfigError, match=r"is not a .*Partitioner"):
        instances("partitioner.class", [object()], Partitioner, {})
    with pytest.raises(InvalidConfigError, match=r"partitioner\.class: StickyPartition\(\) failed: TypeError"):
        instances("partitioner.class", [StickyPartition], Partitioner, {})
