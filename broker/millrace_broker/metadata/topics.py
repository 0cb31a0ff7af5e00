"""Topic metadata as frozen data, replaced as a whole on a change."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from millrace.config.topic import TopicConfig
from millrace.coordinator_records import INTERNAL_TOPICS
from millrace.errors import UnknownTopicOrPartitionError

if TYPE_CHECKING:
    import pyarrow as pa

LEADER_NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """Replicas and leader of a partition. ``replicas`` starts with the preferred leader.

    ``failed`` are the replicas on failed log directories.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    failed: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """One version of a typed topic's schema.

    ``arrow_schema`` is an Arrow IPC schema message.
    """

    id: int
    version: int
    arrow_schema: bytes

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema as an object."""
        from millrace.schemas import deserialize_schema

        return deserialize_schema(self.arrow_schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """Metadata of a topic. ``schemas`` holds every version, oldest first; it is empty for an opaque topic.

    ``read_schema`` (an Arrow IPC schema message) is the schema for reading records of all versions. It is empty if the
    newest version serves.
    """

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionInfo]
    overrides: Mapping[str, str]
    config: TopicConfig
    schemas: tuple[SchemaVersion, ...] = ()
    key_columns: tuple[str, ...] = ()
    read_schema: bytes = b""

    def partition(self, number: int) -> PartitionInfo:
        """Return one partition. Raises ``UnknownTopicOrPartitionError`` if there is no such partition."""
        info = self.partitions.get(number)
        if info is None:
            raise UnknownTopicOrPartitionError(
                f"topic {self.name} has partitions 0 to {len(self.partitions) - 1}, not {number}"
            )
        return info

    @property
    def is_internal(self) -> bool:
        """True if the topic is internal."""
        return self.name in INTERNAL_TOPICS

    @property
    def is_typed(self) -> bool:
        """True if records have the columns of a schema."""
        return bool(self.schemas)

    @property
    def schema_id(self) -> int:
        """Id of the newest schema version; 0 for an opaque topic."""
        return self.schemas[-1].id if self.schemas else 0

    def schema_of(self, schema_id: int) -> pa.Schema | None:
        """Return the schema version with this id, or None if this topic has no such version."""
        for version in self.schemas:
            if version.id == schema_id:
                return version.schema
        return None
