"""Reading assigned partitions, as records or as Arrow tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, overload

import pyarrow as pa

from millrace.clients.connections import Connections
from millrace.clients.fetcher import Fetcher, PartitionState
from millrace.clients.metadata import MetadataCache, check_partition
from millrace.clients.model import ConsumerRecord, OffsetAndTimestamp, TopicPartition
from millrace.clients.offsets import list_offsets
from millrace.clients.schema_cache import SchemaCache
from millrace.clients.tables import METADATA_COLUMNS, TableShape, batch_to_records, batch_to_table
from millrace.config.client import ConsumerConfig, OffsetReset
from millrace.errors import BrokerUnavailableError, OffsetOutOfRangeError, UsageError
from millrace.records import DecodedBatch, decode_range

_OFFSET_MAX: Final = 2**63 - 1
_POLL_BYTES_MAX: Final = 256 * 2**20
"""Most bytes of fetched batches that ``poll_table`` puts together."""


class ConsumerRecords(Sequence[ConsumerRecord]):
    """The records of one poll, partition by partition, each partition's in the order of its offsets."""

    def __init__(self, by_partition: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        self._by_partition: dict[TopicPartition, list[ConsumerRecord]] = dict(by_partition)
        self._all = [record for records in self._by_partition.values() for record in records]

    def partitions(self) -> list[TopicPartition]:
        """Partitions that there are records of."""
        return list(self._by_partition)

    def records(self, partition: TopicPartition) -> list[ConsumerRecord]:
        """The records of one partition."""
        return self._by_partition.get(TopicPartition(*partition), [])

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord]: ...
    def __getitem__(self, index: int | slice) -> ConsumerRecord | list[ConsumerRecord]:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"ConsumerRecords({len(self)} records of {', '.join(map(str, self._by_partition))})"


