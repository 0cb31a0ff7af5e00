"""Records of topics within offset ranges: readable ones, and lost ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.clients.model import TopicPartition
from millrace.config.client import Isolation
from millrace.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from millrace.records import decode_range
from millrace.segments.direct import map_located
from pyspark_millrace.audit.intervals import Interval, normalized
from pyspark_millrace.planning.offsets import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millrace.clients import Admin, SchemaCache


@dataclass(frozen=True, slots=True)
class Holding:
    """Content of a range of offsets.

    ``readable`` are offsets with records, and ``lost`` are offsets that the log no longer has.
    """

    readable: tuple[Interval, ...]
    lost: tuple[Interval, ...]


class TopicLog:
    """Look-ups of topic content at the brokers. It reads records, but ignores their content."""

    def __init__(self, admin: Admin, schemas: SchemaCache, isolation_level: Isolation) -> None:
        self._admin = admin
        self._schemas = schemas
        self._isolation_level = isolation_level
        self._compacted: dict[str, bool] = {}

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return the id of the current topic of that name, None if there is none."""
        try:
            return self._admin.describe_topic(topic).topic_id
        except UnknownTopicOrPartitionError:
            return None

    def is_compacted(self, topic: str) -> bool:
        """Return whether compaction can remove single records of the topic."""
        if topic not in self._compacted:
            self._compacted[topic] = "compact" in str(self._admin.describe_configs(topic)["cleanup.policy"].value)
        return self._compacted[topic]

    def holding(self, wanted: OffsetRange) -> Holding:
        """Return the readable and lost offsets of a range; all are lost if the topic was recreated."""
        nothing = Holding((), ((wanted.start, wanted.end),))
        if wanted.start >= wanted.end or self.topic_id(wanted.key.topic) != wanted.topic_id:
            return nothing if wanted.count else Holding((), ())
        partition = TopicPartition(*wanted.key)
        starts = self._admin.list_offsets({partition: "earliest"})
        ends = self._admin.list_offsets({partition: "latest"}, isolation_level=self._isolation_level)
        first = min(max(wanted.start, starts[partition].offset), wanted.end)
        end = max(min(wanted.end, ends[partition].offset), first)
        lost = normalized([(wanted.start, first), (end, wanted.end)])
        if first == end:
            return Holding((), tuple(lost))
        try:
            return Holding(tuple(normalized(self._readable(wanted, first, end))), tuple(lost))
        except OffsetOutOfRangeError:
            return nothing  # retention deleted the records meanwhile

    def _readable(self, wanted: OffsetRange, first: int, end: int) -> Iterator[Interval]:
        topic, partition = wanted.key
        located = self._admin.locate_range(
            topic, partition, first, end, topic_id=wanted.topic_id, isolation_level=self._isolation_level
        )
        for extent in located.extents:
            start, stop = max(first, extent.start_offset), min(end, extent.end_offset)
            mapped: pa.Buffer | str = map_located(
                extent.path,
                extent.start_position,
                extent.end_position,
                start_offset=extent.start_offset,
                topic_id=wanted.topic_id,
            )
            buffers: Iterable[pa.Buffer] = (
                map(pa.py_buffer, self._admin.read_range(topic, partition, start, stop, topic_id=wanted.topic_id))
                if isinstance(mapped, str)
                else (mapped,)
            )
            for buffer in buffers:
                for decoded in decode_range(
                    buffer, start, stop, self._schemas.schema_of, (), aborted=located.aborted_transactions
                ):
                    offsets = decoded.offsets()
                    if decoded.has_gaps:
                        yield from ((offset, offset + 1) for offset in offsets.to_pylist())
                    else:
                        yield offsets[0].as_py(), offsets[-1].as_py() + 1
