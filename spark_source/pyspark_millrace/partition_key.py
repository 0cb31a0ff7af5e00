"""Name of one partition of one topic."""

from __future__ import annotations

from typing import NamedTuple


class PartitionKey(NamedTuple):
    """One partition of one topic; sorts by topic, then by number.

    It has the fields of the client's ``TopicPartition``. It is a separate class, because tasks that read files carry it
    and do not load the client.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return ``topic-partition``, as in directories and messages."""
        return f"{self.topic}-{self.partition}"
