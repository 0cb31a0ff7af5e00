"""Assigned partitions of a consumer, with their positions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from millrace.clients.consuming.partition import PartitionState
from millrace.clients.consuming.reader import PartitionReader
from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from millrace.clients.schema_cache import SchemaCache
from millrace.config.client import ConsumerConfig
from millrace.errors import UsageError


class Assignment:
    """Readers of the assigned partitions, in reading order.

    The first reader is the next one to read.
    """

    def __init__(self, config: ConsumerConfig, schemas: SchemaCache) -> None:
        self._config = config
        self._schemas = schemas
        self._readers: dict[TopicPartition, PartitionReader] = {}

    def replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; those that were assigned already keep their positions."""
        wanted = dict.fromkeys(partitions)
        for partition in [each for each in self._readers if each not in wanted]:
            self._readers.pop(partition).state.abandon()
        self._readers = {partition: self._readers.get(partition) or self._new(partition) for partition in wanted}

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Remove partitions from the assignment."""
        for partition in partitions:
            if (reader := self._readers.pop(partition, None)) is not None:
                reader.state.abandon()

    def _new(self, partition: TopicPartition) -> PartitionReader:
        state = PartitionState(
            partition,
            reset_to=self._config.auto_offset_reset.value,
            wants_committed=bool(self._config.group_id),
        )
        return PartitionReader(state, self._schemas, self._config.check_crcs)

    def __len__(self) -> int:
        return len(self._readers)

    def partitions(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        return list(self._readers)

    def states(self) -> list[PartitionState]:
        """Return the states of the assigned partitions."""
        return [reader.state for reader in self._readers.values()]

    def reader(self, partition: TopicPartition | tuple[str, int]) -> PartitionReader:
        """Return the reader of a partition; raises ``UsageError`` if it is not assigned."""
        reader = self._readers.get(TopicPartition(*partition))
        if reader is None:
            raise UsageError(f"{TopicPartition(*partition)} is not assigned to this consumer: assign it first")
        return reader

    def ready(self) -> list[PartitionReader]:
        """Return the readers that have data, and rotate the order so that no partition is starved."""
        ready = [reader for reader in self._readers.values() if reader.has_data()]
        if ready:
            first = ready[0].partition
            self._readers[first] = self._readers.pop(first)
        return ready

    def consumed(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit, after all returned records, of these partitions or of all."""
        return {
            partition: OffsetAndMetadata(offset=offset, leader_epoch=reader.state.offset_epoch)
            for partition, reader in self._readers.items()
            if (offset := reader.state.seen_to) is not None and (partitions is None or partition in partitions)
        }

    def passed_on(self, records: ConsumerRecords) -> Iterator[ConsumerRecord]:
        """Pass on the records of a poll one by one. Those that are not passed on do not count as returned.

        The rest of a partition is dropped if the application seeks or polls meanwhile, or loses the partition.
        """
        runs = []
        for partition in records.partitions():
            if run := records.records(partition):
                reader = self._readers.get(partition)
                state = PartitionState(partition) if reader is None else reader.state
                state.unseen_from = run[0].offset
                runs.append((state, run))
        for state, run in runs:
            expected = run[0].offset
            for record in run:
                if state.unseen_from != expected:
                    break
                state.unseen_from = expected = record.offset + 1
                yield record
            else:
                if state.unseen_from == expected:
                    state.unseen_from = None
