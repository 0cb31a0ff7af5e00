"""Tests of moves that balance a group."""

from __future__ import annotations

import pytest

from millrace.clients import TopicPartition
from millrace.clients.assignors import MemberSubscription
from millrace.clients.assignors.balancing import Balancer
from millrace.clients.assignors.group import Group

PARTITIONS = [TopicPartition("a", number) for number in range(12)]


def balancer(counts: list[int], former: dict[TopicPartition, int], *, without: tuple[int, ...] = ()) -> Balancer:
    """Return the balancer of members with so many partitions; members in ``without`` do not subscribe."""
    left = iter(PARTITIONS)
    held = [{next(left): None for _ in range(count)} for count in counts]
    members = [
        MemberSubscription(member_id=f"m{place}", topics=frozenset("b" if place in without else "ab"))
        for place in range(len(counts))
    ]
    return Balancer(Group.of({"a": sum(counts), "b": 1}, members), held, former)


@pytest.mark.parametrize(
    ("counts", "owner"),
    [([4, 2, 3], 1), ([4, 2, 2], 2), ([4, 1, 1], 2), ([4, 3, 3], 0), ([3, 1, 1], 2), ([3, 2, 2], 0)],
)
def test_a_partition_returns_to_its_former_owner_if_that_has_at_least_two_less(counts: list[int], owner: int) -> None:
    moved = balancer(counts, {PARTITIONS[0]: 2})
    assert moved.spread(PARTITIONS[:1]) is (owner != 0)
    assert [PARTITIONS[0] in held for held in moved.held] == [place == owner for place in range(3)]
    assert sum(map(len, moved.held)) == sum(counts)


def test_a_partition_goes_to_the_subscriber_with_the_fewest() -> None:
    moved = balancer([5, 2, 1, 0], {PARTITIONS[0]: 3}, without=(3,))
    assert moved.spread(PARTITIONS[:1])
    assert [len(held) for held in moved.held] == [4, 2, 2, 0]


def test_partitions_move_until_no_member_has_two_more_than_another() -> None:
    moved = balancer([9, 0, 0, 0], {})
    assert moved.spread(PARTITIONS[:9])
    assert sorted(len(held) for held in moved.held) == [2, 2, 2, 3]
    assert not moved.spread(PARTITIONS[:9])
