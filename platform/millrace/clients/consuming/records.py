"""Records of one poll by partition (Kafka's ``ConsumerRecords``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from millrace.clients.model import ConsumerRecord, TopicPartition


class ConsumerRecords(Sequence[ConsumerRecord]):
    """Records of one poll (Kafka's ``ConsumerRecords``).

    They are sorted by partition, and within a partition by offset.
    """

    def __init__(self, by_partition: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        self._by_partition: dict[TopicPartition, list[ConsumerRecord]] = dict(by_partition)
        self._all = [record for records in self._by_partition.values() for record in records]

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions with records."""
        return list(self._by_partition)

    def records(self, partition: TopicPartition) -> list[ConsumerRecord]:
        """Return the records of one partition."""
        return self._by_partition.get(TopicPartition(*partition), [])

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord]: ...
    def __getitem__(self, index: int | slice) -> ConsumerRecord | list[ConsumerRecord]:
        return self._all[index]

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"ConsumerRecords({len(self)} records of {', '.join(map(str, self._by_partition))})"
