"""Tests of epochs and assignments of share group members."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import (
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    UnknownMemberError,
)
from millrace_broker.share_groups.members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ShareHeartbeat,
    ShareMembers,
    SubscribedTopic,
    assign,
)

TOPICS = {"t": 4, "u": 2}
FIRST_ID, SECOND_ID = UUID(int=1), UUID(int=2)


def members(size_max: int = 10) -> ShareMembers:
    return ShareMembers("g", size_max=size_max)


def find_topic(name: str) -> SubscribedTopic | None:
    return SubscribedTopic(FIRST_ID, TOPICS[name]) if name in TOPICS else None


def join(group: ShareMembers, member_id: str, *topics: str) -> int:
    heartbeat = ShareHeartbeat(member_id=member_id, member_epoch=JOIN_EPOCH, topics=frozenset(topics))
    return group.heartbeat(heartbeat, find_topic, 0, session_timeout_ms=100)[0]


def test_a_member_gets_its_assignment_once() -> None:
    group = members()
    epoch, assignment = group.heartbeat(
        ShareHeartbeat(member_id="a", member_epoch=JOIN_EPOCH, topics=frozenset("t")),
        find_topic,
        0,
        session_timeout_ms=100,
    )
    assert (epoch, assignment) == (1, {"t": (0, 1, 2, 3)})
    assert ("a" in group, "b" in group) == (True, False)
    assert group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=1), find_topic, 0, session_timeout_ms=100) == (
        1,
        None,
    )


def test_changes_reach_members_with_their_next_heartbeat() -> None:
    group = members()
    join(group, "a", "t")
    assert join(group, "b", "t") == 2
    assert group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=1), find_topic, 0, session_timeout_ms=100) == (
        2,
        {"t": (0, 2)},
    )
    group.heartbeat(ShareHeartbeat(member_id="b", member_epoch=LEAVE_EPOCH), find_topic, 0, session_timeout_ms=100)
    assert group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=2), find_topic, 0, session_timeout_ms=100) == (
        3,
        {"t": (0, 1, 2, 3)},
    )


def test_another_subscription_raises_the_epoch_and_the_same_one_does_not() -> None:
    group = members()
    join(group, "a", "t", "u")
    join(group, "b", "t")

    def subscribe(epoch: int, *topics: str) -> tuple[int, object]:
        heartbeat = ShareHeartbeat(member_id="b", member_epoch=epoch, topics=frozenset(topics))
        return group.heartbeat(heartbeat, find_topic, 0, session_timeout_ms=100)

    assert subscribe(2, "t") == (2, {"t": (0, 1, 2, 3)}), "a heartbeat with a subscription gets the whole assignment"
    assert subscribe(2, "u", "t") == (3, {"t": (1, 3), "u": (1,)})
    assert subscribe(3, "u") == (4, {"u": (0, 1)})


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [(0, 1, 2)]), (2, [(0, 2), (1,)]), (3, [(0,), (1,), (2,)]), (4, [(0, 1, 2)] * 4)]
)
def test_more_members_than_partitions_read_all_of_them(count: int, expected: list[tuple[int, ...]]) -> None:
    target = assign({"t": 3}, {member_id: frozenset("t") for member_id in "abcd"[:count]})
    assert [target[member_id]["t"] for member_id in "abcd"[:count]] == expected


def test_new_partitions_are_assigned() -> None:
    group = members()
    join(group, "a", "new")
    beat = ShareHeartbeat(member_id="a", member_epoch=1)
    found = SubscribedTopic(FIRST_ID, 2)
    assert group.heartbeat(beat, lambda _: found, 0, session_timeout_ms=100) == (2, {"new": (0, 1)})


def test_the_partitions_of_a_recreated_topic_are_assigned_even_if_no_heartbeat_came_between() -> None:
    group = members()
    join(group, "a", "t")
    later = SubscribedTopic(SECOND_ID, TOPICS["t"])
    beat = ShareHeartbeat(member_id="a", member_epoch=1)
    assert group.heartbeat(beat, lambda _: later, 0, session_timeout_ms=100) == (2, {"t": (0, 1, 2, 3)})
    beat = ShareHeartbeat(member_id="a", member_epoch=2)
    assert group.heartbeat(beat, lambda _: later, 0, session_timeout_ms=100) == (2, None)


def test_a_lost_answer_is_given_again() -> None:
    group = members()
    join(group, "a", "t")
    join(group, "b", "t")
    group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=1), find_topic, 0, session_timeout_ms=100)
    assert group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=1), find_topic, 0, session_timeout_ms=100) == (
        2,
        {"t": (0, 2)},
    )
    with pytest.raises(FencedMemberEpochError):
        group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=3), find_topic, 0, session_timeout_ms=100)


def test_members_have_a_session() -> None:
    group = members()
    join(group, "a", "t")
    assert not group.is_overdue("a", 99)
    assert group.is_overdue("a", 100)
    group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=1), find_topic, 50, session_timeout_ms=100)
    assert not group.is_overdue("a", 149)


def test_invalid_heartbeats_are_refused() -> None:
    group = members(size_max=1)
    with pytest.raises(InvalidRequestError):
        group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=JOIN_EPOCH), find_topic, 0, session_timeout_ms=100)
    for member_id, epoch in (("", LEAVE_EPOCH), ("a", LEAVE_EPOCH - 1)):
        heartbeat = ShareHeartbeat(member_id=member_id, member_epoch=epoch, topics=frozenset("t"))
        with pytest.raises(InvalidRequestError):
            group.heartbeat(heartbeat, find_topic, 0, session_timeout_ms=100)
    for epoch in (LEAVE_EPOCH, 1):
        with pytest.raises(UnknownMemberError):
            group.heartbeat(ShareHeartbeat(member_id="a", member_epoch=epoch), find_topic, 0, session_timeout_ms=100)
    join(group, "a", "t")
    join(group, "a", "t")  # a second heartbeat of the same member, which adds no member
    with pytest.raises(GroupMaxSizeReachedError):
        join(group, "b", "t")


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.frozensets(st.sampled_from("tuv"))),
    st.dictionaries(st.sampled_from("tuv"), st.integers(1, 6)),
)
def test_each_partition_has_a_member_and_each_member_a_partition(
    topics: dict[str, frozenset[str]], counts: dict[str, int]
) -> None:
    target = assign(counts, topics)
    assert target.keys() == topics.keys()
    read = {(topic, number) for each in target.values() for topic, numbers in each.items() for number in numbers}
    wanted = {topic for each in topics.values() for topic in each}
    assert read == {(topic, number) for topic in wanted for number in range(counts.get(topic, 0))}
    for member_id, assignment in target.items():
        assert assignment.keys() <= topics[member_id]
        assert assignment or not any(counts.get(topic) for topic in topics[member_id])
    for subscription in set(topics.values()):
        sizes = Counter(
            sum(len(numbers) for numbers in target[member_id].values())
            for member_id in topics
            if topics[member_id] == subscription
        )
        assert max(sizes) - min(sizes) <= 1
