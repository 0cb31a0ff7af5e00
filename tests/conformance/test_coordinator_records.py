"""Tests of the coordinators' records against Kafka's bytes, both ways."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace import coordinator_records
from millrace.coordinator_records import (
    Message,
    UnknownKey,
    read_assignment,
    read_group_value,
    read_offset_value,
    read_offsets_key,
    read_subscription,
    read_transaction_key,
    read_transaction_value,
)
from millrace.errors import UnsupportedVersionError

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "coordinator_records"
READERS = {
    "OffsetCommitKey": read_offsets_key,
    "GroupMetadataKey": read_offsets_key,
    "OffsetCommitValue": read_offset_value,
    "GroupMetadataValue": read_group_value,
    "TransactionLogKey": read_transaction_key,
    "TransactionLogValue": read_transaction_value,
    "ConsumerProtocolSubscription": lambda data: read_subscription(data)[1],
    "ConsumerProtocolAssignment": lambda data: read_assignment(data)[1],
    "key-unknown-version": read_offsets_key,
    "offset-value-unknown-version": read_offset_value,
    "group-value-unknown-version": read_group_value,
    "txn-key-unknown-version": read_transaction_key,
    "txn-value-unknown-version": read_transaction_value,
}


def cases() -> Iterator[Any]:
    for path in sorted(ORACLES.glob("*.json")):
        for number, case in enumerate(json.loads(path.read_text(encoding="utf-8"))["cases"]):
            yield pytest.param(case, id=f"coordinator_records-{path.stem}-{number}")


@pytest.mark.parametrize("case", list(cases()))
def test_a_record_is_read_and_written_as_kafka_does(case: dict[str, Any]) -> None:
    data, read = base64.b64decode(case["bytes"]), READERS[case["type"]]
    if "reader" not in case:
        message = read(data)
        assert isinstance(message, getattr(coordinator_records, case["type"]))
        # The version of a key is the type of its record. The content after it has version 0.
        version = 0 if case["type"].endswith("Key") else case["version"]
        assert shown(message, version, case["fields"]) == case["fields"]
        assert case["version"].to_bytes(2, "big") + message.encode(version) == data
    elif case["reader"] == "UnknownKey":
        assert read(data) == UnknownKey(case["version"])
    else:
        with pytest.raises(UnsupportedVersionError):
            read(data)


def shown(message: Message, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields as the cases have them.

    Partitions of the consumers' protocol are pairs, and all fields of all versions are there.
    """
    if not isinstance(
        message, coordinator_records.ConsumerProtocolSubscription | coordinator_records.ConsumerProtocolAssignment
    ):
        return message.to_json(version)
    found = message.to_json(message.VERSION_MAX)
    found = {("partitions" if name == "assignedPartitions" else name): value for name, value in found.items()}
    for name in {"partitions", "ownedPartitions"} & fields.keys():
        found[name] = [[each["topic"], partition] for each in found[name] for partition in each["partitions"]]
    return found
