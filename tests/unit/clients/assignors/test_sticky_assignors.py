"""Tests of the sticky assignors over the life of a group.

Balance comes first. Then as few partitions as possible change owners.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients import TopicPartition
from millrace.clients.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    StickyAssignor,
)

STICKY, COOPERATIVE = StickyAssignor(), CooperativeStickyAssignor()
ROUNDS_MAX = 5
Wishes = Mapping[str, frozenset[str]]
"""The topics of each member."""

topic_counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 12), min_size=1)
member_ids = st.lists(st.integers(0, 30).map("m{:02}".format), min_size=1, max_size=9, unique=True)
both = pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE], ids=lambda assignor: assignor.name)


def equal_wishes(counts: Mapping[str, int], ids: Sequence[str]) -> Wishes:
    return {member_id: frozenset(counts) for member_id in ids}


@st.composite
def differing_wishes(draw: st.DrawFn) -> tuple[dict[str, int], Wishes]:
    counts = draw(topic_counts)
    topics = st.frozensets(st.sampled_from(sorted(counts)), min_size=1)
    return counts, {member_id: draw(topics) for member_id in draw(member_ids)}


def rejoin(assignor: Assignor, wishes: Wishes, had: Assignment, generation: int) -> list[MemberSubscription]:
    """Return the members as they join, each with the partitions it owned."""
    return [
        MemberSubscription(
            member_id=member_id,
            topics=topics,
            owned_partitions=tuple(had.get(member_id, ())) if assignor.is_cooperative else (),
            generation=generation if member_id in had else -1,
            user_data=assignor.user_data(had.get(member_id, []), generation if member_id in had else -1),
        )
        for member_id, topics in wishes.items()
    ]


def settle(assignor: Assignor, counts: Mapping[str, int], wishes: Wishes, had: Assignment | None = None) -> Assignment:
    """Rebalance until the assignment is stable.

    A cooperative assignor may need further rounds.
    """
    held: Assignment = had or {}
    wanted = sum(counts[topic] for topic in frozenset[str]().union(*wishes.values()) & counts.keys())
    for generation in range(ROUNDS_MAX):
        held = assignor.assign(counts, rejoin(assignor, wishes, held, generation))
        if sum(map(len, held.values())) == wanted:
            return held
    raise AssertionError(f"partitions are still withheld after {ROUNDS_MAX} rounds")


def as_sets(assignment: Assignment) -> dict[str, set[TopicPartition]]:
    return {member_id: set(partitions) for member_id, partitions in assignment.items()}


def spread(assignment: Assignment) -> int:
    counts = [len(partitions) for partitions in assignment.values()]
    return max(counts) - min(counts)


@both
@given(counts=topic_counts, ids=member_ids, others=member_ids)
def test_equal_members_differ_by_one_at_most(
    assignor: Assignor, counts: dict[str, int], ids: list[str], others: list[str]
) -> None:
    first = settle(assignor, counts, equal_wishes(counts, ids))
    assert spread(first) <= 1
    assert spread(settle(assignor, counts, equal_wishes(counts, others), first)) <= 1


@both
@pytest.mark.parametrize("start", ["nothing", "everything"])
@given(group=differing_wishes())
def test_no_single_move_would_help_members_that_differ(
    assignor: Assignor, start: str, group: tuple[dict[str, int], Wishes]
) -> None:
    counts, wishes = group
    wishes = {**wishes, "first": frozenset(counts)}
    everything = [TopicPartition(topic, at) for topic in counts for at in range(counts[topic])]
    assignment = settle(assignor, counts, wishes, {"first": everything} if start == "everything" else None)
    for partitions in assignment.values():
        for topic, _ in partitions:
            least = min(len(assignment[other]) for other, topics in wishes.items() if topic in topics)
            assert len(partitions) <= least + 1


@both
@given(group=differing_wishes())
def test_nothing_moves_while_nothing_changes(assignor: Assignor, group: tuple[dict[str, int], Wishes]) -> None:
    counts, wishes = group
    first = settle(assignor, counts, wishes)
    again = assignor.assign(counts, rejoin(assignor, wishes, first, 1))
    assert as_sets(again) == as_sets(first)


@both
@given(counts=topic_counts, ids=member_ids, data=st.data())
def test_only_the_partitions_of_members_that_leave_move(
    assignor: Assignor, counts: dict[str, int], ids: list[str], data: st.DataObject
) -> None:
    staying = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    first = settle(assignor, counts, equal_wishes(counts, ids))
    after = assignor.assign(counts, rejoin(assignor, equal_wishes(counts, staying), first, 1))
    for member_id in staying:
        assert set(first[member_id]) <= set(after[member_id])
    assert sum(map(len, after.values())) == sum(counts.values())


@both
@given(counts=topic_counts, ids=member_ids, others=member_ids)
def test_only_what_new_members_get_moves(
    assignor: Assignor, counts: dict[str, int], ids: list[str], others: list[str]
) -> None:
    first = settle(assignor, counts, equal_wishes(counts, ids))
    after = settle(assignor, counts, equal_wishes(counts, list(dict.fromkeys(ids + others))), first)
    for member_id in ids:
        assert set(after[member_id]) <= set(first[member_id])


@given(group=differing_wishes(), data=st.data())
def test_no_partition_goes_to_a_new_owner_while_another_member_has_it(
    group: tuple[dict[str, int], Wishes], data: st.DataObject
) -> None:
    counts, wishes = group
    held = settle(COOPERATIVE, counts, wishes)
    changed_counts = counts | data.draw(topic_counts)
    changed = dict(data.draw(differing_wishes())[1])
    for generation in range(1, ROUNDS_MAX):
        before = as_sets(held)
        held = COOPERATIVE.assign(changed_counts, rejoin(COOPERATIVE, changed, held, generation))
        for member_id, partitions in held.items():
            of_others = [had for other, had in before.items() if other != member_id and other in changed]
            assert not set(partitions) & frozenset[TopicPartition]().union(*of_others)
    wanted = frozenset[str]().union(*changed.values()) & changed_counts.keys()
    assert sum(map(len, held.values())) == sum(changed_counts[topic] for topic in wanted)


@given(counts=topic_counts, ids=member_ids, others=member_ids)
def test_cooperative_rounds_end_with_the_balance_of_the_sticky_assignor(
    counts: dict[str, int], ids: list[str], others: list[str]
) -> None:
    first = settle(STICKY, counts, equal_wishes(counts, ids))
    sticky = settle(STICKY, counts, equal_wishes(counts, others), first)
    cooperative = settle(COOPERATIVE, counts, equal_wishes(counts, others), first)
    assert sorted(map(len, cooperative.values())) == sorted(map(len, sticky.values()))
    for member_id in set(ids) & set(others):
        assert set(cooperative[member_id]) & set(first[member_id]) >= set(sticky[member_id]) & set(first[member_id])


@both
def test_a_claim_of_an_older_generation_yields_to_a_newer_one(assignor: Assignor) -> None:
    wishes = equal_wishes({"a": 4}, ["x", "y"])
    partitions = [TopicPartition("a", at) for at in range(4)]
    (stale, _) = rejoin(assignor, wishes, {"x": partitions[:3]}, 4)
    (_, current) = rejoin(assignor, wishes, {"y": partitions[1:3]}, 5)
    assert as_sets(assignor.assign({"a": 4}, [stale, current]))["y"] == set(partitions[1:3])


def test_members_of_older_versions_give_their_generation_in_the_user_data() -> None:
    wishes = equal_wishes({"a": 4}, ["x", "y"])
    partitions = [TopicPartition("a", at) for at in range(4)]
    (stale, _) = rejoin(COOPERATIVE, wishes, {"x": partitions[:3]}, 4)
    (_, current) = rejoin(COOPERATIVE, wishes, {"y": partitions[1:3]}, 5)
    older = [replace(member, generation=-1) for member in (stale, current)]
    assert as_sets(COOPERATIVE.assign({"a": 4}, older))["y"] == set(partitions[1:3])


@both
def test_a_partition_that_two_members_claim_in_one_generation_belongs_to_neither(assignor: Assignor) -> None:
    wishes = equal_wishes({"a": 2}, ["x", "y"])
    contested = [TopicPartition("a", 0)]
    assignment = assignor.assign({"a": 2}, rejoin(assignor, wishes, {"x": contested, "y": contested}, 3))
    assert sum(map(len, assignment.values())) == (1 if assignor.is_cooperative else 2)


def test_a_topic_made_again_with_fewer_partitions_is_shared_out_once() -> None:
    had = {"x": [TopicPartition("a", at) for at in range(9)]}
    assignment = STICKY.assign({"a": 2}, rejoin(STICKY, equal_wishes({"a": 2}, ["x", "y"]), had, 1))
    assert as_sets(assignment) == {"x": {("a", 0)}, "y": {("a", 1)}}


def test_a_former_owner_gets_no_partition_of_a_topic_that_it_unsubscribed() -> None:
    had = [TopicPartition("a", at) for at in range(4)]
    wishes: Wishes = {"x": frozenset("b"), "y": frozenset("ab"), "z": frozenset("a")}
    stale = rejoin(STICKY, wishes, {"x": had}, 1)[0]
    joined = [stale, *rejoin(STICKY, wishes, {"y": had}, 2)[1:]]
    assignment = STICKY.assign({"a": 4, "b": 1}, joined)
    assert assignment["x"] == [("b", 0)]
    assert {member_id: len(partitions) for member_id, partitions in assignment.items()} == {"x": 1, "y": 2, "z": 2}


@both
@pytest.mark.parametrize("is_uniform", [True, False], ids=["equal", "differing"])
def test_a_thousand_members_share_ten_thousand_partitions(assignor: Assignor, is_uniform: bool) -> None:
    choice = random.Random(5)
    counts = {f"topic-{at}": 100 for at in range(100)}
    wishes = {
        f"member-{at}": frozenset(counts if is_uniform else choice.sample(sorted(counts), 40)) for at in range(1000)
    }
    first = settle(assignor, counts, wishes)
    assert spread(first) <= 1
    staying = {member_id: topics for member_id, topics in wishes.items() if choice.random() < 0.9}
    after = settle(assignor, counts, staying, first)
    kept = sum(len(set(first[member_id]) & set(after[member_id])) for member_id in staying)
    assert kept >= 0.99 * sum(len(first[member_id]) for member_id in staying)
