"""What batch and stream have in common: ranges to tasks on the driver's side, a task to batches on the other."""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_millrace.planning.narrowing import within_offsets, within_times
from pyspark_millrace.planning.offsets import LossReport, OffsetRange
from pyspark_millrace.planning.splits import (
    LATE_SPLITS_LARGER,
    Extent,
    PlannedSplit,
    Sizing,
    even_bytes,
    located_bytes,
    plan_splits,
    split_bytes,
    total_bytes,
)
from pyspark_millrace.reading.pacing import Pace, paced
from pyspark_millrace.reading.reports import ReadCounters, send_report, timed
from pyspark_millrace.worker_garbage import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.filters import RowFilter
    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.topics import Cluster
    from pyspark_millrace.reading.columns import Layout

_log = logging.getLogger(__name__)


class SplitTask(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """What Spark sends to a task: the split, the schemas that its batches may name, and how fast to read.

    ``pruned_bytes`` is what the filter left out of the topic while all tasks were planned, for one of them to report.
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


def plan_tasks(
    cluster: Cluster,
    ranges: Sequence[OffsetRange],
    schemas: Mapping[int, pa.Schema],
    options: SourceOptions,
    sizing: Sizing,
    row_filter: RowFilter | None = None,
) -> list[SplitTask]:
    """Locate ranges and cut them into tasks; what the filter rules out is left out.

    Raises ``OffsetsLostError`` for records that are gone, unless losses are accepted: then they are logged.
    """
    report = LossReport(fail=options.fail_on_data_loss)
    ranges = within_offsets(ranges, row_filter)
    located = cluster.locate([(wanted, 0) for wanted in ranges], report)
    before = _bytes_of_topics(located)
    # After they have been located: that some of these records are gone must not go unnoticed.
    timely, late = within_times([wanted for wanted, _ in located], row_filter, cluster.first_offsets_from)
    if timely != [wanted for wanted, _ in located]:
        located = cluster.locate([(wanted, 0) for wanted in (*timely, *late)], report)
    everything = located_bytes(located)
    size = split_bytes(
        everything, cores=_cores(), sizing=sizing, min_splits=options.min_partitions, asked=options.split_bytes
    )
    sizes = [size] * len(timely) + [size * LATE_SPLITS_LARGER] * len(late)
    if any(extent.bytes > most for (_, extents), most in zip(located, sizes, strict=True) for extent in extents):
        pieces = [
            (wanted, even_bytes(total_bytes(extents), most))
            for (wanted, extents), most in zip(located, sizes, strict=True)
        ]
        located = cluster.locate(pieces, report)
    report.warn(_log)
    splits = plan_splits(
        located, sizes, min_splits=options.min_partitions, max_records=options.max_records_per_partition
    )
    _log.info(
        "%d splits of up to %d bytes for %d bytes in %d ranges; %d bytes left out by the filter",
        len(splits), size, everything, len(located), before.total() - everything,
    )  # fmt: skip
    pace = Pace(uuid.uuid4(), options.max_bytes_per_second) if options.max_bytes_per_second else None
    pruned = before - _bytes_of_topics(located)
    return [SplitTask(split, schemas, pace, pruned.pop(split.range.key.topic, 0)) for split in splits]


def _bytes_of_topics(located: Sequence[tuple[OffsetRange, Sequence[Extent]]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for wanted, extents in located:
        found[wanted.key.topic] += total_bytes(extents)
    return found


def read_task(task: InputPartition, layout: Layout, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read a task's records as batches of the layout, or of what the transformation makes of them."""
    if not isinstance(task, SplitTask):
        # Spark plans one empty task where there is nothing to read.
        return
    from pyspark_millrace.reading.splits import Sources, read_split

    def cluster() -> Cluster:
        # Not before it is needed: a task that reads files does without a connection.
        from pyspark_millrace.planning.topics import CLUSTERS

        return CLUSTERS.get((options.bootstrap_servers, tuple(sorted(options.task_client_config().items()))))

    sources = Sources(
        read_range=lambda split, start, end: cluster().read_range(split, start, end),
        log_start=lambda split: cluster().log_start(split),
        schema_of=lambda schema_id: task.schemas.get(schema_id) or cluster().schema_of(schema_id),
    )
    counters = ReadCounters(pruned_bytes=task.pruned_bytes)
    raw = _raw(layout)
    batches = timed(read_split(task.split, raw, options, sources, counters), counters)
    if task.pace is not None:
        batches = paced(batches, counters, task.pace)
    if layout.decoding is not None:
        from pyspark_millrace.decoding.rows import decoded

        key = task.split.range.key
        batches = decoded(
            batches,
            layout,
            (key.topic, key.partition),
            options,
            lambda schema_id: cluster().payload_registry().payload_schema(schema_id),
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


def _raw(layout: Layout) -> Layout:
    """What is read of the log: the layout itself, unless its columns are decoded."""
    if layout.decoding is None:
        return layout
    from pyspark_millrace.decoding.rows import raw_layout

    return replace(raw_layout(layout.decoding, layout), row_filter=layout.row_filter)


def _cores() -> int:
    """Cores of this machine: the number that counts where Spark is local, and harmless where it is not."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
