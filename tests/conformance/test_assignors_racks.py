"""Tests of rack-aware assignment against Kafka's assignors (KIP-881).

``Generate.java`` beside the cases made them with the assignors of kafka-clients 3.9.2. Members have names that Java's
hash maps keep in order, so that the result depends on nothing else. In the cases ``moved-back`` a partition moves back
to its first owner, which is the first one of a hash set. Such cases are one in a thousand of the generated ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import TopicPartition
from millrace.clients.assignors import MemberSubscription, find_assignor

CASES = Path(__file__).parents[1] / "oracles" / "assignors_racks"


def cases() -> Iterator[Any]:
    for path in sorted(CASES.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for number, case in enumerate(content["cases"]):
            yield pytest.param(content["assignor"], case["rounds"], id=f"{path.stem}-{number}")


def partitions(pairs: Sequence[tuple[str, int]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, partition) for topic, partition in pairs)


def member(joined: dict[str, Any]) -> MemberSubscription:
    user_data = joined.get("userData")
    return MemberSubscription(
        member_id=joined["id"],
        topics=frozenset(joined["topics"]),
        group_instance_id=joined.get("groupInstanceId"),
        owned_partitions=partitions(joined["ownedPartitions"]),
        generation=joined["generationId"],
        user_data=None if user_data is None else base64.b64decode(user_data),
        rack=joined.get("rack", ""),
    )


@pytest.mark.parametrize(("assignor", "rebalances"), list(cases()))
def test_assigns_as_kafka_does(assignor: str, rebalances: Sequence[dict[str, Any]]) -> None:
    for each in rebalances:
        counts = {topic: len(racks) for topic, racks in each["racks"].items()}
        racks = {
            TopicPartition(topic, partition): frozenset(of_partition)
            for topic, of_topic in each["racks"].items()
            for partition, of_partition in enumerate(of_topic)
        }
        assignment = find_assignor(assignor).assign(counts, [member(joined) for joined in each["members"]], racks)
        assert {key: sorted(value) for key, value in assignment.items()} == {
            member_id: sorted(partitions(pairs)) for member_id, pairs in each["assignment"].items()
        }


def test_there_are_cases_for_every_assignor_that_looks_at_racks() -> None:
    assert {path.stem.removesuffix("-moved-back") for path in CASES.glob("*.json")} == {
        "range",
        "sticky",
        "cooperative-sticky",
    }