class Consumer:
    """Reads partitions that are assigned to it by hand. For one thread at a time, as Kafka's; ``close`` from any.

    ``config`` is ``bootstrap.servers`` or a mapping of ``ConsumerConfig``'s options. A partition is read from where
    ``seek`` put it; without, from where ``auto.offset.reset`` says.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._config = ConsumerConfig.of(config)
        self._connections = Connections(self._config)
        self._metadata = MetadataCache(self._connections)
        self._schemas = SchemaCache(self._connections)
        self._fetcher = Fetcher(self._config, self._connections, self._metadata)
        self._states: dict[TopicPartition, PartitionState] = {}
        self._readers: dict[TopicPartition, _Reader] = {}

    # --- assignment and position -----------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic, for ``assign``; raises ``UnknownTopicOrPartitionError``."""
        return [TopicPartition(topic, number) for number in range(self._metadata.topic(topic).num_partitions)]

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions and no others; those that were assigned already keep their positions.

        Raises ``UnknownTopicOrPartitionError``.
        """
        self._connections.check_open()
        wanted = [TopicPartition(*partition) for partition in partitions]
        for partition in wanted:
            check_partition(self._metadata.topic(partition.topic), partition.partition)
        self._states = {partition: self._states.get(partition) or self._new_state(partition) for partition in wanted}
        self._readers = {
            partition: self._readers.get(partition) or _Reader(state, self._schemas, self._config.check_crcs)
            for partition, state in self._states.items()
        }

    def _new_state(self, partition: TopicPartition) -> PartitionState:
        return PartitionState(partition, reset_to=self._config.auto_offset_reset.value)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return list(self._states)

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Go on from ``offset``, which is looked at only when it is fetched."""
        if offset < 0:
            raise UsageError(f"offset {offset}: offsets start at 0; there are seek_to_beginning and seek_to_end")
        self._reader(partition).move_to(offset)

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on from the first record that is left, in these partitions or in all."""
        self._reset(partitions, "earliest")

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on with what comes after this moment (more precisely: after the next poll or ``position``)."""
        self._reset(partitions, "latest")

    def seek_to_time(self, when: int | datetime, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on from the first record at or after a time (ms, or a datetime with zone); without one, from the end."""
        wanted = [TopicPartition(*partition) for partition in partitions] or list(self._states)
        found = self.offsets_for_times(dict.fromkeys(wanted, when))
        for partition, place in found.items():
            if place is None:
                self._reset([partition], "latest")
            else:
                self.seek(partition, place.offset)

    def _reset(self, partitions: Sequence[TopicPartition | tuple[str, int]], where: str) -> None:
        for partition in partitions or list(self._states):
            reader = self._reader(partition)
            reader.move_to(0)
            reader.state.position, reader.state.reset_to = None, where

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record that will be handed out."""
        state = self._reader(partition).state
        if state.position is None:
            self._find_positions([state])
        assert state.position is not None
        return state.position

    def _reader(self, partition: TopicPartition | tuple[str, int]) -> _Reader:
        self._connections.check_open()
        reader = self._readers.get(TopicPartition(*partition))
        if reader is None:
            raise UsageError(f"{TopicPartition(*partition)} is not assigned to this consumer: assign it first")
        return reader

    def _find_positions(self, states: Iterable[PartitionState]) -> None:
        missing = [state for state in states if state.position is None]
        for state in missing:
            if state.reset_to == OffsetReset.NONE:
                raise OffsetOutOfRangeError(
                    f"{state.partition} has no position, and auto.offset.reset is none: seek to one first"
                )
        if not missing:
            return
        found = list_offsets(
            self._connections,
            self._metadata,
            {state.partition: state.reset_to or "latest" for state in missing},
            isolation_level=self._config.isolation_level,
        )
        for state in missing:
            state.move_to(found[state.partition].offset)

    # --- offsets ---------------------------------------------------------------------------------------------

    def beginning_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        """The first offset of each partition that is still there."""
        return self._offsets(partitions, "earliest")

    def end_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition that this consumer may see."""
        return self._offsets(partitions, "latest")

    def _offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]], where: str) -> dict[TopicPartition, int]:
        self._connections.check_open()
        wanted = {TopicPartition(*partition): where for partition in partitions}
        found = list_offsets(self._connections, self._metadata, wanted, isolation_level=self._config.isolation_level)
        return {partition: place.offset for partition, place in found.items()}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time (ms, or a datetime with zone), ``None`` without one."""
        self._connections.check_open()
        found = list_offsets(self._connections, self._metadata, times, isolation_level=self._config.isolation_level)
        return {partition: place if place.offset >= 0 else None for partition, place in found.items()}

    def high_watermark(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The partition's high watermark at the last fetch; -1 before the first."""
        return self._reader(partition).state.high_watermark

    # --- reading ---------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int = 0, *, max_records: int | None = None) -> ConsumerRecords:
        """Return the next records, at most ``max_records`` (``max.poll.records``), waiting for the first of them.

        Empty when there are none within ``timeout_ms``. While brokers are away it waits and tries again, and raises
        ``BrokerUnavailableError`` after ``default.api.timeout.ms``. Raises ``OffsetOutOfRangeError`` with
        ``auto.offset.reset=none``, ``UnknownTopicOrPartitionError``, ``CorruptBatchError``, ``ClientClosedError``.
        """
        by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
        left = self._config.max_poll_records if max_records is None else max_records
        for reader in self._wait_for_data(timeout_ms):
            reader.read_columns(None)
            key_columns = self._metadata.topic(reader.partition.topic).key_columns
            while left > 0 and (batch := reader.next(left)) is not None:
                left -= batch.num_rows
                records = batch_to_records(reader.partition, batch, key_columns)
                by_partition.setdefault(reader.partition, []).extend(records)
        self._fetcher.send(self._states.values(), timeout_ms)
        return ConsumerRecords(by_partition)

    def poll_table(
        self,
        timeout_ms: int = 0,
        *,
        max_records: int | None = None,
        columns: Sequence[str] | None = None,
        metadata: Sequence[str] | bool = False,
    ) -> pa.Table:
        """Return the next records as a table, waiting for the first of them; no rows when none come in time.

        Everything that has been fetched is returned, or at most ``max_records``. The columns are those of the topic's
        newest schema (``key`` and ``value`` of an opaque topic), or ``columns`` of them, then those of ``metadata``:
        ``__topic``, ``__partition``, ``__offset``, ``__timestamp`` (``True`` for these), ``__headers``,
        ``__tombstone``. Batches of older versions have nulls in newer columns.

        Raises what ``poll`` does, and ``UsageError`` when the assigned topics have different schemas.
        """
        shape = TableShape.of(self._topics(), columns, METADATA_COLUMNS[:4] if metadata is True else metadata or ())
        batches: list[pa.RecordBatch] = []
        left = _OFFSET_MAX if max_records is None else max_records
        size_bytes = 0
        for reader in self._wait_for_data(timeout_ms):
            reader.read_columns(shape.columns_to_read)
            while left > 0 and size_bytes < _POLL_BYTES_MAX and (batch := reader.next(left)) is not None:
                left -= batch.num_rows
                size_bytes += batch.header.size_bytes
                batches.append(batch_to_table(shape, reader.partition, batch))
        self._fetcher.send(self._states.values(), timeout_ms)
        return pa.Table.from_batches(batches, schema=shape.schema)

    def _topics(self) -> list[Any]:
        names = dict.fromkeys(partition.topic for partition in self._states)
        if not names:
            raise UsageError("no partitions are assigned: assign some first")
        return [self._metadata.topic(name) for name in names]

    def _wait_for_data(self, timeout_ms: int) -> list[_Reader]:
        """The readers that have something, waiting for the first; in turns, so that none is starved."""
        self._connections.check_open()
        if not self._states:
            raise UsageError("no partitions are assigned: assign some first")
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._fetcher.take_in()
            self._raise_errors()
            try:
                self._find_positions(self._states.values())
            except BrokerUnavailableError:
                if time.monotonic() >= deadline:
                    raise
                continue
            self._fetcher.send(self._states.values(), int((deadline - time.monotonic()) * 1000))
            ready = [reader for reader in self._readers.values() if reader.has_data()]
            if ready:
                first = ready[0].partition
                self._readers[first] = self._readers.pop(first)
                return ready
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return []
            self._fetcher.wait(min(remaining, self._next_retry_s()))

    def _next_retry_s(self) -> float:
        """How long until a partition may be fetched again that is not being fetched."""
        now = time.monotonic()
        waits = [state.retry_at - now for state in self._states.values() if not state.in_flight]
        return max(min(waits, default=1.0), 0.001)

    def _raise_errors(self) -> None:
        for state in self._states.values():
            if state.error is not None:
                error, state.error = state.error, None
                state.unavailable_since = None
                raise error

    # --- life ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records without end, as they come."""
        while True:
            yield from self.poll(self._config.fetch_max_wait_ms)

    def close(self) -> None:
        """End the fetches and close the connections. May be called twice."""
        self._fetcher.close()
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Reader:
    """Takes the batches of one partition apart, as many rows at a time as are wanted."""

    def __init__(self, state: PartitionState, schemas: SchemaCache, check_crcs: bool) -> None:
        self.state = state
        self.partition = state.partition
        self._schemas = schemas
        self._check_crcs = check_crcs
        self._columns: Sequence[str] | None = None
        self._batches: Iterator[DecodedBatch] | None = None
        self._rest: DecodedBatch | None = None

    def move_to(self, offset: int) -> None:
        """Go on from ``offset``."""
        self._batches = self._rest = None
        self.state.move_to(offset)

    def read_columns(self, columns: Sequence[str] | None) -> None:
        """Read only these columns from now on; what is decoded already with others is decoded anew."""
        if columns != self._columns:
            self._columns = columns
            self._batches = self._rest = None

    def has_data(self) -> bool:
        """Whether batches wait to be read (control batches alone may turn out to be nothing)."""
        return bool(self.state.waiting)

    def next(self, max_rows: int) -> DecodedBatch | None:
        """The next rows of one batch, at most ``max_rows``; ``None`` when what was fetched is used up."""
        batch = self._rest or self._next_batch()
        if batch is None:
            return None
        offsets = batch.offsets()
        if batch.num_rows > max_rows:
            split = offsets[max_rows].as_py()
            self._rest = batch.slice(split, _OFFSET_MAX)
            batch = batch.slice(0, split)
            self.state.position = split
        else:
            self._rest = None
            self.state.position = offsets[-1].as_py() + 1
        return batch

    def _next_batch(self) -> DecodedBatch | None:
        while self.state.waiting:
            if self._batches is None:
                start = self.state.position or 0
                self._batches = decode_range(
                    self.state.waiting[0].data,
                    start,
                    _OFFSET_MAX,
                    self._schemas.schema_of,
                    self._columns,
                    verify=self._check_crcs,
                )
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None
            # Past control batches and what compaction took out at the end.
            self.state.position = max(self.state.position or 0, self.state.waiting.popleft().next_offset)
        return None
