"""Input partitions of tasks, and the reading of their batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_millrace.planning.splits import PlannedSplit
from pyspark_millrace.reading.layout import raw_layout
from pyspark_millrace.reading.pacing import Pace, paced
from pyspark_millrace.reading.reports import ReadCounters, send_report, timed
from pyspark_millrace.worker_garbage import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.broker_client import BrokerClient
    from pyspark_millrace.reading.layout import ReadLayout

_log = logging.getLogger(__name__)


class SplitTask(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """Input partition of a task (Spark's ``InputPartition``).

    A task gets its split, the schemas of the split's batches, and the rate limit. ``pruned_bytes`` counts the bytes of
    the topic that the filter excluded during planning of all tasks. One task reports them.
    """

    def __init__(
        self, split: PlannedSplit, schemas: Mapping[int, pa.Schema], pace: Pace | None = None, pruned_bytes: int = 0
    ) -> None:
        self.split = split
        self.schemas = schemas
        self.pace = pace
        self.pruned_bytes = pruned_bytes

    def __repr__(self) -> str:
        wanted = self.split.range
        return f"SplitTask({wanted.key} {wanted.start}..{wanted.end}, {self.split.bytes} bytes)"


def read_task(task: InputPartition, layout: ReadLayout, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read a task's records as batches of the layout, or as batches that the transformation returns."""
    if not isinstance(task, SplitTask):
        # Spark plans one empty task if there is nothing to read.
        return
    from pyspark_millrace.reading.split_reader import Sources, read_split

    def client() -> BrokerClient:
        # Connect lazily: a task that reads files needs no connection.
        from pyspark_millrace.planning.broker_client import BROKER_CLIENTS

        return BROKER_CLIENTS.get((options.bootstrap_servers, tuple(sorted(options.task_client_config().items()))))

    sources = Sources(
        read_range=lambda split, start, end: client().read_range(split, start, end),
        log_start=lambda split: client().log_start(split),
        schema_of=lambda schema_id: task.schemas.get(schema_id) or client().schema_of(schema_id),
    )
    counters = ReadCounters(pruned_bytes=task.pruned_bytes)
    batches = timed(read_split(task.split, raw_layout(layout), options, sources, counters), counters)
    if task.pace is not None:
        batches = paced(batches, counters, task.pace)
    if layout.decoding is not None:
        from pyspark_millrace.decoding.rows import decoded

        batches = decoded(
            batches,
            layout.decoding,
            layout.arrow_schema(),
            task.split.range.key,
            options,
            lambda schema_id: client().payload_registry().payload_schema(schema_id),
        )
    if options.transform is not None:
        from pyspark_millrace.transform import decode_transform

        batches = decode_transform(options.transform)(batches)
    try:
        for batch in batches:
            settle_worker()
            yield batch
    finally:
        _log.info(
            "%r: %d batches and %d bytes read, %d batches ruled out by the filter, %d bytes passed over",
            task, counters.batches, counters.decoded_bytes, counters.skipped_batches, counters.skipped_bytes,
        )  # fmt: skip
        send_report(task.split.range.key.topic, counters)
