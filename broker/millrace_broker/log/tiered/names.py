"""The names of a segment's objects in the remote store.

A partition has a folder, ``<topic>-<partition>-<topic id>``. Every copy of a segment has its own id, so that no name is
ever written twice: ``<base offset>-<copy id>.log``, ``.index`` and so on (as Kafka's ``LocalTieredStorage``). The
manifest's name also has the segment's end offset and largest timestamp. So a listing of the folder has everything that
reads and retention need.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from uuid import UUID

from millrace.ids import id_text, parse_id
from millrace.records.header import NO_TIMESTAMP
from millrace.segments.names import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX

LEADER_EPOCHS: Final = ".leader_epoch_checkpoint"
COPIED_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT, LEADER_EPOCHS)
"""The suffixes of a copy's objects beside its manifest; not every segment has a transaction index, for example."""

_NONE: Final = "none"
_OBJECT: Final = re.compile(r"^(?P<base>\d{20})-(?P<id>[\w-]{22})(?P<suffix>\..+)$", re.ASCII)
_MANIFEST: Final = re.compile(r"^\.(?P<end>\d{20})-(?P<largest>\d+|none)\.manifest$", re.ASCII)


class CopyName(NamedTuple):
    """One copy of one segment."""

    base_offset: int
    copy_id: UUID


class ManifestName(NamedTuple):
    """The name of a complete copy's manifest.

    ``end_offset`` is exclusive. ``largest_ms`` is the largest timestamp in ms, -1 for none.
    """

    copy: CopyName
    end_offset: int
    largest_ms: int


def folder_name(topic: str, partition: int, topic_id: UUID) -> str:
    """Return the folder name of a partition; no other topic ever has it, not even one of the same name."""
    return f"{topic}-{partition}-{id_text(topic_id)}"


def object_name(copy: CopyName, suffix: str) -> str:
    """Return the name of one object of a copy."""
    return f"{copy.base_offset:020d}-{id_text(copy.copy_id)}{suffix}"


def manifest_name(manifest: ManifestName) -> str:
    """Return the name of a copy's manifest."""
    largest = _NONE if manifest.largest_ms == NO_TIMESTAMP else str(manifest.largest_ms)
    return object_name(manifest.copy, f".{manifest.end_offset:020d}-{largest}.manifest")


def parse_object_name(name: str) -> tuple[CopyName, str] | None:
    """Parse an object's name into copy and suffix; returns None for a foreign name."""
    match = _OBJECT.match(name)
    if match is None:
        return None
    try:
        return CopyName(int(match["base"]), parse_id(match["id"])), match["suffix"]
    except ValueError:
        return None


def parse_manifest_name(name: str) -> ManifestName | None:
    """Parse a manifest's name; returns None for any other name."""
    parsed = parse_object_name(name)
    match = None if parsed is None else _MANIFEST.match(parsed[1])
    if parsed is None or match is None:
        return None
    largest_ms = NO_TIMESTAMP if match["largest"] == _NONE else int(match["largest"])
    return ManifestName(parsed[0], int(match["end"]), largest_ms)
