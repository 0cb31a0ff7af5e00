"""Tests of groups and offsets as records.

The fast codecs read and write the same as the general ones, at every boundary.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from millrace.coordinator_records import (
    GroupMember,
    GroupMetadataValue,
    OffsetCommitValue,
    read_group_value,
    read_offset_value,
    write_versioned,
)
from millrace.errors import InvalidRecordError
from millrace_broker.groups.effects import StoredGroup, StoredMember
from millrace_broker.groups.offsets import NO_EXPIRY, CommittedOffset
from millrace_broker.groups.records import (
    group_key,
    group_record,
    group_tombstone,
    offset_key,
    offset_record,
    offset_tombstone,
    read_group,
    read_offset,
)

PARTITION = ("orders", 3)
LONGEST = 2**15 - 1


@pytest.mark.parametrize("metadata", ["", "m", "é", "x" * (LONGEST - 1), "x" * LONGEST])
def test_an_offset_is_written_and_read_as_kafkas_message(metadata: str) -> None:
    commit = CommittedOffset(7, 2, metadata, 1_700_000_000_000, 99)
    value = offset_record("g", PARTITION, commit).value or b""
    message = read_offset_value(value)
    assert (message.offset, message.leader_epoch, message.metadata) == (7, 2, metadata)
    assert message.commit_timestamp == 1_700_000_000_000
    assert value == write_versioned(message, 3)
    assert read_offset(value, 99) == commit


def test_metadata_that_no_message_can_hold_is_refused() -> None:
    with pytest.raises(InvalidRecordError):
        offset_record("g", PARTITION, CommittedOffset(7, 2, "x" * (LONGEST + 1), 0, 0))


@pytest.mark.parametrize("time_ms", [-1, 0, 2**62])
def test_the_time_of_a_commit_is_signed(time_ms: int) -> None:
    value = offset_record("g", PARTITION, CommittedOffset(7, -1, "m", time_ms, 0)).value or b""
    assert read_offset(value, 5) == CommittedOffset(7, -1, "m", time_ms, 5)


@pytest.mark.parametrize(("expires_ms", "expected"), [(-1, NO_EXPIRY), (0, 0), (1, 1)])
def test_offsets_of_older_versions_may_expire(expires_ms: int, expected: int) -> None:
    message = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=5, expire_timestamp=expires_ms)
    found = read_offset(write_versioned(message, 1), 9)
    assert (found.offset, found.metadata, found.commit_timestamp_ms, found.position) == (7, "m", 5, 9)
    assert found.expire_timestamp_ms == expected


@pytest.mark.parametrize("cut", range(1, 16))
def test_an_offset_that_is_cut_short_is_refused(cut: int) -> None:
    value = offset_record("g", PARTITION, CommittedOffset(7, 2, "abc", 5, 0)).value or b""
    with pytest.raises(InvalidRecordError):
        read_offset(value[:-cut], 0)


def test_keys_name_group_topic_and_partition() -> None:
    assert offset_key("g", PARTITION) == b"\0\1" + b"\0\1g" + b"\0\6orders" + b"\0\0\0\3"
    assert group_key("g") == b"\0\2" + b"\0\1g"
    gone = offset_tombstone("g", PARTITION)
    assert (gone.key, gone.value) == (offset_key("g", PARTITION), None)
    assert (group_tombstone("g").key, group_tombstone("g").value) == (group_key("g"), None)


MEMBER = StoredMember(
    member_id="m-1",
    group_instance_id="one",
    client_id="c",
    client_host="/127.0.0.1",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
    subscription=b"\1\2",
    assignment=b"\3",
)
GROUP = StoredGroup(protocol_type="consumer", generation_id=4, protocol_name="range", leader="m-1", members=(MEMBER,))


def test_a_group_is_read_as_it_was_written() -> None:
    record = group_record("g", GROUP, 1_000)
    assert record.key == group_key("g")
    assert read_group(record.value or b"") == (GROUP, 1_000)
    assert read_group_value(record.value or b"").members[0].rebalance_timeout == 300_000


@pytest.mark.parametrize(("version", "rebalance_ms"), [(0, 45_000), (1, 300_000), (2, 300_000)])
def test_groups_of_version_0_take_the_session_timeout_for_rebalances(version: int, rebalance_ms: int) -> None:
    member = GroupMember(
        member_id="m-1", client_id="c", client_host="h", rebalance_timeout=300_000, session_timeout=45_000,
        subscription=b"", assignment=b"",
    )  # fmt: skip
    message = GroupMetadataValue(
        protocol_type="consumer", generation=4, protocol="range", leader="m-1", members=(member,)
    )
    group, _ = read_group(write_versioned(message, version))
    assert group.members[0].rebalance_timeout_ms == rebalance_ms
    assert struct.unpack(">h", write_versioned(message, version)[:2]) == (version,)


def test_a_group_with_two_members_of_one_id_is_refused() -> None:
    record = group_record("g", replace(GROUP, members=(MEMBER, MEMBER)), 1_000)
    with pytest.raises(InvalidRecordError, match="same member id"):
        read_group(record.value or b"")
