"""Reading a partition of ``__consumer_offsets``: batch by batch, into the groups and offsets that it leaves. Pure.

Only the last record of each key is decoded, once all have been seen: what a partition holds is mostly offsets that were
committed anew later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.coordinator_records import GroupMetadataKey, OffsetCommitKey, read_offsets_key
from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace.records.control import ControlType
from millrace_broker.coordinators import LoadedBatch
from millrace_broker.groups.model import StoredGroup
from millrace_broker.groups.offsets import GroupOffsets
from millrace_broker.groups.records import read_group, read_offset

_logger: Final = logging.getLogger(__name__)

_OFFSET_KEYS: Final = (b"\0\0", b"\0\1")
"""Versions of keys of offsets, which differ in nothing else."""


@dataclass(slots=True)
class LoadedGroup:
    """A group as it was found. Without a record of its own, ``stored`` is None: it only commits."""

    stored: StoredGroup | None = None
    state_since_ms: int = -1
    offsets: GroupOffsets = field(default_factory=GroupOffsets)


_Key = OffsetCommitKey | GroupMetadataKey

_Found = tuple[int, bytes | None]
"""A record's position and value."""


class Loading:
    """What has been seen of a partition so far."""

    def __init__(self, name: str) -> None:
        """``name`` of the partition, for the log."""
        self._name = name
        self._found: dict[bytes, _Found] = {}
        self._pending: dict[int, dict[bytes, _Found]] = {}

    def replay(self, batch: LoadedBatch) -> None:
        """Take in the next batch."""
        header = batch.header
        if batch.marker is not None:
            ended = self._pending.pop(header.producer_id, {})
            if batch.marker.type is ControlType.COMMIT:
                for key, found in ended.items():
                    _put(self._found, key, found)
            return
        into = self._pending.setdefault(header.producer_id, {}) if header.is_transactional else self._found
        # In a batch that compaction has thinned the positions are too low, but in order, and within the batch.
        for position, record in enumerate(batch.records, start=header.base_offset):
            key = record.key
            if key[:2] in _OFFSET_KEYS:
                key = _OFFSET_KEYS[1] + key[2:]
            _put(into, key, (position, record.value))
            if record.value is None:
                for pending in self._pending.values():
                    pending.pop(key, None)  # what was deleted does not come back with the end of its transaction

    def groups(self) -> dict[str, LoadedGroup]:
        """The groups that are left, by id."""
        groups: dict[str, LoadedGroup] = {}
        for key, position, value in self._read_keys(self._found):
            group = groups.setdefault(key.group, LoadedGroup())
            if isinstance(key, OffsetCommitKey):
                group.offsets.apply((key.topic, key.partition), read_offset(value, position))
            else:
                group.stored, group.state_since_ms = read_group(value)
        for producer_id, pending in self._pending.items():
            for key, position, value in self._read_keys(pending):
                if isinstance(key, OffsetCommitKey):
                    offsets = groups.setdefault(key.group, LoadedGroup()).offsets
                    offsets.add_pending(producer_id, (key.topic, key.partition), read_offset(value, position))
        return groups

    def _read_keys(self, found: Mapping[bytes, _Found]) -> Iterator[tuple[_Key, int, bytes]]:
        for data, (position, value) in found.items():
            if value is None:
                continue
            try:
                key = read_offsets_key(data)
            except (InvalidRecordError, UnsupportedVersionError) as error:
                _logger.warning("%s: the record at offset %d is passed over: %s", self._name, position, error.message)
                continue
            # Keys of other versions are of newer kinds of groups, which leave nothing that we could use.
            if isinstance(key, OffsetCommitKey | GroupMetadataKey):
                yield key, position, value


def _put(into: dict[bytes, _Found], key: bytes, found: _Found) -> None:
    present = into.get(key)
    if present is None or present[0] < found[0]:
        into[key] = found
