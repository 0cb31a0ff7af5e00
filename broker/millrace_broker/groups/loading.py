"""Groups and offsets from the records of one partition of ``__consumer_offsets``.

Kafka has this in ``GroupMetadataManager.loadGroupsAndOffsets``. Offsets go into ``GroupOffsets``, as at run time, so
that the last record of a partition counts in the same way. An I/O thread replays the batches, because there may be
millions of records.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from millrace.coordinator_records import GroupMetadataKey, OffsetCommitKey, UnknownKey, read_offsets_key
from millrace.coordinator_records.offsets_topic import ConsumerGroupKey
from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace.records.control import ControlType
from millrace_broker.coordinators import LoadedBatch, StateRecord
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup
from millrace_broker.groups.consumer.records import LoadedConsumerGroup
from millrace_broker.groups.effects import StoredGroup
from millrace_broker.groups.offsets import GroupOffsets
from millrace_broker.groups.records import read_group, read_offset

_logger: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedGroup:
    """Group while its records are being loaded.

    ``value`` is the record of a classic group, None after its tombstone and for other groups. ``parts`` has the records
    of a consumer group.
    """

    value: bytes | None = None
    parts: LoadedConsumerGroup | None = None
    offsets: GroupOffsets = field(default_factory=GroupOffsets)

    def read(self) -> tuple[StoredGroup | None, int]:
        """Return the group, and the time of its last state change (ms since 1970, -1 if it is unknown).

        Raises ``InvalidRecordError``, ``UnsupportedVersionError``.
        """
        return (None, -1) if self.value is None else read_group(self.value)

    @property
    def consumer(self) -> ConsumerGroup | None:
        """The consumer group; None for a classic one."""
        return None if self.parts is None else self.parts.group()


class GroupLoader:
    """Groups of the batches that were replayed so far."""

    def __init__(self, name: str) -> None:
        """Take the partition's name for log messages."""
        self._name: Final = name
        self._groups: Final[dict[str, LoadedGroup]] = {}
        self._open_groups: Final[dict[int, set[str]]] = {}
        """The groups with pending offsets of each producer."""

    def replay(self, batch: LoadedBatch) -> None:
        """Apply the next batch. Raises ``InvalidRecordError``, ``UnsupportedVersionError`` for an offset."""
        header = batch.header
        if batch.marker is not None:
            is_committed = batch.marker.type is ControlType.COMMIT
            for group_id in self._open_groups.pop(header.producer_id, ()):
                self._groups[group_id].offsets.complete(
                    header.producer_id, is_committed=is_committed, end_offset=header.next_offset
                )
            return
        producer_id = header.producer_id if header.is_transactional else None
        # In a compacted batch these positions are too low. They are still in order, and within the batch.
        for position, record in enumerate(batch.records, start=header.base_offset):
            self._take(record, position, producer_id)

    def _take(self, record: StateRecord, position: int, producer_id: int | None) -> None:
        try:
            key = read_offsets_key(record.key)
        except (InvalidRecordError, UnsupportedVersionError) as error:
            _logger.warning("%s: the record at offset %d is ignored: %s", self._name, position, error.message)
            return
        if isinstance(key, GroupMetadataKey):
            self._group(key.group).value = record.value
        elif isinstance(key, OffsetCommitKey):
            self._take_offset(key, record.value, position, producer_id)
        elif not isinstance(key, UnknownKey):  # unknown keys belong to newer kinds of groups
            self._take_part(key, record.value, position)

    def _take_part(self, key: ConsumerGroupKey, value: bytes | None, position: int) -> None:
        group = self._group(key.group_id)
        if group.parts is None:
            group.parts = LoadedConsumerGroup(key.group_id)
        try:
            group.parts.take(key, value)
        except (InvalidRecordError, UnsupportedVersionError) as error:
            # A later version may have written the record. The committed offsets are read all the same.
            _logger.error("%s: the record at offset %d is ignored: %s", self._name, position, error.message)

    def _take_offset(self, key: OffsetCommitKey, value: bytes | None, position: int, producer_id: int | None) -> None:
        offsets, partition = self._group(key.group).offsets, (key.topic, key.partition)
        if value is None:
            offsets.delete([partition], position)
        elif producer_id is None:
            offsets.apply(partition, read_offset(value, position))
        else:
            offsets.add_pending(producer_id, partition, read_offset(value, position))
            self._open_groups.setdefault(producer_id, set()).add(key.group)

    def _group(self, group_id: str) -> LoadedGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = LoadedGroup()
        return group

    def groups(self) -> dict[str, LoadedGroup]:
        """Return the groups that have a record or an offset, by id."""
        return {
            group_id: group
            for group_id, group in self._groups.items()
            if group.value is not None
            or not (group.parts is None or group.parts.is_deleted)
            or not group.offsets.is_empty
        }
