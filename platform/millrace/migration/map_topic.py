"""Topic of an offsets map.

Its entries are in the transactions of their records. Therefore the map also records the progress of the copy. A killed
copy continues after the last committed entry. No record exists without its entry, and no entry without its records. An
entry is a record with the partition's number as key and JSON as value::

    {"source": {"cluster": "...", "topic": "orders"}, "next_old": 1005, "runs": [[1000, 812, 4], [1004, 817, 1]]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from millrace.clients import Admin, Consumer, TopicPartition
from millrace.errors import UsageError
from millrace.migration.offsets_map import OffsetsMap, Run


class Source(NamedTuple):
    """Source cluster and topic of a copy."""

    cluster: str
    topic: str


def entry(source: Source, runs: Sequence[Run], next_old: int) -> bytes:
    """Encode the value of an entry."""
    content = {"source": source._asdict(), "next_old": next_old, "runs": [list(run) for run in runs]}
    return json.dumps(content, separators=(",", ":")).encode()


def make_map_topic(admin: Admin, topic: str) -> None:
    """Create the topic if it does not exist: one partition, unlimited retention."""
    if topic not in {each.name for each in admin.list_topics()}:
        configs = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
        admin.create_topic(topic, partitions=1, configs=configs)


def read_map(config: Mapping[str, object], topic: str, source: Source) -> dict[int, OffsetsMap]:
    """Read the committed map by partition.

    Raises ``UsageError`` if the topic holds other data, or the map of another source.
    """
    maps: dict[int, OffsetsMap] = {}
    place = TopicPartition(topic, 0)
    with Consumer({**config, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}) as consumer:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            for record in consumer.poll(500):
                _add(maps, topic, record.key, record.value, source)
    return maps


def _add(maps: dict[int, OffsetsMap], topic: str, key: Any, value: Any, source: Source) -> None:
    try:
        content = json.loads(value or b"")
        partition, found = int(key or b""), Source(**content["source"])
        runs, next_old = [Run(*run) for run in content["runs"]], int(content["next_old"])
        extended = maps.get(partition, OffsetsMap()).extended(runs, next_old)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"topic {topic} is not an offsets map ({error}): name another topic for the map") from error
    if found != source:
        raise UsageError(
            f"topic {topic} is the offsets map of {found.topic} in cluster {found.cluster}, not of "
            f"{source.topic} in {source.cluster}: copy each topic into a separate topic"
        )
    maps[partition] = extended
