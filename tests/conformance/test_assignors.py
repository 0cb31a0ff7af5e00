"""Tests of partition assignment against Kafka's assignors.

In some cases the result depends on the order of a Java hash map. If only the order of a member's list does,
``comparable`` is ``set``. If the assignment itself does, it is ``no``, and only the numbers of partitions are compared.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import TopicPartition
from millrace.clients.assignors import ASSIGNORS, Assignment, MemberSubscription, find_assignor
from millrace.clients.assignors.sticky_user_data import decode_sticky

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "assignors"


def cases() -> Iterator[Any]:
    for path in sorted(ORACLES.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for number, case in enumerate(content["cases"]):
            yield pytest.param(content["assignor"], case.get("rounds", [case]), id=f"assignors-{path.stem}-{number}")


def partitions(pairs: Sequence[tuple[str, int]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, partition) for topic, partition in pairs)


def member(joined: dict[str, Any]) -> MemberSubscription:
    user_data = joined.get("userData")
    return MemberSubscription(
        member_id=joined["id"],
        topics=frozenset(joined["topics"]),
        group_instance_id=joined.get("groupInstanceId"),
        owned_partitions=partitions(joined.get("ownedPartitions", ())),
        generation=joined.get("generationId", -1),
        user_data=None if user_data is None else base64.b64decode(user_data),
    )


def previous(assignor: str, joined: MemberSubscription) -> set[TopicPartition]:
    had = decode_sticky(joined.user_data).partitions if assignor == "sticky" else joined.owned_partitions
    return set(had)


def metrics(assignor: str, members: Sequence[MemberSubscription], assignment: Assignment) -> dict[str, int]:
    counts = [len(assigned) for assigned in assignment.values()]
    kept = sum(len(previous(assignor, each) & set(assignment[each.member_id])) for each in members)
    return {"total": sum(counts), "max": max(counts), "min": min(counts), "kept": kept}


@pytest.mark.parametrize(("assignor", "rebalances"), list(cases()))
def test_assigns_as_kafka_does(assignor: str, rebalances: Sequence[dict[str, Any]]) -> None:
    for each in rebalances:
        members = [member(joined) for joined in each["members"]]
        assignment = find_assignor(assignor).assign(each["topics"], members)
        expected = {member_id: list(partitions(pairs)) for member_id, pairs in each["assignment"].items()}
        if each["comparable"] == "list":
            assert assignment == expected
        elif each["comparable"] == "set":
            assert {key: sorted(value) for key, value in assignment.items()} == {
                key: sorted(value) for key, value in expected.items()
            }
        else:
            assert metrics(assignor, members, assignment) == each["metrics"]


def test_there_are_cases_for_every_assignor() -> None:
    assert {path.stem for path in ORACLES.glob("*.json")} == set(ASSIGNORS)
