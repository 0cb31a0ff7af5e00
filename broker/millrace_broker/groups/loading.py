"""Reading a partition of ``__consumer_offsets``: batch by batch, into the groups and offsets that it leaves. Pure.

Offsets go where they go at run time, into ``GroupOffsets``, so that the last record of each wins in the same way. What
costs much is done while batches are replayed, in another thread than the one that answers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from millrace.coordinator_records import GroupMetadataKey, OffsetCommitKey, read_offsets_key
from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace.records.control import ControlType
from millrace_broker.coordinators import LoadedBatch, StateRecord
from millrace_broker.groups.model import StoredGroup
from millrace_broker.groups.offsets import GroupOffsets
from millrace_broker.groups.records import read_group, read_offset

_logger: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedGroup:
    """A group as it was found. Without a record of its own, ``value`` is None: it only commits."""

    value: bytes | None = None
    offsets: GroupOffsets = field(default_factory=GroupOffsets)

    def read(self) -> tuple[StoredGroup | None, int]:
        """The group, and since when it was in its state (ms since 1970, -1 if that is not known).

        Raises ``InvalidRecordError``, ``UnsupportedVersionError``.
        """
        return (None, -1) if self.value is None else read_group(self.value)


class Loading:
    """What has been seen of a partition so far."""

    def __init__(self, name: str) -> None:
        """``name`` of the partition, for the log."""
        self._name: Final = name
        self._groups: Final[dict[str, LoadedGroup]] = {}
        self._open: Final[dict[int, set[str]]] = {}
        """The groups in which a producer has offsets pending."""

    def replay(self, batch: LoadedBatch) -> None:
        """Take in the next batch. Raises ``InvalidRecordError``, ``UnsupportedVersionError`` for a value."""
        header = batch.header
        if batch.marker is not None:
            is_committed = batch.marker.type is ControlType.COMMIT
            for group_id in self._open.pop(header.producer_id, ()):
                self._groups[group_id].offsets.complete(
                    header.producer_id, is_committed=is_committed, end_offset=header.next_offset
                )
            return
        producer_id = header.producer_id if header.is_transactional else None
        # In a batch that compaction has thinned the positions are too low, but in order, and within the batch.
        for position, record in enumerate(batch.records, start=header.base_offset):
            self._take(record, position, producer_id)

    def _take(self, record: StateRecord, position: int, producer_id: int | None) -> None:
        try:
            key = read_offsets_key(record.key)
        except (InvalidRecordError, UnsupportedVersionError) as error:
            _logger.warning("%s: the record at offset %d is passed over: %s", self._name, position, error.message)
            return
        # Keys of other versions are of newer kinds of groups, which leave nothing that we could use.
        if isinstance(key, GroupMetadataKey):
            self._group(key.group).value = record.value
        elif isinstance(key, OffsetCommitKey):
            self._take_offset(key, record.value, position, producer_id)

    def _take_offset(self, key: OffsetCommitKey, value: bytes | None, position: int, producer_id: int | None) -> None:
        offsets, partition = self._group(key.group).offsets, (key.topic, key.partition)
        if value is None:
            offsets.delete([partition], position)
        elif producer_id is None:
            offsets.apply(partition, read_offset(value, position))
        else:
            offsets.add_pending(producer_id, partition, read_offset(value, position))
            self._open.setdefault(producer_id, set()).add(key.group)

    def _group(self, group_id: str) -> LoadedGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = LoadedGroup()
        return group

    def groups(self) -> dict[str, LoadedGroup]:
        """The groups that are left, by id."""
        return {
            group_id: group
            for group_id, group in self._groups.items()
            if group.value is not None or not group.offsets.is_empty
        }
