"""Partitioners for records that name no partition.

Without ``partitioner.class`` Kafka's default applies. Keys decide by murmur2 (``partitioner``). Records without a key
stick to a partition until it has received about ``batch.size`` bytes (KIP-480, KIP-794).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.clients.loading import load_objects
from millrace.clients.model import ProducerRecord, TopicDescription
from millrace.errors import InvalidConfigError, UnknownTopicOrPartitionError


class StickyPartition:
    """Sticky partition of a topic (KIP-480, KIP-794). Thread safe.

    It is for records that have neither partition nor key. A partition gets about ``batch_bytes``, then ``choose``
    (``adaptive``) selects the next one. If ``choose`` returns None, the next partition with a leader follows, so that
    all get equal shares; Kafka selects at random. The first partition is random, so that producers differ.
    """

    def __init__(
        self,
        batch_bytes: int,
        first: int | None = None,
        choose: Callable[[TopicDescription], int | None] = lambda topic: None,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._choose = choose
        self._partition = random.randrange(2**31) if first is None else first
        self._placed_bytes = 0
        self._lock = threading.Lock()

    def place(self, size_bytes: int, topic: TopicDescription) -> int:
        """Return the partition for ``size_bytes`` of records."""
        with self._lock:
            partition = self._available(topic)
            self._placed_bytes += size_bytes
            # Switch if another group of this size would exceed ``batch_bytes`` by half of the group or more.
            if self._placed_bytes + size_bytes // 2 >= self._batch_bytes:
                chosen = self._choose(topic)
                self._partition = partition + 1 if chosen is None else chosen
                self._placed_bytes = 0
            return partition

    def _available(self, topic: TopicDescription) -> int:
        count = topic.num_partitions
        for number in range(self._partition, self._partition + count):
            if topic.partitions[number % count].leader >= 0:
                break
        else:
            number = self._partition
        if number != self._partition:
            self._partition, self._placed_bytes = number, 0
        return number % count


class Partitioner:
    """Base of custom partitioners (Kafka's ``Partitioner``).

    ``partitioner.class`` is an object, a class without arguments, or ``module:Class``. The producer calls the
    partitioner for records that name no partition, possibly from several threads at once.
    """

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Receive the producer's options before the first call."""

    def partition(self, record: ProducerRecord, topic: TopicDescription) -> int:
        """Return the partition of a record; -1 leaves the choice to the producer, as for a record without a key."""
        raise NotImplementedError(f"{type(self).__name__} has no partition()")

    def partition_table(self, rows: pa.Table, topic: TopicDescription) -> npt.NDArray[np.int32]:
        """Return the partition of each row of a table, -1 to leave it to the producer; override this for speed.

        The default builds a record of each row: from columns key and value in an opaque topic, as a dict in a typed
        one.
        """
        columns = rows.to_pylist()
        if topic.schema is None:
            records = [ProducerRecord(topic.name, row.get("value"), key=row.get("key")) for row in columns]
        else:
            records = [ProducerRecord(topic.name, row) for row in columns]
        return np.array([self.partition(record, topic) for record in records], np.int32)

    def close(self) -> None:
        """Release resources when the producer is closed."""


class RoundRobinPartitioner(Partitioner):
    """Round-robin partitioner that ignores keys (Kafka's class of this name).

    It chooses partitions that have a leader, if any has one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, int] = {}
        self._known: dict[str, tuple[TopicDescription, list[int]]] = {}

    def partition(self, record: ProducerRecord, topic: TopicDescription) -> int:
        """Return the next partition."""
        partitions = self._available(topic)
        return partitions[self._take(topic, 1) % len(partitions)]

    def partition_table(self, rows: pa.Table, topic: TopicDescription) -> npt.NDArray[np.int32]:
        """Return the next partitions."""
        partitions = np.array(self._available(topic), np.int32)
        first = self._take(topic, rows.num_rows)
        chosen: npt.NDArray[np.int32] = partitions[(first + np.arange(rows.num_rows)) % len(partitions)]
        return chosen

    def _take(self, topic: TopicDescription, count: int) -> int:
        with self._lock:
            first = self._next.get(topic.name, 0)
            self._next[topic.name] = first + count
            return first

    def _available(self, topic: TopicDescription) -> list[int]:
        """Return the partitions with a leader, or all if none has one."""
        known = self._known.get(topic.name)
        # Compare identities, because this runs for each record. A refresh of the metadata makes a new description.
        if known is None or known[0] is not topic:
            found = [each.partition for each in topic.partitions if each.leader >= 0]
            known = self._known[topic.name] = (topic, found or list(range(topic.num_partitions)))
        return known[1]


def check_choice(partitioner: Partitioner, topic: TopicDescription, partition: int) -> int:
    """Return a partitioner's choice if it is -1 or a partition of the topic; raises
    ``UnknownTopicOrPartitionError``.
    """
    if not -1 <= partition < topic.num_partitions:
        raise UnknownTopicOrPartitionError(
            f"{type(partitioner).__name__} chose partition {partition} of {topic.name}: its partitions are 0 to "
            f"{topic.num_partitions - 1}"
        )
    return partition


def instances(option: str, given: Any, base: type[Any], configs: Mapping[str, Any]) -> list[Any]:
    """Create and configure the instances that an option lists as objects, classes, or ``module:Class``.

    Raises ``InvalidConfigError`` with the name that cannot be found or created, or has the wrong type.
    """
    made = load_objects(option, given)
    for item, instance in zip(given, made, strict=True):
        if not isinstance(instance, base):
            raise InvalidConfigError(f"{option}: {item!r} is not a {base.__module__}.{base.__name__}")
        instance.configure(configs)
    return made
