"""Spark's batch reader over topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from millrace.errors import UsageError
from pyspark_millrace.offsets import OffsetRange
from pyspark_millrace.planning import BATCH_SIZING
from pyspark_millrace.positions import Edge, PartitionKey
from pyspark_millrace.tasks import plan_tasks, read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.columns import Layout
    from pyspark_millrace.options import SourceOptions
    from pyspark_millrace.topics import TopicSet


class BatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed here
    """Reads a range of offsets that is fixed when the query is planned.

    ``pushFilters`` is not overridden on purpose: where ``spark.sql.python.filterPushdown.enabled`` is off, as it is by
    default, a reader that has it makes every read fail.
    """

    def __init__(self, options: SourceOptions, topics: TopicSet, layout: Layout) -> None:
        self._options = options
        self._topics = topics
        self._layout = layout
        self._range = options.batch_range()

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve start and end, and cut what lies between into tasks."""
        from pyspark_millrace.topics import Cluster

        start, end = self._range
        keys = self._topics.partitions
        with Cluster.connect(self._options) as cluster:
            # The end first: what is appended meanwhile is left out, and never does a range end before it starts.
            ends = cluster.offsets_at(end, keys, option="endingOffsets", no_match=None)
            starts = cluster.offsets_at(start, keys, option="startingOffsets", no_match=self._options.starting_no_match)
            self._check_order(starts, ends)
            ranges = [
                OffsetRange(key, self._topics.topic_ids[key.topic], starts[key], ends[key])
                for key in keys
                if starts[key] < ends[key]
            ]
            return plan_tasks(cluster, ranges, cluster.schemas(self._topics), self._options, BATCH_SIZING)

    def _check_order(self, starts: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]) -> None:
        """Raise ``UsageError`` for a start after the end, where both were given.

        A start that was looked up may be after the end because records have come since then: there is nothing to read.
        """
        if any(isinstance(position, Edge) for position in self._range):
            return
        for key, start in starts.items():
            if start > ends[key]:
                raise UsageError(
                    f"{key} starts at {start} and ends at {ends[key]}: the starting offset or time must not be after "
                    "the ending one"
                )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task."""
        return read_task(partition, self._layout, self._options)
