"""Exactly-once copy of a Kafka topic.

Records and the entries of the offsets map are in the same transactions. The map's topic holds the whole state of
earlier runs. One producer with the target's own transactional id writes everything. Therefore a second copy fences the
first, and a new run aborts the open transaction of a killed one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any

from millrace.clients import Admin, Producer
from millrace.config.topic import TopicConfig
from millrace.errors import UsageError
from millrace.migration.kafka_topic import Fetched, KafkaRecord, KafkaTopic
from millrace.migration.map_topic import Source, entry, make_map_topic, read_map
from millrace.migration.offsets_map import OffsetsMap, runs_of


@dataclass(frozen=True, slots=True)
class Copied:
    """A committed transaction of a copy."""

    number: int
    records: int
    seconds: float


class TopicCopy:
    """Copy of one Kafka topic into an opaque topic.

    Both topics have the same number of partitions.
    """

    def __init__(
        self,
        source: KafkaTopic,
        config: Mapping[str, object],
        target: str,
        *,
        map_topic: str | None = None,
        topic_configs: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Prepare the copy; ``config`` are options of millrace's clients. Missing topics are created.

        A new target gets the topic's options from Kafka, as far as millrace has them, overridden by
        ``topic_configs``. Timestamps are always the producers', because they must be kept. Raises ``UsageError`` if
        the target is typed or has another number of partitions, or if the map belongs to another source.
        """
        self._source = source
        self._config = dict(config)
        self._target = target
        self._map_topic = map_topic or f"{target}-offsets-map"
        self._say = say
        cluster, self._partitions = source.describe()
        self._identity = Source(cluster, source.topic)
        with Admin(self._config) as admin:
            self._make_target(admin, topic_configs or {})
            make_map_topic(admin, self._map_topic)
        self.maps: dict[int, OffsetsMap] = {}

    def run(
        self,
        *,
        stopping: Event,
        continuous: bool = False,
        records_max: int = 20_000,
        skip_lost: bool = False,
        on_commit: Callable[[Copied], None] = lambda copied: None,
    ) -> None:
        """Copy the records of Kafka, or with ``continuous`` until stopped; up to ``records_max`` per transaction.

        Raises ``UsageError`` if Kafka has deleted the records that are to be copied next, unless ``skip_lost``.
        """
        with Producer({**self._config, "transactional.id": f"from-kafka-{self._target}"}) as producer:
            producer.init_transactions()  # aborts a killed copy's transaction, so that the map can be read
            self.maps = read_map(self._config, self._map_topic, self._identity)
            self._source.assign(self._starts(skip_lost=skip_lost))
            waiting, number = set(range(self._partitions)), 0
            while not stopping.is_set() and (waiting or continuous):
                started = time.monotonic()
                fetched = self._source.fetch(records_max)
                if self._copy(producer, fetched):
                    number += 1
                    on_commit(Copied(number, fetched.count, time.monotonic() - started))
                waiting -= fetched.ends.keys()

    def _copy(self, producer: Producer, fetched: Fetched) -> bool:
        """Copy one transaction; returns whether there was anything to write."""
        ends = {
            partition: end
            for partition, end in fetched.ends.items()
            if end > (self.maps.get(partition, OffsetsMap()).next_old or 0)
        }
        if not fetched.records and not ends:
            return False
        extended: dict[int, OffsetsMap] = {}
        with producer.transaction():
            sent = {
                partition: producer.send_batch(self._target, [_as_sent(record) for record in records])
                for partition, records in fetched.records.items()
            }
            for partition in fetched.records.keys() | ends.keys():
                records = fetched.records.get(partition, [])
                places = [each.offset for each in sent[partition].result()] if records else []
                runs = runs_of(zip((record.old_offset for record in records), places, strict=True))
                next_old = max([record.old_offset + 1 for record in records[-1:]] + [ends.get(partition, 0)])
                extended[partition] = self.maps.get(partition, OffsetsMap()).extended(runs, next_old)
                producer.send(self._map_topic, entry(self._identity, runs, next_old), key=b"%d" % partition)
        self.maps |= extended
        return True

    def _starts(self, *, skip_lost: bool) -> dict[int, int]:
        """Return the offset at which to continue each partition."""
        starts = {}
        for partition in range(self._partitions):
            first = self._source.first_offset(partition)
            next_old = self.maps.get(partition, OffsetsMap()).next_old
            if next_old is not None and next_old < first:
                lost = f"offsets {next_old}..{first - 1} of Kafka's {self._source.topic}-{partition}"
                if not skip_lost:
                    raise UsageError(
                        f"{lost} were deleted before they were copied: skip them (skip_lost), or start again "
                        "with another topic"
                    )
                self._say(f"{lost} were deleted before they were copied, and are skipped")
            starts[partition] = max(first, next_old or 0)
        return starts

    def _make_target(self, admin: Admin, topic_configs: Mapping[str, str]) -> None:
        if self._target not in {each.name for each in admin.list_topics()}:
            known = TopicConfig.option_names()
            theirs = {name: value for name, value in self._source.configs().items() if name in known}
            configs = theirs | dict(topic_configs) | {"message.timestamp.type": "CreateTime"}
            admin.create_topic(self._target, partitions=self._partitions, configs=configs)
            settings = ", ".join(f"{name}={value}" for name, value in sorted(configs.items()))
            self._say(f"created topic {self._target}: {self._partitions} partitions, {settings}")
            return
        found = admin.describe_topic(self._target)
        if found.schema is not None:
            raise UsageError(
                f"topic {self._target} is typed: copy into an opaque topic first, and convert its records into "
                "the typed one"
            )
        there = len(found.partitions)
        if there < self._partitions:
            admin.create_partitions(self._target, self._partitions)
            self._say(f"topic {self._target} has {self._partitions} partitions now, as in Kafka")
        elif there > self._partitions:
            raise UsageError(
                f"topic {self._target} has {there} partitions, and {self._partitions} in Kafka: copy into another topic"
            )
        if (kind := admin.describe_configs(self._target)["message.timestamp.type"].value) != "CreateTime":
            raise UsageError(
                f"topic {self._target} has message.timestamp.type={kind}, which would change the times of "
                "the records: set it to CreateTime"
            )


def _as_sent(record: KafkaRecord) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
        "timestamp_ms": record.timestamp_ms,
        "partition": record.partition,
    }
