"""Tests of the common and the specific rules of all assignors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients import TopicPartition
from millrace.clients.assignors import (
    ASSIGNORS,
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    find_assignor,
    find_assignors,
)
from millrace.clients.assignors.sticky_user_data import encode_sticky
from millrace.coordinator_records import ConsumerProtocolSubscription, OwnedPartitions
from millrace.errors import InvalidConfigError

TOPICS = ("a", "b", "c", "d")
every_assignor = pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)


@st.composite
def members(draw: st.DrawFn) -> list[MemberSubscription]:
    """Draw members that claim any partitions in any generation, also partitions and topics that do not exist."""
    ids = draw(st.lists(st.text("xyz\U0001f600￼", min_size=1, max_size=3), max_size=8, unique=True))
    partitions = st.builds(TopicPartition, st.sampled_from((*TOPICS, "gone")), st.integers(-1, 9))
    joined = []
    for member_id in ids:
        owned = tuple(draw(st.lists(partitions, max_size=12)))
        generation = draw(st.integers(-1, 3))
        user_data = draw(st.just(encode_sticky(owned, generation)) | st.none() | st.binary(max_size=8))
        joined.append(
            MemberSubscription(
                member_id=member_id,
                topics=draw(st.frozensets(st.sampled_from((*TOPICS, "missing")))),
                group_instance_id=draw(st.none() | st.just(f"instance of {member_id}")),
                owned_partitions=owned,
                generation=generation,
                user_data=user_data,
            )
        )
    return joined


groups = {"counts": st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 8)), "joined": members()}


@every_assignor
@given(**groups)
def test_every_wanted_partition_has_one_subscribed_member(
    assignor: Assignor, counts: Mapping[str, int], joined: Sequence[MemberSubscription]
) -> None:
    assignment = assignor.assign(counts, joined)
    assert assignment.keys() == {member.member_id for member in joined}
    for member in joined:
        assert {topic for topic, _ in assignment[member.member_id]} <= member.topics
    wanted = frozenset[str]().union(*(member.topics for member in joined))
    expected = {TopicPartition(topic, at) for topic in wanted & counts.keys() for at in range(counts[topic])}
    given_out = Counter(partition for partitions in assignment.values() for partition in partitions)
    assert set(given_out.values()) <= {1}
    if assignor.is_cooperative:
        claimed = {partition for member in joined for partition in member.owned_partitions}
        assert given_out.keys() <= expected <= given_out.keys() | claimed
    else:
        assert given_out.keys() == expected


@given(**groups)
def test_cooperative_members_wait_for_what_anybody_else_claims(
    counts: Mapping[str, int], joined: Sequence[MemberSubscription]
) -> None:
    assignment = CooperativeStickyAssignor().assign(counts, joined)
    for member in joined:
        new = set(assignment[member.member_id]) - set(member.owned_partitions)
        assert not any(new & set(other.owned_partitions) for other in joined)


@every_assignor
@given(**groups, data=st.data())
def test_the_order_of_members_and_topics_does_not_matter(
    assignor: Assignor, counts: dict[str, int], joined: list[MemberSubscription], data: st.DataObject
) -> None:
    other_counts = dict(data.draw(st.permutations(list(counts.items()))))
    assert assignor.assign(other_counts, data.draw(st.permutations(joined))) == assignor.assign(counts, joined)


def subscribed(member_id: str, *topics: str, **more: Any) -> MemberSubscription:
    return MemberSubscription(member_id=member_id, topics=frozenset(topics), **more)


def test_range_gives_the_same_numbers_of_equal_topics() -> None:
    assignment = RangeAssignor().assign({"a": 5, "b": 5}, [subscribed("y", "a", "b"), subscribed("x", "a", "b")])
    assert assignment == {
        "x": [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)],
        "y": [("a", 3), ("a", 4), ("b", 3), ("b", 4)],
    }


def test_round_robin_skips_members_without_a_subscription() -> None:
    joined = [subscribed("x", "a"), subscribed("y", "a", "b"), subscribed("z", "a", "b", "c")]
    assignment = RoundRobinAssignor().assign({"a": 1, "b": 2, "c": 3}, joined)
    assert assignment == {"x": [("a", 0)], "y": [("b", 0)], "z": [("b", 1), ("c", 0), ("c", 1), ("c", 2)]}


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_a_static_member_that_comes_back_under_another_id_gets_the_same(name: str) -> None:
    dynamic = [subscribed("a-dynamic", "a"), subscribed("n-dynamic", "a")]
    before = find_assignor(name).assign({"a": 7}, [*dynamic, subscribed("m", "a", group_instance_id="one")])
    after = find_assignor(name).assign({"a": 7}, [subscribed("z", "a", group_instance_id="one"), *dynamic])
    assert before.pop("m") == after.pop("z")
    assert before == after


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidConfigError, match="'fair' is unknown: choose from range, roundrobin, sticky, coop"):
        find_assignor("fair")


def test_a_strategy_names_at_least_one_assignor_and_each_once() -> None:
    assert [each.name for each in find_assignors(" sticky, range,")] == ["sticky", "range"]
    for strategy in ("", " , ", "range,range"):
        with pytest.raises(InvalidConfigError, match=r"partition\.assignment\.strategy=.*: name at least one of range"):
            find_assignors(strategy)


def test_a_subscription_is_taken_from_the_consumer_protocol() -> None:
    told = ConsumerProtocolSubscription(
        topics=("a", "b"),
        user_data=b"x",
        owned_partitions=(OwnedPartitions(topic="a", partitions=(2, 0)), OwnedPartitions(topic="b", partitions=(1,))),
        generation_id=4,
    )
    owned = (TopicPartition("a", 2), TopicPartition("a", 0), TopicPartition("b", 1))
    assert MemberSubscription.of("m", told, "one") == subscribed(
        "m", "a", "b", group_instance_id="one", owned_partitions=owned, generation=4, user_data=b"x"
    )
