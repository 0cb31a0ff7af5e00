"""Server-side assignors."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.groups.consumer.assignors import ASSIGNORS, AssignorInput, Target

TOPICS = [uuid.UUID(int=number) for number in range(4)]


def assigned(name: str, subscriptions: dict[str, set[int]], counts: list[int], **fields: Any) -> Target:
    return ASSIGNORS[name](
        AssignorInput(
            subscriptions={
                member: frozenset(TOPICS[each] for each in topics) for member, topics in subscriptions.items()
            },
            partition_counts={
                TOPICS[place]: count
                for place, count in enumerate(counts)
                if any(place in topics for topics in subscriptions.values())
            },
            target=fields.get("target", {}),
            instance_ids=fields.get("instance_ids", {}),
        )
    )


def numbers(target: Target, topic: int) -> dict[str, list[int]]:
    return {
        member: sorted(number for topic_id, number in partitions if topic_id == TOPICS[topic])
        for member, partitions in target.items()
    }


def test_range_gives_contiguous_ranges_and_the_rest_to_the_first_members() -> None:
    target = assigned("range", {"b": {0, 1}, "a": {0, 1}, "c": {0}}, [7, 4])
    assert numbers(target, 0) == {"a": [0, 1, 2], "b": [3, 4], "c": [5, 6]}
    assert numbers(target, 1) == {"a": [0, 1], "b": [2, 3], "c": []}


def test_range_puts_static_members_first_by_instance_id() -> None:
    target = assigned("range", {"a": {0}, "y": {0}, "z": {0}}, [3], instance_ids={"z": "i", "y": "j"})
    assert numbers(target, 0) == {"z": [0], "y": [1], "a": [2]}


def test_uniform_moves_only_the_share_of_a_new_member() -> None:
    before = assigned("uniform", {"a": {0}, "b": {0}}, [6])
    after = assigned("uniform", {"a": {0}, "b": {0}, "c": {0}}, [6], target=before)
    assert {member: len(partitions) for member, partitions in after.items()} == {"a": 2, "b": 2, "c": 2}
    assert all(after[member] < before[member] for member in "ab")


def test_uniform_balances_different_subscriptions() -> None:
    target = assigned("uniform", {"a": {0, 1}, "b": {1}}, [3, 3])
    assert {member: len(partitions) for member, partitions in target.items()} == {"a": 3, "b": 3}


SUBSCRIPTIONS = st.dictionaries(st.sampled_from("abcdef"), st.sets(st.integers(0, 3)), min_size=1)
COUNTS = st.lists(st.integers(0, 7), min_size=4, max_size=4)


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(first=SUBSCRIPTIONS, then=SUBSCRIPTIONS, counts=COUNTS, later_counts=COUNTS)
def test_each_partition_has_one_subscriber(
    name: str, first: dict[str, set[int]], then: dict[str, set[int]], counts: list[int], later_counts: list[int]
) -> None:
    before = assigned(name, first, counts)
    after = assigned(name, then, later_counts, target=before)
    everything = [partition for partitions in after.values() for partition in partitions]
    subscribed = set[int]().union(*then.values())
    assert sorted(everything) == [
        (TOPICS[each], number) for each in sorted(subscribed) for number in range(later_counts[each])
    ]
    assert all(TOPICS.index(topic) in then[member] for member, partitions in after.items() for topic, _ in partitions)


@given(members=st.integers(1, 8), old=st.integers(1, 8), counts=COUNTS)
def test_uniform_is_balanced_and_sticky_with_equal_subscriptions(members: int, old: int, counts: list[int]) -> None:
    everyone = {0, 1, 2, 3}
    before = assigned("uniform", {f"m{each}": everyone for each in range(old)}, counts)
    after = assigned("uniform", {f"m{each}": everyone for each in range(members)}, counts, target=before)
    loads = [len(partitions) for partitions in after.values()]
    assert max(loads) - min(loads) <= 1
    if members <= old:
        assert all(before[f"m{each}"] <= after[f"m{each}"] for each in range(members))


def test_uniform_deals_the_partitions_of_a_new_group_in_turns() -> None:
    target = assigned("uniform", {"b": {0, 1}, "a": {0, 1}}, [3, 3])
    assert numbers(target, 0) == {"a": [0, 2], "b": [1]}
    assert numbers(target, 1) == {"a": [1], "b": [0, 2]}


def test_uniform_serves_the_topics_with_the_fewest_subscribers_first() -> None:
    target = assigned("uniform", {"a": {0, 1}, "b": {0}}, [2, 2])
    assert numbers(target, 1) == {"a": [0, 1], "b": []}
    assert numbers(target, 0) == {"a": [], "b": [0, 1]}


def test_uniform_balances_again_after_a_move_between_other_members() -> None:
    before = {
        "a": frozenset((TOPICS[0], number) for number in range(4)),
        "b": frozenset((TOPICS[1], number) for number in range(4)),
    }
    target = assigned("uniform", {"a": {0}, "b": {0, 1}, "c": {1}}, [4, 4], target=before)
    assert {member: len(partitions) for member, partitions in target.items()} == {"a": 3, "b": 3, "c": 2}


@pytest.mark.parametrize("name", list(ASSIGNORS))
def test_a_topic_that_is_gone_has_no_partitions(name: str) -> None:
    before = {"a": frozenset({(TOPICS[0], 0), (TOPICS[1], 0), (TOPICS[1], 1)})}
    given = AssignorInput(
        subscriptions={"a": frozenset(TOPICS)}, partition_counts={TOPICS[1]: 1}, target=before, instance_ids={}
    )
    assert ASSIGNORS[name](given) == {"a": {(TOPICS[1], 0)}}


@given(first=SUBSCRIPTIONS, then=SUBSCRIPTIONS, counts=COUNTS)
def test_uniform_leaves_no_partition_that_a_subscriber_with_two_fewer_could_have(
    first: dict[str, set[int]], then: dict[str, set[int]], counts: list[int]
) -> None:
    before = assigned("uniform", first, counts)
    after = assigned("uniform", then, counts, target=before)
    for member, partitions in after.items():
        for topic, _ in partitions:
            subscribers = [other for other, topics in then.items() if TOPICS.index(topic) in topics]
            assert len(partitions) - min(len(after[other]) for other in subscribers) <= 1, member
    assert assigned("uniform", then, counts, target=after) == after, "what is balanced stays"
