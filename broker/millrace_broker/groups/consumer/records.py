"""Consumer groups as records of ``__consumer_offsets``, in Kafka 4.3's formats.

The records of a change are the difference between the group before it and the group after it. A part that differs has a
record with its value. A part that is gone has a tombstone. One batch has all records of a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from millrace.coordinator_records import read_versioned, write_key, write_versioned
from millrace.coordinator_records.offsets_topic import ConsumerGroupKey
from millrace.kafka_protocol import Message
from millrace.kafka_protocol.data.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from millrace.kafka_protocol.data.consumer_group_current_member_assignment import TopicPartitions as OwnedTopic
from millrace.kafka_protocol.data.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from millrace.kafka_protocol.data.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from millrace.kafka_protocol.data.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from millrace.kafka_protocol.data.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)
from millrace.kafka_protocol.data.consumer_group_target_assignment_member import TopicPartition as TargetTopic
from millrace.kafka_protocol.data.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from millrace.partitions import numbers_by_topic
from millrace_broker.coordinators import StateRecord
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup
from millrace_broker.groups.consumer.members import (
    NO_PARTITIONS,
    ClassicMetadata,
    ConsumerMember,
    MemberState,
    Partitions,
)

_VERSION: Final = 0

# --- writing -------------------------------------------------------------------------------------------------


def change_records(before: ConsumerGroup | None, after: ConsumerGroup | None, now_ms: int) -> list[StateRecord]:
    """Return the records that lead from one group to another; None is no group. ``now_ms`` is the time since 1970."""
    given = before or after
    if given is None:
        return []
    group_id = given.group_id
    old, new = before or ConsumerGroup(group_id=group_id), after or ConsumerGroup(group_id=group_id)
    return [
        StateRecord(write_key(key), None if value is None else write_versioned(value, _VERSION))
        for key, value in (
            *_members(group_id, old.members, new.members, ConsumerGroupMemberMetadataKey, _metadata),
            *_regexes(group_id, old, new, now_ms),
            *_epochs(group_id, before, after),
            *_target(group_id, before, after, now_ms),
            *_members(group_id, old.members, new.members, ConsumerGroupCurrentMemberAssignmentKey, _assignment),
        )
    ]


_Changes = Iterator[tuple[Message, Message | None]]


def _members(
    group_id: str,
    old: Mapping[str, ConsumerMember],
    new: Mapping[str, ConsumerMember],
    key: Callable[..., Message],
    value_of: Callable[[ConsumerMember], Message],
) -> _Changes:
    """Yield the records of members whose value differs. A change of a group keeps the objects of all other members."""
    for member_id in old.keys() - new.keys():
        yield key(group_id=group_id, member_id=member_id), None
    for member_id, member in new.items():
        present = old.get(member_id)
        if present is member:
            continue
        value = value_of(member)
        if present is None or value_of(present) != value:
            yield key(group_id=group_id, member_id=member_id), value


def _metadata(member: ConsumerMember) -> ConsumerGroupMemberMetadataValue:
    classic = member.classic
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.topics)),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=tuple(ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols),
        ),
    )


def _regexes(group_id: str, old: ConsumerGroup, new: ConsumerGroup, now_ms: int) -> _Changes:
    for expression in old.regexes.keys() - new.regexes.keys():
        yield ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression), None
    for expression, topics in new.regexes.items():
        if old.regexes.get(expression) != topics:
            yield (
                ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression),
                ConsumerGroupRegularExpressionValue(
                    topics=tuple(sorted(topics)), version=max(0, new.topics_revision), timestamp=now_ms
                ),
            )


def _epochs(group_id: str, before: ConsumerGroup | None, after: ConsumerGroup | None) -> _Changes:
    if after is None:
        yield ConsumerGroupMetadataKey(group_id=group_id), None
    elif before is None or (before.epoch, before.metadata_hash) != (after.epoch, after.metadata_hash):
        value = ConsumerGroupMetadataValue(epoch=after.epoch, metadata_hash=after.metadata_hash)
        yield ConsumerGroupMetadataKey(group_id=group_id), value


def _target(group_id: str, before: ConsumerGroup | None, after: ConsumerGroup | None, now_ms: int) -> _Changes:
    old: Mapping[str, Partitions] = {} if before is None else before.target
    new: Mapping[str, Partitions] = {} if after is None else after.target
    for member_id in old.keys() - new.keys():
        yield ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None
    for member_id, partitions in new.items():
        if old.get(member_id) != partitions:
            yield (
                ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
                ConsumerGroupTargetAssignmentMemberValue(
                    topic_partitions=tuple(
                        TargetTopic(topic_id=topic, partitions=numbers)
                        for topic, numbers in numbers_by_topic(sorted(partitions)).items()
                    )
                ),
            )
    if after is None:
        yield ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None
    elif before is None or before.target_epoch != after.target_epoch:
        yield (
            ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
            ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=after.target_epoch, assignment_timestamp=now_ms
            ),
        )


def _assignment(member: ConsumerMember) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state.value,
        assigned_partitions=_owned_topics(member.assigned),
        partitions_pending_revocation=_owned_topics(member.revoking),
    )


def _owned_topics(partitions: Partitions) -> tuple[OwnedTopic, ...]:
    return tuple(
        OwnedTopic(topic_id=topic, partitions=numbers)
        for topic, numbers in numbers_by_topic(sorted(partitions)).items()
    )


# --- reading -------------------------------------------------------------------------------------------------


class LoadedConsumerGroup:
    """Consumer group while its records are being loaded.

    The records may come in any order that compaction leaves.
    """

    def __init__(self, group_id: str) -> None:
        self._group_id: Final = group_id
        self._epochs: ConsumerGroupMetadataValue | None = None
        self._target_epoch = 0
        self._members: Final[dict[str, ConsumerGroupMemberMetadataValue]] = {}
        self._regexes: Final[dict[str, frozenset[str]]] = {}
        self._target: Final[dict[str, Partitions]] = {}
        self._current: Final[dict[str, ConsumerGroupCurrentMemberAssignmentValue]] = {}

    def take(self, key: ConsumerGroupKey, value: bytes | None) -> None:
        """Apply the next record. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
        if isinstance(key, ConsumerGroupMetadataKey):
            self._epochs = None if value is None else read_versioned(ConsumerGroupMetadataValue, value)[1]
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            found = None if value is None else read_versioned(ConsumerGroupTargetAssignmentMetadataValue, value)[1]
            self._target_epoch = 0 if found is None else found.assignment_epoch
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            self._regexes.pop(key.regular_expression, None)
            if value is not None:
                topics = read_versioned(ConsumerGroupRegularExpressionValue, value)[1].topics
                self._regexes[key.regular_expression] = frozenset(topics)
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            self._members.pop(key.member_id, None)
            if value is not None:
                self._members[key.member_id] = read_versioned(ConsumerGroupMemberMetadataValue, value)[1]
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            self._target.pop(key.member_id, None)
            if value is not None:
                target = read_versioned(ConsumerGroupTargetAssignmentMemberValue, value)[1].topic_partitions
                self._target[key.member_id] = _partitions(target)
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            self._current.pop(key.member_id, None)
            if value is not None:
                self._current[key.member_id] = read_versioned(ConsumerGroupCurrentMemberAssignmentValue, value)[1]
        # Kafka 4.0's partition metadata has no use, because the hash of the topics is in the group's own record.

    @property
    def is_deleted(self) -> bool:
        """True if the group has no record of its own."""
        return self._epochs is None

    def group(self) -> ConsumerGroup | None:
        """Return the group; None if it has been deleted."""
        if self._epochs is None:
            return None
        return ConsumerGroup(
            group_id=self._group_id,
            epoch=self._epochs.epoch,
            metadata_hash=self._epochs.metadata_hash,
            members={
                member_id: _member(member_id, metadata, self._current.get(member_id))
                for member_id, metadata in self._members.items()
            },
            target_epoch=self._target_epoch,
            target={member_id: each for member_id, each in self._target.items() if member_id in self._members},
            regexes=dict(self._regexes),
        )


def _member(
    member_id: str,
    metadata: ConsumerGroupMemberMetadataValue,
    current: ConsumerGroupCurrentMemberAssignmentValue | None,
) -> ConsumerMember:
    classic = metadata.classic_member_metadata
    member = ConsumerMember(
        member_id=member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topics=frozenset(metadata.subscribed_topic_names),
        regex=metadata.subscribed_topic_regex or "",
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        server_assignor=metadata.server_assignor,
        classic=None
        if classic is None
        else ClassicMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            protocols=tuple((each.name, each.metadata) for each in classic.supported_protocols),
        ),
    )
    if current is None:
        return member
    known = current.state in {state.value for state in MemberState}
    return replace(
        member,
        epoch=current.member_epoch,
        previous_epoch=current.previous_member_epoch,
        state=MemberState(current.state) if known else MemberState.UNKNOWN,
        assigned=_partitions(current.assigned_partitions),
        revoking=_partitions(current.partitions_pending_revocation),
    )


def _partitions(topics: tuple[TargetTopic | OwnedTopic, ...]) -> Partitions:
    return NO_PARTITIONS.union((each.topic_id, number) for each in topics for number in each.partitions)
