"""Splits by reference: rows that say what is to be read, for whoever they come to to read it there.

What a query keeps state of goes through a shuffle, and by it each record through the JVM twice. With ``byReference``
only a few hundred bytes for each split go that way; the task behind the shuffle reads the log itself, as the task of
the source would have. The log is there still: what a micro-batch reads, it can read again.

Invariant: a reference holds offsets, places and schemas, and no options: those may be secret, and rows lie on disks.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_millrace.planning.splits import STREAM_SIZING
from pyspark_millrace.reading.task_planning import plan_tasks
from pyspark_millrace.reading.tasks import SplitTask, read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.cluster import Cluster
    from pyspark_millrace.planning.offsets import OffsetRange
    from pyspark_millrace.reading.layout import ReadLayout


class ReferenceTask(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """The one task that gives the references of all splits."""

    def __init__(self, splits: Sequence[SplitTask]) -> None:
        self.splits = splits


def plan_references(
    cluster: Cluster,
    ranges: Sequence[OffsetRange],
    schemas: Mapping[int, pa.Schema],
    options: SourceOptions,
    layout: ReadLayout,
) -> list[ReferenceTask]:
    """Locate ranges; each is one split as a rule, for who keeps the state of a partition reads all of it.

    Raises ``OffsetsLostError`` for records that are gone, unless losses are accepted: then they are logged.
    """
    large = replace(options, split_bytes=options.split_bytes or STREAM_SIZING.bytes_max)
    return [ReferenceTask(plan_tasks(cluster, ranges, schemas, large, STREAM_SIZING, layout.row_filter))]


def references(task: InputPartition, layout: ReadLayout) -> Iterator[pa.RecordBatch]:
    """The rows of ``REFERENCE_DDL``, one for each split."""
    import pyarrow as pa

    if not isinstance(task, ReferenceTask):
        # Spark plans one empty task where there is nothing to read.
        return
    ranges = [split.split.range for split in task.splits]
    columns = [
        pa.array([each.key.topic for each in ranges], pa.string()),
        pa.array([each.key.partition for each in ranges], pa.int32()),
        pa.array([each.start for each in ranges], pa.int64()),
        pa.array([pickle.dumps((split, layout)) for split in task.splits], pa.binary()),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=["topic", "partition", "offset", "reference"])


def read_reference(reference: bytes, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read the split that a reference was made of; ``options`` are those that it was planned with."""
    split, layout = pickle.loads(reference)
    return read_task(split, layout, replace(options, by_reference=False))
