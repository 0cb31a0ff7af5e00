"""Tests of the record of partition movements.

With this record two members do not swap partitions of a topic.
"""

from __future__ import annotations

from millrace.clients import TopicPartition
from millrace.clients.assignors.movements import Movements

FIRST, SECOND, OF_OTHER_TOPIC = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def moved(*moves: tuple[TopicPartition, int, int]) -> Movements:
    movements = Movements()
    for partition, source, target in moves:
        movements.record(partition, source, target)
    return movements


def test_a_partition_of_the_topic_that_moved_the_opposite_way_moves_back_instead() -> None:
    movements = moved((FIRST, 0, 1))
    assert movements.partition_to_move(SECOND, 1, 0) == FIRST
    assert movements.partition_to_move(SECOND, 0, 1) == SECOND
    assert movements.partition_to_move(SECOND, 1, 2) == SECOND
    assert movements.partition_to_move(OF_OTHER_TOPIC, 1, 0) == OF_OTHER_TOPIC


def test_two_moves_of_a_partition_count_as_one_from_its_first_owner() -> None:
    movements = moved((FIRST, 0, 1), (FIRST, 1, 2))
    assert movements.partition_to_move(SECOND, 2, 0) == FIRST
    assert movements.partition_to_move(SECOND, 1, 0) == SECOND
    assert movements.partition_to_move(SECOND, 2, 1) == SECOND


def test_the_first_owner_of_the_partition_to_move_decides_which_way_is_opposite() -> None:
    movements = moved((FIRST, 0, 1), (SECOND, 1, 2))
    assert movements.partition_to_move(SECOND, 2, 0) == FIRST


def test_a_partition_that_is_back_at_its_first_owner_has_not_moved() -> None:
    movements = moved((FIRST, 0, 1), (FIRST, 1, 0))
    assert movements.partition_to_move(SECOND, 1, 0) == SECOND
    assert movements.partition_to_move(SECOND, 0, 1) == SECOND
