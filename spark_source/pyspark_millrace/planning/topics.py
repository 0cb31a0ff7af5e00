"""Topics that a query reads, and their common schema."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.errors import UsageError
from pyspark_millrace.partition_key import PartitionKey

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TopicSet:
    """Topics and partitions of a query at one moment.

    ``schemas`` has the schema in which each topic is read (None: opaque).
    """

    topic_ids: Mapping[str, uuid.UUID]
    partitions: tuple[PartitionKey, ...]
    schema_ids: frozenset[int]
    schemas: Mapping[str, pa.Schema | None]

    @property
    def schema(self) -> pa.Schema | None:
        """Schema of a query that starts with these topics, which all have it (``check_same_schemas``)."""
        return next(iter(self.schemas.values()), None)

    @property
    def description(self) -> str:
        """Topics as named in messages: ``topic orders``, ``topics a, b``."""
        names = ", ".join(sorted(self.topic_ids))
        return f"topic {names}" if len(self.topic_ids) == 1 else f"topics {names}"


def check_same_schemas(topics: TopicSet) -> None:
    """Raise ``UsageError`` with two topics whose schemas differ."""
    (first, mine), *others = topics.schemas.items()
    for other, theirs in others:
        same = mine.equals(theirs) if mine and theirs else mine is theirs
        if not same:
            raise UsageError(
                f"topics {first} and {other} have different schemas, but a DataFrame has one schema: "
                "read them separately, and join or union their common columns"
            )
