"""Tests of the ownership of partitions before a rebalance.

The claims of the members and their generations decide the ownership.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from millrace.clients import TopicPartition
from millrace.clients.assignors import MemberSubscription
from millrace.clients.assignors.group import Group
from millrace.clients.assignors.ownership import Claim, Ownership, judge

PARTITION, OTHER = TopicPartition("a", 0), TopicPartition("a", 1)


def judged(*claims: tuple[int, tuple[TopicPartition, ...]]) -> Ownership:
    members = [MemberSubscription(member_id=f"m{place}", topics=frozenset("a")) for place in range(len(claims))]
    return judge(Group.of({"a": 2}, members), [Claim(partitions, generation) for generation, partitions in claims])


@pytest.mark.parametrize("generations", list(permutations((1, 2, 3))))
def test_the_newest_claim_is_valid_and_the_newest_older_one_is_the_former(generations: tuple[int, ...]) -> None:
    found = judged(*((generation, (PARTITION,)) for generation in generations))
    assert [list(owned) for owned in found.owned] == [[PARTITION] if each == 3 else [] for each in generations]
    assert found.former == {PARTITION: generations.index(2)}
    assert found.claimed == {PARTITION}


@pytest.mark.parametrize("generations", sorted(set(permutations((1, 2, 2)))))
def test_two_claims_of_the_newest_generation_are_both_invalid(generations: tuple[int, ...]) -> None:
    found = judged(*((generation, (PARTITION,)) for generation in generations))
    assert [list(owned) for owned in found.owned] == [[], [], []]
    assert found.former == {PARTITION: generations.index(1)}


def test_of_two_older_claims_of_one_generation_the_first_member_has_the_former() -> None:
    found = judged((1, (PARTITION,)), (1, (PARTITION,)), (2, (OTHER,)))
    assert [list(owned) for owned in found.owned] == [[], [], [OTHER]]
    assert found.former == {PARTITION: 0}


@pytest.mark.parametrize(("generation", "former"), [(4, {PARTITION: 0}), (5, {})])
def test_an_older_claim_that_nobody_contradicts_is_valid(generation: int, former: dict[TopicPartition, int]) -> None:
    found = judged((generation, (PARTITION, PARTITION)), (5, (OTHER,)))
    assert [list(owned) for owned in found.owned] == [[PARTITION], [OTHER]]
    assert found.former == former


def test_claims_of_partitions_that_do_not_exist_are_ignored() -> None:
    gone = (TopicPartition("a", 2), TopicPartition("a", -1), TopicPartition("b", 0))
    found = judged((1, gone), (2, ()))
    assert [list(owned) for owned in found.owned] == [[], []]
    assert (found.claimed, found.former) == (frozenset(), {})
