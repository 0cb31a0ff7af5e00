"""Tests of replica assignment against Kafka's ``AdminUtils``, with and without racks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import InvalidPartitionsError, InvalidReplicaAssignmentError, InvalidReplicationFactorError
from millrace_broker.metadata.assignment import BrokerRack, assign_replicas, rack_alternated

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "replica_assignment"


def cases(name: str) -> list[Any]:
    content = json.loads((ORACLES / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=f"replica_assignment-{name}-{number}") for number, case in enumerate(content)]


REFUSALS = {
    "InvalidPartitionsException": InvalidPartitionsError,
    "InvalidReplicationFactorException": InvalidReplicationFactorError,
    "AdminOperationException": InvalidReplicaAssignmentError,
}


@pytest.mark.parametrize("case", cases("assign"))
def test_assigns_as_kafka_does(case: dict[str, Any]) -> None:
    brokers = [BrokerRack(each["id"], each["rack"]) for each in case["brokers"]]
    index, first = case["fixedStartIndex"], case["startPartitionId"]
    arguments = (brokers, case["partitions"], case["replicationFactor"])
    if "throws" in case:
        with pytest.raises(REFUSALS[case["throws"]["error"]]):
            assign_replicas(*arguments, start_index=index, first_partition=first)
        return
    assigned = assign_replicas(*arguments, start_index=index, first_partition=first)
    assert {str(partition): list(replicas) for partition, replicas in assigned.items()} == case["assignment"]


@pytest.mark.parametrize("case", cases("rack_alternated"))
def test_racks_take_turns_as_in_kafka(case: dict[str, Any]) -> None:
    racks = {int(broker_id): rack for broker_id, rack in case["brokerRack"].items()}
    assert rack_alternated(racks) == case["alternated"]
