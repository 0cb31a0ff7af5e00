"""Tests of the group coordinator with Kafka's ``__consumer_offsets``, read and written."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import UnsupportedVersionError
from millrace.records import Record, build_rows_batch, scan_headers
from millrace_broker.coordinators import LoadedBatch, StateRecord
from millrace_broker.groups.loading import GroupLoader
from millrace_broker.groups.offsets import CommittedOffset
from millrace_broker.groups.records import group_key, group_record, offset_key, offset_record

ORACLE = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles") / "coordinator_records"
WRITTEN_VERSION = 3
NOT_KNOWN = -1


def cases(kind: str) -> Iterator[Any]:
    for number, case in enumerate(json.loads((ORACLE / "consumer_offsets.json").read_text("utf-8"))["cases"]):
        if case["type"] == kind:
            yield pytest.param(case, id=f"coordinator_records-consumer_offsets-{number}")


def loaded(key: bytes, value: bytes) -> GroupLoader:
    header = next(scan_headers(build_rows_batch([Record(value=b"")])))[1]
    loading = GroupLoader("__consumer_offsets-0")
    loading.replay(LoadedBatch(header, [StateRecord(key, value)]))
    return loading


@pytest.mark.parametrize("case", list(cases("OffsetCommitValue")))
def test_an_offset_commit_value_of_kafka_is_read_and_written_alike(case: dict[str, Any]) -> None:
    value, fields = base64.b64decode(case["bytes"]), case["fields"]
    committed = loaded(offset_key("g", ("t", 3)), value).groups()["g"].offsets.committed["t", 3]
    assert committed == CommittedOffset(
        fields["offset"],
        fields.get("leaderEpoch", NOT_KNOWN),
        fields["metadata"],
        fields["commitTimestamp"],
        0,
        max(fields.get("expireTimestamp", NOT_KNOWN), NOT_KNOWN),
    )
    if case["version"] == WRITTEN_VERSION:
        assert offset_record("g", ("t", 3), committed).value == value


@pytest.mark.parametrize("case", list(cases("GroupMetadataValue")))
def test_a_group_metadata_value_of_kafka_is_read_and_written_alike(case: dict[str, Any]) -> None:
    value, fields = base64.b64decode(case["bytes"]), case["fields"]
    group, state_since_ms = loaded(group_key("g"), value).groups()["g"].read()
    assert group is not None
    assert (group.generation_id, group.protocol_type) == (fields["generation"], fields["protocolType"])
    assert (group.protocol_name, group.leader) == (fields["protocol"], fields["leader"])
    assert state_since_ms == fields.get("currentStateTimestamp", NOT_KNOWN)
    for member, wanted in zip(group.members, fields["members"], strict=True):
        assert member.member_id == wanted["memberId"]
        assert member.group_instance_id == wanted.get("groupInstanceId")
        assert member.session_timeout_ms == wanted["sessionTimeout"]
        assert member.rebalance_timeout_ms == wanted.get("rebalanceTimeout", wanted["sessionTimeout"])
        assert base64.b64encode(member.subscription).decode() == wanted["subscription"]
        assert base64.b64encode(member.assignment).decode() == wanted["assignment"]
    if case["version"] == WRITTEN_VERSION:
        assert group_record("g", group, state_since_ms).value == value


@pytest.mark.parametrize("case", list(cases("offset-value-unknown-version")))
def test_an_offset_of_a_later_version_is_not_lost_in_silence(case: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedVersionError):
        loaded(offset_key("g", ("t", 3)), base64.b64decode(case["bytes"]))


@pytest.mark.parametrize("case", list(cases("key-unknown-version")))
def test_keys_of_other_kinds_are_passed_over(case: dict[str, Any]) -> None:
    assert loaded(base64.b64decode(case["bytes"]), b"whatever").groups() == {}
