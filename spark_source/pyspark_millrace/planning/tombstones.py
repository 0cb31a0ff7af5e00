"""Detection of tombstones that a query may have missed in compacted topics.

Compaction removes tombstones ``delete.retention.ms`` after it cleaned them. A query that reads later sees neither the
key nor its deletion, so a table of the latest row per key keeps a deleted row. Gaps in the offsets do not show this,
because every compacted log has gaps. The timestamps of the unread records do show that a query is this late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.backlog import Backlog


class TopicSettings(Protocol):
    """Broker calls of this module; implemented by ``BrokerClient``."""

    def settings(self, topic: str) -> Mapping[str, str]:
        """Return the configuration of a topic."""

    def first_offsets_from(self, times_ms: Mapping[PartitionKey, int]) -> dict[PartitionKey, int | None]:
        """Return the first record at or after a time in each partition; None if there is none."""


def late_for_tombstones(topics: TopicSettings, backlog: Backlog, now_ms: int) -> list[str]:
    """Return a warning for each partition with unread records older than its ``delete.retention.ms``."""
    unread = [key for key, count in backlog.counts.items() if count and backlog.begin[key] > 0]
    kept_ms = {
        topic: int(settings["delete.retention.ms"])
        for topic in sorted({key.topic for key in unread})
        if "compact" in (settings := topics.settings(topic))["cleanup.policy"]
    }
    times_ms = {key: max(0, now_ms - kept_ms[key.topic]) for key in unread if key.topic in kept_ms}
    return [
        f"{key} is compacted and was not read from offset {backlog.begin[key]} on for longer than its "
        f"delete.retention.ms={kept_ms[key.topic]}, so tombstones may have been removed there and deleted "
        "keys may still appear: read the topic from its start into a new table, and give it a longer "
        "delete.retention.ms"
        for key, offset in sorted(topics.first_offsets_from(times_ms).items())
        if offset is None or offset > backlog.begin[key]
    ]
