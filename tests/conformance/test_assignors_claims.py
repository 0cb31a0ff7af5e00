"""Tests of contradicting and outdated claims against Kafka's ``CooperativeStickyAssignor``.

The cases are from 15,000 random rebalances given to Kafka 3.9.1. In these, members miss generations and claim
partitions that others own. Members have names of one letter, so that Java's hash maps order them by name. All
assignments are equal except those nine in the list, which are of one kind. In these Kafka returns a partition to a
former owner that no longer subscribes to its topic, and the partition then has no reader.

Two members of an old generation may claim a partition of a newer generation's member. Kafka's result then depends on
the order of its hash map of members. ``orders.json`` has such cases with Kafka's results for two orders. Our result is
Kafka's for the order of generations, newest first, so it is one that Kafka may give as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import TopicPartition
from millrace.clients.assignors import Assignment, MemberSubscription, find_assignor

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "assignors_claims"
CASES = json.loads((ORACLES / "cooperative-sticky.json").read_text(encoding="utf-8"))["cases"]
ORDERS = json.loads((ORACLES / "orders.json").read_text(encoding="utf-8"))["cases"]
COOPERATIVE = find_assignor("cooperative-sticky")


def members_of(case: dict[str, Any]) -> list[MemberSubscription]:
    return [
        MemberSubscription(
            member_id=each["id"],
            topics=frozenset(each["topics"]),
            owned_partitions=tuple(TopicPartition(*pair) for pair in each["ownedPartitions"]),
            generation=each["generationId"],
        )
        for each in case["members"]
    ]


def expected_of(case: dict[str, Any], result: str = "assignment") -> Assignment:
    return {name: [TopicPartition(*pair) for pair in pairs] for name, pairs in case[result].items()}


def is_subscribed(assignment: Assignment, members: Sequence[MemberSubscription]) -> bool:
    topics = {member.member_id: member.topics for member in members}
    return all(each.topic in topics[name] for name, partitions in assignment.items() for each in partitions)


FLAWED = [case for case in CASES if not is_subscribed(expected_of(case), members_of(case))]
SOUND = [case for case in CASES if case not in FLAWED]


@pytest.mark.parametrize("case", SOUND)
def test_claims_are_judged_as_kafka_judges_them(case: dict[str, Any]) -> None:
    assert COOPERATIVE.assign(case["topics"], members_of(case)) == expected_of(case)


@pytest.mark.parametrize("case", FLAWED)
def test_the_group_settles_although_kafka_assigns_to_a_member_without_the_subscription(case: dict[str, Any]) -> None:
    members = members_of(case)
    generation = max(member.generation for member in members)
    for _ in range(3):
        assignment = COOPERATIVE.assign(case["topics"], members)
        assert is_subscribed(assignment, members)
        generation += 1
        members = [
            replace(member, owned_partitions=tuple(assignment[member.member_id]), generation=generation)
            for member in members
        ]
    wanted = frozenset().union(*(member.topics for member in members))
    held = sorted(each for partitions in assignment.values() for each in partitions)
    assert held == sorted(TopicPartition(topic, number) for topic in wanted for number in range(case["topics"][topic]))


def kept(assignment: Assignment, members: Sequence[MemberSubscription]) -> int:
    return sum(len(set(each.owned_partitions) & set(assignment[each.member_id])) for each in members)


@pytest.mark.parametrize("case", ORDERS)
def test_if_kafkas_result_depends_on_an_order_ours_takes_the_newest_generation_first(case: dict[str, Any]) -> None:
    members = members_of(case)
    by_name, newest_first = expected_of(case, "byName"), expected_of(case, "newestFirst")
    assert by_name != newest_first
    for shuffled in (members, members[::-1], sorted(members, key=lambda each: each.generation)):
        assert COOPERATIVE.assign(case["topics"], shuffled) == newest_first
    # Both are valid: no member gets a partition without a subscription, or one of another member.
    for assignment in (by_name, newest_first):
        assert is_subscribed(assignment, members)
        assigned = [each for partitions in assignment.values() for each in partitions]
        assert len(assigned) == len(set(assigned))
    assert kept(newest_first, members) >= kept(by_name, members)


def test_the_case_files_have_sound_and_flawed_assignments() -> None:
    assert (len(SOUND), len(FLAWED)) == (13, 9)
