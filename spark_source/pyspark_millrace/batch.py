"""Spark's batch reader for topics."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_millrace.options.positions import check_order
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.planning.splits import BATCH_SIZING
from pyspark_millrace.reading.task_planning import plan_tasks
from pyspark_millrace.reading.tasks import read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.topics import TopicSet
    from pyspark_millrace.reading.layout import ReadLayout


_PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class BatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed here
    """Batch reader (Spark's ``DataSourceReader``) of an offset range that planning fixes.

    The class does not define ``pushFilters`` on purpose. While ``spark.sql.python.filterPushdown.enabled`` is off,
    which is the default, a reader that defines it makes every read fail (see ``FilteringBatchReader``).
    """

    def __init__(self, options: SourceOptions, topics: TopicSet, layout: ReadLayout) -> None:
        self._options = options
        self._topics = topics
        self._layout = layout
        self._range = options.batch_range()

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve start and end, and cut the range into tasks."""
        from pyspark_millrace.planning.broker_client import BrokerClient

        start, end = self._range
        keys = self._topics.partitions
        check_order(start, end, keys)
        with BrokerClient.connect(self._options) as client:
            # Resolve the end first: later records are left out. As in Spark's Kafka connector, a start that was looked
            # up and is after the end means that there is nothing to read.
            ends = client.offsets_at(end, keys, option="endingOffsets", no_match=None)
            starts = client.offsets_at(start, keys, option="startingOffsets", no_match=self._options.starting_no_match)
            ranges = [
                OffsetRange(key, self._topics.topic_ids[key.topic], starts[key], ends[key])
                for key in keys
                if starts[key] < ends[key]
            ]
            return plan_tasks(
                client, ranges, client.schemas(self._topics), self._options, BATCH_SIZING, self._layout.row_filter
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task."""
        return read_task(partition, self._layout, self._options)


class FilteringBatchReader(BatchReader):
    """Batch reader for Spark's worker that pushes filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Take the filters that have the same meaning here, and return the others for Spark to apply."""
        if self._options.transform is not None:
            return filters  # they apply to the output of the transformation
        from pyspark_millrace.reading.layout import and_pushed

        self._layout, left = and_pushed(filters, self._layout)
        return left


def spark_offers_filters() -> bool:
    """Return whether this process is Spark's worker that pushes filters down.

    That worker exists only if filter pushdown is on. A source does not see the session's settings. But Spark plans a
    read with pushdown in another program than a read without it.
    """
    modules = (sys.modules.get(name) for name in (_PUSHING_WORKER, "__main__"))
    return any(getattr(getattr(module, "__spec__", None), "name", None) == _PUSHING_WORKER for module in modules)
