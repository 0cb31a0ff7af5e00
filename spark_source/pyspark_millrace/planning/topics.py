"""Topics that a query reads, and their common schema."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.errors import UsageError
from pyspark_millrace.partition_key import PartitionKey

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.clients import TopicDescription


@dataclass(frozen=True, slots=True)
class TopicSet:
    """Topics and partitions of a query at one moment. All are read with the same schema (None: opaque)."""

    topic_ids: Mapping[str, uuid.UUID]
    partitions: tuple[PartitionKey, ...]
    schema_ids: frozenset[int]
    schema: pa.Schema | None

    @property
    def description(self) -> str:
        """Topics as named in messages: ``topic orders``, ``topics a, b``."""
        names = ", ".join(sorted(self.topic_ids))
        return f"topic {names}" if len(self.topic_ids) == 1 else f"topics {names}"


def common_schema(topics: Sequence[TopicDescription]) -> pa.Schema | None:
    """Return the schema of all topics; raises ``UsageError`` with two topics that differ."""
    if not topics:
        return None
    first = topics[0]
    for other in topics[1:]:
        mine, theirs = first.read_schema, other.read_schema
        same = mine.equals(theirs) if mine and theirs else mine is theirs
        if not same:
            raise UsageError(
                f"topics {first.name} and {other.name} have different schemas, but a DataFrame has one schema: "
                "read them separately, and join or union their common columns"
            )
    return first.read_schema
