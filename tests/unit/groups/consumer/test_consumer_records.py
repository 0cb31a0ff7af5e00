"""Records of consumer groups, as differences of groups."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from millrace.coordinator_records import read_offsets_key, read_versioned, write_versioned
from millrace.coordinator_records.offsets_topic import CONSUMER_GROUP_KEYS, ConsumerGroupKey
from millrace.kafka_protocol.data.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from millrace.kafka_protocol.data.consumer_group_metadata import ConsumerGroupMetadataKey
from millrace.kafka_protocol.data.consumer_group_regular_expression import ConsumerGroupRegularExpressionValue
from millrace.kafka_protocol.data.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup
from millrace_broker.groups.consumer.members import ClassicMetadata, ConsumerMember, MemberState, Partitions
from millrace_broker.groups.consumer.records import LoadedConsumerGroup, change_records

TOPICS = [uuid.UUID(int=number) for number in (1, 2)]
METADATA, REGEX, EPOCH = "MemberMetadata", "RegularExpression", "Metadata"
TARGET, TARGET_EPOCH, CURRENT = "TargetAssignmentMember", "TargetAssignmentMetadata", "CurrentMemberAssignment"


def partitions(*numbers: int) -> Partitions:
    return frozenset((topic, number) for topic in TOPICS for number in numbers)


GROUP = ConsumerGroup(
    group_id="g",
    epoch=5,
    metadata_hash=-7,
    members={
        "a": ConsumerMember(
            member_id="a",
            instance_id="i",
            rack_id="r",
            client_id="client",
            client_host="host",
            topics=frozenset({"t", "s"}),
            regex="u.*",
            rebalance_timeout_ms=20,
            server_assignor="range",
            epoch=5,
            previous_epoch=4,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=partitions(0, 1),
            revoking=partitions(2),
        ),
        "b": ConsumerMember(
            member_id="b", classic=ClassicMetadata(session_timeout_ms=9, protocols=(("range", b"x"), ("sticky", b"y")))
        ),
    },
    target_epoch=4,
    target={"a": partitions(0, 1), "b": partitions(2)},
    regexes={"u.*": frozenset({"u2", "u1"})},
)
EMPTY = ConsumerGroup(group_id="g")

Change = tuple[str, str, bool]
"""Kind and subject of a record, and whether it has a value."""


def keyed(before: ConsumerGroup | None, after: ConsumerGroup | None) -> list[tuple[ConsumerGroupKey, bytes | None]]:
    found: list[tuple[ConsumerGroupKey, bytes | None]] = []
    for record in change_records(before, after, 33):
        key = read_offsets_key(record.key)
        assert isinstance(key, CONSUMER_GROUP_KEYS)
        assert key.group_id == "g"
        found.append((key, record.value))
    return found


def changes(before: ConsumerGroup | None, after: ConsumerGroup | None) -> list[Change]:
    return [
        (
            type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key"),
            str(getattr(key, "member_id", getattr(key, "regular_expression", ""))),
            value is not None,
        )
        for key, value in keyed(before, after)
    ]


def loaded(*steps: ConsumerGroup | None) -> LoadedConsumerGroup:
    result = LoadedConsumerGroup("g")
    before: ConsumerGroup | None = None
    for after in steps:
        for key, value in keyed(before, after):
            result.take(key, value)
        before = after
    return result


def everything(*, has_value: bool) -> set[Change]:
    of_members = {(kind, member, has_value) for kind in (METADATA, TARGET, CURRENT) for member in "ab"}
    return of_members | {(REGEX, "u.*", has_value), (EPOCH, "", has_value), (TARGET_EPOCH, "", has_value)}


def test_a_new_group_has_all_records_and_a_deleted_one_their_tombstones() -> None:
    assert set(changes(None, GROUP)) == everything(has_value=True)
    assert set(changes(GROUP, None)) == everything(has_value=False)
    assert changes(None, None) == []
    assert changes(None, EMPTY) == [(EPOCH, "", True), (TARGET_EPOCH, "", True)]
    assert changes(EMPTY, None) == [(EPOCH, "", False), (TARGET_EPOCH, "", False)]


def test_a_group_that_is_read_is_the_one_that_was_written() -> None:
    assert loaded(GROUP).group() == GROUP
    assert not loaded(GROUP).is_deleted
    assert loaded(GROUP, None).is_deleted
    assert loaded(GROUP, None).group() is None
    assert loaded(GROUP, None, EMPTY).group() == EMPTY
    assert loaded(GROUP, None, GROUP).group() == GROUP
    reverse = LoadedConsumerGroup("g")
    assert reverse.is_deleted
    for key, value in reversed(keyed(None, GROUP)):
        reverse.take(key, value)
    assert reverse.group() == GROUP


A, B = GROUP.members["a"], GROUP.members["b"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (replace(GROUP), []),
        (replace(GROUP, members={"a": replace(A), "b": B}), []),
        (replace(GROUP, topics_revision=9), []),
        (replace(GROUP, epoch=6), [(EPOCH, "", True)]),
        (replace(GROUP, metadata_hash=8), [(EPOCH, "", True)]),
        (replace(GROUP, target_epoch=5), [(TARGET_EPOCH, "", True)]),
        (replace(GROUP, target={**GROUP.target, "b": partitions(3)}), [(TARGET, "b", True)]),
        (replace(GROUP, target={"a": GROUP.target["a"]}), [(TARGET, "b", False)]),
        (replace(GROUP, regexes={}), [(REGEX, "u.*", False)]),
        (replace(GROUP, regexes={"u.*": frozenset({"u1"})}), [(REGEX, "u.*", True)]),
        (replace(GROUP, regexes={**GROUP.regexes, "v": frozenset()}), [(REGEX, "v", True)]),
        (replace(GROUP, members={"a": replace(A, rack_id="s"), "b": B}), [(METADATA, "a", True)]),
        (replace(GROUP, members={"a": replace(A, epoch=6), "b": B}), [(CURRENT, "a", True)]),
        (replace(GROUP, members={"a": A}), [(METADATA, "b", False), (CURRENT, "b", False)]),
    ],
)
def test_a_change_has_the_records_of_what_differs(after: ConsumerGroup, expected: list[Change]) -> None:
    assert changes(GROUP, after) == expected
    target = {member_id: each for member_id, each in after.target.items() if member_id in after.members}
    assert loaded(GROUP, after).group() == replace(after, target=target)


@pytest.mark.parametrize(("revision", "version"), [(-1, 0), (0, 0), (1, 1)])
def test_records_have_the_time_and_the_revision_of_the_topics(revision: int, version: int) -> None:
    regexes, target_epochs = [], []
    for key, value in keyed(None, replace(GROUP, topics_revision=revision)):
        if value is not None and "RegularExpression" in type(key).__name__:
            regexes.append(read_versioned(ConsumerGroupRegularExpressionValue, value)[1])
        elif value is not None and "TargetAssignmentMetadata" in type(key).__name__:
            target_epochs.append(read_versioned(ConsumerGroupTargetAssignmentMetadataValue, value)[1])
    assert [(each.topics, each.version, each.timestamp) for each in regexes] == [(("u1", "u2"), version, 33)]
    assert [(each.assignment_epoch, each.assignment_timestamp) for each in target_epochs] == [(4, 33)]


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (0, MemberState.STABLE),
        (1, MemberState.UNREVOKED_PARTITIONS),
        (2, MemberState.UNRELEASED_PARTITIONS),
        (3, MemberState.UNKNOWN),
        (127, MemberState.UNKNOWN),
    ],
)
def test_a_state_of_a_newer_broker_is_unknown(number: int, state: MemberState) -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=1,
        previous_member_epoch=0,
        state=number,
        assigned_partitions=(),
        partitions_pending_revocation=(),
    )
    group = loaded(GROUP)
    group.take(ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a"), write_versioned(value, 0))
    found = group.group()
    assert found is not None
    assert found.members["a"].state is state


def test_a_group_without_a_target_epoch_is_at_the_beginning() -> None:
    records = {type(key): (key, value) for key, value in keyed(None, GROUP)}
    group = LoadedConsumerGroup("g")
    group.take(*records[ConsumerGroupMetadataKey])
    assert group.group() == ConsumerGroup(group_id="g", epoch=5, metadata_hash=-7)
    target_epoch, value = records[ConsumerGroupTargetAssignmentMetadataKey]
    for each, expected in ((value, 4), (None, 0)):
        group.take(target_epoch, each)
        found = group.group()
        assert found is not None
        assert found.target_epoch == expected


def test_a_member_whose_assignment_is_not_written_has_joined_only() -> None:
    group = loaded(GROUP)
    group.take(ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a"), None)
    found = group.group()
    assert found is not None
    assert (found.members["a"].epoch, found.members["a"].owned) == (0, frozenset())
