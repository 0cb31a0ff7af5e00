"""A manifest, the last written object of a copy, which completes it.

It lists the copy's parts. The format is JSON in UTF-8, for people and tools. The broker itself uses only the manifests'
names (``names``) and the objects beside them. Checksums are CRC-32C of whole objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from millrace.errors import CorruptBatchError
from millrace.ids import id_text, parse_id
from millrace_broker.log.tiered.names import CopyName, ManifestName

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CopiedObject:
    """The size and CRC-32C of one object of a copy."""

    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One complete copy. ``leader_epochs`` are those up to its end, as (epoch, start offset)."""

    topic: str
    topic_id: UUID
    partition: int
    name: ManifestName
    copied_ms: int
    leader_epochs: tuple[tuple[int, int], ...]
    objects: Mapping[str, CopiedObject]
    """The copy's objects by suffix."""

    def encode(self) -> bytes:
        """Return the content of the manifest's object."""
        fields = {
            "version": _VERSION,
            "topic": self.topic,
            "topic_id": id_text(self.topic_id),
            "partition": self.partition,
            "copy_id": id_text(self.name.copy.copy_id),
            "base_offset": self.name.copy.base_offset,
            "end_offset": self.name.end_offset,
            "max_timestamp": self.name.largest_ms,
            "copied": self.copied_ms,
            "leader_epochs": self.leader_epochs,
            "objects": {
                suffix: {"size": item.size_bytes, "crc32c": item.crc32c} for suffix, item in self.objects.items()
            },
        }
        return json.dumps(fields, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read the content of ``encode``. Raises ``CorruptBatchError`` for any other content."""
        try:
            fields = json.loads(data)
            if fields["version"] != _VERSION:
                raise ValueError(f"version {fields['version']}, expected {_VERSION}")
            copy = CopyName(fields["base_offset"], parse_id(fields["copy_id"]))
            return cls(
                topic=fields["topic"],
                topic_id=parse_id(fields["topic_id"]),
                partition=fields["partition"],
                name=ManifestName(copy, fields["end_offset"], fields["max_timestamp"]),
                copied_ms=fields["copied"],
                leader_epochs=tuple((epoch, start) for epoch, start in fields["leader_epochs"]),
                objects={
                    suffix: CopiedObject(item["size"], item["crc32c"]) for suffix, item in fields["objects"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptBatchError(f"the manifest cannot be read: {error}") from error
