"""The name of one partition of one topic."""

from __future__ import annotations

from typing import NamedTuple


class PartitionKey(NamedTuple):
    """One partition of one topic; sorts by topic, then by number.

    It has the fields of the client's ``TopicPartition``, and is not that because tasks that read files carry it and
    do without the client.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        """``topic-partition``, as directories and messages write it."""
        return f"{self.topic}-{self.partition}"
